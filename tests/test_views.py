"""How the views follow the log: late, twice, under another embedder, while something is forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from conftest import Opening

from mcp_memory import memory as memory_module
from mcp_memory.memory import Memory
from mcp_memory.protocols import Tx
from mcp_memory.settings import Settings
from mcp_memory.testing import WAIT_SECONDS, Clock, ObedientEmbedder
from mcp_memory.types import Message, Question, Scope

pytestmark = pytest.mark.anyio

VIEW = "vectors/obedient:256"
MORNING = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a held embedder waits in vain: it need not take long."""
    monkeypatch.setattr(memory_module, "ADD_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(memory_module, "SEARCH_WAIT_SECONDS", 5.0)


def turn(minute: float, content: str, session_id: str = "s") -> Message:
    return Message(content, session_id=session_id, occurred_at=MORNING + timedelta(minutes=minute))


async def caught_up(memory: Memory, scope: Scope) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await memory.lags(scope):
            await memory.views.catch_up(scope, within=0.05)


async def derivatives(memory: Memory, scope: Scope, name: str = "obedient:256") -> int:
    return await memory.store.read(scope, lambda tx: tx.vectors(name).count())


async def contents(memory: Memory, scope: Scope, query: str) -> list[str]:
    return [hit.episode.content for hit in (await memory.search(scope, Question(query))).found.hits]


# ---- an embedder that fails


async def test_a_failing_embedder_never_fails_add_and_words_find_at_once(opening: Opening, scope: Scope) -> None:
    embedder = ObedientEmbedder()
    embedder.failing = "the endpoint answers 503"
    async with opening(embedder=embedder) as memory:
        added = await memory.add(scope, [Message("The heron stands in the reeds")])
        assert not added.stored[0].duplicate
        assert [(lag.view, lag.episodes, lag.reason) for lag in added.lags] == [(VIEW, 1, "the endpoint answers 503")]
        answer = await memory.search(scope, Question("heron"))
        assert [hit.episode.content for hit in answer.found.hits] == ["The heron stands in the reeds"]
        assert any(lag.view == VIEW and "503" in lag.reason for lag in answer.lags)


async def test_a_failed_embedder_is_asked_again_only_after_a_while_and_then_nothing_is_missing(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    embedder = ObedientEmbedder()
    embedder.failing = "down"
    async with opening(embedder=embedder) as memory:
        await memory.add(scope, [Message("The heron stands in the reeds")])
        calls = embedder.calls
        await memory.add(scope, [Message("A kingfisher dives")])
        assert embedder.calls == calls
        embedder.failing = ""
        await memory.search(scope, Question("heron"))
        assert embedder.texts == []
        clock.move(minutes=15)
        answer = await memory.search(scope, Question("heronn"))
        assert answer.lags == ()
        assert "meaning" in answer.found.hits[0].why
        assert "The heron stands in the reeds" in embedder.texts


async def test_one_text_that_cannot_be_embedded_holds_nobody_up_for_ever(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    class Picky(ObedientEmbedder):
        def embed(self, texts: list[str], purpose: Any) -> Any:
            self.failing = "too hot" if any("lava" in text for text in texts) else ""
            return super().embed(texts, purpose)

    async with opening(embedder=Picky()) as memory:
        await memory.add(scope, [turn(i, f"text {i}") for i in range(20)] + [turn(90, "lava", "t")])
        for _ in range(12):
            clock.move(minutes=15)
            await memory.views.catch_up(scope, within=5.0)
        [lag] = await memory.lags(scope)
        assert lag.episodes == 1
        assert "too hot" in lag.reason


async def test_what_another_process_left_behind_is_caught_up_by_a_search(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    broken, whole = ObedientEmbedder(), ObedientEmbedder()
    broken.failing = "killed"
    async with opening(embedder=broken) as memory:
        await memory.add(scope, [Message("The heron stands in the reeds")])
    clock.move(hours=1)
    async with opening(embedder=whole) as memory:
        answer = await memory.search(scope, Question("heronn"))
        assert answer.lags == ()
        assert len(answer.found.hits) == 1


async def test_the_background_catches_up_without_being_called(opening: Opening, scope: Scope, clock: Clock) -> None:
    broken, whole = ObedientEmbedder(), ObedientEmbedder()
    broken.failing = "killed"
    async with opening(embedder=broken) as memory:
        await memory.add(scope, [Message("The heron stands in the reeds")])
    clock.move(hours=1)
    async with opening(embedder=whole, background=True) as memory, asyncio.timeout(WAIT_SECONDS):
        while await memory.lags(scope):
            await asyncio.sleep(0.01)
    assert "The heron stands in the reeds" in whole.texts


# ---- another embedder


async def test_the_old_embedder_serves_while_the_new_one_is_being_filled(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    async with opening() as memory:  # hashing:256
        await memory.add(scope, [Message("The heron stands in the reeds")])
    new = ObedientEmbedder()
    new.failing = "not ready"
    async with opening(embedder=new) as memory:
        answer = await memory.search(scope, Question("heronn"))
        assert [hit.episode.content for hit in answer.found.hits] == ["The heron stands in the reeds"]
        assert any(lag.view == VIEW for lag in answer.lags)
        new.failing = ""
        clock.move(minutes=15)
        answer = await memory.search(scope, Question("heronnn"))
        assert answer.lags == ()
        assert "heronnn" in new.queries
        assert await derivatives(memory, scope) == await derivatives(memory, scope, "hashing:256")


async def test_the_old_embedder_goes_on_following_while_the_new_one_is_being_filled(
    opening: Opening, scope: Scope
) -> None:
    async with opening() as memory:
        await memory.add(scope, [Message("The heron stands in the reeds")])
    new = ObedientEmbedder()
    new.failing = "not ready"
    async with opening(embedder=new) as memory:
        await memory.add(scope, [Message("A kingfisher dives")])
        assert (await contents(memory, scope, "kingfischer"))[:1] == ["A kingfisher dives"]


async def test_an_old_embedder_that_cannot_be_loaded_leaves_words_and_what_is_filled(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    async with opening(embedder=ObedientEmbedder("gone:256")) as memory:
        await memory.add(scope, [Message("The heron stands in the reeds")])
    new = ObedientEmbedder("new:64", 64)
    new.failing = "not ready"
    async with opening(embedder=new) as memory:
        answer = await memory.search(scope, Question("heron"))
        assert len(answer.found.hits) == 1
        assert answer.lags
        new.failing = ""
        clock.move(minutes=15)
        assert (await memory.search(scope, Question("heronn"))).found.hits


async def test_two_clients_with_different_embedders_work_side_by_side_and_forgetting_clears_both(
    opening: Opening, scope: Scope
) -> None:
    small, large = ObedientEmbedder("a:64", 64), ObedientEmbedder("b:512", 512)
    async with opening(embedder=small) as one, opening(embedder=large) as other:
        first = await one.add(scope, [Message("The heron stands in the reeds")])
        await other.add(scope, [Message("A kingfisher dives")])
        for memory in (one, other):
            assert (await contents(memory, scope, "kingfischer"))[:1] == ["A kingfisher dives"]
            assert (await contents(memory, scope, "heronn"))[:1] == ["The heron stands in the reeds"]
        await one.forget(scope, [first.stored[0].episode.id])
        for memory in (one, other):
            assert await contents(memory, scope, "heron in the reeds") in ([], ["A kingfisher dives"])
            await caught_up(memory, scope)
        assert await derivatives(one, scope, "a:64") == await derivatives(one, scope, "b:512") == 2


# ---- deriving again


async def standing(memory: Memory, scope: Scope) -> Any:
    """What the views answer, as plain values."""

    def look(tx: Tx) -> Any:
        decisions = sorted(repr(decision.command) for decision in tx.decisions.after())
        return (
            decisions,
            tx.words.totals(),
            tx.vectors("hashing:256").count(),
            tx.summaries.of("s"),
            tx.summaries.of(""),
        )

    queries = ("tea", "where do I live", "咖啡", "seats", "reeds heron")
    answers = [await memory.search(scope, Question(query)) for query in queries]
    searched = [[(hit.episode.id, round(hit.score, 9), hit.around) for hit in answer.found.hits] for answer in answers]
    window = await memory.session(scope, "s")
    facts, _ = await memory.profile(scope, history=True)
    return searched, window, sorted(repr(asdict(fact)) for fact in facts), await memory.store.read(scope, look)


@pytest.mark.parametrize("view", ["words", "rules", "summary", "vectors/hashing:256"])
async def test_a_view_derived_again_gives_the_same_answers(
    settings: Settings, opening: Opening, scope: Scope, view: str
) -> None:
    said = [
        "I live in Ghent", "I love tea and hiking", "I used to prefer window seats, but now I prefer aisle seats",
        "我喜欢喝咖啡", "I gave up tea", "I moved from Ghent to Turku", "The heron stands in the reeds",
        "My name is Ines",
    ]  # fmt: skip
    async with opening(settings=settings.model_copy(update={"window_tokens": 100})) as memory:
        added = await memory.add(scope, [turn(i, content) for i, content in enumerate(said)])
        await memory.add(scope, [turn(100 + i, f"filler sentence number {i} about the reeds") for i in range(12)])
        await memory.add(scope, [turn(2.5, "I live in Bruges"), turn(90, "Not in a session", "")])
        await memory.forget(scope, [added.stored[6].episode.id])
        await memory.consolidate(scope)
        before = await standing(memory, scope)
        left: list[int] = []
        await memory.rebuild(scope, view, left.append)
        assert left[0] == 21
        assert left[-1] == 0
        assert await standing(memory, scope) == before


async def test_a_view_with_an_old_failure_can_be_rebuilt_at_once(opening: Opening, scope: Scope) -> None:
    embedder = ObedientEmbedder()
    async with opening(embedder=embedder) as memory:
        embedder.failing = "down"
        await memory.add(scope, [Message("The heron stands in the reeds")])
        embedder.failing = ""
        await memory.rebuild(scope, VIEW, lambda left: None)
        assert await memory.lags(scope) == []


async def test_what_was_derived_before_something_was_forgotten_is_not_applied(opening: Opening, scope: Scope) -> None:
    embedder = ObedientEmbedder()
    async with opening(embedder=embedder) as memory:
        with embedder.held():
            added = await memory.add(scope, [turn(0, "The heron stands in the reeds"), turn(1, "A kingfisher dives")])
            await embedder.asked()
            gone = added.stored[0].episode
            await memory.forget(scope, [gone.id])
        await caught_up(memory, scope)
        assert await derivatives(memory, scope) == 2

        def indexed(tx: Tx) -> list[int]:
            found: list[int] = tx.vectors("obedient:256").close(np.ones(256, np.float32), 9, None, 99).seqs.tolist()
            return found

        assert await memory.store.read(scope, indexed) == [added.stored[1].episode.seq]


@pytest.mark.parametrize("paid", [False, True])
async def test_two_memories_on_one_file_do_not_apply_a_batch_twice(opening: Opening, scope: Scope, paid: bool) -> None:
    embedders = [ObedientEmbedder(paid=paid), ObedientEmbedder(paid=paid)]
    async with opening(embedder=embedders[0]) as one, opening(embedder=embedders[1]) as other:
        with embedders[0].held(), embedders[1].held():
            await one.add(scope, [turn(i, f"The heron number {i} stands") for i in range(5)])
            await embedders[0].asked()
            await other.views.catch_up(scope, within=0.2)
            if not paid:
                await embedders[1].asked()
        await caught_up(one, scope)
        assert await derivatives(one, scope) == 10
        if paid:
            assert embedders[1].calls == 0
        assert len((await other.search(scope, Question("heron"))).found.hits) == 5


async def test_a_turn_between_two_others_derives_the_context_of_the_later_again(opening: Opening, scope: Scope) -> None:
    embedder = ObedientEmbedder()
    async with opening(embedder=embedder) as memory:
        await memory.add(scope, [turn(0, "first"), turn(10, "third")])
        assert "first\nthird" in embedder.texts
        added = await memory.add(scope, [turn(5, "second")])
        await memory.search(scope, Question("first"))
        assert "first\nsecond" in embedder.texts
        assert "second\nthird" in embedder.texts
        embedder.texts.clear()
        await memory.forget(scope, [added.stored[0].episode.id])
        await memory.search(scope, Question("first"))
        assert "first\nthird" in embedder.texts
        assert not any("second" in text for text in embedder.texts)
        assert await derivatives(memory, scope) == 4


async def test_a_turn_in_a_long_session_lets_only_its_neighbour_be_derived_again(
    opening: Opening, scope: Scope
) -> None:
    embedder = ObedientEmbedder()
    async with opening(embedder=embedder) as memory:
        await memory.add(scope, [turn(i, f"turn {i}") for i in range(1, 60)])
        await caught_up(memory, scope)
        embedder.texts.clear()
        added = await memory.add(scope, [turn(0, "turn 0")])
        await memory.search(scope, Question("turn"))
        assert len(embedder.texts) <= 4
        embedder.texts.clear()
        await memory.forget(scope, [added.stored[0].episode.id])
        await memory.search(scope, Question("turn"))
        assert len(embedder.texts) <= 2
