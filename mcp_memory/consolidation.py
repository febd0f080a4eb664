"""Consolidation of facts: what is alike is merged, what went stale is ended, a tag that grew large is put in order.

Everything is a decision in the log, with all that it rests on, and can be undone; no episode is ever erased. Running it
twice changes nothing the second time.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import combinations

from mcp_memory import commands, likeness, profile, text
from mcp_memory.commands import Checked, Evidence
from mcp_memory.errors import ProviderError
from mcp_memory.extraction import Commands, Likeness
from mcp_memory.prompts import Category
from mcp_memory.protocols import LanguageModel, Store, Tx
from mcp_memory.types import CONSOLIDATION, AddFeature, DeleteFeature, Episode, Feature, Lag, Scope, Undo
from mcp_memory.views import Views

STALE_AFTER = timedelta(days=30)
STALE_BELOW = 0.3
"""A fact neither heard of nor learned for that long ends when its decayed importance is below this..."""

DECAY = 0.995
"""...which falls by this factor a day."""

LASTING = 0.7
"""Facts that matter as much never go stale: what somebody is called, must not eat, or has ordered for good."""

CROWDED = 20
"""Facts of one tag from which a model is asked to merge and end some."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Merge:
    """Two current facts of one slot that say the same: `kept` has the longer text."""

    kept: Feature
    dropped: Feature


@dataclass(frozen=True, slots=True)
class Crowd:
    """The current facts of a tag that has too many, as of the last decision about one of them."""

    category: str
    tag: str
    facts: tuple[Feature, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with the facts of a scope; `ordered` is what a model answered about crowded tags."""

    stale: tuple[Feature, ...] = ()
    merges: tuple[Merge, ...] = ()
    crowds: tuple[Crowd, ...] = ()
    ordered: tuple[tuple[Crowd, Checked], ...] = ()
    slots: tuple[tuple[Feature, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """What became of the facts: how many commands were `learned` from, facts `merged` into others, `expired` since nothing
    was heard of them, `ended` as a model or the agent said; and what was refused."""

    learned: int = 0
    merged: int = 0
    expired: int = 0
    ended: int = 0
    refused: tuple[commands.Refusal, ...] = ()

    def __add__(self, other: Done) -> Done:
        return Done(
            self.learned + other.learned,
            self.merged + other.merged,
            self.expired + other.expired,
            self.ended + other.ended,
            self.refused + other.refused,
        )

    @classmethod
    def of(cls, plan: Plan) -> Done:
        """What a plan would do."""
        ordered = [command for _, checked in plan.ordered for command in checked.commands]
        additions = sum(isinstance(command, AddFeature) for command in ordered)
        refused = tuple(refusal for _, checked in plan.ordered for refusal in checked.refused)
        return cls(0, len(plan.merges) + additions, len(plan.stale), len(ordered) - additions, refused)


@dataclass(frozen=True, slots=True)
class Report:
    """`derived` counts the episodes that each view was brought forward by (in a dry run: that it would be); `lags` is what
    is still behind, and `waiting` counts what waits for the connected agent. With `agent`, that is who draws facts."""

    derived: dict[str, int]
    facts_before: int
    facts_after: int
    done: Done
    lags: tuple[Lag, ...]
    waiting: int
    dry_run: bool
    handed: Handed | None
    agent: bool

    @classmethod
    def between(
        cls, before: Sequence[Lag], after: Sequence[Lag], facts_before: int, facts_after: int, done: Done,
        handed: Handed | None, outside: Sequence[str], *, dry_run: bool,
    ) -> Report:  # fmt: skip
        """From how things stood before and stand after; `outside` are the views that the agent derives."""
        left = {lag.view: lag.episodes for lag in after}
        derived = {lag.view: lag.episodes - (0 if dry_run else left.get(lag.view, 0)) for lag in before}
        return cls(
            derived={view: count for view, count in derived.items() if count > 0 and view not in outside},
            facts_before=facts_before,
            facts_after=facts_after,
            done=done,
            lags=tuple(lag for lag in after if lag.view not in outside),
            waiting=max((lag.episodes for lag in after if lag.view in outside), default=0),
            dry_run=dry_run,
            handed=handed,
            agent=bool(outside),
        )

    @property
    def more(self) -> bool:
        """Whether another call would go on."""
        return not self.dry_run and (self.waiting > 0 or any(not lag.reason for lag in self.lags))


@dataclass(frozen=True, slots=True)
class Handed:
    """A batch for the connected agent: what to do, what is known, the `items` it is about (id and line), and the token that
    its answer has to name."""

    instructions: str
    head: str
    items: tuple[tuple[str, str], ...]
    token: str


class ConsolidationView:
    """Consolidates by itself after every `batch` episodes, and whenever it is asked to."""

    name = CONSOLIDATION
    patience = timedelta(days=36_500)
    awaited = False
    outside = False

    def __init__(
        self, model: LanguageModel | None, instructions: str, likeness: Likeness, categories: Mapping[str, Category], *,
        batch: int,
    ) -> None:  # fmt: skip
        self.batch = batch
        self.paid = model is not None
        self.instructions = instructions
        self._model = model
        self._likeness = likeness
        self._categories = categories

    def gather(self, tx: Tx, episodes: Sequence[Episode]) -> Plan:
        facts, learned_at = _free(tx, profile.facts(tx)), tx.facts.learned_at()
        slots: dict[tuple[str, str, str], list[Feature]] = defaultdict(list)
        for fact in facts:
            slots[fact.category, fact.tag, text.folded(fact.name)].append(fact)
        return Plan(
            stale=tuple(fact for fact in facts if is_stale(fact, learned_at[fact.id], tx.now)),
            crowds=tuple(crowds(tx, facts)) if self._model else (),
            slots=tuple(tuple(slot) for slot in slots.values() if len(slot) > 1),
        )

    async def derive(self, gathered: Plan) -> Plan:
        merges = [merge for slot in gathered.slots for merge in await self._alike(slot, gathered.stale)]
        ordered = [(crowd, await self._ordered(crowd)) for crowd in gathered.crowds]
        return replace(gathered, merges=tuple(merges), ordered=tuple(ordered))

    async def _alike(self, slot: Sequence[Feature], stale: Sequence[Feature]) -> list[Merge]:
        """Each fact is merged once at a time, with what is most like it."""
        pairs = []
        for one, other in combinations([fact for fact in slot if fact not in stale], 2):
            if likeness.agree(one.value, other.value):
                (alike,) = await self._likeness(one.value, [other.value])
                pairs.append((alike, one, other))
        merges, used = [], set[str]()
        for alike, one, other in sorted(pairs, key=lambda pair: -pair[0]):
            if alike >= likeness.ALIKE and not used & {one.id, other.id}:
                used |= {one.id, other.id}
                kept, dropped = sorted((one, other), key=lambda fact: (len(fact.value), fact.importance), reverse=True)
                merges.append(Merge(kept, dropped))
        return merges

    async def _ordered(self, crowd: Crowd) -> Checked:
        if self._model is None:
            return Checked()
        question = "\n".join([head(crowd), *(line for _, line in lines(crowd))])
        reply = await self._model.reply(self.instructions, question, Commands)
        return self.checked(crowd, reply.value.commands)

    def checked(self, crowd: Crowd, proposed: Sequence[object]) -> Checked:
        """The commands of an answer about a crowd that can be applied. What is added cites the facts it replaces."""
        evidence = Evidence({str(number): (number,) for number in range(1, len(crowd.facts) + 1)})
        category = self._categories.get(crowd.category)
        return commands.check(
            proposed, evidence, crowd.facts, crowd.category, category.single if category else lambda _: False
        )

    def apply(self, tx: Tx, gathered: Plan, derived: Plan) -> None:
        carry_out(derived, tx)

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        """Its decisions go with the episodes they rest on."""

    def clear(self, tx: Tx) -> None:
        profile.unlearn(tx, self.name)


def view_of(views: Views) -> ConsolidationView:
    return next(view for view in views.views if isinstance(view, ConsolidationView))


async def tidied(store: Store, views: Views, scope: Scope, *, dry_run: bool) -> tuple[Done, list[Lag]]:
    """Merge and end facts now, as far as nothing was forgotten meanwhile; in a dry run only tell what would be. Where a
    model fails, the tags that it was to put in order stay as they are, and the lag says why."""
    view = view_of(views)
    epoch, plan = await store.read(scope, lambda tx: (tx.epoch(), view.gather(tx, ())))
    if dry_run:
        return Done.of(await view.derive(replace(plan, crowds=()))), []
    behind = []
    try:
        plan = await view.derive(plan)
    except ProviderError as error:
        log.warning("facts of a crowded tag could not be put in order: %s", error)
        behind = [Lag(view.name, 0, str(error))]
        plan = await view.derive(replace(plan, crowds=()))

    def apply(tx: Tx) -> Done:
        tx.cursors.advance(view.name, tx.cursors.of(view.name).position, tx.log.last())
        return carry_out(plan, tx) if tx.epoch() == epoch else Done()

    return await store.write(scope, apply, durable=False), behind


def _free(tx: Tx, facts: Sequence[Feature]) -> list[Feature]:
    """The facts that may be merged and ended: not those that a person let stand again, nor those that rest on what expires,
    which must not live on in another."""
    spared, expires = profile.spared(tx), tx.log.expires()
    return [
        fact
        for fact in facts
        if not (spared and (tx.facts.keys_of(fact.id) or (0, 0))[1] in spared)
        and not (expires and any(said.expires_at for said in tx.log.at(tx.facts.cited(fact.id))))
    ]


def loosen(tx: Tx, category: str) -> None:
    """Take out what was made of the facts of a category, before they are drawn afresh; what a person undid stays undone."""
    gone = [
        made.seq
        for made in profile.standing(tx.decisions.after())
        if made.source == CONSOLIDATION and not isinstance(made.command, Undo) and made.command.category == category
    ]
    for slot in tx.decisions.remove(gone):
        profile.settle(tx, slot)


def carry_out(plan: Plan, tx: Tx) -> Done:
    """Apply a plan to the facts as they are now: what changed since is left alone."""
    expired = sum(_end(tx, now, tx.now) for fact in plan.stale if (now := _unchanged(tx, fact)))
    merged = 0
    for merge in plan.merges:
        kept, dropped = _unchanged(tx, merge.kept), _unchanged(tx, merge.dropped)
        if kept and dropped:
            merged += _merge(tx, kept, dropped)
    done = Done(merged=merged, expired=expired)
    for crowd, checked in plan.ordered:
        done += _order(tx, crowd, checked)
    return done


def _unchanged(tx: Tx, fact: Feature) -> Feature | None:
    now = tx.facts.by_id(fact.id)
    return now if now and now.valid_to is None and now.value == fact.value else None


def _end(tx: Tx, fact: Feature, at: datetime, citations: Sequence[int] = ()) -> bool:
    command = DeleteFeature(fact.category, fact.tag, fact.name, fact.value, tuple(citations) or tx.facts.cited(fact.id))
    return profile.decide(tx, CONSOLIDATION, command, at)


def _merge(tx: Tx, kept: Feature, dropped: Feature) -> bool:
    at = max(kept.verified_at or kept.valid_from, dropped.verified_at or dropped.valid_from)
    citations = tuple(sorted({*tx.facts.cited(kept.id), *tx.facts.cited(dropped.id)}))
    ended = _end(tx, dropped, at, citations)
    return ended and profile.decide(tx, CONSOLIDATION, _restated(kept, citations, kept, dropped), at)


def _restated(said: Feature, citations: tuple[int, ...], *rests_on: Feature) -> AddFeature:
    return AddFeature(
        category=said.category,
        tag=said.tag,
        feature=said.name,
        value=said.value,
        citations=citations,
        importance=max(fact.importance for fact in rests_on),
        confidence=max(fact.confidence for fact in rests_on),
    )


def _order(tx: Tx, crowd: Crowd, checked: Checked) -> Done:
    """Apply what was answered about a crowded tag, and remember that it was asked about as it stands then. Of a merger of
    which a part ended while a slow model thought, nothing is applied."""
    there = {fact.id for fact in crowd.facts if _unchanged(tx, fact)}
    mergers = [
        (command, [crowd.facts[number - 1] for number in command.citations])
        for command in checked.commands
        if isinstance(command, AddFeature)
    ]
    sound = [merger for merger in mergers if all(fact.id in there for fact in merger[1])]
    there -= {fact.id for merger in mergers if merger not in sound for fact in merger[1]}
    sources = {fact.id: set(tx.facts.cited(fact.id)) for fact in crowd.facts}
    rests_on = {id: set(cited) for id, cited in sources.items()}
    for _, replaced in sound:  # a fact stands again once what replaced it is forgotten
        together = set[int]().union(*(sources[fact.id] for fact in replaced))
        for fact in replaced:
            rests_on[fact.id] |= together
    ended = 0
    for command in checked.commands:
        if isinstance(command, DeleteFeature):
            for fact in _named(crowd, command):
                if fact.id in there and (now := _unchanged(tx, fact)):
                    ended += _end(tx, now, max(tx.now, now.verified_at or now.valid_from), sorted(rests_on[fact.id]))
    merged = 0
    for command, replaced in sound:
        seqs = tuple(sorted({seq for fact in replaced for seq in sources[fact.id]}))
        importance = max(fact.importance for fact in replaced)
        merged += profile.decide(tx, CONSOLIDATION, replace(command, citations=seqs, importance=importance), tx.now)
    asked = _asked(tx, crowd)
    tx.cursors.advance(asked, tx.cursors.of(asked).position, tx.log.position())
    return Done(merged=merged, ended=ended, refused=checked.refused)


def _named(crowd: Crowd, command: DeleteFeature) -> list[Feature]:
    """The facts that a deletion is about."""
    slot = (command.category, command.tag, command.feature)
    return [
        fact
        for fact in crowd.facts
        if (fact.category, fact.tag, fact.name) == slot and command.value in ("", fact.value)
    ]


def is_stale(fact: Feature, learned_at: datetime, now: datetime) -> bool:
    """Whether nothing was heard of a fact for too long. What was learned lately is not, however old: whoever takes in last
    year's conversations wants to know what they tell."""
    age = now - (fact.verified_at or fact.valid_from)
    if fact.importance >= LASTING or min(age, now - learned_at) < STALE_AFTER:
        return False
    decayed: float = fact.importance * DECAY ** (age / timedelta(days=1))
    return decayed < STALE_BELOW


def crowds(tx: Tx, facts: Sequence[Feature]) -> list[Crowd]:
    """The tags that have too many facts and changed since a model or an agent was last asked about them."""
    tags: dict[tuple[str, str], list[Feature]] = defaultdict(list)
    for fact in _free(tx, facts):
        tags[fact.category, fact.tag].append(fact)
    found = []
    for (category, tag), there in tags.items():
        if len(there) >= CROWDED:
            crowd = Crowd(category, tag, tuple(there), tx.facts.last_decision([fact.id for fact in there]))
            if tx.cursors.of(_asked(tx, crowd)).position < crowd.position:
                found.append(crowd)
    return found


def _asked(tx: Tx, crowd: Crowd) -> str:
    """The cursor that tells when a tag was asked about; a hash, since a tag may hold the user's words."""
    return f"order/{tx.decisions.slot(DeleteFeature(crowd.category, crowd.tag, ''))}"


def head(crowd: Crowd) -> str:
    return f"Facts of category {crowd.category}, tag {crowd.tag}:"


def lines(crowd: Crowd) -> list[tuple[str, str]]:
    """The facts of a crowd as a model is shown them, each under its id."""
    return [
        (fact.id, f"[{number}] since {fact.valid_from:%Y-%m-%d} {fact.tag} / {fact.name}: {fact.value}")
        for number, fact in enumerate(crowd.facts, 1)
    ]
