"""Summaries of sessions: what left the working window, in a few lines."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys
from mcp_memory.types import Summary


class Summaries:
    def __init__(self, connection: Connection, keys: Keys, scope: int) -> None:
        self._db = connection
        self._keys = keys
        self._scope = scope

    def of(self, session_id: str) -> Summary | None:
        row = self._db.row(
            "SELECT body, upto FROM summaries WHERE scope = ? AND session = ? ORDER BY id DESC LIMIT 1",
            (self._scope, self._keys.of("session", session_id)),
        )
        return None if row is None else Summary(*row)

    def put(self, session_id: str, summary: Summary) -> None:
        session = self._keys.of("session", session_id)
        self._db.execute("DELETE FROM summaries WHERE scope = ? AND session = ?", (self._scope, session))
        self._db.execute(
            "INSERT INTO summaries(scope, session, upto, body) VALUES (?, ?, ?, ?)",
            (self._scope, session, summary.upto, summary.text),
        )

    def remove(self, seqs: Sequence[int]) -> list[str]:
        """Drop the summaries of the sessions that these episodes belong to; the ids of those sessions that had one."""
        rows = self._db.rows(
            """SELECT DISTINCT s.id, json_extract(e.details, '$.session_id')
               FROM json_each(?) j CROSS JOIN episodes e ON e.seq = j.value
               CROSS JOIN summaries s ON s.scope = e.scope AND s.session = e.session WHERE e.scope = ?""",
            (json.dumps(seqs), self._scope),
        )
        self._db.executemany("DELETE FROM summaries WHERE id = ?", [(id,) for id, _ in rows])
        return sorted({session_id or "" for _, session_id in rows})

    def clear(self) -> None:
        self._db.execute("DELETE FROM summaries WHERE scope = ?", (self._scope,))
