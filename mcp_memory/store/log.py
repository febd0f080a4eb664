"""The episodes of one scope: the part of the log that says what was said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from mcp_memory import fields
from mcp_memory.store.conditions import COLUMNS
from mcp_memory.store.database import Connection
from mcp_memory.store.decisions import Decisions
from mcp_memory.store.keys import Keys, id_of, ident_of, new_ident
from mcp_memory.store.selecting import Selecting
from mcp_memory.store.texts import Texts
from mcp_memory.store.times import micros, moment
from mcp_memory.types import (
    DEFAULT_IMPORTANCE,
    SILENCE,
    UNCLASSIFIED,
    Episode,
    EpisodeClass,
    Message,
    Selection,
    Sighting,
    Stored,
)

REPEAT_WITHIN = timedelta(minutes=10)
"""An unstamped utterance said again within this time, with nobody else speaking between, is the same one."""

_COLUMNS = "seq, ident, role, kind, occurred_at, created_at, expires_at, importance, learn, class, body"
_TEXTS = "CROSS JOIN texts ON position = seq"


class Log:
    def __init__(
        self, connection: Connection, texts: Texts, keys: Keys, decisions: Decisions, scope: int, now: datetime
    ) -> None:
        self._db = connection
        self._texts = texts
        self._keys = keys
        self._decisions = decisions
        self._scope = scope
        self._now = now
        self._seen: dict[
            int, Episode
        ] = {}  # read or written in this transaction: the views follow what was just appended

    # ---- writing

    def append(self, messages: Sequence[Message]) -> list[Stored]:
        """Append what was said, in order. The same utterance sent again is the episode that is already there; inside
        one call nothing is a repetition."""
        before = self.position()
        keyed = [(message, self._utterance(message)) for message in messages]
        known = self._known([key for _, key in keyed])
        repeated = {
            i: seq
            for i, (message, key) in enumerate(keyed)
            if key in known and (seq := self._repeated(message, key, before))
        }
        there = {episode.seq: episode for episode in self.at(set(repeated.values()))}
        added = iter(self._insert([entry for i, entry in enumerate(keyed) if i not in repeated]))
        return [
            Stored(there[repeated[i]], duplicate=True) if i in repeated else Stored(next(added), duplicate=False)
            for i in range(len(keyed))
        ]

    def _insert(
        self, messages: Sequence[tuple[Message, int]], ident: int | None = None, created_at: datetime | None = None
    ) -> list[Episode]:
        """Write episodes, given with the keys of their utterances. `ident` and `created_at` are for a single one that
        was written elsewhere before."""
        if not messages:
            return []
        entries = []
        for seq, (message, utterance) in zip(self._texts.positions(len(messages)), messages, strict=True):
            number = new_ident() if ident is None else ident
            entries.append((self._episode(seq, message, id_of("e", number), created_at), message, utterance, number))
        self._texts.put((episode.seq, _body(episode)) for episode, *_ in entries)
        self._db.executemany(
            "INSERT INTO episodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            [
                (
                    episode.seq,
                    self._scope,
                    number,
                    self._keys.often("session", episode.session_id),
                    self._keys.often("agent", episode.agent_id),
                    episode.role,
                    episode.kind,
                    micros(episode.occurred_at),
                    micros(episode.created_at),
                    None if episode.expires_at is None else micros(episode.expires_at),
                    utterance,
                    self._voice(message),
                    episode.importance,
                    episode.learn,
                    message.occurred_at is not None,
                    len(episode.content),
                    episode.category,
                )
                for episode, message, utterance, number in entries
            ],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)",
            [label for episode, *_ in entries for label in self._labels(episode)],
        )
        self._seen |= {episode.seq: episode for episode, *_ in entries}
        return [episode for episode, *_ in entries]

    def _episode(self, seq: int, message: Message, id: str, created_at: datetime | None) -> Episode:
        return Episode(
            id=id,
            seq=seq,
            content=message.content,
            role=message.role,
            speaker=message.speaker,
            produced_for=message.produced_for,
            agent_id=message.agent_id,
            session_id=message.session_id,
            kind=message.kind,
            blocks=message.blocks,
            occurred_at=message.occurred_at or self._now,
            created_at=created_at or self._now,
            importance=message.importance,
            category=message.category,
            tags=message.tags,
            entities=message.entities,
            metadata=message.metadata,
            expires_at=message.expires_at,
            learn=message.learn,
        )

    def _labels(self, episode: Episode) -> list[tuple[int, int, int, int]]:
        return [
            (self._scope, self._keys.often("field", name), self._keys.often("value", value), episode.seq)
            for name, value in fields.labels(episode)
            if name not in COLUMNS
        ]

    def restore(self, message: Message, id: str, created_at: datetime) -> Stored | None:
        """Append an exported episode under its own id, or, where another scope holds that, under one that follows from it;
        None where it was forgotten here."""
        ident = ident_of("e", id)
        ident = new_ident() if ident is None else ident
        copied = self._keys.of("copy", str(self._scope), id) & (2**50 - 1)
        if self.forgotten(ident) or self.forgotten(copied):
            return None
        for there in (id, id_of("e", copied)):
            if episode := self.episode(there):
                return Stored(episode, duplicate=True)
        taken = self._db.row("SELECT 1 FROM episodes WHERE ident = ?", (ident,))
        (episode,) = self._insert([(message, self._utterance(message))], copied if taken else ident, created_at)
        return Stored(episode, duplicate=False)

    def classify(self, seq: int, category: EpisodeClass, importance: float) -> None:
        """Note what an episode is and how much it matters, unless that was said or found before."""
        for episode in self.at([seq]):
            if episode.category != UNCLASSIFIED:
                continue
            if episode.importance != DEFAULT_IMPORTANCE:
                importance = episode.importance
            self._db.execute("UPDATE episodes SET class = ?, importance = ? WHERE seq = ?", (category, importance, seq))
            self._seen[seq] = replace(episode, category=category, importance=importance)

    def count_access(self, seqs: Sequence[int]) -> None:
        """Note that these episodes were found once more."""
        self._db.execute(
            "UPDATE episodes SET accesses = accesses + 1 WHERE scope = ? AND seq IN (SELECT value FROM json_each(?))",
            (self._scope, json.dumps(seqs)),
        )

    def _known(self, utterances: Sequence[int]) -> set[int]:
        """Those of these keys that some episode has."""
        rows = self._db.rows(
            "SELECT DISTINCT j.value FROM json_each(?) j CROSS JOIN episodes INDEXED BY episodes_utterance "
            "ON utterance = j.value",
            (json.dumps(utterances),),
        )
        return {key for (key,) in rows}

    def _repeated(self, message: Message, utterance: int, before: int) -> int | None:
        """The position of the episode that this message says again."""
        if message.occurred_at is not None:
            where, moment = "occurred_at = ? AND stamped", micros(message.occurred_at)
        else:
            where, moment = "created_at > ? AND NOT stamped", micros(self._now - REPEAT_WITHIN)
        seq: int | None = self._db.row(
            f"SELECT max(seq) FROM episodes INDEXED BY episodes_utterance WHERE utterance = ? AND scope = ? AND {where}",
            (utterance, self._scope, moment),
        )
        if seq is None:
            return None
        if message.occurred_at is None and self._db.row(
            "SELECT 1 FROM episodes WHERE scope = ? AND session = ? AND voice <> ? AND seq > ? AND seq <= ? LIMIT 1",
            (self._scope, self._keys.often("session", message.session_id), self._voice(message), seq, before),
        ):
            return None
        return seq

    def _utterance(self, message: Message) -> int:
        return self._keys.of(
            "utterance", str(self._scope), message.session_id, message.role, message.speaker, message.agent_id,
            message.kind, message.content,
        )  # fmt: skip

    def _voice(self, message: Message) -> int:
        return self._keys.often("voice", message.role, message.speaker)

    def forgotten(self, ident: int) -> bool:
        return bool(self._decisions.entombed(self._keys.of("episode", str(ident))))

    def remove(self, seqs: Sequence[int]) -> None:
        """Take episodes out for good; leaves their tombstones."""
        episodes = self.at(seqs)
        seqs = [episode.seq for episode in episodes]
        idents = [(ident_of("e", episode.id),) for episode in episodes]
        self._decisions.entomb(self._keys.of("episode", str(ident)) for (ident,) in idents)
        self._db.executemany(
            "DELETE FROM labels WHERE scope = ? AND field = ? AND value = ? AND seq = ?",
            [label for episode in episodes for label in self._labels(episode)],
        )
        self._db.executemany("DELETE FROM episodes WHERE seq = ?", [(seq,) for seq in seqs])
        self._texts.erase(seqs)
        self._seen.clear()

    # ---- reading

    def position(self) -> int:
        """The last position given out, over all scopes."""
        return self._texts.last()

    def last(self) -> int:
        """The position of the scope's last episode; 0 where it has none."""
        return self._db.row("SELECT max(seq) FROM episodes WHERE scope = ?", (self._scope,)) or 0

    def count(self, after: int = 0) -> int:
        counted: int = self._db.row("SELECT count(*) FROM episodes WHERE scope = ? AND seq > ?", (self._scope, after))
        return counted

    def waiting(self, after: int, limit: int) -> tuple[int, datetime | None]:
        """How many episodes come after a position, counted up to `limit`, and when the first of them was stored."""
        count, first = self._db.row(
            "SELECT count(*), min(created_at) FROM "
            "(SELECT created_at FROM episodes WHERE scope = ? AND seq > ? ORDER BY seq LIMIT ?)",
            (self._scope, after, limit),
        )
        return count, None if first is None else moment(first)

    def extent(self) -> tuple[datetime | None, datetime | None, int]:
        """When the first and the last episode of the scope were said, and about how many characters all have."""
        first, last, characters = self._db.row(
            "SELECT min(occurred_at), max(occurred_at), sum(length) FROM episodes WHERE scope = ?",
            (self._scope,),
        )
        return moment(first) if first is not None else None, moment(last) if last is not None else None, characters or 0

    def after(self, position: int, limit: int) -> list[Episode]:
        """The next episodes of the scope, in the order of the log."""
        return self.at(self.positions(position, limit))

    def positions(self, after: int, limit: int) -> list[int]:
        """Where the next episodes of the scope stand."""
        rows = self._db.rows(
            "SELECT seq FROM episodes WHERE scope = ? AND seq > ? ORDER BY seq LIMIT ?", (self._scope, after, limit)
        )
        return [seq for (seq,) in rows]

    def before(self, seq: int, limit: int) -> list[int]:
        """The last positions of the scope before this one, the latest first."""
        rows = self._db.rows(
            "SELECT seq FROM episodes WHERE scope = ? AND seq < ? ORDER BY seq DESC LIMIT ?", (self._scope, seq, limit)
        )
        return [seq for (seq,) in rows]

    def at(self, seqs: Iterable[int]) -> list[Episode]:
        """The episodes at these positions that exist, in the order of the log."""
        wanted = sorted(set(seqs))
        if missing := [seq for seq in wanted if seq not in self._seen]:
            rows = self._db.rows(
                f"SELECT {_COLUMNS} FROM json_each(?) j CROSS JOIN episodes ON seq = j.value {_TEXTS} WHERE scope = ?",
                (json.dumps(missing), self._scope),
            )
            self._seen |= {row[0]: _episode(row) for row in rows}
        return [self._seen[seq] for seq in wanted if seq in self._seen]

    def sightings(self, seqs: Sequence[int]) -> dict[int, Sighting]:
        """Who said each of these, and when."""
        rows = self._db.rows(
            "SELECT seq, voice, role, occurred_at, importance, accesses FROM json_each(?) j "
            "CROSS JOIN episodes ON seq = j.value WHERE scope = ?",
            (json.dumps(seqs), self._scope),
        )
        one_of_each = {voice: seq for seq, voice, *_ in rows}  # voices are few; their names stand in the texts
        speakers = {episode.seq: episode.speaker for episode in self.at(one_of_each.values())}
        names = {voice: speakers[seq] for voice, seq in one_of_each.items()}
        return {
            seq: Sighting(names[voice], role, occurred_at / 1e6, importance, accesses)
            for seq, voice, role, occurred_at, importance, accesses in rows
        }

    def speakers(self, names: Sequence[str]) -> list[str]:
        """Those of these names under which somebody speaks in the scope."""
        hashed = {self._keys.often("value", f"s:{name}"): name for name in names}
        rows = self._db.rows(
            "SELECT j.value FROM json_each(?) j WHERE EXISTS "
            "(SELECT 1 FROM labels WHERE scope = ? AND field = ? AND value = j.value)",
            (json.dumps(list(hashed)), self._scope, self._keys.often("field", "speaker")),
        )
        return [hashed[value] for (value,) in rows]

    def episode(self, id: str) -> Episode | None:
        ident = ident_of("e", id)
        found = self._episodes("WHERE ident = ? AND scope = ?", (ident, self._scope)) if ident is not None else []
        return found[0] if found else None

    def session(self, session_id: str, *, kinds: Sequence[str], newest: int) -> list[Episode]:
        """The newest episodes of a session that have not expired, oldest first."""
        rows = self._db.rows(
            f"SELECT {_COLUMNS} FROM episodes {_TEXTS} WHERE scope = ? AND session = ? "
            "AND (expires_at IS NULL OR expires_at > ?) AND kind IN (SELECT value FROM json_each(?)) "
            "ORDER BY occurred_at DESC, seq DESC LIMIT ?",
            (self._scope, self._keys.often("session", session_id), micros(self._now), json.dumps(list(kinds)), newest),
        )
        return [_episode(row) for row in reversed(rows)]

    def expires(self, session_id: str | None = None) -> bool:
        """Whether anything in the scope, or in one session of it, has a time to live."""
        condition, values = "scope = ?", [self._scope]
        if session_id is not None:
            condition += " AND session = ?"
            values.append(self._keys.often("session", session_id))
        query = f"SELECT 1 FROM episodes WHERE {condition} AND expires_at IS NOT NULL LIMIT 1"
        return bool(self._db.row(query, tuple(values)))

    def sessions(self) -> list[tuple[str, int]]:
        """The scope's sessions with their number of episodes, the latest first."""
        rows = self._db.rows(
            """SELECT CAST(body AS TEXT) ->> '$.session_id', n FROM
               (SELECT max(seq) AS last, count(*) AS n FROM episodes WHERE scope = ? GROUP BY session)
               CROSS JOIN texts ON position = last ORDER BY last DESC""",
            (self._scope,),
        )
        return [(session_id or "", count) for session_id, count in rows]

    def newest(
        self, selection: Selection, limit: int, upto: int, before: tuple[datetime, int] | None = None
    ) -> list[Episode]:
        """What a selection holds up to a position of the log, the latest said first; `before` is the time and position
        of the one to go on from."""
        condition, values = self._condition(selection)
        condition, values = f"{condition} AND seq <= ?", (*values, upto)
        if before is not None:
            condition, values = f"{condition} AND (occurred_at, seq) < (?, ?)", (*values, micros(before[0]), before[1])
        return self._episodes(f"WHERE {condition} ORDER BY occurred_at DESC, seq DESC LIMIT ?", (*values, limit))

    def neighbours(
        self, seqs: Iterable[int], upto: int | None = None, within: timedelta = timedelta.max
    ) -> tuple[dict[int, int], dict[int, int]]:
        """What stands directly before and after each of these in its session, as of a position of the log: two mappings
        of positions. What was said longer apart than `within` is left out."""
        listed = list(seqs)
        return self.preceding(listed, upto, within), self.following(listed, upto, within)

    def preceding(
        self, seqs: Iterable[int], upto: int | None = None, within: timedelta = timedelta.max
    ) -> dict[int, int]:
        """What stands directly before each of these in its session, if anything does."""
        return self._beside(seqs, "<", "DESC", upto, within)

    def following(
        self, seqs: Iterable[int], upto: int | None = None, within: timedelta = timedelta.max
    ) -> dict[int, int]:
        """What stands directly after each of these in its session, if anything does."""
        return self._beside(seqs, ">", "ASC", upto, within)

    def _beside(
        self, seqs: Iterable[int], side: str, order: str, upto: int | None, within: timedelta
    ) -> dict[int, int]:
        return dict(
            self._db.rows(
                f"""SELECT e.seq, b.seq FROM json_each(:seqs) j CROSS JOIN episodes e ON e.seq = j.value
                CROSS JOIN episodes b ON b.seq = (
                  SELECT seq FROM episodes n WHERE n.scope = e.scope AND n.session = e.session
                  AND (n.occurred_at, n.seq) {side} (e.occurred_at, e.seq) AND n.seq <= :upto
                  ORDER BY n.occurred_at {order}, n.seq {order} LIMIT 1)
                WHERE e.scope = :scope
                AND abs(e.occurred_at - b.occurred_at) <= CASE e.session WHEN :unnamed THEN :silence ELSE :within END""",
                {
                    "seqs": json.dumps(list(seqs)),
                    "scope": self._scope,
                    "unnamed": self._keys.often("session", ""),
                    "silence": min(SILENCE, within) // timedelta(microseconds=1),
                    "within": min(within // timedelta(microseconds=1), 2**62),
                    "upto": 2**62 if upto is None else upto,
                },
            )
        )

    # ---- selecting

    def matching(self, selection: Selection) -> list[int] | None:
        """The positions that a selection holds; None where it is everything."""
        if not selection and not self.expires():
            return None
        return self.selected(selection)

    def selected(self, selection: Selection, *, expired: bool = False) -> list[int]:
        """The positions that a selection holds; with `expired` those past their time to live too."""
        condition, values = self._condition(selection, expired=expired)
        return [row[0] for row in self._db.rows(f"SELECT seq FROM episodes WHERE {condition} ORDER BY seq", values)]

    def _condition(self, selection: Selection, *, expired: bool = False) -> tuple[str, tuple[Any, ...]]:
        return Selecting(self._db, self._keys, self._scope, self._now).condition(selection, expired=expired)

    def _episodes(self, rest: str, values: tuple[Any, ...]) -> list[Episode]:
        return [_episode(row) for row in self._db.rows(f"SELECT {_COLUMNS} FROM episodes {_TEXTS} {rest}", values)]


def _body(episode: Episode) -> dict[str, Any]:
    """The part of an episode that is text, or may be; empty values are left out."""
    body: dict[str, Any] = {
        "content": episode.content,
        "speaker": episode.speaker,
        "session_id": episode.session_id,
        "agent_id": episode.agent_id,
        "produced_for": episode.produced_for,
        "tags": episode.tags,
        "entities": episode.entities,
        "blocks": episode.blocks,
        "metadata": episode.metadata,
    }
    return {name: value for name, value in body.items() if value}


def _episode(row: Sequence[Any]) -> Episode:
    seq, ident, role, kind, occurred_at, created_at, expires_at, importance, learn, category, body = row
    more: Mapping[str, Any] = json.loads(body)
    return Episode(
        id=id_of("e", ident),
        seq=seq,
        content=more["content"],
        role=role,
        speaker=more.get("speaker", ""),
        produced_for=more.get("produced_for", ""),
        agent_id=more.get("agent_id", ""),
        session_id=more.get("session_id", ""),
        kind=kind,
        blocks=tuple(more.get("blocks", ())),
        occurred_at=moment(occurred_at),
        created_at=moment(created_at),
        importance=importance,
        category=category,
        tags=tuple(more.get("tags", ())),
        entities=tuple(more.get("entities", ())),
        metadata=more.get("metadata", {}),
        expires_at=None if expires_at is None else moment(expires_at),
        learn=bool(learn),
    )


Clock = Callable[[], datetime]
