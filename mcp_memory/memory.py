"""`Memory`: the verbs. Each is a few steps long; what a step does stands in the module of its kind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_memory import (
    commands,
    consolidation,
    context,
    episodic,
    extraction,
    forgetting,
    handing,
    paging,
    profile,
    questions,
    rerankers,
    retrieval,
    timeparse,
    transfer,
    working,
)
from mcp_memory.consolidation import ConsolidationView, Done, Report
from mcp_memory.context import Context, Line, text_cost
from mcp_memory.embedders import Embedders, Meaning
from mcp_memory.episodic import VectorsView
from mcp_memory.errors import InvalidInput, MemoryServerError, ProviderError, SettingsError
from mcp_memory.forgetting import Forgotten, Preview
from mcp_memory.protocols import LanguageModel, Store, Tx
from mcp_memory.ranking import Weights
from mcp_memory.rerankers import Reranking
from mcp_memory.retrieval import Found
from mcp_memory.strategies import DIRECT, Strategies, Trail
from mcp_memory.transfer import Imported
from mcp_memory.types import (
    Decision,
    Episode,
    Feature,
    Hit,
    Lag,
    Message,
    Near,
    Question,
    Scope,
    Selection,
    Stored,
)
from mcp_memory.views import Batch, View, Views

if TYPE_CHECKING:
    from mcp_memory.settings import Settings

log = logging.getLogger(__name__)

ADD_WAIT_SECONDS = 2.0
"""How long `add` waits for what it stored to be found by meaning too; words find it at once."""

SEARCH_WAIT_SECONDS = 10.0
"""How long `search` waits for what others left behind, and for the embedder to answer."""

PROFILE_WAIT_SECONDS = 4.0
"""How long `profile` waits for a model that is drawing facts from a full batch just now."""

LOAD_WAIT_SECONDS = 10.0
"""How long it waits besides for what a model's provider has to import first, once in the life of a process."""

CONSOLIDATE_SECONDS = 25.0

RECALLED = 8
"""Hits that `context` asks for beside the window."""


@dataclass(frozen=True, slots=True)
class Added:
    """`replaced` names private parts and secrets that were not stored; `learned` the facts that came at once; `waiting`
    counts what waits for the connected agent to draw facts from."""

    stored: tuple[Stored, ...]
    learned: tuple[Feature, ...]
    lags: tuple[Lag, ...]
    replaced: tuple[str, ...]
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A page of hits, the best first. `lags` tells what was not searched completely, and why; `trail` how it was found."""

    scope: Scope
    question: Question
    found: Found
    lags: tuple[Lag, ...]
    trail: Trail = DIRECT

    def next(self, shown: int | None = None) -> str:
        """The cursor that goes on after the first `shown` hits (all of them if None); "" at the end."""
        count = len(self.found.hits) if shown is None else shown
        return paging.cursor(self.scope, self.question, self.found, count)


@dataclass(frozen=True, slots=True)
class Stats:
    """What one scope holds. `embedder` is the one in use."""

    episodes: int
    sessions: int
    facts: int
    characters: int
    first: datetime | None
    last: datetime | None
    embedder: str
    lags: tuple[Lag, ...]


class Memory:
    """A running memory. Made by `mcp_memory.assembly`, or in one step by `Memory.open(settings)`."""

    def __init__(
        self,
        store: Store,
        views: Views,
        embedders: Embedders,
        models: Sequence[LanguageModel],
        strategies: Strategies,
        *,
        weights: Weights,
        reranking: Reranking | None = None,
        window_tokens: int,
        window_idle: timedelta,
        agent_prompt: str,
        zone: tzinfo,
    ) -> None:
        self.store = store
        self.views = views
        self._embedders = embedders
        self._models = models
        self._strategies = strategies
        self._weights = weights
        self._reranking = reranking
        self._window_tokens = window_tokens
        self._window_idle = window_idle
        self._agent_prompt = agent_prompt
        self._loading: asyncio.Future[list[Any]] | None = None
        self._zone = zone

    @staticmethod
    def open(settings: Settings | None = None) -> AbstractAsyncContextManager[Memory]:
        """`async with Memory.open() as memory`: settings default to the environment's."""
        from mcp_memory.assembly import open_memory  # the one import that points up: for those who use us as a library

        return open_memory(settings)

    # ---- add

    async def add(self, scope: Scope, messages: Sequence[Message]) -> Added:
        """Store what was said, word for word. On return it is on the disk and found by words, and its plain facts are
        known; it is found by meaning as soon as the embedder is done, for which this waits a little.

        Raises InvalidInput where one message cannot be stored; then none is.
        """
        admitted, replaced = episodic.admit(messages)

        def append(tx: Tx) -> tuple[list[Stored], list[Feature], list[tuple[View, Batch | None]], bool, int]:
            before = tx.log.position()
            stored = tx.log.append(admitted)
            self.views.follow(tx, skip=("summary",))
            failing = self.views.is_failing(tx)
            return stored, _learned(tx, before), self.views.gather(tx), failing, self.views.waiting(tx)

        stored, learned, gathered, failing, waiting = await self.store.write(scope, append)
        complete = await self.views.derive(scope, gathered, within=ADD_WAIT_SECONDS)
        lags = [] if complete and not failing else await self.lags(scope)
        return Added(tuple(stored), tuple(learned), tuple(lags), tuple(replaced), waiting)

    # ---- search

    async def search(self, scope: Scope, question: Question, cursor: str = "") -> Answer:
        """Find episodes by meaning and words, within a selection, by the strategy that the question names; a time that it
        names lifts what was said then. An empty query lists what the selection holds.

        Raises InvalidInput for a cursor of another question, a broken filter, or no question at all.
        """
        if cursor:
            question = paging.resumed(scope, question, cursor)
        elif question.asked_at is None:
            question = replace(question, asked_at=self.now())
        if not question.query.strip():
            if not question.selection:
                raise InvalidInput("query: say what to look for, or give a filter, a session_id or a range of time.")
            found = await self.store.read(scope, lambda tx: retrieval.latest(tx, question))
            return Answer(scope, question, found, ())
        await self.views.catch_up(scope, within=SEARCH_WAIT_SECONDS, skip=("summary",))
        lags: dict[Lag, None] = {}

        async def seek(asked: Question) -> Found:
            found, behind = await self._sought(scope, asked)
            lags.update(dict.fromkeys(behind))
            return found

        searched = await self._strategies.search(question, seek)
        if self._weights.accesses and (seqs := [hit.episode.seq for hit in searched.found.hits]):
            await self.store.write(scope, lambda tx: tx.log.count_access(seqs), durable=False)
        return Answer(scope, searched.question, searched.found, tuple(lags), searched.trail)

    async def _sought(self, scope: Scope, question: Question) -> tuple[Found, list[Lag]]:
        """What a question and all its rewrites find together: where every strategy searches."""
        meanings: dict[str, Meaning | None] = {}
        lags: list[Lag] = []
        for query in (question.query, *question.rewrites):
            meanings[query], behind = await self._meaning(scope, query)
            lags += behind
        asked_at = question.asked_at or self.now()
        whole = timeparse.mentioned(question.query, asked_at, self._zone)
        spans = {question.query: whole}
        for query in question.rewrites:
            spans[query] = timeparse.mentioned(query, asked_at, self._zone) or whole

        def find(wanted: Question) -> Callable[[Tx], Found]:
            return lambda tx: retrieval.recall_all(tx, wanted, meanings, spans, self._weights)

        if self._reranking is None:
            return await self.store.read(scope, find(question)), lags
        wide = await self.store.read(scope, find(rerankers.wide(question)))
        found, failed = await self._reranked(scope, question, wide, self._reranking)
        return found, [*lags, *failed]

    async def _reranked(
        self, scope: Scope, question: Question, found: Found, reranking: Reranking
    ) -> tuple[Found, list[Lag]]:
        """The page that a question wants of what was found, after the reranker has had its say. It sees the question and
        all its rewrites together."""
        first, rest = found.hits[: rerankers.RERANKED], found.hits[rerankers.RERANKED :]
        texts = [episodic.voiced(hit.episode, episodic.spoken(hit.episode)) for hit in first]
        scores, failed = await reranking.scores("\n".join([question.query, *question.rewrites]), texts)

        def page(tx: Tx) -> tuple[list[Hit], bool]:
            judged = retrieval.judged(tx, first, scores, found.upto, self._weights) if scores else first
            shown, more = rerankers.page([*judged, *rest], question)
            return retrieval.expanded(tx, shown, question, found.upto), more

        shown, more = await self.store.read(scope, page)
        return replace(found, hits=tuple(shown), more=more or found.more), failed

    async def _meaning(self, scope: Scope, query: str) -> tuple[Meaning | None, list[Lag]]:
        """The question as the embedder sees it that has followed furthest; None where none can answer."""
        names = questions.names(query)
        lags, speakers = await self.store.read(scope, lambda tx: (self._lags(tx), tx.log.speakers(names)))
        told = questions.told(query, speakers)
        current = self._embedders.current.name
        if any(lag.view == f"vectors/{current}" for lag in lags):
            former = await self.store.read(scope, self._furthest)
            if former != current:
                try:
                    view = VectorsView(self._embedders.named(former), self._embedders.worker)
                    await self.views.catch_up(scope, within=SEARCH_WAIT_SECONDS, skip=("summary",), also=[view])
                    return await self._embedders.meaning(query, former, told, self._weights.told), lags
                except (ProviderError, SettingsError) as error:
                    log.info("the former embedder %s cannot serve any more: %s", former, error)
        try:
            return await self._embedders.meaning(query, current, told, self._weights.told), lags
        except ProviderError as error:
            return None, [*lags, Lag(f"vectors/{current}", 0, str(error))]

    def _furthest(self, tx: Tx) -> str:
        """A former embedder serves while the vectors of the one that is set are still being filled."""
        current = self._embedders.current.name
        names = sorted(tx.embedders(), key=lambda name: (tx.cursors.of(f"vectors/{name}").position, name == current))
        return names[-1] if names else current

    def nothing(self, scope: Scope, question: Question) -> Answer:
        """The answer to a question that no episode is wanted for."""
        return Answer(scope, question, Found((), False, 0), ())

    # ---- profile

    async def profile(
        self,
        scope: Scope,
        *,
        category: str = "",
        tag: str = "",
        as_of: datetime | None = None,
        history: bool = False,
    ) -> tuple[list[Feature], list[Lag]]:
        """The facts that are known, or were at `as_of`; with `history` those that were ended too."""
        if self._loading is not None and self._models:
            await asyncio.wait({self._loading}, timeout=LOAD_WAIT_SECONDS)
        await self.views.catch_up(scope, within=0.0, learning=PROFILE_WAIT_SECONDS, skip=("summary",))
        return await self.store.read(
            scope,
            lambda tx: (
                profile.facts(tx, category=category, tag=tag, as_of=as_of, history=history),
                [lag for lag in self.views.lags(tx) if lag.view in self.learning()],
            ),
        )

    def learning(self) -> list[str]:
        """The views that facts come from, as far as they are derived here."""
        return [
            profile.RulesView.name,
            *(view.name for view in self.views.views if view.name.startswith(extraction.PREFIX) and not view.outside),
        ]

    async def decisions(self, scope: Scope) -> list[tuple[Decision, bool]]:
        """Everything that was ever decided about the profile, in the order of the log, and whether it stands or was
        undone."""

        def read(tx: Tx) -> list[tuple[Decision, bool]]:
            made = tx.decisions.after()
            standing = {decision.seq for decision in profile.standing(made)}
            return [(decision, decision.seq in standing) for decision in made]

        return await self.store.read(scope, read)

    async def correct(self, scope: Scope, category: str, tag: str, feature: str, value: str) -> Feature:
        """Let a slot hold this value and no other, by hand. Raises InvalidInput where a part is empty or too long."""
        command = commands.by_hand(category, tag, feature, value)
        return await self.store.write(scope, lambda tx: profile.correct(tx, command))

    async def end(self, scope: Scope, id: str) -> Feature:
        """Let a fact end now, by hand. Raises NotFound."""
        return await self.store.write(scope, lambda tx: profile.end(tx, id))

    async def undo(self, scope: Scope, position: int) -> Decision:
        """Let a decision count as never made, with what the same hand decided there in the same moment; undone itself, it
        counts again. Raises NotFound."""
        return await self.store.write(scope, lambda tx: profile.undo(tx, position))

    async def replay(self, scope: Scope) -> int:
        """Derive every fact again from the decisions in the log; how many facts there are."""
        return await self.store.write(scope, profile.replay)

    async def closest_first(self, facts: Sequence[Feature], query: str) -> list[Feature]:
        """The facts in the order of their closeness to a query; those that have nothing to do with it come last."""
        scores = {near.fact: near.score for near in await self._near(facts, query)}
        return sorted(facts, key=lambda fact: -scores.get(fact, 0.0))

    async def close_facts(self, scope: Scope, asked: Sequence[str], limit: int) -> list[Near]:
        """The current facts that are close to one of these queries, the best first."""
        facts, _ = await self.profile(scope)
        best: dict[Feature, Near] = {}
        for query in asked:
            for near in await self._near(facts, query):
                best[near.fact] = max(near, best.get(near.fact, near), key=lambda one: one.score)
        return sorted(best.values(), key=lambda near: -near.score)[:limit]

    async def _near(self, facts: Sequence[Feature], query: str) -> list[Near]:
        try:
            cosines, floor = await self._embedders.cosines(query, [profile.stated(fact) for fact in facts])
        except ProviderError:
            cosines, floor = [0.0] * len(facts), 1.0
        return profile.close(facts, query, cosines, floor, self._weights.fact_importance)

    async def sources(self, scope: Scope, facts: Sequence[Feature]) -> dict[str, Episode]:
        """The episodes that these facts cite, by id."""
        ids = {id for fact in facts for id in fact.citations}
        episodes = await self.store.read(scope, lambda tx: [tx.log.episode(id) for id in ids])
        return {episode.id: episode for episode in episodes if episode is not None}

    # ---- context

    async def context(
        self, scope: Scope, query: str, session_id: str, tokens: int, cost: Callable[[Line], int] = text_cost
    ) -> Context:
        """What to put before a model that answers now: standing instructions, the session, the profile, recall; within
        `tokens`, of which a line costs what `cost` says."""
        await self.views.catch_up(scope, within=SEARCH_WAIT_SECONDS)
        facts, window, lags = await self.store.read(
            scope,
            lambda tx: (
                profile.facts(tx),
                working.window(tx, session_id, self._window_tokens, self._window_idle),
                self.views.lags(tx),
            ),
        )
        query = query.strip() or next((e.content for e in reversed(window.episodes) if e.role == "user"), "")
        hits = []
        if query:
            question = Question(query[:2_000], limit=RECALLED + len(window.episodes), expand=0)
            answer = await self.search(scope, question)
            shown = {episode.seq for episode in window.episodes}
            hits = [hit for hit in answer.found.hits if hit.episode.seq not in shown][:RECALLED]
            lags = list(answer.lags)
        return context.compose(facts, window, hits, lags, tokens, cost)

    # ---- forget

    async def preview(self, scope: Scope, selection: Selection, query: str = "") -> Preview:
        """What `forget_selected` would forget, and the token that confirms it."""
        seqs = await self._chosen(scope, selection, query)
        return await self.store.read(scope, lambda tx: forgetting.preview(tx, scope, seqs))

    async def _chosen(self, scope: Scope, selection: Selection, query: str) -> list[int]:
        """The positions of what a selection holds; with a query, of what in it is close to that."""
        if query.strip():
            answer = await self.search(scope, Question(query, selection, limit=50, expand=0))
            return sorted(hit.episode.seq for hit in answer.found.hits)
        return await self.store.read(scope, lambda tx: tx.log.selected(selection, expired=True))

    async def forget(self, scope: Scope, ids: Sequence[str]) -> Forgotten:
        """Forget episodes and facts by id, all or none. Raises NotFound."""

        def forget(tx: Tx) -> Forgotten:
            episodes, facts = forgetting.chosen(tx, ids)
            still = forgetting.forget_facts(tx, facts) if facts else []
            went = forgetting.forget_episodes(tx, self.views, [episode.seq for episode in episodes])
            gone = tuple([episode.id for episode in episodes] + [fact.id for fact in facts])
            return Forgotten(gone, went, tuple(id for id in still if id not in gone))

        return await self._erased(scope, await self.store.write(scope, forget))

    async def forget_selected(self, scope: Scope, selection: Selection, token: str = "", query: str = "") -> Forgotten:
        """Forget what a selection holds (and, with `query`, what in it is close to that). With a token, only if that is
        exactly what its preview showed: raises ConfirmationNeeded otherwise.

        Goes in slices, each of them complete: called again it goes on where it was interrupted.
        """
        seqs = await self._chosen(scope, selection, query)
        if token:
            forgetting.confirmed(scope, seqs, token)
        ids: list[str] = []
        facts = 0
        for at in range(0, len(seqs), forgetting.SLICE):
            part = seqs[at : at + forgetting.SLICE]

            def forget(tx: Tx, part: list[int] = part) -> tuple[list[str], int]:
                episodes = tx.log.at(part)
                went = forgetting.forget_episodes(tx, self.views, [episode.seq for episode in episodes])
                return [episode.id for episode in episodes], went

            gone, went = await self.store.write(scope, forget)
            ids += gone
            facts += went
        return await self._erased(scope, Forgotten(tuple(ids), facts))

    async def forget_everything(self, scope: Scope, token: str = "") -> Forgotten:
        """Forget all that is known in a scope: episodes, facts, corrections."""
        forgotten = await self.forget_selected(scope, Selection(), token)

        def rest(tx: Tx) -> int:
            facts = tx.facts.all()
            forgetting.forget_facts(tx, facts)
            tx.decisions.remove([decision.seq for decision in tx.decisions.after()])
            return len(facts)

        facts = await self.store.write(scope, rest)
        return await self._erased(scope, replace(forgotten, facts=forgotten.facts + facts))

    async def _erased(self, scope: Scope, forgotten: Forgotten) -> Forgotten:
        await self.views.catch_up(scope, within=ADD_WAIT_SECONDS, skip=("summary",))
        pending = bool(forgotten.ids or forgotten.facts) and not await self.store.finish_erasing()
        copies = self.store.copies() if forgotten.ids or forgotten.facts else []
        return replace(forgotten, pending=pending, copies=tuple(copies))

    # ---- consolidate

    async def consolidate(
        self, scope: Scope, *, dry_run: bool = False, proposed: Sequence[Any] | None = None, batch: str = ""
    ) -> Report:
        """Bring every view up to date, for at most `CONSOLIDATE_SECONDS`, merge and end facts, and report. Running it twice
        changes nothing the second time.

        Without a language model the report hands out what waits for the connected agent; its answer comes back as
        `proposed` commands with the token of the `batch`. Raises InvalidBatch where that is stale or another scope's.
        """
        before, facts_before = await self.store.read(scope, self._standing)
        done = Done()
        if proposed is not None:
            done = await handing.answered(self.store, self.views, scope, proposed, batch, dry_run=dry_run)
        elif not dry_run:
            seconds = CONSOLIDATE_SECONDS
            skip = (ConsolidationView.name,)
            await self.views.catch_up(scope, within=seconds, learning=seconds, thorough=True, skip=skip)
        tidied, behind = await consolidation.tidied(self.store, self.views, scope, dry_run=dry_run)
        done += tidied
        handed = None
        if proposed is None and not dry_run:
            hand_out = partial(handing.hand_out, views=self.views, scope=scope, agent=self._agent_prompt)
            handed = await self.store.write(scope, hand_out, durable=False)
        after, facts_after = await self.store.read(scope, self._standing)
        after += behind
        return Report.between(before, after, facts_before, facts_after, done, handed, self._outside(), dry_run=dry_run)

    def _standing(self, tx: Tx) -> tuple[list[Lag], int]:
        lags = [lag for lag in self.views.lags(tx, thorough=True) if lag.view != ConsolidationView.name]
        return lags, len(profile.facts(tx))

    def _outside(self) -> list[str]:
        """The views that the connected agent derives."""
        return [view.name for view in self.views.views if view.outside]

    # ---- moving

    async def export(self, scope: Scope) -> AsyncIterator[transfer.Record]:
        """All that was said in a scope, in the order of the log, and all that was decided by hand or by a model."""
        position = 0
        while said := await self.store.read(scope, partial(_after, position=position)):
            for episode in said:
                yield transfer.episode(episode)
            position = said[-1].seq
        for record in await self.store.read(scope, transfer.decisions):
            yield record

    async def import_(self, scope: Scope, records: Iterable[Mapping[str, Any]]) -> Imported:
        """Take in what `export` gave, here or elsewhere, under the same ids and times. What is here already is not stored
        twice, and what was forgotten here is left out.

        Raises InvalidInput where a record cannot be read; then none is taken in.
        """
        entries = [transfer.entry(record, f"record {number}") for number, record in enumerate(records, 1)]
        spoken = [entry for entry in entries if isinstance(entry, transfer.Spoken)]
        decided = [entry for entry in entries if isinstance(entry, transfer.Decided)]
        places: dict[str, int] = {}
        counted = Counter[str]()

        def store(part: Sequence[transfer.Spoken], tx: Tx) -> Counter[str]:
            stored = transfer.store(tx, part, places)
            self.views.follow(tx, skip=("summary",))
            return stored

        for at in range(0, len(spoken), transfer.BATCH):
            counted += await self.store.write(scope, partial(store, spoken[at : at + transfer.BATCH]))
        decisions = await self.store.write(scope, lambda tx: transfer.decide(tx, decided, places)) if decided else 0
        await self.views.catch_up(scope, within=ADD_WAIT_SECONDS, skip=("summary",))
        lags = await self.lags(scope)
        return Imported(counted["stored"], counted["known"], counted["forgotten"], decisions, tuple(lags))

    # ---- looking after

    async def lags(self, scope: Scope) -> list[Lag]:
        """The views that are behind the log, without those that are caught up only where they are read."""
        return await self.store.read(scope, self._lags)

    def _lags(self, tx: Tx) -> list[Lag]:
        outside = ("summary", *self._outside())
        return [lag for lag in self.views.lags(tx) if lag.view not in outside]

    def now(self) -> datetime:
        """The clock that dates what is stored."""
        return self.store.now()

    def asked_at(self, cursor: str) -> datetime:
        """When the question was asked that goes on at this cursor; now without one."""
        return paging.asked_at(cursor) or self.now()

    async def stats(self, scope: Scope) -> Stats:
        def count(tx: Tx) -> Stats:
            first, last, characters = tx.log.extent()
            return Stats(
                episodes=tx.log.count(),
                sessions=len(tx.log.sessions()),
                facts=len(profile.facts(tx)),
                characters=characters,
                first=first,
                last=last,
                embedder=self._embedders.current.name,
                lags=tuple(self.views.lags(tx)),
            )

        return await self.store.read(scope, count)

    async def episode(self, scope: Scope, id: str) -> Episode | None:
        return await self.store.read(scope, lambda tx: tx.log.episode(id))

    async def session(self, scope: Scope, session_id: str) -> working.Window:
        """The working window of a session."""
        await self.views.catch_up(scope, within=0.0)
        return await self.store.read(
            scope, lambda tx: working.window(tx, session_id, self._window_tokens, self._window_idle)
        )

    async def warm(self) -> None:
        """Load the embedder and the language models, so that the first question need not wait for them. Says nothing where
        they can't be loaded: whoever needs them will be told."""
        if self._loading is None:
            self._loading = asyncio.gather(
                self._embedders.warm(),
                *([self._reranking.load()] if self._reranking else []),
                *(asyncio.to_thread(model.load) for model in self._models),
                return_exceptions=True,
            )
        for loaded in await asyncio.shield(self._loading):
            if isinstance(loaded, BaseException) and not isinstance(loaded, MemoryServerError):
                raise loaded

    async def rebuild(self, scope: Scope, view: str, progress: Callable[[int], None]) -> None:
        """Throw a view away and derive it again. `progress` is told how many episodes are left.

        Raises InvalidInput for a view that only the connected agent can derive: what it answered would be lost.
        """
        if any(one.name == view and one.outside for one in self.views.views):
            raise InvalidInput(
                f"{view}: no language model is configured (MCP_MEMORY_LANGUAGE_MODEL) to derive it again; what the agent "
                "answered stays. `mcp-memory profile rebuild` replays the log."
            )
        category = view.removeprefix(extraction.PREFIX) if view.startswith(extraction.PREFIX) else ""
        if category:
            await self.store.write(scope, lambda tx: consolidation.loosen(tx, category))
        await self.views.rebuild(scope, view, progress)
        if category:
            await consolidation.tidied(self.store, self.views, scope, dry_run=False)

    async def retry_aside(self, scope: Scope, view: str, progress: Callable[[int], None]) -> None:
        """Let a view try again what it had set aside."""
        progress(await self.store.write(scope, lambda tx: self.views.retry_aside(tx, view)))
        await self.views.catch_up(scope, within=CONSOLIDATE_SECONDS, learning=CONSOLIDATE_SECONDS)
        progress(0)


def _after(tx: Tx, position: int) -> list[Episode]:
    return tx.log.after(position, transfer.BATCH)


def _learned(tx: Tx, before: int) -> list[Feature]:
    """The facts that were decided after a position of the log and hold now."""
    decisions = [decision.seq for decision in tx.decisions.after(before)]
    return [fact for fact in tx.facts.decided(decisions) if fact.valid_to is None] if decisions else []
