"""Evidence: what the retrieval benchmarks share. Questions whose answering turns are known, asked through the MCP tools
alone, beside BM25, the bare embedder and the whole conversation.

The harness that reads and scores the data sets, and the data, live outside this project: `--bench DIR` or EVAL_BENCH names
their folder.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from common import DEFAULT_EMBEDDER, HERE, Server, arguments, ms, p50, p95, timed, verdict

from mcp_memory import settings
from mcp_memory.assembly import load_embedder

HARNESS = "locomo_mcp_bench"
TUNED_ON = ("conv-26", "conv-30", "conv-41")
"""The conversations of LoCoMo that the weights of a search were chosen on."""

LIMIT = 50
NOT_FOUND = LIMIT
"""The place of a turn that is not among the first LIMIT, which begin with 0."""

DEFAULTS_ASKED = 10
"""One in so many questions is asked once more with the tool's default arguments, for the tokens of an ordinary answer."""

RESAMPLES = 10_000
BATCH = 64

Places = dict[str, list[int]]
"""Name of a group of questions -> their places among the rows."""


@dataclass
class Run:
    """What one system did on one data set: a row of scores for each question, and what it cost."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    tokens_by_default: list[int] = field(default_factory=list)
    adds: list[float] = field(default_factory=list)
    searches: list[float] = field(default_factory=list)

    def mean(self, metric: str, places: Iterable[int] | None = None) -> float:
        return mean(float(self.rows[i][metric]) for i in (range(len(self.rows)) if places is None else places))


# ---- the questions


def options(description: str | None) -> argparse.ArgumentParser:
    """The command line that the retrieval benchmarks have in common."""
    parser = arguments(description)
    parser.add_argument(
        "--bench", type=Path, default=os.environ.get("EVAL_BENCH") or HERE.parent.parent / "shared/bench"
    )
    parser.add_argument("--embedder", default=DEFAULT_EMBEDDER)
    parser.add_argument(
        "--questions",
        type=int,
        metavar="N",
        help="only the first N questions of each kind in each case, for a quick look",
    )
    return parser


def harness(folder: Path | str) -> Any:
    folder = Path(folder)
    if not (folder / f"{HARNESS}.py").is_file():
        print(f"skipped: no data at {folder} (name the folder with --bench or EVAL_BENCH)")
        sys.exit(0)
    sys.path.insert(0, str(folder))
    return importlib.import_module(HARNESS)


def cases(bench: Any, dataset: str, file: Path | None = None, questions: int | None = None) -> list[Any]:
    """The cases of a data set with the questions that have evidence; none where its files are absent."""
    try:
        loaded = list(bench.LOADERS[dataset](file and str(file)))
    except FileNotFoundError as error:
        print(f"skipped: no data for {dataset} at {error.filename}")
        return []
    for case in loaded:
        case.queries = _first([query for query in case.queries if query["ev"]], questions)
    return loaded


def _first(queries: Sequence[dict[str, Any]], wanted: int | None) -> list[dict[str, Any]]:
    seen: Counter[str] = Counter()
    kept = []
    for query in queries:
        seen[query["cat"]] += 1
        if wanted is None or seen[query["cat"]] <= wanted:
            kept.append(query)
    return kept


# ---- the memory


def store(loaded: Sequence[Any], server: Server) -> list[float]:
    """Store every turn by a call of its own, each case under a user of its own; the seconds of each call."""
    adds = []
    for case in loaded:
        for turn in case.turns:
            voice = "role" if turn.speaker in ("user", "assistant") else "speaker"
            seconds, _ = timed(server.call, "add_memory", content=turn.text, user_id=case.name, session_id=turn.session,
                               timestamp=f"{turn.when.isoformat()}Z", metadata={"ref": turn.uid},
                               **{voice: turn.speaker})  # fmt: skip
            adds.append(seconds)
        server.call("consolidate", user_id=case.name)
    return adds


def ask(bench: Any, loaded: Sequence[Any], server: Server, by_default: bool = True) -> Run:
    """Ask every question as it stands, once all cases are stored: what comes from another case is a leak."""
    done, mapper = Run(), bench.Mapper(loaded)
    for case in loaded:
        for number, query in enumerate(case.queries):
            given = {"query": query["q"], "user_id": case.name}
            seconds, answer = timed(_search, server, limit=LIMIT, expand=0, max_tokens=20_000, **given)
            done.searches.append(seconds)
            items = bench.split_items(answer, {"path": "structuredContent.memories", "text": "content"})
            done.rows.append(_score(bench, case, query, items, mapper))
            done.tokens.append(bench.n_tokens(bench.result_text(answer)))
            if by_default and number % DEFAULTS_ASKED == 0:
                done.tokens_by_default.append(bench.n_tokens(bench.result_text(_search(server, **given))))
    return done


def _search(server: Server, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.request("tools/call", {"name": "search_memory", "arguments": given})
    return found


# ---- what it is held against


def bm25(bench: Any, loaded: Sequence[Any]) -> Run:
    """BM25 of the harness over `speaker: text`."""
    done, mapper = Run(), bench.Mapper(loaded)
    for case in loaded:
        for query, items, _, tokens in bench.baseline("bm25", case, LIMIT):
            done.rows.append(_score(bench, case, query, items, mapper))
            done.tokens.append(tokens)
    return done


def dense(bench: Any, loaded: Sequence[Any], embedder: str) -> Run:
    """The bare embedder: one vector for each `speaker: text`, by cosine."""
    model = load_embedder(embedder, settings.load())
    model.load()

    def ranked(case: Any, documents: list[str]) -> Callable[[str], Sequence[int]]:
        parts = [model.embed(documents[i : i + BATCH], "document") for i in range(0, len(documents), BATCH)]
        vectors = np.concatenate(parts)
        return lambda question: np.argsort(-(vectors @ model.embed([question], "query")[0]), kind="stable")[
            :LIMIT
        ].tolist()

    return _without_memory(bench, loaded, ranked)


def full_context(bench: Any, loaded: Sequence[Any]) -> Run:
    """All turns, the latest first: what a client without a memory puts before its model, whatever is asked."""

    def ranked(case: Any, documents: list[str]) -> Callable[[str], Sequence[int]]:
        return lambda question: range(len(documents))[::-1]

    return _without_memory(bench, loaded, ranked)


def _without_memory(
    bench: Any, loaded: Sequence[Any], ranked: Callable[[Any, list[str]], Callable[[str], Sequence[int]]]
) -> Run:
    done, mapper = Run(), bench.Mapper(loaded)
    for case in loaded:
        documents = [f"{turn.speaker}: {turn.text}" for turn in case.turns]
        tokens, best = [bench.n_tokens(document) for document in documents], ranked(case, documents)
        for query in case.queries:
            chosen = best(query["q"])
            items = [(case.turns[i].uid, documents[i]) for i in chosen]
            done.rows.append(_score(bench, case, query, items, mapper))
            done.tokens.append(sum(tokens[i] for i in chosen))
    return done


def _score(bench: Any, case: Any, query: dict[str, Any], items: Sequence[Any], mapper: Any) -> dict[str, Any]:
    """The harness's scores, and where there is evidence of several times the places of the `older` and the `newer`."""
    sessions = {turn.id: turn.session for turn in case.turns}
    row: dict[str, Any] = bench.score(query, items, mapper, case.name, sessions)
    row |= {"category": query["cat"], "conversation": case.name}
    when = {turn.id: turn.when for turn in case.turns}
    ends = min(query["ev"], key=when.__getitem__), max(query["ev"], key=when.__getitem__)
    if when[ends[0]] < when[ends[1]]:
        found = [mapper.item(case.name, *item)[0] for item in items]
        row["older"], row["newer"] = (
            next((place for place, turns in enumerate(found) if one in turns), NOT_FOUND) for one in ends
        )
    return row


# ---- the figures


def categories(rows: Sequence[dict[str, Any]]) -> Places:
    names = sorted({row["category"] for row in rows})
    return {name: [i for i, row in enumerate(rows) if row["category"] == name] for name in names}


def means(done: Run, metrics: Sequence[str], places: Sequence[int]) -> list[str]:
    return [f"{done.mean(metric, places):.3f}" for metric in metrics]


def ahead(ours: Run, theirs: Run, metric: str, places: Sequence[int]) -> str:
    """How many points ahead on the same questions, with the 95 % interval of a paired bootstrap."""
    differences = np.array([ours.rows[i][metric] - theirs.rows[i][metric] for i in places])
    rng = np.random.default_rng(1)
    resampled = [differences[rng.integers(0, len(places), len(places))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(resampled, (2.5, 97.5))
    return f"{100 * differences.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


COSTS = (f"tokens an answer (limit {LIMIT})", "tokens by default", "add ms p50 / p95", "search ms p50 / p95", "leaks",
         "items mapped")  # fmt: skip


def costs(done: Run) -> list[str]:
    """What an answer costs; of what is no server only its tokens."""
    if not done.searches:
        return [f"{mean(done.tokens):.0f}", "", "", "", "", ""]
    mapped, items, leaks = (sum(row[name] for row in done.rows) for name in ("mapped", "n_items", "leaks"))
    both = [f"{ms(p50(seconds))} / {ms(p95(seconds))}" if seconds else "" for seconds in (done.adds, done.searches)]
    return [
        f"{mean(done.tokens):.0f}",
        f"{mean(done.tokens_by_default):.0f}",
        *both,
        str(leaks),
        f"{mapped} of {items}",
    ]


BARS = ("bar", "got", "wanted", "")


def bar(what: str, got: float, wanted: float) -> list[str]:
    return [what, f"{got:.3f}", f">= {wanted:.2f}", verdict(got >= wanted)]


def made_with(bench: Any, embedder: str) -> str:
    return (
        f"Embedder {embedder}; one turn a call; the question as it stands, limit {LIMIT}; harness {HARNESS} "
        f"(CRC {checksum(Path(bench.__file__))})"
    )


def checksum(file: Path) -> str:
    return f"{zlib.crc32(file.read_bytes()):08x}"
