"""Consolidation of facts: what is merged, what is ended, what a model puts in order, and how all of it is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import Opening
from test_sqlite import holding

from mcp_memory import transfer
from mcp_memory.consolidation import CROWDED, Report
from mcp_memory.errors import ProviderError
from mcp_memory.memory import Memory
from mcp_memory.settings import Settings
from mcp_memory.testing import Clock, ScriptedModel
from mcp_memory.types import CONSOLIDATION, HAND, Decision, Feature, Message, Question, Scope

pytestmark = pytest.mark.anyio

VIEW = "extract/profile"


def day(number: float) -> datetime:
    """Days before the clock of the tests begins."""
    return datetime(2026, 3, 2, 8, tzinfo=UTC) + timedelta(days=number)


@dataclass(frozen=True)
class Known:
    """A fact as a model would have drawn it on a day from a message of its own."""

    value: str
    day: float = -1
    feature: str = "hiking"
    tag: str = "likes"
    category: str = "profile"
    importance: float = 0.6
    expires_at: datetime | None = None


async def know(memory: Memory, scope: Scope, *facts: Known) -> list[str]:
    """The ids of the episodes behind these facts."""
    records = []
    for number, fact in enumerate(facts):
        said = f"({number}) {fact.value}, as was said on day {fact.day}"
        message = Message(said, occurred_at=day(fact.day), learn=False, expires_at=fact.expires_at)
        episode = (await memory.add(scope, [message])).stored[0].episode
        records += [transfer.episode(episode), decision(fact, episode.id)]
    await memory.import_(scope, records)
    return [record["id"] for record in records if record["type"] == "episode"]


def decision(fact: Known, id: str) -> dict[str, Any]:
    command = {name: getattr(fact, name) for name in ("category", "tag", "feature", "value", "importance")}
    moment = day(fact.day).isoformat()
    return {
        "type": "decision",
        "source": VIEW,
        "created_at": moment,
        "said_at": moment,
        "command": {"command": "add", **command},
        "citations": [id],
    }


async def facts(memory: Memory, scope: Scope, **question: Any) -> list[Feature]:
    return sorted((await memory.profile(scope, **question))[0], key=lambda fact: (fact.valid_from, fact.value))


async def values(memory: Memory, scope: Scope, **question: Any) -> list[str]:
    return [fact.value for fact in await facts(memory, scope, **question)]


async def decided(memory: Memory, scope: Scope, *sources: str) -> list[Decision]:
    return [made for made, _ in await memory.decisions(scope) if made.source in sources]


def numbers(report: Report) -> tuple[int, int, int]:
    return report.done.merged, report.done.expired, report.done.ended


SHORT = Known("likes hiking", -20, importance=0.65)
LONG = Known("likes hiking in the mountains", -10)


# ---- merging


@pytest.mark.parametrize(
    ("one", "other"), [(SHORT, LONG), (LONG, SHORT), (replace(SHORT, day=-1), LONG)], ids=["grown", "back", "late"]
)
async def test_of_two_that_are_alike_the_longer_stays_with_the_sources_of_both(
    memory: Memory, scope: Scope, one: Known, other: Known
) -> None:
    cited = await know(memory, scope, one, other)
    report = await memory.consolidate(scope)
    assert numbers(report) == (1, 0, 0)
    assert (report.facts_before, report.facts_after) == (2, 1)
    [kept] = await facts(memory, scope)
    assert kept.value == LONG.value
    assert kept.importance == 0.65
    assert set(kept.citations) == set(cited)
    [ended] = [fact for fact in await facts(memory, scope, history=True) if fact.id != kept.id]
    assert (ended.value, ended.superseded_by, ended.valid_to) == (SHORT.value, kept.id, day(max(one.day, other.day)))


async def test_a_merge_survives_a_view_that_is_derived_again(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, [Message("I love hiking", occurred_at=day(-1))])
    [rule] = await facts(memory, scope)
    await know(memory, scope, replace(LONG, feature=rule.name))
    await memory.consolidate(scope)
    before = await facts(memory, scope, history=True)
    assert [fact.valid_to is None for fact in before] == [True, False]
    await memory.rebuild(scope, "rules", lambda left: None)
    assert await facts(memory, scope, history=True) == before


async def test_three_of_a_kind_become_one_and_nothing_is_left_to_do(memory: Memory, scope: Scope) -> None:
    await know(memory, scope, SHORT, LONG, Known("likes hiking in the high mountains", -5))
    while (await memory.consolidate(scope)).done.merged:
        pass
    assert await values(memory, scope) == ["likes hiking in the high mountains"]
    [kept] = await facts(memory, scope)
    assert len(kept.citations) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("likes hiking in the mountains", "does not like hiking in the mountains"),
        ("likes hiking with 2 friends", "likes hiking with 3 friends"),
        ("likes hiking on mondays", "likes hiking on fridays"),
        ("goes hiking on 2026-05-01", "goes hiking on 2026-06-01"),
        ("likes hiking with Anna", "likes hiking with Maria"),
        ("likes mountain hiking to the north", "likes mountain hiking to the south"),
        ("prefers hiking to biking", "prefers biking to hiking"),
        ("喜欢在山里徒步", "不喜欢在山里徒步"),
        ("喜欢和王芳徒步", "喜欢和王芬徒步"),
        ("每周徒步两次", "每周徒步三次"),
        ("喜欢喝绿茶", "喜欢喝红茶"),
        ("喜欢猫", "喜欢猫头鹰"),
    ],
)
async def test_likeness_alone_merges_nothing(memory: Memory, scope: Scope, one: str, other: str) -> None:
    await know(memory, scope, Known(one, -20), Known(other, -10))
    assert numbers(await memory.consolidate(scope)) == (0, 0, 0)
    assert await values(memory, scope) == [one, other]


@pytest.mark.parametrize("elsewhere", [{"feature": "walks"}, {"tag": "life"}, {"category": "health"}], ids=str)
async def test_nothing_is_merged_across_slots(memory: Memory, scope: Scope, elsewhere: Any) -> None:
    await know(memory, scope, SHORT, replace(LONG, **elsewhere))
    assert numbers(await memory.consolidate(scope)) == (0, 0, 0)
    assert len(await facts(memory, scope)) == 2


async def test_nothing_is_merged_across_scopes(memory: Memory, scope: Scope) -> None:
    others = [replace(scope, user="bo"), replace(scope, project="p"), replace(scope, org="o")]
    await know(memory, scope, SHORT)
    for other in others:
        await know(memory, other, LONG)
    for each in (scope, *others):
        assert numbers(await memory.consolidate(each)) == (0, 0, 0)
        assert len(await facts(memory, each)) == 1


# ---- expiring


@pytest.mark.parametrize(
    ("importance", "age", "ends"),
    [(0.35, 29, False), (0.35, 31, True), (0.6, 130, False), (0.6, 140, True), (0.2, 29, False), (0.7, 900, False)],
)
async def test_what_matters_little_and_was_not_heard_of_for_long_ends(
    memory: Memory, scope: Scope, clock: Clock, importance: float, age: int, ends: bool
) -> None:
    await know(memory, scope, Known("likes hiking", 31 - age, importance=importance))
    clock.move(days=31)
    assert numbers(await memory.consolidate(scope)) == (0, int(ends), 0)
    assert await values(memory, scope) == ([] if ends else ["likes hiking"])
    assert await values(memory, scope, history=True) == ["likes hiking"]


async def test_what_was_learned_lately_stays_however_old_it_is(memory: Memory, scope: Scope, clock: Clock) -> None:
    await know(memory, scope, Known("likes hiking", -400))
    assert numbers(await memory.consolidate(scope)) == (0, 0, 0)
    clock.move(days=31)
    assert numbers(await memory.consolidate(scope)) == (0, 1, 0)


async def test_said_again_a_fact_stays(memory: Memory, scope: Scope, clock: Clock) -> None:
    await know(memory, scope, Known("likes hiking", -140), Known("likes hiking", -20))
    assert numbers(await memory.consolidate(scope)) == (0, 0, 0)
    clock.move(days=140)
    assert numbers(await memory.consolidate(scope)) == (0, 1, 0)


async def test_what_has_a_time_to_live_leaves_every_answer_and_lives_on_in_no_other_fact(
    memory: Memory, scope: Scope, clock: Clock
) -> None:
    await memory.add(scope, [Message("I live in Ghent", expires_at=clock() + timedelta(days=2))])
    await know(memory, scope, SHORT, replace(LONG, expires_at=clock() + timedelta(days=2)))
    assert numbers(await memory.consolidate(scope)) == (0, 0, 0)
    clock.move(days=3)
    assert await values(memory, scope) == ["likes hiking"]
    assert await values(memory, scope, history=True) == ["likes hiking"]
    assert [near.fact.value for near in await memory.close_facts(scope, "mountains Ghent", 10)] == []
    shown = "\n".join(line.content for line in (await memory.context(scope, "mountains in Ghent", "", 1_500)).lines)
    hits = (await memory.search(scope, Question("mountains Ghent"))).found.hits
    assert "mountains" not in shown + " ".join(hit.episode.content for hit in hits)
    assert (await memory.stats(scope)).facts == 1


# ---- a tag that grew large


def crowd(count: int = CROWDED) -> list[Known]:
    return [Known(f"likes dish number {number}", -count + number, feature=f"dish {number}") for number in range(count)]


def put_in_order(*answers: Any) -> ScriptedModel:
    return ScriptedModel(*answers, default=ProviderError("asked without need"))


def delete(number: int) -> dict[str, Any]:
    return {
        "command": "delete",
        "tag": "likes",
        "feature": f"dish {number}",
        "value": f"likes dish number {number}",
    }


def add(value: str, *cited: int, feature: str = "dishes") -> dict[str, Any]:
    return {"command": "add", "tag": "likes", "feature": feature, "value": value, "citations": list(cited)}


def numbered(model: ScriptedModel, *dishes: int) -> list[int]:
    """The numbers under which a model was shown these."""
    lines = model.asked[-1][1].splitlines()
    return [
        int(line[1 : line.index("]")])
        for dish in dishes
        for line in lines
        if line.endswith(f"likes dish number {dish}")
    ]


def merging(
    model: Callable[[], ScriptedModel], *dishes: int, more: Sequence[Any] = ()
) -> Callable[[str, str], list[Any]]:
    def answer(system: str, question: str) -> list[Any]:
        return [*map(delete, dishes), add("likes some dishes", *numbered(model(), *dishes)), *more]

    return answer


async def test_a_tag_with_many_facts_is_put_in_order_once_until_it_changes(opening: Opening, scope: Scope) -> None:
    model = put_in_order()
    model.replies.extend([merging(lambda: model, 2, 5, more=[delete(99)]), [], []])
    async with opening(model=model) as memory:
        await know(memory, scope, *crowd(CROWDED - 1))
        await memory.consolidate(scope)
        assert model.asked == []
        cited = await know(memory, scope, *crowd(CROWDED + 3)[CROWDED - 1 :])
        report = await memory.consolidate(scope)
        assert len(model.asked) == 1
        assert numbers(report) == (1, 0, 2)
        assert [refusal.reason for refusal in report.done.refused] == ["no such fact is known"]
        [merged] = [fact for fact in await facts(memory, scope) if fact.value == "likes some dishes"]
        gone = [fact for fact in await facts(memory, scope, history=True) if fact.valid_to]
        assert sorted(fact.value for fact in gone) == ["likes dish number 2", "likes dish number 5"]
        assert set(merged.citations) == {fact.citations[0] for fact in gone}
        assert not set(merged.citations) & set(cited)
        for _ in range(2):
            assert numbers(await memory.consolidate(scope)) == (0, 0, 0)
        assert len(model.asked) == 1
        await know(memory, scope, Known("likes one more", 0, feature="more"))
        await memory.consolidate(scope)
        assert len(model.asked) == 2


async def test_a_model_that_fails_costs_nothing_but_that_tag(opening: Opening, scope: Scope) -> None:
    model = put_in_order(ProviderError("the model is busy"), [delete(3)])
    async with opening(model=model) as memory:
        await know(memory, scope, *crowd(), replace(SHORT, tag="life"), replace(LONG, tag="life"))
        before = await values(memory, scope, tag="likes")
        report = await memory.consolidate(scope)
        assert numbers(report) == (1, 0, 0)
        assert [(lag.view, lag.reason) for lag in report.lags] == [(CONSOLIDATION, "the model is busy")]
        assert not report.more
        assert await values(memory, scope, tag="likes") == before
        report = await memory.consolidate(scope)
        assert (numbers(report), report.lags) == ((0, 0, 1), ())


async def test_a_slow_model_does_not_overwrite_what_came_meanwhile(opening: Opening, scope: Scope) -> None:
    model = put_in_order()
    model.replies.append(merging(lambda: model, 2, 5, more=[delete(7), delete(9)]))
    async with opening(model=model) as memory:
        await know(memory, scope, *crowd())
        with model.held():
            consolidating = asyncio.create_task(memory.consolidate(scope))
            await model.reached()
            for fact in await facts(memory, scope):
                if fact.value == "likes dish number 2":
                    await memory.end(scope, fact.id)
            await memory.correct(scope, "profile", "likes", "dish 7", "likes dish number 7 no more")
        report = await consolidating
        assert numbers(report) == (0, 0, 1)
        now = await values(memory, scope)
        assert {"likes dish number 5", "likes dish number 7 no more"} <= set(now)
        assert not {"likes some dishes", "likes dish number 2", "likes dish number 9"} & set(now)


async def test_what_is_forgotten_while_a_model_thinks_does_not_come_back(
    opening: Opening, scope: Scope, settings: Settings
) -> None:
    model = put_in_order([delete(4), add("likes xylographs of dishes", 1, 2)], [])
    async with opening(model=model) as memory:
        cited = await know(memory, scope, *crowd())
        with model.held():
            consolidating = asyncio.create_task(memory.consolidate(scope))
            await model.reached()
            await memory.forget(scope, [cited[0]])
        assert numbers(await consolidating) == (0, 0, 0)
        assert len(await facts(memory, scope)) == CROWDED - 1
    assert holding(settings.data_dir, b"xylograph") == set()


# ---- by itself, without change, and back


async def test_a_dry_run_tells_the_same_and_changes_nothing(memory: Memory, scope: Scope, clock: Clock) -> None:
    await know(memory, scope, SHORT, LONG, Known("likes tea", -200, feature="tea"), Known("likes jam", feature="jam"))
    clock.move(days=31)
    before = [record async for record in memory.export(scope)]
    dry = await memory.consolidate(scope, dry_run=True)
    assert [record async for record in memory.export(scope)] == before
    done = await memory.consolidate(scope)
    assert numbers(dry) == numbers(done) == (1, 1, 0)
    assert numbers(await memory.consolidate(scope, dry_run=True)) == (0, 0, 0)


async def test_running_twice_changes_nothing_the_second_time(memory: Memory, scope: Scope, clock: Clock) -> None:
    await know(memory, scope, SHORT, LONG, Known("likes tea", -200, feature="tea"))
    clock.move(days=31)
    await memory.consolidate(scope)
    before = [record async for record in memory.export(scope)], await facts(memory, scope, history=True)
    report = await memory.consolidate(scope)
    assert (numbers(report), report.facts_before, report.facts_after) == ((0, 0, 0), 1, 1)
    assert ([record async for record in memory.export(scope)], await facts(memory, scope, history=True)) == before


async def test_what_was_merged_and_ended_can_be_taken_back_for_good(memory: Memory, scope: Scope, clock: Clock) -> None:
    await know(memory, scope, SHORT, LONG, Known("likes tea", -200, feature="tea"))
    clock.move(days=31)
    before = await facts(memory, scope)
    await memory.consolidate(scope)
    made = await decided(memory, scope, CONSOLIDATION)
    assert len(made) == 3
    for decision in made:
        await memory.undo(scope, decision.seq)
    assert await facts(memory, scope) == before
    clock.move(days=1)
    for _ in range(2):
        assert numbers(await memory.consolidate(scope)) == (0, 0, 0)
    assert await facts(memory, scope) == before
    assert len(await decided(memory, scope, CONSOLIDATION)) == 3
    [undone] = [one for one in await decided(memory, scope, HAND) if one.slot == made[-1].slot][-1:]
    await memory.undo(scope, undone.seq)
    assert len(await facts(memory, scope, history=True)) == 3


@pytest.mark.parametrize("gone", [0, 1])
async def test_forgetting_a_source_of_a_merge_takes_the_merge_back_to_the_last_byte(
    memory: Memory, scope: Scope, settings: Settings, gone: int
) -> None:
    known = [Known("likes xylographs of whales", -20), Known("likes xylographs of whales in 木刻 style", -10)]
    cited = await know(memory, scope, *known)
    assert numbers(await memory.consolidate(scope)) == (1, 0, 0)
    await memory.forget(scope, [cited[gone]])
    [left] = await facts(memory, scope, history=True)
    assert (left.value, left.citations, left.valid_to) == (known[1 - gone].value, (cited[1 - gone],), None)
    if gone:
        assert holding(settings.data_dir, "木刻".encode()) == set()
    await memory.forget(scope, [cited[1 - gone]])
    assert await facts(memory, scope, history=True) == []
    assert holding(settings.data_dir, b"xylograph", "木刻".encode()) == set()


async def test_forgetting_a_source_of_what_a_model_merged_leaves_none_of_its_words(
    opening: Opening, scope: Scope, settings: Settings
) -> None:
    model = put_in_order()
    model.replies.append(
        lambda system, question: [delete(2), delete(3), add("likes xylographs", *numbered(model, 2, 3))]
    )
    async with opening(model=model) as memory:
        cited = await know(memory, scope, *crowd())
        await memory.consolidate(scope)
        assert len(await facts(memory, scope)) == CROWDED - 1
        await memory.forget(scope, [cited[2]])
        assert len(await facts(memory, scope)) == CROWDED - 1
        assert "likes dish number 3" in await values(memory, scope)
        assert holding(settings.data_dir, b"xylograph") == set()


async def _end(memory: Memory, scope: Scope, fact: Feature) -> None:
    await memory.end(scope, fact.id)


async def _correct(memory: Memory, scope: Scope, fact: Feature) -> None:
    await memory.correct(scope, fact.category, fact.tag, fact.name, "likes engravings")


async def _extract(memory: Memory, scope: Scope, fact: Feature) -> None:
    await memory.add(scope, [Message("Not any more, I tell you")])
    await memory.consolidate(scope)


@pytest.mark.parametrize("how", [_end, _correct, _extract])
@pytest.mark.parametrize("named", [True, False])
async def test_forgetting_what_an_ended_fact_rested_on_leaves_none_of_its_words(
    opening: Opening, scope: Scope, settings: Settings, how: Callable[..., Any], named: bool
) -> None:
    value = "likes old xylographs"
    ending = {"command": "delete", "tag": "likes", "feature": "xylographs", "citations": [1]}
    async with opening(model=ScriptedModel([ending | ({"value": value} if named else {})])) as memory:
        [said] = await know(memory, scope, Known(value, feature="xylographs"))
        [fact] = await facts(memory, scope)
        await how(memory, scope, fact)
        assert value not in await values(memory, scope)
        assert holding(settings.data_dir, b"xylograph")
        await memory.forget(scope, [said])
        assert value not in await values(memory, scope, history=True)
    if how is not _correct:  # there a person gave the slot another value, under the same name
        assert holding(settings.data_dir, b"xylograph") == set()


@pytest.mark.parametrize("order", [0, 1])
async def test_a_fact_and_its_episode_forgotten_one_by_one_leave_none_of_its_words(
    opening: Opening, scope: Scope, settings: Settings, order: int
) -> None:
    ending = {"command": "delete", "tag": "likes", "feature": "xylographs", "citations": [1]}
    async with opening(model=ScriptedModel([ending])) as memory:
        [said] = await know(memory, scope, Known("likes old xylographs", feature="xylographs"))
        [fact] = await facts(memory, scope)
        await _extract(memory, scope, fact)
        ids: Sequence[str] = (fact.id, said)
        await memory.forget(scope, [ids[order]])
        if order == 0:
            await memory.forget(scope, [said])
        assert holding(settings.data_dir, b"xylograph") == set()


async def test_it_starts_by_itself_after_so_many_episodes(opening: Opening, scope: Scope, settings: Settings) -> None:
    async with opening(settings=settings.model_copy(update={"consolidate_episodes": 4})) as memory:
        await know(memory, scope, SHORT, LONG)
        await memory.add(scope, [Message("one more")])
        assert len(await facts(memory, scope)) == 2
        await memory.add(scope, [Message("and one that makes four")])
        assert await values(memory, scope) == [LONG.value]
