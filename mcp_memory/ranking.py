"""How evidence becomes one order: pure functions over scores keyed by log position.

The recipe (weights, smoothing, the width of the fused lists) was measured on LoCoMo; docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

K1, B = 1.2, 0.75
"""BM25 constants of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009)."""

RRF_K = 60
"""Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods"
(2009)."""

TRACE = 1e-6
"""What a score below the fused width still counts, relative to the best: its order stays, for those who page far."""

LEAST_EDGE, MOST_EDGE = 86_400.0, 30 * 86_400.0
"""Seconds: a day and a month. How soon, and how late, a time that a query names is half forgotten."""

ACCESSED = 10
"""Times that an episode was found, beyond which further ones count nothing."""

Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """How the signals of a search are weighed; every one can be set to 0."""

    words_least: float = 0.3
    """The share of words against meaning where no episode holds any of the query's words..."""
    words_most: float = 0.7
    """...and where one holds all of them; in proportion between."""
    told: float = 1.0
    """How much the query as its answer would put it counts beside the query as it stands, where meaning is compared."""
    previous: float = 0.3
    """What an episode gets of the score of the one before it in its session..."""
    before_previous: float = 0.1
    """...of the one before that..."""
    next: float = 0.2
    """...and of the one after it."""
    links: float = 0.1
    """What an episode gets at least of the score of one that it is linked to, times their likeness."""
    speaker: float = 0.2
    """For what was said by the one speaker whom the query names."""
    asking: float = 0.2
    """The share of its score that an episode loses where all of it is questions: an answer tells."""
    recency: float = 0.05
    """For the newest candidate; falls with age."""
    time: float = 0.3
    """The part of its score that an episode gets once more where it was said at a time that the query names."""
    importance: float = 0.1
    """The share of its score that an episode gains with an importance of 1, and loses with 0; 0.5 changes nothing."""
    role: float = 0.05
    """The share of its score that an episode loses where it is not the user's own word."""
    accesses: float = 0.0
    """The share of its score that an episode gains for being found ten times, a tenth of it for each. Above 0,
    every search writes."""
    fact_importance: float = 0.3
    """The part of a fact's score that its importance makes; its closeness to the query makes the rest."""
    newer: float = 0.6
    """How much of an older hit's score a newer one about the same may lack and still go before it; 0 for never."""
    reranker: float = 2.0
    """How much a reranker's judgement counts against the order that it was given."""
    min_score: float = 0.0
    """What scores less is left out."""
    ranks: bool = False
    """Whether the lists are compared by their ranks instead of their scores (reciprocal rank fusion)."""
    width: int = 100
    """How many of each list are compared; the last of them counts nothing."""

    @property
    def most(self) -> float:
        """The highest score that there can be, for scores in [0, 1]."""
        lent = (1 + TRACE) * (1 + self.previous + self.before_previous + self.next)
        return lent * (1 + self.importance + self.accesses) + self.speaker + self.recency


@dataclass(frozen=True, slots=True)
class Posting:
    """Where a word stands: `counts[i]` times in the episode at `seqs[i]`, which is `lengths[i]` words long."""

    seqs: Positions
    counts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scored:
    """Positions and their scores, in no order."""

    seqs: Positions
    scores: Values

    def __len__(self) -> int:
        return len(self.seqs)

    def best(self, count: int) -> Scored:
        """The highest `count`, the highest first; equal ones with the later position first."""
        at = np.arange(len(self.seqs))
        if len(at) > count:
            least = np.partition(self.scores, len(at) - count)[len(at) - count]
            at = np.flatnonzero(self.scores >= least)
        at = at[np.lexsort((-self.seqs[at], -self.scores[at]))][:count]
        return Scored(self.seqs[at], self.scores[at])

    def least(self, score: float) -> Scored:
        """Those with at least this score."""
        kept = self.scores >= score
        return self if kept.all() else Scored(self.seqs[kept], self.scores[kept])


NOTHING = Scored(np.empty(0, np.int64), np.empty(0, np.float64))


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates and their signals: `signals[name][i]` is what a signal gives to the episode at `seqs[i]`.

    `seqs` are sorted; an episode's score is the sum of its signals.
    """

    seqs: Positions
    signals: Mapping[str, Values]

    @property
    def scored(self) -> Scored:
        return Scored(self.seqs, sum(self.signals.values(), np.zeros(len(self.seqs))))

    def why(self, seq: int, most: float) -> dict[str, float]:
        """The signals of one candidate that give it anything, as parts of the highest score that there can be."""
        at = int(np.searchsorted(self.seqs, seq))
        return {name: float(values[at] / most) for name, values in self.signals.items() if values[at]}

    def plus(self, signal: str, seqs: Positions, amounts: Values) -> Ranking:
        """With a further signal, whose episodes may be new candidates; amounts for the same one add up."""
        if _among(self.seqs, seqs).all():
            return Ranking(self.seqs, {**self.signals, signal: _placed(self.seqs, seqs, amounts)})
        joined = np.union1d(self.seqs, seqs)
        signals = {name: _placed(joined, self.seqs, values) for name, values in self.signals.items()}
        return Ranking(joined, signals | {signal: _placed(joined, seqs, amounts)})

    def only(self, kept: npt.NDArray[np.bool_]) -> Ranking:
        return Ranking(self.seqs[kept], {name: values[kept] for name, values in self.signals.items()})


def _among(known: Positions, seqs: Positions) -> npt.NDArray[np.bool_]:
    """Which of these positions are among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(seqs), np.bool_)
    at = np.minimum(np.searchsorted(known, seqs), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[at] == seqs
    return found


def in_time(
    ranking: Ranking, seqs: Positions, said_at: Values, since: float, until: float, weights: Weights
) -> Ranking:
    """With a signal for episodes said between two times (all in seconds since 1970), in proportion to their scores: what
    has nothing to do with the query does not win by its date.

    The signal has soft edges: it halves with every half length of the range before it, but only with twice the length
    behind it, since people tell of a time when it is over. These are `LEAST_EDGE` and `MOST_EDGE` at least and at most.
    """
    before, behind = (np.clip((until - since) * lengths, LEAST_EDGE, MOST_EDGE) for lengths in (0.5, 2.0))
    halvings = np.maximum(since - said_at, 0) / before + np.maximum(said_at - until, 0) / behind
    scores = ranking.scored.scores[np.searchsorted(ranking.seqs, seqs)]
    return ranking.plus("time", seqs, weights.time * scores * 0.5**halvings)


def _placed(joined: Positions, seqs: Positions, values: Values) -> Values:
    placed: Values = np.bincount(np.searchsorted(joined, seqs), values, len(joined)).astype(np.float64)
    return placed


@dataclass(frozen=True, slots=True)
class Worded:
    """What words find: every episode that holds one of them, and the most of the query that one episode covers."""

    scored: Scored
    coverage: float
    postings: Sequence[Posting] = ()
    rarity: Sequence[float] = ()

    def only(self, seqs: Positions) -> Worded:
        kept = np.isin(self.scored.seqs, seqs)
        return replace(self, scored=Scored(self.scored.seqs[kept], self.scored.scores[kept]))

    def shared(self, seqs: Positions) -> Values:
        """For each pair of these episodes, how much of the words that either holds both of them hold, by rarity."""
        if not self.postings:
            return np.zeros((len(seqs), len(seqs)))
        held = np.array([_among(posting.seqs, seqs) for posting in self.postings], np.float64)
        both = (held.T * np.array(self.rarity)) @ held
        either = both.diagonal()[:, None] + both.diagonal()[None, :] - both
        shares: Values = both / np.where(either == 0, 1, either)
        return shares


def by_words(postings: Sequence[Posting], absent: int, episodes: int, mean_length: float) -> Worded:
    """Every episode that holds one of the words.

    The score is Okapi BM25, over a scope of `episodes` with words of `mean_length`, times the root of the episode's
    coverage: the share of the query's words that it holds, weighed by their inverse document frequency
    `log(1 + (N - n + 0.5) / (n + 0.5))`. `absent` counts the words of the query that stand nowhere.
    """
    if not postings:
        return Worded(NOTHING, 0.0)
    rarity = [rarity_of(len(posting.seqs), episodes) for posting in postings]
    whole = sum(rarity) + absent * rarity_of(0, episodes)
    seqs, at = np.unique(np.concatenate([posting.seqs for posting in postings]), return_inverse=True)
    covered = np.concatenate([np.full(len(p.seqs), weight) for p, weight in zip(postings, rarity, strict=True)])
    coverage = np.bincount(at, covered, len(seqs)) / whole
    counts = np.concatenate([posting.counts for posting in postings])
    lengths = np.concatenate([posting.lengths for posting in postings])
    weight = covered * saturated(counts, lengths, mean_length or 1.0)
    scores: Values = np.bincount(at, weight, len(seqs)).astype(np.float64) * np.sqrt(coverage)
    return Worded(Scored(seqs, scores), float(coverage.max()), postings, rarity)


def rarity_of(n: int, episodes: int) -> float:
    """The inverse document frequency of a word that stands in `n` of so many episodes."""
    return math.log(1 + (max(episodes, n) - n + 0.5) / (n + 0.5))


def saturated(count: Any, length: Any, mean_length: float) -> Any:
    """What a word counts that stands `count` times in an episode of `length` words: numbers, or arrays of them."""
    return count * (K1 + 1) / (count + K1 * (1 - B + B * length / mean_length))


def normalised(scored: Scored, width: int, reach: int) -> Scored:
    """The best `reach` scores spread over [0, 1]: the best is 1, the one at rank `width` 0; in a shorter list 0 stands
    for it. What ranks below keeps a trace."""
    best = scored.best(max(width, reach))
    if not len(best) or best.scores[0] <= 0:
        return NOTHING
    high = best.scores[0]
    low = max(0.0, best.scores[width - 1]) if len(best) >= width else 0.0
    spread = (high - low) or high
    return Scored(best.seqs, np.maximum(0.0, best.scores - low) / spread + TRACE * best.scores / high)


def by_rank(scored: Scored, width: int, reach: int) -> Scored:
    """The best `reach` by their reciprocal ranks, of which the first is 1."""
    best = scored.best(max(width, reach))
    return Scored(best.seqs, (RRF_K + 1) / (RRF_K + 1 + np.arange(len(best))))


def fuse(meaning: Scored, words: Scored, coverage: float, weights: Weights, reach: int) -> Ranking:
    """Both lists as one weighted sum: words count for more, the more of the query one episode covers. Where one list is
    empty the other stands alone."""
    share = weights.words_least + (weights.words_most - weights.words_least) * coverage
    if not len(words) or not len(meaning):
        share = 1.0 if len(words) else 0.0
    fused = Ranking(np.empty(0, np.int64), {})
    for signal, scored, weight in (("meaning", meaning, 1 - share), ("words", words, share)):
        listed = (by_rank if weights.ranks else normalised)(scored, weights.width, reach)
        fused = fused.plus(signal, listed.seqs, listed.scores * weight)
    return fused


def smooth(
    ranking: Ranking, lenders: Scored, previous: Mapping[int, int], following: Mapping[int, int], weights: Weights
) -> Ranking:
    """Neighbours in a session lend each other a part of their score: an answer often stands beside its question.

    `previous[seq]` and `following[seq]` are the neighbours of `seq`, which may not have been candidates yet.
    """
    borrowers: list[int] = []
    amounts: list[float] = []
    for seq, score in zip(lenders.seqs.tolist(), lenders.scores.tolist(), strict=True):
        one_on = following.get(seq)
        two_on = following.get(one_on) if one_on is not None else None
        for neighbour, share in (
            (one_on, weights.previous),
            (two_on, weights.before_previous),
            (previous.get(seq), weights.next),
        ):
            if neighbour is not None and share:
                borrowers.append(neighbour)
                amounts.append(share * score)
    return ranking.plus("neighbour", np.array(borrowers, np.int64), np.array(amounts, np.float64))
