"""Recall: whether a question finds the turns that answer it, through the MCP tools alone, beside BM25 on the same turns.

LoCoMo (English, ten long conversations) and MADial-Bench (English and Chinese, associative). The harness that reads and
scores them, and the data, live outside this project: `--bench DIR` or EVAL_BENCH names their folder.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from common import DEFAULT_EMBEDDER, HERE, Server, arguments, memory_server, ms, p50, p95, publish, table, timed

HARNESS = "locomo_mcp_bench"
TUNED_ON = ("conv-26", "conv-30", "conv-41")
LIMIT = 50
DEFAULTS_ASKED = 10
"""One in so many questions is asked once more with the tool's default arguments, for the tokens of an ordinary answer."""

METRICS = ("hit@10", "recall@5", "recall@10", "recall@20", "recall@50", "recall@500t", "recall@1000t", "recall@2000t",
           "mrr", "ds_hit@5")  # fmt: skip
RESAMPLES = 10_000


@dataclass
class Run:
    """What one system did on one data set: a row of scores for each question, and what it cost."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    tokens_by_default: list[int] = field(default_factory=list)
    adds: list[float] = field(default_factory=list)
    searches: list[float] = field(default_factory=list)


def harness(folder: Path) -> Any:
    if not (folder / f"{HARNESS}.py").is_file():
        print(f"skipped: no data at {folder} (name the folder with --bench or EVAL_BENCH)")
        sys.exit(0)
    sys.path.insert(0, str(folder))
    return importlib.import_module(HARNESS)


def cases(bench: Any, dataset: str, convs: Sequence[str]) -> list[Any]:
    """The conversations of a data set with the questions that have evidence; none where its files are absent."""
    try:
        loaded = [case for case in bench.LOADERS[dataset]() if not convs or case.name in convs]
    except FileNotFoundError:
        print(f"skipped: no data at {bench.DATA} for {dataset}")
        return []
    for case in loaded:
        case.queries = [query for query in case.queries if query["ev"]]
    return loaded


def run(bench: Any, loaded: Sequence[Any], server: Server) -> Run:
    """Store every conversation, each under a user of its own, then ask: what comes from another one is a leak."""
    done, mapper = Run(), bench.Mapper(loaded)
    for case in loaded:
        for turn in case.turns:
            seconds, _ = timed(server.call, "add_memory", content=turn.text, speaker=turn.speaker, user_id=case.name,
                               session_id=turn.session, timestamp=f"{turn.when.isoformat()}Z",
                               metadata={"ref": turn.uid})  # fmt: skip
            done.adds.append(seconds)
        server.call("consolidate", user_id=case.name)
    for case in loaded:
        for number, query in enumerate(case.queries):
            given = {"query": query["q"], "user_id": case.name}
            seconds, answer = timed(_search, server, limit=LIMIT, expand=0, max_tokens=20_000, **given)
            done.searches.append(seconds)
            items = bench.split_items(answer, {"path": "structuredContent.memories", "text": "content"})
            _score(bench, done, case, query, items, mapper)
            done.tokens.append(bench.n_tokens(bench.result_text(answer)))
            if number % DEFAULTS_ASKED == 0:
                done.tokens_by_default.append(bench.n_tokens(bench.result_text(_search(server, **given))))
    return done


def _search(server: Server, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.request("tools/call", {"name": "search_memory", "arguments": given})
    return found


def bm25(bench: Any, loaded: Sequence[Any]) -> Run:
    done, mapper = Run(), bench.Mapper(loaded)
    for case in loaded:
        for query, items, _, tokens in bench.baseline("bm25", case, LIMIT):
            _score(bench, done, case, query, items, mapper)
            done.tokens.append(tokens)
    return done


def _score(bench: Any, done: Run, case: Any, query: dict[str, Any], items: Sequence[Any], mapper: Any) -> None:
    sessions = {turn.id: turn.session for turn in case.turns}
    scored = bench.score(query, items, mapper, case.name, sessions)
    done.rows.append(scored | {"category": query["cat"], "conversation": case.name})


# ---- the tables


def groups(dataset: str, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[int]]]:
    """Names of groups of questions, with their places among the rows."""
    places = range(len(rows))
    for category in sorted({row["category"] for row in rows}):
        yield category, [i for i in places if rows[i]["category"] == category]
    if dataset == "locomo":
        headline = [i for i in places if not rows[i]["category"].startswith("5")]
        yield "1-4 (headline)", headline
        unseen = [i for i in headline if rows[i]["conversation"] not in TUNED_ON]
        if 0 < len(unseen) < len(headline):
            yield "1-4, not tuned on", unseen
        yield "all", list(places)


def quality(dataset: str, ours: Run, bare: Run) -> list[list[str]]:
    lines = []
    for name, places in groups(dataset, ours.rows):
        for system, done in (("mcp-memory", ours), ("BM25", bare)):
            means = [mean(done.rows[i][metric] for i in places) for metric in METRICS]
            lines.append([f"{dataset} {name}", system, str(len(places)), *(f"{value:.3f}" for value in means)])
    return lines


def difference(dataset: str, ours: Run, bare: Run) -> list[str]:
    """How far ahead of BM25 on the same questions, with the 95 % interval of a paired bootstrap."""
    named = dict(groups(dataset, ours.rows))
    places = named.get("1-4 (headline)", list(range(len(ours.rows))))
    line = [dataset, str(len(places))]
    for metric in ("recall@10", "recall@1000t"):
        ahead = np.array([ours.rows[i][metric] - bare.rows[i][metric] for i in places])
        rng = np.random.default_rng(1)
        means = [ahead[rng.integers(0, len(ahead), len(ahead))].mean() for _ in range(RESAMPLES)]
        low, high = np.percentile(means, (2.5, 97.5))
        line.append(f"{100 * ahead.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
    return line


def costs(dataset: str, ours: Run, bare: Run) -> list[str]:
    mapped, items = (sum(row[name] for row in ours.rows) for name in ("mapped", "n_items"))
    leaks = sum(row["leaks"] for row in ours.rows)
    return [
        dataset,
        f"{mean(ours.tokens):.0f}",
        f"{mean(bare.tokens):.0f}",
        f"{mean(ours.tokens_by_default):.0f}",
        f"{ms(p50(ours.adds))} / {ms(p95(ours.adds))}",
        f"{ms(p50(ours.searches))} / {ms(p95(ours.searches))}",
        str(leaks),
        f"{mapped} of {items}",
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--bench", type=Path, default=os.environ.get("EVAL_BENCH") or HERE.parent.parent / "shared/bench"
    )
    parser.add_argument("--convs", default=",".join(TUNED_ON), help="conversations of LoCoMo, by name")
    parser.add_argument("--all", action="store_true", help="all ten conversations of LoCoMo")
    parser.add_argument("--datasets", default="locomo,madial-en,madial-zh")
    parser.add_argument("--embedder", default=DEFAULT_EMBEDDER)
    options = parser.parse_args()
    bench = harness(Path(options.bench))
    chosen = [] if options.all else options.convs.split(",")
    lines, ahead, cost = [], [], []
    for dataset in options.datasets.split(","):
        loaded = cases(bench, dataset, chosen if dataset == "locomo" else [])
        if not loaded:
            continue
        with tempfile.TemporaryDirectory() as folder, memory_server(Path(folder), options.embedder) as server:
            ours = run(bench, loaded, server)
        bare = bm25(bench, loaded)
        lines += quality(dataset, ours, bare)
        ahead.append(difference(dataset, ours, bare))
        cost.append(costs(dataset, ours, bare))
    if not lines:
        return
    publish(
        "recall",
        f"Embedder {options.embedder}; one turn a call; the question as it stands, limit {LIMIT}; harness {HARNESS} "
        f"(CRC {zlib.crc32(Path(bench.__file__).read_bytes()):08x}).",
        table(("questions", "system", "n", *METRICS), lines),
        table(("ahead of BM25, points (95 %)", "n", "recall@10", "recall@1000t"), ahead),
        table(
            ("cost", f"tokens an answer (limit {LIMIT})", "BM25's", "tokens by default", "add ms p50 / p95",
             "search ms p50 / p95", "leaks", "items mapped"),
            cost,
        ),
        write=options.write,
    )  # fmt: skip


if __name__ == "__main__":
    main()
