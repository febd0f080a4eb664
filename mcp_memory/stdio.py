"""Serving over stdin and stdout, where every way to end is the same one: the end of the input.

The client closing a pipe, a signal and the death of the parent process all let the server finish as if stdin had run
dry: the answers are flushed, the lifespan closes, the exit code is 0. Nothing waits for a thread that may never return.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import anyio
from anyio.abc import TaskStatus
from mcp.server import MCPServer
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

if sys.platform != "win32":
    import fcntl

PARENT_POLL_SECONDS = 2.0
ANSWERS_SECONDS = 1.5  # clients send SIGTERM 2 s after they closed the pipe
FLUSH_SECONDS = 1.0
LIFESPAN_SECONDS = 10.0
THREADS_SECONDS = 0.3


def run_stdio(server: MCPServer[Any]) -> None:
    """Serve one client until it leaves. Call it last: the process ends soon after, whatever its threads do."""

    async def main() -> None:
        await serve_stdio(server, on_end=lambda: _exit_after(LIFESPAN_SECONDS, code=1))
        _exit_after(THREADS_SECONDS, code=0)

    with suppress(KeyboardInterrupt):  # Windows, where Ctrl-C cancels main() instead of reaching _until_signal()
        anyio.run(main)
    gc.freeze()  # the interpreter's last collection would take ten times as long as all the rest of the end


async def serve_stdio(server: MCPServer[Any], *, on_end: Callable[[], None] = lambda: None) -> None:
    """Serve one client over the descriptors 0 and 1; `on_end` is called once there is nothing more to read.

    For everybody else in the process stdin is meanwhile empty and stdout is stderr, so that a stray `print` does not
    reach the client.
    """
    core = server._lowlevel_server  # the public run() opens the streams itself, in threads that cannot be left behind
    incoming, requests = anyio.create_memory_object_stream[SessionMessage | Exception]()
    answers, outgoing = anyio.create_memory_object_stream[SessionMessage]()
    unanswered: set[str | int | None] = set()
    reading = anyio.CancelScope()
    failure: Exception | None = None

    async def receive() -> None:
        async with incoming:
            with reading, suppress(anyio.BrokenResourceError):
                while (line := await wire.lines.get()) is not None:
                    message = _parse(line)
                    if isinstance(message, bytes):
                        wire.send(message)
                        continue
                    _expect_answer(message, unanswered)
                    await incoming.send(SessionMessage(message))
                with anyio.move_on_after(ANSWERS_SECONDS):  # `printf ... | server` closes the pipe and still reads
                    while unanswered:
                        await anyio.sleep(0.01)
            on_end()

    async def send() -> None:
        async with outgoing:
            async for answer in outgoing:
                wire.send(_dump(answer.message))
                if isinstance(answer.message, JSONRPCResponse | JSONRPCError):
                    unanswered.discard(answer.message.id)
        await wire.flush()
        tasks.cancel_scope.cancel()

    with _lent(0) as source, _lent(1) as sink:
        wire = _Wire(source, sink, end=reading.cancel)
        async with anyio.create_task_group() as tasks:
            await tasks.start(_until_signal, reading.cancel)
            tasks.start_soon(_until_orphaned, reading.cancel)
            tasks.start_soon(receive)
            tasks.start_soon(send)
            async with requests, answers:
                try:
                    await core.run(requests, answers, core.create_initialization_options())
                except Exception as error:  # kept out of the task group, which would wrap it in an ExceptionGroup
                    failure = error
    if failure is not None:
        raise failure


class _Wire:
    """The client's two streams, each moved by a daemon thread: neither can be interrupted, both can be abandoned.

    `end` is called in the event loop when the client no longer takes answers.
    """

    def __init__(self, source: int, sink: int, *, end: Callable[[], None]) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        self._flushed = asyncio.Event()
        self._end = end
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(source,), name="stdin", daemon=True).start()
        threading.Thread(target=self._write, args=(sink,), name="stdout", daemon=True).start()

    def send(self, answer: bytes) -> None:
        if answer:
            self._answers.put(answer + b"\n")

    async def flush(self) -> None:
        """Wait for a client that reads; one that does not is left."""
        self._answers.put(None)
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._flushed.wait()

    def _read(self, source: int) -> None:
        with suppress(OSError):
            for line in _lines(source):
                self._tell(self.lines.put_nowait, line)
        self._tell(self.lines.put_nowait, None)

    def _write(self, sink: int) -> None:
        with suppress(OSError):
            while (answer := self._answers.get()) is not None:
                rest = memoryview(answer)
                while rest:
                    rest = rest[os.write(sink, rest) :]
        self._tell(self._flushed.set)
        self._tell(self._end)

    def _tell(self, what: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(what, *args)


@contextmanager
def _lent(fd: int) -> Iterator[int]:
    """Move a standard stream to a private descriptor, and give it back at the end.

    The private descriptor is never closed: a thread may still be blocked on it, and its number must not be reused.
    """
    private = _dup(fd)
    try:
        elsewhere = _dup(2) if fd == 1 else os.open(os.devnull, os.O_RDONLY)
    except OSError:
        elsewhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(elsewhere, fd)
    os.close(elsewhere)
    try:
        yield private
    finally:
        if fd == 1:
            with suppress(AttributeError, OSError, ValueError):
                sys.stdout.flush()  # what print() left behind is not to follow the answers
        os.dup2(private, fd)


def _dup(fd: int) -> int:
    if sys.platform == "win32":
        return os.dup(fd)
    # Above the standard three even where one of them is closed; blocking even where another process left it otherwise.
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.set_blocking(copy, True)
    return copy


def _lines(fd: int) -> Iterator[bytes]:
    parts: list[bytes] = []
    # os.read and no file object: its lock, held by a blocked thread, would abort the interpreter's shutdown.
    while chunk := os.read(fd, 65536):
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            yield b"".join(parts)
            parts = [other]
    yield b"".join(parts)


# Every escape is matched, so that the second backslash of "\\ud83d" is not taken for the beginning of one.
_ESCAPE = re.compile(
    r"\\u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}|(?P<lone>\\u[Dd][89A-Fa-f][0-9A-Fa-f]{2})|\\.",
    re.DOTALL,
)


def _mend(text: str) -> str:
    """Replace the halves of surrogate pairs that stand alone, as cut-off emoji do: no parser here takes them."""
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape["lone"] else escape[0], text)


def _parse(line: bytes) -> JSONRPCMessage | bytes:
    """The message of a line or, where it holds none, the answer to give (b"" for silence)."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        text = _mend(line.decode("utf-8-sig", errors="replace"))
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValidationError:
        return _refusal(text)


def _expect_answer(message: JSONRPCMessage, unanswered: set[str | int | None]) -> None:
    match message:
        case JSONRPCRequest(method=method) if method != "subscriptions/listen":  # answered only when the client leaves
            unanswered.add(message.id)
        case JSONRPCNotification(method="notifications/cancelled", params={"requestId": str() | int() as request_id}):
            unanswered.discard(request_id)


def _refusal(text: str) -> bytes:
    """The answer to a line that is no message, with the request's id where one can be read."""
    code, message, request_id = INVALID_REQUEST, "Invalid request", None
    try:
        match json.loads(text):
            case {"result": _} | {"error": _}:
                return b""  # an answer is never answered: two careful peers would not stop
            case {"id": str() | int() as given} if not isinstance(given, bool):
                request_id = given
    except (ValueError, RecursionError):
        if not text.strip():
            return b""
        code, message = PARSE_ERROR, "Parse error"
    return _dump(JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message)))


def _dump(message: JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:  # half a surrogate pair, out of a tool's own JSON
        return _mend(json.dumps(message.model_dump(by_alias=True, exclude_unset=True))).encode()


async def _until_signal(end: Callable[[], None], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    if sys.platform == "win32":
        task_status.started()
        return
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            end()


async def _until_orphaned(end: Callable[[], None]) -> None:
    """Some clients die without closing the pipe, because a relative of theirs still holds it."""
    parent = os.getppid()
    while os.getppid() == parent:
        await anyio.sleep(PARENT_POLL_SECONDS)
    end()


def _exit_after(seconds: float, *, code: int) -> None:
    """End the process at the latest then: worker threads are waited for by the interpreter, without a limit."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
