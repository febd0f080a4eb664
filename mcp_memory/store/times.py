"""How the tables keep a time: whole microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(time: datetime) -> int:
    """Microseconds since 1970, UTC: how the tables keep a time."""
    return (time - EPOCH) // timedelta(microseconds=1)


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
