"""The derivatives that an index is made from, read by somebody who takes his time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcp_memory.store.database import Connection
from mcp_memory.store.matrices import Packed, Vector
from mcp_memory.store.segments import Positions

SLICE = 8_192
"""Vectors that are read in one snapshot: 4 MB of 512 dimensions."""


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
                (*self._key, last, SLICE),
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
            (*self._key, after, 8 * SLICE),
        ):
            parts.append(np.fromiter((id for (id,) in rows), np.int64, len(rows)))
            after = rows[-1][0]
        return np.concatenate(parts)
