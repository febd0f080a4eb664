"""What is said around phrases: since when, before what, from one to another; and which of them are times at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from mcp_memory.times.meanings import NO_SUCH_TIME, Stretch, clock, moved, week, weekend
from mcp_memory.times.phrases import Phrase, codes, longest, stands_behind
from mcp_memory.times.words import DAY, LENGTHS, UNITS, Word, number

EVER = datetime.min  # noqa: DTZ901  (of a zone that is left open)


@dataclass(frozen=True, slots=True)
class Time:
    """The words from `first` up to `end` in a row, and what they mean where they stand."""

    first: int
    end: int
    stretch: Stretch
    vague: bool = False


@dataclass(frozen=True, slots=True)
class _Related:
    """Phrases and words of a relation by name, and the time at which it is meant."""

    phrases: Mapping[str, Phrase]
    words: Mapping[str, str]
    now: datetime

    @property
    def time(self) -> Stretch:
        return self.phrases["time"].stretch


def _between(related: _Related) -> Stretch:
    """From the beginning of one to the end of another. Where the one says no year it is the latest before the other;
    where only the other says none it is the first after the one."""
    one, other = related.phrases["time"], related.phrases["second"]
    first, second = one.stretch, other.stretch
    zone = related.now.tzinfo
    if one.cycle:
        first = one.seen_from(second.start.replace(tzinfo=zone))
    elif other.cycle:
        second = other.seen_from((first.start + other.cycle).replace(tzinfo=zone))
    return Stretch(first.start, second.end)


def _since(related: _Related) -> Stretch:
    return Stretch(related.time.start, clock(related.now))


def _before(related: _Related) -> Stretch:
    return Stretch(EVER, related.time.start)


def _after(related: _Related) -> Stretch:
    return Stretch(related.time.end, clock(related.now))


def _until(related: _Related) -> Stretch:
    return Stretch(EVER, related.time.end)


def _beside(related: _Related) -> Stretch:
    """So many days or weeks right before or after."""
    count, unit = number(related.words.get("number", "one")), UNITS[related.words["unit"]]
    time, later = related.time, related.words["place"] == "after"
    edge = time.end if later else time.start
    sign = 1 if later else -1
    if unit == "weekend":
        return weekend(edge.date() + 7 * sign * DAY)
    if unit == "fortnight":
        count, unit = 2 * count, "week"
    if unit in ("minute", "hour"):
        far = edge + sign * count * LENGTHS[unit]
    else:
        far = edge + (moved(edge.date(), sign * count, unit) - edge.date())
    return Stretch(min(edge, far), max(edge, far))


def _week_of(related: _Related) -> Stretch:
    return week(related.time.start.date())


def _weekend_of(related: _Related) -> Stretch:
    return weekend(related.time.start.date())


_ONE, _OTHER = "time=time|maybe", "second=time|maybe"

_Meaning = Callable[[_Related], Stretch]

RELATIONS: Sequence[tuple[_Meaning, tuple[str, ...]]] = (
    (
        _between,
        (
            f"between the? {_ONE} and|to|- the? {_OTHER}",
            f"from|since|从 the? {_ONE} 的? to|until|- the? {_OTHER}",
            f"time to|until|- the? {_OTHER}",
            f"in|during|on the? {_ONE} and the? {_OTHER}",
            f"{_ONE} and|to {_OTHER} 之间",
        ),
    ),
    (_since, (f"since|从 the? {_ONE}", f"{_ONE} 以来")),
    (_before, (f"before the? {_ONE}", f"{_ONE} 前")),
    (_after, (f"after the? {_ONE}", f"{_ONE} 后")),
    (_until, (f"until the? {_ONE}",)),
    (_beside, (f"the? number=number|day? unit=unit|week|weekend|month's|year's place=before|after the? {_ONE}",)),
    (_week_of, (f"the? week of the? {_ONE}", f"{_ONE} 的? 那周")),
    (_weekend_of, (f"the? weekend of the? {_ONE}",)),
)


def times(row: Sequence[Word], phrases: Sequence[Phrase], now: datetime) -> Iterator[Time]:
    """The times of a text, from its words and the phrases among them, as they are meant at `now`, a time with a zone."""
    parts = list(_parts(row, phrases))
    joined = codes([part.kind for part in parts])
    left = dict.fromkeys(range(len(parts)))
    for meaning, match in longest(joined, RELATIONS):
        first, end = match.span()
        for at in range(first, end):
            left.pop(at)
        if stretch := _meant(meaning, match, parts, now):
            yield Time(parts[first].first, parts[end - 1].end, stretch)
    read = codes([word.kind for word in row])
    for part in map(parts.__getitem__, left):
        phrase = part.phrase
        if phrase and (not phrase.rule.behind or stands_behind(phrase.rule.behind, read[: phrase.first])):
            yield Time(part.first, part.end, phrase.stretch, phrase.rule.vague)


@dataclass(frozen=True, slots=True)
class _Part:
    """A phrase as one word, or a word that is in none."""

    kind: str
    first: int
    end: int
    text: str
    phrase: Phrase | None


def _parts(row: Sequence[Word], phrases: Sequence[Phrase]) -> Iterator[_Part]:
    beginning = {phrase.first: phrase for phrase in phrases}
    at = 0
    while at < len(row):
        if phrase := beginning.get(at):
            kind = "vague" if phrase.rule.vague else "maybe" if phrase.rule.behind else "time"
            yield _Part(kind, at, phrase.end, "", phrase)
            at = phrase.end
        else:
            yield _Part(row[at].kind, at, at + 1, row[at].text, None)
            at += 1


def _meant(meaning: _Meaning, match: re.Match[str], parts: Sequence[_Part], now: datetime) -> Stretch | None:
    named = {name: parts[match.start(name)] for name in match.re.groupindex if match[name]}
    phrases = {name: part.phrase for name, part in named.items() if part.phrase}
    try:
        stretch = meaning(_Related(phrases, {name: part.text for name, part in named.items()}, now))
    except NO_SUCH_TIME:
        return None
    return stretch if stretch.start <= stretch.end else None
