"""Dialogues labelled by hand, and how well a profile drawn from one agrees with its labels.

`data/dialogues_en.jsonl` and `data/dialogues_zh.jsonl` hold one dialogue a line:

    {"id", "traps", "user", "messages": [{"role", "speaker", "timestamp", "content"}],
     "facts": [{"tag", "any", "note"}], "ended": [{"any"}], "neutral": [[...]], "never": [[...]]}

Labels tell what a sensible long-term profile of the user holds at the end: what they said of themself and meant. `any`, and
each list in `neutral` and `never`, are regular expressions of which one has to occur in the case-folded text of a fact.
`note` is such a fact as a careful reader would write it; the notes of a dialogue are a perfect profile. `user` is the
user's name, or "". A message of role user with another `speaker` is somebody else in the same chat.

A current fact is judged by the first of these that it matches:

- `never`: forbidden, in the history too. It counts as wrong where it is current.
- `ended`: wrong. It was true, and may stand in the history.
- `facts`: found.
- `neutral`: true, but nothing that a profile has to hold. It counts neither way.

What matches nothing is wrong: it was not said. Over any number of dialogues,

    fact precision = found / (found + wrong)      over current facts
    fact recall    = labels found / labels        over the entries of `facts`, each counted once

so that two facts for one label are both right and find it once. Both are 1 where there is nothing to divide by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

DATA = Path(__file__).parent / "data"

LANGUAGES = ("en", "zh")

TRAPS = (
    "negation", "question", "hypothetical", "quoting", "guess", "change", "temporary", "two_users", "irony", "third_person",
    "plans",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `speaker` is "" where the chat does not say who of the people in it wrote."""

    role: Literal["user", "assistant"]
    speaker: str
    said_at: datetime
    content: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """Regular expressions for one statement, of which one has to occur in what is matched."""

    any: tuple[re.Pattern[str], ...]

    def matches(self, text: str) -> bool:
        folded = text.casefold()
        return any(pattern.search(folded) for pattern in self.any)


@dataclass(frozen=True, slots=True)
class Label:
    """A fact that a perfect profile holds; `note` is that fact in words."""

    tag: str
    pattern: Pattern
    note: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    id: str
    traps: tuple[str, ...]
    user: str
    turns: tuple[Turn, ...]
    facts: tuple[Label, ...]
    ended: tuple[Pattern, ...]
    neutral: tuple[Pattern, ...]
    never: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """What became of one dialogue: current facts that are `found` or `wrong`, the labels that those `found` meet (`known`)
    and the others (`missed`), and `forbidden` facts, current or ended."""

    found: tuple[str, ...]
    wrong: tuple[str, ...]
    known: tuple[Label, ...]
    missed: tuple[Label, ...]
    forbidden: tuple[str, ...]


def dialogues(language: str) -> list[Dialogue]:
    return read(DATA / f"dialogues_{language}.jsonl")


def read(path: Path) -> list[Dialogue]:
    """The dialogues of a file. Raises KeyError, ValueError or re.error where a line is not one."""
    return [_dialogue(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def score(dialogue: Dialogue, current_facts_texts: Iterable[str], all_facts_texts: Iterable[str]) -> Score:
    """Judge a profile by the texts of its facts ("lives in Turku"): those that hold at the end, and all that ever did."""
    current = list(dict.fromkeys(current_facts_texts))
    verdicts = {text: _verdict(dialogue, text) for text in current}
    found = [text for text in current if verdicts[text] == "found"]
    known = [label for label in dialogue.facts if any(map(label.pattern.matches, found))]
    return Score(
        found=tuple(found),
        wrong=tuple(text for text in current if verdicts[text] == "wrong"),
        known=tuple(known),
        missed=tuple(label for label in dialogue.facts if label not in known),
        forbidden=tuple(text for text in dict.fromkeys([*current, *all_facts_texts]) if _is_in(dialogue.never, text)),
    )


def precision(scores: Sequence[Score]) -> float:
    """The share of the current facts that are right, neutral ones left out."""
    found = sum(len(score.found) for score in scores)
    return _share(found, sum(len(score.wrong) for score in scores))


def recall(scores: Sequence[Score]) -> float:
    """The share of the labels that a current fact meets."""
    known = sum(len(score.known) for score in scores)
    return _share(known, sum(len(score.missed) for score in scores))


def _verdict(dialogue: Dialogue, text: str) -> Literal["found", "neutral", "wrong"]:
    if _is_in(dialogue.never, text) or _is_in(dialogue.ended, text):
        return "wrong"
    if _is_in([label.pattern for label in dialogue.facts], text):
        return "found"
    return "neutral" if _is_in(dialogue.neutral, text) else "wrong"


def _is_in(patterns: Iterable[Pattern], text: str) -> bool:
    return any(pattern.matches(text) for pattern in patterns)


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else 1.0


def _dialogue(line: str) -> Dialogue:
    data = json.loads(line)
    return Dialogue(
        id=data["id"],
        traps=tuple(data["traps"]),
        user=data["user"],
        turns=tuple(
            Turn(turn["role"], turn["speaker"], datetime.fromisoformat(turn["timestamp"]), turn["content"])
            for turn in data["messages"]
        ),
        facts=tuple(Label(fact["tag"], _pattern(fact["any"]), fact["note"]) for fact in data["facts"]),
        ended=tuple(_pattern(fact["any"]) for fact in data["ended"]),
        neutral=tuple(_patterns(data["neutral"])),
        never=tuple(_patterns(data["never"])),
    )


def _patterns(listed: list[list[str]]) -> Iterator[Pattern]:
    return map(_pattern, listed)


def _pattern(alternatives: list[str]) -> Pattern:
    return Pattern(tuple(re.compile(alternative, re.IGNORECASE) for alternative in alternatives))
