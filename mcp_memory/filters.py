"""Filters over episodes: `area = 'habits' AND NOT level > 2` read into values, and what they mean.

Values compare whole and by type: 3 equals 3.0, but neither "3" nor true. Texts are ordered and matched by code points, so
that case counts. A list satisfies a condition when one of its elements does, and `!=` when it has elements and none is the
value. A date alone stands for its whole day: what was said on it equals it, and is neither before nor after.

Every condition is true or false, never unknown: a field that is absent or empty satisfies no comparison (neither `!=`,
NOT IN nor NOT LIKE), and NOT before a condition is true wherever the condition is false.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import cast

from mcp_memory import timeparse
from mcp_memory.errors import InvalidFilter, InvalidInput
from mcp_memory.fields import FIELD_TYPES, canonical, held
from mcp_memory.types import And, Compare, Episode, Filter, In, IsNull, Like, Not, Operator, Or, Period, Scalar, Value

MAX_CHARACTERS = 4_000
MAX_CONDITIONS = 100
MAX_DEPTH = 32
"""Parentheses and NOTs inside each other."""
MAX_LIST = 200

_NOT_TEXT = "[\x00\ud800-\udfff]"


def parse(text: str, zone: tzinfo = UTC) -> Filter | None:
    """The filter that `text` states; None where it is blank. `zone` is that of dates and times which name none.

    Raises InvalidFilter, with the place and the way out, for anything that is not wholly understood.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidFilter(f"filter: longer than {MAX_CHARACTERS:,} characters; keep fewer conditions")
    if not text.strip():
        return None
    if odd := re.search(_NOT_TEXT, text):
        place = odd.start()
        raise InvalidFilter("filter: a NUL or half a character; leave it out", re.sub(_NOT_TEXT, "?", text), place)

    from mcp_memory import grammar  # late: it brings the parser

    return grammar.read(text, zone)


def fields(filter: Filter) -> frozenset[str]:
    """The names of all fields that a filter uses, as they were written."""
    match filter:
        case Compare(field) | In(field) | Like(field) | IsNull(field):
            return frozenset({field})
        case Not(operand):
            return fields(operand)
        case And(operands) | Or(operands):
            return frozenset().union(*map(fields, operands))


# ---- what has no meaning


def check(filter: Filter) -> None:
    """Raises InvalidFilter for a comparison without meaning, in a filter that no text was read into."""
    match filter:
        case And(operands) | Or(operands):
            for operand in operands:
                check(operand)
        case Not(operand):
            check(operand)
        case Compare(field, operator, value):
            _refuse(misfit(field, value) or unordered(field, operator, value))
        case In(field, values):
            for value in values:
                _refuse(misfit(field, value))
        case Like(field):
            _refuse(unlike(field))


def _refuse(problem: str) -> None:
    if problem:
        raise InvalidFilter(f"filter: {problem}")


def misfit(field: str, value: Value) -> str:
    """Why a field cannot be compared with a value, and with what it can; "" where it can."""
    own = f"; a field of your own is metadata.{field}"
    match FIELD_TYPES.get(field):
        case "time" if not isinstance(value, Period):
            return f"{field} is a time: {field} >= date('2026-05-01'){own}"
        case "number" if not isinstance(value, int | float) or isinstance(value, bool):
            return f"{field} is a number: {field} >= 0.5{own}"
        case "text" | "id" if not isinstance(value, str):
            return f"{field} is a text, and a text stands in quotes{own}"
    return ""


def unordered(field: str, operator: Operator, value: Value) -> str:
    """Why an operator has no meaning for a field and a value; "" where it has."""
    if operator in ("=", "!="):
        return ""
    if FIELD_TYPES.get(field) == "id":
        return "ids have no order; id takes =, !=, IN and NOT IN"
    return "true and false have no order; they take =, !=, IN and NOT IN" if isinstance(value, bool) else ""


def unlike(field: str) -> str:
    """Why a field cannot be matched with a pattern; "" where it can."""
    if FIELD_TYPES.get(field, "text") == "text":
        return ""
    return f"LIKE compares texts, which {field} is not; a field of your own is metadata.{field}"


# ---- meaning


def match(filter: Filter, episode: Episode) -> bool:
    """Whether an episode satisfies a filter. Raises InvalidFilter for a comparison without meaning."""
    check(filter)
    return _holds(filter, episode)


def _holds(filter: Filter, episode: Episode) -> bool:
    match filter:
        case And(operands):
            return all(_holds(operand, episode) for operand in operands)
        case Or(operands):
            return any(_holds(operand, episode) for operand in operands)
        case Not(operand):
            return not _holds(operand, episode)
        case IsNull(field):
            return not held(episode, field)
        case In(field, among):
            return any(compares(value, "=", wanted) for value in held(episode, field) for wanted in among)
        case Like(field, pattern):
            return any(isinstance(value, str) and like(value, pattern) for value in held(episode, field))
        case Compare(field, "!=", wanted):
            values = held(episode, field)
            return bool(values) and not any(compares(value, "=", wanted) for value in values)
        case Compare(field, operator, wanted):
            return any(compares(value, operator, wanted) for value in held(episode, field))


def compares(value: Scalar | datetime, operator: Operator, wanted: Value) -> bool:
    """Whether a value that a field holds stands in a relation other than `!=`; values of two types stand in none."""
    if isinstance(wanted, Period):
        moment = _moment(value, wanted.zone)
        return moment is not None and _placed(moment, operator, wanted)
    if operator == "=":
        return canonical(value) == canonical(wanted)
    if isinstance(value, str) and isinstance(wanted, str):
        return _ordered(value, operator, wanted)
    if isinstance(value, bool | str | datetime) or isinstance(wanted, bool | str):
        return False
    return _ordered(bounded(value), operator, bounded(wanted))


def _moment(value: Scalar | datetime, zone: tzinfo) -> datetime | None:
    """The moment that a value names: a time of the system, or a text such as 2026-05-01 or 2026-05-01T14:30Z."""
    if isinstance(value, datetime):
        return value
    try:
        return timeparse.instant(value, zone) if isinstance(value, str) else None
    except InvalidInput:
        return None


def _placed(moment: datetime, operator: Operator, period: Period) -> bool:
    match operator:
        case "<":
            return moment < period.first
        case "<=":
            return moment <= period.last
        case ">":
            return moment > period.last
        case ">=":
            return moment >= period.first
        case _:
            return period.first <= moment <= period.last


def _ordered(one: str | float, operator: Operator, other: str | float) -> bool:
    left, right = cast("tuple[float, float]", (one, other))  # both of one type
    match operator:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def bounded(number: float) -> float:
    """A number as databases read it from JSON: a whole one beyond 64 bits as the nearest float."""
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        try:
            return float(number)
        except OverflowError:
            return math.copysign(math.inf, number)
    return number


def pattern_parts(pattern: str) -> Iterator[str]:
    """A pattern of LIKE in parts: `%`, `_`, or a backslash and the character that stands for itself."""
    for part in re.findall(r"\\[%_\\]|.", pattern, re.DOTALL):
        yield part if part in ("%", "_") else f"\\{part[-1]}"


def like(text: str, pattern: str) -> bool:
    """Whether a text is as a pattern of LIKE says, from its beginning to its end."""
    return _expression(pattern).fullmatch(text) is not None


@lru_cache(256)
def _expression(pattern: str) -> re.Pattern[str]:
    pieces = [""]
    for part in pattern_parts(pattern):
        if part == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if part == "_" else re.escape(part[1])
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    # each piece at the first place where it fits, for good: tried at all places, many % would take time without end
    between = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1])
    return re.compile(f"{pieces[0]}{between}.*{pieces[-1]}", re.DOTALL)
