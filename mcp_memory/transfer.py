"""A memory as JSON Lines, and back: what was said, and what was decided by hand or by a model.

The first line says what the file is. Each other one is an episode, with all its fields, or a decision; one with a `user` is
that user's. What rules find is left out: it is derived again. Ids and times are kept, so that the same file read twice
changes nothing, and what was forgotten here stays forgotten.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp_memory import episodic, profile
from mcp_memory.errors import InvalidInput
from mcp_memory.protocols import Tx
from mcp_memory.store.keys import ident_of
from mcp_memory.types import (
    CLASSES,
    KINDS,
    ROLES,
    AddFeature,
    Command,
    Decision,
    DeleteFeature,
    Episode,
    Lag,
    Message,
    Undo,
)

FORMAT = "mcp-memory"
VERSION = 1
HEADER = {"format": FORMAT, "version": VERSION}

BATCH = 500
"""Episodes that one transaction takes in."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spoken:
    """An episode as it comes from elsewhere."""

    id: str
    created_at: datetime
    message: Message


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision as it comes from elsewhere; `citations` are ids of episodes. One that is `undone` counts as never made."""

    source: str
    created_at: datetime
    command: Command
    citations: tuple[str, ...]
    said_at: datetime | None
    undone: bool


@dataclass(frozen=True, slots=True)
class Imported:
    """How many episodes were `stored`, `known` already, or `forgotten` here; how many `decisions` came along."""

    stored: int
    known: int
    forgotten: int
    decisions: int
    lags: tuple[Lag, ...]


# ---- out


def episode(said: Episode) -> Record:
    return {"type": "episode", **{name: _plain(value) for name, value in asdict(said).items()}}


def decisions(tx: Tx) -> list[Record]:
    """The decisions of a scope that nothing else leads to, and all that were undone."""
    made = tx.decisions.after()
    stands = {one.seq for one in profile.standing(made)}
    return [
        _decision(tx, one, one.command) | ({} if one.seq in stands else {"undone": True})
        for one in made
        if not isinstance(one.command, Undo) and (one.source != profile.RulesView.name or one.seq not in stands)
    ]


def _decision(tx: Tx, made: Decision, command: Command) -> Record:
    stated = asdict(command)
    del stated["citations"]
    return {
        "type": "decision",
        "source": made.source,
        "created_at": _plain(made.created_at),
        "said_at": _plain(made.said_at),
        "command": {"command": "add" if isinstance(command, AddFeature) else "delete", **stated},
        "citations": [cited.id for cited in tx.log.at(command.citations)],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def writing(file: Path) -> Iterator[Callable[[Record], None]]:
    """Gives a function that writes a line. The file appears when all of it is there, and only its owner can read it."""
    part = file.with_name(f"{file.name}.part")
    part.unlink(missing_ok=True)
    try:
        with open(
            part, "x", encoding="utf-8", newline="\n", opener=lambda path, flags: os.open(path, flags, 0o600)
        ) as out:

            def write(record: Record) -> None:
                out.write(json.dumps(record, ensure_ascii=False) + "\n")

            yield write
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


# ---- in


def records(lines: Iterable[bytes]) -> list[Record]:
    """The records of a file, each of them checked. Raises InvalidInput with the number of the first line that is none."""
    found: list[Record] = []
    headed = False
    for number, line in enumerate(lines, 1):
        where = f"line {number}"
        if not line.strip():
            continue
        record = _parsed(line, where)
        if headed:
            entry(record, where)
            found.append(record)
        else:
            _check_header(record, where)
            headed = True
    if not headed:
        raise InvalidInput("line 1: the file is empty; an export begins with a line that says what it is.")
    return found


def _parsed(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line.decode("utf-8-sig"), parse_constant=_refused)
        json.dumps(record, ensure_ascii=False).encode()  # half a character, written as an escape, ends here
    except (ValueError, RecursionError):
        raise InvalidInput(f"{where}: not a line of JSON.") from None
    if not isinstance(record, dict):
        raise InvalidInput(f"{where}: not a JSON object.")
    return record


def _refused(constant: str) -> None:
    raise ValueError(constant)


def _check_header(record: Record, where: str) -> None:
    version = record.get("version")
    if record.get("format") != FORMAT or type(version) is not int or version < 1:
        raise InvalidInput(f"{where}: not an export of mcp-memory; it begins with {json.dumps(HEADER)}.")
    if version > VERSION:
        raise InvalidInput(
            f"{where}: a newer release wrote this file (version {version}; this one reads up to {VERSION}). Upgrade with "
            "`pip install -U mcp-memory`."
        )


def entry(record: Mapping[str, Any], where: str) -> Spoken | Decided:
    """What a record says. Raises InvalidInput, naming the place and the field."""
    fields = {name: value for name, value in record.items() if name not in ("type", "user")}
    if "user" in record:
        _read({"user": record["user"]}, {"user": _NAME}, where)
    match record.get("type"):
        case "episode":
            return _spoken(fields, where)
        case "decision":
            return _decided(fields, where)
        case _:
            raise InvalidInput(f"{where}: type is neither episode nor decision.")


def _spoken(fields: Record, where: str) -> Spoken:
    values = _read(fields, _EPISODE, where, required=("id", "content", "occurred_at", "created_at"))
    id, created_at, _ = values.pop("id"), values.pop("created_at"), values.pop("seq", 0)
    try:
        (message,), _ = episodic.admit([Message(**values)])
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    return Spoken(id, created_at, message)


def _decided(fields: Record, where: str) -> Decided:
    values = _read(fields, _DECISION, where, required=("source", "created_at", "command"))
    command = dict(values["command"])
    kind = command.pop("command", None)
    if kind not in ("add", "delete"):
        raise InvalidInput(f"{where}: command: neither add nor delete.")
    readers = _COMMAND | (_ADD if kind == "add" else {})
    least = ("category", "tag", "feature", *(["value"] if kind == "add" else []))
    stated = _read(command, readers, where, required=least)
    made = AddFeature(**stated) if kind == "add" else DeleteFeature(**stated)
    return Decided(
        source=values["source"],
        created_at=values["created_at"],
        command=made,
        citations=values.get("citations", ()),
        said_at=values.get("said_at"),
        undone=values.get("undone", False),
    )


Reader = tuple[Callable[[Any], Any], str]


def _read(fields: Mapping[str, Any], readers: Mapping[str, Reader], where: str, required: Sequence[str] = ()) -> Record:
    """The values of the fields, each read by its reader; what is empty and not required takes its default."""
    for name in required:
        if fields.get(name) is None:
            raise InvalidInput(f"{where}: {name} is missing.")
    values = {}
    for name, value in fields.items():
        if name not in readers:
            raise InvalidInput(f"{where}: unknown field {name[:40]!r}.")
        read, wanted = readers[name]
        if value is None:
            continue
        try:
            values[name] = read(value)
        except (ValueError, OverflowError):
            raise InvalidInput(f"{where}: {name}: not {wanted}.") from None
    return values


def _checked(kind: type | tuple[type, ...], holds: Callable[[Any], bool] = lambda _: True) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or not holds(value):
            raise ValueError
        return value

    return read


def _listed(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: tuple(read(part) for part in _checked(list)(value))


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(_checked(str)(value))
    if moment.tzinfo is None:
        raise ValueError
    return moment.astimezone(UTC)


def _nameable(name: str) -> bool:
    return len(name) <= 1_000 and not any(unicodedata.category(character) == "Cc" for character in name)


_TEXT: Reader = (_checked(str), "a text")
_NAME: Reader = (_checked(str, _nameable), "a text without control characters, of at most 1,000")
_TIME: Reader = (_moment, "a time with its zone (2026-05-01T14:30:00+00:00)")
_SHARE: Reader = (_checked((int, float), lambda value: 0 <= value <= 1), "a number from 0 to 1")
_FLAG: Reader = (_checked(bool), "true or false")
_TEXTS: Reader = (_listed(_checked(str)), "a list of texts")
_ID: Reader = (_checked(str, lambda id: ident_of("e", id) is not None), "the id of a memory (e and ten characters)")

_EPISODE: dict[str, Reader] = {
    "id": _ID,
    "seq": (_checked(int), "a whole number"),
    "content": _TEXT,
    "role": (_checked(str, lambda role: role in ROLES), f"one of {', '.join(ROLES)}"),
    "speaker": _TEXT,
    "produced_for": _TEXT,
    "agent_id": _NAME,
    "session_id": _NAME,
    "kind": (_checked(str, lambda kind: kind in KINDS), f"one of {', '.join(KINDS)}"),
    "blocks": (_listed(_checked(dict)), "a list of objects"),
    "occurred_at": _TIME,
    "created_at": _TIME,
    "importance": _SHARE,
    "category": (_checked(str, lambda name: name in CLASSES), f"one of {', '.join(CLASSES)}"),
    "tags": _TEXTS,
    "entities": _TEXTS,
    "metadata": (
        _checked(dict, lambda held: all(name and not name.startswith("_") for name in held)),
        "an object whose names begin with a letter",
    ),
    "expires_at": _TIME,
    "learn": _FLAG,
}
_DECISION: dict[str, Reader] = {
    "source": _NAME,
    "created_at": _TIME,
    "said_at": _TIME,
    "command": (_checked(dict), "an object"),
    "citations": (_listed(_ID[0]), "a list of ids of memories"),
    "undone": _FLAG,
}
_COMMAND: dict[str, Reader] = {"category": _TEXT, "tag": _TEXT, "feature": _TEXT, "value": _TEXT}
_ADD: dict[str, Reader] = {"single": _FLAG, "importance": _SHARE, "confidence": _SHARE}


def store(tx: Tx, said: Sequence[Spoken], places: dict[str, int]) -> Counter[str]:
    """Take episodes into the log; `places` learns where each stands."""
    counted: Counter[str] = Counter()
    for one in said:
        stored = tx.log.restore(one.message, one.id, one.created_at)
        if stored is None:
            counted["forgotten"] += 1
            continue
        counted["known" if stored.duplicate else "stored"] += 1
        places[one.id] = stored.episode.seq
    return counted


def decide(tx: Tx, made: Sequence[Decided], places: Mapping[str, int]) -> int:
    """Apply the decisions that were not made here before, as of when what they cite was said; how many those are."""
    before = {(known.source, known.said_at, _bare(known.command)) for known in tx.decisions.after()}
    applied = 0
    for one in made:
        cited = tx.log.at(places[id] for id in one.citations if id in places)
        if one.citations and not cited:
            continue
        said_at = one.said_at or max((said.occurred_at for said in cited), default=one.created_at)
        derived = one.undone and one.source == profile.RulesView.name
        known = derived or (one.source, said_at, _bare(one.command)) in before
        taken_back = one.undone and profile.undo_made(tx, one.source, one.command, said_at)
        if not known:
            command = replace(one.command, citations=tuple(said.seq for said in cited))
            applied += profile.decide(tx, one.source, command, said_at)
        elif taken_back:
            applied += 1
    return applied


def _bare(command: Command | Undo) -> Command | Undo:
    return command if isinstance(command, Undo) else replace(command, citations=())
