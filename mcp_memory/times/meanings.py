"""What phrases that name a time mean: stretches of the calendar, counted from a `now`.

A search asks what has been said, so where a phrase leaves a year or a week open it means the latest that has begun.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from mcp_memory.times.words import (
    BACK,
    DAY,
    HALVES,
    HOLIDAYS,
    LENGTHS,
    MONTHS,
    PARTS,
    ROUGH,
    ROUND_NUMBERS,
    SEASONS,
    SIDES,
    UNITS,
    VAGUE,
    WEEKDAYS,
    number,
)

Groups = Mapping[str, str]
"""The words of a phrase by the names that its pattern gives them."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `start` up to `end`, which is not part of it, on the clock of a zone that is left open. What was told roughly
    ("three weeks ago") may have been `slack` earlier or later."""

    start: datetime
    end: datetime
    slack: timedelta = timedelta(0)


Meaning = Callable[[Groups, datetime], Stretch]
"""What a phrase means at a time, which has a zone. Raises one of `NO_SUCH_TIME`."""

NO_SUCH_TIME = (ValueError, LookupError, OverflowError)
"""What the calendar lacks: 31 April, 周九, 9999 years ago."""


# ---- the calendar


def midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def days(first: date, count: int = 1) -> Stretch:
    return Stretch(midnight(first), midnight(first + count * DAY))


def week(day: date) -> Stretch:
    """The week of a day, from its Monday."""
    return days(day - day.weekday() * DAY, 7)


def weekend(day: date) -> Stretch:
    """The end of the week of a day."""
    return days(day + (5 - day.weekday()) * DAY, 2)


def months(year: int, month: int, count: int = 1) -> Stretch:
    """Months in a row; the first may lie outside 1 to 12."""
    at = year * 12 + month - 1
    return Stretch(_first_of(at), _first_of(at + count))


def _first_of(month: int) -> datetime:
    """Where a month begins, counted from January of the year 0."""
    return midnight(date(month // 12, month % 12 + 1, 1))


def moved(day: date, count: int, unit: str) -> date:
    """So many days, weeks, months or years later; the end of a month stands for days that it lacks."""
    if unit in ("day", "week"):
        return day + count * (7 if unit == "week" else 1) * DAY
    at = day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1)
    year, month = at // 12, at % 12 + 1
    return date(year, month, min(day.day, monthrange(year, month)[1]))


def clock(now: datetime) -> datetime:
    """What the clock of its zone shows."""
    return now.replace(tzinfo=None)


# ---- meanings


def _yearly(make: Callable[[Groups, int], Stretch]) -> Meaning:
    """What there is once a year. Where no year is named it is the latest that has begun; with "last" the latest that is
    over, with "this" the one that goes on or else this year's."""

    def meaning(groups: Groups, now: datetime) -> Stretch:
        if "year" in groups:
            return make(groups, number(groups["year"]))
        if "back" in groups:
            return make(groups, now.year - BACK[groups["back"]])
        here = clock(now)
        begun = [stretch for stretch in _years(make, groups, now.year) if stretch.start <= here]
        if "which" not in groups:
            return begun[0]
        over = [stretch for stretch in begun if stretch.end <= here]
        if count := BACK[groups["which"]]:
            return over[count - 1]
        return begun[0] if len(begun) > len(over) else make(groups, now.year)

    return meaning


def _years(make: Callable[[Groups, int], Stretch], groups: Groups, latest: int) -> Iterator[Stretch]:
    """What there was in the latest years, the last first; 29 February is not in each of them."""
    for year in range(latest, latest - 9, -1):
        with suppress(ValueError):
            yield make(groups, year)


def _date(groups: Groups, year: int) -> Stretch:
    first = number(groups["day"])
    last = number(groups.get("last", groups["day"]))
    if last < first:
        raise ValueError("ends before it begins")
    return days(date(year, _month_of(groups), first), last - first + 1)


def _month(groups: Groups, year: int) -> Stretch:
    return _side(months(year, _month_of(groups)), groups)


def _month_of(groups: Groups) -> int:
    month = MONTHS.get(groups["month"]) or number(groups["month"])
    if not 1 <= month <= 12:
        raise ValueError("no month")
    return month


def _season(groups: Groups, year: int) -> Stretch:
    return _side(months(year, SEASONS[groups["season"]], 3), groups)


def _holiday(groups: Groups, year: int) -> Stretch:
    month, day, count = HOLIDAYS[groups["holiday"]]
    return days(date(year, month, day), count)


def _year(groups: Groups, year: int) -> Stretch:
    return _side(months(year, 1, 12), groups)


def _side(stretch: Stretch, groups: Groups) -> Stretch:
    if not (side := groups.get("side")):
        return stretch
    length = stretch.end - stretch.start
    first, last = SIDES[side]
    return Stretch(stretch.start + first * length, stretch.start + last * length)


a_date, a_month, a_season, a_holiday, a_year = map(_yearly, (_date, _month, _season, _holiday, _year))


def iso(groups: Groups, now: datetime) -> Stretch:
    """A day or a month of ISO 8601; a time of the day only has to be one."""
    written, _, hours = groups["iso"].replace("t", " ").partition(" ")
    if hours:
        time.fromisoformat(hours.upper())
    year, month, *day = map(int, written.replace("/", "-").split("-"))
    return days(date(year, month, *day)) if day else months(year, month)


def a_weekday(groups: Groups, now: datetime) -> Stretch:
    """The latest such day, behind "last" before today; behind "this" that of this week."""
    wanted = WEEKDAYS[groups["weekday"]]
    ago = (now.weekday() - wanted) % 7
    match BACK.get(groups.get("which", "")):
        case 1:
            ago = ago or 7
        case 0:
            ago = now.weekday() - wanted
    return _hours(now.date() - ago * DAY, groups)


def day_of_week(groups: Groups, now: datetime) -> Stretch:
    monday = now.date() - (now.weekday() + 7 * BACK[groups["back"]]) * DAY
    return _hours(monday + WEEKDAYS[groups["weekday"]] * DAY, groups)


def day_of_month(groups: Groups, now: datetime) -> Stretch:
    first = months(now.year, now.month - BACK[groups["back"]]).start
    return days(date(first.year, first.month, number(groups["day"])))


def relative_day(groups: Groups, now: datetime) -> Stretch:
    return _hours(now.date() - BACK[groups.get("back", "today")] * DAY, groups)


def _hours(day: date, groups: Groups) -> Stretch:
    if not (part := groups.get("part")):
        return days(day)
    first, last = PARTS[part]
    return Stretch(midnight(day) + timedelta(hours=first), midnight(day) + timedelta(hours=last))


def relative_unit(groups: Groups, now: datetime) -> Stretch:
    today, count = now.date(), BACK[groups["back"]]
    match UNITS[groups["unit"]]:
        case "week":
            return week(today - 7 * count * DAY)
        case "weekend":
            return weekend(today - 7 * count * DAY)
        case "month":
            return _side(months(now.year, now.month - count), groups)
        case _:
            return _side(months(now.year - count, 1, 12), groups)


def latest_weekend(groups: Groups, now: datetime) -> Stretch:
    return weekend(now.date() if now.weekday() >= 5 else now.date() - 7 * DAY)


def ago(groups: Groups, now: datetime) -> Stretch:
    count, unit = _count(groups)
    slack = ROUGH.get(unit, timedelta(0))
    if groups["number"] in ROUND_NUMBERS:
        slack = count * LENGTHS[unit] / 2
    if unit in ("minute", "hour"):
        moment = _before(now, count, unit)
        return Stretch(moment, moment, slack)
    day = days(moved(now.date(), -count, unit))
    return Stretch(day.start, day.end, slack)


def past(groups: Groups, now: datetime) -> Stretch:
    count, unit = _count(groups)
    if unit in ("minute", "hour"):
        return Stretch(_before(now, count, unit), clock(now))
    return Stretch(midnight(moved(now.date(), -count, unit)), clock(now))


def _count(groups: Groups) -> tuple[int, str]:
    unit, amount = UNITS[groups["unit"]], groups.get("number", "one")
    if amount.startswith(("half", "半")):
        if unit not in HALVES:
            raise ValueError(f"half a {unit}")
        return HALVES[unit]
    return (2 * number(amount), "week") if unit == "fortnight" else (number(amount), unit)


def _before(now: datetime, count: int, unit: str) -> datetime:
    """The time so many minutes or hours before, by what passes and not by what clocks show."""
    return clock((now.astimezone(UTC) - count * LENGTHS[unit]).astimezone(now.tzinfo))


def vaguely(groups: Groups, now: datetime) -> Stretch:
    first, last = VAGUE[groups["vague"]]
    return Stretch(midnight(now.date() - first * DAY), midnight(now.date() - (last - 1) * DAY))
