"""Links: which episodes are found alike when they are indexed, and what is found over them."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from conftest import Opening

from mcp_memory.links import LOOKED_BACK
from mcp_memory.memory import Memory
from mcp_memory.settings import Settings, WeightSettings
from mcp_memory.store.sqlite import FILE_NAME
from mcp_memory.types import Message, Question, Scope, Selection

pytestmark = pytest.mark.anyio

DAY = datetime(2026, 1, 5, 9, tzinfo=UTC)


def told(*contents: str, first: int = 0) -> list[Message]:
    """Each in a session of its own, so that no neighbour lends anything."""
    return [
        Message(content, session_id=f"s{first + i}", occurred_at=DAY + timedelta(days=first + i))
        for i, content in enumerate(contents)
    ]


def linked(settings: Settings) -> set[tuple[str, str]]:
    """The pairs of contents that are linked, in both directions as they are kept."""
    with closing(sqlite3.connect(settings.data_dir / FILE_NAME)) as plain:
        return set(
            plain.execute(
                "SELECT CAST(a.body AS TEXT) ->> '$.content', CAST(b.body AS TEXT) ->> '$.content' "
                "FROM links JOIN texts a ON a.position = seq JOIN texts b ON b.position = other"
            )
        )


FERRY, AGAIN, SOUP = (
    "The ferry to Texel leaves at nine",
    "The ferry to Texel leaves at nine sharp",
    "Lentil soup wants a bay leaf",
)


async def test_what_is_alike_is_linked_in_both_directions(memory: Memory, scope: Scope, settings: Settings) -> None:
    await memory.add(scope, told(FERRY, SOUP))
    await memory.add(scope, told(AGAIN, first=2))
    assert linked(settings) == {(FERRY, AGAIN), (AGAIN, FERRY)}


async def test_one_call_links_what_it_brings(memory: Memory, scope: Scope, settings: Settings) -> None:
    await memory.add(scope, told(FERRY, SOUP, AGAIN))
    assert linked(settings) == {(FERRY, AGAIN), (AGAIN, FERRY)}


async def test_a_shared_greeting_links_nothing(memory: Memory, scope: Scope, settings: Settings) -> None:
    greeting = "Good morning dear."
    await memory.add(
        scope, told(f"{greeting} The ferry leaves at nine. Hurry!", f"{greeting} Lentil soup wants a leaf. Enjoy!")
    )
    assert linked(settings) == set()


async def test_only_the_latest_of_the_own_scope_are_compared(memory: Memory, scope: Scope, settings: Settings) -> None:
    others = [hashlib.sha256(bytes([i])).hexdigest() for i in range(LOOKED_BACK)]
    await memory.add(Scope("org", "project", "bo"), told(FERRY))
    await memory.add(scope, told(SOUP, *others, f"{SOUP}!"))
    await memory.add(scope, told(AGAIN, first=LOOKED_BACK + 2))
    assert linked(settings) == set()


async def test_forgetting_takes_the_links_along(memory: Memory, scope: Scope, settings: Settings) -> None:
    added = await memory.add(scope, told(FERRY, AGAIN))
    await memory.forget(scope, [added.stored[0].episode.id])
    with closing(sqlite3.connect(settings.data_dir / FILE_NAME)) as plain:
        assert plain.execute("SELECT count(*) FROM links").fetchone() == (0,)


async def test_a_rebuild_finds_the_same_links(memory: Memory, scope: Scope, settings: Settings) -> None:
    await memory.add(scope, told(FERRY, SOUP, AGAIN))
    before = linked(settings)
    await memory.rebuild(scope, "vectors/hashing:256", lambda left: None)
    assert linked(settings) == before != set()


async def test_what_is_linked_to_a_hit_joins_below(opening: Opening, scope: Scope, settings: Settings) -> None:
    hit, beside = (
        "violin by the yellow zebra crossing near the school gate",
        "by the yellow zebra crossing near the school gate",
    )
    nearer = [f"viol{hashlib.sha256(bytes([i])).hexdigest()[:12]}" for i in range(120)]
    query = Question("violin", limit=50, expand=0)
    async with opening() as memory:
        await memory.add(scope, told(*nearer, hit, beside))
        hits = (await memory.search(scope, query)).found.hits
        assert hits[0].episode.content == hit
        [joined] = [one for one in hits if "links" in one.why]
        assert joined.episode.content == beside
        assert joined.score < hits[0].score / 2
    off = settings.model_copy(update={"weights": WeightSettings(links=0)})
    async with opening(settings=off) as memory:
        assert beside not in [one.episode.content for one in (await memory.search(scope, query)).found.hits]


async def test_a_link_leads_to_no_episode_that_the_selection_leaves_out(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, told(FERRY, AGAIN, SOUP))
    answer = await memory.search(scope, Question("ferry to Texel", Selection(session_id="s0")))
    assert [hit.episode.content for hit in answer.found.hits] == [FERRY]


async def test_an_older_file_gets_the_table(opening: Opening, scope: Scope, settings: Settings) -> None:
    async with opening() as memory:
        await memory.add(scope, told(FERRY))
    with closing(sqlite3.connect(settings.data_dir / FILE_NAME)) as plain:
        plain.execute("DROP TABLE links")
        plain.execute("ALTER TABLE episodes DROP COLUMN accesses")
        plain.execute("PRAGMA user_version = 5")
        plain.commit()
    async with opening() as memory:
        await memory.add(scope, told(AGAIN, first=1))
        assert len((await memory.search(scope, Question("ferry"))).found.hits) == 2
    assert linked(settings) == {(FERRY, AGAIN), (AGAIN, FERRY)}
