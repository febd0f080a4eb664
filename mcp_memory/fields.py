"""The fields of an episode that a filter can name, the values that they hold, and the labels that find those.

A field is a name of the system (`SYSTEM_FIELDS`) or a key of the caller's metadata, written `x` or `metadata.x`; `x.y` is
the key `y` of the object `x`, and the key that is itself called `x.y`. A list holds each of its elements. What is empty
(null, "", [], {}) is as good as absent, and an object holds nothing but what its keys hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Literal

from mcp_memory.types import Episode, Scalar

MAX_PARTS = 8
"""Names in a row, as in `metadata.a.b.c`; what lies deeper in metadata is kept but not filtered on."""

FieldType = Literal["id", "text", "number", "time"]

FIELD_TYPES: dict[str, FieldType] = {
    "id": "id",
    "content": "text",
    "role": "text",
    "speaker": "text",
    "agent_id": "text",
    "session_id": "text",
    "produced_for": "text",
    "kind": "text",
    "importance": "number",
    "category": "text",
    "tags": "text",
    "entities": "text",
    "occurred_at": "time",
    "created_at": "time",
    "expires_at": "time",
}
SYSTEM_FIELDS = frozenset(FIELD_TYPES)

_LABELLED = sorted(field for field, type in FIELD_TYPES.items() if type in ("text", "number") and field != "content")


def metadata_name(field: str) -> str | None:
    """The metadata key that a field means; None for a name of the system."""
    if field in SYSTEM_FIELDS:
        return None
    return field.removeprefix("metadata.")


def label_field(field: str) -> str:
    """The one name under which `labels` keeps a field: `x` and `metadata.x` are both `metadata.x`."""
    name = metadata_name(field)
    return field if name is None else f"metadata.{name}"


def paths(name: str) -> list[list[str]]:
    """The ways through metadata, key by key, that a name can mean."""
    parts = name.split(".")
    return [[name], parts] if 1 < len(parts) <= MAX_PARTS else [[name]]


def held(episode: Episode, field: str) -> list[Scalar | datetime]:
    """The values of a field: none where it is absent or empty, several where it is a list."""
    name = metadata_name(field)
    if name is None:
        return list(_parts(getattr(episode, field)))
    return [part for path in paths(name) for part in _parts(_at(episode.metadata, path))]


def canonical(value: object) -> str:
    """A scalar as text that is equal exactly where the values are: typed, strings unchanged, 3.0 as 3."""
    if isinstance(value, str):
        return f"s:{value}"
    if isinstance(value, bool):
        return f"b:{str(value).lower()}"
    if isinstance(value, float) and value.is_integer():
        return f"n:{int(value)}"
    return f"n:{value!r}"


def labels(episode: Episode) -> list[tuple[str, str]]:
    """Every distinct (field, canonical value) by which an equality can find an episode. Its id, its times and its text are
    left out."""
    system = ((field, getattr(episode, field)) for field in _LABELLED)
    return labelled([*system, *named(episode.metadata)])


def labelled(named: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """Every distinct (field, canonical value) of what stands under these names."""
    found: dict[tuple[str, str], None] = {}
    for field, value in named:
        if isinstance(value, str):
            if value:
                found[field, f"s:{value}"] = None
        elif value != ():
            found |= dict.fromkeys((field, canonical(part)) for part in _parts(value))
    return list(found)


def named(objects: Mapping[str, object], prefix: str = "metadata", depth: int = 1) -> Iterator[tuple[str, object]]:
    """What stands in metadata under each name. A key with a dot counts in the outermost object alone, and nothing inside
    it has a name."""
    for key, value in objects.items():
        key = str(key)
        if depth == 1 or "." not in key:
            yield f"{prefix}.{key}", value
            if isinstance(value, Mapping) and depth < MAX_PARTS and "." not in key:
                yield from named(value, f"{prefix}.{key}", depth + 1)


def _at(value: object, path: list[str]) -> object:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _parts(value: object) -> Iterator[Scalar | datetime]:
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, str | int | float | datetime) and part != "":
            yield part
