"""Honest doubles for tests: a clock that stands until it is moved, an embedder that fails or waits when told to, a language
model that answers by a script.

They do what the real ones do, only when and how often is in the test's hands. The vectors are those of `hashing:`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_memory.errors import ProviderError
from mcp_memory.protocols import Purpose, Replied

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")

WAIT_SECONDS = 20.0
"""The most that anything here waits before it says that what was waited for did not happen."""


class Clock:
    """The time, as `now()` of a store: it stands still unless it is set or moved on."""

    def __init__(self, now: datetime = datetime(2026, 3, 2, 9, 0, 0, 250, tzinfo=UTC)) -> None:
        self._now = now

    def __call__(self) -> datetime:
        return self._now

    def set(self, now: datetime) -> None:
        self._now = now

    def move(self, **by: float) -> datetime:
        """Move on by what `timedelta` understands (`minutes=5`); the new time."""
        self._now += timedelta(**by)
        return self._now


class ObedientEmbedder:
    """The hashing embedder under any name, with a record of what it was asked.

    `failing` is the reason that the next calls give for not answering, "" while they do. `texts` holds what was embedded as
    a document, `queries` what was embedded as a query, `calls` counts both kinds of calls, failed ones too.
    """

    floor = 0.1

    def __init__(self, name: str = "obedient:256", dimensions: int = 256, *, paid: bool = False) -> None:
        self.name = name
        self.dimensions = dimensions
        self.paid = paid
        self.failing = ""
        self.calls = 0
        self.texts: list[str] = []
        self.queries: list[str] = []
        self._free = threading.Event()
        self._free.set()
        self._waiting = threading.Event()

    def load(self) -> None:
        if self.failing:
            raise ProviderError(self.failing)

    def embed(self, texts: list[str], purpose: Purpose) -> npt.NDArray[np.float32]:
        from mcp_memory.providers.hashing import HashingEmbedder  # numpy: late, as everywhere

        self.calls += 1
        if not self._free.is_set():
            self._waiting.set()
            if not self._free.wait(WAIT_SECONDS):
                raise ProviderError(f"{self.name} was held and never released")
        if self.failing:
            raise ProviderError(self.failing)
        (self.texts if purpose == "document" else self.queries).extend(texts)
        return HashingEmbedder(str(self.dimensions)).embed(texts, purpose)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block every call waits; at its end all go on."""
        self._waiting.clear()
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    async def asked(self) -> None:
        """Wait until a call waits inside `held`."""
        await eventually(self._waiting.is_set)


class ScriptedModel:
    """A language model that gives `replies` in their order, and `default` when they are used up; more may be appended.

    A reply is the text of an answer, which is read as any model's is, a value that would stand in it as JSON, an exception
    to raise, or a function of (`system`, `user`) that gives one of these. `asked` holds those two of every question,
    answered or not. A token is four characters.
    """

    def __init__(self, *replies: Any, default: Any = "[]", name: str = "scripted:model") -> None:
        self.name = name
        self.replies = deque(replies)
        self.default = default
        self.asked: list[tuple[str, str]] = []
        self._free = asyncio.Event()
        self._free.set()
        self._waiting = 0

    def load(self) -> None:
        pass

    async def reply(self, system: str, user: str, output_type: type[T]) -> Replied[T]:
        from pydantic_core import to_json

        from mcp_memory.reading import read

        self.asked.append((system, user))
        reply = self.replies.popleft() if self.replies else self.default
        await self._go_ahead()
        if callable(reply):
            reply = reply(system, user)
        if isinstance(reply, Exception):
            raise reply
        text = reply if isinstance(reply, str) else to_json(reply).decode()
        return Replied(read(text, output_type), (len(system) + len(user)) // 4, len(text) // 4)

    async def close(self) -> None:
        pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block every question waits; at its end all are answered."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    async def reached(self, questions: int = 1) -> None:
        """Wait until so many questions wait inside `held`."""
        await eventually(lambda: self._waiting >= questions)

    async def _go_ahead(self) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._free.wait()
        except TimeoutError:
            raise ProviderError(f"{self.name} was held and never released") from None
        finally:
            self._waiting -= 1


async def eventually(condition: Callable[[], bool], within: float = WAIT_SECONDS) -> None:
    """Let other tasks run until the condition holds. Raises TimeoutError where it does not come to hold."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {within} s")
        await asyncio.sleep(0.005)
