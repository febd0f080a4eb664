"""Chinese and English: whether recall is as good in one as in the other, through the MCP tools alone.

MADial-Bench in both languages and MemDaily (Chinese); what tokenizers stumble over, asked for among everyday turns of both
languages (benchmarks/data/bilingual.json); and facts told in one language and asked about in the other.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from common import HERE, isolate, memory_server, publish, table
from evidence import (
    BARS,
    COSTS,
    LIMIT,
    Run,
    ahead,
    ask,
    bar,
    bm25,
    cases,
    categories,
    costs,
    dense,
    harness,
    made_with,
    means,
    options,
    store,
)

DATASETS = ("madial-zh", "madial-en", "memdaily")
METRICS = ("recall@5", "recall@10", "recall@20", "hit@10", "mrr")
OURS, BM25, DENSE = "mcp-memory", "BM25", "plain dense"
OWN = HERE / "data" / "bilingual.json"
OTHER = {"zh": "en", "en": "zh"}
LANGUAGES = {"zh": "Chinese", "en": "English"}
A_SESSION = 8
BEGIN = datetime(2025, 2, 3, 9)  # noqa: DTZ001  (the harness's times have no zone)


def runs(bench: Any, loaded: Sequence[Any], embedder: str) -> dict[str, Run]:
    """What every system did on the cases, all of them in one memory."""
    with tempfile.TemporaryDirectory() as folder, memory_server(Path(folder), embedder) as server:
        adds = store(loaded, server)
        ours = ask(bench, loaded, server)
    ours.adds = adds
    return {OURS: ours, BM25: bm25(bench, loaded), DENSE: dense(bench, loaded, embedder)}


# ---- our own turns


def case(bench: Any, name: str, noise: Sequence[str], told: Sequence[tuple[str, str, str]]) -> Any:
    """Turns of which each in `told` (kind, what was said, question) is asked for, spread evenly among the noise."""
    said = [(text, -1) for text in noise]
    for number, (_, text, _) in enumerate(told):
        said.insert(number * (len(noise) + len(told)) // len(told), (text, number))
    turns, queries = [], []
    for place, (text, number) in enumerate(said):
        session, minute = divmod(place, A_SESSION)
        when = BEGIN + timedelta(days=3 * session, minutes=minute)
        turn = bench.Turn(f"D{session}:{minute}", "user", text, f"s{session}", str(when), when, place, name)
        turns.append(turn)
        if number >= 0:
            kind, _, question = told[number]
            queries.append({"id": turn.id, "q": question, "cat": kind, "ev": [turn.id], "time": None})
    return bench.Case(name, turns, queries)


def own_cases(bench: Any) -> tuple[Any, list[Any]]:
    """The traps, and a case for each language that facts are told in; they are asked about in the other one."""
    own = json.loads(OWN.read_text(encoding="utf-8"))
    traps = [(trap["kind"], trap["said"], trap["query"]) for trap in own["traps"]]
    crossed = [
        case(bench, f"told-{language}", own["noise"], [
            (f"{LANGUAGES[language]}, asked in {LANGUAGES[other]}", fact[language]["said"], fact[other]["question"])
            for fact in own["facts"]
        ])
        for language, other in OTHER.items()
    ]  # fmt: skip
    return case(bench, "traps", own["noise"], traps), crossed


def trap_rows(trap: Any, done: dict[str, Run]) -> Iterator[list[str]]:
    """Each trap with the rank of what it asks for."""
    for place, query in enumerate(trap.queries):
        ranks = [_rank(run.rows[place]) for run in done.values()]
        yield [query["cat"], query["q"], *ranks]


def _rank(row: dict[str, Any]) -> str:
    return f"{1 / row['mrr']:.0f}" if row["mrr"] else f"not in {LIMIT}"


# ---- the tables


def quality(found: dict[str, dict[str, Run]]) -> Iterator[list[str]]:
    for dataset, done in found.items():
        for system, run in done.items():
            yield [dataset, system, str(len(run.rows)), *means(run, METRICS, range(len(run.rows)))]


def compared(found: dict[str, dict[str, Run]]) -> Iterator[list[str]]:
    for dataset, done in found.items():
        places = range(len(done[OURS].rows))
        for system in (BM25, DENSE):
            yield [f"{dataset}, {system}", str(len(places)), ahead(done[OURS], done[system], "recall@10", places)]


def bars(found: dict[str, dict[str, Run]], traps: Run) -> Iterator[list[str]]:
    """What is wanted, and whether it is so."""
    recalls = {dataset: done[OURS].mean("recall@10") for dataset, done in found.items()}
    for dataset, wanted in (("madial-zh", 0.58), ("madial-en", 0.50)):
        if dataset in recalls:
            yield bar(f"{dataset}: recall@10", recalls[dataset], wanted)
    if {"madial-zh", "madial-en"} <= recalls.keys():
        yield bar("madial-zh minus madial-en: recall@10", recalls["madial-zh"] - recalls["madial-en"], -0.05)
    yield bar(
        "tokenizer traps, two characters: first", traps.mean("hit@1", categories(traps.rows)["two characters"]), 1
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    chosen = parser.parse_args()
    isolate()
    bench = harness(chosen.bench)
    found = {}
    for dataset in chosen.datasets.split(","):
        loaded = cases(bench, dataset, questions=chosen.questions)
        if loaded:
            found[dataset] = runs(bench, loaded, chosen.embedder)
    trap, crossed = own_cases(bench)
    trapped, across = runs(bench, [trap], chosen.embedder), runs(bench, crossed, chosen.embedder)
    publish(
        "multilingual",
        f"{made_with(bench, chosen.embedder)}.",
        table(("questions", "system", "n", *METRICS), quality(found)),
        table(("ahead, points (95 %)", "n", "recall@10"), compared(found)),
        table(("cost", *COSTS), [[dataset, *costs(done[OURS])] for dataset, done in found.items()]),
        table(("trap", "asked for", *(f"{system}: rank" for system in trapped)), trap_rows(trap, trapped)),
        table(
            ("told in", "system", "n", "hit@1", "hit@5"),
            [
                [kind, system, str(len(places)), *means(run, ("hit@1", "hit@5"), places)]
                for kind, places in categories(across[OURS].rows).items() for system, run in across.items()
            ],
        ),
        table(BARS, bars(found, trapped[OURS])),
        write=chosen.write,
    )  # fmt: skip


if __name__ == "__main__":
    main()
