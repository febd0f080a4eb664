"""Many derivatives in one scope: how fast they are stored and searched, how much is found of what an exact comparison
finds, and what it costs in memory and on disk, against the bare index library on the same vectors in the same run.

The vectors are made up after real ones, turns of LoCoMo embedded by the default embedder. Of these we took: a common part
of length 0.54; around it a variance that falls over the principal axes like i^-0.7 e^(-i/130); a nearest neighbour, among
a thousand, at a cosine of 0.56 to 0.84. So here: the common part, one of 5,000 topics (the k-th comes 1/k as often as the
first) and what is particular to the sentence, with three and two fifths of that variance, over axes turned at random. Cut
into lists, 10,000 such vectors lose as many neighbours as 10,000 real sentences do. A question is another such vector. They
are stored through the store's own room, one derivative an episode. Exact is a comparison with all vectors as they are
stored, in 8 bits a dimension.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import arguments, isolate, ms, p50, p95, publish, table, timed, verdict

from mcp_memory.store import quantizer
from mcp_memory.store.matrices import Packed
from mcp_memory.store.sqlite import SQLiteStore, Tx
from mcp_memory.store.vectors import IN_MEMORY
from mcp_memory.types import Derivative, Scope

SIZES = (10_000, 100_000, 1_000_000)
DIMENSIONS = 512
TOPICS = 5_000
COMMON, TOPICAL = 0.54, 0.6
QUESTIONS = 200
TOP = 20
WIDE = 100  # what a search by default compares
PIECE = 10_000
MORE = 20_000  # stored on top, to see what the index's part of it costs
TENANT = 100
NAME = "made-up"
MANY, FEW = Scope("org", "project", "many"), Scope("org", "project", "few")

Vectors = npt.NDArray[np.float32]


class Made:
    """Vectors like those of turns; the same ones for the same seed, piece by piece."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(1)
        ranks = np.arange(1, DIMENSIONS + 1)
        variance = ranks**-0.7 * np.exp(-ranks / 130)
        self._axes = np.linalg.qr(drawn.normal(size=(DIMENSIONS, DIMENSIONS)))[0].astype(np.float32)
        self._axes *= np.sqrt((1 - COMMON**2) * variance / variance.sum())[:, None].astype(np.float32)
        common = drawn.normal(size=DIMENSIONS)
        self._common = (COMMON * common / np.linalg.norm(common)).astype(np.float32)
        self._topics = np.sqrt(TOPICAL, dtype=np.float32) * drawn.standard_normal((TOPICS, DIMENSIONS), np.float32)
        weights = 1 / np.arange(1, TOPICS + 1)
        self._popular = weights / weights.sum()

    def piece(self, seed: int, count: int = PIECE) -> Vectors:
        drawn = np.random.default_rng(100 + seed)
        topics = self._topics[drawn.choice(TOPICS, count, p=self._popular)]
        own = np.sqrt(1 - TOPICAL, dtype=np.float32) * drawn.standard_normal((count, DIMENSIONS), np.float32)
        vectors = self._common + (topics + own) @ self._axes
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    def pieces(self, count: int, start: int = 0) -> Iterator[Vectors]:
        for at in range(0, count, PIECE):
            yield self.piece(start + at // PIECE, min(PIECE, count - at))

    def questions(self) -> Vectors:
        return self.piece(-1, QUESTIONS)


SELECTIONS: dict[str, Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]] = {
    "all": lambda seqs: np.ones(len(seqs), np.bool_),
    "1 in 10": lambda seqs: seqs % 10 == 3,
    "1 in 100": lambda seqs: seqs % 100 == 7,
}


class Exact:
    """The nearest by an exact comparison, over all and within each selection."""

    def __init__(self, questions: Vectors) -> None:
        self._questions = questions
        empty = np.full((len(questions), TOP), -1.0, np.float32), np.zeros((len(questions), TOP), np.int64)
        self.found = dict.fromkeys(SELECTIONS, empty)

    def add(self, seqs: npt.NDArray[np.int64], vectors: Vectors) -> None:
        cosines = self._questions @ Packed.of(vectors).vectors().T
        for name, chosen in SELECTIONS.items():
            best, where = self.found[name]
            at = chosen(seqs)
            best = np.hstack([best, cosines[:, at]])
            where = np.hstack([where, np.broadcast_to(seqs[at], (len(best), int(at.sum())))])
            order = np.argpartition(-best, TOP - 1, axis=1)[:, :TOP]
            self.found[name] = np.take_along_axis(best, order, 1), np.take_along_axis(where, order, 1)


def opened(folder: Path, *, scale: bool = True) -> SQLiteStore:
    return SQLiteStore(folder, now=lambda: datetime.now(UTC), scale=scale)


def put(seqs: npt.NDArray[np.int64], vectors: Vectors) -> Callable[[Tx], None]:
    derivatives = [Derivative("sentence", (seq,), "") for seq in seqs.tolist()]
    return lambda tx: tx.vectors(NAME).replace(seqs.tolist(), derivatives, list(vectors))


async def fill(folder: Path, size: int) -> dict[str, Any]:
    """Store everything; the rate, and the truth."""
    made, store = Made(), opened(folder)
    exact = Exact(made.questions())
    tenant = Exact(made.questions()[:TOP])
    seconds, seq = [], 0
    for vectors in made.pieces(size):
        for at in range(0, len(vectors), 1_000):
            part = vectors[at : at + 1_000]
            seqs = np.arange(seq + 1, seq + 1 + len(part))
            start = time.perf_counter()
            await store.write(MANY, put(seqs, part), durable=False)
            seconds.append((time.perf_counter() - start) / len(part))
            exact.add(seqs, part)
            seq += len(part)
    vectors, seqs = made.piece(-2, TENANT), np.arange(seq + 1, seq + 1 + TENANT)
    await store.write(FEW, put(seqs, vectors))
    tenant.add(seqs, vectors)
    await store.close()
    truth = {name: where for name, (_, where) in exact.found.items()} | {"tenant": tenant.found["all"][1]}
    np.savez(folder / "truth.npz", **truth)
    tenth = max(1, len(seconds) // 10)
    return {
        "rate": 1 / float(np.mean(seconds)),
        "flat": float(np.mean(seconds[:tenth]) / np.mean(seconds[-tenth:])),
        "file": (folder / "memory.db").stat().st_size,
    }


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


class Bare:
    """The library as its manual has it, over the same vectors in memory, with as many lists looked at as ours."""

    def __init__(self, made: Made, size: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        lists = max(1, min(quantizer.LISTS, size // quantizer.PER_LIST))
        self._index = faiss.IndexIVFScalarQuantizer(
            faiss.IndexFlatIP(DIMENSIONS), DIMENSIONS, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        self._index.cp.niter, self._index.cp.max_points_per_centroid = 10, quantizer.SAMPLED
        wanted = quantizer.SAMPLED * lists
        step = max(1, size // wanted)
        self._index.train(np.vstack([piece[::step] for piece in made.pieces(size)])[:wanted])
        for vectors in made.pieces(size):
            self._index.add(vectors)
        self.look_at(quantizer.PROBES)

    def look_at(self, lists: int) -> None:
        self._index.nprobe = lists

    def add(self, vectors: Vectors) -> None:
        self._index.add(vectors)

    def nearest(self, question: Vectors, count: int) -> list[int]:
        found: list[int] = (self._index.search(question[None], count)[1][0] + 1).tolist()
        return found


def share(found: list[list[int]], truth: npt.NDArray[np.int64]) -> float:
    return float(
        np.mean([len(set(mine) & set(right)) / TOP for mine, right in zip(found, truth.tolist(), strict=True)])
    )


async def near(store: SQLiteStore, question: Vectors, limit: int, *, large: bool) -> float:
    """Seconds of the index's part of a search: where all are compared in memory, that is the search."""

    def call(tx: Tx) -> float:
        vectors = tx.vectors(NAME)
        return timed(vectors.near if large else vectors.close, question, limit, None, 2**40)[0]

    return await store.read(MANY, call)


async def close(
    store: SQLiteStore, question: Vectors, limit: int, within: list[int] | None = None, scope: Scope = MANY
) -> tuple[float, list[int]]:
    """Seconds of the whole call, with its transaction, and the best by cosine."""
    start = time.perf_counter()
    found = await store.read(scope, lambda tx: tx.vectors(NAME).close(question, limit, within, 2**40))
    return time.perf_counter() - start, found.seqs[np.argsort(-found.sentences)[:TOP]].tolist()


async def settled(store: SQLiteStore, question: Vectors) -> float:
    """Seconds until the index holds everything."""
    start = time.perf_counter()
    await close(store, question, TOP)
    await asyncio.to_thread(store.indexes.settle)
    return time.perf_counter() - start


async def look(folder: Path, size: int, *, extra: bool) -> dict[str, Any]:
    """Search, in a process that has stored nothing."""
    made, truth = Made(), np.load(folder / "truth.npz")
    questions, large = made.questions(), size > IN_MEMORY
    before, store = rss(), opened(folder, scale=extra)
    figures: dict[str, Any] = {"built": await settled(store, questions[0])}
    if large and not extra:
        asked = [await close(store, question, TOP) for question in questions[:5]]
        await store.close()
        return {
            "whole": [seconds for seconds, _ in asked],
            "recall": share([best for _, best in asked], truth["all"][:5]),
        }
    seqs = np.arange(1, size + 1)
    for name, chosen in SELECTIONS.items():
        within = None if name == "all" else seqs[chosen(seqs)].tolist()
        asked = [await close(store, question, TOP, within) for question in questions]
        figures[name] = [seconds for seconds, _ in asked], share([best for _, best in asked], truth[name])
    figures["wide"] = [(await close(store, question, WIDE))[0] for question in questions]
    asked = [await close(store, question, TOP, None, FEW) for question in questions[:TOP]]
    figures["tenant"] = [seconds for seconds, _ in asked], share([best for _, best in asked], truth["tenant"])
    figures["rss"] = rss() - before
    if find_spec("faiss"):
        figures |= await beside_bare(store, made, size, truth, large=large)
    await store.close()
    return figures


async def beside_bare(store: SQLiteStore, made: Made, size: int, truth: Any, *, large: bool) -> dict[str, Any]:
    """The same questions to the library alone, one after the other in turn, and what further vectors cost both."""
    bare, questions = Bare(made, size), made.questions()
    ours, theirs, wide, theirs_wide, found = [], [], [], [], []
    for question in questions:
        seconds, best = timed(bare.nearest, question, TOP)
        theirs.append(seconds)
        found.append(best)
        ours.append(await near(store, question, TOP, large=large))
        theirs_wide.append(timed(bare.nearest, question, 4 * WIDE)[0])
        wide.append(await near(store, question, WIDE, large=large))
    figures = {"ours": ours, "theirs": theirs, "ours wide": wide, "theirs wide": theirs_wide}
    figures["bare recall"] = share(found, truth["all"])  # type: ignore[assignment]
    bare.look_at(32)
    usual = [timed(bare.nearest, question, TOP) for question in questions]
    figures["usual"] = [seconds for seconds, _ in usual]
    figures["usual recall"] = share([best for _, best in usual], truth["all"])  # type: ignore[assignment]
    if large:
        adding, encoding = 0.0, 0.0
        seq = size + TENANT
        for vectors in made.pieces(MORE, start=size):
            seqs = np.arange(seq + 1, seq + 1 + len(vectors))
            seq += len(vectors)
            await store.write(MANY, put(seqs, vectors), durable=False)
            await asyncio.to_thread(store.indexes.settle)
            embedder, scope = await store.read(MANY, lambda tx: (tx.vectors(NAME)._embedder, tx._scope))
            start = time.perf_counter()
            store.indexes.follow(embedder, scope)
            await asyncio.to_thread(store.indexes.settle)
            encoding += time.perf_counter() - start
            adding += timed(bare.add, vectors)[0]
        figures["insert"] = adding / encoding  # type: ignore[assignment]
        figures["insert rate"] = MORE / encoding  # type: ignore[assignment]
    return figures


def child(folder: Path, size: int, task: str) -> dict[str, Any]:
    """A task in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, "--task", task, "--sizes", str(size), "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measured(size: int) -> tuple[list[list[object]], list[list[object]], list[list[object]]]:
    """The rows of one size in each of the three tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        filled, large = child(folder, size, "fill"), size > IN_MEMORY
        plain = child(folder, size, "plain") if large else None
        found = child(folder, size, "look")
        cache = sum(file.stat().st_size for file in folder.glob("memory.db-nearest-*"))
    rows: list[list[object]] = []

    def row(how: str, part: list[float] | None, whole: list[float], recall: float) -> None:
        times = [figure for some in (part, whole) for figure in ([ms(p50(some)), ms(p95(some))] if some else ["", ""])]
        rows.append([f"{size:,} {how}", *times, f"{recall:.3f}"])

    how = "by the index" if large else "in memory"
    row(how, found.get("ours"), *found["all"])
    if "theirs" in found:
        row(f"the bare library, {quantizer.PROBES} lists looked at", found["theirs"], [], found["bare recall"])
        row("the bare library, 32 lists looked at", found["usual"], [], found["usual recall"])
    row(f"{how}, a selection of 1 in 10", None, *found["1 in 10"])
    row(f"{how}, a selection of 1 in 100", None, *found["1 in 100"])
    if plain:
        row("without the extra, in slices", None, plain["whole"], plain["recall"])
    row(f"and a tenant with {TENANT}", None, *found["tenant"])
    stored: list[object] = [f"{size:,}", f"{filled['rate']:,.0f}", f"{filled['flat']:.2f}", _mb(filled["file"])]
    stored += [_mb(cache) if large else "", f"{found['built']:.0f}" if large else "", _mb(found["rss"])]
    return rows, [stored], _bars(size, found, large=large)


def _bars(size: int, found: dict[str, Any], *, large: bool) -> list[list[object]]:
    """What is wanted, and whether it is so."""
    bars: list[list[object]] = []

    def bar(what: str, got: str, wanted: str, met: bool) -> None:
        bars.append([f"{size:,}: {what}", got, wanted, verdict(met)])

    whole, recall = found["all"]
    if not large:
        bar("p95 of the whole call, ms", ms(p95(whole)), "< 40", p95(whole) < 0.04)
        return bars
    bar(f"recall@{TOP}", f"{recall:.3f}", ">= 0.98", recall >= 0.98)
    bar("a tenant's exact top", f"{found['tenant'][1]:.3f}", "1", found["tenant"][1] == 1)
    bar("RSS above that before opening, MB", _mb(found["rss"]), "< 700", found["rss"] < 700e6)
    if "ours" in found:
        part, ratio = p95(found["ours"]), p95(found["ours"]) / p95(found["theirs"])
        wide = p95(found["ours wide"]) / p95(found["theirs wide"])
        bar("p95 of the index's part, ms", ms(part), "< 20", part < 0.02)
        bar(f"against the bare library (recall {found['bare recall']:.3f})", f"{ratio:.2f}", "<= 1.3", ratio <= 1.3)
        bar("the same, the width that a search asks for", f"{wide:.2f}", "<= 1.3", wide <= 1.3)
        rate = f"{found['insert']:.2f} ({found['insert rate']:,.0f}/s)"
        bar("the index's part of an insert against the bare library", rate, ">= 0.7", found["insert"] >= 0.7)
    return bars


def _mb(size: int) -> str:
    return f"{size / 1_000_000:,.0f}"


SEARCHED = ("derivatives in one scope", "index p50 ms", "index p95 ms", "call p50 ms", "call p95 ms", f"recall@{TOP}")
STORED = (
    "derivatives",
    "stored a second",
    "first tenth against last",
    "file MB",
    "index file MB",
    "built in s",
    "RSS MB",
)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--task", choices=["fill", "look", "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    isolate()
    sizes = [int(size) for size in options.sizes.split(",")]
    if options.task:
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
        task = fill(options.folder, sizes[0]) if options.task == "fill" else look(
            options.folder, sizes[0], extra=options.task == "look"
        )  # fmt: skip
        print(json.dumps(asyncio.run(task)))
        return
    searched, stored, bars = (list(chain(*parts)) for parts in zip(*map(measured, sizes), strict=True))
    tables = table(SEARCHED, searched), table(STORED, stored), table(("bar", "got", "wanted", ""), bars)
    publish("scale", *tables, write=options.write)


if __name__ == "__main__":
    main()
