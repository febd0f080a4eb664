"""A second look at the first hits: rerankers that need no model, and how one is asked.

The others are providers (`providers/reranking.py`). A reranker gets the texts in the order in which they were found.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mcp_memory import text
from mcp_memory.errors import ProviderError
from mcp_memory.protocols import Reranker
from mcp_memory.ranking import RRF_K, rarity_of, saturated
from mcp_memory.types import Hit, Lag, Question
from mcp_memory.workers import Worker

log = logging.getLogger(__name__)

RERANKED = 50
"""Hits that a reranker sees."""

_WAIT_SECONDS = 20.0
_TEXT_TOKENS = 256
_CACHED = 64  # questions: who turns a page must not wait again


class Bm25Reranker:
    """By the words of the query that a text holds, rare among these texts: Okapi BM25 over them alone."""

    name = "bm25"

    def load(self) -> None:
        pass

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        counted = [Counter(text.words(said)) for said in texts]
        mean = sum(held.total() for held in counted) / max(1, len(counted)) or 1.0
        scores = [0.0] * len(texts)
        for word in text.query_words(query):
            holding = sum(word in held for held in counted)
            rarity = rarity_of(holding, len(texts))
            for place, held in enumerate(counted):
                scores[place] += rarity * saturated(held[word], held.total(), mean)
        return scores


class RrfReranker:
    """By reciprocal ranks: the order in which the texts were found and that of their words, as equals."""

    name = "rrf"

    def load(self) -> None:
        pass

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        by_words = Bm25Reranker().rerank(query, texts)
        places = sorted(range(len(texts)), key=lambda place: (-by_words[place], place))
        fused = [1 / (RRF_K + place + 1) for place in range(len(texts))]
        for rank, place in enumerate(places):
            fused[place] += 1 / (RRF_K + rank + 1) if by_words[place] else 0.0
        return fused


OWN: Mapping[str, Callable[[], Reranker]] = {"bm25": Bm25Reranker, "rrf": RrfReranker}
"""Rerankers that need neither a model nor a service."""


class Reranking:
    """A reranker in a thread of its own, with its late answers."""

    def __init__(self, reranker: Reranker, worker: Worker) -> None:
        self._reranker = reranker
        self._worker = worker
        self._late: OrderedDict[tuple[str, ...], list[float]] = OrderedDict()

    async def load(self) -> None:
        """Get ready. Says nothing where that fails: the search that needs it will."""
        with contextlib.suppress(Exception):
            await self._worker.run(self._reranker.load)

    def stop(self) -> None:
        self._worker.stop()

    async def scores(self, query: str, texts: Sequence[str]) -> tuple[list[float], list[Lag]]:
        """A score for each text. Where the reranker fails or is too slow: none, and what the answer says about it."""
        shown = [text.shorten(said, _TEXT_TOKENS) for said in texts]
        try:
            return await asyncio.wait_for(self._scores(query, shown), _WAIT_SECONDS), []
        except ProviderError as error:
            reason = str(error)
        except TimeoutError:
            reason = f"no answer within {_WAIT_SECONDS:.0f} s"
        except Exception as error:  # another distribution's reranker may raise anything: the search has its answer
            log.exception("the reranker %s failed", self._reranker.name)
            reason = f"{type(error).__name__}, see the server's log"
        return [], [Lag(f"reranker/{self._reranker.name}", 0, reason)]

    async def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        key = (query, *texts)
        if key not in self._late:
            scores = await self._worker.run(partial(self._reranker.rerank, query, texts)) if texts else []
            if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
                raise ProviderError(f"{len(scores)} scores for {len(texts)} texts, or none that is a number")
            self._late[key] = scores
            while len(self._late) > _CACHED:
                self._late.popitem(last=False)
        return self._late[key]


def wide(question: Question) -> Question:
    """The question that finds everything from the first hit to the end of the page that is wanted."""
    return replace(question, limit=max(RERANKED, question.given + question.limit), after=None, given=0, expand=0)


def page(hits: Sequence[Hit], question: Question) -> tuple[list[Hit], bool]:
    """The part of reordered hits that a question wants, and whether more follow."""
    start = 0
    if question.after is not None:
        score, seq = question.after
        places = {hit.episode.seq: place for place, hit in enumerate(hits)}
        beyond = (place for place, hit in enumerate(hits) if hit.score < score)
        start = places[seq] + 1 if seq in places else next(beyond, len(hits))
    return list(hits[start : start + question.limit]), len(hits) > start + question.limit
