"""What must not be stored: parts that the speaker marked as private, and secrets that are known by their format.

Nothing is guessed from how random a text looks; a secret without a known format or place stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

PRIVATE_PART = "private part"


class _Format(NamedTuple):
    name: str
    marks: tuple[str, ...]
    """In lower case; a text without any of them cannot hold this secret."""
    pattern: str
    """Matches the secret, or has it in the group `secret`; compiled only when a mark is met, to start fast."""


class _Span(NamedTuple):
    start: int
    end: int
    name: str


def _format(name: str, marks: str, pattern: str) -> _Format:
    return _Format(name, tuple(marks.split()), pattern)


# Linear in the text, whatever it holds: a pattern either gives up within a fixed number of characters, or begins only
# where its last attempt cannot have been (the lookbehind of the jwt, the slashes of the URL, the end of a key block).
_FORMATS = (
    _format("aws access key", "akia asia", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _format(
        "aws secret key",
        "secret",
        r"(?i:aws_?secret_?(?:access_?)?key)[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?P<secret>[\w/+=]{40})(?![\w/+=])",
    ),
    _format("github token", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_\w{20,}"),
    _format("github token", "github_pat_", r"github_pat_\w{20,}"),
    _format("gitlab token", "glpat-", r"glpat-[\w-]{20,}(?:\.[0-9a-z]{2,12}){0,2}"),
    _format("slack token", "xox xapp-", r"(?:xox[abeoprs]|xapp-\d)-[\w-]{10,}"),
    _format("stripe key", "_live_", r"(?:sk|rk)_live_[A-Za-z0-9]{16,}"),
    _format("anthropic key", "sk-ant-", r"sk-ant-[\w-]{16,}"),
    _format(
        "api key",
        "sk-",
        r"(?<![A-Za-z0-9])sk-(?!ant-)(?:(?:proj|svcacct|admin)-[\w-]{16,}|(?:[a-z0-9]{1,12}-){0,2}[A-Za-z0-9]{20,}[\w-]*)",
    ),
    _format("google api key", "aiza", r"AIza[\w-]{30,}"),
    _format("pypi token", "pypi-age", r"pypi-AgE[\w-]{16,}"),
    _format("npm token", "npm_", r"npm_[A-Za-z0-9]{30,}"),
    _format("jwt", "eyj", r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{4,}+\.[\w-]*+(?:\.[\w-]++){0,2}"),
    _format(
        "private key",
        "private key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    _format(
        "authorization header",
        "authorization",
        r"(?i:authorization)[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?i:bearer|basic|token)\s{1,9}(?P<secret>[\w.~+/=|:%$!*@#&^?-]+)",
    ),
    _format(
        "url password",
        "://",
        # Digits and then punctuation are a port, and the @ after it belongs to something else.
        r"://[^\s/:\"'<>]*:(?!\d{1,5}(?:[?#,;)]|[^\x00-\x7f])|\[private\]@)(?P<secret>[^\s/\"'<>]+)@",
    ),
)
_TAG = re.compile(r"<\s{0,3}(/?)\s{0,3}private(?:\s[^<>]*)?>", re.ASCII | re.IGNORECASE)


def redact(text: str) -> tuple[str, list[str]]:
    """The text with `[private]` and `[secret: <name>]` in place of what is hidden, and the names of it, in order.

    A `<private>` that is never closed, and a private key block without its end, hide all that follows.
    """
    lowered = text.lower()
    hidden: list[_Span] = []
    if "private" in lowered and "<" in lowered:
        text, hidden = _without_private(text)
    for secret in _FORMATS:
        if any(mark in lowered for mark in secret.marks):
            hidden += _secrets(secret, text)
    if not hidden:
        return text, []

    pieces: list[str] = []
    names: list[str] = []
    position = 0
    for span in _joined(hidden):
        marker = "[private]" if span.name == PRIVATE_PART else f"[secret: {span.name}]"
        pieces += [text[position : span.start], marker]
        names.append(span.name)
        position = span.end
    return "".join(pieces) + text[position:], names


def _without_private(text: str) -> tuple[str, list[_Span]]:
    """The text with its private parts replaced, and where the replacements stand in it."""
    pieces: list[str] = []
    spans: list[_Span] = []
    length = depth = position = 0
    for tag in _TAG.finditer(text):
        closing = bool(tag[1])
        if depth == 0 and not closing:
            pieces += [text[position : tag.start()], "[private]"]
            length += tag.start() - position + len("[private]")
            spans.append(_Span(length - len("[private]"), length, PRIVATE_PART))
        if depth or not closing:
            depth += -1 if closing else 1
            position = tag.end()
    return "".join(pieces) + ("" if depth else text[position:]), spans


def _secrets(secret: _Format, text: str) -> Iterator[_Span]:
    for found in re.finditer(secret.pattern, text, re.ASCII | re.DOTALL):
        yield _Span(*found.span("secret" if "secret" in found.re.groupindex else 0), secret.name)


def _joined(spans: list[_Span]) -> list[_Span]:
    """The spans in order; those that overlap become one with the name of the first."""
    joined: list[_Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if joined and span.start < joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(span.end, joined[-1].end))
        else:
            joined.append(span)
    return joined
