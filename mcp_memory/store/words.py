"""The full-text index: one column of folded words in FTS5, read word by word.

Each word is prefixed by its scope, so that a scope's postings, and the statistics that rank them, are its own: nobody's
ranking moves with what others store. FTS5 keeps and erases the postings; BM25 is computed in `ranking`, the same for
every store.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcp_memory.ranking import Posting
from mcp_memory.store.database import Connection

_SEPARATOR = "·"  # the `ascii` tokenizer takes every character beyond ASCII for a part of a word


class Words:
    def __init__(self, connection: Connection, scope: int) -> None:
        self._db = connection
        self._scope = scope

    def put(self, documents: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Index the folded words of episodes, given by position."""
        self._db.executemany(
            "INSERT INTO words(rowid, tokens) VALUES (?, ?)",
            [(seq, " ".join(f"{self._scope}{_SEPARATOR}{word}" for word in words)) for seq, words in documents],
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

    def postings(self, words: Sequence[str], upto: int) -> list[Posting]:
        """Where each of these folded words stands in the scope, up to a position of the log; words that stand nowhere
        are left out."""
        found = []
        for word in words:
            rows = self._db.rows(
                """SELECT w.doc, count(*), c.count
                   FROM words_instances w CROSS JOIN word_counts c ON c.scope = ? AND c.seq = w.doc
                   WHERE w.term = ? AND w.doc <= ? GROUP BY w.doc""",
                (self._scope, f"{self._scope}{_SEPARATOR}{word}", upto),
            )
            if rows:
                seqs, counts, lengths = zip(*rows, strict=True)
                found.append(Posting(seqs, counts, lengths))
        return found
