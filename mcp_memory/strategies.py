"""Strategies: how one question is searched for.

`direct` asks the memory once. `split` asks several independent questions together. `chain` looks at what was found, lets a
model judge whether that is enough, and goes on with what to look for next. `auto` chooses.

A model is asked where there is one; rules stand in for it. Whatever it does, the search answers with what was found, and
the answer says what went wrong and what was spent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from mcp_memory import queries, text
from mcp_memory.errors import ProviderError, ProviderRejected
from mcp_memory.protocols import LanguageModel
from mcp_memory.retrieval import Found
from mcp_memory.types import Episode, Mode, Question

T = TypeVar("T", bound=BaseModel)

log = logging.getLogger(__name__)

ROUNDS = 3
"""Of a chain: each a search and a look at what was found."""

SUFFICIENT = 0.8
"""The confidence at which a chain stops."""

EVIDENCE_TOKENS = 1_500
"""Of what was found that one question to a model shows..."""

EVIDENCE_HITS = 10
"""...from at least so many hits, however few are wanted."""

REST_SECONDS = 30.0
"""For so long a model that failed is left alone, or longer where it asks for that: no search waits for it meanwhile."""

_HIT_TOKENS = 160
_QUESTION_TOKENS = 600
_REASON_TOKENS = 40
_TELLING = 3  # words that a question must hold to be worth a choice

Seek = Callable[[Question], Awaitable[Found]]
"""What a question and its rewrites find together in the memory."""


def _strict(*names: str) -> ConfigDict:
    """Of the schema that a model is shown; what it answers is read more kindly."""
    return ConfigDict(json_schema_extra={"additionalProperties": False, "required": list(names)})


class Route(BaseModel):
    """What a model answers to the question how to search. `queries` are the parts of a question to be split."""

    model_config = _strict("mode", "queries")

    mode: Literal["direct", "split", "chain"]
    queries: list[str] = []


class Parts(BaseModel):
    """The independent questions in one."""

    model_config = _strict("queries")

    queries: list[str]


class Judgement(BaseModel):
    """How surely the evidence answers the question, from 0 to 1; what is missing, and what to look for next."""

    model_config = _strict("confidence", "missing", "query")

    confidence: float
    missing: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """`searches` of the memory, `calls` of a language model, and the tokens `sent` to it and `received` as its provider
    counts them."""

    searches: int = 1
    calls: int = 0
    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class Trail:
    """How a question was searched for: by which strategy, what that lacks, and what it took."""

    mode: Mode = "direct"
    notes: tuple[str, ...] = ()
    spent: Spent = Spent()

    @property
    def is_plain(self) -> bool:
        """Whether it was searched for at once, as it was asked."""
        return self == DIRECT


DIRECT = Trail()


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found, for a question that carries its rewrites now, so that its cursor goes on without a model."""

    question: Question
    found: Found
    trail: Trail = DIRECT


@dataclass(frozen=True, slots=True)
class Told:
    """What a model is told in each of its tasks."""

    route: str
    split: str
    chain: str


@dataclass(slots=True)
class _Log:
    """What one search does. `deadline` is in the time of the event loop."""

    deadline: float
    searches: int = 0
    calls: int = 0
    sent: int = 0
    received: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_late(self) -> bool:
        return asyncio.get_running_loop().time() >= self.deadline

    def trail(self, mode: Mode) -> Trail:
        return Trail(mode, tuple(self.notes), Spent(self.searches, self.calls, self.sent, self.received))


class Strategies:
    """`model` is who is asked, None for nobody. `seconds` is the longest that this may hold up a search; `now` tells when a
    model that failed has rested."""

    def __init__(self, model: LanguageModel | None, told: Told, seconds: float, now: Callable[[], datetime]) -> None:
        self._model = model
        self._told = told
        self._seconds = seconds
        self._now = now
        self._resting_until: datetime | None = None

    async def search(self, question: Question, seek: Seek) -> Searched:
        """Search by the mode of the question. One that goes on at a cursor is searched as before, and asks no model."""
        if question.mode == "direct" or question.after is not None:
            return Searched(question, await seek(question))
        run = _Log(asyncio.get_running_loop().time() + self._seconds)
        mode, parts = await self._chosen(question, run)
        if mode == "chain":
            question, found = await self._chained(question, seek, run)
        else:
            question = replace(question, rewrites=parts)
            found = await _sought(question, seek, run)
        return Searched(question, found, run.trail(mode))

    async def _chosen(self, question: Question, run: _Log) -> tuple[Mode, tuple[str, ...]]:
        """The strategy, and for `split` the parts: by the model, where one can be asked and answers, else by rule."""
        route = await self._route(question, run) if self._asks(question, run) else None
        if route is not None and route.mode != "split":
            return route.mode, ()
        parts = _usable(question, route.queries) if route is not None else ()
        if route is None or (route.queries and not parts):
            parts = queries.parts(question.query)
        if question.mode == "chain":
            how = "in parts, by rule" if parts else "directly"
            run.notes.append(f"no language model judged what was found, and nothing was followed up: searched {how}")
        elif question.mode == "split" and not parts:
            run.notes.append("the question was taken for one: searched directly")
        return ("split", parts) if parts else ("direct", ())

    async def _route(self, question: Question, run: _Log) -> Route | None:
        """What the model chooses, as far as the caller has left that open."""
        if question.mode == "chain":
            return Route(mode="chain")
        if question.mode == "auto":
            return await self._asked(self._told.route, _stated(question), Route, run)
        parts = await self._asked(self._told.split, _stated(question), Parts, run)
        return Route(mode="split", queries=parts.queries) if parts is not None else None

    async def _chained(self, question: Question, seek: Seek, run: _Log) -> tuple[Question, Found]:
        """Search, let the model judge, search on for what it misses as well; until that is enough, or nothing new comes."""
        wide = replace(question, limit=max(question.limit, EVIDENCE_HITS))
        found = await _sought(wide, seek, run)
        for number in range(1, ROUNDS + 1):
            evidence = _evidence(wide, found)
            judgement = await self._asked(self._told.chain, evidence, Judgement, run)
            if judgement is None:
                break
            if _confidence(judgement) >= SUFFICIENT:
                run.notes = []
                break
            missing = text.shorten(" ".join(text.clean(judgement.missing).split()), _REASON_TOKENS)
            run.notes = [f"still missing: {missing}"] if missing else []  # what was missing before may be found by now
            following = _following(wide, judgement, evidence, run)
            if not following or number == ROUNDS:
                break
            wider = replace(wide, rewrites=(*wide.rewrites, following))
            try:
                async with asyncio.timeout_at(run.deadline):
                    found = await _sought(wider, seek, run)
            except TimeoutError:
                run.notes.append(_LATE)
                break
            wide = wider
        question = replace(question, rewrites=wide.rewrites)
        return question, found if wide.limit == question.limit else await _sought(question, seek, run)

    def _asks(self, question: Question, run: _Log) -> bool:
        """Whether a model is asked: not where the question is so short that there is nothing to choose. Where it rests,
        that is noted."""
        short = question.mode == "auto" and len(text.query_words(question.query)) < _TELLING
        if self._model is None or short:
            return False
        if self._resting_until is not None and self._now() < self._resting_until:
            run.notes.append(_RESTS)
            return False
        return True

    async def _asked(self, instructions: str, asked: str, output_type: type[T], run: _Log) -> T | None:
        """What the model answers; None where that is nothing that can be used, and why is noted."""
        if self._model is None:
            return None
        if run.is_late:
            run.notes.append(_LATE)
            return None
        run.calls += 1
        try:
            async with asyncio.timeout_at(run.deadline):
                replied = await self._model.reply(instructions, asked, output_type)
        except TimeoutError:
            run.notes.append(_LATE)
            self._rest(0.0)
        except ProviderRejected as error:
            run.notes.append(f"the language model gave no answer that can be used ({error})")
        except ProviderError as error:
            run.notes.append(f"the language model could not be asked ({error})")
            self._rest(error.retry_after)
        except Exception:  # another distribution's model may break its promise: the search goes on all the same
            log.exception("%s failed", self._model.name)
            run.notes.append("the language model failed unexpectedly (see the server's log)")
            self._rest(0.0)
        else:
            run.sent += replied.sent
            run.received += replied.received
            return replied.value
        log.info("%s: %s", self._model.name, run.notes[-1])
        return None

    def _rest(self, seconds: float) -> None:
        self._resting_until = self._now() + timedelta(seconds=min(max(seconds, REST_SECONDS), 86_400))


_LATE = "the time for this search was up: this is what was found until then"
_RESTS = "the language model failed a moment ago and was not asked"


async def _sought(question: Question, seek: Seek, run: _Log) -> Found:
    run.searches += 1 + len(question.rewrites)
    return await seek(question)


def _confidence(judgement: Judgement) -> float:
    """In [0, 1]; a model that writes 85 means 0.85."""
    return judgement.confidence / 100 if 1 < judgement.confidence <= 100 else judgement.confidence


def _usable(question: Question, proposed: list[str]) -> tuple[str, ...]:
    """The parts that a model found, if they are several and name nothing that the question does not; else ()."""
    fitting = [fit for part in proposed if (fit := queries.fitting(part))]
    parts = list({text.folded(part): part for part in fitting if not queries.invented(part, question.query)}.values())
    return tuple(parts) if len(fitting) == len(proposed) and 2 <= len(parts) <= queries.MOST else ()


def _following(question: Question, judgement: Judgement, evidence: str, run: _Log) -> str:
    """What to look for next, "" where that is nothing new or rests on a guess, which is noted."""
    following = queries.fitting(judgement.query)
    before = {text.folded(asked) for asked in (question.query, *question.rewrites)}
    if not following or text.folded(following) in before:
        return ""
    if strangers := queries.invented(following, evidence):
        told = text.shorten(", ".join(strangers), _REASON_TOKENS)
        run.notes.append(f"the next query was not used, as nothing that was found names {told}")
        return ""
    return following


# ---- what a model is shown


def _stated(question: Question) -> str:
    return f"Question: {text.shorten(question.query, _QUESTION_TOKENS)}"


def _evidence(question: Question, found: Found) -> str:
    """The question, what was looked for since, and the best of what was found, within a budget."""
    searched = [f"Searched already: {query}" for query in question.rewrites]
    lines, room = [_stated(question), *searched, "Found:"], EVIDENCE_TOKENS
    said = list(dict.fromkeys(line for hit in found.hits for line in map(_line, (hit.episode, *hit.around))))
    for line in said:
        room -= text.count_tokens(line)
        if room < 0:
            break
        lines.append(line)
    return "\n".join(lines if said else [*lines, "nothing"])


def _line(episode: Episode) -> str:
    said = text.shorten(" ".join(episode.content.split()), _HIT_TOKENS)
    return f"{episode.occurred_at:%Y-%m-%d} {episode.name}: {said}"
