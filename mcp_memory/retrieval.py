"""Recall: from a question to episodes, by relevance, each with what was said around it.

Read `recall` from top to bottom: two lists of candidates (meaning, words) are fused into one, neighbours in a session lend
each other a part of their score, what is linked joins, what stands in an episode itself weighs in, and the best are given
with their neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from mcp_memory import likeness, ranking, text, updates
from mcp_memory.embedders import Meaning
from mcp_memory.paging import moment
from mcp_memory.protocols import Tx
from mcp_memory.ranking import ACCESSED, Ranking, Scored, Values, Weights, Worded
from mcp_memory.timeparse import Span
from mcp_memory.types import APART, Hit, Question, Sighting

POOL = 100
"""Candidates that are read back and weighed by what stands in them."""

LENDERS = 30
"""Candidates that lend their neighbours a part of their score, and whose links are followed."""

COMMON = 0.1
"""A word in more than this share of a scope's episodes tells nothing beside rarer ones, and costs most to read."""

LIFTED = 2
"""Hits of each of several queries that stand in front, however low that query scores."""

DECAY = 0.995
"""A day. An episode's recency is this to the power of its age, against the newest candidate."""


@dataclass(frozen=True, slots=True)
class Found:
    """A page of hits, the best first. `more` tells whether another follows; `upto` is what its cursor needs; `note` tells
    where the search took long, and why."""

    hits: tuple[Hit, ...]
    more: bool
    upto: int
    note: str = ""


def recall(tx: Tx, question: Question, meaning: Meaning | None, weights: Weights, span: Span | None = None) -> Found:
    """Answer a question from one snapshot. Without `meaning`, words alone find. What was said in `span` is lifted."""
    upto = tx.log.position() if question.upto is None else question.upto
    within = tx.log.matching(question.selection)
    allowed = None if within is None else set(within)
    reach = question.given + question.limit + 1

    worded = _by_words(tx, question, within, upto)
    by_meaning, note = _by_meaning(tx, meaning, max(weights.width, reach), within, upto, known=len(worded.scored) > 0)
    candidates = ranking.fuse(by_meaning, worded.scored, worded.coverage, weights, reach)

    candidates = _smoothed(tx, candidates, allowed, upto, weights)
    if meaning is not None and weights.links:
        candidates = _linked(tx, candidates, meaning, allowed, upto, weights)
    candidates = _telling(tx, candidates, weights)
    candidates, seen = _weighed(tx, candidates, question.query, weights, span)
    past = span is not None and question.asked_at is not None and question.asked_at - span.until > timedelta(seconds=1)
    if weights.newer and not past and updates.matter(question.query):  # who names a time past wants what was then
        candidates = _updated(tx, candidates, meaning, worded, seen, weights)
    most = weights.most * (1 + weights.time) if span else weights.most
    ranked = candidates.scored.best(reach + POOL)
    ranked = Scored(ranked.seqs, ranked.scores / most).least(weights.min_score)
    if question.after is not None:
        ranked = _beyond(ranked, *question.after)

    page = dict(zip(ranked.seqs[: question.limit].tolist(), ranked.scores[: question.limit].tolist(), strict=True))
    episodes = {episode.seq: episode for episode in tx.log.at(page)}
    hits = [Hit(episodes[seq], score, candidates.why(seq, most)) for seq, score in page.items() if seq in episodes]
    return Found(tuple(_expanded(tx, hits, question.expand, allowed, upto)), len(ranked) > question.limit, upto, note)


def recall_all(
    tx: Tx,
    question: Question,
    meanings: Mapping[str, Meaning | None],
    spans: Mapping[str, Span | None],
    weights: Weights,
) -> Found:
    """Answer several queries as one question, from one snapshot. `spans` holds the time that each names.

    An episode has the score of the query that finds it best, so that the best n of all stand among the best n of each, and
    pages join without a gap however far one goes. Measured on LoCoMo against sums and reciprocal ranks, which lost.
    """
    if len(meanings) == 1:
        return recall(tx, question, meanings[question.query], weights, spans[question.query])
    upto = tx.log.position() if question.upto is None else question.upto
    alone = replace(
        question, limit=question.given + question.limit + 1, given=0, after=None, expand=0, upto=upto, rewrites=()
    )
    each = [
        recall(tx, replace(alone, query=asked), meaning, weights, spans[asked]) for asked, meaning in meanings.items()
    ]
    hits = _joined([found.hits for found in each])
    note = next((found.note for found in each if found.note), "")
    if question.after is not None:
        score, seq = question.after
        hits = [hit for hit in hits if (-hit.score, -hit.episode.seq) > (-score, -seq)]
    page = expanded(tx, hits[: question.limit], question, upto)
    return Found(tuple(page), len(hits) > question.limit, upto, note)


def _joined(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Hits of several queries in one order, each once. The first of every list count as much as the best of all: what only
    one query finds must not stand behind everything that another finds somehow."""
    top = max((hits[0].score for hits in lists if hits), default=0.0)
    best: dict[int, Hit] = {}
    for hits in lists:
        for rank, hit in enumerate(hits):
            lift = top / hits[0].score if rank < LIFTED and hits[0].score else 1.0
            why = {signal: amount * lift for signal, amount in hit.why.items()}
            lifted = replace(hit, score=hit.score * lift, why=why)
            known = best.get(hit.episode.seq)
            if known is None or lifted.score > known.score:
                best[hit.episode.seq] = lifted
    return sorted(best.values(), key=lambda hit: (-hit.score, -hit.episode.seq))


def latest(tx: Tx, question: Question) -> Found:
    """What a selection holds, without a question: the latest said first. A score stands for the time."""
    upto = tx.log.position() if question.upto is None else question.upto
    before = None if question.after is None else (moment(question.after[0]), question.after[1])
    episodes = tx.log.newest(question.selection, question.limit + 1, upto, before)
    hits = tuple(Hit(episode, 0.0, {}) for episode in episodes[: question.limit])
    return Found(hits, len(episodes) > question.limit, upto)


def _by_words(tx: Tx, question: Question, within: Sequence[int] | None, upto: int) -> Worded:
    """What shares telling words with the query."""
    episodes, mean_length = tx.words.totals(question.upto)
    frequencies = tx.words.frequencies(text.query_words(question.query))
    telling = [word for word, count in frequencies.items() if 0 < count <= COMMON * episodes]
    postings = tx.words.postings(telling or list(frequencies), upto)
    absent = sum(not count for count in frequencies.values())
    worded = ranking.by_words(postings, absent, episodes, mean_length)
    return worded if within is None else worded.only(np.fromiter(within, np.int64, len(within)))


def _by_meaning(
    tx: Tx, meaning: Meaning | None, limit: int, within: Sequence[int] | None, upto: int, *, known: bool
) -> tuple[Scored, str]:
    """The sum of an episode's best sentence and its context, and a note where that took long. Nothing at all where no
    sentence is close and no word is `known` either, unless the caller has chosen from what by a selection."""
    if meaning is None:
        return ranking.NOTHING, ""
    close = tx.vectors(meaning.embedder).close(meaning.vector, limit, within, upto)
    if within is None and not known and close.sentences.max(initial=0.0) < meaning.floor:
        return ranking.NOTHING, close.note
    return Scored(close.seqs, close.sentences.astype(np.float64) + close.contexts), close.note


def _smoothed(tx: Tx, candidates: Ranking, allowed: Collection[int] | None, upto: int, weights: Weights) -> Ranking:
    lenders = candidates.scored.best(LENDERS)
    previous, following = tx.log.neighbours(lenders.seqs.tolist(), upto, APART)
    further = tx.log.following(set(following.values()) - following.keys(), upto, APART)

    def counted(links: Mapping[int, int]) -> dict[int, int]:
        return {seq: link for seq, link in links.items() if allowed is None or link in allowed}

    return ranking.smooth(candidates, lenders, counted(previous), counted(following | further), weights)


def _linked(
    tx: Tx, candidates: Ranking, meaning: Meaning, allowed: Collection[int] | None, upto: int, weights: Weights
) -> Ranking:
    """With what is one link away from the best candidates: it joins them below, with a part of a candidate's score, where
    it has not more by itself."""
    scores = dict(zip(candidates.seqs.tolist(), candidates.scored.scores.tolist(), strict=True))
    gains: dict[int, float] = {}
    for link in tx.links(meaning.embedder).of(candidates.scored.best(LENDERS).seqs.tolist(), upto):
        gain = weights.links * link.likeness * scores[link.seq] - scores.get(link.other, 0.0)
        if gain > gains.get(link.other, 0.0) and (allowed is None or link.other in allowed):
            gains[link.other] = gain
    if not gains:
        return candidates
    return candidates.plus("links", np.array(list(gains), np.int64), np.array(list(gains.values())))


def _telling(tx: Tx, candidates: Ranking, weights: Weights) -> Ranking:
    """What asks gives up a part of its score: a question is close to the same question, but does not answer it."""
    if not weights.asking or not len(candidates.seqs):
        return candidates
    lost = -weights.asking * tx.words.asks(candidates.seqs) * candidates.scored.scores
    return candidates.plus("asking", candidates.seqs, lost)


def _weighed(
    tx: Tx, candidates: Ranking, query: str, weights: Weights, span: Span | None
) -> tuple[Ranking, dict[int, Sighting]]:
    """With the signals that stand in the best episodes themselves: a speaker whom the query names, the age, and a time
    that it names. Whatever has no episode any more is left out."""
    pool = candidates.scored.best(POOL).seqs.tolist()
    seen = tx.log.sightings(pool)
    if gone := [seq for seq in pool if seq not in seen]:  # vectors kept in memory whose episodes have gone
        candidates = candidates.only(~np.isin(candidates.seqs, np.array(gone, np.int64)))
    candidates = _shifted(candidates, seen, weights)
    asked = set(text.words(query))
    speakers = {sighting.speaker for sighting in seen.values() if sighting.speaker}
    named = [speaker for speaker in speakers if (words := text.words(speaker)) and asked.issuperset(words)]
    if weights.speaker and len(named) == 1:
        spoken = np.array([seq for seq, sighting in seen.items() if sighting.speaker == named[0]], np.int64)
        candidates = candidates.plus("speaker", spoken, np.full(len(spoken), weights.speaker))
    seqs, said_at = np.array(list(seen), np.int64), np.array([sighting.said_at for sighting in seen.values()])
    if weights.recency and seen:
        days = (said_at.max() - said_at) / 86_400
        candidates = candidates.plus("recency", seqs, weights.recency * DECAY**days)
    if weights.time and span is not None and seen:
        limits = span.since.timestamp(), span.until.timestamp()
        candidates = ranking.in_time(candidates, seqs, said_at, *limits, weights)
    return candidates, seen


def _shifted(candidates: Ranking, seen: Mapping[int, Sighting], weights: Weights) -> Ranking:
    """With what is known of an episode itself, as shares of its score: how important it was called, and whether it is the
    user's own word."""
    seqs = np.array(sorted(seen), np.int64)
    at = np.searchsorted(candidates.seqs, seqs)
    for signal, weight, share in (
        ("importance", weights.importance, [2 * seen[seq].importance - 1 for seq in seqs.tolist()]),
        ("accesses", weights.accesses, [min(seen[seq].accesses / ACCESSED, 1.0) for seq in seqs.tolist()]),
        ("role", weights.role, [-float(seen[seq].role != "user") for seq in seqs.tolist()]),
    ):
        if weight and any(share):
            candidates = candidates.plus(signal, seqs, weight * np.array(share) * candidates.scored.scores[at])
    return candidates


def _updated(
    tx: Tx,
    candidates: Ranking,
    meaning: Meaning | None,
    worded: Worded,
    seen: Mapping[int, Sighting],
    weights: Weights,
) -> Ranking:
    """With the newer of two statements about the same before the older, among the first hits; they change scores."""
    first = candidates.scored.best(updates.COMPARED)
    if meaning is None or len(first) < 2:
        return candidates
    seqs = first.seqs.tolist()
    seen = {**seen, **tx.log.sightings(unseen)} if (unseen := [seq for seq in seqs if seq not in seen]) else seen
    cosines = tx.vectors(meaning.embedder).likeness(seqs)
    alike = likeness.calibrated_all(cosines, meaning.floor)
    same = updates.about_the_same(
        alike, worded.shared(first.seqs), [(seen[seq].speaker, seen[seq].role) for seq in seqs]
    )
    moments = [seen[seq].said_at for seq in seqs]
    order = updates.newer_first(first.scores, moments, same, weights.newer)
    gained = first.scores - first.scores[order]
    moved = np.flatnonzero(gained)
    return candidates.plus("newer", first.seqs[order][moved], gained[moved]) if len(moved) else candidates


def _beyond(ranked: Scored, score: float, seq: int) -> Scored:
    """What comes after the episode at `seq`, which had this score."""
    kept = (ranked.scores < score) | ((ranked.scores == score) & (ranked.seqs < seq))
    return Scored(ranked.seqs[kept], ranked.scores[kept])


def judged(tx: Tx, hits: Sequence[Hit], scores: Sequence[float], upto: int, weights: Weights) -> list[Hit]:
    """Hits in a new order, by the scores of a reranker beside their own. It judged every text by itself: so neighbours
    lend each other a part of its judgement too, and a named speaker counts again.

    A place keeps its score, so that scores fall and mean what they did; what a hit won or lost by its new place stands in
    `why`.
    """
    seqs = np.array([hit.episode.seq for hit in hits], np.int64)
    by_position = np.argsort(seqs)
    fresh = Ranking(seqs[by_position], {"reranker": _spread(scores)[by_position]})
    previous, following = tx.log.neighbours(seqs.tolist(), upto, APART)
    lent = ranking.smooth(fresh, fresh.scored, previous, following, weights)
    opinion = lent.scored.scores[np.searchsorted(lent.seqs, seqs)]
    named = np.array([weights.speaker if "speaker" in hit.why else 0.0 for hit in hits])
    order = np.argsort(-(_spread([hit.score for hit in hits]) + weights.reranker * (opinion + named)), kind="stable")
    moved = []
    for place, at in enumerate(order.tolist()):
        hit, score = hits[at], hits[place].score
        why = hit.why if score == hit.score else {**hit.why, "reranker": score - hit.score}
        moved.append(replace(hit, score=score, why=why))
    return moved


def _spread(scores: Sequence[float]) -> Values:
    """Over [0, 1]."""
    given = np.asarray(scores, np.float64)
    spread: Values = (given - given.min()) / ((given.max() - given.min()) or 1.0)
    return spread


def expanded(tx: Tx, hits: list[Hit], question: Question, upto: int) -> list[Hit]:
    """Hits with as many of their neighbours as the question wants, within its selection."""
    within = tx.log.matching(question.selection)
    return _expanded(tx, hits, question.expand, None if within is None else set(within), upto)


def _expanded(tx: Tx, hits: list[Hit], expand: int, allowed: Collection[int] | None, upto: int) -> list[Hit]:
    """Each hit with its neighbours: a third of `expand` before it, the rest after it; each shown once."""
    back = expand // 3
    links: dict[int, list[int]] = {hit.episode.seq: [] for hit in hits}
    for steps, beside in ((back, tx.log.preceding), (expand - back, tx.log.following)):
        edge = {seq: seq for seq in links}
        for _ in range(steps):
            step = beside(edge.values(), upto)
            edge = {
                seq: step[at] for seq, at in edge.items() if at in step and (allowed is None or step[at] in allowed)
            }
            for seq, neighbour in edge.items():
                links[seq].append(neighbour)
    shown = set(links)
    around = {episode.seq: episode for episode in tx.log.at({seq for linked in links.values() for seq in linked})}
    expanded = []
    for hit in hits:
        near = [around[seq] for seq in links[hit.episode.seq] if seq in around and seq not in shown]
        shown |= {episode.seq for episode in near}
        near.sort(key=lambda episode: (episode.occurred_at, episode.seq))
        expanded.append(replace(hit, around=tuple(near)))
    return expanded
