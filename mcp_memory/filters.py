"""Filters over episodes: `area = 'habits' AND level IN (1, 2)` read into values, and what they mean.

A field is a name of the system (`SYSTEM_FIELDS`) or a key of the caller's metadata, written `x` or `metadata.x`.
Values compare whole and by type: 3 equals 3.0, but neither "3" nor true. A field that an episode does not have, or
whose value is empty, satisfies no condition. A list satisfies `=` and IN when one of its elements does, and `!=` when
it has elements and none is the value. Objects inside metadata cannot be filtered on.

An index of equality holds `labels` and looks up `(label_field(field), canonical(value))`; it agrees with `match`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, cast

from mcp_memory.errors import InvalidFilter
from mcp_memory.types import And, Compare, Episode, Filter, In, IsNull, Not, Or, Scalar

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

MAX_CHARACTERS = 4_000
MAX_LIST = 200

SYSTEM_FIELDS = frozenset(
    {
        "id",
        "role",
        "speaker",
        "agent_id",
        "session_id",
        "produced_for",
        "kind",
        "importance",
        "category",
        "tags",
        "occurred_at",
        "created_at",
    }
)
TIME_FIELDS = frozenset({"occurred_at", "created_at"})
_LABELLED = sorted(SYSTEM_FIELDS - TIME_FIELDS - {"id"})

# The words of later operators are reserved from the start, so that no filter changes its meaning when they come.
_GRAMMAR = r"""
    start: condition (_AND condition)*
    ?condition: FIELD COMPARISON value                -> compare
              | FIELD _IN "(" value ("," value)* ")"  -> among
    ?value: STRING | NUMBER | BOOLEAN

    _AND: /and(?![\w-])/i
    _IN: /in(?![\w-])/i
    COMPARISON: /!?=(?![=<>~])/
    FIELD: /(?!(?i:and|or|not|in|like|is|null|true|false)(?![\w-]))(?:metadata\.)?[^\W\d][\w-]*/
    STRING: /'(?:[^'\\]|''|\\.)*+'|"(?:[^"\\]|""|\\.)*+"/s
    NUMBER: /[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?(?![\w.])/i
    BOOLEAN: /(?:true|false)(?![\w-])/i
    %ignore /\s+/
"""
_OFFERED = "there are =, !=, IN (…) and AND, as in: area = 'habits' AND level IN (1, 2)"
_NOT_TEXT = "[\x00\ud800-\udfff]"
_NOT_OFFERED = r"(?i)!?[=<>~]{2,}|[<>~(]|(?:or|not|like|is|null|between)(?![\w-])|date(?=\s*\()"
_RESERVED = r"(?i)(?:and|in|true|false)(?![\w-])"


def parse(text: str) -> Filter | None:
    """The filter that `text` states; None where it is blank.

    Raises InvalidFilter, with the place and the way out, for anything that is not wholly understood.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidFilter(f"filter: longer than {MAX_CHARACTERS:,} characters; keep fewer conditions")
    if not text.strip():
        return None
    if odd := re.search(_NOT_TEXT, text):
        place = odd.start()
        raise InvalidFilter("filter: a NUL or half a character; leave it out", re.sub(_NOT_TEXT, "?", text), place)

    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    try:
        tree = _parser().parse(text)
    except UnexpectedCharacters as error:
        raise _refusal(text, error.pos_in_stream or 0, error.allowed or set()) from None
    except UnexpectedToken as error:
        at_end = error.token.type == "$END"
        position = len(text.rstrip()) if at_end else error.token.start_pos or 0
        raise _refusal(text, position, error.expected) from None
    return _read(tree, text)


def fields(filter: Filter) -> frozenset[str]:
    """The names of all fields that a filter uses, as they were written."""
    match filter:
        case Compare(field) | In(field) | IsNull(field):
            return frozenset({field})
        case Not(operand):
            return fields(operand)
        case And(operands) | Or(operands):
            return frozenset().union(*map(fields, operands))


def metadata_name(field: str) -> str | None:
    """The metadata key that a field means; None for a name of the system."""
    if field in SYSTEM_FIELDS:
        return None
    return field.removeprefix("metadata.")


def label_field(field: str) -> str:
    """The one name under which `labels` keeps a field: `x` and `metadata.x` are both `metadata.x`."""
    name = metadata_name(field)
    return field if name is None else f"metadata.{name}"


def canonical(value: Scalar) -> str:
    """A scalar as text that is equal exactly where the values are: typed, strings unchanged, 3.0 as 3."""
    if isinstance(value, str):
        return f"s:{value}"
    if isinstance(value, bool):
        return f"b:{str(value).lower()}"
    if isinstance(value, float) and value.is_integer():
        return f"n:{int(value)}"
    return f"n:{value!r}"


def labels(episode: Episode) -> list[tuple[str, str]]:
    """Every distinct (field, canonical value) by which an equality filter can find an episode; its id is left out."""
    named = [(field, getattr(episode, field)) for field in _LABELLED]
    named += [(f"metadata.{key}", value) for key, value in episode.metadata.items()]
    found: dict[tuple[str, str], None] = {}
    for field, held in named:
        if isinstance(held, str):
            if held:
                found[field, f"s:{held}"] = None
        elif held != ():
            found |= dict.fromkeys((field, value) for value in _canonicals(held))
    return list(found)


def match(filter: Filter, episode: Episode) -> bool:
    """Whether an episode satisfies a filter. Raises InvalidFilter for an operator or a field that is not offered."""
    match filter:
        case And(operands):
            # A list: what is not offered is an error even where an earlier operand already fails.
            return all([match(operand, episode) for operand in operands])  # noqa: C419
        case In(field, values):
            return not {canonical(value) for value in values}.isdisjoint(_held(episode, field))
        case Compare(field, "=", value):
            return canonical(value) in _held(episode, field)
        case Compare(field, "!=", value):
            held = _held(episode, field)
            return bool(held) and canonical(value) not in held
        case _:
            raise InvalidFilter(f"filter: an operator that is not offered; {_OFFERED}")


def _held(episode: Episode, field: str) -> set[str]:
    if field in TIME_FIELDS:
        raise _time_refusal(field)
    name = metadata_name(field)
    return set(_canonicals(getattr(episode, field) if name is None else episode.metadata.get(name)))


def _canonicals(value: object) -> Iterator[str]:
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, str | int | float) and part != "":
            yield canonical(part)


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(_GRAMMAR, parser="lalr")


def _read(tree: Tree[Token], text: str) -> Filter:
    operands = tuple(_condition(cast("Tree[Token]", child), text) for child in tree.children)
    return And(operands) if len(operands) > 1 else operands[0]


def _condition(tree: Tree[Token], text: str) -> Filter:
    field, *rest = cast("list[Token]", tree.children)
    if field in TIME_FIELDS:
        raise _time_refusal(field, text, field.start_pos or 0)
    if tree.data == "compare":
        operator, value = rest
        return Compare(str(field), "=" if operator == "=" else "!=", _scalar(value, text))
    if len(rest) > MAX_LIST:
        problem = f"filter: more than {MAX_LIST} values in a list; ask in several searches"
        raise InvalidFilter(problem, text, rest[MAX_LIST].start_pos or 0)
    return In(str(field), tuple(_scalar(value, text) for value in rest))


def _scalar(token: Token, text: str) -> Scalar:
    if token.type == "STRING":
        quote = token[0]
        return re.sub(rf"{quote}{quote}|\\(['\"\\])", lambda found: found[1] or quote, token[1:-1])
    if token.type == "BOOLEAN":
        return token.lower() == "true"
    number = float(token)
    if math.isinf(number):
        problem = "filter: a number too large to compare; as a text it stands in quotes"
        raise InvalidFilter(problem, text, token.start_pos or 0)
    return int(token) if token.lstrip("+-").isdecimal() else number


def _time_refusal(field: str, text: str = "", position: int = 0) -> InvalidFilter:
    problem = f"filter: {field} cannot be filtered on; give a range with since and until instead"
    return InvalidFilter(problem, text, position)


def _refusal(text: str, position: int, expected: set[str]) -> InvalidFilter:
    """The error for a text that stops making sense at `position`, where one of the `expected` terminals may stand."""
    rest = text[position:]
    if not rest.strip():
        problem = "ends too early; a condition reads area = 'habits'"
    elif "LPAR" in expected:
        problem = "IN takes a list in parentheses: area IN ('habits', 'food')"
    elif found := re.match(_NOT_OFFERED, rest):
        problem = f"{found[0]} is not offered; {_OFFERED}"
    elif rest[0] in "'\"" and "STRING" in expected:
        problem = "this quote is not closed; a quote inside a text is doubled: 'o''brien'"
    elif rest[0] == ".":
        problem = "the only dot in a name is that of metadata, as in metadata.area; objects inside it have no names"
    elif "FIELD" in expected and (found := re.match(_RESERVED, rest)):
        problem = f"{found[0]} is a word of the filter; as a name it is written metadata.{found[0]}"
    elif "STRING" in expected and (rest[0].isalpha() or rest[0] == "_"):
        problem = "a text stands in quotes: area = 'habits'"
    elif "STRING" in expected:
        problem = "a value is expected: 'text', 3, -0.5, true or false"
    elif "FIELD" in expected:
        problem = "the name of a field is expected, as in: area = 'habits'"
    elif "COMPARISON" in expected:
        problem = f"an operator is expected; {_OFFERED}"
    else:
        problem = "conditions are joined by AND and the values of a list by commas: level IN (1, 2) AND area = 'habits'"
    return InvalidFilter(f"filter: {problem}", text, position)
