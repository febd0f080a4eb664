"""How far each view of a scope has followed the log: positions, claims, failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from mcp_memory.store.database import Connection
from mcp_memory.store.times import EPOCH, micros, moment

_BACKOFF = timedelta(seconds=2)
_BACKOFF_MOST = timedelta(minutes=10)
_AFRESH = "owner = '', owned_until = 0, failures = 0, rejections = 0, retry_at = 0, reason = ''"


@dataclass(frozen=True, slots=True)
class Cursor:
    """`position` is that of the last episode the view has seen; `retry_at` is when to try again after `failures`, of which
    `rejections` were due to what was to be derived."""

    position: int = 0
    owner: str = ""
    owned_until: datetime = EPOCH
    failures: int = 0
    retry_at: datetime = EPOCH
    reason: str = ""
    rejections: int = 0


@dataclass(frozen=True, slots=True)
class Aside:
    """An episode that a view could not derive after many tries, and goes on without."""

    view: str
    seq: int
    reason: str


class Cursors:
    def __init__(self, connection: Connection, scope: int, now: datetime) -> None:
        self._db = connection
        self._scope = scope
        self._now = now

    def of(self, view: str) -> Cursor:
        row = self._db.row(
            "SELECT position, owner, owned_until, failures, retry_at, reason, rejections FROM cursors "
            "WHERE scope = ? AND view = ?",
            (self._scope, view),
        )
        if row is None:
            return Cursor()
        position, owner, owned_until, failures, retry_at, reason, rejections = row
        return Cursor(position, owner, moment(owned_until), failures, moment(retry_at), reason, rejections)

    def views(self) -> list[str]:
        """The views that have ever followed this scope."""
        return [row[0] for row in self._db.rows("SELECT view FROM cursors WHERE scope = ?", (self._scope,))]

    def advance(self, view: str, expected: int, position: int) -> bool:
        """Move on from `expected`, release the claim, forget the failures; false where somebody else was faster."""
        self._begin(view)
        self._db.execute(
            f"UPDATE cursors SET position = ?, {_AFRESH} WHERE scope = ? AND view = ? AND position = ?",
            (position, self._scope, view, expected),
        )
        return self._db.changes == 1

    def reset(self, view: str, position: int = 0) -> None:
        """Set a view back, so that it derives again what comes after `position`."""
        self._begin(view)
        self._db.execute(
            f"UPDATE cursors SET position = min(position, ?), {_AFRESH} WHERE scope = ? AND view = ?",
            (position, self._scope, view),
        )

    def start_afresh(self, view: str) -> None:
        """Release the claim and forget the failures, at the same position."""
        self._db.execute(f"UPDATE cursors SET {_AFRESH} WHERE scope = ? AND view = ?", (self._scope, view))

    def claim(self, view: str, owner: str, until: datetime, *, instead_of: str = "") -> bool:
        """Take the view's next batch for oneself until then; false while another owner holds it. `instead_of` is an owner
        who is known to be gone."""
        self._begin(view)
        self._db.execute(
            "UPDATE cursors SET owner = ?, owned_until = ? WHERE scope = ? AND view = ? "
            "AND (owner IN ('', ?, ?) OR owned_until < ?)",
            (owner, micros(until), self._scope, view, owner, instead_of, micros(self._now)),
        )
        return self._db.changes == 1

    def release(self, view: str, owner: str) -> None:
        """Give a claim back."""
        self._db.execute(
            "UPDATE cursors SET owner = '', owned_until = 0 WHERE scope = ? AND view = ? AND owner = ?",
            (self._scope, view, owner),
        )

    def fail(self, view: str, reason: str, *, rejected: bool = False, wait: timedelta = timedelta(0)) -> datetime:
        """Note a failure, due to what was to be derived where it was `rejected`; when to try again. The wait doubles with
        each failure, and is at least `wait`; a first rejection is tried again at once: models do not answer alike twice."""
        self._begin(view)
        cursor = self.of(view)
        doubled: timedelta = min(_BACKOFF * 2 ** min(cursor.failures, 20), _BACKOFF_MOST)
        if rejected and not cursor.failures:
            doubled = timedelta(0)
        retry_at: datetime = self._now + max(doubled, min(wait, _BACKOFF_MOST))
        self._db.execute(
            "UPDATE cursors SET failures = ?, rejections = ?, retry_at = ?, reason = ?, owner = '', owned_until = 0 "
            "WHERE scope = ? AND view = ?",
            (cursor.failures + 1, cursor.rejections + rejected, micros(retry_at), reason, self._scope, view),
        )
        return retry_at

    # ---- what is left out, and what is derived again

    def set_aside(self, view: str, seq: int, reason: str) -> None:
        """Let a view go on without an episode that it could not derive."""
        self._db.execute("INSERT OR REPLACE INTO aside VALUES (?, ?, ?, ?)", (self._scope, view, seq, reason))

    def aside(self) -> list[Aside]:
        rows = self._db.rows("SELECT view, seq, reason FROM aside WHERE scope = ? ORDER BY view, seq", (self._scope,))
        return [Aside(*row) for row in rows]

    def forget_aside(self, view: str, seqs: Iterable[int]) -> None:
        self._db.executemany(
            "DELETE FROM aside WHERE scope = ? AND view = ? AND seq = ?", [(self._scope, view, seq) for seq in seqs]
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
