"""Vectors in memory: how they are packed, compared, and kept between searches. Nothing here touches a database."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from mcp_memory.ranking import Positions

SCOPES_IN_MEMORY = 8

_PIECE = 512

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Packed:
    """Vectors in the form of their blobs: `scales[i] * digits[i]` is the i-th one."""

    scales: Vector
    digits: npt.NDArray[np.int8]

    @staticmethod
    def of(vectors: Vector) -> Packed:
        scales = (np.abs(vectors).max(axis=1, initial=0) / 127).astype(np.float32)
        digits = np.rint(vectors / np.where(scales == 0, 1, scales)[:, None])
        return Packed(scales, digits.astype(np.int8))

    @staticmethod
    def read(blobs: Sequence[bytes]) -> Packed:
        raw = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(blobs), -1)
        return Packed(raw[:, :4].copy().view(np.float32)[:, 0], raw[:, 4:].view(np.int8))

    def blobs(self) -> list[bytes]:
        raw = np.hstack([self.scales[:, None].view(np.uint8), self.digits.view(np.uint8)])
        return rows_of(raw)

    def cosines(self, query: Vector) -> Vector:
        """Of each with a vector of unit length. Unpacked in pieces that stay in the processor's cache, which takes half
        the time of a product over 32-bit floats from memory."""
        products = np.empty(len(self.digits), np.float32)
        room = np.empty((_PIECE, self.digits.shape[1]), np.float32)
        for at in range(0, len(products), _PIECE):
            piece = self.digits[at : at + _PIECE]
            np.copyto(room[: len(piece)], piece)
            np.dot(room[: len(piece)], query, out=products[at : at + _PIECE])
        return products * self.scales

    def vectors(self) -> Vector:
        return self.digits * self.scales[:, None]


@dataclass(frozen=True, slots=True)
class Close:
    """Episodes near a query: the cosine of each one's best sentence and of its context (0 where it has none). `note` tells
    the caller where that took long, and why."""

    seqs: Positions
    sentences: npt.NDArray[np.float32]
    contexts: npt.NDArray[np.float32]
    note: str = ""


FAR = Close(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32))


class Rows:
    """What a comparison reads: a matrix of derivatives, and where in it each episode's sentences and context stand."""

    def __init__(self, derived_from: Positions, contexts: npt.NDArray[np.bool_], packed: Packed) -> None:
        self.seqs, owners = np.unique(derived_from, return_inverse=True)
        self._packed = packed
        sentences = np.flatnonzero(~contexts)
        self._sentences = sentences[np.argsort(owners[sentences], kind="stable")]
        self._sentence_owners, self._starts = np.unique(owners[self._sentences], return_index=True)
        self._contexts = np.flatnonzero(contexts)
        self._context_owners = owners[self._contexts]

    def close(self, query: Vector, allowed: npt.NDArray[np.bool_]) -> Close:
        """All the episodes that are `allowed` (one boolean for each of `seqs`), compared."""
        similarities = self._packed.cosines(query)
        sentences = np.zeros(len(self.seqs), np.float32)
        if len(self._sentences):
            best = np.maximum.reduceat(similarities[self._sentences], self._starts)
            sentences[self._sentence_owners] = np.maximum(best, 0)
        contexts = np.zeros(len(self.seqs), np.float32)
        contexts[self._context_owners] = similarities[self._contexts]
        return Close(self.seqs[allowed], sentences[allowed], contexts[allowed])


class Matrix:
    """A scope's vectors in memory, as of an epoch of the scope and a last derivative. Room is doubled when used up."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last = 0
        self.count = 0
        self.too_large = False
        """Whether the scope had more vectors than are kept in memory, as of the epoch."""
        self._ids = np.empty(0, np.int64)
        self._derived_from = np.empty(0, np.int64)
        self._contexts = np.empty(0, np.bool_)
        self._scales = np.empty(0, np.float32)
        self._digits = np.empty((0, 0), np.int8)
        self._rows: Rows | None = None

    def rows(self) -> Rows:
        if self._rows is None:
            at = slice(0, self.count)
            self._rows = Rows(self._derived_from[at], self._contexts[at], Packed(self._scales[at], self._digits[at]))
        return self._rows

    def extend(self, rows: Sequence[tuple[int, int, int, bytes]]) -> None:
        ids, seqs, kinds, blobs = zip(*rows, strict=True)
        packed = Packed.read(blobs)
        count = self.count + len(rows)
        if count > len(self._ids):
            self._grow(max(count, 2 * self.count), packed.digits.shape[1])
        at = slice(self.count, count)
        self._ids[at], self._derived_from[at], self._contexts[at] = ids, seqs, kinds
        self._scales[at], self._digits[at] = packed.scales, packed.digits
        self.last, self.count, self._rows = ids[-1], count, None

    def keep(self, ids: Sequence[int], epoch: int) -> None:
        """Drop the rows that are not among these."""
        kept = np.flatnonzero(np.isin(self._ids[: self.count], np.array(ids, np.int64)))
        self._ids, self._derived_from, self._contexts = self._ids[kept], self._derived_from[kept], self._contexts[kept]
        self._scales, self._digits = self._scales[kept], self._digits[kept]
        self.count, self.epoch, self._rows = len(kept), epoch, None

    def _grow(self, room: int, dimensions: int) -> None:
        if not self.count:
            self._digits = np.empty((0, dimensions), np.int8)
        for name in ("_ids", "_derived_from", "_contexts", "_scales", "_digits"):
            kept = getattr(self, name)[: self.count]
            grown = np.empty((room, *kept.shape[1:]), kept.dtype)
            grown[: self.count] = kept
            setattr(self, name, grown)


class Matrices:
    """The matrices of one process, the most recently used ones. Take `lock` while using one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = ThreadpoolController()
        self._kept: OrderedDict[tuple[int, int], Matrix] = OrderedDict()

    def of(self, embedder: int, scope: int, epoch: int) -> Matrix:
        matrix = self._kept.setdefault((embedder, scope), Matrix(epoch))
        self._kept.move_to_end((embedder, scope))
        while len(self._kept) > SCOPES_IN_MEMORY:
            self._kept.popitem(last=False)
        return matrix

    def begin(self, embedder: int, scope: int, epoch: int, *, too_large: bool = False) -> Matrix:
        """An empty one in the place of what there is."""
        matrix = self._kept[embedder, scope] = Matrix(epoch)
        matrix.too_large = too_large
        return matrix


def rows_of(matrix: npt.NDArray[np.uint8] | npt.NDArray[np.int8]) -> list[bytes]:
    """The bytes of each row."""
    data, width = matrix.tobytes(), matrix.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]
