"""What faiss does for us: it draws lists over a sample of vectors, encodes vectors as one byte a dimension, and compares a
query with the codes of the lists that are nearest to it (an inverted file with scalar quantization, IVF-SQ8).

Before that, vectors are turned onto their principal axes, of which the later half is left out: it holds three hundredths of
what tells vectors apart, and without it twice as many lists can be looked at in the same time, in half the memory. What is
lost in the order, the comparison with the stored vectors makes good: more candidates are taken than are wanted.

The codes stand in our own segments: faiss reads them where they are. The only module that imports faiss.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from mcp_memory.store.segments import Codes, Positions, Segment

LISTS = 1_024
"""The most lists that a quantizer has..."""

PER_LIST = 40
"""...the vectors for each, where there are few: with fewer, k-means has nothing to learn from..."""

SAMPLED = 64
"""...and those that it learns each list from."""

PROBES = 160
"""Lists that a query is compared with, where it may find anything in them. docs/benchmarks.md has the recall."""

LEAST_AXES = 256
"""Principal axes that are kept, where a vector has so many; of a longer one half of them."""

_ROUNDS = 10  # of k-means

Vector = npt.NDArray[np.float32]


def available() -> bool:
    return find_spec("faiss") is not None


@cache
def _library() -> tuple[Any, ThreadpoolController]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its bindings, under recent Pythons
        import faiss
    return faiss, ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Choice:
    """What a search may find: episodes up to `upto`, and of these, where given, those at `positions` only."""

    upto: int
    positions: Positions | None = None

    def selector(self, faiss: Any) -> Any:
        """Of positions, none of which is 0: that is the mark of what was erased."""
        if self.positions is None:
            return faiss.IDSelectorRange(1, self.upto + 1)
        wanted = self.positions[(self.positions > 0) & (self.positions <= self.upto)]
        chosen = np.zeros(int(wanted.max(initial=0)) + 1, np.bool_)
        chosen[wanted] = True
        return faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))

    def share(self, seqs: Positions) -> float:
        """Roughly, the part of these that may be found."""
        some = seqs[:: max(1, len(seqs) // 4_096)]
        may = (some > 0) & (some <= self.upto)
        if self.positions is not None:
            may &= np.isin(some, self.positions)
        return float(may.mean())


class Quantizer:
    """`trained` is all that one knows. Raises ValueError where it is none of faiss's."""

    def __init__(self, trained: bytes) -> None:
        self.trained = trained
        self._faiss, self._threads = _library()
        try:
            whole = self._faiss.deserialize_index(np.frombuffer(trained, np.uint8))
            turn = self._faiss.downcast_VectorTransform(whole.chain.at(0))
            self._axes = self._faiss.vector_to_array(turn.A).reshape(turn.d_out, turn.d_in).T.copy()
            self._index = self._faiss.downcast_index(whole.index)
            self._whole = whole  # owns the index
            self.lists: int = self._index.nlist
            self.width: int = self._index.code_size
        except (RuntimeError, AttributeError) as error:
            raise ValueError("not a trained quantizer") from error

    @staticmethod
    def train(vectors: Vector, count: int) -> Quantizer:
        """From a sample of the `count` vectors that it is for."""
        faiss, threads = _library()
        dimensions, lists = vectors.shape[1], max(1, min(LISTS, count // PER_LIST, len(vectors)))
        with threads.limit(limits=1):
            axes = _principal_axes(vectors, min(dimensions, max(LEAST_AXES, dimensions // 2)))
            turn = faiss.LinearTransform(*axes.shape, False)
            faiss.copy_array_to_vector(np.ascontiguousarray(axes.T).ravel(), turn.A)
            turn.is_trained = True
            index = faiss.IndexIVFScalarQuantizer(
                faiss.IndexFlatIP(axes.shape[1]),
                axes.shape[1],
                lists,
                faiss.ScalarQuantizer.QT_8bit,
                faiss.METRIC_INNER_PRODUCT,
            )
            index.cp.niter, index.cp.max_points_per_centroid, index.cp.min_points_per_centroid = _ROUNDS, SAMPLED, 1
            index.train(np.ascontiguousarray(vectors @ axes))
        return Quantizer(faiss.serialize_index(faiss.IndexPreTransform(turn, index)).tobytes())

    def encode(self, vectors: Vector) -> tuple[Positions, Codes]:
        """The list and the code of each."""
        codes = np.empty((len(vectors), self.width), np.uint8)
        pointer = self._faiss.swig_ptr
        with self._threads.limit(limits=1):
            turned = np.ascontiguousarray(vectors @ self._axes, np.float32)
            lists = np.ascontiguousarray(self._index.quantizer.search(turned, 1)[1][:, 0])
            self._index.encode_vectors(len(turned), pointer(turned), pointer(lists), pointer(codes))
        return lists, codes

    def nearest(
        self, query: Vector, segments: Sequence[Segment], count: int, choice: Choice, *, narrow: bool
    ) -> Positions:
        """The positions of the `count` codes that are nearest to the query among those that may be found, in no order; an
        episode comes as often as it has codes among them. Where the choice is `narrow`, more lists are looked at, the fewer
        may be found."""
        share = 1.0
        if narrow:
            total = sum(map(len, segments))
            share = sum(len(segment) * choice.share(segment.seqs) for segment in segments) / total
        probes = self.lists if share * self.lists <= PROBES else min(self.lists, int(PROBES / share))
        selector = choice.selector(self._faiss)
        found = self._scan(query, segments, count, selector, probes)
        if (
            len(found) < count and probes < self.lists
        ):  # what may be found stands elsewhere than where it was looked for
            found = self._scan(query, segments, count, selector, self.lists)
        return found

    def _scan(self, query: Vector, segments: Sequence[Segment], count: int, selector: Any, probes: int) -> Positions:
        faiss = self._faiss
        query = np.ascontiguousarray(query[None] @ self._axes, np.float32)
        faiss.omp_set_num_threads(1)  # in the thread that calls
        nearness, lists = self._index.quantizer.search(query, probes)
        scanner = self._index.get_InvertedListScanner(False, selector, None)
        scanner.set_query(faiss.swig_ptr(query))
        scores, seqs = np.full(count, -np.inf, np.float32), np.full(count, -1, np.int64)
        heap = faiss.swig_ptr(scores), faiss.swig_ptr(seqs), count
        places = [(one.starts, one.codes.ctypes.data, one.seqs.ctypes.data) for one in segments]
        for number, near in zip(lists[0].tolist(), nearness[0].tolist(), strict=True):
            scanner.set_list(number, near)
            for starts, codes, positions in places:
                begin, end = int(starts[number]), int(starts[number + 1])
                if begin < end:
                    scanner.scan_codes(
                        end - begin,
                        faiss.cast_integer_to_uint8_ptr(codes + begin * self.width),
                        faiss.cast_integer_to_idx_t_ptr(positions + 8 * begin),
                        *heap,
                    )
        return seqs[seqs >= 0]


def _principal_axes(vectors: Vector, count: int) -> Vector:
    """`(dimensions, count)`: those along which the vectors are longest, seen from the origin, since it is products that are
    compared."""
    _, axes = np.linalg.eigh(vectors.T @ vectors)
    return axes[:, ::-1][:, :count].astype(np.float32)
