"""What an episode is good for: told by rule when it is stored, by a model where no rule tells, never against the caller."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Opening

from mcp_memory import filters
from mcp_memory.classification import IMPORTANCE
from mcp_memory.memory import Memory
from mcp_memory.testing import ScriptedModel
from mcp_memory.types import CLASSES, DEFAULT_IMPORTANCE, Episode, Message, Question, Scope, Selection

pytestmark = pytest.mark.anyio


async def stored(memory: Memory, scope: Scope, content: str, **more: Any) -> Episode:
    """What was stored, as it is read back."""
    added = await memory.add(scope, [Message(content, **more)])
    episode = await memory.episode(scope, added.stored[0].episode.id)
    assert episode is not None
    return episode


async def found(memory: Memory, scope: Scope, written: str) -> list[str]:
    """What a filter finds, the latest first."""
    answer = await memory.search(scope, Question("", Selection(filters.parse(written))))
    return [hit.episode.content for hit in answer.found.hits]


TOLD = {
    "identity": ["My name is Ines.", "I live in Ghent and the weather is fine.", "我叫张三", "我住在北京"],
    "preference": ["I love hiking.", "I prefer tea over coffee.", "I gave up coffee", "我喜欢爬山", "我不喜欢香菜"],
    "fact": ["I'm allergic to peanuts.", "I am vegetarian.", "我对花生过敏", "我吃素"],
    "policy": ["From now on, please use metric units.", "以后请用中文回答"],
    "episodic": [
        "I went to the dentist yesterday.",
        "Yesterday I went to the dentist.",
        "Long story. So we met two weeks ago in Rome!",
        "昨天我去看了牙医。",
        "我上周摔了一跤",
    ],
    "general": [
        "Nice weather.",
        "What did I do last week?",
        "Please summarise what I said yesterday.",
        "Can you remember that I fell last week?",
        "If I had gone last week, it would be done.",
        "My sister fell yesterday.",
        "I will go tomorrow",
        "我昨天说了什么",
        "请总结我上周说的",
        "如果我昨天去了，就好了",
        "今天天气不错",
    ],
}
FAILED = [
    "Error: no such host",
    "2 errors found",
    '{"error": "bad key"}',
    "ValueError: invalid literal",
    "HTTP/1.1 503 Service Unavailable",
    "HTTP 404",
    "exit code 1",
    "request timed out after 30 s",
    "zsh: command not found: foo",
    "3 failed, 9 passed, 0 errors",
    "请求超时",
    "连接失败：对方拒绝",
]
SUCCEEDED = [
    "0 errors, 12 passed",
    "Build finished without errors; no failures",
    "errors: 0, failed: 0",
    '{"error": null, "rows": 4}',
    "timeout=30",
    "HTTP/1.1 200 OK",
    "exit code 0",
    "wrote error_handling.py",
    "没有错误",
    "失败: 0，成功: 4",
]


@pytest.mark.parametrize(("category", "content"), [(name, said) for name, listed in TOLD.items() for said in listed])
async def test_what_a_user_says_is_told_by_rule(memory: Memory, scope: Scope, category: str, content: str) -> None:
    episode = await stored(memory, scope, content)
    assert episode.category == category
    assert episode.importance == IMPORTANCE[episode.category]


@pytest.mark.parametrize("content", FAILED)
async def test_a_tool_that_failed_is_told(memory: Memory, scope: Scope, content: str) -> None:
    assert (await stored(memory, scope, content, role="tool")).category == "tool_failure"
    assert (await stored(memory, scope, content)).category == "general"


@pytest.mark.parametrize("content", SUCCEEDED)
async def test_a_tool_that_succeeded_is_no_failure(memory: Memory, scope: Scope, content: str) -> None:
    assert (await stored(memory, scope, content, role="tool")).category == "general"


@pytest.mark.parametrize("content", ["I love hiking", "I went to the dentist yesterday", "Please always be brief"])
async def test_what_others_say_is_no_testimony_and_stays_general(memory: Memory, scope: Scope, content: str) -> None:
    assert (await stored(memory, scope, content, role="assistant")).category == "general"


def test_every_class_can_be_told_by_rule() -> None:
    assert {*TOLD, "tool_failure"} == set(CLASSES) == set(IMPORTANCE)


@pytest.mark.parametrize(
    ("given", "category", "importance"),
    [
        ({}, "identity", 0.8),
        ({"importance": 0.25}, "identity", 0.25),
        ({"category": "episodic"}, "episodic", DEFAULT_IMPORTANCE),
        ({"category": "policy", "importance": 1.0}, "policy", 1.0),
    ],
    ids=str,
)
async def test_what_the_caller_says_stands(
    memory: Memory, scope: Scope, given: Any, category: str, importance: float
) -> None:
    episode = await stored(memory, scope, "My name is Ines", **given)
    assert (episode.category, episode.importance) == (category, importance)


async def test_a_filter_finds_what_was_told(memory: Memory, scope: Scope) -> None:
    for said in ("I love hiking", "My name is Ines", "Nice weather", "我喜欢爬山"):
        await stored(memory, scope, said)
    await stored(memory, scope, "exit code 1", role="tool")
    assert await found(memory, scope, "category = 'preference'") == ["我喜欢爬山", "I love hiking"]
    assert await found(memory, scope, "category IN ('identity', 'tool_failure')") == ["exit code 1", "My name is Ines"]
    hits = (await memory.search(scope, Question("hiking", Selection(filters.parse("category = 'general'"))))).found.hits
    assert [hit.episode.content for hit in hits if "hiking" in hit.episode.content] == []


def classify(line: int, category: str, importance: float) -> dict[str, Any]:
    return {"command": "classify", "line": line, "category": category, "importance": importance}


async def test_a_model_tells_only_of_what_is_general_and_a_rebuild_by_rule_keeps_it(
    opening: Opening, scope: Scope
) -> None:
    said = ["The tide was out", "I love hiking", "I own a boat"]
    answer = [
        classify(1, "episodic", 0.3),
        classify(2, "policy", 1.0),
        classify(3, "fact", 0.9),
        classify(9, "fact", 1),
    ]
    model = ScriptedModel(answer)
    async with opening(model=model) as memory:
        episodes = [await stored(memory, scope, content) for content in said]
        assert [episode.category for episode in episodes] == ["general", "preference", "general"]
        await memory.consolidate(scope)
        assert [("?:" in line) for line in model.asked[0][1].splitlines() if line.startswith("[")] == [
            True,
            False,
            True,
        ]
        told = [
            ("The tide was out", "episodic", 0.3),
            ("I love hiking", "preference", 0.6),
            ("I own a boat", "fact", 0.9),
        ]
        for _ in range(2):
            again = [await memory.episode(scope, episode.id) for episode in episodes]
            assert [(one.content, one.category, one.importance) for one in again if one] == told
            assert await found(memory, scope, "category = 'fact'") == ["I own a boat"]
            await memory.rebuild(scope, "rules", lambda left: None)


async def test_what_matters_too_little_becomes_no_fact(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel(
        lambda system, question: [
            {"command": "add", "tag": "life", "feature": f"f{line}", "value": f"owns boat {line}", "citations": [line]}
            for line in (1, 2)
        ]
    )
    async with opening(model=model) as memory:
        await stored(memory, scope, "I live in Ghent", importance=0.19)
        await stored(memory, scope, "I live in Turku", importance=0.2)
        await memory.consolidate(scope)
        facts, _ = await memory.profile(scope, history=True)
        assert sorted(fact.value for fact in facts) == ["lives in Turku", "owns boat 2"]
