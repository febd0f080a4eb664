"""Whether two facts may be one. Likeness of meaning alone never decides it: what they deny, count, date and name has to
agree too."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from mcp_memory import text

SAME = 0.75
"""Likeness from which two facts of a slot that agree in their particulars are one statement in other words."""

ALIKE = 0.55
"""Likeness from which two such facts are worth merging, the longer text staying."""

_DENIAL = re.compile(
    r"\b(?:not|no|never|none|nothing|without|neither|nor|cannot|rarely|seldom|hardly|barely|stopped|quit|avoids?|refuses?|"
    r"dislikes?|hates?|except|instead|former(?:ly)?|used to|ex|un\w+|\w+n['’]t)\b|"
    r"[不没無无非未别勿戒少]|讨厌|避免|除了|以前|曾经",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*|[一二三四五六七八九十百千万两]+")
_NUMBER_WORD = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|once|twice|first|second|third|half|"
    r"mon|tues|wednes|thurs|fri|satur|sun(?=day))(?:day)?s?\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<![.!?] )(?<!^)\b[A-Z][\w'-]*")


def calibrated(cosine: float, floor: float) -> float:
    """A cosine on the scale of its embedder, where 0 is what strangers have and 1 is the same text."""
    return max(0.0, (cosine - floor) / (1 - floor)) if floor < 1 else 0.0


def calibrated_all(cosines: npt.NDArray[np.float32], floor: float) -> npt.NDArray[np.float32]:
    """The same of many, in [0, 1]."""
    calibrated: npt.NDArray[np.float32] = np.clip((cosines - floor) / max(1e-6, 1 - floor), 0, 1)
    return calibrated


def agree(one: str, other: str) -> bool:
    """Whether two facts have the same denials, numbers, dates and names, and one holds every word of the other in their
    order: "prefers window seats" and "prefers aisle seats" are as alike to an embedder as two ways of saying one thing."""
    return holds(one, other) or holds(other, one)


def holds(longer: str, shorter: str) -> bool:
    """Whether the first says all that the second says, and denies, counts, dates and names the same."""
    particulars = (_DENIAL, _NUMBER, _NUMBER_WORD, _NAME)
    return all(_found(pattern, longer) == _found(pattern, shorter) for pattern in particulars) and _holds(
        longer, shorter
    )


def _found(pattern: re.Pattern[str], said: str) -> list[str]:
    if pattern is _DENIAL:  # "never" denies as much as "not"
        return ["denied"] * len(pattern.findall(said))
    return sorted(match.casefold() for match in pattern.findall(said))


def _holds(longer: str, shorter: str) -> bool:
    if _UNDIVIDED.search(shorter):
        whole, part = ("".join(text.folded(said).rstrip(".。").split()) for said in (longer, shorter))
        return re.search(rf"{re.escape(part)}(?:$|{_FURTHER})", whole) is not None
    words = iter(_words(longer))
    return all(word in words for word in _words(shorter))  # each is looked for behind the one before


def _words(said: str) -> list[str]:
    return [word for word in text.words(said) if word not in ("a", "an", "the")]


_UNDIVIDED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_FURTHER = "[^\\w]|[和跟与及或以]"
"""What may come behind a fact in a script that does not divide words: anything else may end another word (猫, 猫头鹰)."""


def same_words(one: str, other: str) -> bool:
    """Whether two values are one phrase: case, width, spaces and a final stop aside, and long enough to mean the same
    wherever it stands."""
    folded = text.folded(one).rstrip(".。")
    return folded == text.folded(other).rstrip(".。") and (" " in folded or (not folded.isascii() and len(folded) > 3))
