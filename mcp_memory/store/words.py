"""The full-text index: one column of folded words in FTS5, read word by word.

A word is indexed as the keyed hash of its scope and itself. So a scope's postings, and the statistics that rank them, are
its own: nobody's ranking moves with what others store. And no word stands in the index that would have to be erased from
it. FTS5 keeps the postings; BM25 is computed in `ranking`, the same for every store.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcp_memory.ranking import Positions, Posting
from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys
from mcp_memory.types import Document

_SCOPES_IN_MEMORY = 64


Shares = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Known:
    """Of the episodes at `seqs`, which are sorted: how many words each has, and the share of it that is questions."""

    seqs: Positions
    lengths: npt.NDArray[np.int64]
    asks: Shares


_NOTHING = _Known(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


class Lengths:
    """What is counted of each episode of a scope, kept between searches: 20 bytes an episode. Positions only grow, and an
    episode never changes, so that what is kept is only ever extended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Known] = OrderedDict()

    def of(self, connection: Connection, scope: int, seqs: Positions) -> npt.NDArray[np.int64]:
        """The lengths of these episodes, which are sorted and indexed."""
        known = self._upto(connection, scope, int(seqs[-1]))
        return known.lengths[np.searchsorted(known.seqs, seqs)]

    def asks(self, connection: Connection, scope: int, seqs: Positions) -> Shares:
        """The share of each of these episodes, which are sorted, that is questions; 0 for one that is not indexed."""
        known = self._upto(connection, scope, int(seqs[-1]))
        if not len(known.seqs):
            return np.zeros(len(seqs), np.float32)
        at = np.minimum(np.searchsorted(known.seqs, seqs), len(known.seqs) - 1)
        return np.where(known.seqs[at] == seqs, known.asks[at], np.float32(0))

    def _upto(self, connection: Connection, scope: int, seq: int) -> _Known:
        with self._lock:
            known = self._kept.get(scope, _NOTHING)
            last = int(known.seqs[-1]) if len(known.seqs) else 0
            if last < seq:
                rows = connection.rows(
                    "SELECT seq, count, asks FROM word_counts WHERE scope = ? AND seq > ? ORDER BY seq", (scope, last)
                )
                seqs, lengths, asks = zip(*rows, strict=True) if rows else ((), (), ())
                known = _Known(
                    np.concatenate([known.seqs, np.array(seqs, np.int64)]),
                    np.concatenate([known.lengths, np.array(lengths, np.int64)]),
                    np.concatenate([known.asks, np.array(asks, np.float32)]),
                )
                self._kept[scope] = known
            if scope in self._kept:
                self._kept.move_to_end(scope)
            while len(self._kept) > _SCOPES_IN_MEMORY:
                self._kept.popitem(last=False)
            return known


class Words:
    def __init__(self, connection: Connection, keys: Keys, lengths: Lengths, scope: int) -> None:
        self._db = connection
        self._keys = keys
        self._lengths = lengths
        self._scope = scope

    def put(self, documents: Sequence[Document]) -> None:
        self._db.executemany(
            "INSERT INTO words(rowid, tokens) VALUES (?, ?)",
            [(document.seq, " ".join(map(self._term, document.words))) for document in documents],
        )
        self._db.executemany(
            "INSERT INTO word_counts(scope, seq, count, asks) VALUES (?, ?, ?, ?)",
            [(self._scope, document.seq, len(document.words), document.asks) for document in documents],
        )
        self._count(len(documents), sum(len(document.words) for document in documents))

    def remove(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            count = self._db.row(
                "DELETE FROM word_counts WHERE scope = ? AND seq = ? RETURNING count", (self._scope, seq)
            )
            if count is not None:
                self._db.execute("DELETE FROM words WHERE rowid = ?", (seq,))
                self._count(-1, -count)

    def clear(self) -> None:
        self.remove([row[0] for row in self._db.rows("SELECT seq FROM word_counts WHERE scope = ?", (self._scope,))])

    def _count(self, episodes: int, words: int) -> None:
        self._db.execute(
            "INSERT INTO word_totals VALUES (:scope, :episodes, :words) ON CONFLICT (scope) DO UPDATE "
            "SET episodes = episodes + :episodes, words = words + :words",
            {"scope": self._scope, "episodes": episodes, "words": words},
        )

    def totals(self, upto: int | None = None) -> tuple[int, float]:
        """How many episodes are indexed, up to a position of the log, and their mean length in words."""
        if upto is None:
            row = self._db.row("SELECT episodes, words FROM word_totals WHERE scope = ?", (self._scope,))
        else:
            row = self._db.row(
                "SELECT count(*), sum(count) FROM word_counts WHERE scope = ? AND seq <= ?", (self._scope, upto)
            )
        episodes, words = row or (0, 0)
        return episodes, words / episodes if episodes else 0.0

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        """In how many episodes of the scope each of these folded words stands."""
        return {
            word: self._db.row("SELECT doc FROM words_documents WHERE term = ?", (self._term(word),)) or 0
            for word in words
        }

    def asks(self, seqs: Positions) -> Shares:
        """The share of each of these episodes, which are sorted, that is questions."""
        return self._lengths.asks(self._db, self._scope, seqs) if len(seqs) else np.empty(0, np.float32)

    def _term(self, word: str) -> str:
        return self._keys.word(self._scope, word)

    def postings(self, words: Sequence[str], upto: int) -> list[Posting]:
        """Where each of these folded words stands in the scope, up to a position of the log; words that stand nowhere
        are left out."""
        found = []
        for word in words:
            docs = self._db.rows("SELECT doc FROM words_instances WHERE term = ?", (self._term(word),))
            seqs, counts = _counted(np.array(docs, np.int64).reshape(-1))
            seqs, counts = seqs[seqs <= upto], counts[seqs <= upto]
            if len(seqs):
                found.append(Posting(seqs, counts, self._lengths.of(self._db, self._scope, seqs)))
        return found


def _counted(places: Positions) -> tuple[Positions, npt.NDArray[np.int64]]:
    """Each position once, and how often it stands there; FTS5 gives them in order."""
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    return places[starts], np.diff(starts, append=len(places))
