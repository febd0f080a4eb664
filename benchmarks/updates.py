"""Updates: of two statements about the same thing, whether both are found and the newer one stands above the older.

The evidence of LongMemEval in one scope: the questions about updated knowledge, asked of the memory as it comes, without
its preference for what is newer, and of BM25; and all questions by their kind.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean

from common import isolate, memory_server, publish, table, verdict
from evidence import BARS, Run, ask, bar, bm25, cases, categories, harness, made_with, means, options, store

DATASET = "lme-pool"
UPDATE = "knowledge-update"
METRICS = ("recall@10", "hit@10")
OURS, BEFORE, BM25 = "mcp-memory", "mcp-memory, as before (NEWER=0)", "BM25"
ORDER = ("both in first 10", "newer above older, of those", "newer in first 10 and above older", "newest in first 5")


def order(done: Run) -> list[float]:
    """The shares of ORDER, over the questions with an older and a newer statement."""
    places = [(row["older"], row["newer"]) for row in done.rows if row["category"] == UPDATE and "newer" in row]
    both = [newer < older for older, newer in places if max(older, newer) < 10]
    return [
        len(both) / len(places),
        mean(both) if both else 0.0,
        mean(newer < 10 and newer < older for older, newer in places),
        mean(newer < 5 for _, newer in places),
    ]


def main() -> None:
    chosen = options(__doc__).parse_args()
    isolate()
    bench = harness(chosen.bench)
    loaded = cases(bench, DATASET, questions=chosen.questions)
    if not loaded:
        return
    with tempfile.TemporaryDirectory() as folder:
        with memory_server(Path(folder), chosen.embedder) as server:
            store(loaded, server)
            ours = ask(bench, loaded, server, by_default=False)
        with memory_server(Path(folder), chosen.embedder, MCP_MEMORY_WEIGHTS__NEWER="0") as server:
            before = ask(bench, loaded, server, by_default=False)
    done = {OURS: ours, BEFORE: before, BM25: bm25(bench, loaded)}
    orders = {system: order(run) for system, run in done.items()}
    asked = sum(row["category"] == UPDATE and "newer" in row for row in ours.rows)
    groups = categories(ours.rows) | {"all": list(range(len(ours.rows)))}
    (both, newer, *_), (both_before, *_) = orders[OURS], orders[BEFORE]
    publish(
        "updates",
        f"{made_with(bench, chosen.embedder)}.",
        table(
            (f"{UPDATE}, {asked} questions", *ORDER),
            [[system, *(f"{share:.3f}" for share in shares)] for system, shares in orders.items()],
        ),
        table(
            ("questions", "system", "n", *METRICS),
            [
                [name, system, str(len(places)), *means(done[system], METRICS, places)]
                for name, places in groups.items() for system in (OURS, BM25)
            ],
        ),
        table(
            BARS,
            [
                bar(ORDER[1], newer, 0.90),
                [f"{ORDER[0]}, beside as before", f"{both:.3f}", f">= {both_before:.3f}", verdict(both >= both_before)],
            ],
        ),
        write=chosen.write,
    )  # fmt: skip


if __name__ == "__main__":
    main()
