"""Times as people and programs write them: ISO 8601, with or without a zone, and phrases such as "last week" or 三天前.

A day is a day of the calendar in a zone, which is not always 24 hours long; an hour is an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import reduce
from typing import TYPE_CHECKING

from mcp_memory.errors import InvalidInput

if TYPE_CHECKING:
    from mcp_memory.times.meanings import Stretch
    from mcp_memory.times.relations import Time
    from mcp_memory.times.words import Word

BEGINNING, END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""The ends of a range that has none there ("before May"), and of the years that can be written."""

READ = 1_000
"""Characters of a query in which a time is looked for; questions are shorter."""

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """The range of time that a text names, in UTC, both ends included, and the part of the text that names it."""

    since: datetime
    until: datetime
    start: int
    end: int


def instant(text: str, zone: tzinfo, argument: str = "timestamp") -> datetime:
    """The moment that a text names, in UTC. A time without a zone is in `zone`, a date alone is its beginning.

    Raises InvalidInput, naming `argument`, for what is no date of the calendar.
    """
    moments = _moments(text, zone)
    if not moments:
        raise InvalidInput(
            f"{argument}: {text[:40]!r} is not a date. Write 2026-05-01, 2026-05-01T14:30 or 2026-05-01T14:30:00+02:00."
        )
    return moments[0]


def since(text: str, zone: tzinfo, now: datetime) -> datetime | None:
    """The first moment of a range: one of ISO 8601, or where a day or a phrase such as "last week" begins. None for an
    empty text.

    Raises InvalidInput for what is neither.
    """
    return _ends(text, zone, now, "since")[0] if text.strip() else None


def until(text: str, zone: tzinfo, now: datetime) -> datetime | None:
    """The last moment of a range: one of ISO 8601, or where a day or a phrase such as "last week" ends. None for an
    empty text.

    Raises InvalidInput for what is neither.
    """
    return _ends(text, zone, now, "until")[1] if text.strip() else None


def shown(moment: datetime) -> str:
    """A moment as answers write it: ISO 8601 in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def mentioned(query: str, now: datetime, zone: tzinfo) -> Span | None:
    """The time of which a question speaks, seen from `now`: "last week", "in May 2023", 去年三月. Of several times what
    they have in common, or else the range that holds them all. None where it speaks of none, or of one to come, or where
    a word only might be one.
    """
    from mcp_memory.times import phrases, relations, words  # late: a server's first answer must not wait for them

    row = words.words(query[:READ])
    here = _seen(now, zone)
    found = relations.times(row, phrases.found(row, here), here)
    begun = [named for named in found if named.stretch.start <= here.replace(tzinfo=None)]
    times = [named for named in begun if not named.vague] or begun
    return reduce(_joined, [_span(named, row, zone) for named in times]) if times else None


def _span(named: Time, row: Sequence[Word], zone: tzinfo) -> Span:
    limits = _limits(named.stretch, zone, named.stretch.slack)
    return Span(*limits, row[named.first].start, row[named.end - 1].end)


def _joined(one: Span, other: Span) -> Span:
    since, until = max(one.since, other.since), min(one.until, other.until)
    if since > until:
        since, until = min(one.since, other.since), max(one.until, other.until)
    return Span(since, until, min(one.start, other.start), max(one.end, other.end))


def _seen(now: datetime, zone: tzinfo) -> datetime:
    """The time in a zone, or as it is at the ends of the calendar, beyond which there is no other."""
    try:
        return now.astimezone(zone)
    except OverflowError:
        return now


def _ends(text: str, zone: tzinfo, now: datetime, argument: str) -> tuple[datetime, datetime]:
    """The first and the last moment of what a text names, in UTC."""
    from mcp_memory.times import phrases, words

    written = text.strip().replace("/", "-")
    try:
        day = date.fromisoformat(written)
        return _utc(datetime.combine(day, time()), zone), _utc(datetime.combine(day, time.max.replace(fold=1)), zone)
    except ValueError:
        pass  # it is no day
    if moments := _moments(text, zone):
        return min(moments), max(moments)
    stretch = phrases.whole(words.words(text[:READ]), _seen(now, zone))
    if stretch is None:
        raise InvalidInput(
            f"{argument}: {text[:40]!r} is not a time. Write 2026-05-01, 2026-05-01T14:30, 2026-05-01T14:30:00+02:00, or "
            "words such as 7 days ago, yesterday, last week, May 2026 or 三天前."
        )
    return _limits(stretch, zone)


def _moments(text: str, zone: tzinfo) -> list[datetime]:
    """What a date or a time of ISO 8601 may mean, in UTC: two moments where clocks are put back or forward and show it
    twice or never, none where it is no such thing."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("/", "-"))
        return [
            (moment if moment.tzinfo else moment.replace(tzinfo=zone, fold=fold)).astimezone(UTC) for fold in (0, 1)
        ]
    except (ValueError, OverflowError):
        return []


def _limits(stretch: Stretch, zone: tzinfo, slack: timedelta = timedelta(0)) -> tuple[datetime, datetime]:
    """Its first and its last moment in UTC."""
    first, end = _utc(stretch.start, zone, -slack), _utc(stretch.end, zone, slack)
    return first, max(first, end - _TICK)


def _utc(local: datetime, zone: tzinfo, more: timedelta = timedelta(0)) -> datetime:
    """What the clock of a zone shows, or will after some time more, in UTC; within the years that there are."""
    try:
        shown = local + more if more else local  # a sum would forget which of two like hours this is
        return shown.replace(tzinfo=zone).astimezone(UTC)
    except OverflowError:
        return BEGINNING if local.year == 1 else END
