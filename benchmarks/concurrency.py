"""Concurrency: several processes on one file, processes that are killed, facts that are nearly alike.

Every check is a count of what must be so; the command fails where one is not.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
from common import Gone, Server, arguments, memory_server, publish, table, verdict
from corpus import Turn, turns

from mcp_memory.store.sqlite import FILE_NAME

HASHING = "hashing:256"

Row = tuple[str, str, str, str]


def check(what: str, wanted: object, got: object) -> Row:
    return (what, str(wanted), str(got), verdict(got == wanted))


# ---- four at once


def adding_at_once(embedder: str, processes: int, each: int) -> list[Row]:
    said = turns(processes * each, seed=4)
    with tempfile.TemporaryDirectory() as folder:

        def add(number: int) -> None:
            with memory_server(Path(folder), embedder) as server:
                for turn in said[number::processes]:
                    server.call("add_memory", content=turn.content, session_id=f"process-{number}")

        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(add, range(processes)))
        with memory_server(Path(folder), embedder) as server:
            found = sum(_found(server, turn) for turn in said)
            listed = len(_listed(server, *(f"process-{number}" for number in range(processes))))
    what = f"{processes} processes, {each} adds each, one file"
    return [
        check(f"{what}: found by their own words", len(said), found),
        check(f"{what}: listed", len(said), listed),
    ]


def _found(server: Server, turn: Turn) -> bool:
    memories = server.call("search_memory", query=turn.content, limit=10, expand=0)["memories"]
    return turn.content in [memory["content"] for memory in memories]


def _listed(server: Server, *sessions: str) -> list[str]:
    """The contents of whole sessions, page by page."""
    contents: list[str] = []
    for session in sessions:
        cursor = ""
        while True:
            page = server.call("search_memory", session_id=session, limit=100, cursor=cursor, max_tokens=50_000)
            contents += [memory["content"] for memory in page["memories"]]
            cursor = page["next"]
            if not cursor:
                break
    return contents


# ---- killed


def killing(embedder: str, rounds: int) -> list[Row]:
    """Each round starts a server on the same file, adds as fast as it can, and kills it at a random moment: in every third
    round while the file is being opened, otherwise while adding. What was not acknowledged is sent again, as by a client
    that comes back."""
    rng = random.Random(5)
    said = turns(rounds * 300, seed=5)
    acknowledged = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            with memory_server(Path(folder), embedder) as server:
                timer = threading.Timer(rng.uniform(0.02, 1.0), server.process.kill)
                if number % 3 == 0:
                    timer.start()
                with contextlib.suppress(Gone):
                    while acknowledged < len(said):
                        _add(server, said[acknowledged])
                        acknowledged += 1
                        if timer.ident is None:
                            timer.start()
                timer.join()
                server.kill()
        with memory_server(Path(folder), embedder) as server:
            while server.call("consolidate").get("more"):
                pass
            sample = rng.sample(said[:acknowledged], min(100, acknowledged))
            found = sum(_found(server, turn) for turn in sample)
        lost, *checks = _sound(Path(folder) / FILE_NAME, {turn.content for turn in said[:acknowledged]})
    what = f"kill -9, {rounds} times"
    return [
        check(f"{what}: of {acknowledged} acknowledged adds, lost", 0, lost),
        check(f"{what}: of {len(sample)} of them, found by search", len(sample), found),
        *(check(f"{what}: {name}", wanted, got) for name, wanted, got in checks),
    ]


def _add(server: Server, turn: Turn) -> None:
    server.call("add_memory", content=turn.content, session_id=turn.session_id, timestamp=turn.timestamp)


CONTENTS = """SELECT CAST(body AS TEXT) ->> '$.content' FROM episodes CROSS JOIN texts ON position = seq"""


def _sound(path: Path, acknowledged: set[str]) -> Iterator[Any]:
    """The number of acknowledged texts that are not in the log; then name, wanted and got of each check of the file."""
    database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)

    def one(sql: str) -> Any:
        return database.execute(sql).fetchall()[0][0]

    stored = [content for (content,) in database.execute(CONTENTS)]
    yield len(acknowledged - set(stored))
    yield "stored twice", 0, len(stored) - len(set(stored))
    yield "integrity_check", "ok", one("PRAGMA integrity_check")
    for name, left, right in (
        ("episodes without words", "SELECT seq FROM episodes", "SELECT rowid FROM words"),
        ("episodes without a word count", "SELECT seq FROM episodes", "SELECT seq FROM word_counts"),
        ("episodes without vectors", "SELECT seq FROM episodes", "SELECT seq FROM derivatives"),
        ("words without an episode", "SELECT rowid FROM words", "SELECT seq FROM episodes"),
        ("vectors without an episode", "SELECT seq FROM derivatives", "SELECT seq FROM episodes"),
    ):
        yield name, 0, one(f"SELECT count(*) FROM ({left} EXCEPT {right})")
    for (index,) in database.execute("SELECT name FROM sqlite_master WHERE name GLOB 'nearest_*_rowids'").fetchall():
        vectors = f"SELECT id FROM derivatives WHERE embedder = {index.split('_')[1]}"
        for left, right in ((f"SELECT rowid FROM {index}", vectors), (vectors, f"SELECT rowid FROM {index}")):
            yield (
                "vectors that only one of table and index has",
                0,
                one(f"SELECT count(*) FROM ({left} EXCEPT {right})"),
            )
    twice = "SELECT 1 FROM derivatives WHERE kind = 1 GROUP BY embedder, seq HAVING count(*) > 1"
    yield "episodes with two context vectors", 0, one(f"SELECT count(*) FROM ({twice})")
    database.close()


# ---- nearly alike


def alike() -> list[str]:
    """199 facts, each of which differs from another one in a number, a date or a name only."""
    facts = [f"The dentist's appointment is on {day} May at {hour}:15." for day in range(1, 26) for hour in (9, 10)]
    facts += [f"The code of locker {number} is {number * 37 + 1000}." for number in range(1, 41)]
    names = ("Anna", "Anne", "Anja", "Hanna", "Hannah", "Joan", "Joanna", "Jon", "John", "Jonas")
    facts += [f"{name} owes me {euros} euros for the ferry." for name in names for euros in (15, 51, 150)]
    facts += [f"Flight LH{number} leaves at gate A{gate}." for number in (440, 441, 404) for gate in range(1, 11)]
    facts += [f"张{name}的生日是{month}月{month + 9}日。" for name in "伟玮卫" for month in range(1, 11)]
    facts += [f"每天早上{hour}点{minute}分吃药。" for hour in (6, 7, 8, 9) for minute in (5, 15, 25, 35, 50)]
    return facts[:199]


def keeping_apart(embedder: str) -> list[Row]:
    facts = alike()
    assert len(facts) == len(set(facts)) == 199
    with tempfile.TemporaryDirectory() as folder, memory_server(Path(folder), embedder) as server:
        answers = [server.call("add_memory", content=fact, session_id="alike")["memories"][0] for fact in facts]
        kept = set(_listed(server, "alike")) & set(facts)
    return [
        check("facts that are nearly alike: kept", 199, len(kept)),
        check("facts that are nearly alike: ids", 199, len({answer["id"] for answer in answers})),
        check("facts that are nearly alike: taken for a duplicate", 0, sum(a["duplicate"] for a in answers)),
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="kills")
    parser.add_argument("--embedder", default=HASHING)
    options = parser.parse_args()
    rows = [
        *adding_at_once(options.embedder, 4, 25),
        *killing(options.embedder, options.rounds),
        *keeping_apart(options.embedder),
    ]
    publish("concurrency", table(("check", "wanted", "got", ""), rows), write=options.write)
    sys.exit(any(wanted != got for _, wanted, got, _ in rows))


if __name__ == "__main__":
    main()
