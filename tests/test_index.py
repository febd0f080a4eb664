"""The index over scopes too large for memory: it finds what the exact ways find, and its file can be lost, cut, aged,
shared and cleared."""

# ruff: noqa: ASYNC240  (nobody else waits for a loop of these tests)

from __future__ import annotations

import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store import Vector, close, exact, put_vectors, random_units, right, seqs

from mcp_memory.store import indexes as indexes_module
from mcp_memory.store import quantizer, segments
from mcp_memory.store import vectors as vectors_module
from mcp_memory.store.indexes import State
from mcp_memory.store.sqlite import FILE_NAME, SQLiteStore, Tx
from mcp_memory.testing import Clock
from mcp_memory.types import Scope

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not quantizer.available(), reason="the extra [scale] is not installed"),
]

COUNT = 200
"""Episodes of most tests, with three vectors each."""


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors_module, "IN_MEMORY", 3)
    monkeypatch.setattr(vectors_module, "FRESH", 8)


Open = Callable[..., SQLiteStore]


@pytest.fixture
async def opened(tmp_path: Path, clock: Clock) -> Open:
    """Opens stores on the same file, each as a process of its own would."""

    def opened(**options: bool) -> SQLiteStore:
        return SQLiteStore(tmp_path, now=clock, **options)

    return opened


async def filled(store: SQLiteStore, scope: Scope, count: int = COUNT, seed: int = 31) -> tuple[list[int], Vector]:
    given = await seqs(store, scope, *(f"t{seed}-{i}" for i in range(count)))
    units = random_units(3 * count, seed)
    await put_vectors(store, scope, given, units)
    return given, units


async def settle(store: SQLiteStore, scope: Scope) -> State:
    """The state of the index once a search has asked for it and the thread has done what there was to do."""
    await close(store, scope, random_units(1, 1)[0])
    await anyio.to_thread.run_sync(store.indexes.settle)
    state = store.indexes.of(*await key(store, scope)).state
    assert state is not None
    return state


async def key(store: SQLiteStore, scope: Scope) -> tuple[int, int]:
    return await store.read(scope, lambda tx: (tx.vectors("e")._embedder, tx._scope))


async def forget(store: SQLiteStore, scope: Scope, gone: Sequence[int]) -> None:
    def call(tx: Tx) -> None:
        tx.vectors("e").remove(gone)
        tx.begin_epoch()
        tx.erase()

    await store.write(scope, call)


def without(given: list[int], units: Vector, gone: Sequence[int]) -> tuple[list[int], Vector]:
    kept = [number for number, seq in enumerate(given) if seq not in gone]
    return [given[number] for number in kept], units.reshape(-1, 3, units.shape[1])[kept].reshape(-1, units.shape[1])


async def finds(store: SQLiteStore, scope: Scope, given: list[int], units: Vector, seed: int = 5) -> None:
    for query in random_units(4, seed):
        right(await close(store, scope, query), exact(given, units, query))


def file(folder: Path) -> Path:
    """The index file, which is the only one."""
    [path] = [path for path in folder.glob(f"{FILE_NAME}-nearest-*") if path.suffix != ".lock"]
    return path


def ids_in(path: Path) -> set[int]:
    return set(segments.read(path).segment.ids.tolist()) - {0}


# ---- every way finds the same

Step = tuple[str, int]

STEPS = st.lists(
    st.tuples(st.just("add"), st.integers(1, 60))
    | st.tuples(st.just("forget"), st.integers(0, 40))
    | st.tuples(st.just("renew"), st.integers(1, 5))
    | st.tuples(st.sampled_from(["ask", "select", "settle"]), st.integers(0, 2**16)),
    min_size=4,
    max_size=14,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
async def test_memory_extension_slices_and_index_find_the_same(
    clock: Clock, scope: Scope, monkeypatch: pytest.MonkeyPatch, steps: list[Step]
) -> None:
    with TemporaryDirectory() as name:
        ways = {
            "extension": SQLiteStore(Path(name), now=clock, scale=False),
            "memory": SQLiteStore(Path(name), now=clock, scale=False),
            "slices": SQLiteStore(Path(name), now=clock, extensions=False, scale=False),
            "index": SQLiteStore(Path(name), now=clock),
        }
        try:
            await follow(ways, scope, [("add", 30), ("settle", 0), *steps, ("ask", 1), ("select", 2)], monkeypatch)
        finally:
            for store in ways.values():
                await store.close()


async def follow(
    ways: dict[str, SQLiteStore], scope: Scope, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, units = list[int](), random_units(0, 0)
    writer = ways["extension"]
    for number, (step, amount) in enumerate(steps):
        drawn = random.Random(amount)
        match step:
            case "add":
                more, added = await filled(writer, scope, amount, seed=number)
                given, units = given + more, np.concatenate([units, added])
            case "forget":
                gone = drawn.sample(given, min(amount, max(0, len(given) - 5)))
                await forget(writer, scope, gone)
                given, units = without(given, units, gone)
            case "renew":
                again = drawn.sample(given, min(amount, len(given)))
                renewed = random_units(3 * len(again), number)
                await put_vectors(writer, scope, again, renewed)
                given, units = without(given, units, again)
                given, units = given + again, np.concatenate([units, renewed])
            case "settle":
                await close(ways["index"], scope, random_units(1, amount)[0])
                await anyio.to_thread.run_sync(ways["index"].indexes.settle)
            case _:
                within = drawn.sample(given, len(given) // 2) if step == "select" else None
                upto = drawn.choice(given) if amount % 3 == 0 else 2**40
                query, limit = random_units(1, amount)[0], 3
                expected = exact(given, units, query, within, upto)
                for way, store in ways.items():
                    monkeypatch.setattr(vectors_module, "IN_MEMORY", 10**6 if way == "memory" else 3)
                    right(await close(store, scope, query, limit, within, upto), expected, limit)


async def test_a_selection_far_from_the_query_is_not_starved(
    opened: Open, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizer, "PROBES", 1)
    store = opened()
    given = await seqs(store, scope, *(f"t{i}" for i in range(400)))
    query, units = random_units(1, 40)[0], random_units(1200, 41)
    far = given[360:]
    units[:1080] += 3 * query
    units[1080:] -= 3 * query
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    await put_vectors(store, scope, given, units)
    state = await settle(store, scope)
    assert state.quantizer.lists > 8
    found = await close(store, scope, query, 5, far)
    right(found, exact(given, units, query, far), 5)
    assert len(found) >= 5
    await store.close()


async def test_a_small_scope_beside_a_large_one_is_exact(opened: Open, scope: Scope) -> None:
    store, other = opened(), Scope("org", "project", "bo")
    await filled(store, scope)
    given, units = await filled(store, other, 20, seed=32)
    await settle(store, scope)
    await finds(store, other, given, units)
    await store.close()


# ---- following the database


async def test_what_another_process_stores_is_found_at_once_and_taken_into_the_index_later(
    opened: Open, scope: Scope
) -> None:
    ours, theirs = opened(), opened(scale=False)
    given, units = await filled(ours, scope)
    before = await settle(ours, scope)
    more, added = await filled(theirs, scope, 50, seed=33)
    found = await close(ours, scope, added[0])
    assert max(found, key=found.__getitem__) == more[0]
    await finds(ours, scope, given + more, np.concatenate([units, added]))
    after = await settle(ours, scope)
    assert after.last == before.last + 150
    assert after.waiting == 150
    await finds(ours, scope, given + more, np.concatenate([units, added]))
    await ours.close()
    await theirs.close()


async def test_a_process_maps_the_file_that_another_one_wrote(
    opened: Open, scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = opened(), opened()
    given, units = await filled(ours, scope)
    await settle(ours, scope)
    first = await settle(theirs, scope)
    assert first.identity == segments.identity(file(tmp_path))
    assert first.waiting == 0
    monkeypatch.setattr(indexes_module, "TAIL", 64)
    more, added = await filled(ours, scope, 50, seed=34)
    await settle(ours, scope)
    assert segments.identity(file(tmp_path)) != first.identity
    second = await settle(theirs, scope)
    assert second.identity == segments.identity(file(tmp_path))
    assert second.base_last == first.last + 150
    for store in (ours, theirs):
        await finds(store, scope, given + more, np.concatenate([units, added]))
        await store.close()


async def test_two_processes_that_need_an_index_at_once_build_one(
    opened: Open, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    original = quantizer.Quantizer.train

    def train(vectors: Vector, count: int) -> quantizer.Quantizer:
        trained.append(count)
        return original(vectors, count)

    monkeypatch.setattr(quantizer.Quantizer, "train", staticmethod(train))
    stores = [opened(), opened()]
    given, units = await filled(stores[0], scope)
    for store in stores:
        await close(store, scope, units[0])
    for store in stores:
        await settle(store, scope)
        await settle(store, scope)
        await finds(store, scope, given, units)
    assert trained == [3 * COUNT]
    for store in stores:
        await store.close()


async def test_an_index_is_drawn_anew_when_its_scope_has_outgrown_it(
    opened: Open, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    given, units = await filled(store, scope, 50)
    assert (await settle(store, scope)).trained_on == 150
    more, added = await filled(store, scope, 160, seed=35)
    state = await settle(store, scope)
    assert state.trained_on == 630
    assert state.quantizer.lists == 630 // quantizer.PER_LIST
    await finds(store, scope, given + more, np.concatenate([units, added]))
    await store.close()


# ---- forgetting


async def test_what_is_forgotten_leaves_the_file_at_once_also_by_a_process_without_the_extra(
    opened: Open, scope: Scope, tmp_path: Path
) -> None:
    ours, plain = opened(), opened(extensions=False, scale=False)
    given, units = await filled(ours, scope)
    await settle(ours, scope)
    before = segments.read(file(tmp_path)).segment
    codes = {id: code.tobytes() for id, code in zip(before.ids.tolist(), np.array(before.codes), strict=True)}
    gone = given[20:60]
    doomed = await ours.read(scope, lambda tx: [id for id, seq in rows(tx) if seq in gone])
    assert len(doomed) == 120
    await forget(plain, scope, gone)
    data = file(tmp_path).read_bytes()
    assert not [id for id in doomed if codes[id] in data]
    assert ids_in(file(tmp_path)) == codes.keys() - set(doomed)
    assert await plain.erased()
    left, kept = without(given, units, gone)
    for store in (ours, plain):
        await finds(store, scope, left, kept)
        for number in (60, 90):
            assert not set(await close(store, scope, units[number])) & set(gone)
        await store.close()


def rows(tx: Tx) -> list[tuple[int, int]]:
    return tx._db.rows("SELECT id, seq FROM derivatives")


@pytest.mark.parametrize("late", [False, True], ids=["before it is written", "after it was written"])
async def test_what_is_forgotten_while_a_file_is_made_does_not_come_back_with_it(
    opened: Open, scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    store, other = opened(), opened(scale=False)
    given, units = await filled(store, scope)
    gone = given[5:9]
    write, moments = segments.write, list[str]()

    def interrupted(path: Path, *about: object) -> None:
        if late:
            write(path, *about)  # type: ignore[arg-type]
        if not moments:
            moments.append(path.name)
            anyio.from_thread.run(forget, other, scope, gone, token=loop)
        if not late:
            write(path, *about)  # type: ignore[arg-type]

    loop = anyio.lowlevel.current_token()
    monkeypatch.setattr(segments, "write", interrupted)
    await close(store, scope, units[0])
    await anyio.to_thread.run_sync(store.indexes.settle)
    await settle(store, scope)
    assert moments
    assert await store.erased()
    left, kept = without(given, units, gone)
    assert ids_in(file(tmp_path)) == {id for id, _ in await store.read(scope, rows)}
    await finds(store, scope, left, kept)
    await store.close()
    await other.close()


async def test_what_was_forgotten_is_not_written_to_the_next_file_by_who_had_it_in_memory(
    opened: Open, scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opened(), opened(scale=False)
    given, units = await filled(store, scope)
    await settle(store, scope)
    more, added = await filled(store, scope, 20, seed=36)
    assert (await settle(store, scope)).waiting == 60
    await forget(other, scope, more[:10])
    monkeypatch.setattr(indexes_module, "TAIL", 64)
    last, newest = await filled(other, scope, 20, seed=37)
    await settle(store, scope)
    assert ids_in(file(tmp_path)) == {id for id, _ in await store.read(scope, rows)}
    await finds(store, scope, given + more[10:] + last, np.concatenate([units, added[30:], newest]))
    await store.close()
    await other.close()


async def test_an_erasure_that_was_cut_off_is_finished_by_the_next_start(
    opened: Open, scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    given, _ = await filled(store, scope)
    await settle(store, scope)

    def refuse(path: Path, ids: Sequence[int]) -> None:
        raise PermissionError("somebody holds it")

    with monkeypatch.context() as patched:
        patched.setattr(segments, "erase", refuse)
        await forget(store, scope, given[:3])
        assert not await store.erased()
        await store.close()
    again = opened()
    await again.open()
    assert await again.erased()
    assert len(ids_in(file(tmp_path))) == 3 * COUNT - 9
    await again.close()


async def test_clearing_the_vectors_drops_the_file(opened: Open, scope: Scope, tmp_path: Path) -> None:
    ours, theirs = opened(), opened()
    await filled(ours, scope)
    for store in (ours, theirs):
        await settle(store, scope)
    path = file(tmp_path)
    await ours.write(scope, lambda tx: tx.vectors("e").clear())
    assert not path.exists()
    for store in (ours, theirs):
        assert await close(store, scope, random_units(1, 2)[0]) == {}
    given, units = await filled(ours, scope, 60, seed=38)
    for store in (ours, theirs):
        await settle(store, scope)
        await finds(store, scope, given, units)
        await store.close()


# ---- the file


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")
async def test_the_file_is_the_owners_alone_and_is_described(opened: Open, scope: Scope, tmp_path: Path) -> None:
    store = opened()
    await filled(store, scope)
    await settle(store, scope)
    for path in tmp_path.glob(f"{FILE_NAME}-nearest-*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    told = (await store.describe())["index"]
    assert file(tmp_path).name in told
    assert f"{3 * COUNT} vectors" in told
    assert not store.copies()
    await store.close()


def cut(data: bytearray) -> bytes:
    return bytes(data[: len(data) // 2])


def head(data: bytearray) -> bytes:
    data[:40] = b"GARBAGE " * 5
    return bytes(data)


def learned(data: bytearray) -> bytes:
    data[1_000:1_400] = random.Random(1).randbytes(400)
    return bytes(data)


def codes(data: bytearray) -> bytes:
    at = len(data) - 3 * COUNT * 32
    data[at:] = random.Random(2).randbytes(len(data) - at)
    return bytes(data)


@pytest.mark.parametrize("damage", [cut, head, learned, codes, lambda _: b""])
async def test_a_damaged_file_is_thrown_away_and_built_again(
    opened: Open, scope: Scope, tmp_path: Path, damage: Callable[[bytearray], bytes]
) -> None:
    store = opened()
    given, units = await filled(store, scope)
    await settle(store, scope)
    await store.close()
    path = file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(bytearray(whole)))
    again = opened()
    await finds(again, scope, given, units)
    state = await settle(again, scope)
    assert len(state.segments[0]) == 3 * COUNT
    assert len(path.read_bytes()) == len(whole)
    await finds(again, scope, given, units)
    await again.close()


async def test_a_damaged_file_does_not_hold_up_forgetting(opened: Open, scope: Scope, tmp_path: Path) -> None:
    store = opened()
    given, units = await filled(store, scope)
    await settle(store, scope)
    path = file(tmp_path)
    path.write_bytes(b"GARBAGE")
    await forget(store, scope, given[:2])
    assert not path.exists()
    assert await store.erased()
    await settle(store, scope)
    await finds(store, scope, *without(given, units, given[:2]))
    await store.close()


async def test_a_file_that_is_older_or_newer_than_the_database_gives_no_wrong_answer(
    opened: Open, scope: Scope, tmp_path: Path, clock: Clock
) -> None:
    store = opened()
    given, units = await filled(store, scope, 100)
    await settle(store, scope)
    await store.close()
    shutil.copytree(tmp_path, tmp_path / "backup")
    store = opened()
    await filled(store, scope, 500, seed=42)
    await settle(store, scope)
    await store.close()
    shutil.copy(file(tmp_path), tmp_path / "newer")
    path = file(tmp_path)

    for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup" / FILE_NAME, tmp_path / FILE_NAME)
    store = opened()
    await finds(store, scope, given, units)
    await settle(store, scope)  # the file knows ids that this database has not given yet
    await finds(store, scope, given, units)
    more, added = await filled(store, scope, 500, seed=43)
    await settle(store, scope)
    await store.close()
    shutil.copy(tmp_path / "newer", path)  # and now it has given them to other vectors
    store = opened()
    await settle(store, scope)
    await finds(store, scope, given + more, np.concatenate([units, added]))
    await store.close()


KILLED = """
import asyncio, os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
import numpy as np
from mcp_memory.store import indexes, vectors
from mcp_memory.store.sqlite import SQLiteStore
from mcp_memory.types import Scope

vectors.IN_MEMORY, indexes.TAIL, indexes._SLICE = 3, 64, 64
calls, write = [], indexes.segments.write

def killed(*about):
    write(*about)
    calls.append(about)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

indexes.segments.write = killed

async def main():
    store = SQLiteStore(Path(sys.argv[1]), now=lambda: datetime.now(UTC))
    query = np.eye(32, dtype=np.float32)[0]
    await store.read(Scope("org", "project", "ines"), lambda tx: tx.vectors("e").close(query, 5, None, 2**40))
    await asyncio.to_thread(store.indexes.settle)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
async def test_who_is_killed_while_building_costs_no_more_than_the_rest_of_the_work(
    opened: Open, scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    given, units = await filled(store, scope)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = await anyio.run_process(command, stderr=subprocess.PIPE, check=False)
    assert done.returncode == -9, done.stderr.decode()
    left = {path.suffix for path in tmp_path.glob(f"{FILE_NAME}-nearest-*")}
    assert {".again", ".new"} <= left
    gone = given[:3]
    await forget(store, scope, gone)
    assert not list(tmp_path.glob("*.new"))
    kept = ids_in(next(tmp_path.glob("*.again")))

    def train(*_: object) -> quantizer.Quantizer:
        raise AssertionError("the lists were drawn already")

    monkeypatch.setattr(quantizer.Quantizer, "train", staticmethod(train))
    await settle(store, scope)
    alive = {id for id, _ in await store.read(scope, rows)}
    assert kept < alive
    assert ids_in(file(tmp_path)) == alive
    await finds(store, scope, *without(given, units, gone))
    await store.close()


async def test_a_failing_index_leaves_the_answers_as_they_are(
    opened: Open, scope: Scope, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> quantizer.Quantizer:
        raise RuntimeError("no such processor")

    monkeypatch.setattr(quantizer.Quantizer, "train", staticmethod(fail))
    store = opened()
    given, units = await filled(store, scope)
    await close(store, scope, units[0])
    await anyio.to_thread.run_sync(store.indexes.settle)
    await finds(store, scope, given, units)
    assert "no such processor" in caplog.text
    await store.close()


@pytest.mark.parametrize("dimensions", [32, 384])
def test_a_choice_holds_inside_the_search_and_axes_left_out_do_not_change_the_nearest(dimensions: int) -> None:
    spread = np.arange(1, dimensions + 1) ** -1.0
    vectors = np.random.default_rng(50).normal(size=(300, dimensions)).astype(np.float32) * spread.astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    learned = quantizer.Quantizer.train(vectors, 300)
    assert learned.width == min(dimensions, 256)
    assert quantizer.Quantizer(learned.trained).encode(vectors)[1].tolist() == learned.encode(vectors)[1].tolist()
    lists, coded = learned.encode(vectors)
    seqs = np.arange(1, 301)
    segment = segments.Segment.of(lists, learned.lists, seqs, seqs, coded)
    chosen = np.arange(1, 301, 2)
    for query in vectors[:20]:
        nearest = learned.nearest(query, [segment], 20, quantizer.Choice(200, chosen), narrow=True).tolist()
        assert set(nearest) <= set(chosen[chosen <= 200].tolist())
        best = chosen[np.argsort(-(vectors[chosen - 1] @ query))]
        assert set(best[best <= 200][:10].tolist()) <= set(nearest)
