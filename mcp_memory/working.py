"""Working memory: the newest episodes of a session within a budget, and a summary of those that left it.

The window is read from the log, so that every process sees the same one and a restart loses nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pydantic import BaseModel

from mcp_memory import text
from mcp_memory import tokens as tokens_
from mcp_memory.errors import ProviderRejected
from mcp_memory.protocols import LanguageModel, Tx
from mcp_memory.types import SILENCE, Episode, Kind, Summary

WINDOW_KINDS: tuple[Kind, ...] = ("message", "text")

_NEWEST = 400  # episodes of a session that are looked at
_SUMMARY_SHARE = 0.2  # of the window's budget


@dataclass(frozen=True, slots=True)
class Window:
    """`episodes` oldest first; `summary` stands for those before them, "" where there is nothing before."""

    episodes: tuple[Episode, ...]
    summary: str


def window(tx: Tx, session_id: str, tokens: int, idle: timedelta) -> Window:
    """The session's window: its newest episodes of at most `tokens`, empty where nothing was added for `idle` (if that
    is not zero). What left it and no summary covers yet is summed up by its own sentences."""
    episodes = tx.log.session(session_id, kinds=WINDOW_KINDS, newest=_NEWEST)
    if not episodes or (idle and tx.now - max(episode.created_at for episode in episodes) > idle):
        return Window((), "")
    kept, left = _split(_unbroken(episodes), tokens)
    if not left:
        return Window(tuple(kept), "")
    budget = int(tokens * _SUMMARY_SHARE)
    if tx.log.expires(session_id):  # what is written down may tell of something that has expired since
        return Window(tuple(kept), summarise(left, budget))
    summary = tx.summaries.of(session_id)
    if summary is None:
        return Window(tuple(kept), summarise(left, budget))
    rest = _after(left, summary)
    return Window(tuple(kept), "\n".join([summary.text, *([summarise(rest, budget)] if rest else [])]))


def _after(left: Sequence[Episode], summary: Summary | None) -> list[Episode]:
    """What left the window after a summary was written; everything where that covers something else."""
    covered = [index for index, episode in enumerate(left) if summary and episode.seq == summary.upto]
    return list(left[covered[0] + 1 :]) if covered else list(left)


def _unbroken(episodes: Sequence[Episode]) -> list[Episode]:
    """The unnamed session is the part after its last long silence."""
    start = 0
    for i in range(1, len(episodes)):
        if not episodes[i].session_id and episodes[i].occurred_at - episodes[i - 1].occurred_at > SILENCE:
            start = i
    return list(episodes[start:])


def _split(episodes: Sequence[Episode], tokens: int) -> tuple[list[Episode], list[Episode]]:
    """What fits into the window, and what left it. The newest episode always fits (it is cut when shown)."""
    used, first = 0, len(episodes)
    while first > 0:
        used += tokens_.count(episodes[first - 1].content) + _LINE_TOKENS
        if used > tokens and first < len(episodes):
            break
        first -= 1
    return list(episodes[first:]), list(episodes[:first])


_LINE_TOKENS = 16  # date, id and name before each line


class SummaryView:
    """What left the window of a session, as its most telling sentences."""

    name = "summary"

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def follow(self, tx: Tx, episodes: Sequence[Episode]) -> None:
        for session_id in dict.fromkeys(episode.session_id for episode in episodes):
            self._summarise(tx, session_id)

    def _summarise(self, tx: Tx, session_id: str) -> None:
        episodes = _unbroken(tx.log.session(session_id, kinds=WINDOW_KINDS, newest=_NEWEST))
        _, left = _split(episodes, self._tokens)
        if left:
            body = summarise(left, int(self._tokens * _SUMMARY_SHARE))
            tx.summaries.put(session_id, Summary(body, left[-1].seq))

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        """The summaries of the sessions go whole, and are derived again from what stays."""
        forgotten = set(seqs)
        for session_id in tx.summaries.remove(seqs):
            stays = [episode.seq for episode in tx.log.session(session_id, kinds=WINDOW_KINDS, newest=_NEWEST)]
            tx.cursors.mark(self.name, [seq for seq in stays if seq not in forgotten][-1:])

    def clear(self, tx: Tx) -> None:
        tx.summaries.clear()


@dataclass(frozen=True, slots=True)
class _Story:
    """What a model has to sum up of one session: what was summed up before, and what came since."""

    session_id: str
    before: str
    since: tuple[Episode, ...]


class Summarised(BaseModel):
    """What a model answers."""

    summary: str


class ModelSummaryView:
    """What left the window of a session, retold by a language model from its last summary and what came since."""

    name = SummaryView.name
    paid = True
    awaited = False
    outside = False

    def __init__(
        self, model: LanguageModel, instructions: str, tokens: int, *, batch: int, patience: timedelta
    ) -> None:
        self.batch = batch
        self.patience = patience
        self._model = model
        self._tokens = tokens
        self._budget = int(tokens * _SUMMARY_SHARE)
        self._instructions = instructions.replace("{tokens}", str(self._budget))
        self._extractive = SummaryView(tokens)

    def gather(self, tx: Tx, episodes: Sequence[Episode]) -> list[_Story]:
        stories = []
        for session_id in dict.fromkeys(episode.session_id for episode in episodes):
            said = _unbroken(tx.log.session(session_id, kinds=WINDOW_KINDS, newest=_NEWEST))
            _, left = _split(said, self._tokens)
            summary = tx.summaries.of(session_id)
            since = _after(left, summary)
            if since:
                before = summary.text if summary and len(since) < len(left) else ""
                stories.append(_Story(session_id, before, tuple(since)))
        return stories

    async def derive(self, gathered: list[_Story]) -> list[tuple[str, Summary]]:
        told = []
        for story in gathered:
            reply = await self._model.reply(self._instructions, _asked(story), Summarised)
            retold = text.shorten(text.clean(reply.value.summary).strip(), 2 * self._budget)
            if not retold:
                raise ProviderRejected(f"{self._model.name} answered with an empty summary")
            told.append((story.session_id, Summary(retold, story.since[-1].seq)))
        return told

    def apply(self, tx: Tx, gathered: list[_Story], derived: list[tuple[str, Summary]]) -> None:
        for session_id, summary in derived:
            tx.summaries.put(session_id, summary)

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        self._extractive.forget(tx, seqs)

    def clear(self, tx: Tx) -> None:
        tx.summaries.clear()


def _asked(story: _Story) -> str:
    room = _STORY_TOKENS // len(story.since)
    lines = [
        f"{episode.occurred_at:%Y-%m-%d %H:%M} {episode.name}: {text.shorten(episode.content, max(40, room))}"
        for episode in story.since
    ]
    before = ["Summary so far:", story.before, ""] if story.before else []
    return "\n".join([*before, "Messages since:", *lines])


_STORY_TOKENS = 6_000  # of messages in one question


def summarise(episodes: Sequence[Episode], tokens: int) -> str:
    """The sentences that share most with all the others, in their order, within a budget.

    A sentence's weight is the mean of `log(1 + n)` over its words, n being the number of episodes that use the word: the
    frequency-driven summary of Nenkova and Vanderwende, "The Impact of Frequency on Summarization" (2005).
    """
    sentences = [
        (position, episode, sentence, text.query_words(sentence))
        for position, episode in enumerate(episodes)
        for sentence in text.sentences(episode.content)
    ]
    used_in: Counter[str] = Counter()
    for episode in episodes:
        used_in.update(set(text.query_words(episode.content)))
    ranked = sorted(
        enumerate(sentences),
        key=lambda item: -sum(math.log1p(used_in[word]) for word in item[1][3]) / (4 + len(item[1][3])),
    )
    chosen, used, said = [], 0, set[str]()
    for number, (_, episode, sentence, _) in ranked:
        line = f"{episode.name}: {sentence}"
        cost = text.count_tokens(line)
        if sentence in said or used + cost > tokens:
            continue
        used += cost
        said.add(sentence)
        chosen.append((number, line))
    return "\n".join(line for _, line in sorted(chosen))
