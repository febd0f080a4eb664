"""Erasure: what is left in the files of what was forgotten.

Texts made of words that nobody else uses are stored and forgotten again, in random order and in every way that there is.
Then every file of the data directory is searched for them: whole, and word by word, folded and stemmed as an index may
keep them. The command fails where anything is found.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import Stemmer
from common import Server, arguments, memory_server, publish, table, verdict

from mcp_memory.store.sqlite import FILE_NAME

HASHING = "hashing:256"
USERS = ("anna", "ben")
KEPT = 20
"""One in so many texts is never forgotten: it must stay, and its words may."""

LIST = 20
HEAD = 6
"""Bytes by which a word is looked for first: six letters, or two Chinese characters."""

Row = tuple[str, str, str]

_READER = """
import sys, apsw
database = apsw.Connection(sys.argv[1])
database.execute("BEGIN")
database.execute("SELECT count(*) FROM episodes").fetchall()
print("reading", flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True)
class Said:
    """One text, with everything of it that is stored."""

    user: str
    content: str
    speaker: str
    session_id: str
    group: str  # a value of its metadata; "" without one

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.content, self.speaker, self.group)))


class Stranger:
    """Words that stand in no dictionary, and so nowhere but where they were stored."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def word(self) -> str:
        letters = "".join(self._random.choice("bdfgklmnprstvz") + self._random.choice("aeiouy") for _ in range(4))
        return letters + self._random.choice(("", "r", "ning", "s", "ed", "lation", "ness"))

    def characters(self, count: int) -> str:
        return "".join(chr(self._random.randrange(0x4E00, 0x9FA5)) for _ in range(count))

    def text(self) -> str:
        a, b, c = (self.word() for _ in range(3))
        return self._random.choice(
            (
                f"The {a} of {b} was {c.upper()} on day {self._random.randrange(1000)}.",
                f"We saw {a.title()} and {b}. It was a {c}!",
                f"My name is {a.title()} and I live in {b.title()}.",
                f"I like {a}, but not {b} or {c}.",
                f"{self.characters(9)}，{self.characters(7)}。",
                f"我叫{self.characters(2)}，我喜欢{self.characters(3)}。",
            )
        )


def made_up(count: int) -> list[Said]:
    stranger, rng = Stranger(6), random.Random(7)
    groups = [stranger.word() for _ in range(max(2, count // 40))]
    speakers = [stranger.word().title() for _ in range(count // 20)]
    return [
        Said(
            rng.choice(USERS),
            stranger.text(),
            rng.choice(speakers) if number % 3 == 0 else "",
            f"s{number % 9}",
            "" if number % 2 else groups[0] if number % KEPT == 0 else rng.choice(groups[1:]),
        )
        for number in range(count)
    ]


def store(server: Server, said: Iterable[Said]) -> dict[str, Said]:
    """What was stored, by id."""
    stored = {}
    for one in said:
        answer = server.call("add_memory", content=one.content, speaker=one.speaker, user_id=one.user,
                             session_id=one.session_id, metadata={"group": one.group} if one.group else {})  # fmt: skip
        stored[answer["memories"][0]["id"]] = one
    return stored


def forget(server: Server, stored: dict[str, Said], rng: random.Random) -> dict[str, int]:
    """Forget all of these, by whichever way comes; how often each way was taken."""
    ways = {"single id": 0, f"list of {LIST}": 0, "filter": 0}
    left = dict(sorted(stored.items(), key=lambda _: rng.random()))
    while left:
        first, said = next(iter(left.items()))
        way = rng.choices(list(ways), (8, 2, 1))[0]
        if way == "filter" and said.group:
            gone = [id for id, one in left.items() if (one.user, one.group) == (said.user, said.group)]
            _confirmed(server, said.user, f"metadata.group = '{said.group}'", len(gone))
        elif way == "single id":
            gone = [first]
            server.call("forget", memory_id=first, user_id=said.user)
        else:
            way = f"list of {LIST}"
            gone = [id for id, one in left.items() if one.user == said.user][:LIST]
            server.call("forget", memory_ids=gone, user_id=said.user)
        ways[way] += 1
        for id in gone:
            del left[id]
    return ways


def _confirmed(server: Server, user: str, chosen: str, count: int) -> None:
    shown = server.call("forget", filter=chosen, user_id=user)
    assert shown["count"] == count, f"the preview of {chosen} shows {shown['count']}, not {count}"
    done = server.call("forget", filter=chosen, user_id=user, confirm=True, preview=shown["preview"])
    assert done["count"] == count


# ---- searching the files


def traces(said: Iterable[Said]) -> set[bytes]:
    """Everything by which these could be recognised in a file."""
    stem = Stemmer.Stemmer("porter").stemWord
    found: set[str] = set()
    for text in {text for one in said for text in one.texts}:
        found.add(text)
        for word in re.findall(r"[A-Za-z]{6,}", text):
            found |= {word, word.lower(), stem(word.lower())}
        for run in re.findall(r"[\u4e00-\u9fff]+", text):
            found |= {run[i : i + 2] for i in range(len(run) - 1)}
    return {trace.encode() for trace in found if len(trace.encode()) >= HEAD}


def seen(directory: Path, sought: set[bytes]) -> set[bytes]:
    """Which of these stand anywhere in the files of a directory."""
    heads: dict[bytes, list[bytes]] = {}
    for trace in sought:
        heads.setdefault(trace[:HEAD], []).append(trace)
    numbers = np.array([int.from_bytes(head, "little") for head in heads], np.uint64)
    found: set[bytes] = set()
    for file in (path for path in directory.rglob("*") if path.is_file()):
        data = file.read_bytes()
        for at in _candidates(data, numbers):
            found |= {trace for trace in heads[data[at : at + HEAD]] if data.startswith(trace, at)}
    return found


def _candidates(data: bytes, heads: np.ndarray[Any, np.dtype[np.uint64]]) -> list[int]:
    """Where in the data one of the heads stands."""
    places = len(data) - HEAD + 1
    if places <= 0:
        return []
    raw = np.frombuffer(data, np.uint8)
    windows = np.zeros(places, np.uint64)
    for i in range(HEAD):
        windows |= raw[i : places + i].astype(np.uint64) << np.uint64(8 * i)
    found: list[int] = np.flatnonzero(np.isin(windows, heads)).tolist()
    return found


# ---- the checks


def check(what: str, wanted: str, got: object, met: bool) -> tuple[Row, bool]:
    return (f"{what} (wanted: {wanted})", str(got), verdict(met)), met


def forgetting(directory: Path, embedder: str, count: int) -> list[tuple[Row, bool]]:
    said = made_up(count)
    kept_texts, doomed_texts = said[::KEPT], [one for number, one in enumerate(said) if number % KEPT]
    sought = traces(doomed_texts) - traces(kept_texts)
    with memory_server(directory, embedder) as server:
        kept, doomed = store(server, kept_texts), store(server, doomed_texts)
        for user in USERS:
            server.call("consolidate", user_id=user)
        before = len(seen(directory, sought))
        ways = forget(server, doomed, random.Random(8))
        during = len(seen(directory, sought))
        answered = sum(_answers(server, one) for one in doomed.values())
        still = sum(_answers(server, one) for one in kept.values())
    after = len(seen(directory, sought))
    how = ", ".join(f"{times} times by {way}" for way, times in ways.items())
    return [
        check(
            f"{len(doomed)} of {count} texts forgotten, {how}; traces sought", "many", len(sought), len(sought) > count
        ),
        check("found before", "most", before, before > len(sought) / 2),
        check("found after the last, the server running", "0", during, during == 0),
        check("found after the server's end", "0", after, after == 0),
        check("forgotten texts in answers", "0", answered, answered == 0),
        check("kept texts in answers", str(len(kept)), still, still == len(kept)),
    ]


def _answers(server: Server, said: Said) -> bool:
    memories = server.call("search_memory", query=said.content, user_id=said.user, limit=10, expand=0)["memories"]
    return said.content in [memory["content"] for memory in memories]


def forgetting_while_read(directory: Path, embedder: str) -> list[tuple[Row, bool]]:
    """Another process holds a snapshot in which the text still stands."""
    said = made_up(40)
    sought = traces(said)
    with memory_server(directory, embedder) as server:
        stored = store(server, said)
        reader = subprocess.Popen([sys.executable, "-c", _READER, str(directory / FILE_NAME)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)  # fmt: skip
        try:
            reader.stdout.readline()  # type: ignore[union-attr]
            answers = [server.call("forget", memory_ids=_of(stored, user), user_id=user)["erasure"] for user in USERS]
            held = len(seen(directory, sought))
        finally:
            reader.communicate(b"\n", timeout=30)
        server.call("add_memory", content="One more write.", user_id=USERS[0])
        left = len(seen(directory, sought))
    return [
        check("another process is reading: forget answers", "pending", ", ".join(answers), set(answers) == {"pending"}),
        check("traces found meanwhile", "any", held, True),
        check("traces found after it went and one more write", "0", left, left == 0),
    ]


def _of(stored: dict[str, Said], user: str) -> Sequence[str]:
    return [id for id, one in stored.items() if one.user == user]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--embedder", default=HASHING)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        checks = [
            *forgetting(Path(first), options.embedder, options.texts),
            *forgetting_while_read(Path(second), options.embedder),
        ]
    publish("erasure", table(("check", "got", ""), (row for row, _ in checks)), write=options.write)
    sys.exit(not all(met for _, met in checks))


if __name__ == "__main__":
    main()
