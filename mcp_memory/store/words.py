"""The full-text index: one column of folded words in FTS5, read word by word.

A word is indexed as the keyed hash of its scope and itself. So a scope's postings, and the statistics that rank them, are
its own: nobody's ranking moves with what others store. And no word stands in the index that would have to be erased from
it. FTS5 keeps the postings; BM25 is computed in `ranking`, the same for every store.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcp_memory.ranking import Positions, Posting
from mcp_memory.store.database import Connection
from mcp_memory.store.keys import Keys

_SCOPES_IN_MEMORY = 64


class Lengths:
    """How many words each episode of a scope has, kept between searches: 16 bytes an episode. Positions only grow, and an
    episode never changes, so that what is kept is only ever extended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Positions, npt.NDArray[np.int64]]] = OrderedDict()

    def of(self, connection: Connection, scope: int, seqs: Positions) -> npt.NDArray[np.int64]:
        """The lengths of these episodes, which are sorted and indexed."""
        with self._lock:
            known, counts = self._kept.get(scope, (np.empty(0, np.int64), np.empty(0, np.int64)))
            last = int(known[-1]) if len(known) else 0
            if last < seqs[-1]:
                rows = connection.rows(
                    "SELECT seq, count FROM word_counts WHERE scope = ? AND seq > ? ORDER BY seq", (scope, last)
                )
                added = np.array(rows, np.int64).reshape(-1, 2)
                known, counts = np.concatenate([known, added[:, 0]]), np.concatenate([counts, added[:, 1]])
                self._kept[scope] = known, counts
            self._kept.move_to_end(scope)
            while len(self._kept) > _SCOPES_IN_MEMORY:
                self._kept.popitem(last=False)
            return counts[np.searchsorted(known, seqs)]


class Words:
    def __init__(self, connection: Connection, keys: Keys, lengths: Lengths, scope: int) -> None:
        self._db = connection
        self._keys = keys
        self._lengths = lengths
        self._scope = scope

    def put(self, documents: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Index the folded words of episodes, given by position."""
        self._db.executemany(
            "INSERT INTO words(rowid, tokens) VALUES (?, ?)",
            [(seq, " ".join(map(self._term, words))) for seq, words in documents],
        )
        self._db.executemany(
            "INSERT INTO word_counts VALUES (?, ?, ?)", [(self._scope, seq, len(words)) for seq, words in documents]
        )
        self._count(len(documents), sum(len(words) for _, words in documents))

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

    def _term(self, word: str) -> str:
        return self._keys.word(self._scope, word)

    def postings(self, words: Sequence[str], upto: int) -> list[Posting]:
        """Where each of these folded words stands in the scope, up to a position of the log; words that stand nowhere
        are left out."""
        found = []
        for word in words:
            docs = self._db.rows("SELECT doc FROM words_instances WHERE term = ?", (self._term(word),))
            seqs, counts = np.unique(np.array(docs, np.int64).reshape(-1), return_counts=True)
            seqs, counts = seqs[seqs <= upto], counts[seqs <= upto]
            if len(seqs):
                found.append(Posting(seqs, counts, self._lengths.of(self._db, self._scope, seqs)))
        return found
