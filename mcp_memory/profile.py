"""The profile: facts about a user, changed by commands, each with the episodes it rests on.

A changed mind ends a fact and begins another; an older statement that is stored later becomes history. Nothing is merged
because it is alike: only the same statement strengthens a fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from mcp_memory import text
from mcp_memory.protocols import Tx
from mcp_memory.rules import Rules
from mcp_memory.types import AddFeature, Command, Episode, Fact, Feature

LEAST_IMPORTANCE = 0.2
"""Episodes below this are not promoted to facts."""


class RulesView:
    """Facts by rule, in English and Chinese, without a model."""

    name = "rules"

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def follow(self, tx: Tx, episodes: Sequence[Episode]) -> None:
        names: list[str] | None = None
        for episode in episodes:
            if episode.speaker and names is None:
                names = self._names(tx)
            if is_testimony(episode, names or ()):
                for command in self._rules.commands(episode.content, episode.seq):
                    decide(tx, self.name, command, episode.occurred_at)
                    names = None  # it may have been the name

    def _names(self, tx: Tx) -> list[str]:
        """What the user has called themself so far, as facts ("is called Ann", "叫张三")."""
        return [fact.feature.value.casefold() for fact in tx.facts.all() if fact.feature.tag == "name"]

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        tx.facts.remove_unsupported(seqs)

    def clear(self, tx: Tx) -> None:
        tx.facts.clear(self.name)
        tx.log.remove_decisions([decision.seq for decision in tx.log.decisions(source=self.name)])


def is_testimony(episode: Episode, names: Sequence[str]) -> bool:
    """Whether an episode is the user's own statement about themself: the assistant's and others' words are context."""
    return (
        episode.learn
        and episode.role == "user"
        and episode.importance >= LEAST_IMPORTANCE
        and (not episode.speaker or any(name.endswith(episode.speaker.casefold()) for name in names))
    )


def decide(tx: Tx, source: str, command: Command, said_at: datetime) -> None:
    """Keep a command as a decision and apply it. Said again, a fact is strengthened; what was forgotten is not learned
    from what was said before that."""
    slot = tx.facts.slot(command)
    if isinstance(command, AddFeature):
        forgotten_up_to = tx.log.entombed(tx.facts.statement(command))
        citations = tuple(seq for seq in command.citations if seq > forgotten_up_to)
        if command.citations and not citations:
            return
        command = replace(command, citations=citations)
        if said := _still_said(tx, command, slot, said_at):
            tx.facts.strengthen(said.row, command, said_at)
            return
    decision = tx.log.decide(source, command, slot, said_at)
    if isinstance(command, AddFeature):
        tx.facts.insert(command, source, decision, said_at)
    settle(tx, slot)


def settle(tx: Tx, slot: int) -> None:
    """Let each fact of a slot end where it does, whatever the order in which things were stored or forgotten: at the
    first later ending that means it or, where the slot holds one at a time, at the next fact."""
    facts, endings = tx.facts.in_slot(slot), tx.log.endings(slot)
    for fact in facts:
        since = (fact.feature.valid_from, fact.decision)
        ends: list[tuple[datetime, int, int | None]] = [
            (ending.said_at, ending.decision, None)
            for ending in endings
            if (ending.said_at, ending.decision) > since and ending.value in ("", fact.feature.value)
        ]
        ends += [
            (other.feature.valid_from, other.decision, other.row)
            for other in facts
            if fact.single and other.single and (other.feature.valid_from, other.decision) > since
        ]
        at, _, by = min(ends, default=(None, 0, None), key=lambda end: end[:2])
        tx.facts.end(fact.row, at, by)


def _still_said(tx: Tx, command: AddFeature, slot: int, said_at: datetime) -> Fact | None:
    """The fact that says the same and holds at that time, or begins after it with nothing else said between."""
    others = [fact.feature for fact in tx.facts.in_slot(slot) if fact.single and command.single]
    turns = [ending.said_at for ending in tx.log.endings(slot) if ending.value in ("", command.value)]
    for fact in tx.facts.saying(tx.facts.statement(command), slot):
        begun, ended = fact.feature.valid_from, fact.feature.valid_to
        if begun <= said_at and (ended is None or said_at < ended):
            return fact
        between = [*turns, *(other.valid_from for other in others if other.id != fact.feature.id)]
        if said_at < begun and not any(said_at <= turn <= begun for turn in between):
            return fact
    return None


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
        fact.feature
        for fact in tx.facts.living(tx.now)
        if category in ("", fact.feature.category)
        and tag in ("", fact.feature.tag)
        and ((history and (as_of is None or fact.feature.valid_from <= as_of)) or _holds(fact, moment, as_of is None))
    ]


def _holds(fact: Fact, moment: datetime, now: bool) -> bool:
    """Whether a fact holds at a moment. What was said of a time to come counts as known now."""
    if now:
        return fact.feature.valid_to is None
    return fact.feature.valid_from <= moment and (fact.feature.valid_to is None or fact.feature.valid_to > moment)


def stated(fact: Feature) -> str:
    """A fact as it is searched: what it is about, and what it says."""
    return f"{fact.tag}, {fact.name}: {fact.value}"


def close(facts: Sequence[Feature], query: str, cosines: Sequence[float], floor: float) -> list[tuple[Feature, float]]:
    """The facts that share a word with the query or whose cosine reaches the embedder's `floor`, the closest first. The
    score is the mean of the share of the query's words and the cosine."""
    asked = set(text.query_words(query))
    scored = []
    for fact, cosine in zip(facts, cosines, strict=True):
        shared = len(asked & set(text.words(stated(fact)))) / (len(asked) or 1)
        if shared or cosine >= floor:
            scored.append((fact, (shared + max(0.0, cosine)) / 2))
    return sorted(scored, key=lambda item: -item[1])
