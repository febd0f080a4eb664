"""Working memory: the newest episodes of a session within a budget, and a summary of those that left it.

The window is read from the log, so that every process sees the same one and a restart loses nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from mcp_memory import text
from mcp_memory.protocols import Tx
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
    is not zero)."""
    episodes = tx.log.session(session_id, kinds=WINDOW_KINDS, newest=_NEWEST)
    if not episodes or (idle and tx.now - max(episode.created_at for episode in episodes) > idle):
        return Window((), "")
    kept, left = _split(_unbroken(episodes), tokens)
    if not left:
        return Window(tuple(kept), "")
    if tx.log.expires():  # what is written down may tell of something that has expired since
        return Window(tuple(kept), summarise(left, int(tokens * _SUMMARY_SHARE)))
    summary = tx.summaries.of(session_id)
    return Window(tuple(kept), summary.text if summary else "")


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
        used += text.count_tokens(episodes[first - 1].content) + _LINE_TOKENS
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
