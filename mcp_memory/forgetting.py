"""Forgetting for good: what is chosen, what goes with it, and how it is confirmed.

Ids are forgotten at once. Anything broader is shown first: a preview names what would go, and its token confirms exactly
that. Whatever rests on a forgotten episode alone goes with it; a tombstone in the log keeps it from coming back.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_memory import profile, text
from mcp_memory.errors import ConfirmationNeeded, NotFound
from mcp_memory.protocols import Tx
from mcp_memory.types import Episode, Feature, Scope
from mcp_memory.views import Views

SLICE = 200
"""Episodes that one transaction forgets: others can write between."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a selection would forget. `token` confirms exactly these `count` episodes."""

    count: int
    samples: tuple[Episode, ...]
    token: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """`ids` of what was forgotten, the number of `facts` that went along, episodes that `still_say` a forgotten fact.

    `pending` is true while another process's reading keeps the bytes in the files. `copies` are files set aside earlier
    that may hold the text still.
    """

    ids: tuple[str, ...] = ()
    facts: int = 0
    still_say: tuple[str, ...] = ()
    pending: bool = False
    copies: tuple[str, ...] = ()


def chosen(tx: Tx, ids: Sequence[str]) -> tuple[list[Episode], list[Feature]]:
    """What these ids name. Raises NotFound where one of them names nothing in this scope; then nothing is forgotten."""
    episodes, facts, unknown = [], [], []
    for id in dict.fromkeys(ids):
        if episode := tx.log.episode(id):
            episodes.append(episode)
        elif fact := tx.facts.by_id(id):
            facts.append(fact)
        else:
            unknown.append(id)
    if unknown:
        raise NotFound(
            f"not found: {', '.join(text.shorten(id, 16) for id in unknown[:5])}. Nothing was forgotten. Ids stand in the "
            "answers of search_memory (e…) and read_profile (f…)."
        )
    return episodes, facts


def preview(tx: Tx, scope: Scope, seqs: Sequence[int]) -> Preview:
    return Preview(len(seqs), tuple(tx.log.at(seqs[-5:])), token(scope, seqs))


def token(scope: Scope, seqs: Sequence[int]) -> str:
    """Stands for exactly these episodes of this scope."""
    digest = hashlib.blake2b(repr((scope, list(seqs))).encode("utf-8", "replace"), digest_size=12).digest()
    return base64.urlsafe_b64encode(digest).decode()


def confirmed(scope: Scope, seqs: Sequence[int], given: str) -> None:
    """Raises ConfirmationNeeded where the token stands for something else than what is selected now."""
    if given != token(scope, seqs):
        raise ConfirmationNeeded(
            "preview: what it showed has changed, or the token is another selection's. Nothing was forgotten: call forget "
            "without confirm to see a new preview."
        )


def forget_episodes(tx: Tx, views: Views, seqs: Sequence[int]) -> int:
    """Take episodes out of the log and of every view, in this transaction; how many facts went along."""
    seqs = [episode.seq for episode in tx.log.at(seqs)]
    if not seqs:
        return 0
    before = tx.facts.count()
    views.forget(tx, seqs)
    slots = tx.decisions.remove_unsupported(seqs)
    tx.log.remove(seqs)
    for slot in slots:
        profile.forget_idle(tx, slot)
        profile.settle(tx, slot)
    tx.begin_epoch()
    tx.erase()
    return before - tx.facts.count()


def forget_facts(tx: Tx, facts: Sequence[Feature]) -> list[str]:
    """Take facts out of the profile, with every decision that says the same; the ids of the episodes that still do."""
    still: list[str] = []
    for fact in facts:
        keys = tx.facts.keys_of(fact.id)
        if keys is None:
            continue  # it went with one that says the same
        slot, statement = keys
        saying = [decision for decision in tx.decisions.about(slot) if decision.statement == statement]
        cited = {seq for decision in saying for seq in decision.citations}
        still += [episode.id for episode in tx.log.at(cited)]
        tx.decisions.entomb([statement])
        tx.decisions.remove([decision.seq for decision in saying])
        profile.forget_idle(tx, slot)
        profile.settle(tx, slot)
    tx.begin_epoch()
    tx.erase()
    return list(dict.fromkeys(still))
