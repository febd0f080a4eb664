"""How evidence becomes one order: pure functions over scores keyed by log position.

The recipe (weights, smoothing, the width of the fused lists) was measured on LoCoMo; docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

K1, B = 1.2, 0.75
"""BM25 constants of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009)."""


TAIL = 400
"""How many scores below the fused width are kept, for those who page far."""

TRACE = 1e-6


@dataclass(frozen=True, slots=True)
class Weights:
    """How the signals of a search are weighed; every one can be set to 0."""

    meaning: float = 0.4
    words: float = 0.6
    previous: float = 0.3
    next: float = 0.2
    speaker: float = 0.1
    recency: float = 0.05
    width: int = 100


@dataclass(frozen=True, slots=True)
class Posting:
    """Where a word stands: `counts[i]` times in the episode at `seqs[i]`, which is `lengths[i]` words long."""

    seqs: Sequence[int]
    counts: Sequence[int]
    lengths: Sequence[int]


@dataclass(slots=True)
class Score:
    """The sum of an episode's signals, and each of them as `why`."""

    total: float = 0.0
    why: dict[str, float] = field(default_factory=dict)

    def add(self, signal: str, amount: float) -> None:
        self.total += amount
        self.why[signal] = self.why.get(signal, 0.0) + amount


def bm25(postings: Sequence[Posting], episodes: int, mean_length: float) -> dict[int, float]:
    """Okapi BM25 of every episode that holds one of the words, over a scope of `episodes` with words of `mean_length`.

    The inverse document frequency is `log(1 + (N - n + 0.5) / (n + 0.5))`, never negative.
    """
    scores: dict[int, float] = {}
    for posting in postings:
        n = len(posting.seqs)
        weight = math.log(1 + (max(episodes, n) - n + 0.5) / (n + 0.5)) * (K1 + 1)
        short, slope = K1 * (1 - B), K1 * B / (mean_length or 1.0)
        for seq, count, length in zip(posting.seqs, posting.counts, posting.lengths, strict=True):
            scores[seq] = scores.get(seq, 0.0) + weight * count / (count + short + slope * length)
    return scores


def normalised(scores: Mapping[int, float], width: int) -> dict[int, float]:
    """The scores spread over [0, 1]: the best is 1, the one at rank `width` 0, and 0 stands for it in a shorter list.

    What ranks below `width` keeps a trace of its score, so that its order stays.
    """
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[: width + TAIL]
    if not best or best[0][1] <= 0:
        return {}
    high = best[0][1]
    low = max(0.0, best[width - 1][1]) if len(best) >= width else 0.0
    spread = (high - low) or high
    return {seq: max(0.0, score - low) / spread + TRACE * score / high for seq, score in best}


def fuse(meaning: Mapping[int, float], words: Mapping[int, float], weights: Weights) -> dict[int, Score]:
    """Both lists as one weighted sum. Where one of them is empty the other stands alone at full weight."""
    fused: dict[int, Score] = {}
    lists = [("meaning", meaning, weights.meaning), ("words", words, weights.words)]
    lists = [(signal, scores, weight) for signal, scores, weight in lists if scores and weight > 0]
    whole = sum(weight for _, _, weight in lists)
    for signal, scores, weight in lists:
        for seq, score in normalised(scores, weights.width).items():
            fused.setdefault(seq, Score()).add(signal, score * weight / whole)
    return fused


def smooth(
    scores: dict[int, Score], previous: Mapping[int, int], following: Mapping[int, int], weights: Weights
) -> dict[int, Score]:
    """Neighbours in a session lend each other a part of their score: an answer often stands beside its question.

    `previous[seq]` and `following[seq]` are the neighbours of `seq`; both may name episodes that had no score yet.
    """
    lent = {seq: score.total for seq, score in scores.items() if score.total > 2 * TRACE}
    for seq, total in lent.items():
        if seq in following:
            scores.setdefault(following[seq], Score()).add("neighbour", weights.previous * total)
        if seq in previous:
            scores.setdefault(previous[seq], Score()).add("neighbour", weights.next * total)
    return scores
