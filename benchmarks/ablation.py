"""Ablation: what each signal of a search is worth, each switched off in turn, through the MCP tools alone.

The same data sets as recall.py, and the evidence of LongMemEval in one scope, where of two statements about the same thing
the newer should stand above the older.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from common import DEFAULT_EMBEDDER, HERE, Server, arguments, memory_server, publish, table
from recall import LIMIT, TUNED_ON, cases, harness

SIGNALS = {
    "everything": {},
    "words alone": {"WORDS_LEAST": "1", "WORDS_MOST": "1"},
    "meaning alone": {"WORDS_LEAST": "0", "WORDS_MOST": "0"},
    "without the question told": {"TOLD": "0"},
    "without neighbours": {"PREVIOUS": "0", "BEFORE_PREVIOUS": "0", "NEXT": "0"},
    "without speaker": {"SPEAKER": "0"},
    "without asking": {"ASKING": "0"},
    "without recency": {"RECENCY": "0"},
    "without role": {"ROLE": "0"},
    "without newer": {"NEWER": "0"},
}
"""Name -> the weights that are set."""

SHOWN = {"locomo": ("recall@5", "recall@10", "hit@10", "mrr"), "madial-en": ("recall@10",), "madial-zh": ("recall@10",),
         "lme-pool": ("recall@10", "newer")}  # fmt: skip


def store(loaded: list[Any], server: Server) -> None:
    for case in loaded:
        for turn in case.turns:
            voice = {"role": turn.speaker} if turn.speaker in ("user", "assistant") else {"speaker": turn.speaker}
            server.call("add_memory", content=turn.text, user_id=case.name, session_id=turn.session,
                        timestamp=f"{turn.when.isoformat()}Z", metadata={"ref": turn.uid}, **voice)  # fmt: skip
        server.call("consolidate", user_id=case.name)


def scores(bench: Any, loaded: list[Any], server: Server) -> list[dict[str, float]]:
    """A row for each question of the categories that count; `newer` only where there is an older and a newer statement."""
    rows, mapper = [], bench.Mapper(loaded)
    for case in loaded:
        sessions = {turn.id: turn.session for turn in case.turns}
        when = {turn.id: turn.when for turn in case.turns}
        for query in case.queries:
            if query["cat"].startswith("5"):
                continue
            given = {"query": query["q"], "user_id": case.name, "limit": LIMIT, "expand": 0, "max_tokens": 20_000}
            answer = server.request("tools/call", {"name": "search_memory", "arguments": given})
            items = bench.split_items(answer, {"path": "structuredContent.memories", "text": "content"})
            row = bench.score(query, items, mapper, case.name, sessions)
            evidence = sorted(query["ev"], key=when.__getitem__)
            if query["cat"] == "knowledge-update" and when[evidence[0]] < when[evidence[-1]]:
                ranks = [mapper.item(case.name, *item)[0] for item in items]
                older, newer = (
                    next((rank for rank, ids in enumerate(ranks) if one in ids), LIMIT)
                    for one in (evidence[0], evidence[-1])
                )
                row["newer"] = float(newer < older)
            rows.append(row)
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--bench", type=Path, default=os.environ.get("EVAL_BENCH") or HERE.parent.parent / "shared/bench"
    )
    parser.add_argument("--datasets", default=",".join(SHOWN))
    parser.add_argument("--embedder", default=DEFAULT_EMBEDDER)
    options = parser.parse_args()
    bench = harness(Path(options.bench))
    columns: list[str] = []
    lines: dict[str, list[str]] = {name: [] for name in SIGNALS}
    for dataset in options.datasets.split(","):
        loaded = cases(bench, dataset, TUNED_ON if dataset == "locomo" else [])
        if not loaded:
            continue
        columns += [f"{dataset} {metric}" for metric in SHOWN[dataset]]
        with tempfile.TemporaryDirectory() as folder:
            with memory_server(Path(folder), options.embedder) as server:
                store(loaded, server)
            for name, weights in SIGNALS.items():
                env = {f"MCP_MEMORY_WEIGHTS__{weight}": value for weight, value in weights.items()}
                with memory_server(Path(folder), options.embedder, **env) as server:
                    rows = scores(bench, loaded, server)
                for metric in SHOWN[dataset]:
                    lines[name].append(f"{mean(row[metric] for row in rows if metric in row):.3f}")
    if columns:
        told = f"Embedder {options.embedder}; LoCoMo: {', '.join(TUNED_ON)}, categories 1-4; limit {LIMIT}."
        publish(
            "ablation", told, table(("signals", *columns), [(name, *line) for name, line in lines.items()]),
            write=options.write,
        )  # fmt: skip


if __name__ == "__main__":
    main()
