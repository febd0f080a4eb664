"""What most tests share: a memory on a real file with a clock that stands, and clients of the real server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mcp import Client

from mcp_memory.assembly import open_memory
from mcp_memory.cli import main
from mcp_memory.memory import Memory
from mcp_memory.server import build_server
from mcp_memory.settings import Settings
from mcp_memory.testing import Clock
from mcp_memory.types import Scope

Opening = Callable[..., AbstractAsyncContextManager[Memory]]
Run = Callable[..., Result]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever runs the tests may be a user of the program."""
    for name in list(os.environ):
        if name.startswith(("MCP_MEMORY_", "ANTHROPIC_")) or name == "FORCE_NO_SQLITE_EXTENSIONS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scope() -> Scope:
    return Scope("org", "project", "ines")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", embedder="hashing:256")


@pytest.fixture
def opening(settings: Settings, clock: Clock) -> Opening:
    """Opens memories on the same file; `settings` and `embedder` may be given."""

    def opening(**options: Any) -> AbstractAsyncContextManager[Memory]:
        config = options.pop("settings", settings)
        return open_memory(config, now=clock, **({"background": False} | options))

    return opening


@pytest.fixture
async def memory(opening: Opening) -> AsyncIterator[Memory]:
    async with opening() as memory:
        yield memory


@pytest.fixture(params=["auto", "legacy"])
async def client(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[Client]:
    """A client of the server in this process, in both eras of the protocol."""
    async with Client(build_server(settings), mode=request.param) as client:
        yield client


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(data: Path) -> Run:
    """Runs a command on one memory; `code` is the exit code that is expected."""

    def run(*words: str, code: int = 0, **more: Any) -> Result:
        result = CliRunner().invoke(main, ["--data-dir", str(data), "--embedder", "hashing:256", *words], **more)
        assert result.exit_code == code, result.output
        return result

    return run
