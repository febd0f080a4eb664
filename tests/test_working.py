"""The working window: the newest of a session within a budget, and a summary of what left it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from conftest import Opening

from mcp_memory import text
from mcp_memory.memory import Memory
from mcp_memory.settings import Settings
from mcp_memory.testing import Clock
from mcp_memory.types import Message, Scope

pytestmark = pytest.mark.anyio

TOKENS = 200
MORNING = datetime(2026, 3, 2, 8, tzinfo=UTC)
LONG = "The orchard behind the old mill is where we keep the bees, and the keeper is called Marten. "


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"window_tokens": TOKENS})


@pytest.fixture
async def long_session(memory: Memory, scope: Scope) -> list[str]:
    added = await memory.add(scope, [turn(i, f"{LONG}Hive {i} is full.") for i in range(30)])
    return [stored.episode.id for stored in added.stored]


def turn(minute: float, content: str, session_id: str = "s", **more: object) -> Message:
    occurred_at = MORNING + timedelta(minutes=minute)
    return Message(content, session_id=session_id, occurred_at=occurred_at, **more)  # type: ignore[arg-type]


async def test_the_window_holds_the_newest_within_its_capacity(
    memory: Memory, scope: Scope, long_session: list[str]
) -> None:
    window = await memory.session(scope, "s")
    ids = [episode.id for episode in window.episodes]
    assert ids == long_session[-len(ids) :]
    assert 1 < len(ids) < 30
    assert sum(text.count_tokens(episode.content) for episode in window.episodes) <= TOKENS


async def test_the_newest_is_always_there_however_long(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(0, "short"), turn(1, LONG * 40)])
    window = await memory.session(scope, "s")
    assert [episode.content for episode in window.episodes] == [LONG * 40]
    assert window.summary


async def test_a_short_session_has_no_summary(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(0, "one"), turn(1, "two", role="assistant")])
    window = await memory.session(scope, "s")
    assert [episode.content for episode in window.episodes] == ["one", "two"]
    assert window.summary == ""


async def test_the_summary_tells_what_left_the_window(memory: Memory, scope: Scope, long_session: list[str]) -> None:
    await memory.add(scope, [turn(-1, "Marten keeps the bees in the orchard")])
    window = await memory.session(scope, "s")
    assert "orchard" in window.summary
    assert text.count_tokens(window.summary) <= TOKENS
    shown = {episode.content for episode in window.episodes}
    assert not any(content in window.summary for content in shown)


async def test_window_and_summary_survive_a_restart(opening: Opening, scope: Scope) -> None:
    async with opening() as memory:
        await memory.add(scope, [turn(i, f"{LONG}Hive {i} is full.") for i in range(30)])
        before = await memory.session(scope, "s")
    async with opening() as memory:
        assert await memory.session(scope, "s") == before


async def test_two_processes_see_one_window(opening: Opening, scope: Scope) -> None:
    async with opening() as one, opening() as other:
        for i in range(12):
            await (one, other)[i % 2].add(scope, [turn(i, f"{LONG}Hive {i} is full.")])
        assert await one.session(scope, "s") == await other.session(scope, "s")
        assert "Hive 11" in (await one.session(scope, "s")).episodes[-1].content


async def test_forgotten_text_leaves_the_summary(memory: Memory, scope: Scope) -> None:
    added = await memory.add(scope, [turn(-1, "The xylograph hangs in the orchard with the bees")])
    await memory.add(scope, [turn(i, f"{LONG}Hive {i} is full.") for i in range(9)])
    assert "xylograph" in (await memory.session(scope, "s")).summary
    await memory.forget(scope, [added.stored[0].episode.id])
    window = await memory.session(scope, "s")
    assert "xylograph" not in window.summary
    assert "orchard" in window.summary


async def test_sessions_and_scopes_have_windows_of_their_own(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(0, "one", "s"), turn(1, "two", "t")])
    assert [episode.content for episode in (await memory.session(scope, "s")).episodes] == ["one"]
    assert (await memory.session(Scope("org", "project", "bo"), "s")).episodes == ()
    assert (await memory.session(scope, "")).episodes == ()


async def test_the_unnamed_session_begins_after_the_last_long_silence(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(0, "old", ""), turn(31, "new", ""), turn(40, "newer", "")])
    assert [episode.content for episode in (await memory.session(scope, "")).episodes] == ["new", "newer"]


async def test_only_messages_and_texts_stand_in_the_window(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope, [turn(0, "a", kind="step"), turn(1, "b", kind="text"), turn(2, "c"), turn(3, "d", kind="image")]
    )
    assert [episode.content for episode in (await memory.session(scope, "s")).episodes] == ["b", "c"]


async def test_a_window_left_idle_is_empty_until_somebody_speaks(memory: Memory, scope: Scope, clock: Clock) -> None:
    await memory.add(scope, [Message("before", session_id="s")])
    clock.move(days=8)
    assert (await memory.session(scope, "s")).episodes == ()
    await memory.add(scope, [Message("after", session_id="s")])
    assert [episode.content for episode in (await memory.session(scope, "s")).episodes] == ["before", "after"]


async def test_a_summary_is_one_of_what_still_lives(memory: Memory, scope: Scope, clock: Clock) -> None:
    expires = clock() + timedelta(days=1)
    await memory.add(scope, [turn(-1, "The xylograph hangs in the orchard with the bees", expires_at=expires)])
    await memory.add(scope, [turn(i, f"{LONG}Hive {i} is full.") for i in range(9)])
    assert "xylograph" in (await memory.session(scope, "s")).summary
    clock.move(days=2)
    assert "xylograph" not in (await memory.session(scope, "s")).summary
