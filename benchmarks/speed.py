"""Speed: adding and searching, each against something bare that is measured in the same run, in turn with it.

- add and search through MCP against a trivial tool of the bare SDK's server;
- adding against the bare embedder, given the very texts that the memory embeds;
- adding in process against a loop that writes the same rows into the same tables and does nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import (
    DEFAULT_EMBEDDER,
    Server,
    arguments,
    hello_server,
    isolate,
    memory_server,
    ms,
    p50,
    p95,
    publish,
    table,
    timed,
    verdict,
)
from corpus import Turn, questions, turns

from mcp_memory import settings
from mcp_memory.assembly import load_embedder, open_memory
from mcp_memory.memory import Memory
from mcp_memory.protocols import Embedder
from mcp_memory.store.database import Connection
from mcp_memory.store.sqlite import FILE_NAME
from mcp_memory.types import Message, Scope

SCOPE = Scope("default", "default", "default")
HASHING = "hashing:256"
BATCH = 100
WARM_UP = 5

TABLES = {
    "texts": "position",
    "episodes": "seq",
    "labels": "seq",
    "words": "rowid",
    "word_counts": "seq",
    "derivatives": "id",
    "links": "max(seq, other)",
}
"""What adding fills, with the column that grows; beside them each embedder's index of nearest vectors."""

Row = tuple[str, ...]


class Recorder:
    """An embedder that keeps what it is asked to embed, so that the bare one can be given exactly that."""

    paid = False

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimensions, self.floor = embedder.name, embedder.dimensions, embedder.floor
        self._texts: list[str] = []

    def load(self) -> None:
        self._embedder.load()

    def embed(self, texts: list[str], purpose: Any) -> npt.NDArray[np.float32]:
        self._texts += texts
        return self._embedder.embed(texts, purpose)

    def taken(self) -> list[str]:
        texts, self._texts = self._texts, []
        return texts


class BareFile:
    """A copy of a memory file, into which the rows are written that the memory has added to its own since."""

    def __init__(self, source: Path, copy: Path) -> None:
        self._source = Connection(source, vectors=True)
        self._source.execute("VACUUM INTO ?", (str(copy),)).fetchall()
        self._copy = Connection(copy, vectors=True)
        indexes = self._source.rows(
            "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE nearest%USING vec0%'"
        )
        self._keys = TABLES | {name: "rowid" for (name,) in indexes}
        self._last = {name: self._max(name) for name in self._keys}

    def new_rows(self) -> dict[str, list[Any]]:
        rows = {}
        for name, key in self._keys.items():
            columns = _columns(name) or "*"
            rows[name] = self._source.rows(f"SELECT {columns} FROM {name} WHERE {key} > ?", (self._last[name],))
            self._last[name] = self._max(name)
        return rows

    def write(self, rows: dict[str, list[Any]]) -> None:
        with self._copy.writing(durable=True):
            for name, new in rows.items():
                if not new:
                    continue
                places = ["?"] * len(new[0])
                if name not in TABLES:
                    places[-1] = "vec_int8(?)"
                columns = f"({_columns(name)})" if _columns(name) else ""
                self._copy.executemany(f"INSERT INTO {name}{columns} VALUES ({', '.join(places)})", new)

    def close(self) -> None:
        self._source.close()
        self._copy.close()

    def _max(self, name: str) -> int:
        found: int = self._source.row(f"SELECT max({self._keys[name]}) FROM {name}") or 0
        return found


def _columns(table: str) -> str:
    """The columns of a virtual table that are to be written; "" for an ordinary one, where it is all of them."""
    return "rowid, tokens" if table == "words" else "" if table in TABLES else "rowid, scope, vector"


def message(turn: Turn) -> Message:
    return Message(
        content=turn.content,
        role="user" if turn.role == "user" else "assistant",
        speaker=turn.speaker,
        occurred_at=turn.occurred_at,
        session_id=turn.session_id,
        metadata={"topic": turn.topic},
    )


def as_arguments(turn: Turn) -> dict[str, Any]:
    return {
        "content": turn.content,
        "role": turn.role,
        "speaker": turn.speaker,
        "session_id": turn.session_id,
        "timestamp": turn.timestamp,
        "metadata": {"topic": turn.topic},
    }


def batches(said: Sequence[Turn]) -> Iterator[list[Message]]:
    for at in range(0, len(said), BATCH):
        yield [message(turn) for turn in said[at : at + BATCH]]


@asynccontextmanager
async def in_process(folder: str, embedder: Embedder) -> AsyncIterator[Memory]:
    config = settings.load(data_dir=Path(folder))
    async with open_memory(config, embedder=embedder, background=False) as memory:
        yield memory


async def added(memory: Memory, batch: Sequence[Message]) -> float:
    """Seconds until a batch is stored and every view has followed."""
    began = time.perf_counter()
    if (await memory.add(SCOPE, batch)).lags:
        await memory.consolidate(SCOPE)
    return time.perf_counter() - began


async def embedded_texts(said: Sequence[Turn]) -> list[list[str]]:
    """What the memory embeds for each turn when they are added one by one."""
    recorder = Recorder(load_embedder("hashing:8", settings.load()))
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        async with in_process(folder, recorder) as memory:
            for turn in said:
                await added(memory, [message(turn)])
                texts.append(recorder.taken())
    return texts


# ---- the measurements


def add_one_by_one(said: Sequence[Turn], embedder: str, yardstick: Callable[[int], object]) -> tuple[list[float], ...]:
    """Seconds of each add through MCP, and of the yardstick directly after it."""
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder, memory_server(Path(folder), embedder) as server:
        for number, turn in enumerate(said):
            seconds, answer = timed(server.call, "add_memory", **as_arguments(turn))
            behind = "behind" in answer
            other, _ = timed(yardstick, number)
            if number >= WARM_UP and not behind:
                ours.append(seconds)
                bare.append(other)
    return ours, bare


def add_through_mcp(calls: int) -> list[Row]:
    said = turns(calls + WARM_UP)
    embedder = load_embedder(DEFAULT_EMBEDDER, settings.load())
    embedder.load()
    texts = asyncio.run(embedded_texts(said))
    ours, bare = add_one_by_one(said, DEFAULT_EMBEDDER, lambda number: embedder.embed(texts[number], "document"))
    rows = [_row("add, one message a call", ours, f"embedder alone, {_each(texts)} texts a message", bare, 2.0)]
    with hello_server() as hello:
        ours, bare = add_one_by_one(said, HASHING, lambda _: hello.call("echo", text="hello"))
    rows.append(_row(f"add, one message a call, {HASHING}", ours, "trivial tool call", bare, 5.0))
    return rows


async def add_in_process(count: int) -> list[Row]:
    embedder = load_embedder(DEFAULT_EMBEDDER, settings.load())
    recorder = Recorder(embedder)
    recorder.load()
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with in_process(folder, recorder) as memory:
            for batch in batches(turns(count + BATCH)):
                ours.append(await added(memory, batch))
                bare.append(timed(embedder.embed, recorder.taken(), "document")[0])
    return [_row(f"add in process, batches of {BATCH}", ours[1:], "embedder alone, same texts", bare[1:], 1.4)]


async def add_without_model(count: int) -> list[Row]:
    """The first batch makes the tables and the copy; from then on both files grow alike."""
    ours, bare, copy = [], [], None
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        async with in_process(folder, load_embedder(HASHING, settings.load())) as memory:
            for batch in batches(turns(count + BATCH)):
                seconds = await added(memory, batch)
                if copy is None:
                    copy = BareFile(Path(folder) / FILE_NAME, Path(other) / FILE_NAME)
                    continue
                ours.append(seconds)
                bare.append(timed(copy.write, copy.new_rows())[0])
        if copy is not None:
            copy.close()
    rates = [BATCH / p50(seconds) for seconds in (ours, bare)]
    share = rates[0] / rates[1]
    return [
        (
            f"add in process, {HASHING}, batches of {BATCH}",
            f"{ms(p50(ours))} ({rates[0]:.0f}/s)",
            ms(p95(ours)),
            "bare loop, same rows",
            f"{ms(p50(bare))} ({rates[1]:.0f}/s)",
            f"{1 / share:.2f}",
            "<= 4 (0.25 of the rate)",
            verdict(share >= 0.25),
        )
    ]


async def filled(folder: str, embedder: str, count: int) -> None:
    async with in_process(folder, load_embedder(embedder, settings.load())) as memory:
        for batch in batches(turns(count)):
            await added(memory, batch)


def search_through_mcp(episodes: int, calls: int, embedder: str) -> list[Row]:
    """Every question is asked once before, so that its embedding is cached."""
    asked = questions(50)
    plain: list[float] = []
    narrow: list[float] = []
    trivial: list[float] = []
    sizes: dict[str, list[int]] = {"plain": [], "narrow": []}
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(filled(folder, embedder, episodes))
        with memory_server(Path(folder), embedder) as server, hello_server() as hello:
            for number, query in enumerate(itertools.islice(itertools.cycle(asked), len(asked) + calls)):
                topic = f"topic = 'topic-{number % 100}'"
                searches = (
                    timed(_hits, server, query=query, limit=10),
                    timed(_hits, server, query=query, limit=10, filter=topic, max_tokens=8_000),
                )
                echo, _ = timed(hello.call, "echo", text="hello")
                if number >= len(asked):
                    plain.append(searches[0][0])
                    narrow.append(searches[1][0])
                    trivial.append(echo)
                    sizes["plain"].append(searches[0][1])
                    sizes["narrow"].append(searches[1][1])
    full = sum(size == 10 for size in sizes["narrow"])
    at = f"search at {episodes:,}, {embedder}"
    filtered = list(_row(f"{at}, a filter that keeps 1 in 100", narrow, "trivial tool call", trivial, 8.0))
    filtered[-1] += f"; limit filled in {full} of {len(narrow)}"
    if full < len(narrow):
        filtered[-1] += f" {verdict(False)}"
    row = list(_row(at, plain, "trivial tool call", trivial, 8.0))
    row[-1] += f"; {sum(sizes['plain']) / len(plain):.1f} hits fit the answer"
    return [tuple(row), tuple(filtered)]


def _hits(server: Server, **given: Any) -> int:
    return len(server.call("search_memory", **given)["memories"])


def _each(texts: Sequence[Sequence[str]]) -> str:
    return f"{sum(map(len, texts)) / len(texts):.1f}"


def _row(what: str, ours: list[float], yardstick: str, bare: list[float], target: float) -> Row:
    ratio = p50(ours) / p50(bare)
    return (what, ms(p50(ours)), ms(p95(ours)), yardstick, ms(p50(bare)), f"{ratio:.2f}", f"<= {target:g}",
            verdict(ratio <= target))  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind through MCP")
    parser.add_argument("--batched", type=int, default=2_000, help="messages added in process")
    parser.add_argument("--episodes", type=int, default=10_000, help="episodes to search in")
    parser.add_argument("--search-embedder", default=DEFAULT_EMBEDDER)
    options = parser.parse_args()
    isolate()
    rows = [
        *add_through_mcp(options.calls),
        *asyncio.run(add_in_process(options.batched)),
        *asyncio.run(add_without_model(options.batched)),
        *search_through_mcp(options.episodes, options.calls, options.search_embedder),
    ]
    head = ("what", "p50 ms", "p95 ms", "against", "p50 ms", "ratio", "target", "")
    publish("speed", table(head, rows), write=options.write)


if __name__ == "__main__":
    main()
