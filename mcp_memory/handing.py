"""The connected agent as extractor: a batch is handed to it with instructions and a token, and its answer comes back with
that token, under the same checks as a model's.

A token names the view, the scope, the range and the epoch. It stays good while memories are added, and is stale once the
range was derived, here or by another client, or something was forgotten.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_memory import consolidation, extraction, profile, text
from mcp_memory.commands import Checked
from mcp_memory.consolidation import ConsolidationView, Crowd, Done, Handed, Plan
from mcp_memory.errors import InvalidBatch
from mcp_memory.extraction import ExtractView, Lesson
from mcp_memory.protocols import Store, Tx
from mcp_memory.types import CONSOLIDATION, Scope
from mcp_memory.views import Batch, Views

HANDED_EPISODES = 20
HANDED_TOKENS = 1_200
"""The most that one batch hands out; a single long message is shown whole."""

LINE_TOKENS = 10
"""Number, date and name before a message."""

STALE = (
    "batch: it was answered already, or something was forgotten since. Nothing was changed: call consolidate without "
    "commands for a new batch."
)


@dataclass(frozen=True, slots=True)
class Token:
    """`view` derives the episodes after `position` up to `last`, `again` where it had passed them; or, where `tag` is
    given, that tag is put in order, as of the decision at `last`."""

    view: str
    position: int
    last: int
    epoch: int
    scope: str
    tag: str = ""
    again: bool = False

    def __str__(self) -> str:
        parts = [self.view, self.position, self.last, self.epoch, self.scope, self.tag, self.again]
        return base64.urlsafe_b64encode(json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()).decode()

    @property
    def orders(self) -> bool:
        """Whether it stands for facts of a tag rather than for episodes."""
        return self.view.startswith(f"{CONSOLIDATION}/")

    @classmethod
    def read(cls, text: str) -> Token:
        """Raises InvalidBatch where it is none."""
        try:
            view, position, last, epoch, fingerprint, tag, again = json.loads(base64.urlsafe_b64decode(text.strip()))
            return cls(str(view), int(position), int(last), int(epoch), str(fingerprint), str(tag), bool(again))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidBatch(
                "batch: not a token of this server. Give back the `batch` of the answer that handed it out."
            ) from error


def hand_out(tx: Tx, views: Views, scope: Scope, agent: str) -> Handed | None:
    """The next batch for the agent: episodes that wait, else a tag that has too many facts; None where nothing waits.
    `agent` is what it is told about answering. Runs in a write transaction: what no fact can come from is passed over."""
    for view in views.views:
        if isinstance(view, ExtractView) and view.outside and (batch := _waiting(tx, views, view)):
            token = Token(view.name, batch.position, batch.seqs[-1], batch.epoch, _here(tx, scope), again=batch.again)
            lesson: Lesson = batch.gathered
            told = f"{agent}\n\n{view.instructions}"
            return Handed(told, extraction.head(lesson), tuple(view.lines(lesson)), str(token))
    for view in views.views:
        if isinstance(view, ConsolidationView) and not view.paid:
            for crowd in consolidation.crowds(tx, profile.facts(tx)):
                token = _of(tx, crowd, _here(tx, scope))
                told = f"{agent}\n\n{view.instructions}"
                return Handed(told, consolidation.head(crowd), tuple(consolidation.lines(crowd)), str(token))
    return None


async def answered(
    store: Store, views: Views, scope: Scope, proposed: Sequence[Any], batch: str, *, dry_run: bool
) -> Done:
    """Apply what the agent answered to a batch. Raises InvalidBatch; then nothing is applied and nothing lost."""
    token = Token.read(batch)
    if token.orders:

        def order(tx: Tx) -> Done:
            _refuse_foreign(tx, scope, token)
            crowd = crowd_taken_back(tx, token)
            plan = Plan(ordered=((crowd, consolidation.view_of(views).checked(crowd, proposed)),))
            return Done.of(plan) if dry_run else consolidation.carry_out(plan, tx)

        return await (store.read if dry_run else store.write)(scope, order)

    def take_back(tx: Tx) -> tuple[ExtractView, Batch]:
        _refuse_foreign(tx, scope, token)
        return taken_back(tx, views, token)

    view, handed = await store.read(scope, take_back)
    checked = await view.recognised(handed.gathered, handed.gathered.checked(proposed))
    if not dry_run and not await store.write(scope, lambda tx: views.apply(tx, view, handed, checked)):
        raise InvalidBatch(STALE)
    return Done(learned=len(checked.commands), refused=checked.refused)


def _waiting(tx: Tx, views: Views, view: ExtractView) -> Batch | None:
    """The next batch that holds something the user said, within the room of one question."""
    while batch := views.next(tx, view, thorough=True, most=HANDED_EPISODES):
        if batch.gathered.testimony:
            return _bounded(tx, view, batch)
        if not views.apply(tx, view, batch, Checked()):
            return None
    return None


def _bounded(tx: Tx, view: ExtractView, batch: Batch) -> Batch:
    tokens = 0
    for count, episode in enumerate(tx.log.at(batch.seqs)):
        tokens += text.count_tokens(episode.content) + LINE_TOKENS
        if count and (tokens > HANDED_TOKENS or batch.again):  # what was passed once is tried one by one
            seqs = batch.seqs[:count]
            return replace(batch, seqs=seqs, gathered=view.gather(tx, tx.log.at(seqs)))
    return batch


def taken_back(tx: Tx, views: Views, token: Token) -> tuple[ExtractView, Batch]:
    """The batch that a token stands for, as it was handed out. Raises InvalidBatch where it is stale."""
    view = next((view for view in views.views if view.name == token.view), None)
    if not isinstance(view, ExtractView):
        raise InvalidBatch("batch: its category is not learned from any more. Nothing was changed.")
    if tx.epoch() != token.epoch or tx.cursors.of(view.name).position != token.position:
        raise InvalidBatch(STALE)
    if token.again:
        seqs = [seq for seq in tx.cursors.marked(view.name, 1) if seq == token.last]
    else:
        seqs = [said.seq for said in tx.log.after(token.position, HANDED_EPISODES) if said.seq <= token.last]
    if not seqs:
        raise InvalidBatch(STALE)
    return view, Batch(token.position, token.epoch, seqs, token.again, view.gather(tx, tx.log.at(seqs)))


def crowd_taken_back(tx: Tx, token: Token) -> Crowd:
    """The facts of a tag that a token stands for. Raises InvalidBatch where they have changed."""
    for crowd in consolidation.crowds(tx, profile.facts(tx)):
        if _of(tx, crowd, token.scope) == token:
            return crowd
    raise InvalidBatch(STALE)


def _of(tx: Tx, crowd: Crowd, here: str) -> Token:
    """The position stands for which facts there are: one that ended since would give the others new numbers."""
    shown = tx.decisions.mark(repr([fact.id for fact in crowd.facts]))
    return Token(f"{CONSOLIDATION}/{crowd.category}", shown, crowd.position, tx.epoch(), here, crowd.tag)


def _here(tx: Tx, scope: Scope) -> str:
    """What tells this scope of this file from every other."""
    return f"{tx.decisions.mark(repr(scope)):x}"


def _refuse_foreign(tx: Tx, scope: Scope, token: Token) -> None:
    if token.scope != _here(tx, scope):
        raise InvalidBatch("batch: it was handed out for another user or another memory. Nothing was changed.")
