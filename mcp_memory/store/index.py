"""An index over one embedder's vectors in a scope that is too large to be compared in memory.

It is what the cache file holds (`base`) and what came since (`tail`, at most `TAIL` codes in memory). Whatever is newer
than both is compared exactly by those who search, until it has been encoded. Every process follows the database by itself;
one at a time writes a file, the others map it as soon as it is there.

A file that was written from what was read before a scope's epoch changed is compared with the database, and what has gone
is cleared in it: those who forgot could not know of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mcp_memory.store import quantizer, segments
from mcp_memory.store.matrices import Packed, Vector
from mcp_memory.store.quantizer import Choice, Quantizer
from mcp_memory.store.segments import Codes, Damaged, Positions, Segment
from mcp_memory.store.sources import Source

TAIL = 65_536
"""Codes in memory before a new file is written: 18 MB of 256 axes."""

GROWTH = 4
"""An index is drawn anew when its scope has so many times the vectors that its lists were drawn over."""

_STEPS = 8  # a segment is joined with the one before it, unless that is so many times as large
_PROBED = 16  # vectors by which a file is recognised as this database's

log = logging.getLogger(__name__)


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
        with segments.claimed(beside(self.path, "lock")) as ours:
            if not ours or self._stopped():
                return
            if segments.identity(self.path) not in (None, self._state and self._state.identity):
                self._load(source)  # another process was faster
                return
            started = time.monotonic()
            again = Index(beside(self.path, "again"), self._stopped)
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
        with segments.claimed(beside(self.path, "lock")) as ours:
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
        new = beside(self.path, "new")
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


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")
