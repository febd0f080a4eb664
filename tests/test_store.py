"""The contract of any store. Another one joins by a line in `STORES`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import anyio
import numpy as np
import numpy.typing as npt
import pytest

from mcp_memory import filters
from mcp_memory.errors import InvalidFilter
from mcp_memory.protocols import Store, Tx
from mcp_memory.store import vectors as vectors_module
from mcp_memory.store.sqlite import SQLiteStore
from mcp_memory.store.sqlite import Tx as SQLiteTx
from mcp_memory.testing import Clock
from mcp_memory.types import (
    AddFeature,
    Compare,
    DeleteFeature,
    Derivative,
    Document,
    In,
    Message,
    Scope,
    Selection,
    Stored,
    Summary,
)

pytestmark = pytest.mark.anyio

T = TypeVar("T")

Making = Callable[[Path, Clock], Store]


class IndexedStore(SQLiteStore):
    """Every question is asked twice: the first time the index is asked for, the second time it answers."""

    async def read(self, scope: Scope, function: Callable[[SQLiteTx], T]) -> T:
        await super().read(scope, function)
        await anyio.to_thread.run_sync(self.indexes.settle)
        return await super().read(scope, function)


STORES: dict[str, Making] = {
    "sqlite": lambda folder, clock: SQLiteStore(folder, now=clock, scale=False),
    "sqlite-without-extensions": lambda folder, clock: SQLiteStore(folder, now=clock, extensions=False, scale=False),
    "sqlite-with-scale": lambda folder, clock: IndexedStore(folder, now=clock),
}

HOSTILE = [
    "ines", "Ines", "INES", " ines", "ines ", "in_s", "in%", "%", "_", "*", "?", "", "'", "''", '"', "ines'--", "x';--",
    "x) OR 1=1 --", "../ines", "ines/..", "ines\\", "null", "NULL", "None", "nan", "true", "0", "00", "1e1", "10",
    "in\u00e9s", "ine\u0301s", "\uff49nes", "in\u200bes", "\u0456nes", "用户", "用戶", "😀",
    "ines\U0001f600", "i" * 1_000, "i" * 999,
]  # fmt: skip
"""Names that a careless comparison takes for one another, or for a part of the statement."""


@pytest.fixture(params=list(STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    store = STORES[request.param](tmp_path / "data", clock)
    yield store
    await store.close()


async def append(store: Store, scope: Scope, *messages: Message | str) -> list[Stored]:
    said = [Message(message) if isinstance(message, str) else message for message in messages]
    return await store.write(scope, lambda tx: tx.log.append(said))


async def seqs(store: Store, scope: Scope, *messages: Message | str) -> list[int]:
    return [stored.episode.seq for stored in await append(store, scope, *messages)]


async def select(store: Store, scope: Scope, **selection: Any) -> list[str]:
    if isinstance(selection.get("filter"), str):
        selection["filter"] = filters.parse(selection["filter"])
    chosen = Selection(**selection)
    return await store.read(scope, lambda tx: [episode.content for episode in tx.log.at(tx.log.selected(chosen))])


# ---- the log


async def test_an_episode_comes_back_with_every_field_it_was_given(store: Store, scope: Scope, clock: Clock) -> None:
    said = Message(
        content="He said: \"it's 5 o'clock\" — 五点了\n\tok 😀",
        role="assistant",
        speaker="Zoë 李",
        occurred_at=datetime(2023, 5, 8, 13, 56, 0, 1, tzinfo=UTC),
        agent_id="agent-7",
        session_id="s/1",
        kind="image",
        produced_for="Bo",
        importance=0.75,
        category="preference",
        tags=("a b", "旅行"),
        entities=("Ghent",),
        blocks=({"type": "image", "caption": "a canal", "uri": "file:x"},),
        metadata={"topic": "clocks", "n": 3, "x": 1.5, "deep": {"list": [1, None, "é"]}, "yes": True},
        expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        learn=False,
    )
    [stored] = await append(store, scope, said)
    assert not stored.duplicate
    episode = await store.read(scope, lambda tx: tx.log.episode(stored.episode.id))
    assert episode is not None
    assert episode == stored.episode
    for name in (
        "content", "role", "speaker", "occurred_at", "agent_id", "session_id", "kind", "produced_for", "importance",
        "category", "tags", "entities", "blocks", "metadata", "expires_at", "learn",
    ):  # fmt: skip
        assert getattr(episode, name) == getattr(said, name), name
    assert episode.created_at == clock()
    assert episode.id.startswith("e")


async def test_what_was_not_stamped_was_said_when_it_was_stored(store: Store, scope: Scope, clock: Clock) -> None:
    [stored] = await append(store, scope, "now")
    assert stored.episode.occurred_at == stored.episode.created_at == clock()


async def test_positions_only_grow_over_all_scopes_and_are_never_given_twice(store: Store, scope: Scope) -> None:
    other = replace(scope, user="bo")
    given = await seqs(store, scope, "one", "two")
    given += await seqs(store, other, "three")
    await store.write(other, lambda tx: tx.log.remove([given[-1]]))
    given += await seqs(store, scope, "four")
    given.append(
        await store.write(
            scope, lambda tx: tx.decisions.append("hand", AddFeature("profile", "likes", "tea", "tea"), 1, tx.now)
        )
    )
    given += await seqs(store, scope, "five")
    assert given == sorted(set(given))
    assert await store.read(scope, lambda tx: tx.log.last()) == given[-1]
    assert await store.read(other, lambda tx: tx.log.last()) == 0


async def test_the_log_is_read_on_from_a_position_in_order(store: Store, scope: Scope) -> None:
    given = await seqs(store, scope, *(f"text {i}" for i in range(5)))
    read = await store.read(scope, lambda tx: [episode.seq for episode in tx.log.after(given[1], 2)])
    assert read == given[2:4]
    assert await store.read(scope, lambda tx: tx.log.count(given[1])) == 3


async def test_a_failing_transaction_leaves_nothing(store: Store, scope: Scope) -> None:
    await seqs(store, scope, "before")

    def fail(tx: Tx) -> None:
        tx.log.append([Message("half")])
        raise LookupError("stop")

    with pytest.raises(LookupError):
        await store.write(scope, fail)
    assert await select(store, scope) == ["before"]
    assert await seqs(store, scope, "after")


async def test_a_savepoint_fails_alone(store: Store, scope: Scope) -> None:
    def try_two(tx: Tx) -> None:
        tx.log.append([Message("kept")])
        with suppress(LookupError), tx.savepoint():
            tx.log.append([Message("dropped")])
            raise LookupError

    await store.write(scope, try_two)
    assert await select(store, scope) == ["kept"]


async def test_decisions_keep_their_source_command_and_citations(store: Store, scope: Scope) -> None:
    cited = await seqs(store, scope, "I like tea", "I gave up tea")
    commands = [
        AddFeature("profile", "likes", "tea", "likes tea", (cited[0],), single=True, importance=0.4, confidence=0.9),
        DeleteFeature("profile", "likes", "tea", "", (cited[1],)),
    ]
    for command in commands:
        await store.write(scope, lambda tx, command=command: tx.decisions.append("rules", command, 1, tx.now))
    decisions = await store.read(scope, lambda tx: tx.decisions.after())
    assert [decision.command for decision in decisions] == commands
    assert {decision.source for decision in decisions} == {"rules"}
    assert await store.read(scope, lambda tx: tx.decisions.of("hand")) == []
    assert await store.write(scope, lambda tx: tx.decisions.remove_unsupported([cited[0]])) == [1]
    assert [decision.command for decision in await store.read(scope, lambda tx: tx.decisions.after())] == commands[1:]


async def test_a_tombstone_stands_for_what_was_said_before_it(store: Store, scope: Scope) -> None:
    [seq] = await seqs(store, scope, "x")
    await store.write(scope, lambda tx: tx.decisions.entomb([42]))
    assert await store.read(scope, lambda tx: tx.decisions.entombed(42)) > seq
    assert await store.read(scope, lambda tx: tx.decisions.entombed(43)) == 0
    assert await store.read(replace(scope, user="bo"), lambda tx: tx.decisions.entombed(42)) == 0
    [later] = await seqs(store, scope, "y")
    assert await store.read(scope, lambda tx: tx.decisions.entombed(42)) < later


async def test_an_exported_episode_is_restored_under_its_id_unless_it_was_forgotten(store: Store, scope: Scope) -> None:
    [kept, gone] = await append(store, scope, "kept", "gone")
    await store.write(scope, lambda tx: tx.log.remove([gone.episode.seq]))
    created = datetime(2020, 1, 1, tzinfo=UTC)

    async def restore(where: Scope, stored: Stored) -> Stored | None:
        message = Message(stored.episode.content, occurred_at=stored.episode.occurred_at)
        return await store.write(where, lambda tx: tx.log.restore(message, stored.episode.id, created))

    assert await restore(scope, gone) is None
    again = await restore(scope, kept)
    assert again is not None
    assert again.duplicate
    elsewhere = await restore(replace(scope, user="bo"), kept)
    assert elsewhere is not None
    assert elsewhere.episode.id != kept.episode.id
    assert elsewhere.episode.created_at == created
    assert await select(store, scope) == ["kept"]


# ---- the same utterance


SAID = Message("I keep bees", session_id="s", agent_id="a", speaker="Ann")


async def test_an_unstamped_utterance_again_within_ten_minutes_is_the_same(
    store: Store, scope: Scope, clock: Clock
) -> None:
    [first] = await append(store, scope, SAID)
    clock.move(minutes=9, seconds=59)
    [second] = await append(store, scope, SAID)
    assert second.duplicate
    assert second.episode.id == first.episode.id
    clock.move(minutes=10)
    [third] = await append(store, scope, SAID)
    assert not third.duplicate
    assert await select(store, scope) == ["I keep bees"] * 2


async def test_a_stamped_utterance_is_the_same_at_any_time_later(store: Store, scope: Scope, clock: Clock) -> None:
    stamped = replace(SAID, occurred_at=datetime(2024, 2, 29, 12, tzinfo=UTC))
    [first] = await append(store, scope, stamped)
    await append(store, scope, replace(SAID, role="assistant", content="Lovely"))
    clock.move(days=400)
    [second] = await append(store, scope, stamped)
    assert second.duplicate
    assert second.episode.id == first.episode.id
    elsewhere = datetime(2024, 2, 29, 13, tzinfo=timezone(timedelta(hours=1)))
    assert (await append(store, scope, replace(SAID, occurred_at=elsewhere)))[0].duplicate


async def test_a_stamp_of_this_very_moment_is_a_stamp(store: Store, scope: Scope, clock: Clock) -> None:
    stamped = replace(SAID, occurred_at=clock())
    await append(store, scope, stamped)
    clock.move(days=1)
    assert (await append(store, scope, stamped))[0].duplicate


async def test_stamped_and_unstamped_or_stamped_otherwise_are_two(store: Store, scope: Scope, clock: Clock) -> None:
    moment = clock() - timedelta(minutes=3)
    for said in (
        SAID,
        replace(SAID, occurred_at=moment),
        replace(SAID, occurred_at=moment + timedelta(microseconds=1)),
    ):
        assert not (await append(store, scope, said))[0].duplicate


@pytest.mark.parametrize("between", [{"role": "assistant"}, {"speaker": "Bo"}], ids=str)
async def test_an_utterance_after_somebody_else_spoke_is_new(store: Store, scope: Scope, between: Any) -> None:
    await append(store, scope, SAID)
    await append(store, scope, replace(SAID, content="Really?", **between))
    assert not (await append(store, scope, SAID))[0].duplicate


async def test_what_the_same_voice_or_another_session_said_between_does_not_count(store: Store, scope: Scope) -> None:
    await append(store, scope, SAID)
    await append(store, scope, replace(SAID, content="And wasps"))
    await append(store, scope, replace(SAID, role="assistant", session_id="other"))
    await append(store, replace(scope, user="bo"), replace(SAID, role="assistant"))
    assert (await append(store, scope, SAID))[0].duplicate


async def test_inside_one_list_nothing_is_a_repetition(store: Store, scope: Scope) -> None:
    stored = await append(store, scope, SAID, SAID)
    assert [one.duplicate for one in stored] == [False, False]
    stamped = replace(SAID, occurred_at=datetime(2024, 1, 1, tzinfo=UTC))
    assert [one.duplicate for one in await append(store, scope, stamped, stamped)] == [False, False]
    again = await append(store, scope, SAID, SAID)
    assert [one.duplicate for one in again] == [True, True]


@pytest.mark.parametrize(
    "changed",
    [{"metadata": {"x": 1}}, {"tags": ("t",)}, {"importance": 0.9}, {"category": "c"}, {"learn": False}],
    ids=str,
)
async def test_other_metadata_do_not_make_another_utterance(store: Store, scope: Scope, changed: Any) -> None:
    await append(store, scope, SAID)
    assert (await append(store, scope, replace(SAID, **changed)))[0].duplicate


@pytest.mark.parametrize(
    "changed",
    [{"session_id": "t"}, {"session_id": ""}, {"role": "assistant"}, {"speaker": ""}, {"agent_id": "b"},
     {"kind": "text"}, {"content": "I keep bees."}, {"content": "I keep  bees"}, {"content": "i keep bees"}],
    ids=str,
)  # fmt: skip
async def test_another_session_voice_agent_kind_or_text_is_another_utterance(
    store: Store, scope: Scope, changed: Any
) -> None:
    await append(store, scope, SAID)
    assert not (await append(store, scope, replace(SAID, **changed)))[0].duplicate


async def test_another_scope_is_another_utterance(store: Store, scope: Scope) -> None:
    await append(store, scope, SAID)
    for other in (replace(scope, user="bo"), replace(scope, project="p"), replace(scope, org="o")):
        assert not (await append(store, other, SAID))[0].duplicate


# ---- neighbours


def at(minutes: float, content: str, session_id: str = "s") -> Message:
    return Message(
        content, session_id=session_id, occurred_at=datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    )


async def chain(store: Store, scope: Scope, start: int) -> list[str]:
    """The contents from a position along its session."""

    def walk(tx: Tx) -> list[str]:
        said, seq = [], start
        while seq:
            [episode] = tx.log.at([seq])
            said.append(episode.content)
            _, after = tx.log.neighbours([seq])
            if after.get(seq):
                assert tx.log.neighbours([after[seq]])[0][after[seq]] == seq
            seq = after.get(seq, 0)
        return said

    return await store.read(scope, walk)


async def test_neighbours_follow_the_time_and_at_one_time_the_position(store: Store, scope: Scope) -> None:
    given = await seqs(store, scope, at(5, "d"), at(0, "a"), at(3, "b"), at(3, "c"), at(90, "e"), at(1, "no", "other"))
    await append(store, replace(scope, user="bo"), at(2, "not mine"))
    assert await chain(store, scope, given[1]) == ["a", "b", "c", "d", "e"]


async def test_the_unnamed_session_is_cut_where_the_silence_is_over_thirty_minutes(store: Store, scope: Scope) -> None:
    given = await seqs(
        store, scope, at(0, "a", ""), at(30, "b", ""), at(60 + 1 / 6e7, "c", ""), at(61, "d", ""), at(200, "e", "")
    )
    assert await chain(store, scope, given[0]) == ["a", "b"]
    assert await chain(store, scope, given[2]) == ["c", "d"]
    assert await chain(store, scope, given[4]) == ["e"]


async def test_the_neighbours_of_many_are_the_neighbours_of_each(store: Store, scope: Scope) -> None:
    given = await seqs(store, scope, *(at(i % 7, f"t{i}", "s" if i % 3 else "") for i in range(40)))
    together = await store.read(scope, lambda tx: tx.log.neighbours(given))
    for seq in given:
        alone = await store.read(scope, lambda tx, seq=seq: tx.log.neighbours([seq]))
        assert [links.get(seq) for links in alone] == [links.get(seq) for links in together]


# ---- selection


@pytest.fixture
async def chosen(store: Store, scope: Scope, clock: Clock) -> Scope:
    first = datetime(2025, 1, 1, tzinfo=UTC)
    rows = [
        Message("a", session_id="s", agent_id="x", occurred_at=first, metadata={"area": "food", "n": 3}),
        Message("b", session_id="s", role="assistant", occurred_at=first + timedelta(days=1), tags=("red", "blue")),
        Message("c", session_id="t", agent_id="x", kind="step", occurred_at=first + timedelta(days=2), speaker="Bo"),
        Message("d", occurred_at=first + timedelta(days=3), metadata={"area": "o'brien", "n": "3", "role": "chef"}),
        Message("e", session_id="s", expires_at=clock() + timedelta(hours=1), metadata={"area": "food"}),
    ]
    await append(store, scope, *rows)
    await append(
        store, replace(scope, user="bo"), Message("z", session_id="s", agent_id="x", metadata={"area": "food"})
    )
    return scope


@pytest.mark.parametrize(
    ("selection", "contents"),
    [
        ({}, "abcde"),
        ({"session_id": "s"}, "abe"),
        ({"session_id": "S"}, ""),
        ({"agent_id": "x"}, "ac"),
        ({"since": datetime(2025, 1, 2, tzinfo=UTC)}, "bcde"),
        ({"until": datetime(2025, 1, 2, tzinfo=UTC)}, "ab"),
        ({"since": datetime(2025, 1, 2, tzinfo=UTC), "until": datetime(2025, 1, 3, tzinfo=UTC)}, "bc"),
        ({"kinds": ("step",)}, "c"),
        ({"kinds": ("step", "message")}, "abcde"),
        ({"filter": "area = 'food'"}, "ae"),
        ({"filter": "metadata.area = 'food' AND n = 3"}, "a"),
        ({"filter": "n = '3'"}, "d"),
        ({"filter": "area IN ('food', 'o''brien')"}, "ade"),
        ({"filter": "area != 'food'"}, "d"),
        ({"filter": "role = 'assistant'"}, "b"),
        ({"filter": "metadata.role = 'chef'"}, "d"),
        ({"filter": "tags = 'blue'"}, "b"),
        ({"filter": "speaker = 'Bo'"}, "c"),
        ({"filter": "kind = 'step'", "agent_id": "x", "session_id": "s"}, ""),
        ({"filter": "importance = 0.5"}, "abcde"),
        ({"filter": "n > 2"}, "a"),
        ({"filter": "area LIKE 'f__d'"}, "ae"),
        ({"filter": "area IS NULL"}, "bc"),
        ({"filter": "NOT area = 'food'"}, "bcd"),
        ({"filter": "area NOT IN ('food')"}, "d"),
        ({"filter": "area NOT LIKE 'fo%'"}, "d"),
        ({"filter": "tags = 'red' OR speaker = 'Bo'"}, "bc"),
        ({"filter": "occurred_at < date('2025-01-03')"}, "ab"),
        ({"filter": "occurred_at <= date('2025-01-03')"}, "abc"),
        ({"filter": "expires_at IS NOT NULL"}, "e"),
        ({"filter": "content IN ('a', 'z') OR content > 'd'"}, "ae"),
        ({"filter": "NOT (role = 'user' AND NOT kind = 'step')", "since": datetime(2025, 1, 3, tzinfo=UTC)}, "c"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_selection_holds_what_it_says(store: Store, chosen: Scope, selection: Any, contents: str) -> None:
    assert "".join(await select(store, chosen, **selection)) == contents


async def test_what_is_expired_is_in_no_selection(store: Store, chosen: Scope, clock: Clock) -> None:
    clock.move(hours=1)
    assert "e" not in await select(store, chosen)
    assert await select(store, chosen, filter="area = 'food'") == ["a"]
    assert await store.read(chosen, lambda tx: len(tx.log.matching(Selection()) or [])) == 4
    assert await store.read(chosen, lambda tx: len(tx.log.selected(Selection(), expired=True))) == 5


async def test_the_ids_of_others_select_nothing(store: Store, chosen: Scope) -> None:
    other = replace(chosen, user="bo")
    theirs = await store.read(other, lambda tx: tx.log.at(tx.log.selected(Selection()))[0].id)
    assert await select(store, chosen, filter=f"id = '{theirs}'") == []
    assert await select(store, other, filter=f"id = '{theirs}'") == ["z"]
    assert await store.read(chosen, lambda tx: tx.log.episode(theirs)) is None


async def test_a_field_that_nobody_used_is_an_error_also_where_others_use_it(store: Store, chosen: Scope) -> None:
    with pytest.raises(InvalidFilter, match="colour"):
        await select(store, chosen, filter="colour = 'red'")
    with pytest.raises(InvalidFilter, match="n"):
        await select(store, replace(chosen, user="bo"), filter="n = 3")


async def test_the_newest_come_by_the_time_they_were_said(store: Store, chosen: Scope) -> None:
    page = await store.read(chosen, lambda tx: tx.log.newest(Selection(), 3, tx.log.position()))
    assert [episode.content for episode in page] == ["e", "d", "c"]
    rest = await store.read(
        chosen, lambda tx: tx.log.newest(Selection(), 3, tx.log.position(), (page[-1].occurred_at, page[-1].seq))
    )
    assert [episode.content for episode in rest] == ["b", "a"]


# ---- isolation


async def test_hostile_ids_are_all_different_and_each_finds_its_own(store: Store) -> None:
    scopes = [Scope(*parts) for name in HOSTILE for parts in (("o", "p", name), ("o", name, "u"), (name, "p", "u"))]
    scopes = list(dict.fromkeys(scopes))
    for number, one in enumerate(scopes):
        await append(store, one, Message(f"secret {number}", session_id=one.user, agent_id=one.project))
    for number, one in enumerate(scopes):
        assert await select(store, one) == [f"secret {number}"]
        assert await select(store, one, session_id=one.user) == [f"secret {number}"]
    assert sorted(map(repr, await store.scopes())) == sorted(map(repr, scopes))


async def test_hostile_session_and_agent_ids_select_exactly(store: Store, scope: Scope) -> None:
    await append(store, scope, *(Message(f"m{i}", session_id=name, agent_id=name) for i, name in enumerate(HOSTILE)))
    for number, name in enumerate(HOSTILE):
        if name:
            assert await select(store, scope, session_id=name) == [f"m{number}"]
            assert await select(store, scope, agent_id=name) == [f"m{number}"]
            assert await select(store, scope, filter=Compare("session_id", "=", name)) == [f"m{number}"]
            assert await select(store, scope, filter=In("agent_id", (name, "nobody"))) == [f"m{number}"]


async def test_the_parts_of_a_scope_cannot_be_moved_into_each_other(store: Store) -> None:
    await append(store, Scope("a", "b", "c"), "one")
    for other in (Scope("ab", "", "c"), Scope("a", "bc", ""), Scope("", "ab", "c"), Scope("a,b", "", "c")):
        assert await select(store, other) == []


async def test_removing_by_the_positions_of_another_scope_removes_nothing(store: Store, scope: Scope) -> None:
    given = await seqs(store, scope, Message("mine", metadata={"area": "food"}))
    other = replace(scope, user="bo")
    await seqs(store, other, "theirs")
    await store.write(other, lambda tx: tx.log.remove(given))
    assert await select(store, scope) == ["mine"]


async def test_a_scope_that_nobody_wrote_to_is_empty(store: Store) -> None:
    nobody = Scope("no", "bo", "dy")

    def look(tx: Tx) -> list[Any]:
        return [
            tx.log.last(), tx.log.count(),
            tx.log.selected(Selection()), tx.log.sessions(), tx.decisions.after(),
            tx.facts.all(),
            tx.words.postings(["x"], 10), tx.summaries.of(""), tx.embedders(), tx.epoch(), tx.vectors("v").count(),
        ]  # fmt: skip

    assert not any(await store.read(nobody, look))
    assert nobody not in await store.scopes()


# ---- cursors


async def test_a_cursor_moves_only_from_where_it_is(store: Store, scope: Scope) -> None:
    def move(expected: int, position: int) -> Callable[[Tx], bool]:
        return lambda tx: tx.cursors.advance("v", expected, position)

    assert await store.write(scope, move(0, 7))
    assert not await store.write(scope, move(0, 9))
    assert await store.write(scope, move(7, 9))
    assert await store.read(scope, lambda tx: tx.cursors.of("v").position) == 9
    assert await store.read(replace(scope, user="bo"), lambda tx: tx.cursors.of("v").position) == 0
    await store.write(scope, lambda tx: tx.cursors.reset("v", 3))
    assert await store.read(scope, lambda tx: tx.cursors.of("v").position) == 3


async def test_one_of_two_owners_holds_a_claim_until_it_ends(store: Store, scope: Scope, clock: Clock) -> None:
    def claim(owner: str) -> Callable[[Tx], bool]:
        return lambda tx: tx.cursors.claim("v", owner, clock() + timedelta(minutes=2))

    assert await store.write(scope, claim("one"))
    assert await store.write(scope, claim("one"))
    assert not await store.write(scope, claim("two"))
    clock.move(minutes=2, microseconds=1)
    assert await store.write(scope, claim("two"))
    assert not await store.write(scope, claim("one"))


async def test_a_step_ends_the_claim_and_forgets_the_failures(store: Store, scope: Scope, clock: Clock) -> None:
    await store.write(scope, lambda tx: tx.cursors.fail("v", "broken"))
    await store.write(scope, lambda tx: tx.cursors.claim("v", "one", clock() + timedelta(minutes=2)))
    await store.write(scope, lambda tx: tx.cursors.advance("v", 0, 1))
    cursor = await store.read(scope, lambda tx: tx.cursors.of("v"))
    assert (cursor.owner, cursor.failures, cursor.reason) == ("", 0, "")
    assert cursor.retry_at <= clock()


async def test_each_failure_doubles_the_wait_up_to_a_bound(store: Store, scope: Scope, clock: Clock) -> None:
    waits = []
    for _ in range(14):
        await store.write(scope, lambda tx: tx.cursors.fail("v", "broken"))
        cursor = await store.read(scope, lambda tx: tx.cursors.of("v"))
        waits.append((cursor.retry_at - clock()).total_seconds())
    assert waits[0] > 0
    assert waits[1:4] == [2 * wait for wait in waits[:3]]
    assert waits[-1] == waits[-2] <= 3_600
    assert cursor.reason == "broken"


async def test_a_view_set_back_has_no_old_failure(store: Store, scope: Scope) -> None:
    await store.write(scope, lambda tx: tx.cursors.fail("v", "broken"))
    await store.write(scope, lambda tx: tx.cursors.reset("v"))
    cursor = await store.read(scope, lambda tx: tx.cursors.of("v"))
    assert (cursor.failures, cursor.reason) == (0, "")


async def test_marks_are_kept_once_and_taken_away(store: Store, scope: Scope) -> None:
    given = await seqs(store, scope, "a", "b", "c")
    await store.write(scope, lambda tx: tx.cursors.mark("v", [*given, given[0]]))
    assert await store.read(scope, lambda tx: tx.cursors.marked("v", 2)) == given[:2]
    assert await store.read(scope, lambda tx: tx.cursors.marked("w", 2)) == []
    await store.write(scope, lambda tx: tx.cursors.unmark("v", given[:2]))
    assert await store.read(scope, lambda tx: tx.cursors.marked("v", 9)) == given[2:]


async def test_due_are_the_scopes_behind_whose_wait_is_over(store: Store, scope: Scope, clock: Clock) -> None:
    other = replace(scope, user="bo")
    [mine] = await seqs(store, scope, "a")
    await seqs(store, other, "b")
    assert await store.due(["v"]) == [scope, other]
    await store.write(scope, lambda tx: tx.cursors.advance("v", 0, mine))
    await store.write(other, lambda tx: tx.cursors.fail("v", "broken"))
    assert await store.due(["v"]) == []
    clock.move(hours=1)
    assert await store.due(["v"]) == [other]


async def test_the_epoch_of_a_scope_is_its_own(store: Store, scope: Scope) -> None:
    await seqs(store, scope, "a")
    before = await store.read(scope, lambda tx: tx.epoch())
    await store.write(replace(scope, user="bo"), lambda tx: tx.begin_epoch())
    assert await store.read(scope, lambda tx: tx.epoch()) == before
    await store.write(scope, lambda tx: tx.begin_epoch())
    assert await store.read(scope, lambda tx: tx.epoch()) > before


# ---- words


async def test_words_are_found_by_position_with_their_counts_inside_the_scope_only(store: Store, scope: Scope) -> None:
    other = replace(scope, user="bo")
    [first, second] = await seqs(store, scope, "a", "b")
    [theirs] = await seqs(store, other, "c")
    await store.write(
        scope, lambda tx: tx.words.put([Document(first, ["bee", "bee", "咖啡"]), Document(second, ["bee"])])
    )
    await store.write(other, lambda tx: tx.words.put([Document(theirs, ["bee", "wasp"])]))

    def postings(words: list[str], upto: int = 2**40) -> Callable[[Tx], list[list[tuple[int, int, int]]]]:
        return lambda tx: [
            sorted((int(s), int(c), int(n)) for s, c, n in zip(found.seqs, found.counts, found.lengths, strict=True))
            for found in tx.words.postings(words, upto)
        ]

    assert await store.read(scope, postings(["bee"])) == [[(first, 2, 3), (second, 1, 1)]]
    assert await store.read(scope, postings(["咖啡", "wasp"])) == [[(first, 1, 3)]]
    assert await store.read(scope, postings(["bee"], first)) == [[(first, 2, 3)]]
    assert await store.read(other, postings(["bee"])) == [[(theirs, 1, 2)]]
    assert await store.read(scope, lambda tx: tx.words.totals()) == (2, 2.0)
    assert await store.read(scope, lambda tx: tx.words.totals(first)) == (1, 3.0)
    await store.write(scope, lambda tx: tx.words.remove([first]))
    assert await store.read(scope, postings(["bee"])) == [[(second, 1, 1)]]
    assert await store.read(scope, lambda tx: tx.words.totals()) == (1, 1.0)
    await store.write(scope, lambda tx: tx.words.clear())
    assert await store.read(scope, postings(["bee"])) == []
    assert await store.read(other, postings(["bee"])) == [[(theirs, 1, 2)]]


# ---- vectors


Vector = npt.NDArray[np.float32]


def random_units(count: int, seed: int, dimensions: int = 32) -> Vector:
    drawn = np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


async def put_vectors(store: Store, scope: Scope, given: Sequence[int], units: Vector, name: str = "e") -> None:
    """Two sentences and one context an episode."""

    def put(tx: Tx) -> None:
        derivatives = [
            Derivative(kind, (seq,), "")
            for seq in given
            for kind in ("sentence", "sentence", "context")  # type: ignore[arg-type]
        ]
        tx.vectors(name).replace(list(given), derivatives, list(units[: len(derivatives)]))

    await store.write(scope, put)


Cosines = dict[int, tuple[float, float]]
"""Of each episode: the cosine of its best sentence, and of its context."""


async def close(
    store: Store, scope: Scope, query: Vector, limit: int = 10, within: list[int] | None = None, upto: int = 2**40
) -> Cosines:
    def compare(tx: Tx) -> Cosines:
        found = tx.vectors("e").close(query, limit, within, upto)
        cosines = zip(found.sentences.tolist(), found.contexts.tolist(), strict=True)
        return dict(zip(found.seqs.tolist(), cosines, strict=True))

    return await store.read(scope, compare)


def exact(
    given: Sequence[int], units: Vector, query: Vector, within: Sequence[int] | None = None, upto: int = 2**40
) -> Cosines:
    """The contract in a few lines: every episode compared."""
    similarities = (units[: 3 * len(given)].astype(np.float16).astype(np.float32) @ query).reshape(-1, 3).tolist()
    return {
        seq: (max(first, second), context)
        for seq, (first, second, context) in zip(given, similarities, strict=True)
        if seq <= upto and (within is None or seq in within)
    }


TIE = 0.01
"""What 8 bits a dimension can move a cosine by, in the few dimensions of these tests."""


def right(found: Cosines, expected: Cosines, limit: int = 10) -> None:
    """Only what is allowed, each with its cosines, and among it all of the `limit` that are nearest."""
    assert found.keys() <= expected.keys()
    for seq, cosines in found.items():
        for cosine, wanted in zip(cosines, expected[seq], strict=True):
            assert abs(max(0.0, cosine) - max(0.0, wanted)) < TIE
    closeness = sorted((max(cosines) for cosines in expected.values()), reverse=True)
    least = closeness[limit - 1] if len(closeness) >= limit else -1.0
    assert {seq for seq, cosines in expected.items() if max(cosines) > least + TIE} <= found.keys()


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "by the index or a scan"])
async def test_the_nearest_are_the_nearest_within_what_is_asked(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    given = await seqs(store, scope, *(f"t{i}" for i in range(200)))
    units = random_units(600, 1)
    other = replace(scope, user="bo")
    theirs = await seqs(store, other, *(f"u{i}" for i in range(50)))
    await put_vectors(store, scope, given[:120], units[:360])
    await put_vectors(store, other, theirs, random_units(150, 1))
    await put_vectors(store, scope, given[120:], units[360:])
    for number, query in enumerate(random_units(8, 2)):
        right(await close(store, scope, query), exact(given, units, query))
        within = given[number::7]
        right(await close(store, scope, query, within=within), exact(given, units, query, within))
        assert await close(store, scope, query, within=[]) == {}
        assert await close(store, scope, query, upto=given[0] - 1) == {}
        right(await close(store, scope, query, 1), exact(given, units, query), 1)
    assert await store.read(scope, lambda tx: tx.vectors("e").count()) == 600


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "by the index or a scan"])
async def test_what_came_later_does_not_crowd_out_what_is_asked_up_to_a_position(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    given = await seqs(store, scope, *(f"t{i}" for i in range(200)))
    units = random_units(600, 3)
    query = random_units(1, 4)[0]
    units[150:] = query + 0.05 * units[150:]  # everything after the fiftieth is closer than all before
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    await put_vectors(store, scope, given, units)
    right(await close(store, scope, query, upto=given[49]), exact(given, units, query, upto=given[49]))


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "by the index or a scan"])
async def test_a_filter_that_keeps_one_in_a_thousand_is_filled_all_the_same(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    said = [Message(f"t{i}", metadata={"rank": i % 1000, "half": i % 2}) for i in range(3_000)]
    given = await seqs(store, scope, *said)
    units = random_units(9_000, 5)
    query = random_units(1, 6)[0]
    rare = given[7::1000]
    near = np.repeat([seq not in rare for seq in given], 3)
    units[near] = query + 0.05 * units[near]  # whatever the filter leaves out is closer than what it keeps
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    await put_vectors(store, scope, given, units)
    selection = Selection(filters.parse("(rank >= 7 AND rank < 8 OR rank LIKE 'x') AND NOT half = 0"))
    within = await store.read(scope, lambda tx: tx.log.matching(selection))
    assert within == rare
    right(await close(store, scope, query, within=within), exact(given, units, query, within))
    assert (await close(store, scope, query, within=within)).keys() == set(rare)


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "by the index or a scan"])
async def test_one_kind_does_not_crowd_out_the_other(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    given = await seqs(store, scope, *(f"t{i}" for i in range(100)))
    units = random_units(300, 5)
    query = random_units(1, 6)[0]
    units[2::3] = query + 0.4 * units[2::3]  # every context is closer than every sentence
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    await put_vectors(store, scope, given, units)
    right(await close(store, scope, query), exact(given, units, query))


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "by the index or a scan"])
async def test_vectors_that_were_removed_or_replaced_are_not_found(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    given = await seqs(store, scope, *(f"t{i}" for i in range(60)))
    units = random_units(180, 7)
    await put_vectors(store, scope, given, units)
    query = units[30]  # the first sentence of the eleventh
    found = await close(store, scope, query)
    assert max(found, key=found.__getitem__) == given[10]

    def remove(tx: Tx) -> None:
        tx.vectors("e").remove(given[10:12])
        tx.begin_epoch()

    await store.write(scope, remove)
    left = [seq for seq in given if seq not in given[10:12]]
    kept = np.concatenate([units[:30], units[36:]])
    right(await close(store, scope, query), exact(left, kept, query))
    renewed = random_units(3, 8)
    await put_vectors(store, scope, left[:1], renewed)
    kept[:3] = renewed
    right(await close(store, scope, renewed[0]), exact(left, kept, renewed[0]))
    assert await store.read(scope, lambda tx: tx.vectors("e").count()) == len(kept)
    await store.write(scope, lambda tx: (tx.vectors("e").clear(), tx.begin_epoch()))
    assert await close(store, scope, query) == {}


async def test_a_vector_without_meaning_is_not_kept(store: Store, scope: Scope) -> None:
    [seq] = await seqs(store, scope, "x")
    broken = random_units(3, 9)
    broken[0], broken[1] = 0.0, np.nan
    await put_vectors(store, scope, [seq], broken)
    assert await store.read(scope, lambda tx: tx.vectors("e").count()) == 1
    [(sentence, context)] = (await close(store, scope, broken[2])).values()
    assert sentence == 0
    assert context > 0.99


async def test_a_context_goes_with_either_of_its_turns(store: Store, scope: Scope) -> None:
    [first, second] = await seqs(store, scope, "a", "b")
    derivatives = [Derivative("context", (first,), ""), Derivative("context", (second, first), "")]
    await store.write(
        scope, lambda tx: tx.vectors("e").replace([first, second], derivatives, list(random_units(2, 10)))
    )
    assert await store.write(scope, lambda tx: tx.vectors("e").remove([first])) == [second]
    assert await store.read(scope, lambda tx: tx.vectors("e").count()) == 0


async def test_embedders_of_one_scope_do_not_meet(store: Store, scope: Scope) -> None:
    [seq] = await seqs(store, scope, "x")
    await put_vectors(store, scope, [seq], random_units(3, 11), "small")
    await put_vectors(store, scope, [seq], random_units(3, 12, 64), "large")
    large = random_units(1, 13, 64)[0]
    found = await store.read(scope, lambda tx: tx.vectors("large").close(large, 5, None, 99))
    assert found.seqs.tolist() == [seq]
    await store.write(scope, lambda tx: tx.vectors("small").clear())
    assert await store.read(scope, lambda tx: tx.vectors("large").count()) == 3


async def test_summaries_are_one_a_session_and_go_with_any_of_its_episodes(store: Store, scope: Scope) -> None:
    [one, two] = await seqs(store, scope, Message("a", session_id="s"), Message("b", session_id="t"))
    for session, seq in (("s", one), ("s", one), ("t", two)):
        await store.write(scope, lambda tx, s=session, q=seq: tx.summaries.put(s, Summary(json.dumps(s), q)))
    assert await store.read(scope, lambda tx: tx.summaries.of("s")) == Summary('"s"', one)
    assert await store.write(scope, lambda tx: tx.summaries.remove([one])) == ["s"]
    assert await store.read(scope, lambda tx: tx.summaries.of("s")) is None
    assert await store.read(scope, lambda tx: tx.summaries.of("t")) is not None
