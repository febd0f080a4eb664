"""The facts of one scope: what the profile holds now, and what it held before. A view of the decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys, id_of, ident_of
from mcp_memory.store.times import micros, moment
from mcp_memory.types import Feature, Span

_COLUMNS = "id, decision, ident, importance, confidence, valid_from, valid_to, superseded_by, verified_at, source, body"
_BEST_FIRST = "ORDER BY importance DESC, valid_from DESC, id DESC"


class Facts:
    def __init__(self, connection: Connection, keys: Keys, scope: int) -> None:
        self._db = connection
        self._keys = keys
        self._scope = scope

    # ---- writing

    def write(self, slot: int, spans: Sequence[Span]) -> None:
        """Let a slot hold these facts and no others. An id follows from what is said and how often it had been taken up
        before, so that what stays keeps its id."""
        idents = [self._ident(span) for span in spans]
        there = dict(self._db.rows("SELECT ident, id FROM facts WHERE scope = ? AND slot = ?", (self._scope, slot)))
        self._remove([row for ident, row in there.items() if ident not in idents])
        rows = [there.get(ident) or self._insert(slot, ident, span) for ident, span in zip(idents, spans, strict=True)]
        for row, span in zip(rows, spans, strict=True):
            self._update(row, span, rows[span.superseded_by] if span.superseded_by >= 0 else None)

    def _ident(self, span: Span) -> int:
        parts = ("fact", str(self._scope), str(span.decision.statement), str(span.number))
        return self._keys.of(*parts) & (2**50 - 1)

    def _insert(self, slot: int, ident: int, span: Span) -> int:
        row: int = self._db.row(
            """INSERT INTO facts(ident, scope, slot, statement, source, decision, importance, confidence, valid_from)
               VALUES (?, ?, ?, ?, '', 0, 0, 0, 0) RETURNING id""",
            (ident, self._scope, slot, span.decision.statement),
        )
        return row

    def _update(self, row: int, span: Span, superseded_by: int | None) -> None:
        self._db.execute(
            """UPDATE facts SET source = ?, decision = ?, importance = ?, confidence = ?, valid_from = ?, valid_to = ?,
               superseded_by = ?, verified_at = ? WHERE id = ?""",
            (
                span.decision.source,
                span.decision.seq,
                span.importance,
                span.confidence,
                micros(span.valid_from),
                None if span.valid_to is None else micros(span.valid_to),
                superseded_by,
                micros(span.verified_at),
                row,
            ),
        )
        self._db.execute("DELETE FROM citations WHERE item = ? AND decision = 0", (row,))
        self._db.executemany("INSERT INTO citations VALUES (?, 0, ?)", [(row, seq) for seq in span.citations])

    def _remove(self, rows: Sequence[int]) -> None:
        self._db.executemany("DELETE FROM citations WHERE item = ? AND decision = 0", [(row,) for row in rows])
        self._db.executemany("DELETE FROM facts WHERE id = ?", [(row,) for row in rows])

    # ---- reading

    def all(self) -> list[Feature]:
        """Every fact of the scope, current or not, the most important first, then the latest."""
        return self._facts(f"WHERE scope = ? {_BEST_FIRST}", (self._scope,))

    def decided(self, decisions: Iterable[int]) -> list[Feature]:
        """The facts that these decisions stated first."""
        return self._facts(
            "WHERE scope = ? AND decision IN (SELECT value FROM json_each(?)) ORDER BY id",
            (self._scope, json.dumps(list(decisions))),
        )

    def living(self, now: datetime) -> list[Feature]:
        """`all`, without the facts of which every citation is past its time to live."""
        return self._facts(
            f"""WHERE scope = ? AND (NOT EXISTS (SELECT 1 FROM citations c WHERE c.item = id) OR EXISTS
                 (SELECT 1 FROM citations c CROSS JOIN episodes e ON e.seq = c.seq
                  WHERE c.item = id AND (e.expires_at IS NULL OR e.expires_at > ?))) {_BEST_FIRST}""",
            (self._scope, micros(now)),
        )

    def count(self) -> int:
        counted: int = self._db.row("SELECT count(*) FROM facts WHERE scope = ?", (self._scope,))
        return counted

    def by_id(self, id: str) -> Feature | None:
        found = self._facts("WHERE ident = ? AND scope = ?", (ident_of("f", id), self._scope))
        return found[0] if found else None

    def cited(self, id: str) -> tuple[int, ...]:
        """The log positions of the episodes that a fact rests on."""
        rows = self._db.rows(
            "SELECT c.seq FROM facts f CROSS JOIN citations c ON c.item = f.id AND c.decision = 0 "
            "WHERE f.ident = ? AND f.scope = ? ORDER BY c.seq",
            (ident_of("f", id), self._scope),
        )
        return tuple(seq for (seq,) in rows)

    def learned_at(self) -> dict[str, datetime]:
        """When each fact was first stated to us, which may be long after it was said."""
        rows = self._db.rows(
            "SELECT f.ident, d.created_at FROM facts f CROSS JOIN decisions d ON d.seq = f.decision WHERE f.scope = ?",
            (self._scope,),
        )
        return {id_of("f", ident): moment(created_at) for ident, created_at in rows}

    def last_decision(self, ids: Iterable[str]) -> int:
        """The position of the last decision that stated one of these facts."""
        last: int | None = self._db.row(
            "SELECT max(decision) FROM facts WHERE scope = ? AND ident IN (SELECT value FROM json_each(?))",
            (self._scope, json.dumps([ident_of("f", id) for id in ids])),
        )
        return last or 0

    def keys_of(self, id: str) -> tuple[int, int] | None:
        """The slot and the statement of a fact."""
        found: tuple[int, int] | None = self._db.row(
            "SELECT slot, statement FROM facts WHERE ident = ? AND scope = ?", (ident_of("f", id), self._scope)
        )
        return found

    def _facts(self, rest: str, values: tuple[Any, ...]) -> list[Feature]:
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM facts CROSS JOIN texts ON position = decision {rest}", values)
        cited: dict[int, list[str]] = {}
        for item, ident in self._db.rows(
            "SELECT c.item, e.ident FROM json_each(?) j CROSS JOIN citations c ON c.item = j.value "
            "CROSS JOIN episodes e ON e.seq = c.seq ORDER BY c.seq",
            (json.dumps([row[0] for row in rows]),),
        ):
            cited.setdefault(item, []).append(id_of("e", ident))
        idents = {row[0]: row[2] for row in rows}
        return [_feature(row, cited.get(row[0], []), idents) for row in rows]


def _feature(row: Sequence[Any], cited: list[str], idents: dict[int, int]) -> Feature:
    _, _, ident, importance, confidence, valid_from, valid_to, superseded_by, verified_at, source, body = row
    command = json.loads(body)
    return Feature(
        id=id_of("f", ident),
        category=command["category"],
        tag=command["tag"],
        name=command["feature"],
        value=command["value"],
        importance=importance,
        confidence=confidence,
        entities=tuple(command.get("entities", ())),
        citations=tuple(cited),
        valid_from=moment(valid_from),
        valid_to=None if valid_to is None else moment(valid_to),
        superseded_by=id_of("f", idents[superseded_by]) if superseded_by in idents else "",
        verified_at=None if verified_at is None else moment(verified_at),
        source=source,
    )
