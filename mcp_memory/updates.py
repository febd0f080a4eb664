"""Of two statements about the same thing the newer one stands first: what was said last is what holds. Pure."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from mcp_memory.ranking import Values

COMPARED = 8
"""Hits among which the newer goes before the older: what is read first. With more of them more was moved than put
right."""

ALIKE = 0.28
"""Likeness of meaning, on the embedder's calibrated scale, from which two statements may be about the same thing..."""

LITTLE, ENOUGH = 0.3, 0.5
"""...if they also share of the query's words, weighed by rarity, more than the first part of what either holds; from the
second part on, surely."""

_WHEN = re.compile(
    r"^\W*(?:when\b|how long ago\b|(?:in |on )?(?:what|which) (?:year|month|date|day)\b)"
    r"|什么时候|何时|哪一?[年月天日]|几[年月号日]",
    re.IGNORECASE,
)


def matter(query: str) -> bool:
    """Whether the newer answer is wanted first: not where the question is when something was."""
    return _WHEN.search(query) is None


def about_the_same(likeness: npt.NDArray[np.float32], shared: Values, voices: Sequence[Hashable]) -> Values:
    """For each pair of hits, how surely one of them may bring the other up to date, in [0, 1]: both of one voice, alike in
    meaning and in what they hold of the query's words. `likeness` is calibrated."""
    numbers: dict[Hashable, int] = {}
    heard = np.array([numbers.setdefault(voice, len(numbers)) for voice in voices])
    alike = (likeness >= ALIKE) & (heard[:, None] == heard[None, :])
    surely: Values = np.clip((shared - LITTLE) / (ENOUGH - LITTLE), 0, 1) * alike
    return surely


def newer_first(scores: Values, moments: Sequence[float], same: Values, patience: float) -> list[int]:
    """The places of hits in their new order. `scores` fall; a newer hit goes before an older one about the same thing
    that scores higher, unless it lacks more than `patience` of its score, or less where it is not sure that they are."""
    order: list[int] = []
    for hit in range(len(scores)):
        passed = [
            place
            for place, other in enumerate(order)
            if same[hit, other]
            and moments[hit] > moments[other]
            and scores[hit] >= (1 - patience * same[hit, other]) * scores[other]
        ]
        order.insert(passed[0] if passed else len(order), hit)
    return order
