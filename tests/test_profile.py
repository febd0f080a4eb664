"""The profile: what is learned, when it held, what it rests on, and how it is unlearned."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcp_memory import profile
from mcp_memory.memory import Memory
from mcp_memory.testing import Clock
from mcp_memory.types import HAND, AddFeature, Feature, Message, Scope

pytestmark = pytest.mark.anyio


def day(number: int) -> datetime:
    return datetime(2025, 1, 1, 12, tzinfo=UTC) + timedelta(days=number)


async def say(memory: Memory, scope: Scope, content: str, number: int | None = None, **more: Any) -> str:
    """The id of what was said on a day."""
    occurred_at = None if number is None else day(number)
    added = await memory.add(scope, [Message(content, occurred_at=occurred_at, **more)])
    return added.stored[0].episode.id


async def facts(memory: Memory, scope: Scope, **question: Any) -> list[Feature]:
    return (await memory.profile(scope, **question))[0]


async def values(memory: Memory, scope: Scope, **question: Any) -> list[str]:
    return sorted(fact.value for fact in await facts(memory, scope, **question))


async def test_a_fact_cites_the_episode_it_rests_on(memory: Memory, scope: Scope) -> None:
    said = await say(memory, scope, "I live in Ghent", 0)
    [fact] = await facts(memory, scope)
    assert (fact.tag, fact.value, fact.citations) == ("home", "lives in Ghent", (said,))
    assert fact.valid_from == day(0)
    assert fact.id.startswith("f")
    [source] = (await memory.sources(scope, [fact])).values()
    assert source.content == "I live in Ghent"


async def test_what_is_learned_stands_in_the_answer_of_add(memory: Memory, scope: Scope) -> None:
    added = await memory.add(scope, [Message("我对花生过敏"), Message("Nice weather")])
    assert [fact.tag for fact in added.learned] == ["allergies"]
    assert "花生" in added.learned[0].value
    assert (await memory.add(scope, [Message("Is it raining?")])).learned == ()


async def test_said_again_a_fact_is_strengthened_and_not_doubled(memory: Memory, scope: Scope) -> None:
    first = await say(memory, scope, "I love hiking", 0)
    [before] = await facts(memory, scope)
    second = await say(memory, scope, "By the way, I really love hiking", 5)
    [after] = await facts(memory, scope)
    assert after.id == before.id
    assert after.citations == (first, second)
    assert after.confidence > before.confidence
    assert after.verified_at == day(5)
    assert after.valid_from == day(0)


async def test_a_single_slot_ends_and_begins(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I live in Ghent", 0)
    await say(memory, scope, "I live in Turku", 10)
    assert await values(memory, scope) == ["lives in Turku"]
    old, new = sorted(await facts(memory, scope, history=True), key=lambda fact: fact.valid_from)
    assert (old.valid_to, old.superseded_by) == (day(10), new.id)
    assert new.valid_to is None


async def test_an_older_statement_stored_later_is_history(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I live in Turku", 10)
    await say(memory, scope, "I live in Ghent", 0)
    assert await values(memory, scope) == ["lives in Turku"]
    await say(memory, scope, "I live in Bruges", 5)
    assert await values(memory, scope) == ["lives in Turku"]
    spans = sorted((fact.valid_from, fact.value, fact.valid_to) for fact in await facts(memory, scope, history=True))
    assert spans == [
        (day(0), "lives in Ghent", day(5)),
        (day(5), "lives in Bruges", day(10)),
        (day(10), "lives in Turku", None),
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)], ids=str)
async def test_the_order_of_storing_does_not_matter(memory: Memory, scope: Scope, order: tuple[int, ...]) -> None:
    places = ["I live in Ghent", "I live in Bruges", "I live in Turku"]
    for number in order:
        await say(memory, scope, places[number], number * 10)
    for moment, value in ((-1, []), (3, ["lives in Ghent"]), (10, ["lives in Bruges"]), (99, ["lives in Turku"])):
        assert await values(memory, scope, as_of=day(moment)) == value


async def test_an_ending_without_a_successor_ends(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I love coffee", 0)
    await say(memory, scope, "I gave up coffee", 10)
    assert "coffee" not in " ".join(await values(memory, scope))
    assert any("coffee" in value for value in await values(memory, scope, as_of=day(5)))
    assert any("coffee" in value for value in await values(memory, scope, history=True))


async def test_an_older_ending_stored_later_does_not_end_a_newer_fact(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I love coffee", 10)
    await say(memory, scope, "I gave up coffee", 0)
    assert any("coffee" in value for value in await values(memory, scope))


async def test_a_later_ending_stored_first_ends_an_older_statement(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I gave up coffee", 10)
    await say(memory, scope, "I love coffee", 0)
    assert "coffee" not in " ".join(await values(memory, scope))


async def test_taken_up_again_a_fact_begins_again(memory: Memory, scope: Scope) -> None:
    for number, content in ((0, "I live in Ghent"), (10, "I live in Turku"), (20, "I live in Ghent")):
        await say(memory, scope, content, number)
    assert await values(memory, scope) == ["lives in Ghent"]
    assert await values(memory, scope, as_of=day(15)) == ["lives in Turku"]
    assert await values(memory, scope, as_of=day(5)) == ["lives in Ghent"]


async def test_categories_and_tags_narrow(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I live in Ghent")
    await say(memory, scope, "I love hiking")
    assert await values(memory, scope, tag="home") == ["lives in Ghent"]
    assert await values(memory, scope, category="profile") == ["likes hiking", "lives in Ghent"]
    assert await values(memory, scope, category="finance") == []


async def test_the_facts_closest_to_a_query_come_first(memory: Memory, scope: Scope) -> None:
    for content in ("I live in Ghent", "I love hiking", "I'm allergic to peanuts", "I work at Acme"):
        await say(memory, scope, content)
    ordered = await memory.closest_first(await facts(memory, scope), "which peanuts allergy")
    assert "peanuts" in ordered[0].value
    assert len(ordered) == 4


async def test_of_facts_as_close_the_more_important_comes_first(memory: Memory, scope: Scope) -> None:
    boat = AddFeature("profile", "things", "boat", "owns a boat", importance=0.2)
    kayak = AddFeature("profile", "things", "kayak", "owns a kayak", importance=0.9)
    await memory.store.write(scope, lambda tx: [profile.decide(tx, HAND, one, tx.now) for one in (boat, kayak)])
    near = await memory.close_facts(scope, ["owns"], 10)
    assert [one.fact.name for one in near] == ["kayak", "boat"]
    assert near[0].why["importance"] > near[1].why["importance"]


# ---- whose word counts


@pytest.mark.parametrize(
    "more",
    [
        {"role": "assistant"},
        {"role": "system"},
        {"role": "tool"},
        {"speaker": "Bo"},
        {"learn": False},
        {"importance": 0.1},
    ],
    ids=str,
)
async def test_only_the_users_own_statements_become_facts(memory: Memory, scope: Scope, more: Any) -> None:
    await say(memory, scope, "I live in Ghent and I love hiking", **more)
    assert await facts(memory, scope) == []


async def test_a_speaker_who_is_the_user_counts(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "My name is Ines")
    await say(memory, scope, "I live in Ghent", speaker="Ines")
    await say(memory, scope, "I live in Turku", speaker="Bo")
    assert await values(memory, scope) == ["is called Ines", "lives in Ghent"]


@pytest.mark.parametrize(
    ("called", "speaker", "counts"),
    [
        ("", "Ines", True),  # the id of the scope
        ("", "ines maria", False),
        ("My name is Ann Smith", "Ann", True),
        ("My name is Ann Smith", "ann smith", True),
        ("My name is Joann", "Ann", False),
        ("我叫张三", "张三", True),
        ("我叫张三", "李四", False),
    ],
)
async def test_a_speaker_is_the_user_by_name_or_by_id(
    memory: Memory, scope: Scope, called: str, speaker: str, counts: bool
) -> None:
    if called:
        await say(memory, scope, called)
    await say(memory, scope, "I live in Ghent", speaker=speaker)
    assert ("lives in Ghent" in await values(memory, scope)) is counts


async def test_profiles_of_scopes_do_not_meet(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I live in Ghent")
    others = [replace(scope, user="bo"), replace(scope, project="p"), replace(scope, org="o")]
    for other in others:
        assert await facts(memory, other) == []
    await say(memory, others[0], "I live in Ghent")
    [mine], [theirs] = await facts(memory, scope), await facts(memory, others[0])
    assert mine.id != theirs.id
    with pytest.raises(Exception, match="not found"):
        await memory.forget(scope, [theirs.id])


# ---- unlearning


async def test_forgetting_an_episode_takes_its_facts_along(memory: Memory, scope: Scope) -> None:
    said = await say(memory, scope, "I live in Ghent")
    kept = await say(memory, scope, "I love hiking")
    forgotten = await memory.forget(scope, [said])
    assert forgotten.facts == 1
    assert await values(memory, scope, history=True) == ["likes hiking"]
    assert (await facts(memory, scope))[0].citations == (kept,)


async def test_a_fact_with_another_source_only_loses_the_citation(memory: Memory, scope: Scope) -> None:
    first = await say(memory, scope, "I love hiking", 0)
    second = await say(memory, scope, "I really love hiking", 5)
    assert (await memory.forget(scope, [first])).facts == 0
    [fact] = await facts(memory, scope)
    assert fact.citations == (second,)


async def test_what_a_forgotten_statement_had_superseded_stands_again(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I live in Ghent", 0)
    moved = await say(memory, scope, "I live in Turku", 10)
    await memory.forget(scope, [moved])
    [fact] = await facts(memory, scope)
    assert (fact.value, fact.valid_to, fact.superseded_by) == ("lives in Ghent", None, "")


async def test_forgetting_the_middle_of_three_leaves_one_current_fact(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I live in Ghent", 0)
    moved = await say(memory, scope, "I live in Turku", 10)
    await say(memory, scope, "I live in Bruges", 20)
    await memory.forget(scope, [moved])
    assert await values(memory, scope) == ["lives in Bruges"]
    assert await values(memory, scope, as_of=day(15)) == ["lives in Ghent"]


async def test_what_a_forgotten_ending_had_ended_stands_again(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I love coffee", 0)
    ended = await say(memory, scope, "I gave up coffee", 10)
    await memory.forget(scope, [ended])
    assert await values(memory, scope) == ["likes coffee"]


async def test_forgetting_a_fact_names_who_still_says_it_and_leaves_the_episodes(memory: Memory, scope: Scope) -> None:
    said = await say(memory, scope, "I live in Ghent")
    [fact] = await facts(memory, scope)
    forgotten = await memory.forget(scope, [fact.id])
    assert forgotten.ids == (fact.id,)
    assert forgotten.still_say == (said,)
    assert await memory.episode(scope, said) is not None
    assert await facts(memory, scope, history=True) == []


async def test_a_forgotten_fact_is_not_learned_again_from_what_was_said_before(
    memory: Memory, scope: Scope, clock: Clock
) -> None:
    await say(memory, scope, "I live in Ghent", 0)
    await say(memory, scope, "I love hiking", 0)
    [fact] = await facts(memory, scope, tag="home")
    await memory.forget(scope, [fact.id])
    await memory.rebuild(scope, "rules", lambda left: None)
    await memory.consolidate(scope)
    assert await values(memory, scope, history=True) == ["likes hiking"]
    clock.move(days=1)
    again = await say(memory, scope, "I live in Ghent")
    [fact] = await facts(memory, scope, tag="home")
    assert fact.citations == (again,)
    await memory.rebuild(scope, "rules", lambda left: None)
    [fact] = await facts(memory, scope, tag="home")
    assert fact.citations == (again,)


async def test_a_fact_and_its_episode_can_be_forgotten_together_all_or_none(memory: Memory, scope: Scope) -> None:
    said = await say(memory, scope, "I live in Ghent")
    [fact] = await facts(memory, scope)
    with pytest.raises(Exception, match="not found"):
        await memory.forget(scope, [said, fact.id, "e0000000000"])
    assert await facts(memory, scope) == [fact]
    forgotten = await memory.forget(scope, [said, fact.id])
    assert set(forgotten.ids) == {said, fact.id}
    assert await facts(memory, scope) == []
    assert await memory.episode(scope, said) is None


async def test_a_rebuilt_profile_is_the_profile(memory: Memory, scope: Scope) -> None:
    for number, content in enumerate(
        [
            "I live in Ghent",
            "I love tea",
            "I gave up tea",
            "I live in Turku",
            "我叫张三",
            "I love tea",
            "Never use emojis",
        ]
    ):
        await say(memory, scope, content, number)
    await say(memory, scope, "I live in Bruges", 1)
    before = await facts(memory, scope, history=True)
    await memory.rebuild(scope, "rules", lambda left: None)
    assert await facts(memory, scope, history=True) == before
