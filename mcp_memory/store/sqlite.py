"""The store on one SQLite file: scopes, transactions, and the rooms that a transaction opens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from mcp_memory.store import vectors
from mcp_memory.store.cursors import Cursors
from mcp_memory.store.database import Connection, Database
from mcp_memory.store.decisions import Decisions
from mcp_memory.store.facts import Facts
from mcp_memory.store.indexes import Indexes
from mcp_memory.store.keys import Keys
from mcp_memory.store.links import Links
from mcp_memory.store.log import Clock, Log
from mcp_memory.store.matrices import Matrices
from mcp_memory.store.schema import FILE_NAME, MIGRATIONS
from mcp_memory.store.summaries import Summaries
from mcp_memory.store.texts import Texts
from mcp_memory.store.times import micros
from mcp_memory.store.vectors import Vectors
from mcp_memory.store.words import Lengths, Words
from mcp_memory.types import Scope

T = TypeVar("T")

_ERASE_WAIT_MS = 250
_PENDING = "erasure pending"

log = logging.getLogger(__name__)


class Tx:
    """A transaction in one scope. Every room it opens is bound to that scope, so that no statement can forget it."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        matrices: Matrices,
        indexes: Indexes,
        lengths: Lengths,
        scope: int,
        user: str,
        now: datetime,
    ) -> None:
        self._db = connection
        self._texts = Texts(connection)
        self._keys = keys
        self._matrices = matrices
        self._indexes = indexes
        self._lengths = lengths
        self._scope = scope
        self.user = user
        self.now = now

    @cached_property
    def log(self) -> Log:
        return Log(self._db, self._texts, self._keys, self.decisions, self._scope, self.now)

    @cached_property
    def decisions(self) -> Decisions:
        return Decisions(self._db, self._texts, self._keys, self._scope, self.now)

    @cached_property
    def words(self) -> Words:
        return Words(self._db, self._keys, self._lengths, self._scope)

    @cached_property
    def facts(self) -> Facts:
        return Facts(self._db, self._keys, self._scope)

    @cached_property
    def cursors(self) -> Cursors:
        return Cursors(self._db, self._scope, self.now)

    @cached_property
    def summaries(self) -> Summaries:
        return Summaries(self._db, self._texts, self._keys, self._scope)

    def vectors(self, embedder: str) -> Vectors:
        return Vectors(self._db, self._matrices, self._indexes, self._scope, self.epoch(), embedder)

    def links(self, embedder: str) -> Links:
        return Links(self._db, self._scope, embedder)

    def embedders(self) -> list[str]:
        """The names of the embedders that ever followed this scope."""
        prefix = "vectors/"
        return [view.removeprefix(prefix) for view in self.cursors.views() if view.startswith(prefix)]

    def epoch(self) -> int:
        """A number that changes when something was forgotten: what was derived under another one must not be applied."""
        return self._db.row("SELECT epoch FROM scopes WHERE id = ?", (self._scope,)) or 0

    def begin_epoch(self) -> None:
        self._db.execute("UPDATE scopes SET epoch = epoch + 1 WHERE id = ?", (self._scope,))

    def erase(self) -> None:
        """Note that bytes of what this transaction removes are still in the write-ahead log."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, 1)", (_PENDING,))

    def savepoint(self) -> AbstractContextManager[None]:
        return self._db.savepoint()


class SQLiteStore:
    """See `protocols.Store`. `now` is the clock of what is stored; `extensions=False` does without sqlite-vec,
    `scale=False` without faiss."""

    def __init__(self, directory: Path, *, now: Clock, extensions: bool = True, scale: bool = True) -> None:
        self.path = directory / FILE_NAME
        self.now = now
        self._database = Database(self.path, extensions=extensions)
        self._matrices = Matrices()
        self.indexes = Indexes(self.path, enabled=scale)
        self._lengths = Lengths()
        self._keys: Keys | None = None

    async def open(self) -> None:
        """Open the file now, and finish an erasure that was pending. Raises what the first use would."""
        await self.finish_erasing()

    async def read(self, scope: Scope, function: Callable[[Tx], T]) -> T:
        """The result of `function` over one snapshot."""
        return await self._database.read(lambda connection: function(self._tx(connection, scope)))

    async def write(self, scope: Scope, function: Callable[[Tx], T], *, durable: bool = True) -> T:
        """The result of `function` in one transaction, committed; with `durable`, on the disk too."""

        def call(connection: Connection) -> tuple[T, bool]:
            result = function(self._tx(connection, scope, create=True))
            return result, not _is_erased(connection)

        result, pending = await self._database.write(call, durable=durable)
        if pending:
            await self.finish_erasing()
        return result

    def _tx(self, connection: Connection, scope: Scope, *, create: bool = False) -> Tx:
        if self._keys is None:
            self._keys = Keys(connection.row("SELECT value FROM meta WHERE name = 'key'"))
        key = self._keys.of("scope", scope.org, scope.project, scope.user)
        number = connection.row("SELECT id FROM scopes WHERE key = ?", (key,))
        if number is None and create:
            connection.execute(
                "INSERT INTO scopes(key, org, project, user) VALUES (?, ?, ?, ?)",
                (key, scope.org, scope.project, scope.user),
            )
            number = connection.row("SELECT id FROM scopes WHERE key = ?", (key,))
        number = number or 0
        return Tx(connection, self._keys, self._matrices, self.indexes, self._lengths, number, scope.user, self.now())

    async def due(self, views: Sequence[str]) -> list[Scope]:
        """The scopes in which one of these views is behind the log and may be tried again by now."""

        def call(connection: Connection) -> list[Any]:
            now = micros(self.now())
            return [
                row
                for view in views
                for row in connection.rows(
                    """SELECT s.org, s.project, s.user FROM scopes s LEFT JOIN cursors c ON c.scope = s.id AND c.view = ?
                       WHERE coalesce(c.retry_at, 0) <= ? AND (EXISTS
                         (SELECT 1 FROM episodes e WHERE e.scope = s.id AND e.seq > coalesce(c.position, 0))
                         OR EXISTS (SELECT 1 FROM marks m WHERE m.scope = s.id AND m.view = ?))""",
                    (view, now, view),
                )
            ]

        return list(dict.fromkeys(Scope(*row) for row in await self._database.read(call)))

    async def scopes(self) -> list[Scope]:
        rows = await self._database.read(
            lambda connection: connection.rows("SELECT org, project, user FROM scopes ORDER BY id")
        )
        return [Scope(*row) for row in rows]

    async def finish_erasing(self) -> bool:
        """Clear the index files and empty the write-ahead log of what was forgotten; false while another process reads an
        older snapshot."""

        def call(connection: Connection) -> bool:
            if not self.indexes.erase(connection):
                return False
            if connection.row("SELECT 1 FROM meta WHERE name = ?", (_PENDING,)) is None:
                return True
            if not connection.truncate_log(_ERASE_WAIT_MS):
                return False
            with connection.writing(durable=True):
                connection.execute("DELETE FROM meta WHERE name = ?", (_PENDING,))
            return True

        return await self._database.outside(call)

    async def erased(self) -> bool:
        """Whether no forgotten byte is left in the files."""
        return await self._database.read(_is_erased)

    def copies(self) -> list[str]:
        """The names of the copies of the file that were set aside or kept before a migration."""
        return sorted(
            path.name for path in self.path.parent.glob(f"{FILE_NAME}.*") if not path.name.endswith(("-wal", "-shm"))
        )

    async def check(self) -> str:
        """SQLite's own integrity check: "ok" or what is wrong."""

        def call(connection: Connection) -> str:
            return "; ".join(row[0] for row in connection.rows("PRAGMA integrity_check(5)"))

        return await self._database.outside(call)

    async def describe(self) -> dict[str, str]:
        def call(connection: Connection) -> dict[str, str]:
            return {
                "SQLite": connection.row("SELECT sqlite_version()"),
                "schema": f"{connection.row('PRAGMA user_version')} of {len(MIGRATIONS)}",
                "sqlite-vec": connection.row("SELECT vec_version()") if connection.nearest else "",
                "large": str(vectors.large_scopes(connection)),
                **self.indexes.describe(),
            }

        return await self._database.read(call)

    async def compact(self) -> None:
        """Rewrite the file without its free space and without what forgotten texts left of their room."""

        def call(connection: Connection) -> None:
            with connection.writing(durable=True):
                connection.execute(
                    "DELETE FROM texts WHERE position NOT IN (SELECT seq FROM episodes) "
                    "AND position NOT IN (SELECT seq FROM decisions) AND position NOT IN (SELECT position FROM summaries)"
                )
            connection.execute("VACUUM").fetchall()
            connection.truncate_log(_ERASE_WAIT_MS)

        await self._database.outside(call)

    async def close(self) -> None:
        await asyncio.to_thread(self.indexes.stop)
        with contextlib.suppress(Exception):
            if self._keys is not None:
                await self.finish_erasing()
        await self._database.close()


def _is_erased(connection: Connection) -> bool:
    noted = connection.row(
        "SELECT EXISTS (SELECT 1 FROM meta WHERE name = ?) OR EXISTS (SELECT 1 FROM outdated)", (_PENDING,)
    )
    return not noted
