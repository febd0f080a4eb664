"""The working window: the newest of a session within a budget, and a summary of what left it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import Opening
from mcp import Client
from mcp.types import TextResourceContents
from test_sqlite import holding

from mcp_memory import text, tokens
from mcp_memory.errors import ProviderError
from mcp_memory.memory import Memory
from mcp_memory.server import build_server
from mcp_memory.settings import Settings
from mcp_memory.testing import Clock, ScriptedModel
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
    assert sum(tokens.count(episode.content) for episode in window.episodes) <= TOKENS


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


async def test_what_expires_in_one_session_leaves_the_summaries_of_others_alone(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    async with opening(model=storyteller()) as memory:
        await memory.add(scope, hives(0, 12))
        await memory.add(scope, [turn(0, "for today", "other", expires_at=clock() + timedelta(days=1))])
        await memory.consolidate(scope)
        assert (await memory.session(scope, "s")).summary == "Retold 1 times"


# ---- capacity


@pytest.mark.parametrize(
    "content", ["9f86d081884c7d659a2feaa0c55ad015 ", "今天天气很好，我们去公园散步吧。", "(internationalisation) "]
)
@pytest.mark.parametrize("capacity", [120, 900])
async def test_capacity_is_counted_as_a_language_model_counts(
    opening: Opening, settings: Settings, scope: Scope, content: str, capacity: int
) -> None:
    assert tokens.count(content) != text.count_tokens(content)
    async with opening(settings=settings.model_copy(update={"window_tokens": capacity})) as memory:
        await memory.add(scope, [turn(i, content * 2) for i in range(80)])
        window = await memory.session(scope, "s")
        each = tokens.count(content * 2) + 16  # date, id and name before each
        assert len(window.episodes) == min(80, capacity // each)


# ---- the summary by a model


def storyteller(*replies: Any, word: str = "Retold") -> ScriptedModel:
    """A model that sums up, as often as it is asked to after the replies it is given."""
    told = 0

    def answer(system: str, question: str) -> Any:
        nonlocal told
        if "running summary" not in system:
            return []
        told += 1
        return {"summary": f"{word} {told} times"}

    return ScriptedModel(*replies, default=answer)


def hives(first: int, last: int) -> list[Message]:
    return [turn(i, f"{LONG}Hive {i} is full.", learn=False) for i in range(first, last)]


def told(model: ScriptedModel) -> list[tuple[str, list[int]]]:
    """The summary so far and the numbers of the hives that each question was about."""
    questions = [question for system, question in model.asked if "running summary" in system]
    parts = [question.rpartition("Messages since:\n") for question in questions]
    return [
        (before.removeprefix("Summary so far:\n").strip(), [int(hive) for hive in re.findall(r"Hive (\d+) is", since)])
        for before, _, since in parts
    ]


async def first_shown(memory: Memory, scope: Scope) -> int:
    """The number of the first hive in the window."""
    content = (await memory.session(scope, "s")).episodes[0].content
    return int(content.removesuffix(" is full.").rpartition(" ")[2])


async def test_a_model_retells_only_what_left_the_window_since_it_last_did(opening: Opening, scope: Scope) -> None:
    model = storyteller()
    async with opening(model=model) as memory:
        await memory.add(scope, hives(0, 3))
        await memory.consolidate(scope)
        assert model.asked == []
        await memory.add(scope, hives(3, 12))
        await memory.consolidate(scope)
        first = await first_shown(memory, scope)
        await memory.add(scope, hives(12, 18))
        meanwhile = (await memory.session(scope, "s")).summary
        await memory.consolidate(scope)
        second = await first_shown(memory, scope)
        assert 0 < first < second
        assert told(model) == [("", [*range(first)]), ("Retold 1 times", [*range(first, second)])]
        assert f"at most {TOKENS // 5} tokens" in model.asked[0][0]
        retold, _, sentences = meanwhile.partition("\n")
        assert (retold, "orchard" in sentences) == ("Retold 1 times", True)
        assert (await memory.session(scope, "s")).summary == "Retold 2 times"
        await memory.consolidate(scope)
        assert len(told(model)) == 2


async def test_a_model_retells_by_itself_once_enough_was_said(opening: Opening, scope: Scope) -> None:
    model = storyteller()
    async with opening(model=model) as memory:
        await memory.add(scope, hives(0, 19))
        await memory.profile(scope)
        assert model.asked == []
        await memory.add(scope, hives(19, 20))
        await memory.profile(scope)
        assert (await memory.session(scope, "s")).summary == "Retold 1 times"


async def test_the_summary_stands_wherever_the_session_is_shown_and_survives_a_restart(
    opening: Opening, settings: Settings
) -> None:
    scope = Scope(settings.org_id, settings.project_id, settings.user_id)
    async with opening(model=storyteller()) as memory, opening() as second:
        await memory.add(scope, hives(0, 12))
        await memory.consolidate(scope)
        window = await memory.session(scope, "s")
        assert window.summary == "Retold 1 times"
        assert await second.session(scope, "s") == window
        for one in (memory, second):
            assert "Retold 1 times" in (await one.context(scope, "", "s", 1_500)).text
    async with opening(model=ScriptedModel(default=ProviderError("asked without need"))) as memory:
        assert await memory.session(scope, "s") == window
    async with Client(build_server(settings.model_copy(update={"window_idle_hours": 0}))) as client:
        [shown] = (await client.read_resource("memory://session/s")).contents
        assert isinstance(shown, TextResourceContents)
        assert "Retold 1 times" in shown.text


@pytest.mark.parametrize("failure", [ProviderError("down"), {"summary": " \n"}, "no JSON at all"], ids=str)
async def test_a_model_that_fails_leaves_the_sentences_themselves(
    opening: Opening, scope: Scope, clock: Clock, failure: Any
) -> None:
    model = storyteller(failure)
    async with opening(model=model) as memory:
        await memory.add(scope, hives(0, 12))
        report = await memory.consolidate(scope)
        assert [lag.view for lag in report.lags if lag.reason] == ["summary"]
        summary = (await memory.session(scope, "s")).summary
        assert "orchard" in summary
        assert "Retold" not in summary
        clock.move(minutes=1)
        await memory.consolidate(scope)
        assert (await memory.session(scope, "s")).summary == "Retold 1 times"


async def test_what_is_forgotten_is_told_no_more(opening: Opening, settings: Settings, scope: Scope) -> None:
    model = storyteller({"summary": "A xylograph hangs there"}, word="Told again")
    async with opening(model=model) as memory:
        said = turn(-1, "A xylograph hangs by the bees. Hive 99 is empty.", learn=False)
        added = await memory.add(scope, [said, *hives(0, 12)])
        await memory.consolidate(scope)
        assert (await memory.session(scope, "s")).summary == "A xylograph hangs there"
        await memory.forget(scope, [added.stored[0].episode.id])
        summary = (await memory.session(scope, "s")).summary
        assert "orchard" in summary
        assert "xylograph" not in summary
        assert holding(settings.data_dir, b"xylograph") == set()
        await memory.consolidate(scope)
        first = await first_shown(memory, scope)
        assert told(model)[1:] == [("", [*range(first)])]
        assert (await memory.session(scope, "s")).summary == "Told again 1 times"
