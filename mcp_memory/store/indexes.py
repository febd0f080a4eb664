"""The indexes of one process, the thread that keeps them up, and their files beside the database.

No search waits for the thread, but for the first one of a process, while the file is mapped. Forgetting clears the files at
once (`Indexes.erase`) and never relies on the thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path

from mcp_memory.store import quantizer, segments
from mcp_memory.store.database import Connection
from mcp_memory.store.index import Index, State, beside
from mcp_memory.store.segments import Damaged
from mcp_memory.store.sources import Source

WHOLE = 0
"""Among ids of derivatives to erase: the whole file."""

_KEPT = 8  # indexes of one process
_RETRY_SECONDS = 60.0
_LOAD_SECONDS = 2.0  # the longest that a search waits for a file to be mapped, once

log = logging.getLogger(__name__)


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
        again = beside(path, "again")
        return [path, again, beside(path, "new"), beside(again, "new")]

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
