"""The profile: facts about a user, changed by commands, each with the episodes it rests on.

A changed mind ends a fact and begins another; an older statement that is stored later becomes history. Nothing is merged
because it is alike: only the same statement strengthens a fact.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mcp_memory import text
from mcp_memory.classification import IMPORTANCE, classified
from mcp_memory.errors import NotFound
from mcp_memory.protocols import Tx
from mcp_memory.rules import Rules
from mcp_memory.types import (
    CONSOLIDATION,
    HAND,
    UNCLASSIFIED,
    AddFeature,
    Command,
    Decision,
    DeleteFeature,
    Episode,
    Feature,
    Near,
    Span,
    Undo,
)

LEAST_IMPORTANCE = 0.2
"""Episodes below this are not promoted to facts."""

DOUBT_LEFT = 0.8
"""The part of the doubt in a fact that stays when the same is said again."""


class RulesView:
    """Facts by rule, in English and Chinese, without a model."""

    name = "rules"

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def follow(self, tx: Tx, episodes: Sequence[Episode]) -> None:
        known: Known | None = None
        for episode in episodes:
            if episode.speaker and known is None:
                known = known_as(tx)
            said = is_testimony(episode, known or Known(tx.user, ()))
            commands = self._rules.commands(episode.content, episode.seq) if said else []
            for command in commands:
                decide(tx, self.name, command, episode.occurred_at)
                known = None  # it may have been the name
            if (found := classified(episode, commands)) != UNCLASSIFIED:
                tx.log.classify(episode.seq, found, IMPORTANCE[found])

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        """Decisions go with the episodes they rest on, whoever made them."""

    def clear(self, tx: Tx) -> None:
        unlearn(tx, self.name)


@dataclass(frozen=True, slots=True)
class Known:
    """What the user may be called as a speaker: the id of the scope, or what facts about their name hold ("is called Ann",
    "叫张三") as a word of its own."""

    id: str
    facts: tuple[str, ...]

    def includes(self, speaker: str) -> bool:
        said = text.folded(speaker)
        whole = re.compile(rf"(?<!{_LETTER}){re.escape(said)}(?!{_LETTER})")
        return said == text.folded(self.id) or any(whole.search(text.folded(fact)) for fact in self.facts)


_LETTER = r"[^\W\d_\u3400-\u9fff]"  # of a script that divides words


def known_as(tx: Tx) -> Known:
    return Known(tx.user, tuple(fact.value for fact in tx.facts.all() if fact.tag == "name"))


def unlearn(tx: Tx, source: str) -> None:
    """Take out what a view decided, so that it can decide again."""
    for slot in tx.decisions.remove(tx.decisions.of(source)):
        settle(tx, slot)


def is_testimony(episode: Episode, known: Known) -> bool:
    """Whether an episode is the user's own statement about themself: the assistant's and others' words are context."""
    return (
        episode.learn
        and episode.role == "user"
        and episode.importance >= LEAST_IMPORTANCE
        and (not episode.speaker or known.includes(episode.speaker))
    )


def decide(tx: Tx, source: str, command: Command, said_at: datetime) -> bool:
    """Keep a command as a decision and apply it; false where it rests on nothing but what was said before the same was
    forgotten."""
    if isinstance(command, AddFeature) and command.citations:
        forgotten_up_to = tx.decisions.entombed(tx.decisions.statement(command))
        citations = tuple(seq for seq in command.citations if seq > forgotten_up_to)
        if not citations:
            return False
        command = replace(command, citations=citations)
    slot = tx.decisions.slot(command)
    tx.decisions.append(source, command, slot, said_at)
    settle(tx, slot)
    return True


def correct(tx: Tx, command: AddFeature) -> Feature:
    """Let a slot hold what a person says, and nothing else."""
    keys = tx.decisions.slot(command), tx.decisions.statement(command)
    held = [fact for fact in facts(tx) if (tx.facts.keys_of(fact.id) or keys)[0] == keys[0]]
    at = max([tx.now, *map(seen, held)])
    for fact in held:
        if tx.facts.keys_of(fact.id) != keys:
            finish(tx, HAND, fact, at)
    decide(tx, HAND, command, at)
    return next(fact for fact in facts(tx) if tx.facts.keys_of(fact.id) == keys)


def end(tx: Tx, id: str) -> Feature:
    """Let a fact end now, as a person says. Raises NotFound."""
    fact = tx.facts.by_id(id)
    if fact is None or fact.valid_to is not None:
        raise NotFound(f"profile: no current fact {id}. Ids stand in the answers of read_profile.")
    finish(tx, HAND, fact, max(tx.now, seen(fact)))
    return fact


def finish(tx: Tx, source: str, fact: Feature, at: datetime, citations: Sequence[int] = ()) -> bool:
    """Let a fact end at a moment. The ending holds the fact's words, so that it rests on what the fact rests on, unless
    on more."""
    cited = tuple(citations) or tx.facts.cited(fact.id)
    return decide(tx, source, DeleteFeature(fact.category, fact.tag, fact.name, fact.value, cited), at)


def seen(fact: Feature) -> datetime:
    """When a fact was last said, which may be dated in the future."""
    return fact.verified_at or fact.valid_from


def undo(tx: Tx, position: int) -> Decision:
    """Let a decision count as never made, by another one, which can itself be undone; with it what the same hand decided
    about the slot in the same moment (a correction ends what was there). Raises NotFound."""
    decision = tx.decisions.at(position)
    if decision is None:
        raise NotFound(f"profile: no decision {position}. Their numbers stand in the log of the profile.")
    for made in tx.decisions.about(decision.slot) if decision.source == HAND else [decision]:
        if _of_one_move(made, decision):
            tx.decisions.append(HAND, Undo(made.key), decision.slot, tx.now)
    settle(tx, decision.slot)
    return decision


def _of_one_move(one: Decision, other: Decision) -> bool:
    kinds = isinstance(one.command, Undo), isinstance(other.command, Undo)
    return (one.source, one.said_at, kinds[0]) == (other.source, other.said_at, kinds[1])


def undo_made(tx: Tx, source: str, command: Command, said_at: datetime) -> bool:
    """Let what this source decides so count as never made, before it decides it or after; false where that was said
    already."""
    slot, key = tx.decisions.slot(command), tx.decisions.key(source, command, said_at)
    if any(isinstance(made.command, Undo) and made.command.key == key for made in tx.decisions.about(slot)):
        return False
    tx.decisions.append(HAND, Undo(key), slot, tx.now)
    settle(tx, slot)
    return True


def spared(tx: Tx) -> frozenset[int]:
    """The statements that consolidation ended and a person let stand again."""
    if not tx.decisions.of(HAND):
        return frozenset()
    made = tx.decisions.after()
    stands = {decision.seq for decision in standing(made)}
    return frozenset(
        decision.statement
        for decision in made
        if decision.source == CONSOLIDATION
        and isinstance(decision.command, DeleteFeature)
        and decision.seq not in stands
    )


def replay(tx: Tx) -> int:
    """Derive every fact again from the decisions; how many hold."""
    for slot in tx.decisions.slots():
        settle(tx, slot)
    return len(facts(tx))


def forget_idle(tx: Tx, slot: int) -> None:
    """Take out endings that end nothing any more: they may hold the words of what was forgotten. Those by rule stay, they
    hold no others than their own episode."""
    made = tx.decisions.about(slot)
    stated = {decision.statement for decision in made if isinstance(decision.command, AddFeature)}
    idle = [
        decision.seq
        for decision in made
        if isinstance(decision.command, DeleteFeature)
        and decision.source != RulesView.name
        and (decision.statement not in stated if decision.command.value else not stated)
    ]
    tx.decisions.remove(idle)


def settle(tx: Tx, slot: int) -> None:
    """Let a slot hold what the decisions about it amount to, whatever the order in which they were stored or undone."""
    tx.facts.write(slot, told(tx.decisions.about(slot)))


def told(decisions: Sequence[Decision]) -> list[Span]:
    """What decisions about one slot, given in the order in which they were said, amount to.

    An addition begins a fact, and where the slot holds one at a time ends the one before; said again it strengthens the
    fact that holds. A deletion ends what it names.
    """
    spans: list[Span] = []
    for decision in standing(decisions):
        if not isinstance(decision.command, Undo):
            _tell(spans, decision, decision.command)
    return spans


def standing(decisions: Sequence[Decision]) -> list[Decision]:
    """Those of the decisions, in their order, that were not undone."""
    undone: set[int] = set()
    for decision in sorted(decisions, key=lambda decision: -decision.seq):  # an undo comes after what it undoes
        if isinstance(decision.command, Undo) and decision.key not in undone:
            undone.add(decision.command.key)
    return [decision for decision in decisions if decision.key not in undone]


def _tell(spans: list[Span], decision: Decision, command: Command) -> None:
    open_ = [index for index, span in enumerate(spans) if span.valid_to is None]
    if isinstance(command, DeleteFeature):
        for index in open_:
            if not command.value or spans[index].decision.statement == decision.statement:
                spans[index] = replace(spans[index], valid_to=decision.said_at)
        return
    same = [index for index, span in enumerate(spans) if span.decision.statement == decision.statement]
    again = bool(same) and same[-1] in open_
    stated = same[-1] if again else len(spans)
    for index, span in enumerate(spans):
        replaced = index in open_ and span.single and command.single
        # what a deletion ended a moment ago, by the same hand, gave way to this
        gave_way = span.valid_to == decision.said_at and span.superseded_by < 0
        if index not in same and (replaced or gave_way):
            spans[index] = replace(span, valid_to=decision.said_at, superseded_by=stated)
    if again:
        spans[stated] = _strengthened(spans[stated], decision, command)
        return
    spans.append(
        Span(
            decision=decision,
            number=len(same),
            single=command.single,
            importance=command.importance,
            confidence=command.confidence,
            citations=command.citations,
            valid_from=decision.said_at,
            verified_at=decision.said_at,
        )
    )


def _strengthened(span: Span, decision: Decision, command: AddFeature) -> Span:
    """Said again: the higher importance, a confidence nearer to 1, more sources, the latest sighting."""
    return replace(
        span,
        importance=max(span.importance, command.importance),
        confidence=max(command.confidence, 1 - (1 - span.confidence) * DOUBT_LEFT),
        citations=tuple(sorted({*span.citations, *command.citations})),
        verified_at=decision.said_at,
    )


def facts(
    tx: Tx,
    *,
    category: str = "",
    tag: str = "",
    as_of: datetime | None = None,
    history: bool = False,
) -> list[Feature]:
    """The facts that hold now, or held at `as_of`; with `history` those that were ended too. The most important first."""
    moment = as_of or tx.now
    return [
        fact
        for fact in tx.facts.living(tx.now)
        if category in ("", fact.category)
        and tag in ("", fact.tag)
        and ((history and (as_of is None or fact.valid_from <= as_of)) or _holds(fact, moment, as_of is None))
    ]


def _holds(fact: Feature, moment: datetime, now: bool) -> bool:
    """Whether a fact holds at a moment. What was said of a time to come counts as known now."""
    if now:
        return fact.valid_to is None
    return fact.valid_from <= moment and (fact.valid_to is None or fact.valid_to > moment)


def stated(fact: Feature) -> str:
    """A fact as it is searched: what it is about, and what it says."""
    return f"{fact.tag}, {fact.name}: {fact.value}"


def close(
    facts: Sequence[Feature], query: str, cosines: Sequence[float], floor: float, importance: float
) -> list[Near]:
    """The facts that share a word with the query or whose cosine reaches the embedder's `floor`, the best first. A part
    `importance` of the score is the fact's own; the share of the query's words and the cosine make the rest, as equals."""
    asked = set(text.query_words(query))
    closeness = (1 - importance) / 2
    near = []
    for fact, cosine in zip(facts, cosines, strict=True):
        shared = len(asked & set(text.words(stated(fact)))) / (len(asked) or 1)
        if shared or cosine >= floor:
            signals = {
                "words": closeness * shared,
                "meaning": closeness * max(0.0, cosine),
                "importance": importance * fact.importance,
            }
            near.append(Near(fact, {name: amount for name, amount in signals.items() if amount}))
    return sorted(near, key=lambda one: -one.score)
