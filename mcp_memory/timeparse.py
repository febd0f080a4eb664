"""Dates and times as callers write them: ISO 8601, with or without a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from mcp_memory.errors import InvalidInput

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DAY = timedelta(days=1)
_TICK = timedelta(microseconds=1)


def instant(text: str, zone: tzinfo, argument: str = "timestamp") -> datetime:
    """The moment that a text names, in UTC. A time without a zone is in `zone`, a date alone is its beginning.

    Raises InvalidInput, naming `argument`, for what is no date of the calendar.
    """
    written = text.strip().replace("/", "-")
    try:
        moment = datetime.fromisoformat(written)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{argument}: {text[:40]!r} is not a date. Write 2026-05-01, 2026-05-01T14:30 or 2026-05-01T14:30:00+02:00."
        ) from None


def since(text: str, zone: tzinfo) -> datetime | None:
    """The first moment of a range; None for an empty text."""
    return instant(text, zone, "since") if text.strip() else None


def until(text: str, zone: tzinfo) -> datetime | None:
    """The last moment of a range; a date alone is the end of that day. None for an empty text."""
    if not text.strip():
        return None
    moment = instant(text, zone, "until")
    if _DATE.fullmatch(text.strip().replace("/", "-")):
        # a day of the zone, which is not always 24 hours long
        next_day = (moment.astimezone(zone).replace(tzinfo=None) + _DAY).replace(tzinfo=zone)
        return next_day.astimezone(UTC) - _TICK
    return moment


def shown(moment: datetime) -> str:
    """A moment as answers write it: ISO 8601 in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
