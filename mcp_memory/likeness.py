"""Whether two facts may be one. Likeness of meaning alone never decides it: what they deny, count, date and name has to
agree too."""

from __future__ import annotations

import re

from mcp_memory import text

SAME = 0.75
"""Likeness from which two facts of a slot that agree in their particulars are one statement in other words."""

ALIKE = 0.55
"""Likeness from which two such facts are worth merging, the longer text staying."""

_DENIAL = re.compile(
    r"\b(?:not|no|never|none|nothing|without|neither|nor|cannot|stopped|quit|avoids?|dislikes?|hates?|except|former(?:ly)?|"
    r"ex|un\w+|\w+n't)\b|[不没無无非未别勿戒]|讨厌|避免|除了|以前|曾经",
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


def agree(one: str, other: str) -> bool:
    """Whether two facts have the same polarity, numbers, dates and names. Chinese names cannot be told from other words, so
    there one text has to hold the words of the other."""
    for pattern in (_DENIAL, _NUMBER, _NUMBER_WORD, _NAME):
        if sorted(_found(pattern, one)) != sorted(_found(pattern, other)):
            return False
    if one.isascii() and other.isascii():
        return True
    words, others = set(text.query_words(one)), set(text.query_words(other))
    return words <= others or others <= words


def _found(pattern: re.Pattern[str], said: str) -> list[str]:
    if pattern is _DENIAL:
        return ["denied"] * (len(pattern.findall(said)) % 2)
    return [match.casefold() for match in pattern.findall(said)]


def same_words(one: str, other: str) -> bool:
    """Whether two values are one phrase: case, width, spaces and a final stop aside, and long enough to mean the same
    wherever it stands."""
    folded = text.folded(one).rstrip(".。")
    return folded == text.folded(other).rstrip(".。") and (" " in folded or (not folded.isascii() and len(folded) > 3))
