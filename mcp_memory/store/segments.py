"""Codes of vectors, sorted by the list that each belongs to: in memory, and as a cache file that can be thrown away.

The file is ours and plain, so that whoever forgets can clear a vector in it without the library that wrote it. It holds no
text: after a head of one line come what the quantizer learned, where each list begins, the id and the position of each
vector, and its code. Several processes map it at once; it is never changed but by `erase`, only replaced by another.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

_MAGIC = b"mcp-memory nearest 1 "
_HEAD = 512  # bytes of the first line, padded: what follows is aligned

Positions = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]


IdMap = np.memmap[Any, np.dtype[np.int64]]
CodeMap = np.memmap[Any, np.dtype[np.uint8]]


class Damaged(Exception):
    """The file is none of ours, cut off, or changed by others."""


@dataclass(frozen=True, slots=True)
class Segment:
    """List `i` holds what stands from `starts[i]` to `starts[i + 1]`: the id of a derivative, the position of its episode
    and its code. Where a vector was erased, all three are 0."""

    starts: Positions
    ids: Positions
    seqs: Positions
    codes: Codes

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of(lists: Positions, count: int, ids: Positions, seqs: Positions, codes: Codes) -> Segment:
        """In the order of their `lists`, of which there are `count`."""
        order = np.argsort(lists, kind="stable")
        starts = np.searchsorted(lists[order], np.arange(count + 1))
        return Segment(starts.astype(np.int64), ids[order], seqs[order], codes[order])

    def lists(self) -> Positions:
        """The list of each."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def only(self, kept: npt.NDArray[np.bool_]) -> Segment:
        lists = self.lists()[kept]
        return Segment.of(lists, len(self.starts) - 1, self.ids[kept], self.seqs[kept], self.codes[kept])


def joined(segments: Sequence[Segment]) -> Segment:
    parts = [(one.lists(), one.ids, one.seqs, one.codes) for one in segments]
    lists, ids, seqs, codes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Segment.of(lists, len(segments[0].starts) - 1, ids, seqs, codes)


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says of itself. `width`: bytes of a code; `last`: the newest derivative that was
    looked at for it; `trained_on`: how many there
    were when its lists were drawn; `trained`: bytes of what the quantizer learned."""

    count: int
    lists: int
    width: int
    last: int
    trained_on: int
    trained: int
    sum: int = 0

    @property
    def starts_at(self) -> int:
        return _HEAD + -(-self.trained // 8) * 8

    @property
    def ids_at(self) -> int:
        return self.starts_at + 8 * (self.lists + 1)

    @property
    def seqs_at(self) -> int:
        return self.ids_at + 8 * self.count

    @property
    def codes_at(self) -> int:
        return self.seqs_at + 8 * self.count

    @property
    def size(self) -> int:
        return self.codes_at + self.width * self.count


@dataclass(frozen=True, slots=True)
class Kept:
    """A file, mapped into memory: pages that are read are shared by all who map it. `identity` tells it from the file that
    replaces it, for as long as it is mapped."""

    head: Head
    trained: bytes
    segment: Segment
    identity: tuple[int, int]


def write(path: Path, trained: bytes, segments: Sequence[Segment], last: int, trained_on: int) -> None:
    """A new file, for the owner alone, on the disk when this returns. What was erased is left out."""
    kept = [segment.ids > 0 for segment in segments]
    sizes = sum(
        np.bincount(segment.lists()[live], minlength=len(segment.starts) - 1)
        for segment, live in zip(segments, kept, strict=True)
    )
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    width = segments[0].codes.shape[1]
    body = trained.ljust(-(-len(trained) // 8) * 8, b"\0") + starts.tobytes()
    head = Head(int(starts[-1]), len(starts) - 1, width, last, trained_on, len(trained), zlib.crc32(body))
    with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
        file.write(_first_line(head))
        file.write(body)
        for column in ("ids", "seqs", "codes"):
            _write_by_list(file, [getattr(segment, column) for segment in segments], segments, kept)
        file.flush()
        os.fsync(file.fileno())


def _write_by_list(
    file: BinaryIO,
    columns: Sequence[npt.NDArray[np.generic]],
    segments: Sequence[Segment],
    kept: Sequence[npt.NDArray[np.bool_]],
) -> None:
    for number in range(len(segments[0].starts) - 1):
        for column, segment, live in zip(columns, segments, kept, strict=True):
            at = slice(int(segment.starts[number]), int(segment.starts[number + 1]))
            piece = column[at] if live[at].all() else column[at][live[at]]
            file.write(np.ascontiguousarray(piece).data)


def _first_line(head: Head) -> bytes:
    said = {name: getattr(head, name) for name in Head.__slots__}
    return (_MAGIC + json.dumps(said).encode()).ljust(_HEAD - 1) + b"\n"


def head_of(path: Path) -> Head:
    """Raises Damaged, or OSError where there is none."""
    with path.open("rb") as file:
        line, size = file.read(_HEAD), os.fstat(file.fileno()).st_size
    try:
        head = Head(**json.loads(line.removeprefix(_MAGIC)))
    except (ValueError, TypeError) as error:
        raise Damaged(f"{path.name} has no readable head") from error
    if not line.startswith(_MAGIC) or size != head.size or min(head.count, head.lists, head.width) < 0:
        raise Damaged(f"{path.name} is not whole")
    return head


def read(path: Path) -> Kept:
    """Raises Damaged, or OSError where there is none."""
    head = head_of(path)
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        file.seek(_HEAD)
        body = file.read(head.ids_at - _HEAD)
        starts = np.frombuffer(body[-8 * (head.lists + 1) :], np.int64)
        if zlib.crc32(body) != head.sum or about.st_size != head.size or starts[-1] != head.count:
            raise Damaged(f"{path.name} was changed or replaced")
        if not head.count:
            raise Damaged(f"{path.name} is empty")
        ids, seqs, codes = _mapped(file, head, "r")
    return Kept(head, body[: head.trained], Segment(starts, ids, seqs, codes), (about.st_dev, about.st_ino))


def _mapped(file: BinaryIO, head: Head, mode: Literal["r", "r+"]) -> tuple[IdMap, IdMap, CodeMap]:
    ids: IdMap = np.memmap(file, np.int64, mode, head.ids_at, (head.count,))
    seqs: IdMap = np.memmap(file, np.int64, mode, head.seqs_at, (head.count,))
    codes: CodeMap = np.memmap(file, np.uint8, mode, head.codes_at, (head.count, head.width))
    return ids, seqs, codes


def identity(path: Path) -> tuple[int, int] | None:
    """Which file stands there now."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


def erase(path: Path, ids: Sequence[int]) -> None:
    """Write zeros over these vectors, for all who have mapped the file too; a file that cannot be read is deleted.

    Raises OSError where neither can be done.
    """
    try:
        head = head_of(path)
        with path.open("r+b") as file:
            if not head.count:
                return
            columns = _mapped(file, head, "r+")
            gone = np.flatnonzero(np.isin(columns[0], np.array(ids, np.int64)))
            for column in columns if len(gone) else ():
                column[gone] = 0
                column.flush()
    except FileNotFoundError:
        return
    except (Damaged, ValueError):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether nobody else holds a claim on this name, in this process or another one; the system ends the claim of a
    process that has ended."""
    with open(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+b") as file:
        try:
            _lock(file.fileno())
        except OSError:
            yield False
        else:
            yield True


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
