"""The facts of one scope: what the profile holds now, and what it held before."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys, id_of, ident_of
from mcp_memory.store.times import micros, moment
from mcp_memory.types import AddFeature, DeleteFeature, Fact, Feature

_COLUMNS = "id, decision, ident, importance, confidence, valid_from, valid_to, superseded_by, verified_at, source, body"


class Facts:
    def __init__(self, connection: Connection, keys: Keys, scope: int) -> None:
        self._db = connection
        self._keys = keys
        self._scope = scope

    # ---- keys

    def slot(self, command: AddFeature | DeleteFeature) -> int:
        return self._keys.of("slot", command.category, command.tag, _folded(command.feature))

    def statement(self, command: AddFeature) -> int:
        """What two commands share that say the same, and the tombstone of a forgotten fact stands for."""
        return self._keys.of(
            "statement", command.category, command.tag, _folded(command.feature), _folded(command.value)
        )

    # ---- writing

    def insert(self, command: AddFeature, source: str, decision: int, valid_from: datetime) -> None:
        """Write a fact. Its id follows from what is said and when, so that a replay gives the same ids."""
        statement = self.statement(command)
        ident = self._keys.of("fact", str(self._scope), str(statement), str(micros(valid_from))) & (2**50 - 1)
        self._db.execute(
            """INSERT INTO facts(ident, scope, slot, statement, source, decision, importance, confidence, valid_from,
               verified_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ident) DO UPDATE
               SET decision = excluded.decision""",
            (
                ident,
                self._scope,
                self.slot(command),
                statement,
                source,
                decision,
                command.importance,
                command.confidence,
                micros(valid_from),
                micros(valid_from),
            ),
        )
        self.cite(self._db.row("SELECT id FROM facts WHERE ident = ?", (ident,)), command.citations)

    def cite(self, row: int, seqs: Sequence[int]) -> None:
        """Let a fact, and the decision that holds its text, rest on these episodes too."""
        decision = self._db.row("SELECT decision FROM facts WHERE id = ?", (row,))
        self._db.executemany(
            "INSERT OR IGNORE INTO citations VALUES (?, ?, ?)",
            [(item, about, seq) for seq in seqs for item, about in ((row, 0), (0, decision))],
        )

    def strengthen(self, row: int, command: AddFeature, said_at: datetime) -> None:
        """Said again: the higher importance, a confidence nearer to 1, the earliest beginning, the latest sighting."""
        self._db.execute(
            "UPDATE facts SET importance = max(importance, ?), confidence = 1 - (1 - confidence) * 0.8, "
            "valid_from = min(valid_from, ?), verified_at = max(verified_at, ?) WHERE id = ?",
            (command.importance, micros(said_at), micros(said_at), row),
        )
        self.cite(row, command.citations)

    def end(self, row: int, at: datetime | None, by: int | None) -> None:
        """Let a fact end at a moment, superseded by another or not; None lets it stand."""
        self._db.execute(
            "UPDATE facts SET valid_to = ?, superseded_by = ? WHERE id = ?",
            (None if at is None else micros(at), by, row),
        )

    def remove(self, rows: Sequence[int]) -> list[int]:
        """Take facts out for good; the positions of their decisions."""
        decisions = self._db.rows(
            "SELECT f.decision FROM json_each(?) j CROSS JOIN facts f ON f.id = j.value", (json.dumps(rows),)
        )
        self._db.executemany("DELETE FROM citations WHERE item = ? AND decision = 0", [(row,) for row in rows])
        self._db.executemany("DELETE FROM facts WHERE id = ?", [(row,) for row in rows])
        return [seq for (seq,) in decisions]

    def remove_unsupported(self, seqs: Sequence[int]) -> None:
        """Take out the facts that rest on nothing but these episodes. Others lose the citation only."""
        rows = self._db.rows(
            """SELECT DISTINCT c.item FROM json_each(?) j CROSS JOIN citations c ON c.seq = j.value AND c.item > 0
               WHERE NOT EXISTS (SELECT 1 FROM citations o WHERE o.item = c.item
                                 AND o.seq NOT IN (SELECT value FROM json_each(?)))""",
            (json.dumps(seqs),) * 2,
        )
        self.remove([row for (row,) in rows])
        self._db.execute(
            "DELETE FROM citations WHERE item > 0 AND seq IN (SELECT value FROM json_each(?))", (json.dumps(seqs),)
        )

    def clear(self, source: str = "") -> None:
        rows = self._db.rows("SELECT id FROM facts WHERE scope = ? AND ? IN ('', source)", (self._scope, source))
        self.remove([row for (row,) in rows])

    # ---- reading

    def in_slot(self, slot: int) -> list[Fact]:
        """The facts of a slot, the earliest first."""
        return self._facts("WHERE scope = ? AND slot = ? ORDER BY valid_from, id", (self._scope, slot))

    def saying(self, statement: int, slot: int) -> list[Fact]:
        return self._facts(
            "WHERE scope = ? AND slot = ? AND statement = ? ORDER BY valid_from, id", (self._scope, slot, statement)
        )

    def same_statement(self, id: str) -> list[Fact]:
        """Every fact, current or ended, that says what this one says."""
        return self._facts(
            "WHERE scope = ? AND (slot, statement) = (SELECT slot, statement FROM facts WHERE ident = ? AND scope = ?)",
            (self._scope, ident_of("f", id), self._scope),
        )

    def all(self) -> list[Fact]:
        """Every fact of the scope, current or not, the most important first, then the latest."""
        return self._facts("WHERE scope = ? ORDER BY importance DESC, valid_from DESC, id DESC", (self._scope,))

    def decided(self, decisions: Iterable[int]) -> list[Fact]:
        """The facts that these decisions stated."""
        return self._facts(
            "WHERE scope = ? AND decision IN (SELECT value FROM json_each(?)) ORDER BY id",
            (self._scope, json.dumps(list(decisions))),
        )

    def living(self, now: datetime) -> list[Fact]:
        """`all`, without the facts of which every citation is past its time to live."""
        return self._facts(
            """WHERE scope = ? AND (NOT EXISTS (SELECT 1 FROM citations c WHERE c.item = id) OR EXISTS
                 (SELECT 1 FROM citations c CROSS JOIN episodes e ON e.seq = c.seq
                  WHERE c.item = id AND (e.expires_at IS NULL OR e.expires_at > ?)))
               ORDER BY importance DESC, valid_from DESC, id DESC""",
            (self._scope, micros(now)),
        )

    def count(self) -> int:
        counted: int = self._db.row("SELECT count(*) FROM facts WHERE scope = ?", (self._scope,))
        return counted

    def by_id(self, id: str) -> Fact | None:
        ident = ident_of("f", id)
        found = self._facts("WHERE ident = ? AND scope = ?", (ident, self._scope)) if ident is not None else []
        return found[0] if found else None

    def keys_of(self, row: int) -> tuple[int, int]:
        """The slot and the statement of a fact."""
        slot, statement = self._db.row("SELECT slot, statement FROM facts WHERE id = ?", (row,))
        return slot, statement

    def _facts(self, rest: str, values: tuple[Any, ...]) -> list[Fact]:
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM facts CROSS JOIN texts ON position = decision {rest}", values)
        cited: dict[int, list[str]] = {}
        for item, ident in self._db.rows(
            "SELECT c.item, e.ident FROM json_each(?) j CROSS JOIN citations c ON c.item = j.value "
            "CROSS JOIN episodes e ON e.seq = c.seq ORDER BY c.seq",
            (json.dumps([row[0] for row in rows]),),
        ):
            cited.setdefault(item, []).append(id_of("e", ident))
        idents = {row[0]: row[2] for row in rows}
        return [_fact(row, cited.get(row[0], []), idents) for row in rows]


def _fact(row: Sequence[Any], cited: list[str], idents: dict[int, int]) -> Fact:
    number, decision, ident, importance, confidence, valid_from, valid_to, superseded_by, verified_at, source, body = (
        row
    )
    command = json.loads(body)
    feature = Feature(
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
    return Fact(number, decision, command["single"], feature)


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
