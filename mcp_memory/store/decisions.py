"""The decisions of one scope, and the tombstones: the part of the log that says what was made of what was said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys
from mcp_memory.store.texts import Texts
from mcp_memory.store.times import micros, moment
from mcp_memory.text import folded
from mcp_memory.types import CONSOLIDATION, AddFeature, Command, Decision, DeleteFeature, Undo

_COLUMNS = "seq, source, created_at, said_at, slot, body"
_TEXTS = "CROSS JOIN texts ON position = seq"


class Decisions:
    def __init__(self, connection: Connection, texts: Texts, keys: Keys, scope: int, now: datetime) -> None:
        self._db = connection
        self._texts = texts
        self._keys = keys
        self._scope = scope
        self._now = now

    # ---- keys

    def slot(self, command: Command) -> int:
        return self._keys.of("slot", command.category, command.tag, folded(command.feature))

    def statement(self, command: Command) -> int:
        """What two commands share that say the same, and the tombstone of a forgotten fact stands for."""
        return self._keys.of("statement", command.category, command.tag, folded(command.feature), folded(command.value))

    def mark(self, text: str) -> int:
        """What stands for a text in this file only."""
        return self._keys.of("mark", text)

    def key(self, source: str, command: Command, said_at: datetime) -> int:
        """What stands for a decision of this source at that time, also where it is made again."""
        kind = "delete" if isinstance(command, DeleteFeature) else "add"
        return self._keys.of("decision", source, kind, str(self.statement(command)), str(moment(micros(said_at))))

    # ---- writing

    def append(self, source: str, command: Command | Undo, slot: int, said_at: datetime) -> int:
        """Append a decision about a slot of the profile; its position."""
        (seq,) = self._texts.positions(1)
        body: dict[str, Any]
        if isinstance(command, Undo):
            citations: tuple[int, ...] = ()
            body = {"command": "undo", **asdict(command)}
        else:
            citations = command.citations
            body = {"command": "delete" if isinstance(command, DeleteFeature) else "add", **asdict(command)}
            del body["citations"]
        self._texts.put([(seq, body)])
        self._db.execute(
            "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?)",
            (seq, self._scope, source, micros(self._now), slot, micros(said_at)),
        )
        self._db.executemany("INSERT OR IGNORE INTO citations VALUES (0, ?, ?)", [(seq, cited) for cited in citations])
        return seq

    def remove(self, seqs: Sequence[int]) -> list[int]:
        """Take decisions out for good; the slots that they were about."""
        slots = self._db.rows(
            "SELECT DISTINCT d.slot FROM json_each(?) j CROSS JOIN decisions d ON d.seq = j.value", (json.dumps(seqs),)
        )
        self._db.executemany("DELETE FROM citations WHERE item = 0 AND decision = ?", [(seq,) for seq in seqs])
        self._db.executemany("DELETE FROM decisions WHERE seq = ?", [(seq,) for seq in seqs])
        self._texts.erase(seqs)
        return [slot for (slot,) in slots]

    def remove_unsupported(self, seqs: Sequence[int]) -> list[int]:
        """Take out the decisions that rest on nothing but these episodes, and from others the citation; the slots of
        both. What consolidation decided put several facts together, so that it rests on all it cites."""
        listed = (json.dumps(seqs),)
        cited = self._db.rows(
            """SELECT DISTINCT c.decision, d.slot FROM json_each(?) j
               CROSS JOIN citations c ON c.seq = j.value AND c.item = 0
               CROSS JOIN decisions d ON d.seq = c.decision WHERE d.scope = ?""",
            (*listed, self._scope),
        )
        orphaned = self._db.rows(
            """SELECT j.value FROM json_each(?) j CROSS JOIN decisions d ON d.seq = j.value
               WHERE d.source = ? OR NOT EXISTS (SELECT 1 FROM citations o
               WHERE o.item = 0 AND o.decision = j.value AND o.seq NOT IN (SELECT value FROM json_each(?)))""",
            (json.dumps([seq for seq, _ in cited]), CONSOLIDATION, *listed),
        )
        self.remove([seq for (seq,) in orphaned])
        self._db.execute("DELETE FROM citations WHERE item = 0 AND seq IN (SELECT value FROM json_each(?))", listed)
        return sorted({slot for _, slot in cited})

    def entomb(self, keys: Iterable[int]) -> None:
        """Remember that what these keys stand for was forgotten, as of now."""
        (seq,) = self._texts.positions(1)
        self._db.executemany(
            "INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?)", [(seq, self._scope, key) for key in keys]
        )

    def entombed(self, key: int) -> int:
        """The position up to which what this key stands for was forgotten; 0 where it never was."""
        return self._db.row("SELECT seq FROM tombstones WHERE scope = ? AND key = ?", (self._scope, key)) or 0

    # ---- reading

    def about(self, slot: int) -> list[Decision]:
        """What was decided about a slot, in the order in which it was said. What consolidation made of something comes
        after it, also where a view has been derived again since."""
        return self._read(f"AND slot = ? ORDER BY said_at, source = '{CONSOLIDATION}', seq", slot)

    def after(self, position: int = 0) -> list[Decision]:
        """What was decided after a position of the log, in the order of the log."""
        return self._read("AND seq > ? ORDER BY seq", position)

    def of(self, source: str) -> list[int]:
        """The positions of what a view, or a hand, decided."""
        rows = self._db.rows(
            "SELECT seq FROM decisions WHERE scope = ? AND source = ? ORDER BY seq", (self._scope, source)
        )
        return [seq for (seq,) in rows]

    def slots(self) -> list[int]:
        """Every slot that something was ever decided about."""
        rows = self._db.rows("SELECT DISTINCT slot FROM decisions WHERE scope = ?", (self._scope,))
        return [slot for (slot,) in rows]

    def _read(self, rest: str, value: int) -> list[Decision]:
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM decisions {_TEXTS} WHERE scope = ? {rest}", (self._scope, value))
        cited: dict[int, list[int]] = {}
        for decision, seq in self._db.rows(
            "SELECT c.decision, c.seq FROM json_each(?) j CROSS JOIN citations c ON c.item = 0 AND c.decision = j.value "
            "ORDER BY c.seq",
            (json.dumps([row[0] for row in rows]),),
        ):
            cited.setdefault(decision, []).append(seq)
        return [self._decision(tuple(cited.get(row[0], ())), *row) for row in rows]

    def _decision(
        self, citations: tuple[int, ...], seq: int, source: str, created_at: int, said_at: int, slot: int, text: bytes
    ) -> Decision:
        body = json.loads(text)
        kind = body.pop("command")
        command: Command | Undo
        if kind == "undo":
            command, statement, key = Undo(**body), 0, self._keys.of("undo", str(seq))
        else:
            command = (AddFeature if kind == "add" else DeleteFeature)(**body, citations=citations)
            statement = self.statement(command)
            key = self.key(source, command, moment(said_at))
        return Decision(seq, source, moment(created_at), moment(said_at), slot, command, statement, key)
