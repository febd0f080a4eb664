"""A selection as SQL over `episodes`: which of them a question is about, with bound values only."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from mcp_memory.store.conditions import Conditions
from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys
from mcp_memory.store.times import micros
from mcp_memory.types import Selection


class Selecting:
    def __init__(self, connection: Connection, keys: Keys, scope: int, now: datetime) -> None:
        self._db = connection
        self._keys = keys
        self._scope = scope
        self._now = now

    def condition(self, selection: Selection, *, expired: bool = False) -> tuple[str, tuple[Any, ...]]:
        """A selection as SQL over `episodes`, with bound values only. What is past its time to live is left out.

        Raises InvalidFilter for a filter that has no meaning, or names a field that no episode of the scope has.
        """
        parts: list[tuple[str, tuple[Any, ...]]] = [("scope = ?", (self._scope,))]
        if selection.session_id:
            parts.append(("session = ?", (self._keys.often("session", selection.session_id),)))
        if selection.agent_id:
            parts.append(("agent = ?", (self._keys.often("agent", selection.agent_id),)))
        if selection.since:
            parts.append(("occurred_at >= ?", (micros(selection.since),)))
        if selection.until:
            parts.append(("occurred_at <= ?", (micros(selection.until),)))
        if selection.kinds:
            parts.append(("kind IN (SELECT value FROM json_each(?))", (json.dumps(selection.kinds),)))
        if selection.filter is not None:
            parts.append(Conditions(self._keys, self._scope, self._db.rows).sql(selection.filter))
        if not expired:
            parts.append(("(expires_at IS NULL OR expires_at > ?)", (micros(self._now),)))
        return " AND ".join(sql for sql, _ in parts), tuple(value for _, values in parts for value in values)
