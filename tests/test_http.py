"""A real server on a real port, and what it refuses before it listens on one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.types import TextContent

from mcp_memory.errors import SettingsError
from mcp_memory.http import bearer_auth, caller, run_http

TOKEN = "a-long-enough-token"
START_SECONDS = 20.0
STOP_SECONDS = 5.0

SERVER = """
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from mcp.server import MCPServer
from mcp_memory.http import caller, run_http

port, token, marker = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])

@asynccontextmanager
async def lifespan(server):
    with marker.open("a") as file:
        file.write("opened\\n")
    yield None
    with marker.open("a") as file:
        file.write("closed\\n")

server = MCPServer("test", lifespan=lifespan, log_level="ERROR")

@server.tool(structured_output=False)
async def echo(text: str) -> str:
    return f"{caller()}: {text}"

@server.tool(structured_output=False)
def echo_in_a_thread(text: str) -> str:
    return f"{caller()}: {text}"

run_http(server, host="localhost", port=port, token=token, user_id="ada")
"""

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HEADERS = {
    "Authorization": f"Bearer {TOKEN}",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


@dataclass
class Running:
    process: subprocess.Popen[str]
    port: int
    marker: Path

    def connect(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=STOP_SECONDS))

    def request(self, method: str, path: str, *, host: str = "", **headers: str) -> tuple[int, Message, bytes]:
        body = json.dumps(PING) if method == "POST" else None
        named = HEADERS | {"Host": host or f"127.0.0.1:{self.port}"} | headers
        with self.connect() as connection:
            connection.request(method, path, body, {name: value for name, value in named.items() if value})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=STOP_SECONDS)
        assert self.process.returncode == 0
        assert self.marker.read_text().split() == ["opened", "closed"]
        return errors


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def serving(folder: Path) -> Iterator[Running]:
    script, marker, port = folder / "server.py", folder / "marker", free_port()
    script.write_text(SERVER)
    process = subprocess.Popen(
        [sys.executable, str(script), str(port), TOKEN, str(marker)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not marker.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Running(process, port, marker)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=STOP_SECONDS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("http")) as running:
        yield running
        assert running.stop() == ""


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, 200),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer another-long-token"}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": "Bearer t\xf6ken"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"host": "memory.example:80"}, 421),
        ({"host": "127.0.0.1:1"}, 421),
        ({"Origin": "https://example.com"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_only_the_token_and_a_local_name_open_the_door(running: Running, changed: dict[str, Any], status: int) -> None:
    answered, headers, _ = running.request("POST", "/mcp", **changed)
    assert answered == status
    assert "Access-Control-Allow-Origin" not in headers


def test_a_page_of_the_same_origin_may_call(running: Running) -> None:
    status, _, _ = running.request("POST", "/mcp", Origin=f"http://localhost:{running.port}")
    assert status == 200


def test_health_is_open_and_says_nothing_else(running: Running) -> None:
    status, _, body = running.request("GET", "/health", Authorization="")
    assert (status, json.loads(body)) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server"])
def test_no_oauth_is_announced(running: Running, path: str) -> None:
    status, _, _ = running.request("GET", path)
    assert status == 404


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is not an address of the machine")
def test_it_listens_on_one_address_only(running: Running) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", running.port), timeout=STOP_SECONDS).close()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_tool_knows_its_caller_by_the_token(running: Running, mode: Literal["auto", "legacy"]) -> None:
    async def talk() -> list[str]:
        said: list[str] = []
        with anyio.fail_after(START_SECONDS):
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http_client:
                transport = streamable_http_client(f"http://127.0.0.1:{running.port}/mcp", http_client=http_client)
                async with Client(transport, mode=mode) as client:
                    for tool in ("echo", "echo_in_a_thread"):
                        result = await client.call_tool(tool, {"text": "hello"})
                        said += [part.text for part in result.content if isinstance(part, TextContent)]
        return said

    assert anyio.run(talk) == ["ada: hello"] * 2


def test_an_open_stream_does_not_keep_it_alive_and_the_lifespan_closes_once(tmp_path: Path) -> None:
    with serving(tmp_path) as running, running.connect() as connection:
        connection.request("GET", "/mcp", headers=HEADERS)
        with connection.getresponse() as stream:
            assert (stream.status, stream.getheader("Content-Type")) == (200, "text/event-stream")
            errors = running.stop()
    assert "Traceback" not in errors


def test_a_lifespan_that_cannot_open_fails_with_its_own_error() -> None:
    @asynccontextmanager
    async def lifespan(server: MCPServer[None]) -> AsyncIterator[None]:
        raise LookupError("no such store")
        yield

    with pytest.raises(LookupError, match="no such store"):
        run_http(MCPServer("test", lifespan=lifespan), host="::1", port=free_port(), token=TOKEN, user_id="ada")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.2", "memory.example", "localhost.example"])
def test_a_host_that_others_can_reach_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="this machine only"):
        run_http(MCPServer("test"), host=host, port=free_port(), token=TOKEN, user_id="ada")


@pytest.mark.parametrize("token", ["", "short", " " * 20])
def test_no_token_or_a_short_one_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="MCP_MEMORY_HTTP_TOKEN"):
        run_http(MCPServer("test"), host="127.0.0.1", port=free_port(), token=token, user_id="ada")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(SettingsError, match="MCP_MEMORY_PORT"):
        run_http(MCPServer("test"), host="127.0.0.1", port=other.getsockname()[1], token=TOKEN, user_id="ada")


def test_a_token_of_any_alphabet_stands_for_its_user() -> None:
    verifier = bearer_auth(" пароль-пароль\n", "ada")["token_verifier"]
    as_received = "пароль-пароль".encode().decode("latin-1")
    access = anyio.run(verifier.verify_token, as_received)
    assert access.subject == access.client_id == "ada"
    assert anyio.run(verifier.verify_token, "пароль-пароль") is None


def test_without_http_there_is_no_caller() -> None:
    assert caller() == ""
