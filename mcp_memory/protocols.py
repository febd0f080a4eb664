"""The seams: where something truly varies, described by what it must do. Nobody inherits from these.

A provider lives in `providers/` or in another distribution, found by entry point; a store lives in `store/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from mcp_memory.types import Scope

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mcp_memory.store.cursors import Cursors
    from mcp_memory.store.decisions import Decisions
    from mcp_memory.store.facts import Facts
    from mcp_memory.store.links import Links
    from mcp_memory.store.log import Log
    from mcp_memory.store.summaries import Summaries
    from mcp_memory.store.vectors import Vectors
    from mcp_memory.store.words import Words

T = TypeVar("T")

Purpose = Literal["query", "document"]


class Embedder(Protocol):
    """Turns text into vectors. Called in a worker thread, never in the event loop; may be slow, may raise ProviderError."""

    @property
    def name(self) -> str:
        """`provider:model`, stable: the view of its vectors is called `vectors/<name>`."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of a vector. May load the model to find out."""
        ...

    @property
    def floor(self) -> float:
        """The cosine below which two texts of this model's calibrated scale have nothing to do with each other."""
        ...

    @property
    def paid(self) -> bool:
        """Whether a call costs money or a remote service's time, so that two processes must not do the same work."""
        ...

    def load(self) -> None:
        """Get ready to embed; safe to call twice."""
        ...

    def embed(self, texts: list[str], purpose: Purpose) -> npt.NDArray[np.float32]:
        """`(len(texts), dimensions)`, every row of unit length (a text without meaning may be a zero row)."""
        ...


class Reranker(Protocol):
    """Judges texts by a query. Called in a worker thread, never in the event loop; may be slow, may raise ProviderError."""

    @property
    def name(self) -> str:
        """`provider:model`."""
        ...

    def load(self) -> None:
        """Get ready; safe to call twice."""
        ...

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """One score a text, on any scale, the higher the better. The texts come in the order in which they were found."""
        ...


@dataclass(frozen=True, slots=True)
class Replied(Generic[T]):
    """What a language model answered, and the tokens of the question and the answer as its provider counts them (0 where
    it does not say)."""

    value: T
    sent: int = 0
    received: int = 0


class LanguageModel(Protocol):
    """Answers a question in a given shape. Called in the event loop, so it must not block; `load` runs in a thread."""

    @property
    def name(self) -> str:
        """`provider:model`."""
        ...

    def load(self) -> None:
        """Import what is heavy; safe to call twice. Raises ProviderMissing."""
        ...

    async def reply(self, system: str, user: str, output_type: type[T]) -> Replied[T]:
        """The answer, as `output_type` (a pydantic model).

        Raises ProviderError where the model cannot be asked now (busy, unreachable, not allowed, too slow),
        ProviderRejected where it gave nothing usable, and ProviderTruncated where its answer was cut.
        """
        ...

    async def close(self) -> None: ...


class Tx(Protocol):
    """A transaction in one scope. Its rooms are bound to that scope: a statement that forgets its tenant cannot be
    written. The rooms of the SQLite store are the reference; another store offers the same methods."""

    @property
    def user(self) -> str:
        """The user of the scope."""
        ...

    @property
    def now(self) -> datetime: ...
    @property
    def log(self) -> Log: ...
    @property
    def decisions(self) -> Decisions: ...
    @property
    def words(self) -> Words: ...
    @property
    def facts(self) -> Facts: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def summaries(self) -> Summaries: ...
    def vectors(self, embedder: str) -> Vectors: ...
    def links(self, embedder: str) -> Links: ...

    def embedders(self) -> list[str]:
        """The names of the embedders that ever followed this scope."""
        ...

    def epoch(self) -> int:
        """Changes whenever something was forgotten; what was derived under another epoch must not be applied."""
        ...

    def begin_epoch(self) -> None: ...

    def erase(self) -> None:
        """Note that the bytes of what this transaction removes must leave the files after it."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """A part of the transaction that can fail alone."""
        ...


class Store(Protocol):
    """Where the log and its views are kept. Functions run in a thread, in one transaction, and must be quick: never
    across a model call. Raises StoreError and its kin."""

    def now(self) -> datetime:
        """The clock that dates what is stored, aware and in UTC."""
        ...

    async def open(self) -> None:
        """Be ready; finish what was left to erase. Raises StoreDamaged, StoreTooNew or StoreError where it cannot."""
        ...

    async def read(self, scope: Scope, function: Callable[[Tx], T]) -> T:
        """`function` over one snapshot."""
        ...

    async def write(self, scope: Scope, function: Callable[[Tx], T], *, durable: bool = True) -> T:
        """`function` in one transaction that holds the write lock from its beginning; committed on return. Without
        `durable` a power cut may undo it, which is right for what can be derived again."""
        ...

    async def due(self, views: Sequence[str]) -> list[Scope]:
        """The scopes in which one of these views is behind the log and may be tried again by now."""
        ...

    async def scopes(self) -> list[Scope]: ...

    async def finish_erasing(self) -> bool:
        """Clear the files of what was forgotten; false while that must wait for another reader."""
        ...

    async def erased(self) -> bool:
        """Whether no forgotten byte is left in the files."""
        ...

    def copies(self) -> list[str]:
        """The names of copies of the data that were set aside."""
        ...

    async def check(self) -> str:
        """ "ok" or what is wrong with the files."""
        ...

    async def describe(self) -> dict[str, str]:
        """What the store runs on, by name; "" for a part that is missing."""
        ...

    async def compact(self) -> None:
        """Give unused space back."""
        ...

    async def close(self) -> None: ...
