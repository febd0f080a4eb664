"""What is particular to the SQLite file: its index, its bytes, its soundness, its many processes."""

# ruff: noqa: ASYNC220, ASYNC240  (nobody else waits for a loop of these tests)

from __future__ import annotations

import itertools
import os
import random
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from conftest import Opening
from test_store import close, exact, put_vectors, random_units, right, seqs

from mcp_memory import filters
from mcp_memory.errors import StoreDamaged, StoreError, StoreTooNew
from mcp_memory.memory import Memory
from mcp_memory.protocols import Tx
from mcp_memory.settings import Settings
from mcp_memory.store import database, quantizer
from mcp_memory.store import vectors as vectors_module
from mcp_memory.store.schema import MIGRATIONS
from mcp_memory.store.sqlite import FILE_NAME, SQLiteStore
from mcp_memory.testing import Clock
from mcp_memory.types import Message, Question, Scope, Selection

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(settings: Settings) -> Path:
    return settings.data_dir / FILE_NAME


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def holding(folder: Path, *needles: bytes) -> set[tuple[str, bytes]]:
    """Which of these stand in which files."""
    return {(name, needle) for name, data in contents(folder).items() for needle in needles if needle in data}


# ---- the index beside the vectors


async def test_an_index_that_another_process_could_not_maintain_is_caught_up(
    tmp_path: Path, clock: Clock, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    units, given = random_units(900, 21), list[int]()
    for part, extensions in enumerate([True, False, True, False, False, True]):
        store = SQLiteStore(tmp_path, now=clock, extensions=extensions, scale=False)
        added = await seqs(store, scope, *(f"part {part} text {i}" for i in range(20)))
        await put_vectors(store, scope, added, units[3 * len(given) : 3 * len(given) + 60])
        given += added
        if part % 2:
            taken = given[part :: len(given) // 3]

            def remove(tx: Tx, taken: list[int] = taken) -> None:
                tx.vectors("e").remove(taken)
                tx.begin_epoch()

            await store.write(scope, remove)
            kept = [i for i, seq in enumerate(given) if seq not in taken]
            units[: 3 * len(kept)] = np.concatenate([units[3 * i : 3 * i + 3] for i in kept])
            given = [given[i] for i in kept]
        for query in random_units(4, part):
            right(await close(store, scope, query, 5), exact(given, units, query), 5)
        await store.close()


@pytest.mark.parametrize("extensions", [True, False])
async def test_a_slow_search_in_a_large_memory_says_how_long_it_took(
    tmp_path: Path, clock: Clock, scope: Scope, monkeypatch: pytest.MonkeyPatch, *, extensions: bool
) -> None:
    monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    store = SQLiteStore(tmp_path, now=clock, extensions=extensions, scale=False)
    await put_vectors(store, scope, await seqs(store, scope, *map(str, range(20))), random_units(60, 23))
    query = random_units(1, 24)[0]

    def note(tx: Tx) -> str:
        return tx.vectors("e").close(query, 5, None, 2**40).note

    assert await store.read(scope, note) == ""
    monkeypatch.setattr(vectors_module, "_SLOW_SECONDS", 0.0)
    assert re.search(r"took \d+\.\d s.*mcp-memory\[scale\]", await store.read(scope, note))
    await store.close()


async def test_two_processes_with_and_without_the_extension_find_the_same_at_the_same_time(
    tmp_path: Path, clock: Clock, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    stores = [SQLiteStore(tmp_path, now=clock, extensions=extensions, scale=False) for extensions in (True, False)]
    units, given = random_units(360, 22), list[int]()
    for turn in range(6):
        writer = stores[turn % 2]
        added = await seqs(writer, scope, *(f"{turn} {i}" for i in range(20)))
        await put_vectors(writer, scope, added, units[60 * turn : 60 * turn + 60])
        given += added
        for store in stores:
            for query in random_units(3, turn):
                right(await close(store, scope, query, 5), exact(given, units, query), 5)
    for store in stores:
        await store.close()


async def test_a_reader_of_an_older_snapshot_does_not_cost_a_newer_one_its_vectors(
    tmp_path: Path, clock: Clock, scope: Scope
) -> None:
    store = SQLiteStore(tmp_path, now=clock)
    given = await seqs(store, scope, *(f"t{i}" for i in range(20)))
    units = random_units(60, 23)
    await put_vectors(store, scope, given[:10], units[:30])
    query = units[45]
    begun, go_on = threading.Event(), threading.Event()

    def late(tx: Tx) -> int:
        vectors = tx.vectors("e")  # the snapshot is of now
        begun.set()
        assert go_on.wait(20)
        return len(vectors.close(query, 5, None, 2**40).seqs)

    async def meanwhile() -> None:
        def remove(tx: Tx) -> None:
            tx.vectors("e").remove(given[:1])
            tx.begin_epoch()

        await put_vectors(store, scope, given[10:], units[30:])
        await store.write(scope, remove)
        await close(store, scope, query, 5)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.read, scope, late)
        await anyio.to_thread.run_sync(begun.wait)
        await meanwhile()
        go_on.set()
    right(await close(store, scope, query, 5), exact(given[1:], units[3:], query), 5)
    await store.close()


# ---- forgetting


FILLER = ["harbour", "lantern", "gravel", "咖啡", "mitten", "orchard", "薄荷"]


async def populate(memory: Memory, scope: Scope, count: int) -> list[tuple[str, str]]:
    """Memories in random order, with a mark of each in whatever a user can hand in: (id, mark)."""
    drawn = random.Random(7)
    numbers = list(range(count))
    drawn.shuffle(numbers)
    marks, messages = [], []
    for number in numbers:
        mark = f"qz{number:04d}" + "".join(drawn.choices("bcdfghjkm", k=9))
        filler = " ".join(drawn.choices(FILLER, k=drawn.choice([3, 20, 20, 200])))
        marks.append(mark)
        messages.append(
            Message(
                f"I love {mark}. {filler} 秘密{mark}词。",
                session_id=f"session-{mark}" if number % 3 else "s",
                agent_id=f"agent-{mark}",
                speaker="" if number % 2 else f"speaker-{mark}",
                tags=(f"tag-{mark}",),
                metadata={f"key-{mark}": f"value-{mark}"},
                category=f"category-{mark}",
            )
        )
    ids = []
    for at in range(0, count, 4):
        ids += [stored.episode.id for stored in (await memory.add(scope, messages[at : at + 4])).stored]
    return list(zip(ids, marks, strict=True))


@pytest.mark.parametrize("extensions", [True, False])
async def test_forgetting_leaves_no_byte_of_the_text_in_any_file(
    settings: Settings, opening: Opening, scope: Scope, extensions: bool
) -> None:
    config = settings.model_copy(update={"no_sqlite_extensions": not extensions, "window_tokens": 300})
    async with opening(settings=config) as memory:
        remembered = await populate(memory, scope, 240)
        await memory.context(scope, "lantern", "s", 1_500)  # derives the summary
        drawn = random.Random(8)
        gone = drawn.sample(remembered, 120)
        kept = [item for item in remembered if item not in gone]
        pending = False
        for at in range(0, 60, 6):
            pending = (await memory.forget(scope, [id for id, _ in gone[at : at + 6]])).pending
        for id, _ in gone[60:90]:
            pending = (await memory.forget(scope, [id])).pending
        pending = (await memory.forget(scope, [id for id, _ in gone[90:]])).pending
        assert not pending
        assert await memory.store.erased()
        marks = [mark.encode() for _, mark in gone]
        assert not holding(settings.data_dir, *marks)
        found = await memory.search(scope, Question(kept[0][1]))
        assert kept[0][1] in found.found.hits[0].episode.content
        assert await memory.store.check() == "ok"
    assert not holding(settings.data_dir, *marks)
    assert all(holding(settings.data_dir, mark.encode()) for _, mark in kept)


@pytest.mark.parametrize("extensions", [True, False])
async def test_forgetting_leaves_no_vector_in_any_file(
    settings: Settings, opening: Opening, scope: Scope, extensions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizer, "available", lambda: False)  # the extension's index is filled without faiss only
    config = settings.model_copy(update={"no_sqlite_extensions": not extensions})
    async with opening(settings=config) as memory:
        ids = [(await memory.add(scope, [Message(f"heron number {i}")])).stored[0].episode.id for i in range(60)]
        async with opening() as other:
            await other.search(scope, Question("heron"))

        def stored(tx: Any) -> dict[int, bytes]:
            return dict(tx._db.rows("SELECT id, vector FROM derivatives"))

        before = await memory.store.read(scope, stored)
        assert not (await memory.forget(scope, ids[::2])).pending
        after = await memory.store.read(scope, stored)
        gone = set(before.values()) - set(after.values())
        assert len(gone) >= 60
        codes = {quantised(blob) for blob in gone} - {quantised(blob) for blob in after.values()}
        assert not holding(settings.data_dir, *gone, *codes)


def quantised(blob: bytes) -> bytes:
    """A vector as the index holds it."""
    return vectors_module._quantised(vectors_module.Packed.read([blob]).vectors())[0].tobytes()


async def test_forgetting_everything_leaves_nothing_that_was_said(
    settings: Settings, opening: Opening, scope: Scope
) -> None:
    async with opening() as memory:
        remembered = await populate(memory, scope, 40)
        other = await memory.add(replace(scope, user="bo"), [Message("theirs stays")])
        forgotten = await memory.forget_everything(scope)
        assert len(forgotten.ids) == 40
        assert not holding(settings.data_dir, *(mark.encode() for _, mark in remembered))
        assert (await memory.stats(scope)).episodes == 0
        assert await memory.episode(replace(scope, user="bo"), other.stored[0].episode.id)


@asynccontextmanager
async def reading(folder: Path, clock: Clock, scope: Scope) -> AsyncIterator[None]:
    """Somebody else who reads one snapshot until the block ends."""
    store = SQLiteStore(folder, now=clock)
    begun, go_on = threading.Event(), threading.Event()

    def read(tx: Tx) -> None:
        tx.log.count()
        begun.set()
        assert go_on.wait(20)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.read, scope, read)
        assert await anyio.to_thread.run_sync(begun.wait, 20)
        try:
            yield
        finally:
            go_on.set()
    await store.close()


async def test_erasure_is_pending_while_another_reads_and_finished_by_the_next_write(
    settings: Settings, memory: Memory, scope: Scope, clock: Clock
) -> None:
    added = await memory.add(scope, [Message("the password hint is xylograph")])
    async with reading(settings.data_dir, clock, scope):
        forgotten = await memory.forget(scope, [added.stored[0].episode.id])
        assert forgotten.pending
        assert not await memory.store.erased()
        assert not (await memory.search(scope, Question("xylograph"))).found.hits
    await memory.add(scope, [Message("something else")])
    assert await memory.store.erased()
    assert not holding(settings.data_dir, b"xylograph")


async def test_erasure_that_was_pending_at_the_end_is_finished_by_the_next_start(
    settings: Settings, opening: Opening, scope: Scope, clock: Clock
) -> None:
    async with opening() as memory:
        added = await memory.add(scope, [Message("the password hint is xylograph")])
    async with reading(settings.data_dir, clock, scope), opening() as memory:
        assert (await memory.forget(scope, [added.stored[0].episode.id])).pending
    async with opening() as memory:
        await memory.stats(scope)
    assert not holding(settings.data_dir, b"xylograph")


# ---- soundness


async def test_a_damaged_file_is_set_aside_with_all_its_bytes(
    settings: Settings, opening: Opening, scope: Scope, file: Path
) -> None:
    async with opening() as memory:
        await memory.add(scope, [Message("must not vanish")])
    with file.open("r+b") as damaged:
        damaged.write(b"GARBAGE GARBAGE!")
    before = file.read_bytes()
    with pytest.raises(StoreDamaged) as refused:
        async with opening() as memory:
            await memory.search(scope, Question("vanish"))
    assert str(settings.data_dir) not in str(refused.value)
    [aside] = [name for name, data in contents(settings.data_dir).items() if data == before]
    assert aside in str(refused.value)
    assert aside != FILE_NAME
    async with opening() as memory:
        await memory.add(scope, [Message("a new beginning")])
        assert memory.store.copies() == [aside]
        forgotten = await memory.forget_everything(scope)
        assert forgotten.copies == (aside,)
    assert (settings.data_dir / aside).read_bytes() == before


async def test_pages_that_are_damaged_are_named_and_nothing_is_overwritten(
    opening: Opening, scope: Scope, file: Path
) -> None:
    async with opening() as memory:
        for i in range(30):
            await memory.add(scope, [Message(f"text {i} " * 200)])
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(4096)
        damaged.write(os.urandom(size - 4096 - 100))
    with pytest.raises(StoreError):
        async with opening() as memory:
            await memory.add(scope, [Message("x")])
    assert file.stat().st_size == size


async def test_a_file_of_a_newer_release_is_refused_and_left_alone(
    settings: Settings, opening: Opening, scope: Scope, file: Path
) -> None:
    async with opening() as memory:
        await memory.add(scope, [Message("from the future")])
    with closing(sqlite3.connect(file)) as plain:
        plain.execute("PRAGMA user_version = 999")
    before = file.read_bytes()
    with pytest.raises(StoreTooNew, match="upgrade"):
        async with opening() as memory:
            await memory.add(scope, [Message("x")])
    assert file.read_bytes() == before


async def test_the_words_of_an_older_file_are_indexed_again(opening: Opening, scope: Scope, file: Path) -> None:
    async with opening() as memory:
        await memory.add(scope, [Message("We bought a boat. Do you sail?")])
    with closing(sqlite3.connect(file)) as plain:  # as the step before left it
        plain.execute("ALTER TABLE word_counts DROP COLUMN asks")
        plain.execute("UPDATE words SET tokens = 'an older folding'")
        plain.execute("ALTER TABLE episodes DROP COLUMN accesses")
        plain.execute("DROP TABLE links")
        before = [name for name, *_ in MIGRATIONS].index("asks")
        plain.execute(f"PRAGMA user_version = {before}")
        plain.commit()
    async with opening() as memory:
        answer = await memory.search(scope, Question("buy"))
        assert answer.found.hits[0].why["words"] > 0
        assert answer.found.hits[0].why["asking"] < 0


async def test_what_an_older_release_stored_gets_the_labels_of_this_one(
    memory: Memory, scope: Scope, file: Path
) -> None:
    await memory.add(scope, [Message("a parcel", metadata={"box": {"size": 3}}, entities=("Ghent",))])
    with closing(sqlite3.connect(file)) as plain, plain:
        plain.execute("DELETE FROM labels")
    step = next(step for name, step, _ in MIGRATIONS if name == "labels")
    await memory.store._database.write(step)  # type: ignore[attr-defined]
    for text in ("box.size = 3", "entities = 'Ghent'", "box.size > 2 AND NOT box.size IS NULL"):
        found = await memory.search(scope, Question("", Selection(filters.parse(text))))
        assert len(found.found.hits) == 1


async def test_a_file_that_is_no_folder_or_cannot_be_written_is_an_error_with_advice(
    tmp_path: Path, opening: Opening, settings: Settings, scope: Scope
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(StoreError) as refused:
        async with opening(settings=settings.model_copy(update={"data_dir": blocked})) as memory:
            await memory.add(scope, [Message("x")])
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")
async def test_only_the_owner_can_read_the_files(settings: Settings, memory: Memory, scope: Scope, file: Path) -> None:
    await memory.add(scope, [Message("private")])
    for path in settings.data_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")
async def test_a_file_that_others_could_read_is_closed_to_them(opening: Opening, scope: Scope, file: Path) -> None:
    async with opening() as memory:
        await memory.add(scope, [Message("private")])
    file.chmod(0o644)
    async with opening() as memory:
        await memory.add(scope, [Message("private too")])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


# ---- many processes

WRITER = """
import asyncio, sys
from pathlib import Path
from mcp_memory.assembly import open_memory
from mcp_memory.settings import Settings
from mcp_memory.types import Message, Question, Scope

async def main():
    folder, name = Path(sys.argv[1]), sys.argv[2]
    scope = Scope("org", "project", "ines")
    async with open_memory(Settings(data_dir=folder, embedder="hashing:64"), background=False) as memory:
        print("ready", flush=True)
        sys.stdin.readline()
        for i in range(60):
            added = await memory.add(scope, [Message(f"note {name}n{i} of a writer", session_id=name)])
            print(added.stored[0].episode.id, flush=True)
            if i % 10 == 9:
                await memory.forget(scope, [added.stored[0].episode.id])

asyncio.run(main())
"""


async def test_processes_that_write_at_once_lose_nothing(settings: Settings, opening: Opening, scope: Scope) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(settings.data_dir), f"w{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    said = []
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        out, errors = writer.communicate(timeout=90)
        assert writer.returncode == 0, errors
        said += out.split()
    assert len(set(said)) == 180
    async with opening(settings=settings.model_copy(update={"embedder": "hashing:64"})) as memory:
        assert await memory.lags(scope) == []
        for number, i in itertools.product(range(3), (0, 8, 9, 31, 58)):
            hits = (await memory.search(scope, Question(f"w{number}n{i}", limit=1))).found.hits
            if i % 10 == 9:
                assert not hits or f"w{number}n{i} " not in hits[0].episode.content
            else:
                assert f"w{number}n{i} " in hits[0].episode.content

        def count(tx: Tx) -> tuple[int, int, int]:
            return tx.log.count(), tx.words.totals()[0], tx.vectors("hashing:64").count()

        assert await memory.store.read(scope, count) == (162, 162, 324)
        assert await memory.store.check() == "ok"


async def test_a_killed_process_loses_nothing_that_it_acknowledged(
    settings: Settings, opening: Opening, scope: Scope
) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(settings.data_dir), "w"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin
    assert writer.stdout
    assert writer.stdout.readline() == "ready\n"
    writer.stdin.write("go\n")
    writer.stdin.flush()
    acknowledged = [writer.stdout.readline().strip() for _ in range(25)]
    writer.kill()
    writer.communicate(timeout=20)
    async with opening() as memory:
        for number, id in enumerate(acknowledged):
            assert (await memory.episode(scope, id) is None) == (number % 10 == 9 and number < 24)
        assert await memory.store.check() == "ok"


# ---- plans

PLEASURES = "tea hiking pottery maps tango chess rowing knitting jazz opera cycling baking".split()

SCANNED = re.compile(
    r"^SCAN (?!j\b|json_each\b|meta\b|outdated\b|sqlite_sequence\b|CONSTANT\b|sqlite_master\b|\(subquery|.*VIRTUAL TABLE)"
)


async def test_no_statement_of_daily_use_reads_a_whole_table(
    memory: Memory, scope: Scope, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {}
    for name in ("execute", "rows", "row", "executemany"):
        original: Callable[..., Any] = getattr(database.Connection, name)

        def noted(self: Any, sql: str, values: Any = (), original: Callable[..., Any] = original) -> Any:
            many = original.__name__ == "executemany"
            values = list(values) if many else values
            if values or not many:
                said.setdefault(sql, values[0] if many else values)
            return original(self, sql, values)

        monkeypatch.setattr(database.Connection, name, noted)
    monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    ids = []
    for i in range(12):
        message = Message(
            f"I love {PLEASURES[i]}", session_id="s" if i % 2 else "", agent_id="a", metadata={"x": i % 3}
        )
        ids.append((await memory.add(scope, [message])).stored[0].episode.id)
        clock.move(minutes=11)
    filter = "x = 1 AND role IN ('user') AND (x > 0 OR content LIKE 'I%' OR x IS NULL OR x < date('2026-01-01'))"
    chosen = Selection(filters.parse(filter), "a", "s", clock() - timedelta(days=1), clock())
    for selection in (Selection(), chosen):
        page = await memory.search(scope, Question("tea or maps", selection, limit=2))
        await memory.search(scope, Question("tea or maps", selection, limit=2), page.next())
    page = await memory.search(scope, Question("", chosen, limit=1))
    await memory.search(scope, Question("", chosen, limit=1), page.next())
    await memory.search(scope, Question("", Selection(since=clock() - timedelta(days=9)), limit=1))
    await memory.context(scope, "tea", "s", 1_500)
    await memory.profile(scope, history=True)
    await memory.forget(scope, ids[:2])
    await memory.forget(scope, [(await memory.profile(scope))[0][0].id])
    await memory.add(scope, [Message("I love hiking", occurred_at=clock() - timedelta(hours=1))])

    statements = [sql for sql in said if sql.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "INSERT"))]
    assert len(statements) > 40

    def explain(tx: Any) -> dict[str, list[str]]:
        plans = {}
        for sql in statements:
            plans[sql] = [row[3] for row in tx._db._driver.execute(f"EXPLAIN QUERY PLAN {sql}", said[sql])]
        return plans

    plans = await memory.store.write(scope, explain)
    scanning = {sql: [step for step in plan if SCANNED.match(step)] for sql, plan in plans.items()}
    assert {sql: steps for sql, steps in scanning.items() if steps} == {}
