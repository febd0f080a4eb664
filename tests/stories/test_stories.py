"""What users of such memories tell each other, through the protocol, with the embedder that everybody gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import TextContent

from mcp_memory.server import build_server
from mcp_memory.settings import Settings

pytestmark = pytest.mark.anyio

Data = dict[str, Any]


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(build_server(Settings(data_dir=tmp_path / "data"))) as agent:
        yield agent


def days_ago(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


async def call(agent: Client, tool: str, **arguments: Any) -> Data:
    result = await agent.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    [part] = result.content
    assert isinstance(part, TextContent)
    return {"text": part.text, **result.structured_content}


async def say(agent: Client, content: str, days: float, session: str, role: str = "user") -> Data:
    return await call(agent, "add_memory", content=content, role=role, timestamp=days_ago(days), session_id=session)


async def test_the_second_restaurant(agent: Client) -> None:
    """Several were named; the question is about one by its place in the order of time."""
    for days, session, restaurant in ((40, "a", "Osteria Lupa"), (25, "b", "Sakura House"), (9, "c", "La Boqueria")):
        await say(agent, f"We had dinner at {restaurant} with the whole team", days, session)
        await say(agent, "Noted, I hope you enjoyed it", days - 0.001, session, "assistant")
    for i in range(20):
        await say(agent, f"The weather report of day {i} is dull", 39 - i, f"w{i}")
    found = await call(
        agent, "search_memory", query="Which restaurant did we have dinner at?", order="time", limit=6, expand=0
    )
    dinners = [item["content"] for item in found["memories"] if "dinner at" in item["content"]]
    assert [name for dinner in dinners for name in ("Lupa", "Sakura", "Boqueria") if name in dinner] == [
        "Lupa",
        "Sakura",
        "Boqueria",
    ]


async def test_from_window_seat_to_aisle_seat_and_why(agent: Client) -> None:
    await say(agent, "I prefer window seats", 200, "a")
    await say(agent, "I prefer aisle seats now instead of window seats, because of my knee", 20, "b")
    profile = await call(agent, "read_profile", tag="preferences")
    assert [fact["content"] for fact in profile["facts"]] == ["prefers aisle seats"]
    told = await call(agent, "read_profile", tag="preferences", history=True, sources=True)
    ended = [fact for fact in told["facts"] if "window" in fact["content"]]
    assert ended
    assert ended[0]["valid_to"]
    assert "because of my knee" in told["text"]
    then = await call(agent, "read_profile", tag="preferences", as_of=days_ago(100)[:10])
    assert [fact["content"] for fact in then["facts"]] == ["prefers window seats"]
    found = await call(agent, "search_memory", query="Why does the user want an aisle seat?", limit=3)
    assert "knee" in found["memories"][0]["content"]


async def test_low_sugar_at_dinner(agent: Client) -> None:
    """What was said long ago in another conversation matters when a meal is planned, though no word is shared."""
    await say(agent, "My doctor told me to keep my blood sugar low, so no sweet desserts for me", 90, "a")
    for i in range(15):
        await say(agent, f"Ticket {i} of the print queue was closed", 60 - i, f"w{i}")
    await say(agent, "Please plan a dinner for tonight with three courses", 0.01, "now")
    context = await call(
        agent, "read_context", query="Plan a dinner with dessert for the user, what must I respect?", session_id="now"
    )
    assert "blood sugar low" in context["text"]


async def test_the_name_said_a_moment_ago(agent: Client) -> None:
    await call(agent, "add_memory", content="我叫张三", session_id="s")
    profile = await call(agent, "read_profile")
    assert "张三" in profile["text"]
    found = await call(agent, "search_memory", query="我叫什么")
    assert "张三" in found["memories"][0]["content"]
    context = await call(agent, "read_context", query="我叫什么？", session_id="new")
    assert "张三" in context["text"]


async def test_coffee_given_up_after_a_week(agent: Client) -> None:
    await say(agent, "I love coffee", 7, "a")
    await say(agent, "I gave up coffee", 0.01, "b")
    profile = await call(agent, "read_profile")
    assert not any("likes coffee" in fact["content"] for fact in profile["facts"])
    earlier = await call(agent, "read_profile", as_of=days_ago(3))
    assert any("likes coffee" in fact["content"] for fact in earlier["facts"])
    found = await call(agent, "search_memory", query="Does the user drink coffee?", limit=2)
    assert {"I love coffee", "I gave up coffee"} == {item["content"] for item in found["memories"]}
    assert all(item["occurred_at"] in found["text"] for item in found["memories"])


async def test_nothing_close_is_said_and_not_filled_with_strangers(agent: Client) -> None:
    for content in ("I planted tulips along the fence", "The ferry leaves at nine", "我昨天去游泳了"):
        await say(agent, content, 5, content[:3])
    found = await call(agent, "search_memory", query="xylophone zzyzx 9981")
    assert found["memories"] == []
    assert "Nothing close" in found["text"]
