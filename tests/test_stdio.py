"""A real child process for every way in which a client can leave, and for what it may send before."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and terminals")

START_SECONDS = 20.0
STOP_SECONDS = 5.0

SERVER = """
import sys, threading, time
from contextlib import asynccontextmanager
from pathlib import Path
from mcp.server import MCPServer
from mcp_memory.stdio import run_stdio

marker = Path(sys.argv[1])

@asynccontextmanager
async def lifespan(server):
    with marker.open("a") as file:
        file.write("opened\\n")
    if "broken" in sys.argv:
        raise LookupError("no such store")
    yield None
    with marker.open("a") as file:
        file.write("closed\\n")

server = MCPServer("test", lifespan=lifespan, log_level="WARNING")

@server.tool(structured_output=False)
async def echo(text: str) -> str:
    return text

@server.tool(structured_output=False)
async def shout(text: str) -> str:
    print(text)
    sys.stdout.flush()
    print(text)
    return "done"

@server.tool(structured_output=False)
async def half() -> str:
    return "half \\ud83d"

@server.tool(structured_output=False)
async def linger() -> str:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"

run_stdio(server)
"""

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "first",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(request_id: int, tool: str, **arguments: str) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["result"]["content"][0]["text"])


class Lines:
    """Lines of a descriptor, each waited for at most so long."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = b""

    def next(self, seconds: float = START_SECONDS) -> bytes:
        """The next line, or what is left at the end."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            if not select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no line within {seconds} s, only {self.buffer[:200]!r}")
            chunk = os.read(self.fd, 65536)
            if not chunk:
                break
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line


class Child:
    """The server and the test's ends of its three streams."""

    def __init__(self, command: list[str], marker: Path, **streams: Any) -> None:
        self.marker = marker
        options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUNBUFFERED": ""}
        self.process = subprocess.Popen(command, env=environment, **options | streams)
        assert self.process.stdout
        self.lines = Lines(self.process.stdout.fileno())
        self.input = self.process.stdin.fileno() if self.process.stdin else -1

    def write(self, line: bytes) -> None:
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[os.write(self.input, rest) :]

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.write(json.dumps(message).encode())

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.lines.next())
        return answer

    def greet(self) -> Child:
        self.send(INITIALIZE)
        assert self.answer()["id"] == "first"
        self.send(INITIALIZED)
        return self

    def hang_up(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def ends_well(self) -> str:
        """Wait for the end, check it, and return what was written to stderr."""
        assert self.process.wait(STOP_SECONDS) == 0
        assert self.process.stderr
        errors: str = self.process.stderr.read().decode()
        assert "Traceback" not in errors
        assert self.marker.read_text().split() == ["opened", "closed"]
        return errors

    def dispose(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream and not stream.closed:
                stream.close()


Start = Callable[..., Child]


@contextmanager
def starting(folder: Path) -> Iterator[Start]:
    """Start as many servers as the test likes; all are gone at the end."""
    script = folder / "server.py"
    script.write_text(SERVER)
    with ExitStack() as stack:

        def start(*arguments: str, before: tuple[str, ...] = (), **streams: Any) -> Child:
            marker = folder / f"marker{next(numbers)}"
            child = Child([*before, sys.executable, str(script), str(marker), *arguments], marker, **streams)
            stack.callback(child.dispose)
            return child

        numbers = count()
        yield start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """One server for all tests that only talk: whatever they send, the next finds it alive."""
    with starting(tmp_path_factory.mktemp("talk")) as start:
        yield start().greet()


def test_a_signal_closes_the_lifespan_although_the_pipe_stays_open(start: Start) -> None:
    signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    children = [start() for _ in signals]
    for child, number in zip(children, signals, strict=True):
        child.greet().process.send_signal(number)
        assert child.ends_well() == ""


def test_at_the_end_of_the_input_open_requests_are_answered_and_no_stuck_thread_is_waited_for(
    start: Start, tmp_path: Path
) -> None:
    echoes = [call(n, "echo", text=str(n)) for n in range(20)]
    messages: list[dict[str, Any]] = [INITIALIZE, INITIALIZED, call(20, "linger"), *echoes]
    (tmp_path / "requests").write_text("\n".join(map(json.dumps, messages)))
    with open(tmp_path / "requests", "rb") as file:
        children = [start(), start(stdin=file)]
    silent = start(stdin=subprocess.DEVNULL)
    children[0].send(*messages)
    children[0].hang_up()
    for child in children:
        assert child.answer()["id"] == "first"
        answers = {answer["id"]: text_of(answer) for answer in (child.answer() for _ in range(21))}
        assert answers == {n: str(n) for n in range(20)} | {20: "done"}
        assert child.ends_well() == ""
    assert silent.lines.next() == b""
    assert silent.ends_well() == ""


def test_one_ctrl_c_on_a_terminal_is_enough(start: Start) -> None:
    ours, theirs = pty.openpty()
    try:
        child = start(stdin=theirs, start_new_session=True, preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0))
        child.input = ours
        child.greet()
        os.write(ours, b"\x03")
        child.ends_well()
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_client_that_closed_stdout_ends_it_quietly(start: Start) -> None:
    child = start().greet()
    assert child.process.stdout
    child.process.stdout.close()
    child.send(call(1, "echo", text="anybody?"))
    assert child.ends_well() == ""


def test_an_answer_that_nobody_reads_cannot_keep_it_alive(start: Start) -> None:
    child = start().greet()
    child.send(call(1, "echo", text="x" * 1_000_000))
    assert select.select([child.lines.fd], [], [], START_SECONDS)[0]
    child.process.send_signal(signal.SIGTERM)
    child.ends_well()


def test_an_orphan_ends_although_its_pipe_stays_open(start: Start) -> None:
    # A background job of a shell gets /dev/null as its stdin: the pipe comes by another number.
    shell = ("/bin/sh", "-c", '"$@" <&3 & wait', "sh")
    parent = start(before=shell, preexec_fn=lambda: os.dup2(0, 3), pass_fds=(3,))
    parent.greet()
    parent.process.kill()
    parent.process.wait(STOP_SECONDS)
    assert parent.lines.next(STOP_SECONDS) == b""
    assert parent.marker.read_text().split() == ["opened", "closed"]


def test_stray_prints_go_to_stderr_even_those_left_in_a_buffer(start: Start) -> None:
    child = start().greet()
    child.send(call(1, "shout", text="over here"))
    assert text_of(child.answer()) == "done"
    child.hang_up()
    assert child.lines.next() == b""
    assert child.ends_well() == "over here\n" * 2


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"cut off \ud83d", "cut off \ufffd"),
        (r"\uDE00 cut off", "\ufffd cut off"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\ud83d\\ude00", "\ufffd\\ude00"),
        (r"whole \ud83d\ude00", "whole \U0001f600"),
        (r"text \\ud83d", r"text \ud83d"),
        (r"\\\ud83d", "\\\ufffd"),
    ],
)
def test_half_an_emoji_becomes_a_replacement_character(talk: Child, escaped: str, text: str) -> None:
    talk.write(json.dumps(call(1, "echo", text="HERE")).replace("HERE", escaped).encode())
    assert text_of(talk.answer()) == text


def test_half_an_emoji_in_an_answer_does_not_cost_the_answer(talk: Child) -> None:
    talk.send(call(1, "half"))
    assert text_of(talk.answer()) == "half \ufffd"


def test_bytes_that_are_no_utf8_are_replaced(talk: Child) -> None:
    talk.write(json.dumps(call(1, "echo", text="HERE")).encode().replace(b"HERE", b"\xff"))
    assert text_of(talk.answer()) == "\ufffd"


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        ("this is no JSON", -32700, None),
        ('{"jsonrpc": "2.0", "id": 7, "method": 3}', -32600, 7),
        ("[]", -32600, None),
    ],
)
def test_a_line_that_is_no_message_is_refused_and_nothing_else(
    talk: Child, line: str, code: int, request_id: int | None
) -> None:
    talk.write(line.encode())
    talk.write(b"")
    talk.write(b'{"jsonrpc": "2.0", "id": [], "result": {}}')
    talk.send(call(1, "echo", text="still here"))
    refusal = talk.answer()
    assert (refusal["error"]["code"], refusal["id"]) == (code, request_id)
    assert text_of(talk.answer()) == "still here"


def test_a_line_of_a_megabyte_comes_back_whole(talk: Child) -> None:
    text = "0123456789" * 100_000
    talk.send(call(1, "echo", text=text))
    assert text_of(talk.answer()) == text


def test_a_lifespan_that_cannot_open_fails_with_its_own_error(start: Start) -> None:
    child = start("broken")
    assert child.process.wait(START_SECONDS) == 1
    assert child.process.stderr
    errors = child.process.stderr.read().decode()
    assert errors.rstrip().endswith("LookupError: no such store")
    assert "ExceptionGroup" not in errors
