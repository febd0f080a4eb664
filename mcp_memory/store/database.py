"""One SQLite file: its connections, each in a thread of its own, its transactions, its soundness, its erasure.

The driver is apsw: it brings a recent SQLite with it and can load extensions on every Python, which the standard
module often cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import apsw

from mcp_memory.errors import StoreBusy, StoreDamaged, StoreError
from mcp_memory.store import schema
from mcp_memory.workers import Worker

T = TypeVar("T")

BUSY_MS = 10_000
"""How long a write waits for another process's write before it gives up."""

PAGE_CACHE_KIB = 16_384

log = logging.getLogger(__name__)


class Connection:
    """A connection with our settings, and what a transaction needs of it. Used from one thread at a time."""

    def __init__(self, path: Path, *, vectors: bool) -> None:
        try:
            self._driver = apsw.Connection(str(path))
            self._driver.set_busy_timeout(BUSY_MS)
            self._prepare()
        except apsw.CantOpenError as error:
            raise StoreError(
                "The memory file cannot be opened: check that its folder exists and may be written."
            ) from error
        self.nearest = vectors and self._load_vectors()
        self._full_sync = True

    def _prepare(self) -> None:
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "secure_delete = ON",
            "foreign_keys = ON",
            f"cache_size = -{PAGE_CACHE_KIB}",
            "temp_store = MEMORY",
        ):
            self._driver.execute(f"PRAGMA {pragma}").fetchall()

    def _load_vectors(self) -> bool:
        try:
            import sqlite_vec  # optional at run time: not every platform has a wheel of it

            self._driver.enable_load_extension(True)
            self._driver.load_extension(sqlite_vec.loadable_path())
            self._driver.enable_load_extension(False)
        except (ImportError, AttributeError, apsw.Error) as error:
            log.info("sqlite-vec is not available (%s); vectors are compared exactly without it", error)
            return False
        return True

    def execute(self, sql: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> apsw.Cursor:
        return self._driver.execute(sql, values)

    def executemany(self, sql: str, rows: Any) -> None:
        self._driver.executemany(sql, rows).fetchall()

    def rows(self, sql: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> list[Any]:
        return self._driver.execute(sql, values).fetchall()

    def row(self, sql: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> Any:
        """The only row or None; a single column comes as its value."""
        rows = self._driver.execute(sql, values).fetchall()
        return None if not rows else rows[0] if len(rows[0]) > 1 else rows[0][0]

    def overwrite(self, table: str, column: str, row: int, offset: int, data: bytes) -> None:
        """Write over a part of a blob, in place."""
        with self._driver.blob_open("main", table, column, row, True) as blob:
            blob.seek(offset)
            blob.write(data)

    @property
    def changes(self) -> int:
        return self._driver.changes()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One snapshot."""
        self._driver.execute("BEGIN")
        try:
            yield
        finally:
            self._driver.execute("COMMIT")

    @contextlib.contextmanager
    def writing(self, *, durable: bool) -> Iterator[None]:
        """One transaction that holds the write lock from its beginning: a deferred one that reads first and writes
        then fails as soon as another process wrote between. Without `durable` the commit does not wait for the disk,
        which is right for what can be derived again."""
        if durable != self._full_sync:
            self._driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._full_sync = durable
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._driver.execute("COMMIT")
        except BaseException:
            if self._driver.in_transaction:
                self._driver.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of a transaction that can fail alone."""
        self._driver.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._driver.execute("ROLLBACK TO part")
            raise
        finally:
            self._driver.execute("RELEASE part")

    def truncate_log(self, wait_ms: int) -> bool:
        """Copy the write-ahead log into the file and empty it; false while somebody still reads an older snapshot."""
        self._driver.set_busy_timeout(wait_ms)
        try:
            busy = self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
        finally:
            self._driver.set_busy_timeout(BUSY_MS)
        return not busy

    def close(self) -> None:
        self._driver.close()


class Database:
    """The file at `path`: one writer, a few readers. Opened by the first use, so that starting costs nothing."""

    def __init__(self, path: Path, *, extensions: bool = True, readers: int = 2) -> None:
        self.path = path
        self._extensions = extensions
        self._reader_count = readers
        self._writer: tuple[Worker, Connection] | None = None
        self._readers: asyncio.Queue[tuple[Worker, Connection]] = asyncio.Queue()
        self._opening = asyncio.Lock()
        self._workers: list[tuple[Worker, Connection]] = []

    async def read(self, function: Callable[[Connection], T]) -> T:
        await self._open()
        worker, connection = await self._readers.get()

        def call() -> T:
            with _explained(), connection.reading():
                return function(connection)

        running = asyncio.ensure_future(worker.run(call))
        # a cancelled wait must not hand the connection to the next reader while the thread still uses it
        running.add_done_callback(lambda _: self._readers.put_nowait((worker, connection)))
        return await asyncio.shield(running)

    async def write(self, function: Callable[[Connection], T], *, durable: bool = True) -> T:
        writer = await self._open()
        worker, connection = writer

        def call() -> T:
            with _explained(), connection.writing(durable=durable):
                return function(connection)

        return await worker.run(call)

    async def outside(self, function: Callable[[Connection], T]) -> T:
        """Run in the writer's thread, outside any transaction: checkpoints, VACUUM, backups."""
        worker, connection = await self._open()

        def call() -> T:
            with _explained():
                return function(connection)

        return await worker.run(call)

    async def _open(self) -> tuple[Worker, Connection]:
        if self._writer is not None:
            return self._writer
        async with self._opening:
            if self._writer is None:
                writer = await self._connect("memory-writer", _prepare_file)
                for number in range(self._reader_count):
                    self._readers.put_nowait(await self._connect(f"memory-reader-{number}", None))
                self._writer = writer
        return self._writer

    async def _connect(self, name: str, first: Callable[[Path], None] | None) -> tuple[Worker, Connection]:
        worker = Worker(name)

        def call() -> Connection:
            if first is not None:
                first(self.path)
            with _explained():
                connection = Connection(self.path, vectors=self._extensions)
                if first is not None:
                    schema.migrate(connection, self.path)
                return connection

        try:
            connection = await worker.run(call)
        except BaseException:
            worker.stop()
            raise
        self._workers.append((worker, connection))
        return worker, connection

    async def close(self) -> None:
        for worker, connection in self._workers:
            await worker.run(connection.close)
            worker.stop()
        self._workers.clear()
        self._writer = None
        self._readers = asyncio.Queue()


def _prepare_file(path: Path) -> None:
    """Make the folder and the file readable by the owner alone, and set a file aside that is no database."""
    try:
        _prepare(path)
    except OSError as error:
        log.error("the memory file %s cannot be used: %s", path, error)
        raise StoreError(
            "The memory file cannot be created or read: check the data directory (MCP_MEMORY_DATA_DIR) and its permissions."
        ) from error


def _prepare(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        with path.open("rb") as file:
            head = file.read(16)
        if head and head != b"SQLite format 3\0":
            aside = set_aside(path)
            raise StoreDamaged(
                f"The memory file is damaged. It was set aside as {aside.name} in the data directory and nothing in it "
                "was changed: restore a backup under the old name, or start again to begin with an empty memory."
            )
    else:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    os.chmod(path, 0o600)


def set_aside(path: Path) -> Path:
    """Rename a damaged file and what belongs to it out of the way."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    for index in path.parent.glob(f"{path.name}-nearest-*"):  # made from it, and of no use without it
        index.unlink(missing_ok=True)
    log.error("the memory file was damaged and is kept as %s", aside)
    return aside


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """The driver's errors as ours."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreBusy("Another process kept the memory file locked. Nothing was changed: try again.") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        log.error("SQLite finds the memory file damaged: %s", error)
        raise StoreDamaged(
            "The memory file is damaged. Nothing was overwritten: stop the server and run `mcp-memory doctor`."
        ) from error
    except apsw.FullError as error:
        raise StoreError("The disk is full. Nothing was changed: make room and try again.") from error
    except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.IOError) as error:
        log.error("SQLite could not use the memory file: %s", error)
        raise StoreError("The memory file cannot be written. Nothing was changed: see the server's log.") from error
