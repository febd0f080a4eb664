"""A thread of one's own for what must not run in the event loop: a database connection, an embedder."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """One daemon thread that runs calls in order. A daemon, so that a call that hangs never holds up the exit."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    async def run(self, function: Callable[[], T]) -> T:
        """The result of `function()`, computed in the thread. Cancelling the wait does not stop the call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def call() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        self._calls.put(call)
        return await future

    def stop(self) -> None:
        self._calls.put(None)
