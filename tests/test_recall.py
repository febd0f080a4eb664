"""Recall: what is found, in which order, with what beside it, page by page."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import Opening
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mcp_memory import filters
from mcp_memory.errors import InvalidCursor, InvalidInput
from mcp_memory.memory import Answer, Memory
from mcp_memory.settings import Settings, WeightSettings
from mcp_memory.testing import Clock
from mcp_memory.types import Message, Question, Scope, Selection

pytestmark = pytest.mark.anyio

DAY = datetime(2026, 1, 5, 9, tzinfo=UTC)


def turn(minute: float, content: str, session_id: str = "s", **more: Any) -> Message:
    return Message(content, session_id=session_id, occurred_at=DAY + timedelta(minutes=minute), **more)


def said(answer: Answer) -> list[str]:
    return [hit.episode.content for hit in answer.found.hits]


async def found(memory: Memory, scope: Scope, query: str, **question: Any) -> list[str]:
    return said(await memory.search(scope, Question(query, **question)))


# ---- words


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("周末我们打算去灵隐寺附近喝龙井茶", "龙井"),
        ("周末我们打算去灵隐寺附近喝龙井茶", "寺附"),
        ("我对花生严重过敏，请注意", "花生"),
        ("部署步骤：先备份数据库", "数据"),
        ("猫", "猫"),
        ("日本の京都へ行きました", "京都"),
        ("서울에서 만났어요", "만났"),
        ("The Ｆｕｌｌ Ｗｉｄｔｈ sign", "full width"),
        ("a ２０２６ receipt", "2026"),
        ("The STRASSE is long", "straße"),
        ("Die Straße ist lang", "STRASSE"),
        ("Ordered a CAFÉ au lait", "café"),
        ("cafe\u0301 au lait", "caf\u00e9"),
        ("the ﬁle cabinet", "file"),
        ("She was running marathons", "run a marathon"),
        ("We were discussing the policies", "policy discussion"),
        ("ΟΔΥΣΣΕΥΣ sailed", "οδυσσευς"),
        ("build-id qx7 went red", "qx7"),
        ("Walked the 🐶 at dawn", "🐶"),
        ("Won it all 🏆🏆", "🏆"),
        ("I bought shoes for the children", "buy child shoe"),
    ],
    ids=lambda value: value[:24],
)
async def test_words_are_found_however_they_are_written(memory: Memory, scope: Scope, text: str, query: str) -> None:
    await memory.add(scope, [Message(text, session_id="a"), Message("Nothing of the kind", session_id="b")])
    answer = await memory.search(scope, Question(query, expand=0))
    assert said(answer)[0] == text
    assert answer.found.hits[0].why.get("words", 0) > 0


async def test_the_rarer_word_counts_more_and_stop_words_count_nothing(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope,
        [turn(i, f"the meeting number {i} was in the garden of the house", f"s{i}") for i in range(8)]
        + [turn(99, "ocarina meeting", "x")],
    )
    assert (await found(memory, scope, "what was in the ocarina meeting", expand=0))[0] == "ocarina meeting"


async def test_the_words_of_others_do_not_change_a_ranking(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(i, f"lamp {'rope ' * (i % 3)}number {i}", f"s{i}") for i in range(9)])

    async def scores() -> list[tuple[str, float]]:
        answer = await memory.search(scope, Question("rope lamp"))
        return [(hit.episode.id, hit.score) for hit in answer.found.hits]

    before = await scores()
    await memory.add(replace(scope, user="bo"), [turn(i, "rope rope rope", f"s{i}") for i in range(40)])
    assert await scores() == before


# ---- order


async def test_a_speaker_whom_the_query_names_comes_first(memory: Memory, scope: Scope) -> None:
    for session, speakers in (("a", ("Ann", "Bo")), ("b", ("Bo", "Ann"))):
        await memory.add(
            scope, [turn(i, f"I planted {what}", session + str(i), speaker=name)
                    for i, (name, what) in enumerate(zip(speakers, ("tulips", "roses"), strict=True))]
        )  # fmt: skip
    for name in ("Ann", "Bo"):
        answer = await memory.search(scope, Question(f"What did {name} plant?"))
        assert [hit.episode.speaker for hit in answer.found.hits][:2] == [name, name]
        assert answer.found.hits[0].why["speaker"] > 0


async def test_the_answer_beside_the_question_is_found(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope,
        [
            turn(0, "Good morning"),
            turn(1, "What will you call the sailing boat?", role="assistant"),
            turn(2, "Petrel."),
            turn(3, "Fine weather today"),
            *(turn(100 + i, f"Unrelated remark {i}", "other") for i in range(20)),
        ],
    )
    answer = await memory.search(scope, Question("name of the sailing boat", limit=3, expand=0))
    assert "Petrel." in said(answer)
    hit = next(hit for hit in answer.found.hits if hit.episode.content == "Petrel.")
    assert hit.why["neighbour"] > 0


async def test_an_answer_stands_above_the_question_it_answers(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(0, "Which boat did you sail to the island?", "a"),
                             turn(0, "The boat I sail to the island is red", "b")])  # fmt: skip
    answer = await memory.search(scope, Question("Which boat did you sail to the island?"))
    assert said(answer) == ["The boat I sail to the island is red", "Which boat did you sail to the island?"]
    assert answer.found.hits[1].why["asking"] < 0


async def test_neighbours_that_were_said_days_apart_lend_each_other_nothing(memory: Memory, scope: Scope) -> None:
    for session, minutes in (("near", 5), ("far", 60 * 48)):
        await memory.add(scope, [turn(0, "What is the name of the boat?", session), turn(minutes, "Petrel.", session)])
    answer = await memory.search(scope, Question("name of the boat", limit=10, expand=0))
    lent = {
        hit.episode.session_id: hit.why.get("neighbour", 0)
        for hit in answer.found.hits
        if hit.episode.content == "Petrel."
    }
    assert lent["near"] > 0
    assert lent.get("far", 0) == 0


async def test_of_two_that_fit_alike_the_later_comes_first(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope, [turn(60 * 24 * 200, "The code of the gate is 4417", "b"), turn(0, "The code of the gate is 9023", "a")]
    )
    assert await found(memory, scope, "code of the gate") == [
        "The code of the gate is 4417",
        "The code of the gate is 9023",
    ]


async def test_of_two_statements_about_the_same_the_newer_comes_first(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope,
        [
            turn(0, "I own three red bikes, bikes I love, three bikes", "a", speaker="Ann"),
            turn(60 * 24, "By now I own four red bikes", "b", speaker="Ann"),
            turn(60 * 48, "I own five red bikes", "c", speaker="Bo"),
        ],
    )
    answer = await memory.search(scope, Question("How many bikes does Ann own?", expand=0))
    assert said(answer)[:2] == ["By now I own four red bikes", "I own three red bikes, bikes I love, three bikes"]
    assert answer.found.hits[0].why["newer"] > 0
    scores = [hit.score for hit in answer.found.hits]
    assert scores == sorted(scores, reverse=True)
    answer = await memory.search(scope, Question("When did Ann own bikes?", expand=0))
    assert said(answer)[0] == "I own three red bikes, bikes I love, three bikes"
    assert all("newer" not in hit.why for hit in answer.found.hits)


@pytest.mark.parametrize(
    ("signal", "query"),
    [("speaker", "What did Ann buy?"), ("recency", "boat"), ("asking", "which boat"), ("role", "boat"),
     ("importance", "boat")],
)  # fmt: skip
async def test_every_signal_can_be_switched_off(
    opening: Opening, settings: Settings, scope: Scope, signal: str, query: str
) -> None:
    weighed = settings.model_copy(update={"weights": settings.weights.model_copy(update={signal: 0.0})})
    said_ = [
        turn(0, "Ann bought a boat", "a", speaker="Ann", importance=0.9),
        turn(9, "which boat?", "b", role="assistant"),
        turn(5, "my boat", "c"),
    ]
    async with opening() as memory:
        await memory.add(scope, said_)
        hits = (await memory.search(scope, Question(query))).found.hits
        assert any(hit.why.get(signal) for hit in hits)
    async with opening(settings=weighed) as memory:
        hits = (await memory.search(scope, Question(query))).found.hits
        assert hits
        assert not any(signal in hit.why for hit in hits)


async def test_the_lists_may_be_compared_by_rank(opening: Opening, settings: Settings, scope: Scope) -> None:
    ranked = settings.model_copy(
        update={"weights": settings.weights.model_copy(update={"ranks": True, "recency": 0.0})}
    )
    async with opening(settings=ranked) as memory:
        await memory.add(
            scope, [turn(i, text, f"s{i}") for i, text in enumerate(["the tide", "the tide table", "a moth"])]
        )
        first, second, *_ = (await memory.search(scope, Question("tide table", expand=0))).found.hits
    assert [first.episode.content, second.episode.content] == ["the tide table", "the tide"]
    assert second.why["words"] / first.why["words"] == pytest.approx(61 / 62)


async def test_what_scores_too_little_is_left_out(opening: Opening, settings: Settings, scope: Scope) -> None:
    async with opening() as memory:
        await memory.add(scope, [turn(0, "the tide table", "a"), turn(0, "a table", "b"), turn(0, "the tide", "c")])
        hits = (await memory.search(scope, Question("tide table", expand=0))).found.hits
    least = settings.weights.model_copy(update={"min_score": hits[0].score - 0.001})
    async with opening(settings=settings.model_copy(update={"weights": least})) as memory:
        answer = await memory.search(scope, Question("tide table", expand=0))
        assert said(answer) == ["the tide table"]
        assert answer.next() == ""


async def test_what_was_found_often_gains_where_that_is_wanted(
    opening: Opening, settings: Settings, scope: Scope
) -> None:
    said_first, said_last = "Ann keeps a boat in Ghent", "Ann keeps a boat in Turku"
    wanted = settings.model_copy(update={"weights": WeightSettings(accesses=1.0, newer=0.0)})
    async with opening(settings=wanted) as memory:
        await memory.add(scope, [turn(0, said_first, "a"), turn(9, said_last, "b")])
        assert (await found(memory, scope, "keeps boat"))[0] == said_last
        for _ in range(5):
            await memory.search(scope, Question("Ghent boat", Selection(session_id="a")))
        hits = (await memory.search(scope, Question("keeps boat"))).found.hits
        assert [hit.episode.content for hit in hits] == [said_first, said_last]
        assert hits[0].why["accesses"] > hits[1].why["accesses"] > 0
    async with opening() as memory:  # by default nothing is counted, nor does it matter
        assert (await found(memory, scope, "keeps boat"))[0] == said_last


async def test_scores_fall_and_lie_between_0_and_1(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(i, f"the tide table {i}", "s", speaker="Ann") for i in range(30)])
    answer = await memory.search(scope, Question("the tide table of Ann", limit=20))
    scores = [hit.score for hit in answer.found.hits]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


async def test_nothing_close_is_nothing(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope, [turn(i, text) for i, text in enumerate(["I planted tulips", "We sail on Sunday", "Tea is ready"])]
    )
    answers = {query: await found(memory, scope, query) for query in ("xyzzyx", "zzzz", "鲸", "😀", "-")}
    assert answers == {query: [] for query in answers}


async def test_a_query_without_words_or_selection_is_an_error(memory: Memory, scope: Scope) -> None:
    for query in ("", "  ", "\n"):
        with pytest.raises(InvalidInput, match="query"):
            await memory.search(scope, Question(query))


async def test_an_empty_query_lists_the_newest_of_a_selection(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(2, "c"), turn(0, "a"), turn(1, "b"), turn(3, "no", "t")])
    assert await found(memory, scope, "", selection=Selection(session_id="s")) == ["c", "b", "a"]


async def test_a_range_counts_both_ends(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(i, f"tide {i}", f"s{i}") for i in range(5)])
    chosen = Selection(since=DAY + timedelta(minutes=1), until=DAY + timedelta(minutes=3))
    assert sorted(await found(memory, scope, "tide", selection=chosen)) == ["tide 1", "tide 2", "tide 3"]


async def test_a_rare_filter_does_not_starve_the_answer(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope, [turn(i, "the tide table is by the door", f"s{i}", metadata={"rare": i % 100 == 7}) for i in range(900)]
    )
    answer = await memory.search(scope, Question("tide table", Selection(filters.parse("rare = true")), limit=10))
    assert len(answer.found.hits) == 9


# ---- neighbours


async def test_neighbours_are_one_before_and_two_after_and_shown_once(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [turn(i, word) for i, word in enumerate("alpha bravo charlie delta echo foxtrot".split())])
    answer = await memory.search(scope, Question("charlie", limit=1, expand=3))
    assert [episode.content for episode in answer.found.hits[0].around] == ["bravo", "delta", "echo"]
    answer = await memory.search(scope, Question("charlie", limit=1, expand=0))
    assert answer.found.hits[0].around == ()
    answer = await memory.search(scope, Question("charlie echo", limit=2, expand=3))
    beside = [episode.content for hit in answer.found.hits for episode in hit.around]
    assert len(beside) == len(set(beside))
    assert not set(beside) & set(said(answer))


async def test_neighbours_never_cross_a_session_a_scope_or_a_filter(memory: Memory, scope: Scope) -> None:
    other = replace(scope, user="bo")
    for i in range(12):
        await memory.add(scope, [turn(i, f"mine {i}", f"s{i % 2}", tags=("x",) if i % 3 else ("y",))])
        await memory.add(other, [turn(i + 0.5, f"theirs {i}", f"s{i % 2}")])
    for selection in (Selection(), Selection(filters.parse("tags = 'x'")), Selection(since=DAY + timedelta(minutes=5))):
        answer = await memory.search(scope, Question("mine 6 mine 7", selection, limit=3, expand=9))
        assert answer.found.hits
        for hit in answer.found.hits:
            for episode in hit.around:
                assert episode.content.startswith("mine")
                assert episode.session_id == hit.episode.session_id
                if selection.filter:
                    assert episode.tags == ("x",)
                if selection.since:
                    assert episode.occurred_at >= selection.since


async def test_neighbours_of_the_unnamed_session_end_at_a_silence(memory: Memory, scope: Scope) -> None:
    await memory.add(
        scope, [turn(0, "alpha", ""), turn(31, "bravo", ""), turn(40, "charlie", ""), turn(90, "delta", "")]
    )
    answer = await memory.search(scope, Question("bravo", limit=1, expand=9))
    assert [episode.content for episode in answer.found.hits[0].around] == ["charlie"]


# ---- time to live


async def test_what_is_past_its_time_leaves_every_answer(memory: Memory, scope: Scope, clock: Clock) -> None:
    soon = clock() + timedelta(days=1)
    added = await memory.add(
        scope,
        [
            Message("the alpha door code is 4417", session_id="s"),
            Message("the bravo door code is 9023", session_id="s", expires_at=soon),
            Message("I love ocarinas", session_id="s", expires_at=soon),
        ],
    )
    assert len(added.learned) == 1
    clock.move(days=2)
    answer = await memory.search(scope, Question("door code", expand=9))
    assert said(answer) == ["the alpha door code is 4417"]
    assert answer.found.hits[0].around == ()
    assert await found(memory, scope, "", selection=Selection(session_id="s")) == ["the alpha door code is 4417"]
    context = await memory.context(scope, "door code", "s", 1_500)
    assert "9023" not in context.text
    assert "ocarinas" not in context.text
    assert (await memory.profile(scope))[0] == []


# ---- pages


async def pages(memory: Memory, scope: Scope, question: Question, limit: int = 50) -> list[str]:
    answer = await memory.search(scope, question)
    ids = [hit.episode.id for hit in answer.found.hits]
    for _ in range(limit):
        if not (following := answer.next()):
            return ids
        answer = await memory.search(scope, question, following)
        ids += [hit.episode.id for hit in answer.found.hits]
    raise AssertionError("the pages do not end")


@pytest.fixture
async def shelf(memory: Memory, scope: Scope) -> list[str]:
    added = await memory.add(
        scope, [turn(i, f"parcel {i} on shelf {'blue ' * (i % 4)}", f"s{i % 5}") for i in range(30)]
    )
    return [stored.episode.id for stored in added.stored]


@pytest.mark.parametrize("query", ["parcel on the blue shelf", ""])
async def test_pages_hold_every_hit_once(memory: Memory, scope: Scope, shelf: list[str], query: str) -> None:
    selection = Selection(since=DAY)
    paged = await pages(memory, scope, Question(query, selection, limit=7))
    assert sorted(paged) == sorted(shelf)
    whole = await memory.search(scope, Question(query, selection, limit=30))
    assert paged == [hit.episode.id for hit in whole.found.hits]
    assert whole.next() == ""


@pytest.mark.parametrize("query", ["parcel on the blue shelf", ""])
@pytest.mark.parametrize("minute", [500.0, 7.5], ids=["said later", "said between"])
async def test_pages_are_stable_while_memories_are_added(
    memory: Memory, scope: Scope, shelf: list[str], query: str, minute: float
) -> None:
    question = Question(query, Selection(since=DAY), limit=7)
    answer = await memory.search(scope, question)
    whole = [hit.episode.id for hit in (await memory.search(scope, replace(question, limit=100))).found.hits]
    ids = [hit.episode.id for hit in answer.found.hits]
    number = 0
    while following := answer.next():
        await memory.add(
            scope, [turn(minute + number / 100, f"parcel of late {number} on the blue shelf", f"s{number % 5}")]
        )
        number += 1
        answer = await memory.search(scope, question, following)
        ids += [hit.episode.id for hit in answer.found.hits]
    if query and minute < 500:  # what is said between two turns changes the context in which the later one is found
        assert set(ids) <= set(whole)
    else:
        assert ids == whole


async def test_a_list_goes_on_after_its_last_item_was_forgotten(memory: Memory, scope: Scope, shelf: list[str]) -> None:
    question = Question("", Selection(since=DAY), limit=7)
    answer = await memory.search(scope, question)
    shown = [hit.episode.id for hit in answer.found.hits]
    await memory.forget(scope, [shown[-1]])
    following = await memory.search(scope, question, answer.next())
    assert not {hit.episode.id for hit in following.found.hits} & set(shown)


async def test_a_cursor_works_in_another_process_and_after_a_restart(opening: Opening, scope: Scope) -> None:
    question = Question("parcel", limit=4)
    async with opening() as memory:
        await memory.add(scope, [turn(i, f"parcel {i}", f"s{i}") for i in range(10)])
        first = await memory.search(scope, question)
        async with opening() as other:
            second = said(await other.search(scope, question, first.next()))
    async with opening() as memory:
        assert said(await memory.search(scope, question, first.next())) == second
    assert not set(second) & set(said(first))


async def test_a_cursor_of_another_question_is_refused(memory: Memory, scope: Scope, shelf: list[str]) -> None:
    question = Question("parcel", Selection(session_id="s1"), limit=2)
    cursor = (await memory.search(scope, question)).next()
    assert cursor
    for other in (
        replace(question, query="parcels"),
        replace(question, selection=Selection(session_id="s2")),
        replace(question, selection=Selection(session_id="s1", kinds=("message",))),
        replace(question, selection=Selection(filters.parse("role = 'user'"), session_id="s1")),
        replace(question, selection=Selection(session_id="s1", since=DAY)),
        replace(question, order="time"),
    ):
        with pytest.raises(InvalidCursor, match="another search"):
            await memory.search(scope, other, cursor)
    with pytest.raises(InvalidCursor):
        await memory.search(replace(scope, user="bo"), question, cursor)
    assert await memory.search(scope, replace(question, limit=5, expand=0), cursor)


def encoded(value: str) -> str:
    return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x", "!!!!", "é", "\x00", "=" * 9, encoded("[]"), encoded("{}"), encoded("null"), encoded("[1, 2, 3]"),
        encoded('["a", "b", "c", "d"]'), encoded('[1e999, 1, 1, ""]'), encoded('[NaN, NaN, 1, ""]'), encoded("[" * 20_000),
        encoded(json.dumps([10**40, 0.5, 10**40, "x"])), "A" * 100_000,
    ],
    ids=lambda cursor: cursor[:12],
)  # fmt: skip
async def test_garbage_is_no_cursor(memory: Memory, scope: Scope, cursor: str) -> None:
    with pytest.raises(InvalidCursor, match="cursor"):
        await memory.search(scope, Question("parcel"), cursor)


# ---- any text at all

OPERATORS = [
    '"', '""', "'", "a\"b", "NEAR(a b)", "a NEAR/3 b", "AND", "OR", "NOT", "a AND", "NOT a", "a*", "*", "^a", "tokens:a",
    "{a}: b", "-a", "+a", "(a", "a)", "col : x", "a:b", "%", "_", "?1", ":x", "@x", "$x", ";", "--", "/*", "\\", "\x00",
    "a\x00b", "\ud800", "\udfff a", "😀", "👩\u200d👩\u200d👧", "\u202e", "\ufeff", "\u200b", "１", "…", "。", "、", "一",
    "parcel shelf",
]  # fmt: skip
ANY = st.text(st.one_of(st.characters(exclude_categories=()), st.sampled_from(" \"'*()")), max_size=60)


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.one_of(ANY, st.lists(st.sampled_from(OPERATORS), max_size=6).map(" ".join)))
@example(query="parcel " * 15_000)
@example(query="架" * 50_000)
@example(query="a" * 100_000)
@example(query='"' * 100_000)
@example(query="\ud800")
async def test_any_query_is_answered_from_the_own_scope_alone(memory: Memory, scope: Scope, query: str) -> None:
    other = replace(scope, user="bo")
    for user, name in ((scope, "mine"), (other, "theirs")):
        messages = [turn(i, f"{name} parcel a b x on 架子 {i} 😀 1") for i in range(3)]
        await memory.add(user, messages)  # from the second example on they are there
    answer = await memory.search(scope, Question(query, Selection(since=DAY), expand=9))
    for hit in answer.found.hits:
        for episode in (hit.episode, *hit.around):
            assert episode.content.startswith("mine")
