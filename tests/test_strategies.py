"""Strategies: a question searched at once, in parts, or step by step, also where a model does not do its part."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import Opening
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.types import CallToolResult
from test_prompts import FENCE

from mcp_memory import prompts, queries, reading
from mcp_memory.cli import main
from mcp_memory.errors import InvalidCursor, ProviderError, ProviderRejected, ProviderTruncated
from mcp_memory.memory import Answer, Memory
from mcp_memory.settings import Settings
from mcp_memory.strategies import EVIDENCE_TOKENS, Judgement, Parts, Route
from mcp_memory.testing import Clock, ObedientEmbedder, ScriptedModel
from mcp_memory.text import count_tokens
from mcp_memory.tools import Tools
from mcp_memory.types import Message, Mode, Question, Scope, Selection

pytestmark = pytest.mark.anyio

DAY = datetime(2026, 1, 5, 9, tzinfo=UTC)
BUSY = ProviderError("scripted:model is busy; try again in 120 s", retry_after=120)

TOWN = "In which town does the flatmate of Ann work?"
STORY = [
    "Ann: my flatmate is called Bodil",
    "Ann: I painted the flatmate's door green",
    "Bodil: the commute to the office in Turku is long",
    "Cem: a town should have a harbour",
    "Cem: work is hard in which winter",
]


def judged(confidence: float, query: str = "", missing: str = "") -> dict[str, Any]:
    return {"confidence": confidence, "missing": missing, "query": query}


def said(answer: Answer) -> list[str]:
    return [hit.episode.content for hit in answer.found.hits]


async def tell(memory: Memory, scope: Scope, *contents: str) -> None:
    """Each in a session of its own, so that none stands beside another."""
    await memory.add(
        scope,
        [
            Message(content, session_id=f"s{number}", occurred_at=DAY + timedelta(days=number), learn=False)
            for number, content in enumerate(contents)
        ],
    )


async def asked(memory: Memory, scope: Scope, query: str, mode: Mode, **question: Any) -> Answer:
    return await memory.search(scope, Question(query, mode=mode, expand=0, **question))


# ---- the parts of a question, by rule


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Where does Ann live? What does Bo do?", ["Where does Ann live?", "What does Bo do?"]),
        ("Where does Ann live and what does Bo play", ["Where does Ann live", "what does Bo play"]),
        ("What did Ann read, and which film did Bo see?", ["What did Ann read", "which film did Bo see"]),
        ("Did Ann move to Turku or did Bo move to Ghent?", ["Did Ann move to Turku", "did Bo move to Ghent"]),
        ("my blood type; the plate number of the van", ["my blood type", "the plate number of the van"]),
        ("1. my blood type\n2. the size of my shoes", ["my blood type", "the size of my shoes"]),
        ("How many days are between the move and the wedding?",
         ["How many days are between the move", "How many days are between the wedding"]),
        ("compare the red tent with the blue one", []),
        ("compare the red tent with the blue canoe", ["compare the red tent", "compare the blue canoe"]),
        ("Which is lighter, tent A vs canoe B?", ["Which is lighter, tent A", "Which is lighter, canoe B"]),
        ("Does Ann prefer tea or coffee?", ["Does Ann prefer tea", "Does Ann prefer coffee"]),
        ("Did I buy the red bike or the tent first?", ["Did I buy the red bike", "Did I buy the tent first"]),
        ("Which came first, the move to Turku or the wedding?",
         ["Which came first, the move to Turku", "Which came first, the wedding"]),
        ("What do Ann, Bo and Cem eat?", ["What do Ann eat", "What do Bo eat", "What do Cem eat"]),
        ("What have Ann and Bo both painted?", ["What have Ann painted", "What have Bo painted"]),
        ("What are my blood type, my size and my plate number?",
         ["What are my blood type", "What are my size", "What are my plate number"]),
        ("我住在哪里，我对什么过敏？", ["我住在哪里", "我对什么过敏"]),
        ("我住在哪里以及我对什么过敏", ["我住在哪里", "我对什么过敏"]),
        ("张三住哪里？李四喜欢什么？", ["张三住哪里？", "李四喜欢什么？"]),
        ("张三和李四分别喜欢吃什么？", ["张三喜欢吃什么", "李四喜欢吃什么"]),
        ("我的生日和血型是什么？", ["我的生日是什么", "我的血型是什么"]),
        ("我的地址、电话和我的生日", ["我的地址", "我的电话", "我的生日"]),
        ("我更喜欢茶还是咖啡？", ["我更喜欢茶", "我更喜欢咖啡"]),
        ("我先搬家还是先结婚", ["我先搬家", "我先结婚"]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_question_that_asks_several_things_has_parts(query: str, expected: list[str]) -> None:
    assert list(queries.parts(query)) == expected


@pytest.mark.parametrize(
    "query",
    [
        "Where does Ann live?",
        "tea or maps",
        "hiking and camping gear",
        "parcel on the blue shelf",
        "When and where did Ann marry?",
        "Who came, and when?",
        "What did Ann say and do on Monday?",
        "Where does Ann live? And what does she do?",
        "Did Ann go to Rome or did she fly?",
        "Did she like it or not?",
        "What happened between 2020 and 2022?",
        "What did Ann and Bo enjoy together last summer?",
        "What do Ann and Bo have in common?",
        "What happened between March and May?",
        "According to Gina, what makes Jon a good guide?",
        "I bought something for the race. What was it?",
        "I am planning a weekend in a theme park; have I been to one?",
        "我还是住在北京吗？",
        "我喜欢和朋友去哪里玩？",
        "张三住哪里？他喜欢什么？",
        "为什么呢？我叫什么？",
        "what? " * 7,
        "What does Ann eat? " * 9,
        "Where is the " + "very " * 300 + "old house, and where is the van?",
        "",
        "???",
    ],
)
def test_a_question_that_asks_one_thing_stays_one(query: str) -> None:
    assert queries.parts(query) == ()


@given(
    st.lists(
        st.sampled_from(
            "Ann Bo my the and or , ? ; what where between 我的 和 、 ， 还是 分别 什么 吗 vs compare with 1. \n a".split(
                " "
            )
        ),
        max_size=40,
    ).map(" ".join)
    | st.text(max_size=80)
)
def test_whatever_is_asked_has_no_part_or_two_to_six(query: str) -> None:
    parts = queries.parts(query)
    assert len(parts) == 0 or 2 <= len(parts) <= queries.MOST
    assert all(0 < len(part) <= queries.LONGEST for part in parts)
    assert all(queries.fitting(part) for part in parts)


# ---- what a rewritten question makes up


@pytest.mark.parametrize(
    ("query", "seen", "strangers"),
    [
        ("Bodil work office", "my flatmate is called Bodil", []),
        ("Where does Bodil work", "my flatmate is called Bodil", []),
        ("employer of Zed", "my employer is called Bodil", ["Zed"]),
        ("Zurich office of Bodil", "my flatmate is called Bodil", ["Zurich"]),
        ("Bodil in 2026", "2026-01-05 Ann: Bodil moved in", []),
        ("Bodil in 2024", "2026-01-05 Ann: Bodil moved in", ["2024"]),
        ("what Bodil did in January", "2026-01-05 Ann: Bodil moved in", []),
        ("cats", "my flatmate is called Bodil", ["cats"]),
        ('Bodil and "the green door"', "Bodil painted The Green Door", []),
        ('Bodil and "the red door"', "Bodil painted the green door", ["the red door"]),
        ("张伟在哪里工作", "我的室友叫张伟", []),
        ("李雷的公司", "我的室友叫张伟，他换了公司", ["李雷"]),
        ("《三体》的作者", "我在读《三体》", []),
        ("《流浪地球》的作者", "我在读《三体》，作者很有名", ["流浪地球"]),
    ],
)
def test_names_numbers_and_titles_must_have_been_seen(query: str, seen: str, strangers: list[str]) -> None:
    assert queries.invented(query, seen) == strangers


# ---- direct and auto without a model


async def test_without_a_model_a_plain_question_is_searched_as_ever(memory: Memory, scope: Scope) -> None:
    await tell(memory, scope, *STORY)
    for query in (TOWN, "green door", "Bodil"):
        plain = await memory.search(scope, Question(query))
        automatic = await asked(memory, scope, query, "auto")
        assert [(hit.episode.id, hit.score, hit.why) for hit in automatic.found.hits] == [
            (hit.episode.id, hit.score, hit.why) for hit in plain.found.hits
        ]
        assert automatic.trail.is_plain


async def test_without_a_model_the_parts_are_found_by_rule(memory: Memory, scope: Scope) -> None:
    noise = [f"what the harbour of town {i} does and where it lies" for i in range(20)]
    await tell(memory, scope, "Ann lives in a lighthouse", "Bo builds violins", *noise)
    query = "Where does Ann live and what does Bo build?"
    answer = await asked(memory, scope, query, "auto", limit=2)
    assert set(said(answer)) == {"Ann lives in a lighthouse", "Bo builds violins"}
    assert answer.trail.mode == "split"
    assert answer.question.rewrites == ("Where does Ann live", "what does Bo build")
    assert (answer.trail.spent.searches, answer.trail.spent.calls) == (3, 0)
    assert answer.trail.notes == ()


async def test_without_a_model_a_chain_says_what_it_lacks(memory: Memory, scope: Scope) -> None:
    await tell(memory, scope, *STORY)
    answer = await asked(memory, scope, TOWN, "chain")
    assert answer.trail.mode == "direct"
    [note] = answer.trail.notes
    assert "no language model judged what was found" in note
    assert "directly" in note
    assert said(answer) == said(await asked(memory, scope, TOWN, "direct"))
    parted = await asked(memory, scope, "Where is Ann? What does Bodil do?", "chain")
    assert parted.trail.mode == "split"
    assert "in parts, by rule" in parted.trail.notes[0]


async def test_a_question_for_one_thing_cannot_be_split(memory: Memory, scope: Scope) -> None:
    await tell(memory, scope, *STORY)
    answer = await asked(memory, scope, "green door", "split")
    assert answer.trail.mode == "direct"
    assert answer.trail.notes == ("the question was taken for one: searched directly",)


async def test_an_episode_has_the_score_of_the_query_that_finds_it_best(memory: Memory, scope: Scope) -> None:
    await tell(memory, scope, *STORY)
    answer = await asked(memory, scope, "Who has the green door? Who likes a harbour?", "split")
    alone = [
        await memory.search(scope, Question(query, limit=100, expand=0))
        for query in (answer.question.query, *answer.question.rewrites)
    ]
    for hit in answer.found.hits:
        best = max(one.score for found in alone for one in found.found.hits if one.episode == hit.episode)
        first = any(hit.episode in [one.episode for one in found.found.hits[:2]] for found in alone)
        assert hit.score >= best if first else hit.score == best
        assert sum(hit.why.values()) == pytest.approx(hit.score)
        assert hit.score <= 1
    firsts = {found.found.hits[0].episode.id for found in alone}
    assert firsts <= {hit.episode.id for hit in answer.found.hits if hit.score == answer.found.hits[0].score}


# ---- with a model: routing and splitting


async def test_auto_asks_once_how_to_search(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel({"mode": "direct", "queries": []})
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "auto")
        assert said(answer) == said(await asked(memory, scope, TOWN, "direct"))
    [(system, user)] = model.asked
    assert system == prompts.read("route.md")
    assert user == f"Question: {TOWN}"
    assert answer.trail.mode == "direct"
    assert (answer.trail.spent.searches, answer.trail.spent.calls) == (1, 1)
    assert (answer.trail.spent.sent, answer.trail.spent.received) == ((len(system) + len(user)) // 4, 7)


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("What did Ann paint, also Bodil's way to work", ["what Ann paint", "Bodil way to work"]),
        ("安娜的门是什么颜色，另外博迪的通勤", ["安娜门的颜色", "博迪的通勤"]),
    ],
)
async def test_auto_splits_as_the_model_says(opening: Opening, scope: Scope, query: str, parts: list[str]) -> None:
    model = ScriptedModel({"mode": "split", "queries": parts})
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, query, "auto")
    assert answer.question.rewrites == tuple(parts)
    assert (answer.trail.mode, answer.trail.spent.calls, answer.trail.spent.searches) == ("split", 1, 3)


async def test_split_asks_the_model_for_the_parts_only(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel({"queries": ["door colour of Ann", "commute of Bodil"]}, '["Ann"]', "[]")
    query = "door colour of Ann plus commute of Bodil"
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, query, "split", limit=2)
        assert set(said(answer)) == {STORY[1], STORY[2]}
        assert answer.question.rewrites == ("door colour of Ann", "commute of Bodil")
        for _ in range(2):  # one part is none, and so is an empty list
            answer = await asked(memory, scope, query, "split")
            assert (answer.question.rewrites, answer.trail.mode) == ((), "direct")
    assert [system for system, _ in model.asked] == [prompts.read("split.md")] * 3


@pytest.mark.parametrize(
    "parts",
    [
        ["where Ann lives"],
        ["where Ann lives", "where Zed lives"],
        ["where Ann lives", "WHERE ann lives"],
        [f"where Ann lives {'x' * number}" for number in range(1, 9)],
        ["where Ann lives", "what Bo builds " * 40],
        ["where Ann lives", ""],
        ["\x00\ud800", "?"],
    ],
    ids=["one", "a name of its own", "twice the same", "too many", "too long", "empty", "nonsense"],
)
async def test_parts_that_cannot_be_used_are_left_for_the_rule(
    opening: Opening, scope: Scope, parts: list[str]
) -> None:
    model = ScriptedModel({"mode": "split", "queries": parts}, {"mode": "split", "queries": parts})
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, "Where does Ann live and what does Bo build?", "auto")
        assert answer.question.rewrites == ("Where does Ann live", "what does Bo build")
        answer = await asked(memory, scope, "Ann lives somewhere, Bo builds something", "auto")
        assert (answer.question.rewrites, answer.trail.mode) == ((), "direct")


async def test_nothing_is_asked_about_a_word_or_two(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel()
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        assert said(await asked(memory, scope, "green door", "auto"))
        assert said(await asked(memory, scope, "where is the harbour", "auto"))
        assert said(await asked(memory, scope, TOWN, "direct"))
        await memory.context(scope, TOWN, "", 1_000)
        await memory.preview(scope, Selection(), TOWN)
        await asked(memory, scope, "", "auto", selection=Selection(since=DAY))
    assert model.asked == []


# ---- chain


async def test_a_chain_finds_what_the_question_does_not_name(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel(judged(0.2, "Bodil commute office", "where Bodil works"), judged(0.9))
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY, *(f"the town of flatmate {i} in which Ann can work" for i in range(8)))
        direct = await asked(memory, scope, TOWN, "direct", limit=4)
        assert STORY[2] not in said(direct)
        answer = await asked(memory, scope, TOWN, "chain", limit=4)
    assert STORY[2] in said(answer)
    assert answer.trail.mode == "chain"
    assert answer.trail.notes == ()
    assert answer.question.rewrites == ("Bodil commute office",)
    (first, shown), (_, then) = model.asked
    assert first == prompts.read("chain.md")
    assert shown.startswith(f"Question: {TOWN}\nFound:\n")
    assert f"2026-01-05 user: {STORY[0]}" in shown
    assert "Searched already: Bodil commute office\n" in then
    assert STORY[2] in then


@pytest.mark.parametrize("confidence", [0.8, 1, 85])
async def test_a_chain_stops_where_the_evidence_suffices(opening: Opening, scope: Scope, confidence: float) -> None:
    model = ScriptedModel(judged(confidence, "Bodil office"))
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "chain")
        assert said(answer) == said(await asked(memory, scope, TOWN, "direct"))
    assert (answer.trail.spent.calls, answer.trail.spent.searches, answer.trail.notes) == (1, 1, ())


async def test_a_chain_ends_after_three_rounds_and_tells_what_is_missing(opening: Opening, scope: Scope) -> None:
    doubts = [judged(0.3, f"Bodil {what}", f"the {what}") for what in ("office", "commute", "town", "harbour")]
    model = ScriptedModel(*doubts)
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "chain")
    assert len(model.asked) == answer.trail.spent.calls == 3
    assert answer.question.rewrites == ("Bodil office", "Bodil commute")
    assert answer.trail.notes == ("still missing: the town",)
    assert answer.trail.spent.searches == 1 + 2 + 3


@pytest.mark.parametrize("query", ["", "  ", TOWN, "Bodil OFFICE", "?", "the"])
async def test_a_chain_ends_where_there_is_nothing_new_to_look_for(opening: Opening, scope: Scope, query: str) -> None:
    model = ScriptedModel(judged(0.3, "Bodil office", "x"), judged(0.3, query, "the town of the office"))
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "chain")
    assert len(model.asked) == 2
    assert answer.question.rewrites == ("Bodil office",)
    assert answer.trail.notes == ("still missing: the town of the office",)


@pytest.mark.parametrize("query", ["Zed office", "Bodil office in Zurich", "Bodil 1987", "cats and dogs"])
async def test_a_chain_follows_no_invented_name(opening: Opening, scope: Scope, query: str) -> None:
    model = ScriptedModel(judged(0.3, query))
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "chain")
    assert (answer.question.rewrites, answer.trail.spent.calls) == ((), 1)
    [note] = answer.trail.notes
    assert "was not used" in note
    assert said(answer)


async def test_auto_costs_at_most_one_question_more_than_the_chain(opening: Opening, scope: Scope) -> None:
    doubts = [judged(0.3, f"Bodil {what}") for what in ("office", "commute", "town", "harbour")]
    model = ScriptedModel({"mode": "chain", "queries": []}, *doubts)
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "auto")
    assert answer.trail.mode == "chain"
    assert len(model.asked) == answer.trail.spent.calls == 4


async def test_what_a_model_is_shown_is_bounded(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel(judged(0.3, "flatmate harbour"), judged(0.9))
    async with opening(model=model) as memory:
        await tell(
            memory, scope, *(f"the flatmate of Ann {number} {'has much to tell ' * 300}" for number in range(40))
        )
        await asked(memory, scope, TOWN + " really" * 3_000, "chain", limit=100)
    for _, user in model.asked:
        assert count_tokens(user) < EVIDENCE_TOKENS + 800


async def test_a_chain_over_an_empty_memory_may_search_in_other_words(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel(judged(0, "Ann flatmate office", "everything"), judged(0, "", "everything"))
    async with opening(model=model) as memory:
        answer = await asked(memory, scope, TOWN, "chain")
    assert said(answer) == []
    assert model.asked[0][1].endswith("Found:\nnothing")
    assert answer.trail.notes == ("still missing: everything",)


async def test_a_chain_in_chinese(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel(judged(0.2, "张伟的公司在哪里", "张伟在哪里工作"), judged(0.9))
    async with opening(model=model) as memory:
        await tell(memory, scope, "我的室友叫张伟", "张伟的公司搬到了苏州", *(f"城市{i}的室友上班" for i in range(9)))
        answer = await asked(memory, scope, "我室友在哪个城市上班？", "chain", limit=5)
    assert "张伟的公司搬到了苏州" in said(answer)
    assert answer.question.rewrites == ("张伟的公司在哪里",)


# ---- a model that does not do its part


FAILURES = [
    BUSY,
    ProviderRejected("scripted:model declined to answer"),
    ProviderTruncated("scripted:model was cut"),
    RuntimeError("a bug"),
    "I would rather talk about the weather.",
    '{"mode": "wander", "confidence": "very", "queries": 7}',
    "{",
    "",
]


@pytest.mark.parametrize("mode", ["auto", "split", "chain"])
@pytest.mark.parametrize("failure", FAILURES, ids=[str(failure)[:20] for failure in FAILURES])
async def test_a_failing_model_fails_no_search(opening: Opening, scope: Scope, mode: Mode, failure: Any) -> None:
    async with opening(model=ScriptedModel(failure)) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, mode)
        assert said(answer) == said(await asked(memory, scope, TOWN, "direct"))
    assert any("language model" in note for note in answer.trail.notes)
    assert "a bug" not in str(answer.trail.notes)
    assert answer.trail.spent.calls == 1


async def test_without_its_answer_the_rule_splits(opening: Opening, scope: Scope) -> None:
    async with opening(model=ScriptedModel(BUSY)) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, "Where does Ann live and what does Bo build?", "auto")
    assert answer.trail.mode == "split"
    assert len(answer.question.rewrites) == 2
    assert answer.trail.notes == (f"the language model could not be asked ({BUSY})",)


async def test_a_model_that_fails_in_the_middle_leaves_what_was_found(opening: Opening, scope: Scope) -> None:
    async with opening(model=ScriptedModel(judged(0.2, "Bodil office", "the office"), BUSY)) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "chain")
    assert said(answer)[0] == STORY[2] or STORY[2] in said(answer)
    assert answer.question.rewrites == ("Bodil office",)
    assert answer.trail.notes[-1] == f"the language model could not be asked ({BUSY})"
    assert answer.trail.spent.calls == 2


async def test_a_busy_model_is_left_alone_as_long_as_it_asks_for(opening: Opening, scope: Scope, clock: Clock) -> None:
    model = ScriptedModel(BUSY, default={"mode": "direct", "queries": []})
    async with opening(model=model) as memory:
        await tell(memory, scope, *STORY)
        await asked(memory, scope, TOWN, "auto")
        clock.move(seconds=119)
        resting = await asked(memory, scope, TOWN, "auto")
        assert len(model.asked) == 1
        assert "was not asked" in resting.trail.notes[0]
        clock.move(seconds=2)
        again = await asked(memory, scope, TOWN, "auto")
    assert len(model.asked) == 2
    assert again.trail.notes == ()


async def test_a_slow_model_costs_a_bounded_time(settings: Settings, opening: Opening, scope: Scope) -> None:
    model = ScriptedModel()
    hurried = settings.model_copy(update={"route_seconds": 0.05})
    async with opening(model=model, settings=hurried) as memory:
        await tell(memory, scope, *STORY)
        with model.held():
            answer = await asked(memory, scope, TOWN, "chain")
        assert said(answer) == said(await asked(memory, scope, TOWN, "direct"))
    [note] = answer.trail.notes
    assert "the time for this search was up" in note


async def test_a_further_search_that_takes_too_long_is_not_waited_for(
    settings: Settings, opening: Opening, scope: Scope
) -> None:
    embedder = ObedientEmbedder()
    holding = embedder.held()

    def slow(system: str, user: str) -> dict[str, Any]:
        holding.__enter__()
        return judged(0.2, "Bodil office", "the office")

    config = settings.model_copy(update={"route_seconds": 1.0})
    async with opening(model=ScriptedModel(slow), settings=config, embedder=embedder) as memory:
        await tell(memory, scope, *STORY)
        await asked(memory, scope, TOWN, "direct")  # all is loaded
        answer = await asked(memory, scope, TOWN, "chain")
        holding.__exit__(None, None, None)
        assert said(answer) == said(await asked(memory, scope, TOWN, "direct"))
    assert answer.question.rewrites == ()
    assert answer.trail.notes[-1].startswith("the time for this search was up")


async def test_no_model_is_asked_where_the_role_is_the_agents(
    settings: Settings, opening: Opening, scope: Scope
) -> None:
    config = Settings(
        data_dir=settings.data_dir, embedder=settings.embedder, language_model="openai:none", route_model="agent"
    )
    async with opening(settings=config) as memory:
        await tell(memory, scope, *STORY)
        answer = await asked(memory, scope, TOWN, "auto")
    assert answer.trail.is_plain


# ---- pages, filters, scopes


async def shelves(memory: Memory, scope: Scope) -> None:
    await tell(memory, scope, *(f"{'tulip' if i % 2 else 'canoe'} parcel {i} {'blue ' * (i % 5)}" for i in range(40)))


PAIR = "Where is the tulip parcel? Where is the canoe parcel?"


async def paged(memory: Memory, scope: Scope, question: Question, meanwhile: bool = False) -> list[str]:
    answer = await memory.search(scope, question)
    ids = [hit.episode.id for hit in answer.found.hits]
    number = 0
    while following := answer.next():
        if meanwhile:
            number += 1
            late = Message(f"late tulip parcel {number}", session_id=f"late{number}", learn=False)
            await memory.add(scope, [late])
        answer = await memory.search(scope, question, following)
        assert answer.found.hits
        assert answer.trail.is_plain
        ids += [hit.episode.id for hit in answer.found.hits]
    return ids


@pytest.mark.parametrize("meanwhile", [False, True], ids=["at rest", "while memories are added"])
async def test_pages_of_a_split_question_join(memory: Memory, scope: Scope, meanwhile: bool) -> None:
    await shelves(memory, scope)
    whole = await asked(memory, scope, PAIR, "auto", limit=100)
    ids = await paged(memory, scope, Question(PAIR, mode="auto", limit=7, expand=0), meanwhile)
    assert ids == [hit.episode.id for hit in whole.found.hits]
    assert len(ids) == len(set(ids)) == 40


async def test_paging_through_a_chain_asks_nothing_and_works_elsewhere(opening: Opening, scope: Scope) -> None:
    model = ScriptedModel({"mode": "chain", "queries": []}, judged(0.1, "canoe parcel blue"), judged(0.9))
    question = Question("Where does the tulip parcel go?", mode="auto", limit=6, expand=0)
    async with opening(model=model) as memory:
        await shelves(memory, scope)
        first = await memory.search(scope, question)
        count = len(model.asked)
        second = await memory.search(scope, question, first.next())
        assert len(model.asked) == count == 3
    async with opening() as elsewhere:  # no model at all
        assert said(await elsewhere.search(scope, question, first.next())) == said(second)
    assert second.question.rewrites == ("canoe parcel blue",)
    assert not set(said(first)) & set(said(second))


async def test_a_cursor_belongs_to_its_mode(memory: Memory, scope: Scope) -> None:
    await shelves(memory, scope)
    question = Question(PAIR, mode="auto", limit=5)
    cursor = (await memory.search(scope, question)).next()
    for other in ("direct", "split", "chain"):
        with pytest.raises(InvalidCursor, match="mode"):
            await memory.search(scope, replace(question, mode=other), cursor)


@pytest.mark.parametrize(
    "carried", [7, "ab", {"a": 1}, [["x"]], [None], ["x" * 300], ["a cat"] * 9, [""]], ids=lambda value: str(value)[:12]
)
async def test_a_cursor_that_was_tampered_with_is_none(memory: Memory, scope: Scope, carried: Any) -> None:
    await shelves(memory, scope)
    question = Question(PAIR, mode="auto", limit=5)
    cursor = (await memory.search(scope, question)).next()
    *content, _ = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    for forged in ([*content, carried], [*content, ["a cat"], 1]):
        given = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
        with pytest.raises(InvalidCursor, match="not a cursor"):
            await memory.search(scope, question, given)


async def test_every_part_keeps_to_the_selection(memory: Memory, scope: Scope) -> None:
    await shelves(memory, scope)
    chosen = Selection(since=DAY + timedelta(days=3), until=DAY + timedelta(days=9), kinds=("message",))
    answer = await memory.search(scope, Question(PAIR, chosen, limit=50, mode="split", expand=3))
    assert len(answer.found.hits) == 7
    assert {hit.episode.session_id for hit in answer.found.hits} == {f"s{i}" for i in range(3, 10)}
    assert all(chosen.since <= hit.episode.occurred_at <= chosen.until for hit in answer.found.hits)  # type: ignore[operator]


async def test_hits_of_several_queries_have_their_neighbours_once(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope,
        [
            Message(content, session_id="s", occurred_at=DAY + timedelta(minutes=number), learn=False)
            for number, content in enumerate(["alpha", "tulip parcel", "bravo", "canoe parcel", "charlie"])
        ],
    )
    answer = await memory.search(scope, Question("Where is the tulip? Where is the canoe?", limit=2, mode="split"))
    beside = [episode.content for hit in answer.found.hits for episode in hit.around]
    assert sorted(said(answer)) == ["canoe parcel", "tulip parcel"]
    assert sorted(beside) == ["alpha", "bravo", "charlie"]


async def test_no_strategy_sees_another_scope(opening: Opening, scope: Scope) -> None:
    other = replace(scope, user="bo")
    doubts = [judged(0.1, f"flatmate {what}") for what in ("office", "town", "harbour")]
    model = ScriptedModel(*doubts, {"queries": ["flatmate of Ann", "town of work"]})
    async with opening(model=model) as memory:
        await tell(memory, scope, "my flatmate is away", "the town sleeps")
        await tell(memory, other, *(f"secret {line}" for line in STORY))
        chained = await asked(memory, scope, TOWN, "chain")
        split = await asked(memory, scope, TOWN, "split")
        assert (chained.trail.mode, split.trail.mode) == ("chain", "split")
    assert said(chained)
    assert said(split)
    for answer in (chained, split):
        assert set(said(answer)) <= {"my flatmate is away", "the town sleeps"}
    assert not any("secret" in user for _, user in model.asked)


# ---- the tool


def data(result: CallToolResult) -> tuple[str, dict[str, Any]]:
    assert result.structured_content is not None
    return result.content[0].text, result.structured_content  # type: ignore[union-attr]


async def test_the_answer_tells_how_it_searched_and_what_was_spent(
    opening: Opening, settings: Settings, scope: Scope
) -> None:
    model = ScriptedModel(judged(0.2, "Bodil office", "the office"), judged(0.4, "", "which floor"))
    async with opening(model=model) as memory:

        async def running() -> Memory:
            return memory

        tools = Tools(running, settings, lambda: "")
        await tools.add_memory(content=STORY[0], learn=False)
        await tools.add_memory(content=STORY[2], learn=False)
        shown, found = data(await tools.search_memory(query=TOWN, mode="chain"))
    assert list(found)[:2] == ["memories", "next"]
    assert found["mode"] == "chain"
    assert found["queries"] == ["Bodil office"]
    assert found["lacks"] == ["still missing: which floor"]
    spent = found["spent"]
    assert (spent["searches"], spent["model_calls"]) == (3, 2)
    assert spent["tokens_sent"] == sum((len(system) + len(user)) // 4 for system, user in model.asked)
    assert spent["tokens_received"] > 0
    tokens = spent["tokens_sent"] + spent["tokens_received"]
    assert f"Searched step by step: Bodil office (spent: 3 searches, 2 model calls, {tokens} tokens)" in shown
    assert "Note: still missing: which floor" in shown


async def test_a_plain_answer_says_nothing_of_strategies(client: Client) -> None:
    await client.call_tool("add_memory", {"content": "The ferry leaves at nine"})
    plain = await client.call_tool("search_memory", {"query": "When does the ferry leave?"})
    assert plain.structured_content
    assert plain.structured_content.keys() == {"memories", "next"}
    direct = await client.call_tool("search_memory", {"query": "When does the ferry leave?", "mode": "direct"})
    assert direct.structured_content == plain.structured_content


async def test_a_mode_that_does_not_exist_is_an_error(client: Client) -> None:
    result = await client.call_tool("search_memory", {"query": "tea", "mode": "agentic"})
    assert result.is_error
    assert "mode: 'agentic' is not one of auto, direct, split, chain" in result.content[0].text  # type: ignore[union-attr]


async def test_facts_are_found_for_every_part(client: Client) -> None:
    for content in ("I love marzipan", "I live in Ghent", "I work as a baker"):
        await client.call_tool("add_memory", {"content": content})
    query = "Do I love marzipan? Where is the house I live in?"
    found = await client.call_tool("search_memory", {"query": query, "kinds": "fact,message"})
    assert found.structured_content
    facts = [item["content"] for item in found.structured_content["memories"] if "feature" in item]
    assert any("marzipan" in fact for fact in facts)
    assert any("Ghent" in fact for fact in facts)


async def test_a_split_answer_stays_within_its_tokens(memory: Memory, settings: Settings, scope: Scope) -> None:
    async def running() -> Memory:
        return memory

    tools = Tools(running, settings, lambda: "")
    for i in range(30):
        await tools.add_memory(content=f"tulip canoe parcel {i}", session_id=f"s{i}", learn=False)
    long = "Where is the tulip parcel " + "tulip " * 25 + "? Where is the canoe parcel " + "canoe " * 25 + "?"
    for tokens in (1_000, 2_000):
        shown, found = data(await tools.search_memory(query=long, max_tokens=tokens, limit=30))
        assert found["mode"] == "split"
        assert found["next"]
        assert count_tokens(shown) + count_tokens(json.dumps(found, ensure_ascii=False)) <= tokens * 1.1


def test_the_command_line_takes_a_mode(tmp_path: Path) -> None:
    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["--data-dir", str(tmp_path), "--embedder", "hashing:64", *words])

    assert run("add", "Ann lives in a lighthouse").exit_code == 0
    query = "Where does Ann live? Who keeps the lighthouse?"
    split = json.loads(run("search", query, "--json").stdout)
    assert split["mode"] == "split"
    assert "mode" not in json.loads(run("search", query, "--mode", "direct", "--json").stdout)
    assert run("search", query, "--mode", "agentic").exit_code == 2


# ---- the prompts


@pytest.mark.parametrize(("name", "shape"), [("route.md", Route), ("split.md", Parts), ("chain.md", Judgement)])
def test_every_example_of_a_prompt_is_an_answer_that_would_be_used(name: str, shape: type[Any]) -> None:
    text = prompts.read(name)
    pieces = FENCE.split(text)
    assert len(pieces) >= 3
    for before, example in zip(pieces[::2], pieces[1::2], strict=False):
        question = re.findall(r"^Question: (.+)$", before, re.MULTILINE)[-1]
        answer = reading.read(f"```json\n{example}```", shape)
        assert json.loads(example).keys() == shape.model_json_schema()["properties"].keys()
        for query in [*getattr(answer, "queries", []), *filter(None, [getattr(answer, "query", "")])]:
            seen = before[before.rindex("Question: ") :]
            assert queries.fitting(query) == query
            assert queries.invented(query, seen) == []
            assert query != question


@pytest.mark.parametrize("shape", [Route, Parts, Judgement])
def test_the_shape_that_a_model_is_asked_for_is_strict(shape: type[Any]) -> None:
    schema = shape.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"])


@pytest.mark.parametrize(("name", "most"), [("route.md", 350), ("split.md", 250), ("chain.md", 300)])
def test_a_prompt_of_a_strategy_is_short(name: str, most: int) -> None:
    assert count_tokens(prompts.read(name)) < most
