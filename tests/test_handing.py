"""The connected agent as extractor: what it is handed, what becomes of its answer, and which answers are refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Opening
from mcp import Client
from test_server import Data, call, refusal
from test_stdio import Child
from test_stdio import call as request

from mcp_memory import handing
from mcp_memory.errors import ProviderRejected
from mcp_memory.server import build_server
from mcp_memory.settings import Settings
from mcp_memory.testing import Clock, ScriptedModel
from mcp_memory.text import count_tokens
from mcp_memory.types import Message, Scope
from mcp_memory.views import TRIES

pytestmark = pytest.mark.anyio

LINE = re.compile(r"^\[(\d+)\] (\S+) (.+?): (.+)$")
FIVE = [f"shelf {number} is full" for number in range(5)]
UP_TO_DATE = "Every view was up to date."


def add(value: str, *cited: Any, **more: Any) -> Data:
    return {"command": "add", "tag": "life", "feature": value, "value": value, "citations": list(cited)} | more


def shown(lines: list[str]) -> list[tuple[int, str]]:
    """The numbers of the lines of a batch and what they say."""
    return [(int(line[1]), line[4]) for line in map(LINE.match, lines) if line]


def every_line(handed: Data) -> list[Data]:
    """The answer of an agent that notes every line."""
    return [add(said, number) for number, said in shown([item["content"] for item in handed["messages"]])]


async def tell(client: Client, *contents: str, **more: Any) -> list[str]:
    """The ids of what was said, each by itself."""
    return [(await call(client, "add_memory", content=one, **more))["memories"][0]["id"] for one in contents]


async def known(client: Client, **question: Any) -> list[str]:
    return sorted(fact["value"] for fact in (await call(client, "read_profile", **question))["facts"])


async def handed(client: Client, **more: Any) -> Data:
    answer = await call(client, "consolidate", **more)
    assert answer["batch"]
    return answer


async def answered(client: Client, batch: Data, commands: Any, **more: Any) -> Data:
    return await call(client, "consolidate", commands=json.dumps(commands), batch=batch["batch"], **more)


@asynccontextmanager
async def another(settings: Settings, **changed: Any) -> AsyncIterator[Client]:
    async with Client(build_server(settings.model_copy(update=changed))) as client:
        yield client


# ---- handed out


async def test_adding_says_how_many_messages_wait_only_once_there_are_enough(client: Client) -> None:
    for content in FIVE[:4]:
        assert "waiting" not in await call(client, "add_memory", content=content)
    added = await call(client, "add_memory", content=FIVE[4])
    assert added["waiting"].startswith("5 messages wait")
    assert added["waiting"] in added["text"]
    assert "consolidate" in added["waiting"]


async def test_adding_says_that_a_message_waits_once_it_has_waited_long(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    async with opening() as memory:
        assert (await memory.add(scope, [Message(FIVE[0])])).waiting == 0
        clock.move(minutes=5)
        assert (await memory.add(scope, [Message(FIVE[1])])).waiting == 2


async def test_a_batch_is_handed_out_whole_in_the_text_and_in_the_data(client: Client) -> None:
    await call(client, "add_memory", content="I live in Ghent", timestamp="2026-01-05")
    reply = await call(client, "add_memory", content="Noted", role="assistant", timestamp="2026-01-05")
    batch = await handed(client)
    assert [item["content"] for item in batch["messages"]] == [
        "[1] 2026-01-05 user: I live in Ghent", "[2] 2026-01-05 assistant: Noted",
    ]  # fmt: skip
    assert batch["messages"][1]["id"] == reply["memories"][0]["id"]
    assert "home / home: lives in Ghent" in batch["known"]
    assert next(iter(batch)) in ("messages", "text")
    for part in (batch["instructions"], batch["known"], *(item["content"] for item in batch["messages"])):
        assert part in batch["text"]
    assert f"batch={batch['batch']}" in batch["text"]
    for word in ("`commands`", "`batch`", "citations", "Category: profile"):
        assert word in batch["instructions"]


@pytest.mark.parametrize("content", ["shelf {} is full", "shelf {} is full. " + "It holds jam and more jam. " * 40])
async def test_a_batch_is_bounded_and_what_is_left_comes_next(settings: Settings, content: str) -> None:
    said = [content.format(number).strip() for number in range(45)]
    async with another(settings) as client:
        await call(client, "add_memory", messages=[{"content": one} for one in said])
        seen: list[str] = []
        while "batch" in (batch := await call(client, "consolidate")):
            assert 0 < len(batch["messages"]) <= handing.HANDED_EPISODES
            lines = [item["content"] for item in batch["messages"]]
            assert sum(map(count_tokens, lines)) < handing.HANDED_TOKENS + 250
            assert count_tokens(batch["text"]) < 3_500
            seen += [line for _, line in shown(lines)]
            assert (await answered(client, batch, []))["more"] is (len(seen) < len(said))
        assert seen == said


async def test_a_message_longer_than_a_batch_is_shown_whole_in_pieces(settings: Settings) -> None:
    told = [f"Chapter {number} is about the sea." for number in range(900)]
    async with another(settings) as client:
        await tell(client, " ".join(told), FIVE[0])
        batch = await handed(client)
        lines = shown([item["content"] for item in batch["messages"]])
        assert len(lines) > 1
        assert " ".join(said for _, said in lines) == " ".join(told)
        assert {number for number, _ in lines} == {1}


async def test_what_no_fact_can_come_from_is_passed_over(client: Client) -> None:
    await tell(client, *(f"answer {number}" for number in range(30)), role="assistant")
    await tell(client, "secret", learn=False)
    nothing = await call(client, "consolidate")
    assert "batch" not in nothing
    assert nothing["more"] is False
    await tell(client, *(f"result {number}" for number in range(30)), role="tool")
    await tell(client, FIVE[0])
    batch = await handed(client)
    assert every_line(batch)[-1]["value"] == FIVE[0]
    assert UP_TO_DATE in (await answered(client, batch, []))["text"]
    assert UP_TO_DATE in (await call(client, "consolidate"))["text"]


# ---- answered


async def test_an_answer_is_applied_under_the_same_checks_and_refusals_are_told(client: Client) -> None:
    ids = await tell(client, *FIVE)
    other = await tell(client, "Noted", role="assistant")
    bad = [add("by the assistant", 6), add("from nowhere", 9), {"command": "delete", "tag": "a", "feature": "b"}, "x"]
    done = await answered(client, await handed(client), [add("keeps bees", 2, ids[3]), *bad, add("rides a tandem", 1)])
    assert await known(client) == ["keeps bees", "rides a tandem"]
    assert (done["learned"], len(done["refused"]), done["facts"]) == (2, 4, 2)
    assert "cites nothing that the user said" in done["refused"][0]["reason"]
    for refused in done["refused"]:
        assert f"Not applied: {refused['command']} ({refused['reason']})" in done["text"]
    facts = (await call(client, "read_profile", query="bees", sources=True))["facts"]
    assert facts[0]["citations"] == [ids[1], ids[3]]
    assert other[0] not in json.dumps(facts)


ANSWERS = {
    "text": json.dumps([add("keeps bees", 1)]),
    "a list": [add("keeps bees", 1)],
    "an object": {"commands": [add("keeps bees", 1)]},
    "chatter": f"Here you are!\n```json\n{json.dumps([add('keeps bees', 1)])}\n```\nAnything else?",
    "thinking": f"<think>[1] says bees</think>{json.dumps([add('keeps bees', 1)])}",
    "Python": "[{'command': 'add', 'tag': 'life', 'feature': 'bees', 'value': 'keeps bees', 'citations': [1],}]",
}


@pytest.mark.parametrize("commands", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_is_read_however_it_is_wrapped(client: Client, commands: Any) -> None:
    await tell(client, *FIVE)
    batch = await handed(client)
    await call(client, "consolidate", commands=commands, batch=batch["batch"])
    assert await known(client) == ["keeps bees"]


@pytest.mark.parametrize("commands", ["[]", []])
async def test_an_empty_answer_moves_on(client: Client, commands: Any) -> None:
    await tell(client, *FIVE)
    batch = await handed(client)
    await call(client, "consolidate", commands=commands, batch=batch["batch"])
    nothing = await call(client, "consolidate")
    assert "batch" not in nothing
    assert UP_TO_DATE in nothing["text"]
    assert (nothing["more"], await known(client)) == (False, [])


async def test_half_an_answer_is_an_error_and_costs_nothing(client: Client) -> None:
    await tell(client, *FIVE)
    batch = await handed(client)
    assert "batch" in await refusal(client, "consolidate", commands="[]")
    assert "commands" in await refusal(client, "consolidate", batch=batch["batch"])
    for unreadable in ("I learned nothing.", '[{"command": "add"', "{}", "7"):
        told = await refusal(client, "consolidate", commands=unreadable, batch=batch["batch"])
        assert "Nothing was changed" in told
    await answered(client, batch, every_line(batch))
    assert await known(client) == FIVE


async def test_later_messages_do_not_spoil_a_batch(client: Client) -> None:
    await tell(client, *FIVE[:3])
    batch = await handed(client)
    await tell(client, *FIVE[3:])
    assert len((await handed(client))["messages"]) == 5
    await answered(client, batch, [add("keeps bees")])
    facts = (await call(client, "read_profile"))["facts"]
    assert facts[0]["citations"] == [item["id"] for item in batch["messages"]]
    assert [said for _, said in shown([item["content"] for item in (await handed(client))["messages"]])] == FIVE[3:]


async def test_a_dry_run_changes_nothing(client: Client) -> None:
    await tell(client, *FIVE)
    assert "batch" not in await call(client, "consolidate", dry_run=True)
    batch = await handed(client)
    done = await answered(client, batch, [*every_line(batch), add("from nowhere", 9)], dry_run=True)
    assert (done["learned"], len(done["refused"]), await known(client)) == (5, 1, [])
    await answered(client, batch, every_line(batch))
    assert await known(client) == FIVE


# ---- refused


async def test_a_batch_can_be_answered_once_whoever_answers(client: Client, settings: Settings) -> None:
    await tell(client, *FIVE)
    batch = await handed(client)
    async with another(settings) as other:
        theirs = await handed(other)
        await answered(other, theirs, [add("keeps bees", 1)])
        for one in (client, other):
            told = await refusal(one, "consolidate", commands=json.dumps(every_line(batch)), batch=batch["batch"])
            assert "answered already" in told
            assert "Nothing was changed" in told
    assert await known(client) == ["keeps bees"]
    await tell(client, "one more")
    assert [fact["value"] for fact in every_line(await handed(client))] == ["one more"]


async def test_a_batch_is_stale_once_something_was_forgotten_and_nothing_is_lost(client: Client) -> None:
    ids = await tell(client, *FIVE)
    batch = await handed(client)
    await call(client, "forget", memory_id=ids[1])
    told = await refusal(client, "consolidate", commands=json.dumps(every_line(batch)), batch=batch["batch"])
    assert "forgotten" in told
    batch = await handed(client)
    await answered(client, batch, every_line(batch))
    assert await known(client) == [FIVE[0], *FIVE[2:]]


async def test_a_foreign_token_is_refused(client: Client, settings: Settings, tmp_path: Path) -> None:
    await tell(client, *FIVE)
    await tell(client, *FIVE, user_id="bob")
    async with another(settings, data_dir=tmp_path / "elsewhere") as other:
        await tell(other, *FIVE)
        elsewhere = (await handed(other))["batch"]
    bobs = (await handed(client, user_id="bob"))["batch"]
    for foreign in (elsewhere, bobs):
        assert "another user or another memory" in await refusal(client, "consolidate", commands="[]", batch=foreign)
    for garbage in ("x", "bm8=", "W10=", "e30=", "MTI=", "一批", bobs[:-8], "A" * 5_000, "W" * 4_000):
        assert "not a token" in await refusal(client, "consolidate", commands="[]", batch=garbage)
    assert len((await handed(client))["messages"]) == 5


async def test_a_category_that_is_not_learned_from_any_more_cannot_be_answered(settings: Settings) -> None:
    async with another(settings) as client:
        await tell(client, *FIVE)
        batch = await handed(client)
    async with another(settings, categories="coding") as client:
        told = await refusal(client, "consolidate", commands="[]", batch=batch["batch"])
        assert "category" in told
        assert "Category: coding" in (await handed(client))["instructions"]


async def test_each_category_is_handed_out_by_itself(settings: Settings) -> None:
    async with another(settings, categories="profile,coding") as client:
        await tell(client, *FIVE)
        for category in ("profile", "coding"):
            batch = await handed(client)
            assert f"Category: {category}" in batch["instructions"]
            await answered(client, batch, [add(f"keeps {category} bees", 1)])
            assert await known(client, category=category) == [f"keeps {category} bees"]
        assert "batch" not in await call(client, "consolidate")


# ---- what a model left, and what has grown too large


async def test_the_agent_may_try_what_a_model_could_not_take(opening: Opening, scope: Scope, clock: Clock) -> None:
    async with opening(model=ScriptedModel(default=ProviderRejected("too hot"))) as memory:
        for content in ("lava", "magma"):
            await memory.add(scope, [Message(content)])
            for _ in range(TRIES):
                clock.move(minutes=15)
                await memory.profile(scope)
    async with opening() as memory:
        await memory.retry_aside(scope, "extract/profile", lambda left: None)
        for content in ("lava", "magma"):
            handed = (await memory.consolidate(scope)).handed
            assert handed
            assert [said for _, said in shown([line for _, line in handed.items])] == [content]
            await memory.consolidate(scope, proposed=[add(f"likes {content}", 1)], batch=handed.token)
        assert (await memory.consolidate(scope)).handed is None
        assert {fact.value for fact in (await memory.profile(scope))[0]} == {"likes lava", "likes magma"}


async def crowded(client: Client) -> Data:
    """A tag with twenty facts, and the batch that asks to put it in order."""
    await tell(client, *FIVE)
    await answered(client, await handed(client), [add(f"owns boat number {n}", n % 5 + 1) for n in range(20)])
    return await handed(client)


def numbered(crowd: Data, value: str) -> int:
    return next(number for number, said in shown([item["content"] for item in crowd["messages"]]) if said == value)


async def test_a_tag_with_too_many_facts_is_put_in_order_when_nothing_else_waits(client: Client) -> None:
    crowd = await crowded(client)
    assert len(crowd["messages"]) == 20
    assert all(item["id"].startswith("f") for item in crowd["messages"])
    first, second, third = (f"owns boat number {n}" for n in range(3))
    ending = [{"command": "delete", "tag": "life", "feature": one, "value": one} for one in (first, second, third)]
    merged = add("owns boats 0 and 1", numbered(crowd, first), numbered(crowd, second))
    done = await answered(client, crowd, [*ending, merged, add("from nowhere", 77)])
    assert (done["merged"], done["ended"], len(done["refused"])) == (1, 3, 1)
    now = {fact["value"]: fact for fact in (await call(client, "read_profile", max_tokens=9_000))["facts"]}
    assert set(now) == {f"owns boat number {n}" for n in range(3, 20)} | {"owns boats 0 and 1"}
    assert len(now["owns boats 0 and 1"]["citations"]) == 2
    assert len(await known(client, history=True, max_tokens=9_000)) == 21
    assert UP_TO_DATE in (await call(client, "consolidate"))["text"]


async def test_a_tag_that_was_left_as_it_is_is_not_asked_about_again(client: Client) -> None:
    await answered(client, await crowded(client), [])
    assert "batch" not in await call(client, "consolidate")
    assert len(await known(client, max_tokens=9_000)) == 20


@pytest.mark.parametrize("change", ["ended", "forgotten", "answered"])
async def test_an_order_for_facts_that_have_changed_is_refused(
    opening: Opening, settings: Settings, change: str
) -> None:
    async with another(settings) as client:
        await tell(client, *FIVE)
        await answered(client, await handed(client), [add(f"owns boat number {n}", n % 5 + 1) for n in range(22)])
        crowd = await handed(client)
        oldest = next(item["id"] for item in crowd["messages"] if item["content"].endswith(" 0"))
        if change == "ended":
            scope = Scope(settings.org_id, settings.project_id, settings.user_id)
            async with opening() as memory:
                await memory.end(scope, oldest)
        elif change == "forgotten":
            await call(client, "forget", memory_id=oldest)
        else:
            await answered(client, crowd, [])
        before = await known(client, max_tokens=9_000)
        merged = json.dumps([add("owns a fleet", 1, 2)])
        assert "Nothing was changed" in await refusal(client, "consolidate", commands=merged, batch=crowd["batch"])
        assert await known(client, max_tokens=9_000) == before


# ---- end to end


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_an_agent_over_stdio_learns_for_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_MEMORY_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("MCP_MEMORY_EMBEDDER", "hashing:64")
    child = Child([sys.executable, "-m", "mcp_memory", "serve"], tmp_path / "marker")
    numbers = iter(range(1_000))

    def ask(tool: str, **arguments: Any) -> str:
        """What a client hands its model: the text alone."""
        child.send(request(next(numbers), tool, **arguments))
        result = child.answer()["result"]
        assert not result["isError"], result
        return str(result["content"][0]["text"])

    try:
        child.greet()
        told = [ask("add_memory", content=f"我的第{number}只猫很胖") for number in range(6)]
        assert ["call consolidate" in text for text in told] == [False] * 4 + [True] * 2
        batch = ask("consolidate")
        token = re.findall(r"^batch=(\S+)$", batch, re.MULTILINE)[-1]
        lines = shown(batch.rpartition("Messages:")[2].splitlines())
        assert len(lines) == 6
        answer = [add(said.removeprefix("我的"), number) for number, said in lines]
        assert "6 commands applied" in ask("consolidate", commands=json.dumps(answer), batch=token)
        profile = ask("read_profile")
        assert all(f"life: 第{number}只猫很胖 (since" in profile for number in range(6))
        assert UP_TO_DATE in ask("consolidate")
    finally:
        child.dispose()
