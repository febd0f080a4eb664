"""Summaries of sessions: what left the working window, in a few lines."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys
from mcp_memory.store.texts import Texts
from mcp_memory.types import Summary


class Summaries:
    def __init__(self, connection: Connection, texts: Texts, keys: Keys, scope: int) -> None:
        self._db = connection
        self._texts = texts
        self._keys = keys
        self._scope = scope

    def of(self, session_id: str) -> Summary | None:
        row = self._db.row(
            "SELECT body, upto FROM summaries CROSS JOIN texts USING (position) WHERE scope = ? AND session = ?",
            (self._scope, self._keys.often("session", session_id)),
        )
        return None if row is None else Summary(json.loads(row[0]), row[1])

    def put(self, session_id: str, summary: Summary) -> None:
        """Write a session's summary, in place of the one that was there."""
        session = self._keys.often("session", session_id)
        self._drop("session = ?", session)
        (position,) = self._texts.positions(1)
        self._texts.put([(position, summary.text)])
        self._db.execute("INSERT INTO summaries VALUES (?, ?, ?, ?)", (position, self._scope, session, summary.upto))

    def remove(self, seqs: Sequence[int]) -> list[str]:
        """Drop the summaries of the sessions that these episodes belong to; the ids of those sessions that had one."""
        rows = self._db.rows(
            """SELECT DISTINCT s.session, CAST(body AS TEXT) ->> '$.session_id'
               FROM json_each(?) j CROSS JOIN episodes e ON e.seq = j.value CROSS JOIN texts t ON t.position = e.seq
               CROSS JOIN summaries s ON s.scope = e.scope AND s.session = e.session WHERE e.scope = ?""",
            (json.dumps(seqs), self._scope),
        )
        for session, _ in rows:
            self._drop("session = ?", session)
        return sorted({session_id or "" for _, session_id in rows})

    def clear(self) -> None:
        self._drop("?", 1)

    def _drop(self, condition: str, value: int) -> None:
        gone = self._db.rows(
            f"DELETE FROM summaries WHERE scope = ? AND {condition} RETURNING position", (self._scope, value)
        )
        self._texts.erase([position for (position,) in gone])
