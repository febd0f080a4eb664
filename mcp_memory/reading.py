"""What a language model wrote, read as the value that was asked for.

Models wrap JSON in fences, thinking and chatter, leave commas behind and quote as Python does: all that is read. An answer
that was cut is never mended into a shorter one that looks whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any, NamedTuple, TypeVar, get_origin

from pydantic import TypeAdapter, ValidationError

from mcp_memory.errors import ProviderRejected, ProviderTruncated

T = TypeVar("T")

_DECODER = JSONDecoder(strict=False)  # line breaks inside strings are common

_MARK = re.compile(r"<think(?:ing)?>|</think(?:ing)?>|```|[\[{]", re.IGNORECASE)
_THOUGHT_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)

_BEGINS = re.compile(
    r"""\[\s*(?:["'“\[\]{}\d/#-]|true|false|null|True|False|None|\w*$)
      | \{\s*(?:["'“}/#]|\w+\s*:|\w*$)""",
    re.VERBOSE,
)
"""A bracket that may begin a value, and not one of prose such as "[see below]" or "{something}"."""

_TOKEN = re.compile(r"""//[^\n]*|\#[^\n]*|/\*.*?\*/|["']|[\[\]{}]|[^\[\]{}"'/\#]+|.""", re.DOTALL)
_AFTER_STRING = r"""(?=\s*(?: [\]}:] | // | /\* | \# | $
                            | ,\s*(?: ["'“\[\]{}\d/\#-] | true | false | null | True | False | None | \w+\s*: | $ )
                            | \n\s*["'] ))"""
_STRING = {
    quote: re.compile(rf"""{quote}((?:\\.|[^\\])*?){quote}{_AFTER_STRING}""", re.VERBOSE | re.DOTALL) for quote in "\"'"
}
"""A string up to the first quote after which a value may be over: an apostrophe or a quoted word does not end it."""

_ESCAPE = re.compile(r'\\(.)|"', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}

_FOREIGN = re.compile(r'"(?:\\.|[^"\\])*"|(?P<key>[^\W\d]\w*)(?=\s*:)|,(?=\s*[\]}])|\b(?:None|True|False)\b', re.DOTALL)
_JSON = {"None": "null", "True": "true", "False": "false", ",": ""}
"""What JSON has no place for outside strings, and what stands for it: names without quotes, commas at the end, Python's
constants."""


class _Found(NamedTuple):
    """A value in a text, with what makes it likelier to be the answer than another, most telling first."""

    fenced: bool
    weight: int
    at: int
    value: Any


def read(text: str, output_type: type[T]) -> T:
    """The value of `output_type`, a pydantic model, that stands in what a model wrote.

    A bare list is taken for the object whose one list it can be. Of several values that have the shape, one in a fence
    comes before one outside, one that says something before an empty one and that before a list of mere numbers, and a
    later one before an earlier one. Raises ProviderTruncated where a bracket is never closed, and ProviderRejected where
    nothing has the shape; neither quotes the text.
    """
    reason = "the model's answer holds no JSON"
    adapter = TypeAdapter(output_type)
    for found in sorted(_values(text), key=lambda found: found[:3], reverse=True):
        try:
            return adapter.validate_python(_shaped(found.value, output_type))
        except ValidationError as error:
            reason = f"the model's answer does not have the shape that was asked for ({_said(error, output_type)})"
    raise ProviderRejected(reason)


def _shaped(value: Any, output_type: type[Any]) -> Any:
    """`value` as the fields of `output_type`; None where it is an object that knows none of them."""
    fields = getattr(output_type, "model_fields", {})
    if isinstance(value, list):
        lists = [name for name, field in fields.items() if (get_origin(field.annotation) or field.annotation) is list]
        return {fields[lists[0]].alias or lists[0]: value} if len(lists) == 1 else value
    names = {name for field, info in fields.items() for name in (field, info.alias)}
    return value if not value or not fields or names & value.keys() else None


def _said(error: ValidationError, output_type: type[Any]) -> str:
    """The first thing that is wrong: the field and pydantic's name for it, without what was written there."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = first["loc"][0] if first["loc"] else ""
    return f"{field}: {first['type']}" if field in getattr(output_type, "model_fields", {}) else first["type"]


def _values(text: str) -> list[_Found]:
    """Every value outside the thinking. Raises ProviderTruncated."""
    found: list[_Found] = []
    fenced, at = False, 0
    while mark := _MARK.search(text, at):
        at, sign = mark.end(), mark[0].lower()
        if sign == "```":
            fenced = not fenced
        elif sign.startswith("</"):  # all before it was thinking, begun in the prompt
            found, fenced = [], False
        elif sign.startswith("<"):
            end = _THOUGHT_END.search(text, at)
            at = end.end() if end else at
        elif _BEGINS.match(text, mark.start()):
            whole = _decoded(text, mark.start())
            if whole is None:
                thoughts = list(_THOUGHT_END.finditer(text, at))
                if thoughts and (answer := _values(text[thoughts[-1].end() :])):
                    return answer
                whole = _mended(text, mark.start())
            value, at = whole
            if value is not None:
                found.append(_Found(fenced, _weight(value), mark.start(), value))
    return found


def _weight(value: Any) -> int:
    if not value:
        return 1
    return 2 if isinstance(value, dict) or not all(isinstance(item, int | float) for item in value) else 0


def _decoded(text: str, start: int) -> tuple[Any, int] | None:
    """The value that begins at `start`, and where it ends; None where it is no JSON."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _mended(text: str, start: int) -> tuple[Any, int]:
    """The value that is meant at `start`, None where that cannot be told, and where it ends. Raises ProviderTruncated."""
    pieces = list(_pieces(text, start))
    end = start + sum(len(raw) for raw, _ in pieces)
    plain = "".join(plain for _, plain in pieces)
    decoded = _decoded(_FOREIGN.sub(_translated, plain), 0)
    return (decoded[0] if decoded else _repaired(plain)), end


def _pieces(text: str, start: int) -> Iterator[tuple[str, str]]:
    """The text from the bracket at `start` to the one that closes it, and the same with strings quoted as JSON wants them,
    without comments, and with every bracket inside closed. Raises ProviderTruncated where it is not closed."""
    expected: list[str] = []
    before, at = "", start
    while token := _TOKEN.match(text, at):
        raw = plain = token[0]
        if raw == '"' or (raw == "'" and before in "[{,:"):
            string = _STRING[raw].match(text, at)
            if string is None:
                break
            raw, plain = string[0], f'"{_ESCAPE.sub(_escaped, string[1])}"'
        elif raw in _CLOSING:
            expected.append(_CLOSING[raw])
        elif raw in "]}":
            plain = ""
            while raw in expected and not plain.endswith(raw):
                plain += expected.pop()
        elif raw[:2] in ("//", "/*") or raw[0] == "#":
            plain = " "
        yield raw, plain
        if not expected:
            return
        before, at = plain.rstrip()[-1:] or before, at + len(raw)
    raise ProviderTruncated("the model's answer was cut before its end")


def _escaped(match: re.Match[str]) -> str:
    """An escape as JSON has it; a bare quote inside a string needs one."""
    if match[0] == '"':
        return '\\"'
    if match[1] in '"\\/bfnrtu':
        return match[0]
    return match[1] if match[1] == "'" else "\\" + match[0]


def _repaired(text: str) -> Any:
    """The value of a text whose strings and brackets are in order, but which forgets commas or the quotes of words."""
    from json_repair import loads  # late: 70 ms, and hardly an answer needs it

    try:
        value = loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list if text[0] == "[" else dict) else None


def _translated(match: re.Match[str]) -> str:
    return f'"{match["key"]}"' if match["key"] else _JSON.get(match[0], match[0])
