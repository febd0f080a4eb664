"""Phrases that name a time, English and Chinese, found in a text.

Libraries were tried first, on fifty questions. dateparser and dateutil find dates in "may I", "he sat down" and "room
2022", give points where ranges are meant, and miss much of the Chinese; parsedatetime knows none and looks ahead.
Microsoft's recognizers come closest, but have been left alone since 2019 and start only with packages of that year.

A pattern is a row of kinds of words (`words.KINDS`):

    month  week|weekend          a word of this kind, of one of these
    day=number                   what it reads is kept under this name
    the?  [ of the? year ]       there or not
    ...                          up to four words
    <!every|next  >!of           none of these before, behind
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TypeVar

from mcp_memory.times import meanings
from mcp_memory.times.meanings import Groups, Meaning, Stretch
from mcp_memory.times.words import DAY, KINDS, MORE_KINDS, Word

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of phrase. One that has other meanings, too, is a time only `behind` what this pattern reads. What has a
    `cycle` comes again after it; a `vague` one gives way to any other.

    Without a meaning it is no time to search for: what lies ahead, and what comes again and again.
    """

    meaning: Meaning | None
    patterns: tuple[str, ...]
    behind: str = ""
    cycle: timedelta = timedelta(0)
    vague: bool = False


@dataclass(frozen=True, slots=True)
class Phrase:
    """The words from `first` up to `end` in a row, and what they mean by themselves."""

    first: int
    end: int
    rule: Rule
    groups: Groups
    stretch: Stretch

    @property
    def cycle(self) -> timedelta:
        """After what time it comes again; nothing where it says of which year or week it is."""
        fixed = any(self.groups.get(name) for name in ("year", "back", "which"))
        return timedelta(0) if fixed else self.rule.cycle

    def seen_from(self, now: datetime) -> Stretch:
        """What it means at another time. Raises one of `NO_SUCH_TIME`."""
        assert self.rule.meaning is not None
        return self.rule.meaning(self.groups, now)


def found(row: Sequence[Word], now: datetime) -> list[Phrase]:
    """The phrases among the words of a text, in order, as they are meant at `now`, a time with a zone."""
    read = codes([word.kind for word in row])
    phrases = []
    for rule, match in longest(read, [(rule, rule.patterns) for rule in RULES]):
        groups = _groups(match, row)
        if stretch := _meant(rule, groups, now):
            phrases.append(Phrase(*match.span(), rule, groups, stretch))
    return phrases


def whole(row: Sequence[Word], now: datetime) -> Stretch | None:
    """What these words mean, where they are one phrase and nothing else."""
    read = codes([word.kind for word in row])
    for rule in RULES:
        for each in rule.patterns:
            if (match := pattern(each).fullmatch(read)) and (stretch := _meant(rule, _groups(match, row), now)):
                return stretch
    return None


def _meant(rule: Rule, groups: Groups, now: datetime) -> Stretch | None:
    try:
        return rule.meaning(groups, now) if rule.meaning else None
    except meanings.NO_SUCH_TIME:
        return None


def _groups(match: re.Match[str], row: Sequence[Word]) -> Groups:
    return {name: row[match.start(name)].text for name in match.re.groupindex if match[name]}


# ---- patterns

_CODES = {kind: chr(0x100 + at) for at, kind in enumerate([*KINDS, *MORE_KINDS, "time", "maybe"])}
"""A character for each kind, so that a row of words is a text that regular expressions read."""

_KEPT = (
    "iso|year|month|day|last|season|holiday|vague|side|part|number|unit|weekday|back|which|time|second|place"
).split("|")


@cache
def pattern(row: str) -> re.Pattern[str]:
    """A pattern as a regular expression over the codes of kinds."""
    return re.compile("".join(map(_item, row.split())))


def codes(kinds: Sequence[str]) -> str:
    return "".join(_CODES[kind] for kind in kinds)


def longest(read: str, rules: Iterable[tuple[R, Sequence[str]]]) -> list[tuple[R, re.Match[str]]]:
    """What matches, in order. Of matches that overlap the longer stands, of those as long the first rule's."""
    matches = [(rule, match) for rule, rows in rules for row in rows for match in pattern(row).finditer(read)]
    matches.sort(key=lambda item: item[1].start() - item[1].end())
    taken = bytearray(len(read))
    standing = []
    for rule, match in matches:
        first, end = match.span()
        if not any(taken[first:end]):
            taken[first:end] = b"\1" * (end - first)
            standing.append((rule, match))
    return sorted(standing, key=lambda item: item[1].start())


def stands_behind(row: str, read: str) -> bool:
    """Whether what has been read ends with this pattern."""
    most = len(row.split())
    return any(pattern(row).fullmatch(read, len(read) - count) for count in range(1, min(most, len(read)) + 1))


def _item(item: str) -> str:
    match item[:2]:
        case "[":
            return "(?:"
        case "]":
            return ")?"
        case "..":
            return ".{0,4}"
        case "<!":
            return f"(?<!{_any(item[2:])})"
        case ">!":
            return f"(?!{_any(item[2:])})"
    name, _, kinds = item.rstrip("?").rpartition("=")
    name = name or kinds.partition("|")[0]
    kept = f"(?P<{name}>{_any(kinds)})" if name in _KEPT else _any(kinds)
    return kept + "?" * item.endswith("?")


def _any(kinds: str) -> str:
    return "[" + codes([kind.replace("_", " ") for kind in kinds.split("|")]) + "]"


# ---- the phrases

_UNIT = "unit=unit|week|month's|year's"
_NUMBER = "number=number|day"
_MONTH = "month=month|May|may"
_SIDE = "the? side of|in|-? the?"
_YEAR = "[ ,? of|in? year ]"
_TO = "to|until|and|-"
_TIMES = "x=month|May|may|weekday|sun|season|holiday|part|unit|week|weekend|month's|year's"

RULES = (
    Rule(meanings.iso, ("iso",)),
    Rule(
        meanings.a_date,
        (
            f"[ weekday|sun ,? ] the? day=day|nth of? month=month|May {_YEAR} [ ,? of? back=last|this year's ]",
            f"[ weekday|sun ,? ] the? day=day|nth of? {_MONTH} ,? year",
            f"[ weekday|sun ,? ] the? day=nth of? {_MONTH}",
            f"[ weekday|sun ,? ] month the? day=day|nth {_YEAR} [ ,? of? back=last|this year's ]",
            f"[ weekday|sun ,? ] {_MONTH} the? day=day|nth ,? of? year",
            f"[ weekday|sun ,? ] {_MONTH} the? day=nth",
            f"the? day=day|nth {_TO} the? last=day|nth of? month=month|May {_YEAR}",
            f"month=month|May the? day=day|nth {_TO} the? last=day|nth {_YEAR}",
            "[ year 年 的? ] [ back=去年 的? ] <!day|number month=day 月 的? day 日",
            "[ year 年 的? ] [ back=去年 的? ] <!day|number month=day 月 day 日? to|- last=day 日",
        ),
        cycle=365 * DAY,
    ),
    Rule(meanings.a_date, (f"{_MONTH} day", f"day of? {_MONTH}"), behind="on", cycle=365 * DAY),
    Rule(
        meanings.a_month,
        (
            f"[ {_SIDE} ] {_MONTH} ,? of|in? year",
            f"[ {_SIDE} ] month=month|May ,? of|in? back=last|this year's",
            f"{_SIDE} month=month|May",
            "<!the which=last|this month=month|May",
            "year 年 的? month=day 月 份? 的? side?",
            "back=去年 的? month=day 月 份? 的? side?",
            "<!number|day|every month=day 月 份? 的? side?",
        ),
        cycle=365 * DAY,
    ),
    Rule(meanings.a_month, (f"{_MONTH} >!'s",), behind="in|during the?", cycle=365 * DAY),
    Rule(
        meanings.a_year,
        (f"{_SIDE} [ year's ] year", "the? year's year", "year 年 的? side?", "year side", "back=去年 的? side?"),
    ),
    Rule(meanings.a_year, ("year >!'s|-|unit|counted",), behind="in|during|of the?"),
    Rule(
        meanings.a_season,
        (
            f"[ {_SIDE} ] season ,? of|in? year",
            f"[ {_SIDE} ] season of|in? back=last|this year's",
            "<!the which=last|this season",
            "back=last|this year's 's season",
            "year 年 的? season",
            "back=去年 的? season",
            "which=上 season",
        ),
        cycle=365 * DAY,
    ),
    Rule(meanings.a_season, ("season >!of",), behind="in|over|during the", cycle=365 * DAY),
    Rule(
        meanings.a_holiday,
        (
            "holiday ,? of|in? year",
            "holiday of|in? back=last|this year's",
            "<!the which=last|this holiday",
            "year 年 的? holiday",
            "back=去年 的? holiday",
            "which=上 holiday",
        ),
        cycle=365 * DAY,
    ),
    Rule(meanings.a_holiday, ("holiday",), behind="at|on|over|during|for|在", cycle=365 * DAY),
    Rule(
        meanings.a_weekday,
        (
            "<!the which=last|past|this weekday part?",
            "<!上|next|every|number|day|个 week weekday=day|日|天 的? part? >!次",
        ),
        cycle=7 * DAY,
    ),
    Rule(meanings.a_weekday, ("weekday part? >!evenings",), behind="on", cycle=7 * DAY),
    Rule(
        meanings.day_of_week,
        (
            "weekday part? ,? of? back=last|this week",
            "back=last|this week ,? on? weekday part?",
            "back=上 week weekday=day|日|天 的? part?",
        ),
    ),
    Rule(meanings.day_of_month, ("back=上 月 的? day 日",)),
    Rule(
        meanings.relative_day,
        ("back=yesterday 's? 的? part?", "<!the back=last|this part", "part=tonight", "back=昨 part=晚"),
    ),
    Rule(
        meanings.relative_unit,
        (
            "<!the back=last unit=week|month's|year's|weekend >!of",
            "back=this unit=week|month's|year's|weekend >!of",
            f"{_SIDE} back=last|this unit=month's|year's",
            "the? unit=week|month's|year's|weekend back=before_last",
            "back=上 unit=week|weekend",
            "back=上 unit=月 份? 的? side?",
        ),
    ),
    Rule(meanings.latest_weekend, ("weekend",), behind="at|on|over|during the", cycle=7 * DAY),
    Rule(
        meanings.ago,
        (
            f"{_NUMBER} {_UNIT} ago yesterday?",
            f"<!number|day {_NUMBER} 个? unit=unit|week|天|年 多? 前",
            f"<!number|day {_NUMBER} 个 unit=月 多? 前",
        ),
    ),
    Rule(
        meanings.past,
        (
            f"the? last|past {_NUMBER} {_UNIT} >!of",
            "the last|past unit=week|month's|year's >!of",
            "past unit=week|month's|year's >!of",
            f"近|vague 的? {_NUMBER} 个? unit=unit|week|天|年|月 以来|里?",
        ),
    ),
    Rule(meanings.vaguely, ("<!most vague >!的",), vague=True),
    Rule(
        None,
        (
            f"every|next [ single|number|day ] {_TIMES} [ in|on|of? {_TIMES} ]",
            "weekday evenings",
            f"{_MONTH}|weekday|season of? next week|year's",
            "every|next 个? week|weekend|月|年|天 [ day|日|天 ] 的? part?",
            "every|next 的? [ x=day 月 [ x=day 日 ] ] season? holiday? part?",
            "number|day 个? week|月|年|天 [ day|number ] 次",
            "vague number|day 次",
            "week x=day|日|天 to|- week x=day|日|天",
            "离 ... vague",
        ),
    ),
)
"""Of two that read the same words the first is taken."""
