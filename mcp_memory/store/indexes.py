"""The indexes of one process over scopes that are too large to be compared in memory, and the thread that keeps them up.

An index is what the cache file holds (`base`) and what came since (`tail`, at most `TAIL` codes in memory). Whatever is
newer than both is compared exactly by those who search, until the thread has encoded it. Every process follows the
database by itself; one at a time writes a file, the others map it as soon as it is there. No search waits for any of it.

Forgetting clears the file at once (`Indexes.erase`) and never relies on this thread: a file that was written from what
was read before a scope's epoch changed is compared with the database, and what has gone is cleared in it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path

import numpy as np

from mcp_memory.store import quantizer, segments
from mcp_memory.store.database import Connection
from mcp_memory.store.matrices import Packed, Vector
from mcp_memory.store.quantizer import Choice, Quantizer
from mcp_memory.store.segments import Codes, Damaged, Positions, Segment

TAIL = 65_536
"""Codes in memory before a new file is written: 18 MB of 256 axes."""

GROWTH = 4
"""An index is drawn anew when its scope has so many times the vectors that its lists were drawn over."""

WHOLE = 0
"""Among ids of derivatives to erase: the whole file."""

_SLICE = 8_192
_STEPS = 8  # a segment is joined with the one before it, unless that is so many times as large
_PROBED = 16  # vectors by which a file is recognised as this database's
_KEPT = 8  # indexes of one process
_RETRY_SECONDS = 60.0
_LOAD_SECONDS = 2.0  # the longest that a search waits for a file to be mapped, once

log = logging.getLogger(__name__)


class Source:
    """The derivatives of one embedder in one scope, read in short snapshots: a long one would hold up the erasure of what
    others forget."""

    def __init__(self, connection: Connection, embedder: int, scope: int) -> None:
        self._db = connection
        self._key = (embedder, scope)

    def epoch(self) -> int:
        return self._db.row("SELECT epoch FROM scopes WHERE id = ?", self._key[1:]) or 0

    def count(self) -> int:
        counted: int = self._db.row("SELECT count(*) FROM derivatives WHERE embedder = ? AND scope = ?", self._key)
        return counted

    def newest(self) -> int:
        """The last id that was given to any derivative."""
        return self._db.row("SELECT seq FROM sqlite_sequence WHERE name = 'derivatives'") or 0

    def sample(self, count: int, total: int) -> Vector:
        """About so many of all the vectors, spread over time."""
        step = max(1, total // count)
        # a multiple of the id would miss a scope whose ids are every other one
        rows = self._db.rows(
            "SELECT vector FROM derivatives WHERE embedder = ? AND scope = ? AND (id * 40503 >> 8) % ? = 0",
            (*self._key, step),
        )
        return Packed.read([blob for (blob,) in rows]).vectors()

    def after(self, last: int) -> tuple[int, list[tuple[int, int, bytes]]]:
        """The epoch, and the next slice: id, position and vector of each."""
        with self._db.reading():
            rows = self._db.rows(
                "SELECT id, seq, vector FROM derivatives WHERE embedder = ? AND scope = ? AND id > ? ORDER BY id LIMIT ?",
                (*self._key, last, _SLICE),
            )
            return self.epoch(), rows

    def at(self, ids: Sequence[int]) -> list[tuple[int, int, bytes]]:
        found = [
            self._db.rows(
                "SELECT id, seq, vector FROM derivatives WHERE id = ? AND embedder = ? AND scope = ?", (id, *self._key)
            )
            for id in ids
        ]
        return [row for rows in found for row in rows]

    def alive(self, after: int) -> Positions:
        """The ids that are there, above this one."""
        parts = [np.empty(0, np.int64)]
        while rows := self._db.rows(
            "SELECT id FROM derivatives WHERE embedder = ? AND scope = ? AND id > ? ORDER BY id LIMIT ?",
            (*self._key, after, 8 * _SLICE),
        ):
            parts.append(np.fromiter((id for (id,) in rows), np.int64, len(rows)))
            after = rows[-1][0]
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class State:
    """An index as of a moment: it holds every derivative up to `last` that was there in `epoch`, or later. `highest`: the
    last position in it; `identity`: of the file that `base` is mapped from."""

    quantizer: Quantizer
    trained_on: int
    base: Segment | None = None
    base_last: int = 0
    identity: tuple[int, int] | None = None
    tail: tuple[Segment, ...] = ()
    last: int = 0
    epoch: int = 0
    highest: int = 0

    @property
    def segments(self) -> list[Segment]:
        return [*([] if self.base is None else [self.base]), *self.tail]

    @property
    def waiting(self) -> int:
        return sum(map(len, self.tail))

    def plus(self, rows: Sequence[tuple[int, int, bytes]], epoch: int, lists: Positions, codes: Codes) -> State:
        ids, seqs, _ = zip(*rows, strict=True)
        added = Segment.of(lists, self.quantizer.lists, np.array(ids, np.int64), np.array(seqs, np.int64), codes)
        tail = list(self.tail)
        while tail and len(tail[-1]) < _STEPS * len(added):
            added = segments.joined([tail.pop(), added])
        return replace(
            self,
            tail=(*tail, added),
            last=ids[-1],
            epoch=min(self.epoch, epoch) if self.tail else epoch,
            highest=max(self.highest, *seqs),
        )

    def only(self, alive: Positions, newest: int, epoch: int) -> State:
        """Without what is not `alive` of the tail; ids above `newest` are not judged."""
        kept = [one.only(np.isin(one.ids, alive) | (one.ids > newest)) for one in self.tail]
        return replace(self, tail=tuple(one for one in kept if len(one)), epoch=epoch)

    def nearest(self, query: Vector, count: int, within: Sequence[int] | None, upto: int) -> list[int]:
        """The positions of the episodes that have one of the `count` nearest vectors."""
        if not self.segments:
            return []
        positions = None if within is None else np.fromiter(within, np.int64, len(within))
        narrow = positions is not None or upto < self.highest
        found = self.quantizer.nearest(query, self.segments, count, Choice(upto, positions), narrow=narrow)
        seqs: list[int] = np.unique(found).tolist()
        return seqs


class Index:
    """One index. The thread changes its state; those who search take the state as it is."""

    def __init__(self, path: Path, stopped: Callable[[], bool]) -> None:
        self.path = path
        self.ready = threading.Event()
        """Set when the thread has looked at the file for the first time, whether there was one or not."""
        self.retry_at = 0.0
        self._stopped = stopped
        self._state: State | None = None
        self._lock = threading.Lock()

    @property
    def state(self) -> State | None:
        """As it is now; None where there is none, or what there was has been thrown away."""
        state = self._state
        if state is not None and state.identity and segments.identity(self.path) is None:
            self._state = None
        return self._state

    def prune(self, state: State, alive: Positions, newest: int, epoch: int) -> State:
        """Let go of what was forgotten by `epoch`, if nobody has done so yet."""
        pruned = state.only(alive, newest, epoch)
        with self._lock:
            if self._state is state:
                self._state = pruned
        return pruned

    # ---- what the thread does

    def follow(self, source: Source) -> None:
        """Bring the index up to the database; build it, or build it anew, where that is due and nobody else does."""
        state = self.state
        if state is None or segments.identity(self.path) != state.identity:
            self._load(source)
        self.ready.set()
        state = self._state
        if state is None or source.count() > GROWTH * state.trained_on:
            self._build(source)
        while self._state is not None and self._extend(source):
            if self._state.waiting >= TAIL:
                self._save(source)

    def _load(self, source: Source) -> None:
        try:
            kept = segments.read(self.path)
            learned = Quantizer(kept.trained)
            if not _is_of(kept, learned, source):
                raise Damaged(f"{self.path.name} is of another memory")
        except FileNotFoundError:
            self._state = None
            return
        except (Damaged, ValueError) as error:
            log.warning("the index file is thrown away and built again: %s", error)
            self.path.unlink(missing_ok=True)
            self._state = None
            return
        head = kept.head
        with self._lock:
            old, tail, last = self._state, tuple[Segment, ...](), head.last
            epoch = source.epoch()
            if old is not None and old.quantizer.trained == kept.trained and old.last > head.last:
                newer = [one.only(one.ids > head.last) for one in old.tail]
                tail, last, epoch = tuple(one for one in newer if len(one)), old.last, old.epoch
            highest = max([int(one.seqs.max()) for one in (kept.segment, *tail)])
            self._state = State(
                learned, head.trained_on, kept.segment, head.last, kept.identity, tail, last, epoch, highest
            )

    def _extend(self, source: Source) -> bool:
        """Encode the next slice; false where there is none."""
        state = self._state
        if state is None or self._stopped():
            return False
        epoch, rows = source.after(state.last)
        if not rows:
            return False
        lists, codes = state.quantizer.encode(Packed.read([blob for *_, blob in rows]).vectors())
        with self._lock:
            if self._state is not None and self._state.last == state.last:
                self._state = self._state.plus(rows, epoch, lists, codes)
        return True

    def _build(self, source: Source) -> None:
        """Draw the lists, encode everything into another file, and put it in the place of this one."""
        with segments.claimed(_beside(self.path, "lock")) as ours:
            if not ours or self._stopped():
                return
            if segments.identity(self.path) not in (None, self._state and self._state.identity):
                self._load(source)  # another process was faster
                return
            started = time.monotonic()
            again = Index(_beside(self.path, "again"), self._stopped)
            again._load(source)  # somebody who was killed may have left a part of it
            total = source.count()
            if again._state is None or total > GROWTH * again._state.trained_on:
                sample = source.sample(min(total, quantizer.LISTS * quantizer.SAMPLED), total)
                if not len(sample):
                    return
                again._state = State(Quantizer.train(sample, total), total)
            while again._extend(source):
                if again._state.waiting >= TAIL:
                    again._write(source)
            if self._stopped() or not again._write(source):
                return
            os.replace(again.path, self.path)
            self._load(source)
            self._reconcile(source, again._state.epoch)
            log.info("built an index over %s vectors in %.1f s", f"{total:,}", time.monotonic() - started)

    def _save(self, source: Source) -> None:
        with segments.claimed(_beside(self.path, "lock")) as ours:
            if not ours:
                return
            state = self._state
            if state is not None and segments.identity(self.path) not in (None, state.identity):
                self._load(source)  # another process was faster
            else:
                self._write(source)

    def _write(self, source: Source) -> bool:
        """Everything into a new file; false where what was read for it was thrown away meanwhile."""
        state = self._state
        assert state is not None
        epoch = source.epoch()
        newest = source.newest()
        state = state.only(source.alive(state.base_last), newest, epoch)
        if not state.segments:
            return False
        new = _beside(self.path, "new")
        segments.write(new, state.quantizer.trained, state.segments, state.last, state.trained_on)
        try:
            os.replace(new, self.path)
        except FileNotFoundError:  # by those who forgot something that may stand in it
            return False
        self._load(source)
        self._reconcile(source, epoch)
        return self._state is not None

    def _reconcile(self, source: Source, epoch: int) -> None:
        """Clear what was forgotten after `epoch`, when those who forgot could not know of this file yet."""
        state = self._state
        if state is None or state.base is None or source.epoch() == epoch:
            return
        ids = np.asarray(state.base.ids)
        gone = ids[~np.isin(ids, source.alive(0))]
        segments.erase(self.path, gone[gone > 0].tolist())


def _is_of(kept: segments.Kept, learned: Quantizer, source: Source) -> bool:
    """Whether a file was made from this database: its newest vectors have the codes that they would get today. A copy that
    was put back over the database may be older than the file, or give the same ids to other vectors."""
    head, segment = kept.head, kept.segment
    if head.last > source.newest() or learned.lists != head.lists or learned.width != head.width:
        return False
    ids = np.asarray(segment.ids)
    places = np.argsort(ids)[-_PROBED:]
    rows = {id: (seq, blob) for id, seq, blob in source.at(ids[places].tolist())}
    places = np.array([place for place in places if int(ids[place]) in rows], np.int64)
    if not len(places):
        return True
    seqs, blobs = zip(*(rows[int(ids[place])] for place in places), strict=True)
    _, codes = learned.encode(Packed.read(blobs).vectors())
    alike = np.abs(codes.astype(int) - segment.codes[places]).max(axis=1) <= 1
    return bool((alike & (segment.seqs[places] == np.array(seqs))).sum() * 2 > len(places))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


class Indexes:
    """The indexes beside the database at `path`. With `enabled` false, or without faiss, none is made or used; files that
    others made are erased from all the same."""

    def __init__(self, path: Path, *, enabled: bool = True) -> None:
        self._path = path
        self.enabled = enabled and quantizer.available()
        self._kept: OrderedDict[tuple[int, int], Index] = OrderedDict()
        self._wanted: list[tuple[int, int]] = []
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._stopping = False

    def of(self, embedder: int, scope: int) -> Index:
        key = (embedder, scope)
        with self._changed:
            if key not in self._kept:
                self._kept[key] = Index(self._file(embedder, scope), lambda: self._stopping)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]

    def state(self, embedder: int, scope: int) -> State | None:
        """What there is to search in. The first search of a process waits until a file that is there is mapped."""
        index = self.of(embedder, scope)
        if index.state is None:
            self.follow(embedder, scope)
            if not index.ready.is_set() and segments.identity(index.path):
                index.ready.wait(_LOAD_SECONDS)
        elif segments.identity(index.path) != index.state.identity:
            self.follow(embedder, scope)
        return index.state

    # ---- the thread

    def follow(self, embedder: int, scope: int) -> None:
        """Let the thread look at this index soon."""
        key, index = (embedder, scope), self.of(embedder, scope)
        with self._changed:
            if self._stopping or key in self._wanted or index.retry_at > time.monotonic():
                return
            self._wanted.append(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="memory-indexes", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until the thread has nothing left to do."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted)

    def stop(self, seconds: float = 2.0) -> None:
        """Let the thread end after the slice that it is at; whatever is cut off goes on with the next process."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    self._wanted.clear()
                    self._changed.notify_all()
                    return
                key = self._wanted[0]
            self._follow(*key)
            with self._changed:
                self._wanted.remove(key)
                self._changed.notify_all()

    def _follow(self, embedder: int, scope: int) -> None:
        index = self.of(embedder, scope)
        try:
            connection = Connection(self._path, vectors=False)
            try:
                index.follow(Source(connection, embedder, scope))
            finally:
                connection.close()
        except Exception as error:  # the memory works without an index: it must not end this thread
            log.warning("an index could not be kept up, searches go on without it: %s", error, exc_info=True)
            index.retry_at = time.monotonic() + _RETRY_SECONDS
        finally:
            index.ready.set()

    # ---- the files

    def _file(self, embedder: int, scope: int) -> Path:
        return self._path.with_name(f"{self._path.name}-nearest-{embedder}-{scope}")

    def exists(self, embedder: int, scope: int) -> bool:
        """Whether any file may hold vectors of this scope."""
        return any(file.exists() for file in self._files_of(embedder, scope))

    def _files_of(self, embedder: int, scope: int) -> list[Path]:
        path = self._file(embedder, scope)
        again = _beside(path, "again")
        return [path, again, _beside(path, "new"), _beside(again, "new")]

    def erase(self, connection: Connection) -> bool:
        """Clear the files of the vectors that are noted in `outdated`; false where one of them cannot be cleared now."""
        rows = connection.rows("SELECT embedder, scope, id FROM outdated ORDER BY embedder, scope, id")
        cleared = True
        for key, group in groupby(rows, lambda row: (row[0], row[1])):
            ids = [id for *_, id in group]
            try:
                self._erase(*key, ids)
            except OSError as error:
                log.warning("an index file could not be cleared yet: %s", error)
                cleared = False
                continue
            with connection.writing(durable=True):
                connection.executemany(
                    "DELETE FROM outdated WHERE embedder = ? AND scope = ? AND id = ?", [(*key, id) for id in ids]
                )
        return cleared

    def _erase(self, embedder: int, scope: int, ids: Sequence[int]) -> None:
        path, again, *unfinished = self._files_of(embedder, scope)

        def clear() -> None:
            for file in (path, again):
                if WHOLE in ids:
                    file.unlink(missing_ok=True)
                else:
                    segments.erase(file, ids)

        clear()
        for file in unfinished:  # whoever writes it begins again, from what has been cleared
            file.unlink(missing_ok=True)
        clear()  # one may have taken the place of the other meanwhile

    def describe(self) -> dict[str, str]:
        """What doctor shows: the library's version, and the files that are there."""
        try:
            library = version("faiss-cpu") if self.enabled else ""
        except PackageNotFoundError:
            library = "of another distribution"
        return {"faiss": library, "index": "; ".join(self._described())}

    def _described(self) -> Iterator[str]:
        for path in sorted(self._path.parent.glob(f"{self._path.name}-nearest-*")):
            if path.suffix == ".lock":
                continue
            try:
                head = segments.head_of(path)
            except (Damaged, OSError):
                yield f"{path.name} unfinished or damaged"
            else:
                yield f"{path.name} {head.count:,} vectors, {head.size / 1_000_000:.1f} MB"
