"""Ablation: what each signal of a search is worth, each switched off in turn, through the MCP tools alone.

The data sets of locomo.py, multilingual.py and updates.py, and the shares of updates.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import isolate, memory_server, publish, table
from evidence import LIMIT, TUNED_ON, Run, ask, cases, harness, options, store
from updates import DATASET, order

SIGNALS = {
    "everything": {},
    "words alone": {"WORDS_LEAST": "1", "WORDS_MOST": "1"},
    "meaning alone": {"WORDS_LEAST": "0", "WORDS_MOST": "0"},
    "ranks instead of scores": {"RANKS": "1"},
    "without the question told": {"TOLD": "0"},
    "without neighbours": {"PREVIOUS": "0", "BEFORE_PREVIOUS": "0", "NEXT": "0"},
    "without links": {"LINKS": "0"},
    "without speaker": {"SPEAKER": "0"},
    "without asking": {"ASKING": "0"},
    "without recency": {"RECENCY": "0"},
    "without time": {"TIME": "0"},
    "without importance": {"IMPORTANCE": "0"},
    "without role": {"ROLE": "0"},
    "without newer": {"NEWER": "0"},
}
"""Name -> the weights that are set."""

NEWER = "newer above older"
SHOWN = {"locomo": ("recall@5", "recall@10", "hit@10", "mrr"), "madial-en": ("recall@10",), "madial-zh": ("recall@10",),
         DATASET: ("recall@10", NEWER)}  # fmt: skip


def figure(done: Run, metric: str) -> float:
    """The mean of a metric; of the order of statements the share among those that are both in the first 10."""
    return order(done)[1] if metric == NEWER else done.mean(metric)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--datasets", default=",".join(SHOWN))
    chosen = parser.parse_args()
    isolate()
    bench = harness(chosen.bench)
    columns: list[str] = []
    lines: dict[str, list[str]] = {name: [] for name in SIGNALS}
    for dataset in chosen.datasets.split(","):
        loaded = cases(bench, dataset, questions=chosen.questions)
        if dataset == "locomo":
            loaded = [case for case in loaded if case.name in TUNED_ON]
            for case in loaded:
                case.queries = [query for query in case.queries if not query["cat"].startswith("5")]
        if not loaded:
            continue
        columns += [f"{dataset} {metric}" for metric in SHOWN[dataset]]
        with tempfile.TemporaryDirectory() as folder:
            with memory_server(Path(folder), chosen.embedder) as server:
                store(loaded, server)
            for name, weights in SIGNALS.items():
                env = {f"MCP_MEMORY_WEIGHTS__{weight}": value for weight, value in weights.items()}
                with memory_server(Path(folder), chosen.embedder, **env) as server:
                    done = ask(bench, loaded, server, by_default=False)
                lines[name] += [f"{figure(done, metric):.3f}" for metric in SHOWN[dataset]]
    if columns:
        told = f"Embedder {chosen.embedder}; LoCoMo: {', '.join(TUNED_ON)}, categories 1-4; limit {LIMIT}."
        publish(
            "ablation", told, table(("signals", *columns), [(name, *line) for name, line in lines.items()]),
            write=chosen.write,
        )  # fmt: skip


if __name__ == "__main__":
    main()
