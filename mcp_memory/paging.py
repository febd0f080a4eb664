"""Cursors of a search: opaque, self-contained, bound to the question, good in any process and after a restart."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mcp_memory import queries
from mcp_memory.errors import InvalidCursor
from mcp_memory.types import Question, Scope

if TYPE_CHECKING:
    from mcp_memory.retrieval import Found

MOST_GIVEN = 10_000
"""How far one can page."""


def cursor(scope: Scope, question: Question, found: Found, shown: int) -> str:
    """Where to go on after the first `shown` hits, for any process and after a restart; "" where nothing follows."""
    if not shown or (shown == len(found.hits) and not found.more):
        return ""
    last = found.hits[shown - 1]
    score = last.score if question.query.strip() else _microseconds(last.episode.occurred_at)
    asked_at = _microseconds(question.asked_at or _EPOCH)
    content = [found.upto, score, last.episode.seq, question.given + shown, asked_at, _fingerprint(scope, question)]
    carried = [question.rewrites] if question.rewrites else []
    written = json.dumps([*content, *carried], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(written.encode()).decode().rstrip("=")


def resumed(scope: Scope, question: Question, given: str) -> Question:
    """The question, going on at a cursor. Raises InvalidCursor where that is not a cursor of this very question."""
    try:
        upto, score, seq, count, asked_at, fingerprint, *rewrites = json.loads(_decoded(given))
        going_on = replace(
            question,
            upto=int(upto),
            after=(float(score), int(seq)),
            given=min(int(count), MOST_GIVEN),
            asked_at=moment(int(asked_at)),
            rewrites=_rewrites(*rewrites),
        )
    except _UNREADABLE:
        raise InvalidCursor("cursor: not a cursor of this server. Leave it out to start from the first page.") from None
    if fingerprint != _fingerprint(scope, question):
        raise InvalidCursor(
            "cursor: it belongs to another search. Repeat query, filter, range, order and mode, or leave the cursor out."
        )
    return going_on


def asked_at(given: str) -> datetime | None:
    """When the question of a cursor was asked first, from where "last week" is seen; None where that is no cursor."""
    try:
        return moment(int(json.loads(_decoded(given))[4]))
    except (*_UNREADABLE, LookupError, InvalidCursor):
        return None


_UNREADABLE = (binascii.Error, ValueError, TypeError, OverflowError, RecursionError)


def _decoded(cursor: str) -> bytes:
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


def _rewrites(carried: Sequence[str] = ()) -> tuple[str, ...]:
    """What a cursor carries of a question that was searched for in several. Raises ValueError for anything else."""
    fitting = [queries.fitting(query) if isinstance(query, str) else "" for query in carried]
    if len(fitting) > queries.MOST or not all(fitting):
        raise ValueError("not what a cursor carries")
    return tuple(fitting)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(microseconds: float) -> datetime:
    """The time so long after 1970, as cursors carry it. Raises InvalidCursor where there is none."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidCursor("cursor: not a cursor of this server.") from None


def _fingerprint(scope: Scope, question: Question) -> str:
    asked = repr((scope, question.query, question.selection, question.order, question.mode))
    return hashlib.blake2b(asked.encode("utf-8", "replace"), digest_size=6).hexdigest()
