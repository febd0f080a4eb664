"""The only place where user text stands: appended under a position of the log, overwritten in place when forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from mcp_memory.store.database import Connection


class Texts:
    """Bodies are JSON. One transaction's view of them; the rooms share it."""

    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def positions(self, count: int) -> range:
        """The next positions of the log, over all scopes; they only grow."""
        last: int = self._db.row("UPDATE meta SET value = value + ? WHERE name = 'position' RETURNING value", (count,))
        return range(last - count + 1, last + 1)

    def last(self) -> int:
        """The last position given out."""
        position: int = self._db.row("SELECT value FROM meta WHERE name = 'position'")
        return position

    def put(self, bodies: Iterable[tuple[int, Any]]) -> None:
        """Append bodies under new positions."""
        self._db.executemany(
            "INSERT INTO texts VALUES (?, ?)",
            [(position, json.dumps(body, ensure_ascii=False).encode()) for position, body in bodies],
        )

    def erase(self, positions: Sequence[int]) -> None:
        """Overwrite with zeros. The length stays, so that SQLite writes over the very bytes and moves nothing."""
        self._db.executemany(
            "UPDATE texts SET body = zeroblob(length(body)) WHERE position = ?", [(position,) for position in positions]
        )
