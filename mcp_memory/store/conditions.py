"""A filter as SQL over `episodes`, with bound values only.

Equality is looked up by label; order, patterns and dates read the bodies of those episodes that have the field at all. No
condition is ever null: each is a membership, an EXISTS, or a comparison of columns that hold something.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from mcp_memory import filters
from mcp_memory.errors import InvalidFilter
from mcp_memory.fields import FIELD_TYPES, SYSTEM_FIELDS, canonical, label_field, metadata_name, paths
from mcp_memory.store.dialects import SQLITE, Dialect
from mcp_memory.store.keys import Keys, ident_of
from mcp_memory.store.times import micros
from mcp_memory.types import And, Compare, Filter, In, IsNull, Like, Not, Operator, Or, Period, Scalar, Value

Sql = tuple[str, tuple[Any, ...]]

COLUMNS = {
    "role": "role",
    "kind": "kind",
    "category": "class",
    "importance": "importance",
    "occurred_at": "occurred_at",
    "created_at": "created_at",
    "expires_at": "expires_at",
}
"""Fields that are filtered on in their own columns. All others have labels, but for `id` and `content`."""

_ALWAYS = {"id", "content", *COLUMNS} - {"expires_at"}


class Conditions:
    """`read` answers a query inside the transaction in which the conditions will be used."""

    def __init__(
        self, keys: Keys, scope: int, read: Callable[[str, tuple[Any, ...]], list[Any]], dialect: Dialect = SQLITE
    ) -> None:
        self._keys = keys
        self._scope = scope
        self._read = read
        self._dialect = dialect
        self._known: dict[str, int] = {}

    def sql(self, filter: Filter) -> Sql:
        """A condition over `episodes`. Raises InvalidFilter for a comparison without meaning, and for a field that no
        episode of the scope has."""
        filters.check(filter)
        sql, values = self._filter(filter)
        return self._marked(sql), values

    def _marked(self, sql: str) -> str:
        return sql.replace("?", self._dialect.mark)

    def _filter(self, filter: Filter) -> Sql:
        match filter:
            case And(operands):
                return _joined("AND", [self._filter(operand) for operand in operands])
            case Or(operands):
                return _joined("OR", [self._filter(operand) for operand in operands])
            case Not(operand):
                return _negated(self._filter(operand))
            case IsNull(field):
                return _negated(self._present(field))
            case In(field, values):
                return _joined(
                    "OR", [self._equal(field, values), *(self._dated(field, "=", period) for period in _dates(values))]
                )
            case Like(field, pattern):
                return self._compared(field, self._dialect.like, self._dialect.pattern(pattern))
            case Compare(field, "!=", value):
                return _joined("AND", [self._present(field), _negated(self._filter(In(field, (value,))))])
            case Compare(field, "=", value):
                return self._filter(In(field, (value,)))
            case Compare(field, operator, value):
                return self._ordered(field, operator, value)

    def _present(self, field: str) -> Sql:
        if field in _ALWAYS:
            return "TRUE", ()
        if field in COLUMNS:
            return f"{COLUMNS[field]} IS NOT NULL", ()
        return "seq IN (SELECT seq FROM labels WHERE scope = ? AND field = ?)", (self._scope, self._field(field))

    def _equal(self, field: str, wanted: Sequence[Value]) -> Sql:
        values = [value for value in wanted if not isinstance(value, Period)]
        if not values:
            return "FALSE", ()
        if field == "content":
            return self._compared(field, self._dialect.among, self._dialect.listed(values))
        if field == "id":
            return self._among("ident", [ident_of("e", str(value)) or -1 for value in values])
        if field in COLUMNS:
            # numbers as floats, as the column has them: a list of both kinds is none that every driver takes
            alike = [value if isinstance(value, str) else float(filters.bounded(value)) for value in values]
            return self._among(COLUMNS[field], alike)
        keys = self._dialect.listed([self._keys.often("value", canonical(value)) for value in values])
        return (
            f"seq IN (SELECT seq FROM labels WHERE scope = ? AND field = ? AND value {self._dialect.among})",
            (self._scope, self._field(field), keys),
        )

    def _among(self, column: str, values: Sequence[Scalar]) -> Sql:
        if len(values) == 1:
            return f"{column} = ?", (values[0],)
        return f"{column} {self._dialect.among}", (self._dialect.listed(values),)

    def _ordered(self, field: str, operator: Operator, value: Value) -> Sql:
        if isinstance(value, Period):
            return self._dated(field, operator, value)
        if isinstance(value, str):
            return self._compared(field, f"{self._dialect.exactly}{operator} ?", value)
        return self._compared(field, f"{operator} ?", filters.bounded(value))

    def _compared(self, field: str, comparison: str, value: Scalar) -> Sql:
        """A column, or any value that the body holds under a field, compared."""
        if field in COLUMNS:
            return f"{COLUMNS[field]} {comparison}", (value,)
        of_type = self._dialect.held_number if isinstance(value, int | float) else self._dialect.held_text
        exists = f"EXISTS (SELECT 1 FROM {self._dialect.held} WHERE position = seq AND {of_type} {comparison})"
        held = [(exists, (path, value)) for path in self._paths(field)]
        return _joined("AND", [self._present(field), _joined("OR", held)])

    def _dated(self, field: str, operator: Operator, period: Period) -> Sql:
        if FIELD_TYPES.get(field) == "time":
            return _joined("AND", [self._present(field), _placed(COLUMNS[field], operator, period)])
        # a text of the caller's that names a time: what its zone makes of it is known here, not to the database
        seqs = {
            seq
            for path in self._paths(field)
            for seq, text in self._read(
                self._marked(
                    f"SELECT seq, {self._dialect.held_text} FROM labels CROSS JOIN {self._dialect.held} "
                    "WHERE position = seq AND scope = ? AND field = ?"
                ),
                (path, self._scope, self._field(field)),
            )
            if text is not None and filters.compares(text, operator, period)
        }
        return self._among("seq", sorted(seqs)) if seqs else ("FALSE", ())

    def _paths(self, field: str) -> list[Any]:
        name = metadata_name(field)
        ways = [[field]] if name is None else [["metadata", *path] for path in paths(name)]
        return [self._dialect.path(way) for way in ways]

    def _field(self, field: str) -> int:
        """The key of a field's labels. Raises InvalidFilter for one of the caller's that no episode of the scope has."""
        key = self._keys.often("field", label_field(field))
        if field not in SYSTEM_FIELDS and field not in self._known:
            there = self._marked("SELECT 1 FROM labels WHERE scope = ? AND field = ? LIMIT 1")
            if not self._read(there, (self._scope, key)):
                raise _unknown(field)
        self._known[field] = key
        return key


def _unknown(field: str) -> InvalidFilter:
    near = difflib.get_close_matches(field, sorted(SYSTEM_FIELDS), 1, 0.7)
    return InvalidFilter(
        f"filter: no memory of this user has a field {field[:60]!r}.{''.join(f' Did you mean {name}?' for name in near)} "
        f"System fields: {', '.join(sorted(SYSTEM_FIELDS))}; others are the names used in metadata."
    )


def _dates(values: Sequence[Value]) -> list[Period]:
    return [value for value in values if isinstance(value, Period)]


def _joined(word: str, parts: Sequence[Sql]) -> Sql:
    """TRUE and FALSE, where they change nothing, are left out."""
    neutral = "TRUE" if word == "AND" else "FALSE"
    told = [part for part in parts if part[0] != neutral]
    if len(told) < 2:
        return told[0] if told else (neutral, ())
    return f"({f' {word} '.join(sql for sql, _ in told)})", tuple(value for _, values in told for value in values)


def _negated(part: Sql) -> Sql:
    return f"NOT ({part[0]})", part[1]


def _placed(column: str, operator: Operator, period: Period) -> Sql:
    first, last = micros(period.first), micros(period.last)
    match operator:
        case "=":
            return f"{column} BETWEEN ? AND ?", (first, last)
        case "<=" | ">":
            return f"{column} {operator} ?", (last,)
        case _:
            return f"{column} {operator} ?", (first,)
