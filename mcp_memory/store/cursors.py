"""How far each view of a scope has followed the log: positions, claims, failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from mcp_memory.store.database import Connection
from mcp_memory.store.times import EPOCH, micros, moment

_BACKOFF = timedelta(seconds=2)
_BACKOFF_MOST = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Cursor:
    """`position` is that of the last episode the view has seen; `retry_at` is when to try again after `failures`."""

    position: int = 0
    owner: str = ""
    owned_until: datetime = EPOCH
    failures: int = 0
    retry_at: datetime = EPOCH
    reason: str = ""


class Cursors:
    def __init__(self, connection: Connection, scope: int, now: datetime) -> None:
        self._db = connection
        self._scope = scope
        self._now = now

    def of(self, view: str) -> Cursor:
        row = self._db.row(
            "SELECT position, owner, owned_until, failures, retry_at, reason FROM cursors WHERE scope = ? AND view = ?",
            (self._scope, view),
        )
        if row is None:
            return Cursor()
        position, owner, owned_until, failures, retry_at, reason = row
        return Cursor(position, owner, moment(owned_until), failures, moment(retry_at), reason)

    def views(self) -> list[str]:
        """The views that have ever followed this scope."""
        return [row[0] for row in self._db.rows("SELECT view FROM cursors WHERE scope = ?", (self._scope,))]

    def advance(self, view: str, expected: int, position: int) -> bool:
        """Move on from `expected`, release the claim, forget the failures; false where somebody else was faster."""
        self._begin(view)
        self._db.execute(
            "UPDATE cursors SET position = ?, owner = '', owned_until = 0, failures = 0, retry_at = 0, reason = '' "
            "WHERE scope = ? AND view = ? AND position = ?",
            (position, self._scope, view, expected),
        )
        return self._db.changes == 1

    def reset(self, view: str, position: int = 0) -> None:
        """Set a view back, so that it derives again what comes after `position`."""
        self._begin(view)
        self._db.execute(
            "UPDATE cursors SET position = min(position, ?), owner = '', owned_until = 0, failures = 0, retry_at = 0, "
            "reason = '' WHERE scope = ? AND view = ?",
            (position, self._scope, view),
        )

    def claim(self, view: str, owner: str, until: datetime) -> bool:
        """Take the view's next batch for oneself until then; false while another owner holds it."""
        self._begin(view)
        self._db.execute(
            "UPDATE cursors SET owner = ?, owned_until = ? WHERE scope = ? AND view = ? "
            "AND (owner IN ('', ?) OR owned_until < ?)",
            (owner, micros(until), self._scope, view, owner, micros(self._now)),
        )
        return self._db.changes == 1

    def fail(self, view: str, reason: str) -> None:
        """Note a failure; the wait before the next try doubles with each."""
        self._begin(view)
        failures = self.of(view).failures + 1
        wait = min(_BACKOFF * 2 ** min(failures - 1, 20), _BACKOFF_MOST)
        self._db.execute(
            "UPDATE cursors SET failures = ?, retry_at = ?, reason = ?, owner = '', owned_until = 0 "
            "WHERE scope = ? AND view = ?",
            (failures, micros(self._now + wait), reason, self._scope, view),
        )

    def mark(self, view: str, seqs: Iterable[int]) -> None:
        """Let a view derive these episodes again, whatever its position."""
        self._db.executemany("INSERT OR IGNORE INTO marks VALUES (?, ?, ?)", [(self._scope, view, seq) for seq in seqs])

    def marked(self, view: str, limit: int) -> list[int]:
        rows = self._db.rows(
            "SELECT seq FROM marks WHERE scope = ? AND view = ? ORDER BY seq LIMIT ?", (self._scope, view, limit)
        )
        return [seq for (seq,) in rows]

    def unmark(self, view: str, seqs: Iterable[int]) -> None:
        self._db.executemany(
            "DELETE FROM marks WHERE scope = ? AND view = ? AND seq = ?", [(self._scope, view, seq) for seq in seqs]
        )

    def _begin(self, view: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO cursors(scope, view) VALUES (?, ?)", (self._scope, view))
