"""Extraction: facts of one category, drawn from what was said in batches, by a language model or by the connected agent.

Both get the same batch and the same instructions, and answer with the same commands under the same checks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, WithJsonSchema

from mcp_memory import commands, likeness, profile, text
from mcp_memory.commands import Checked, Classified, Evidence
from mcp_memory.prompts import Category
from mcp_memory.protocols import LanguageModel, Tx
from mcp_memory.types import UNCLASSIFIED, AddFeature, Command, Episode, Feature

log = logging.getLogger(__name__)

PREFIX = "extract/"
"""Before the name of a category: the name of its view."""

PART_TOKENS = 3_000
"""Of the messages that one question to a model holds; longer batches are asked in parts."""

KNOWN_TOKENS = 1_200
"""Of the facts that are told to be known already."""

_BEFORE = 2  # turns before the batch that are shown for context
_BEFORE_TOKENS = 120
_PIECE_TOKENS = 1_500  # of one message in one question
_LEARNED_FROM = ("message", "text", "procedure", "digest")

Likeness = Callable[[str, Sequence[str]], Awaitable[list[float]]]
"""How alike a text is to others, on the calibrated scale of `likeness.calibrated`."""


class Commands(BaseModel):
    """What a model answers. Each command is checked by itself, so that the schema here only says what is asked for."""

    commands: list[
        Annotated[
            Any,
            WithJsonSchema(
                {
                    "type": "object",
                    "properties": {
                        "command": {"type": "string", "enum": ["add", "delete", "classify"]},
                        "tag": {"type": "string"},
                        "feature": {"type": "string"},
                        "value": {"type": "string"},
                        "citations": {"type": "array", "items": {"type": "integer"}},
                        "line": {"type": "integer"},
                        "category": {"type": "string"},
                        "importance": {"type": "number"},
                    },
                    "required": ["command"],
                    "additionalProperties": False,
                }
            ),
        ]
    ]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch as it is shown: numbered `lines`, of which `testimony` are the user's own statements, the turns `before` it,
    and the facts that are `known` already, those that may matter first."""

    category: Category
    lines: tuple[Episode, ...]
    testimony: frozenset[int]
    before: tuple[Episode, ...]
    known: tuple[Feature, ...]

    @property
    def evidence(self) -> Evidence:
        positions: dict[str, tuple[int, ...]] = {}
        context = {episode.id for episode in self.before}
        for number, episode in enumerate(self.lines, 1):
            if episode.seq in self.testimony:
                positions |= {str(number): (episode.seq,), episode.id: (episode.seq,)}
            else:
                context |= {str(number), episode.id}
        return Evidence(positions, frozenset(context))

    def checked(self, proposed: Sequence[Any]) -> Checked:
        return commands.check(proposed, self.evidence, self.known, self.category.name, self.category.single)

    def said_at(self, command: Command) -> datetime:
        """When the latest of what a command cites was said."""
        cited = [line.occurred_at for line in self.lines if line.seq in command.citations]
        return max(cited or [line.occurred_at for line in self.lines])


class ExtractView:
    """The facts of one category. Without a model the view is derived `outside`: its batches are handed to the agent."""

    paid = True
    awaited = False

    def __init__(
        self, category: Category, instructions: str, model: LanguageModel | None, likeness: Likeness, *,
        batch: int, patience: timedelta, classifies: bool,
    ) -> None:  # fmt: skip
        self.name = PREFIX + category.name
        self.batch = batch
        self.patience = patience
        self.outside = model is None
        self.instructions = instructions
        self._category = category
        self._model = model
        self._likeness = likeness
        self._classifies = classifies

    def gather(self, tx: Tx, episodes: Sequence[Episode]) -> Lesson:
        known = profile.known_as(tx)
        lines = [
            episode
            for episode in episodes
            if episode.learn
            and episode.kind in _LEARNED_FROM
            and (episode.expires_at is None or episode.expires_at > tx.now)
        ]
        return Lesson(
            category=self._category,
            lines=tuple(lines),
            testimony=frozenset(line.seq for line in lines if profile.is_testimony(line, known)),
            before=_before(tx, lines, {aside.seq for aside in tx.cursors.aside() if aside.view == self.name}),
            known=_known(profile.facts(tx, category=self._category.name), lines),
        )

    async def derive(self, gathered: Lesson) -> Checked:
        if not gathered.testimony or self._model is None:
            return Checked()  # nothing here can become a fact of the user
        proposed: list[Any] = []
        for part in self.questions(gathered):
            proposed += (await self._model.reply(self.instructions, part, Commands)).value.commands
        checked = gathered.checked(proposed)
        if checked.refused:
            reasons = "; ".join(sorted({refusal.reason for refusal in checked.refused}))
            log.warning(
                "%s: %d of %d commands were refused: %s", self.name, len(checked.refused), len(proposed), reasons
            )
        return await self.recognised(gathered, checked)

    def questions(self, lesson: Lesson) -> Iterator[str]:
        """What a batch is asked in; one question unless its messages are long."""
        return _packed(head(lesson), [line for _, line in self.lines(lesson)])

    def lines(self, lesson: Lesson) -> list[tuple[str, str]]:
        """The messages of a batch as they are shown, each under the id of its episode; a long one in several pieces. A
        question mark asks what an episode is, where no rule told."""
        return [
            (episode.id, _line(f"[{number}]", episode, piece, lesson.testimony, hint))
            for number, episode in enumerate(lesson.lines, 1)
            for hint in ["?" if self._asks(lesson, episode) else ""]
            for piece in _pieces(episode.content)
        ]

    def _asks(self, lesson: Lesson, episode: Episode) -> bool:
        return self._classifies and episode.seq in lesson.testimony and episode.category == UNCLASSIFIED

    async def recognised(self, lesson: Lesson, checked: Checked) -> Checked:
        """Let a command that says in other words what is known already say it in the known ones, so that it strengthens
        the fact instead of adding a second."""
        recognised = [
            await self._recognised(lesson, command) if isinstance(command, AddFeature) else command
            for command in checked.commands
        ]
        return replace(checked, commands=tuple(recognised))

    async def _recognised(self, lesson: Lesson, command: AddFeature) -> AddFeature:
        beside = [fact for fact in lesson.known if fact.tag == command.tag]
        for fact in beside:
            if likeness.same_words(fact.value, command.value):
                return replace(command, feature=fact.name, value=fact.value)
        slot = [fact for fact in beside if text.folded(fact.name) == text.folded(command.feature)]
        slot = [fact for fact in slot if likeness.holds(fact.value, command.value)]  # else a detail would be lost
        alike = await self._likeness(command.value, [fact.value for fact in slot]) if slot else []
        best = max(zip(alike, slot, strict=True), key=lambda pair: pair[0], default=None)
        return replace(command, value=best[1].value) if best and best[0] >= likeness.SAME else command

    def apply(self, tx: Tx, gathered: Lesson, derived: Checked) -> None:
        for command in derived.commands:
            profile.decide(tx, self.name, command, gathered.said_at(command))
        classify(tx, derived.classified)

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        """Decisions go with the episodes they rest on, whoever made them."""

    def clear(self, tx: Tx) -> None:
        profile.unlearn(tx, self.name)


def classify(tx: Tx, classified: Sequence[Classified]) -> None:
    """Note what episodes were found to be, where neither the caller nor a rule had told."""
    for one in classified:
        tx.log.classify(one.seq, one.category, one.importance)


# ---- what is shown


def _packed(head: str, lines: Sequence[str]) -> Iterator[str]:
    """Questions that each begin with the same head and hold as many lines as fit."""
    shown: list[str] = []
    room = PART_TOKENS
    for line in lines:
        cost = text.count_tokens(line)
        if shown and cost > room:
            yield "\n".join([head, *shown])
            shown, room = [], PART_TOKENS
        shown.append(line)
        room -= cost
    if shown:
        yield "\n".join([head, *shown])


def head(lesson: Lesson) -> str:
    """What a batch is shown with: the facts that are known already, and what was said before it."""
    head = []
    if lesson.known:
        facts = [f"{fact.tag} / {fact.name}: {fact.value}" for fact in lesson.known]
        head += ["Current facts:", *facts, ""]
    if lesson.before:
        turns = [
            _line("-", turn, text.shorten(turn.content, _BEFORE_TOKENS), frozenset(), "") for turn in lesson.before
        ]
        head += ["Said before (context only):", *turns, ""]
    return "\n".join([*head, "Messages:"])


def _line(mark: str, episode: Episode, said: str, testimony: frozenset[int], hint: str) -> str:
    who: str = episode.role
    if episode.seq not in testimony and episode.speaker:
        who = f"{episode.role} ({' '.join(episode.speaker.split())}, somebody else)"
    body = "\n    ".join(said.splitlines())  # so that no line of theirs looks like one of ours
    return f"{mark} {episode.occurred_at:%Y-%m-%d} {who}{hint}: {body}"


def _pieces(said: str) -> Iterator[str]:
    """The text in pieces of which each fits into one question, cut between sentences."""
    piece, cost = "", 0
    for sentence in text.sentences(said) if text.count_tokens(said) > _PIECE_TOKENS else [said]:
        tokens = text.count_tokens(sentence)
        if piece and cost + tokens > _PIECE_TOKENS:
            yield piece
            piece, cost = "", 0
        piece, cost = f"{piece} {sentence}" if piece else sentence, cost + tokens
    yield piece


def _before(tx: Tx, lines: Sequence[Episode], aside: Collection[int]) -> tuple[Episode, ...]:
    """The turns directly before a batch in its conversation, without those that a model could not take."""
    turns: list[int] = []
    at = lines[0].seq if lines else 0
    while len(turns) < _BEFORE and (at := tx.log.preceding([at]).get(at, 0)):
        turns.append(at)
    return tuple(episode for episode in tx.log.at(turns) if episode.learn and episode.seq not in aside)


def _known(facts: Sequence[Feature], lines: Sequence[Episode]) -> tuple[Feature, ...]:
    """The facts within a budget: those that share the most words with the batch first, then the most important."""
    said = {word for line in lines for word in text.query_words(line.content)}
    near = sorted(facts, key=lambda fact: -len(said & set(text.query_words(profile.stated(fact)))))
    known, room = [], KNOWN_TOKENS
    for fact in near:
        room -= text.count_tokens(profile.stated(fact)) + 2
        if room < 0:
            break
        known.append(fact)
    return tuple(known)
