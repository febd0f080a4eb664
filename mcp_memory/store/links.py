"""Which episodes of a scope are alike by one embedder, kept in both directions. Positions and likeness only, no text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from mcp_memory.store.database import Connection
from mcp_memory.types import Link


class Links:
    """A name that was never stored has no links."""

    def __init__(self, connection: Connection, scope: int, embedder: str) -> None:
        self._db = connection
        self._scope = scope
        self._embedder: int = connection.row("SELECT id FROM embedders WHERE name = ?", (embedder,)) or 0

    def put(self, links: Iterable[Link]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO links VALUES (?, ?, ?, ?, ?)",
            [
                (self._scope, self._embedder, seq, other, link.likeness)
                for link in links
                for seq, other in ((link.seq, link.other), (link.other, link.seq))
            ],
        )

    def of(self, seqs: Sequence[int], upto: int = 2**62) -> list[Link]:
        """The links from these episodes to others, up to a position of the log."""
        rows = self._db.rows(
            "SELECT l.seq, l.other, l.likeness FROM json_each(?) j CROSS JOIN links l "
            "ON l.scope = ? AND l.embedder = ? AND l.seq = j.value WHERE l.other <= ?",
            (json.dumps(seqs), self._scope, self._embedder, upto),
        )
        return [Link(*row) for row in rows]

    def remove(self, seqs: Sequence[int]) -> None:
        here = (self._scope, self._embedder)
        back = [(*here, link.other, link.seq) for link in self.of(seqs)]
        self._db.executemany("DELETE FROM links WHERE scope = ? AND embedder = ? AND seq = ? AND other = ?", back)
        self._db.executemany(
            "DELETE FROM links WHERE scope = ? AND embedder = ? AND seq = ?", [(*here, seq) for seq in seqs]
        )

    def clear(self) -> None:
        self._db.execute("DELETE FROM links WHERE scope = ? AND embedder = ?", (self._scope, self._embedder))
