"""What a model or an agent proposes to change in a profile, checked one by one: a bad command costs itself, never the
others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_memory import text
from mcp_memory.errors import InvalidInput
from mcp_memory.types import CLASSES, AddFeature, Command, DeleteFeature, EpisodeClass, Feature

MOST = 100
"""Commands of one answer that are looked at."""

TAG_LIMIT, FEATURE_LIMIT, VALUE_LIMIT = 60, 120, 500
"""Characters."""

_PLACEHOLDER = re.compile(r"<[^<>]*>|\{[^{}]*\}|\[[^\[\]]*\]|\W+|tag|feature|value|n/?a|none|null|unknown|string", re.I)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What commands may cite: the log positions behind each number or id that was shown. `context` was shown beside it and
    proves nothing."""

    positions: Mapping[str, tuple[int, ...]]
    context: frozenset[str] = frozenset()

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(sorted({seq for seqs in self.positions.values() for seq in seqs}))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A command that was not applied, shortened, and why."""

    command: str
    reason: str


@dataclass(frozen=True, slots=True)
class Classified:
    """What an episode was found to be."""

    seq: int
    category: EpisodeClass
    importance: float


@dataclass(frozen=True, slots=True)
class Checked:
    """What of an answer can be applied: deletions first, so that a slot is free for what follows."""

    commands: tuple[Command, ...] = ()
    classified: tuple[Classified, ...] = ()
    refused: tuple[Refusal, ...] = ()


class _Refused(Exception):
    pass


def check(
    proposed: Sequence[Any],
    evidence: Evidence,
    known: Sequence[Feature],
    category: str,
    single: Callable[[str], bool],
) -> Checked:
    """The commands of an answer about `category` that can be applied. `known` are the facts that a deletion may name,
    `single` tells of a tag whether its slots hold one value at a time."""
    deletions: dict[DeleteFeature, None] = {}
    additions: dict[AddFeature, None] = {}
    classified: list[Classified] = []
    refused: list[Refusal] = []
    for item in proposed[:MOST]:
        try:
            match _kind(item, category):
                case "add":
                    additions[_addition(item, evidence, category, single)] = None
                case "delete":
                    deletions[_deletion(item, evidence, known)] = None
                case _:
                    classified.append(_classification(item, evidence))
        except _Refused as why:
            refused.append(Refusal(text.shorten(text.clean(str(item)), 30), text.clean(str(why))))
    if len(proposed) > MOST:
        refused.append(Refusal(f"{len(proposed) - MOST} more", f"only {MOST} commands are read at once"))
    return Checked((*deletions, *additions), tuple(classified), tuple(refused))


def by_hand(category: str, tag: str, feature: str, value: str) -> AddFeature:
    """What a person wants a slot to hold. Raises InvalidInput where a part of it cannot be."""
    named = {"category": category, "tag": tag, "feature": feature, "value": value}
    try:
        command = _addition(named, Evidence({}), _named(named, "category", TAG_LIMIT), lambda _: True)
    except _Refused as why:
        raise InvalidInput(f"profile: {why}.") from None
    return replace(command, confidence=1.0)


def _kind(item: Any, category: str) -> str:
    if not isinstance(item, Mapping):
        raise _Refused("not a command")
    kind = item.get("command")
    if kind not in ("add", "delete", "classify"):
        raise _Refused("command is neither add nor delete")
    if kind != "classify" and item.get("category") not in (None, "", category):
        raise _Refused(f"the category asked for is {category}")
    return str(kind)


def _addition(item: Mapping[str, Any], evidence: Evidence, category: str, single: Callable[[str], bool]) -> AddFeature:
    tag = _named(item, "tag", TAG_LIMIT).casefold()
    return AddFeature(
        category=category,
        tag=tag,
        feature=_named(item, "feature", FEATURE_LIMIT),
        value=_named(item, "value", VALUE_LIMIT).rstrip(".。"),
        citations=_cited(item, evidence),
        single=single(tag),
        importance=LASTING if single(tag) else PASSING,
    )


LASTING, PASSING = 0.8, 0.6
"""The importance of a fact in a slot that holds one value (a name, a home), and of any other."""


def _deletion(item: Mapping[str, Any], evidence: Evidence, known: Sequence[Feature]) -> DeleteFeature:
    value = text.folded(str(item.get("value") or "")).rstrip(".。")
    if item.get("id"):
        named = [fact for fact in known if fact.id == str(item["id"])]
        value = text.folded(named[0].value) if named else ""
    else:
        slot = (text.folded(_named(item, "tag", TAG_LIMIT)), text.folded(_named(item, "feature", FEATURE_LIMIT)))
        named = [fact for fact in known if (text.folded(fact.tag), text.folded(fact.name)) == slot]
        named = [fact for fact in named if not value or text.folded(fact.value) == value]
    if not named:
        raise _Refused("no such fact is known")
    fact = named[0]
    return DeleteFeature(fact.category, fact.tag, fact.name, fact.value if value else "", _cited(item, evidence))


def _classification(item: Mapping[str, Any], evidence: Evidence) -> Classified:
    positions = evidence.positions.get(_key(item.get("line")))
    category, importance = item.get("category"), item.get("importance", 0.5)
    if positions is None:
        raise _Refused("line is not in the batch")
    if category not in CLASSES:
        raise _Refused(f"category is not one of {', '.join(CLASSES)}")
    if not isinstance(importance, int | float) or isinstance(importance, bool) or not 0 <= importance <= 1:
        raise _Refused("importance is not a number from 0 to 1")
    return Classified(positions[0], category, float(importance))


def _named(item: Mapping[str, Any], field: str, limit: int) -> str:
    value = item.get(field)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise _Refused(f"{field} is missing")
    said = " ".join(text.clean(str(value)).split())
    if not said:
        raise _Refused(f"{field} is empty")
    if _PLACEHOLDER.fullmatch(said):
        raise _Refused(f"{field} is a placeholder")
    if len(said) > limit:
        raise _Refused(f"{field} is longer than {limit} characters")
    return said


def _cited(item: Mapping[str, Any], evidence: Evidence) -> tuple[int, ...]:
    """The log positions that a command rests on: what it cites, or everything where it cites nothing."""
    cited = item.get("citations") or []
    keys = [_key(one) for one in (cited if isinstance(cited, list) else [cited])]
    for key in keys:
        if key not in evidence.positions and key not in evidence.context:
            raise _Refused(f"it cites {text.shorten(key, 8)}, which is not in the batch")
    positions = {seq for key in keys for seq in evidence.positions.get(key, ())}
    if keys and not positions:
        raise _Refused("it cites nothing that the user said")
    return tuple(sorted(positions)) if keys else evidence.all


def _key(shown: Any) -> str:
    return str(shown).strip("[]# ")
