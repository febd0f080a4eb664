"""Several processes on one file, any of which may be killed while a model draws facts: what was acknowledged is there, and
nothing is there twice."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import Opening

from mcp_memory import memory as memory_module
from mcp_memory.assembly import open_memory
from mcp_memory.cli import main
from mcp_memory.errors import ProviderRejected
from mcp_memory.settings import Settings
from mcp_memory.testing import WAIT_SECONDS, Clock, ScriptedModel
from mcp_memory.types import Message, Scope
from mcp_memory.views import TRIES

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from endpoint import Endpoint
from test_extraction import FIVE, VIEW, diligent, lines_asked, tell, values
from test_stdio import Child, call

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
]

LINE = re.compile(r"^\[(\d+)\] \S+ user\??: (.+)$", re.MULTILINE)
SAID = 7
"""Messages of one life of the server: a batch, and two that wait for the next."""


@dataclass
class Answering:
    """A model that notes every line of the user as a fact, once it may."""

    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    free: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)

    def __call__(self, system: str, user: str) -> str:
        shown = LINE.findall(user.partition("Messages:")[2])
        self.lines += [said for _, said in shown]
        self.asked.release()
        self.free.wait(WAIT_SECONDS)
        fact = {"command": "add", "tag": "life"}
        return json.dumps([fact | {"feature": said, "value": said, "citations": [int(n)]} for n, said in shown])


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "PROFILE_WAIT_SECONDS", WAIT_SECONDS)


@pytest.fixture
def answering() -> Answering:
    return Answering()


@pytest.fixture
def model(answering: Answering) -> Iterator[Endpoint]:
    with Endpoint(answering, failures=0.0) as endpoint:
        yield endpoint
        answering.free.set()


@pytest.fixture
def settings(tmp_path: Path, model: Endpoint) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        embedder="hashing:64",
        language_model="openai:scripted",
        openai_base_url=f"{model.url}/v1",
        user_id="ines",
    )


# ---- side by side, and one after another


async def test_two_memories_on_one_file_ask_about_everything_once(opening: Opening, scope: Scope) -> None:
    models = [diligent(), diligent()]
    said = [f"box {number}" for number in range(30)]
    async with opening(model=models[0]) as one, opening(model=models[1]) as other:
        for number in range(0, 30, 2):
            await asyncio.gather(tell(one, scope, said[number]), tell(other, scope, said[number + 1]))
        await asyncio.gather(one.consolidate(scope), other.consolidate(scope))
        await asyncio.gather(one.consolidate(scope), other.consolidate(scope))
        assert Counter(chain(*lines_asked(*models))) == Counter(said)
        assert await values(one, scope) == await values(other, scope) == sorted(said)
        assert len(await one.decisions(scope)) == 30


async def test_a_memory_that_stops_leaves_its_batch_to_the_next(opening: Opening, scope: Scope) -> None:
    model, other = diligent(), diligent()
    with model.held():
        async with opening(model=model) as memory:
            await tell(memory, scope, *FIVE)
            await model.reached()
    async with opening(model=other) as memory:
        assert await values(memory, scope) == FIVE
    assert lines_asked(other) == [FIVE]


@pytest.mark.parametrize("gone", [True, False])
async def test_the_batch_of_a_process_that_died_is_taken_over_at_once_and_that_of_a_living_one_is_not(
    opening: Opening, scope: Scope, clock: Clock, gone: bool
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220
    process.wait(WAIT_SECONDS)
    owner = f"0123456789abcdef {process.pid if gone else os.getpid()} {platform.node()}"
    async with opening(model=diligent()) as memory:
        until = clock() + timedelta(minutes=5)
        assert await memory.store.write(scope, lambda tx: tx.cursors.claim(VIEW, owner, until))
        await tell(memory, scope, *FIVE)
        assert await values(memory, scope) == (FIVE if gone else [])
        clock.move(minutes=5, seconds=1)
        assert await values(memory, scope) == FIVE


# ---- killed


def let_know(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Give a program the same settings by its environment."""
    for name in ("data_dir", "embedder", "language_model", "openai_base_url", "user_id"):
        monkeypatch.setenv(f"MCP_MEMORY_{name.upper()}", str(getattr(settings, name)))


def die(child: Child) -> None:
    child.process.send_signal(signal.SIGKILL)
    child.process.wait(WAIT_SECONDS)


def live_and_die(child: Child, life: int, answering: Answering) -> list[str]:
    """What a server acknowledged until it was killed: while a model thinks, when it has just answered, or in the middle of
    an `add_memory`."""
    child.greet()
    said = [f"crate {life}-{number} came by ship" for number in range(SAID)]
    acknowledged = []
    if life % 3:
        answering.free.set()
    else:
        answering.free.clear()
    for number, content in enumerate(said):
        child.send(call(number, "add_memory", content=content))
        if life % 3 == 2 and number == SAID - 1:
            break  # killed before it is read whether this one was stored
        assert child.answer()["id"] == number
        acknowledged.append(content)
    if life % 3 < 2:
        assert answering.asked.acquire(timeout=WAIT_SECONDS)
    die(child)
    return acknowledged


async def test_killed_at_any_moment_nothing_acknowledged_is_lost_and_nothing_is_learned_twice(
    settings: Settings, answering: Answering, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    let_know(monkeypatch, settings)
    acknowledged: list[str] = []
    for life in range(5):
        child = Child([sys.executable, "-m", "mcp_memory", "serve"], tmp_path / "marker")
        try:
            acknowledged += live_and_die(child, life, answering)
        finally:
            child.dispose()
    answering.free.set()
    scope = Scope(settings.org_id, settings.project_id, settings.user_id)
    async with open_memory(settings, background=False) as memory:
        await memory.consolidate(scope)
        stored = await memory.store.read(scope, lambda tx: [episode.content for episode in tx.log.after(0, 1_000)])
        learned, lags = await memory.profile(scope, history=True)
        decisions: list[Any] = [made.command for made, _ in await memory.decisions(scope)]
    assert lags == []
    assert set(acknowledged) <= set(stored)
    assert len(set(stored)) == len(stored)
    assert Counter(fact.value for fact in learned) == Counter(stored)
    assert Counter(command.value for command in decisions) == Counter(stored)
    assert all(len(fact.citations) == 1 for fact in learned)
    assert max(Counter(answering.lines).values()) <= 5  # asked again only where a killed one could not keep the answer


def test_what_was_set_aside_is_tried_again_from_the_command_line(
    settings: Settings, answering: Answering, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.free.set()
    scope = Scope(settings.org_id, settings.project_id, settings.user_id)

    async def set_aside() -> None:
        refusing = ScriptedModel(default=ProviderRejected("too hot"))
        async with open_memory(settings, now=clock, model=refusing, background=False) as memory:
            await memory.add(scope, [Message("crates of lava came by ship")])
            for _ in range(TRIES):
                clock.move(minutes=15)
                await memory.profile(scope)
            assert await memory.lags(scope) == []

    asyncio.run(set_aside())
    let_know(monkeypatch, settings)
    told = CliRunner().invoke(main, ["rebuild", "--aside", "--json"])
    assert told.exit_code == 0, told.output
    assert {"user": "ines", "view": "extract/profile", "episodes": 1} in json.loads(told.stdout)["rebuilt"]
    known = CliRunner().invoke(main, ["profile", "--json"])
    assert [fact["value"] for fact in json.loads(known.stdout)["facts"]] == ["crates of lava came by ship"]
