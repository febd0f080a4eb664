"""A selection as SQL over `episodes`: which of them a question is about, with bound values only."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from mcp_memory import filters
from mcp_memory.errors import InvalidFilter
from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys, ident_of
from mcp_memory.store.times import micros
from mcp_memory.types import And, Compare, Filter, In, Scalar, Selection

COLUMN_FIELDS = ("role", "kind", "importance", "category")
"""Fields that are filtered on in their own columns; all others by label."""


class Selecting:
    def __init__(self, connection: Connection, keys: Keys, scope: int, now: datetime) -> None:
        self._db = connection
        self._keys = keys
        self._scope = scope
        self._now = now

    def condition(self, selection: Selection, *, expired: bool = False) -> tuple[str, tuple[Any, ...]]:
        """A selection as SQL over `episodes`, with bound values only. What is past its time to live is left out.

        Raises InvalidFilter for a field that no episode of the scope has.
        """
        parts: list[tuple[str, tuple[Any, ...]]] = [("scope = ?", (self._scope,))]
        if selection.session_id:
            parts.append(("session = ?", (self._keys.often("session", selection.session_id),)))
        if selection.agent_id:
            parts.append(("agent = ?", (self._keys.often("agent", selection.agent_id),)))
        if selection.since:
            parts.append(("occurred_at >= ?", (micros(selection.since),)))
        if selection.until:
            parts.append(("occurred_at <= ?", (micros(selection.until),)))
        if selection.kinds:
            parts.append(("kind IN (SELECT value FROM json_each(?))", (json.dumps(selection.kinds),)))
        if selection.filter is not None:
            parts.append(self._filter(selection.filter))
        if not expired:
            parts.append(("(expires_at IS NULL OR expires_at > ?)", (micros(self._now),)))
        return " AND ".join(sql for sql, _ in parts), tuple(value for _, values in parts for value in values)

    def _filter(self, condition: Filter) -> tuple[str, tuple[Any, ...]]:
        match condition:
            case And(operands):
                parts = [self._filter(operand) for operand in operands]
                return "(" + " AND ".join(sql for sql, _ in parts) + ")", tuple(v for _, vs in parts for v in vs)
            case Compare("id", operator, value):
                return f"ident {operator} ?", (ident_of("e", str(value)) or -1,)
            case In("id", values):
                idents = [ident_of("e", str(value)) or -1 for value in values]
                return "ident IN (SELECT value FROM json_each(?))", (json.dumps(idents),)
            case Compare(("role" | "kind" | "importance" | "category") as name, ("=" | "!=") as operator, value):
                return f"{_column(name)} {operator} ?", (_comparable(name, value),)
            case In(("role" | "kind" | "importance" | "category") as name, values):
                known = [_comparable(name, value) for value in values]
                return f"{_column(name)} IN (SELECT value FROM json_each(?))", (json.dumps(known),)
            case Compare(name, "=", value):
                return self._labelled(name, [filters.canonical(value)])
            case In(name, values):
                return self._labelled(name, [filters.canonical(value) for value in values])
            case Compare(name, "!=", value):
                has, field = self._labelled(name, None)
                is_, values_ = self._labelled(name, [filters.canonical(value)])
                return f"({has} AND NOT {is_})", field + values_
            case _:
                raise InvalidFilter(f"filter: {type(condition).__name__} is not offered yet. Use =, !=, IN and AND.")

    def _labelled(self, name: str, values: list[str] | None) -> tuple[str, tuple[Any, ...]]:
        label = filters.label_field(name)
        field = self._keys.often("field", label)
        if filters.metadata_name(name) is not None and not self._db.row(
            "SELECT 1 FROM labels WHERE scope = ? AND field = ? LIMIT 1", (self._scope, field)
        ):
            raise InvalidFilter(
                f"filter: no memory of this user has a field {name!r}. System fields: "
                f"{', '.join(sorted(filters.SYSTEM_FIELDS))}; others are the names used in metadata."
            )
        if values is None:
            return "seq IN (SELECT seq FROM labels WHERE scope = ? AND field = ?)", (self._scope, field)
        keys = json.dumps([self._keys.often("value", value) for value in values])
        return (
            "seq IN (SELECT seq FROM labels WHERE scope = ? AND field = ? AND value IN (SELECT value FROM json_each(?)))",
            (self._scope, field, keys),
        )


def _column(field: str) -> str:
    return "class" if field == "category" else field


def _comparable(name: str, value: Scalar) -> Scalar | None:
    """A value as its column can hold it; None, which equals nothing, where it never does."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number == (name == "importance") and not isinstance(value, bool) else None
