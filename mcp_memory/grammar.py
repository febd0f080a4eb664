"""The text of a filter, read into values, and what is said about one that cannot be read.

Imported with the first filter: the parser is not needed before.
"""

from __future__ import annotations

import math
import re
from datetime import tzinfo
from typing import cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from mcp_memory import timeparse
from mcp_memory.errors import InvalidFilter, InvalidInput
from mcp_memory.fields import FIELD_TYPES
from mcp_memory.filters import MAX_CONDITIONS, MAX_DEPTH, MAX_LIST, misfit, unlike, unordered
from mcp_memory.types import And, Compare, Filter, In, IsNull, Like, Not, Operator, Or, Period, Value

_PARSER = Lark(
    r"""
    ?start: either
    ?either: every (_OR every)*
    ?every: negated (_AND negated)*
    ?negated: NOT negated                                -> negation
            | OPEN either ")"                            -> group
            | FIELD OPERATOR value                       -> compare
            | FIELD [NOT] _IN "(" value ("," value)* ")" -> among
            | FIELD [NOT] LIKE STRING                    -> like
            | FIELD _IS [NOT] _NULL                      -> is_null
    ?value: STRING | NUMBER | BOOLEAN | DATE "(" STRING ")" -> date

    OPEN: "("
    _AND: /and(?![\w-])/i
    _OR: /or(?![\w-])/i
    NOT: /not(?![\w-])/i
    _IN: /in(?![\w-])/i
    LIKE: /like(?![\w-])/i
    _IS: /is(?![\w-])/i
    _NULL: /null(?![\w-])/i
    OPERATOR: /(?:[!<>]?=|[<>])(?![=<>~])/
    FIELD: /(?!(?i:and|or|not|in|like|is|null|true|false)(?![\w-]))[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*/
    DATE: /date(?=\s*\()/i
    STRING: /'(?:[^'\\]|''|\\.)*+'|"(?:[^"\\]|""|\\.)*+"/s
    NUMBER: /[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e[+-]?[0-9]+)?(?![\w.])/i
    BOOLEAN: /(?:true|false)(?![\w-])/i
    %ignore /\s+/
    """,
    parser="lalr",
)


def read(text: str, zone: tzinfo) -> Filter:
    """The filter that a text states. Raises InvalidFilter with the place where it does not."""
    try:
        tree = _PARSER.parse(text)
    except UnexpectedInput as error:
        raise _refusal(text, error) from None
    return _Reading(text, zone).filter(tree, 0)


class _Reading:
    """From the parser's tree to values."""

    def __init__(self, text: str, zone: tzinfo) -> None:
        self._text = text
        self._zone = zone
        self._conditions = 0

    def filter(self, tree: Tree[Token], depth: int) -> Filter:
        if tree.data in ("either", "every"):
            operands = tuple(self.filter(cast("Tree[Token]", child), depth) for child in tree.children)
            return Or(operands) if tree.data == "either" else And(operands)
        if tree.data in ("group", "negation"):
            opening, inner = cast("tuple[Token, Tree[Token]]", tree.children)
            if depth == MAX_DEPTH:
                raise self._error(f"more than {MAX_DEPTH} parentheses and NOTs inside each other", opening)
            operand = self.filter(inner, depth + 1)
            return Not(operand) if tree.data == "negation" else operand
        self._conditions += 1
        field, *rest = cast("list[Token]", tree.children)
        if self._conditions > MAX_CONDITIONS:
            raise self._error(f"more than {MAX_CONDITIONS} conditions; IN takes a list of values", field)
        if tree.data == "compare":
            return self._compare(field, *rest)
        negated, *rest = rest
        if tree.data == "is_null":
            return Not(IsNull(str(field))) if negated else IsNull(str(field))
        condition = self._among(field, rest) if tree.data == "among" else self._like(field, *rest)
        # as with !=, what does not have the field does not satisfy a condition about it
        return And((Not(IsNull(str(field))), Not(condition))) if negated else condition

    def _compare(self, field: Token, operator: Token, written: Token) -> Compare:
        value, relation = self._value(field, written), cast(Operator, str(operator))
        if problem := unordered(field, relation, value):
            raise self._error(problem, operator)
        return Compare(str(field), relation, value)

    def _among(self, field: Token, written: list[Token]) -> In:
        if len(written) > MAX_LIST:
            beyond = written[MAX_LIST]
            raise self._error(f"more than {MAX_LIST} values in a list; ask in several searches", _first(beyond))
        return In(str(field), tuple(self._value(field, value) for value in written))

    def _like(self, field: Token, like: Token, pattern: Token) -> Like:
        if problem := unlike(field):
            raise self._error(problem, like)
        return Like(str(field), _unquoted(pattern))

    def _value(self, field: Token, written: Token | Tree[Token]) -> Value:
        if isinstance(written, Tree):
            value: Value = self._period(cast(Token, written.children[1]))
        elif written.type == "STRING" and FIELD_TYPES.get(field) == "time":
            value = self._period(written)
        else:
            value = self._literal(written)
        if problem := misfit(field, value):
            raise self._error(problem, _first(written))
        return value

    def _literal(self, token: Token) -> Value:
        if token.type == "STRING":
            return _unquoted(token)
        if token.type == "BOOLEAN":
            return token.lower() == "true"
        number = float(token)
        if math.isinf(number):
            raise self._error("a number too large to compare; as a text it stands in quotes", token)
        return int(token) if token.lstrip("+-").isdecimal() else number

    def _period(self, token: Token) -> Period:
        written = _unquoted(token)
        try:
            first = timeparse.instant(written, self._zone)
            last = timeparse.until(written, self._zone, first) or first
        except InvalidInput:
            problem = "no date of the calendar; write date('2026-05-01') or date('2026-05-01T14:30:00+02:00')"
            raise self._error(problem, token) from None
        return Period(first, last, self._zone)

    def _error(self, problem: str, token: Token) -> InvalidFilter:
        return InvalidFilter(f"filter: {problem}", self._text, token.start_pos or 0)


def _first(written: Token | Tree[Token]) -> Token:
    return cast(Token, written.children[0]) if isinstance(written, Tree) else written


def _unquoted(token: Token) -> str:
    quote = token[0]
    return re.sub(rf"{quote}{quote}|\\(['\"\\])", lambda found: found[1] or quote, token[1:-1])


# ---- what is said about a text that cannot be read

_OPERATORS = "there are =, !=, <, <=, >, >=, IN (…), NOT IN (…), LIKE, NOT LIKE, IS NULL and IS NOT NULL"
_INSTEAD = {
    "==": "=", "<>": "!=", "=>": ">=", "=<": "<=", "!": "NOT", "&&": "AND", "||": "OR", "ilike": "LIKE",
    "contains": "LIKE '%habit%'", "between": "level >= 1 AND level <= 3",
}  # fmt: skip


def _refusal(text: str, error: UnexpectedInput) -> InvalidFilter:
    """The error for a text that stops making sense, with the place and what could stand there."""
    if isinstance(error, UnexpectedToken):
        expected, at_end = error.accepts or error.expected, error.token.type == "$END"
        place = len(text.rstrip()) if at_end else error.token.start_pos or 0
        if at_end and "RPAR" in expected:
            opened = [token for token in error.interactive_parser.parser_state.value_stack if _opens(token)]
            return InvalidFilter("filter: this parenthesis is not closed", text, opened[-1].start_pos)
    else:
        expected, place = cast(UnexpectedCharacters, error).allowed or set(), error.pos_in_stream or 0
    return InvalidFilter(f"filter: {_problem(text[place:].rstrip(), expected)}", text, place)


def _opens(token: object) -> bool:
    return isinstance(token, Token) and token.type == "OPEN"


def _problem(rest: str, expected: set[str]) -> str:
    """What is wrong where `rest` begins and one of the `expected` terminals should."""
    if not rest:
        return "ends too early; a condition reads area = 'habits'"
    found = re.match(r"[^\W\d][\w-]{0,40}|[^\w\s'\"().]{1,9}", rest)
    word = found[0] if found else ""
    if "NUMBER" in expected:
        return _no_value(rest, word)
    if "STRING" in expected:
        return "a text in quotes is expected, as in area LIKE 'hab%' or date('2026-05-01')"
    if word.lower() in _INSTEAD:
        return f"{word} is not offered; instead there is {_INSTEAD[word.lower()]}"
    if "OPERATOR" in expected:
        return _no_operator(rest[0], word)
    if "FIELD" in expected:
        if word.lower() in ("and", "or", "in", "like", "is", "null", "true", "false"):
            return f"{word} is a word of the filter; as a name it is written metadata.{word}"
        return "the name of a field is expected, as in: area = 'habits'"
    if "OPEN" in expected:
        return "IN takes a list in parentheses: area IN ('habits', 'food')"
    if "_IN" in expected:
        return "here NOT is followed by IN or LIKE; before a whole condition it stands first: NOT area = 'habits'"
    if "_NULL" in expected:
        return "IS is followed by NULL or NOT NULL; a value is compared with ="
    if rest[0] == ")":
        return "this parenthesis was not opened"
    return "conditions are joined by AND or OR, and the values of a list by commas: level IN (1, 2) OR area = 'habits'"


def _no_value(rest: str, word: str) -> str:
    if rest[0] in "'\"":
        return "this quote is not closed; a quote inside a text is doubled: 'o''brien'"
    if word.lower() == "null":
        return "nothing equals null; write IS NULL or IS NOT NULL"
    if word and rest[len(word) :].lstrip().startswith("("):
        return f"there is no function {word}; there is date('2026-05-01')"
    if word and (word[0].isalpha() or word[0] == "_"):
        return "a text stands in quotes: area = 'habits'"
    return "a value is expected: 'text', 3, -0.5, true, false or date('2026-05-01')"


def _no_operator(first: str, word: str) -> str:
    if first == "(":
        return "there are no functions of fields; as a value there is date('2026-05-01')"
    if first == ".":
        return "after a dot comes the name of a key, as in metadata.address.city"
    return f"{word} is not offered; {_OPERATORS}" if word else f"an operator is expected; {_OPERATORS}"
