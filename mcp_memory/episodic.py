"""Episodic memory: what is taken into the log, and the two views that find it again, by words and by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_memory import links, questions, redaction, text
from mcp_memory.errors import InvalidInput, ProviderError
from mcp_memory.protocols import Embedder, Tx
from mcp_memory.types import APART, Derivative, Document, Episode, Message
from mcp_memory.workers import Worker

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_CONTENT = 200_000
"""Characters of one message. Longer texts want to be handed in as parts: nobody reads them back whole."""

MAX_MESSAGES = 1_000

MAX_DEPTH = 50
"""Objects and lists inside each other in what a message carries."""

_MAX_NAME = 1_000
_EMBED_AT_ONCE = 64  # texts; a query never waits longer than one such piece


def admit(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """Messages as they may be stored, and the names of what was replaced in them (private parts, secrets).

    Raises InvalidInput where one is empty, too long, or carries an id that no index could hold; then nothing is stored.
    """
    if len(messages) > MAX_MESSAGES:
        raise InvalidInput(f"messages: {len(messages)} at once; send at most {MAX_MESSAGES} and call again.")
    admitted, replaced = [], []
    for number, message in enumerate(messages, 1):
        which = f"message {number}: " if len(messages) > 1 else ""
        if len(message.content) > MAX_CONTENT:
            raise InvalidInput(
                f"{which}content has {len(message.content):,} characters; the limit is {MAX_CONTENT:,}. Send it in parts."
            )
        content, names = redaction.redact(text.clean(message.content))
        if text.is_blank(content):
            raise InvalidInput(f"{which}content is empty: say what to remember.")
        replaced += names
        if _is_deep(message.metadata) or _is_deep(message.blocks):
            raise InvalidInput(
                f"{which}metadata is nested more than {MAX_DEPTH} deep: store it as text, or flatten it."
            )
        carried = {name: _cleaned(value) for name in _CARRIED if (value := getattr(message, name))}
        if message.speaker:
            carried["speaker"] = carried["speaker"].strip()[:_MAX_NAME]
        changed = {name: value for name, value in carried.items() if value != getattr(message, name)}
        if changed or content != message.content:
            message = replace(message, content=content, **changed)
        admitted.append(message)
    return admitted, replaced


_CARRIED = (
    "speaker", "agent_id", "session_id", "produced_for", "tags", "entities", "blocks", "metadata",
)  # fmt: skip


def _is_deep(value: Any, depth: int = 0) -> bool:
    if not isinstance(value, (dict, list, tuple)):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return depth > MAX_DEPTH or any(_is_deep(part, depth + 1) for part in parts)


def _cleaned(value: Any) -> Any:
    """A value in which every text can be stored."""
    match value:
        case str():
            return text.clean(value)
        case tuple() | list():
            return type(value)(_cleaned(part) for part in value)
        case dict():
            return {_cleaned(name): _cleaned(part) for name, part in value.items()}
        case _:
            return value


def spoken(episode: Episode) -> str:
    """The text of an episode as it is indexed: what was said, and the captions of what was shown."""
    captions = [str(block["caption"]) for block in episode.blocks if block.get("caption")]
    return " ".join([episode.content, *(f"[image: {caption}]" for caption in captions)])


def voiced(episode: Episode, sentence: str) -> str:
    """A sentence with its speaker's name before it: names in the text are what questions about people find."""
    return f"{episode.speaker}: {sentence}" if episode.speaker else sentence


class WordsView:
    """The full-text index of folded words."""

    name = "words"

    def follow(self, tx: Tx, episodes: Sequence[Episode]) -> None:
        tx.words.put(
            [
                Document(episode.seq, text.words(voiced(episode, spoken(episode))), questions.asks(episode.content))
                for episode in episodes
            ]
        )

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        tx.words.remove(seqs)

    def clear(self, tx: Tx) -> None:
        tx.words.clear()


@dataclass(frozen=True, slots=True)
class _Turns:
    """What a batch is embedded from: its derivatives, and the positions that they replace, have for the first time, or let
    derive again."""

    seqs: list[int]
    new: list[int]
    derivatives: list[Derivative]
    successors: list[int]


@dataclass(frozen=True, slots=True)
class _Derived:
    vectors: list[npt.NDArray[np.float32]]
    floor: float


class VectorsView:
    """The vectors of one embedder: one a sentence, and one a turn together with the turn before it; and the links between
    episodes whose sentences are alike by these."""

    batch = 128
    patience = timedelta(0)
    awaited = True
    outside = False

    def __init__(self, embedder: Embedder, worker: Worker) -> None:
        self.embedder = embedder
        self._worker = worker
        self.name = f"vectors/{embedder.name}"
        self.paid = embedder.paid

    def gather(self, tx: Tx, seqs: Sequence[int]) -> _Turns:
        episodes = tx.log.at(seqs)
        seqs = [episode.seq for episode in episodes]
        previous, following = tx.log.neighbours(seqs, within=APART)
        turns = {episode.seq: episode for episode in episodes}
        turns |= {episode.seq: episode for episode in tx.log.at(set(previous.values()) - turns.keys())}
        derivatives: list[Derivative] = []
        for episode in episodes:
            said = spoken(episode)
            derivatives += [
                Derivative("sentence", (episode.seq,), voiced(episode, sentence)) for sentence in text.sentences(said)
            ]
            before = turns.get(previous.get(episode.seq, 0))
            both = [text.shorten(voiced(turn, spoken(turn)), _CONTEXT_TOKENS) for turn in (before, episode) if turn]
            sources = (episode.seq,) if before is None else (episode.seq, before.seq)
            derivatives.append(Derivative("context", sources, "\n".join(both)))
        position = tx.cursors.of(self.name).position
        inserted_before = {after for seq, after in following.items() if after <= position < seq}
        new = [seq for seq in seqs if seq > position]
        return _Turns(list(seqs), new, derivatives, sorted(inserted_before))

    async def derive(self, gathered: _Turns) -> _Derived:
        texts = [derivative.text for derivative in gathered.derivatives]
        vectors = [
            await self._worker.run(partial(self.embedder.embed, texts[at : at + _EMBED_AT_ONCE], "document"))
            for at in range(0, len(texts), _EMBED_AT_ONCE)
        ]
        if sum(map(len, vectors)) != len(texts):
            raise ProviderError(f"{self.embedder.name} did not answer with a vector for each text")
        floor = await self._worker.run(lambda: self.embedder.floor)  # may ask the model
        return _Derived([vector for piece in vectors for vector in piece], floor)

    def apply(self, tx: Tx, gathered: _Turns, derived: _Derived) -> None:
        name = self.embedder.name
        tx.vectors(name).replace(gathered.seqs, gathered.derivatives, derived.vectors)
        if gathered.new:
            tx.links(name).put(links.found(tx, name, derived.floor, gathered.new))
        tx.cursors.mark(self.name, gathered.successors)

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        """Every embedder's vectors go, also those of embedders that are not in use any more."""
        for embedder in tx.embedders():
            tx.links(embedder).remove(seqs)
            tx.cursors.mark(f"vectors/{embedder}", tx.vectors(embedder).remove(seqs))

    def clear(self, tx: Tx) -> None:
        tx.vectors(self.embedder.name).clear()
        tx.links(self.embedder.name).clear()


_CONTEXT_TOKENS = 256
