"""The vectors of one embedder in one scope, and which of them are nearest.

The blobs beside their derivatives are the truth: a scale (32-bit float) and one 8-bit integer a dimension, which keeps a
cosine to 0.001. A scope of up to `IN_MEMORY` derivatives is compared in memory. A larger one is searched through an index
where faiss is there (indexes.py), else by sqlite-vec's vec0, else by a scan in slices; whichever chooses the candidates,
they are compared again by their blobs. Memory and slices are exact; vec0 and the index miss one of the nearest now and then
(docs/benchmarks.md has the recall).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import cast

import numpy as np
import numpy.typing as npt

from mcp_memory.errors import ProviderError
from mcp_memory.ranking import Positions
from mcp_memory.store.database import Connection
from mcp_memory.store.index import State
from mcp_memory.store.indexes import WHOLE, Indexes
from mcp_memory.store.matrices import FAR, Close, Matrices, Packed, Rows, Vector, rows_of
from mcp_memory.types import Derivative, DerivativeKind

IN_MEMORY = 100_000
"""Derivatives of a scope that are kept in memory: 50 MB of 512 dimensions."""

FRESH = 256
"""Vectors newer than the index that every search compares, before somebody has them encoded."""

SENTENCES = 16
"""Of each episode, where episodes are compared with each other: the rest of a long text takes no part in it."""

_FOLLOWED = 65_536  # how far an index may be behind before it is of no use
_SLOW_SECONDS = 0.5
_KINDS: tuple[DerivativeKind, ...] = ("sentence", "context")
_CHUNK = 128  # vec0's default of 1024 vectors a chunk makes every small scope a large file
_OVERSAMPLING = 4
_SLICE = 8_192
_VEC0_MOST = 4_096  # the largest k that vec0 takes

log = logging.getLogger(__name__)


class Vectors:
    """`view` is the embedder's name; a name that was never stored has no vectors yet."""

    def __init__(
        self, connection: Connection, matrices: Matrices, indexes: Indexes, scope: int, epoch: int, embedder: str
    ) -> None:
        self._db = connection
        self._matrices = matrices
        self._indexes = indexes
        self._scope = scope
        self._epoch = epoch
        self._name = embedder
        self._note = ""
        self._embedder: int = connection.row("SELECT id FROM embedders WHERE name = ?", (embedder,)) or 0

    # ---- writing

    def replace(self, seqs: Sequence[int], derivatives: Sequence[Derivative], vectors: Sequence[Vector]) -> None:
        """Store what was derived from these episodes, in place of what was there. Vectors are of unit length; one that is
        not finite, or zero, is left out.

        Raises ProviderError where they are of another length than the embedder's earlier ones.
        """
        old = self._db.rows(
            "SELECT d.id, d.embedder FROM json_each(?) j CROSS JOIN derivatives d ON d.seq = j.value "
            "WHERE d.embedder = ?",
            (json.dumps(seqs), self._embedder),
        )
        if old:
            self._remove(old)
            self._begin_epoch()
        stacked = np.array(vectors, np.float32).reshape(len(derivatives), -1)
        usable = np.isfinite(stacked).all(axis=1) & (np.abs(stacked).max(axis=1, initial=0) > 0)
        if not usable.any():
            return
        if not self._embedder:
            self._begin(stacked.shape[1])
        if stacked.shape[1] != self._dimensions():
            raise ProviderError(
                f"{self._name} now gives {stacked.shape[1]} dimensions instead of {self._dimensions()}: it is another "
                "model under the same name. Use its own name, or run `mcp-memory rebuild vectors`."
            )
        last: int = self._db.row("SELECT seq FROM sqlite_sequence WHERE name = 'derivatives'") or 0
        packed = Packed.of(np.where(usable[:, None], stacked, 0))
        rows = [
            (
                self._embedder,
                self._scope,
                _KINDS.index(derivative.kind),
                derivative.seq,
                derivative.sources[1] if len(derivative.sources) > 1 else 0,
                blob,
            )
            for derivative, blob, kept in zip(derivatives, packed.blobs(), usable, strict=True)
            if kept
        ]
        self._db.executemany(
            "INSERT INTO derivatives(embedder, scope, kind, seq, other, vector) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        if self._db.nearest and not self._indexes.enabled:
            if self._behind(last):
                self._catch_up_index()
            else:
                ids = range(last + 1, last + 1 + len(rows))
                quantised = rows_of(_quantised(packed.vectors()[usable]))
                self._index([(id, self._scope, vector) for id, vector in zip(ids, quantised, strict=True)])

    def _begin_epoch(self) -> None:
        self._db.execute("UPDATE scopes SET epoch = epoch + 1 WHERE id = ?", (self._scope,))

    def _dimensions(self) -> int:
        dimensions: int = self._db.row("SELECT dimensions FROM embedders WHERE id = ?", (self._embedder,))
        return dimensions

    def _begin(self, dimensions: int) -> None:
        self._db.execute("INSERT INTO embedders(name, dimensions) VALUES (?, ?)", (self._name, dimensions))
        self._embedder = self._db.row("SELECT id FROM embedders WHERE name = ?", (self._name,))

    # ---- vec0: behind its own cursor wherever a process wrote or removed that has not the extension, or has faiss

    def _behind(self, last: int) -> bool:
        indexed = self._db.row("SELECT indexed FROM embedders WHERE id = ?", (self._embedder,))
        return bool(
            self._db.row(
                "SELECT 1 FROM derivatives WHERE id > ? AND id <= ? AND embedder = ? LIMIT 1",
                (indexed, last, self._embedder),
            )
        )

    def _catch_up_index(self) -> None:
        rows = self._db.rows(
            "SELECT id, scope, vector FROM derivatives WHERE embedder = ? "
            "AND id > (SELECT indexed FROM embedders WHERE id = ?) ORDER BY id LIMIT ?",
            (self._embedder, self._embedder, _SLICE),
        )
        if rows:
            ids, scopes, blobs = zip(*rows, strict=True)
            quantised = rows_of(_quantised(Packed.read(blobs).vectors()))
            self._index(list(zip(ids, scopes, quantised, strict=True)))

    def _index(self, rows: Sequence[tuple[int, int, bytes]]) -> None:
        if not rows:
            return
        if not self._has_index(self._embedder):
            self._db.execute(
                f"CREATE VIRTUAL TABLE nearest_{self._embedder} USING vec0("
                f"scope integer partition key, vector int8[{self._dimensions()}], chunk_size={_CHUNK})"
            )
        self._db.executemany(
            f"INSERT INTO nearest_{self._embedder}(rowid, scope, vector) VALUES (?, ?, vec_int8(?))", rows
        )
        self._db.execute("UPDATE embedders SET indexed = ? WHERE id = ?", (rows[-1][0], self._embedder))

    def _has_index(self, embedder: int) -> bool:
        return bool(self._db.row("SELECT 1 FROM sqlite_master WHERE name = ?", (f"nearest_{embedder}",)))

    def _remove_from_index(self, embedder: int, ids: Sequence[tuple[int]]) -> None:
        if not self._has_index(embedder):
            return
        if not self._db.nearest:
            self._empty_index(embedder)
            return
        # vec0 leaves the bytes of a deleted row in its chunk: write zeros over them first
        zeros = bytes(self._db.row("SELECT dimensions FROM embedders WHERE id = ?", (embedder,)))
        for chunk, offset in self._db.rows(
            f"SELECT r.chunk_id, r.chunk_offset FROM json_each(?) j CROSS JOIN nearest_{embedder}_rowids r "
            "ON r.rowid = j.value",
            (json.dumps([id for (id,) in ids]),),
        ):
            self._db.overwrite(f"nearest_{embedder}_vector_chunks00", "vectors", chunk, offset * len(zeros), zeros)
        self._db.executemany(f"DELETE FROM nearest_{embedder} WHERE rowid = ?", ids)

    def _empty_index(self, embedder: int) -> None:
        """Empty an index that this process cannot maintain, through its shadow tables; one that can fills it again."""
        for (name,) in self._db.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE ? ESCAPE '!'",
            (f"nearest!_{embedder}!_%",),
        ):
            if not name.endswith("_info"):
                self._db.execute(f'DELETE FROM "{name}"')
        self._db.execute("UPDATE embedders SET indexed = 0 WHERE id = ?", (embedder,))

    # ---- removing

    def remove(self, seqs: Sequence[int]) -> list[int]:
        """Take out what was derived from these episodes; the positions of the other episodes whose context derivative
        went with it."""
        rows = self._db.rows(
            """SELECT d.id, d.embedder, d.seq FROM json_each(:seqs) j CROSS JOIN derivatives d ON d.seq = j.value
               WHERE d.embedder = :embedder
               UNION SELECT d.id, d.embedder, d.seq FROM json_each(:seqs) j CROSS JOIN derivatives d
               ON d.other = j.value AND d.other > 0 WHERE d.embedder = :embedder""",
            {"seqs": json.dumps(seqs), "embedder": self._embedder},
        )
        self._remove([row[:2] for row in rows])
        return sorted({row[2] for row in rows} - set(seqs))

    def clear(self) -> None:
        self._remove(
            self._db.rows(
                "SELECT id, embedder FROM derivatives WHERE embedder = ? AND scope = ?", (self._embedder, self._scope)
            ),
            whole=True,
        )
        self._begin_epoch()

    def _remove(self, rows: Sequence[tuple[int, int]], *, whole: bool = False) -> None:
        if rows and self._indexes.exists(self._embedder, self._scope):
            outdated = [WHOLE] if whole else [id for id, _ in rows]
            self._db.executemany(
                "INSERT OR IGNORE INTO outdated(embedder, scope, id) VALUES (?, ?, ?)",
                [(self._embedder, self._scope, id) for id in outdated],
            )
        self._db.executemany("DELETE FROM derivatives WHERE id = ?", [(id,) for id, _ in rows])
        for embedder in {embedder for _, embedder in rows}:
            self._remove_from_index(embedder, [(id,) for id, owner in rows if owner == embedder])

    # ---- reading

    def close(self, query: Vector, limit: int, within: Sequence[int] | None, upto: int) -> Close:
        """The episodes that are near a query: all of them in a scope that is kept in memory, else those of which a
        sentence or the context is among the `limit` nearest.

        `within` restricts the search to these positions, and `upto` to those up to it, before anything is chosen.
        """
        if not self._embedder or len(query) != self._dimensions():
            return FAR
        rows = self._matrix()
        with self._matrices.threads.limit(limits=1, user_api="blas"):  # more of them spin, on a busy machine for long
            if rows is None:
                compared = self._compared(query, self.near(query, limit, within, upto))
                return replace(compared, note=self._note)
            allowed = rows.seqs <= upto
            if within is not None:
                allowed &= np.isin(rows.seqs, np.fromiter(within, np.int64, len(within)))
            return rows.close(query, allowed) if len(rows.seqs) else FAR

    def near(self, query: Vector, limit: int, within: Sequence[int] | None, upto: int) -> Sequence[int]:
        """The episodes of a scope too large for memory that are worth comparing: the index's part of `close`."""
        if within is not None and len(within) <= _OVERSAMPLING * limit:
            return [seq for seq in within if seq <= upto]
        state = self._state()
        if state is not None:
            found = state.nearest(query, _OVERSAMPLING * limit, within, upto)
            newer, read = self._nearest_scanned(query, limit, within, upto, state.last)
            if read >= FRESH:
                self._indexes.follow(self._embedder, self._scope)
            return list(dict.fromkeys([*found, *newer]))
        started = time.monotonic()
        indexed = self._db.nearest and self._has_index(self._embedder) and not self._behind(2**62)
        if indexed and (within is not None or not self._goes_beyond(upto)):  # vec0 chooses before `upto` could
            seqs = self._nearest_indexed(query, limit, within, upto)
        else:
            seqs, _ = self._nearest_scanned(query, limit, within, upto)
        if (seconds := time.monotonic() - started) > _SLOW_SECONDS:
            advice = (
                "its index is being built" if self._indexes.enabled else "pip install 'mcp-memory[scale]' indexes it"
            )
            self._note = f"searching this large memory took {seconds:.1f} s: {advice}"
            log.warning("%s", self._note)
        return seqs

    def _state(self) -> State | None:
        """The index as it may be used in this snapshot; None where there is none, or it is far behind."""
        if not self._indexes.enabled:
            return None
        state = self._indexes.state(self._embedder, self._scope)
        if state is None:
            return None
        if state.epoch < self._epoch:
            alive = self._db.rows(
                "SELECT id FROM derivatives WHERE embedder = ? AND scope = ? AND id > ? AND id <= ?",
                (self._embedder, self._scope, state.base_last, state.last),
            )
            newest = self._db.row("SELECT seq FROM sqlite_sequence WHERE name = 'derivatives'")
            index = self._indexes.of(self._embedder, self._scope)
            ids = np.fromiter((id for (id,) in alive), np.int64, len(alive))
            state = index.prune(state, ids, newest, self._epoch)
        far = self._db.row(
            "SELECT 1 FROM derivatives WHERE embedder = ? AND scope = ? AND id > ? LIMIT 1 OFFSET ?",
            (self._embedder, self._scope, state.last, _FOLLOWED),
        )
        if far:
            self._indexes.follow(self._embedder, self._scope)
        return None if far else state

    def _goes_beyond(self, upto: int) -> bool:
        """Whether anything was derived from later episodes."""
        last = self._db.row(
            "SELECT max(seq) FROM (SELECT seq FROM derivatives WHERE embedder = ? AND scope = ? ORDER BY id DESC LIMIT 64)",
            (self._embedder, self._scope),
        )
        return (last or 0) > upto

    def _compared(self, query: Vector, seqs: Sequence[int]) -> Close:
        """These episodes, compared exactly."""
        rows = self._db.rows(
            "SELECT d.seq, d.kind, d.vector FROM json_each(?) j CROSS JOIN derivatives d ON d.seq = j.value "
            "WHERE d.embedder = ?",
            (json.dumps(seqs), self._embedder),
        )
        if not rows:
            return FAR
        owners, kinds, blobs = zip(*rows, strict=True)
        compared = Rows(np.array(owners, np.int64), np.array(kinds, np.bool_), Packed.read(blobs))
        return compared.close(query, np.ones(len(compared.seqs), np.bool_))

    def sentences(self, seqs: Sequence[int]) -> tuple[Positions, Vector]:
        """The vectors of the first sentences of these episodes, at most `SENTENCES` of each, and whose they are, by
        position."""
        rows = self._db.rows(
            """SELECT d.seq, d.vector FROM json_each(:seqs) j CROSS JOIN derivatives d ON d.id IN
               (SELECT id FROM derivatives WHERE seq = j.value AND embedder = :embedder AND kind = :kind
                ORDER BY id LIMIT :most)""",
            {
                "seqs": json.dumps(sorted(seqs)),
                "embedder": self._embedder,
                "kind": _KINDS.index("sentence"),
                "most": SENTENCES,
            },
        )
        if not rows:
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        owners, blobs = zip(*rows, strict=True)
        return np.array(owners, np.int64), Packed.read(blobs).vectors()

    def likeness(self, seqs: Sequence[int]) -> npt.NDArray[np.float32]:
        """For each pair of these episodes, the cosine of the two sentences of theirs that are closest to each other; 0
        where one has no vectors yet."""
        owners, vectors = self.sentences(seqs)
        places = {seq: place for place, seq in enumerate(seqs)}
        at = np.array([places[seq] for seq in owners.tolist()], np.int64)
        closest = np.zeros((len(seqs), len(seqs)), np.float32)
        np.maximum.at(closest, (at[:, None], at[None, :]), vectors @ vectors.T)
        return closest

    def count(self) -> int:
        counted: int = self._db.row(
            "SELECT count(*) FROM derivatives WHERE embedder = ? AND scope = ?", (self._embedder, self._scope)
        )
        return counted

    def _matrix(self) -> Rows | None:
        """The scope's vectors as of this snapshot; None where there are too many to keep."""
        with self._matrices.lock:
            matrix = self._matrices.of(self._embedder, self._scope, self._epoch)
            if matrix.epoch < self._epoch:  # a reader of an older snapshot leaves it as it is
                if matrix.count:
                    ids = self._db.rows(
                        "SELECT id FROM derivatives WHERE embedder = ? AND scope = ?", (self._embedder, self._scope)
                    )
                    matrix.keep([id for (id,) in ids], self._epoch)
                else:
                    matrix = self._matrices.begin(self._embedder, self._scope, self._epoch)
            if matrix.too_large:
                return None
            if not matrix.count and self._is_large():
                self._matrices.begin(self._embedder, self._scope, self._epoch, too_large=True)
                return None
            rows = self._db.rows(
                "SELECT id, seq, kind, vector FROM derivatives WHERE embedder = ? AND scope = ? AND id > ? "
                "ORDER BY id LIMIT ?",
                (self._embedder, self._scope, matrix.last, IN_MEMORY + 1 - matrix.count),
            )
            if matrix.count + len(rows) > IN_MEMORY:
                self._matrices.begin(self._embedder, self._scope, self._epoch, too_large=True)
                return None
            if rows:
                matrix.extend(rows)
            return matrix.rows()

    def _is_large(self) -> bool:
        return bool(
            self._db.row(
                "SELECT 1 FROM derivatives WHERE embedder = ? AND scope = ? LIMIT 1 OFFSET ?",
                (self._embedder, self._scope, IN_MEMORY),
            )
        )

    def _nearest_indexed(self, query: Vector, limit: int, within: Sequence[int] | None, upto: int) -> list[int]:
        restriction, values = "", cast("tuple[str | int, ...]", ())
        if within is not None:
            restriction = (
                "AND rowid IN (SELECT d.id FROM json_each(?) j CROSS JOIN derivatives d ON d.seq = j.value "
                "WHERE d.embedder = ?)"
            )
            values = (json.dumps([seq for seq in within if seq <= upto]), self._embedder)
        ids = self._db.rows(
            f"SELECT rowid FROM nearest_{self._embedder} "
            f"WHERE vector MATCH vec_int8(?) AND scope = ? AND k = ? {restriction}",
            (_quantised(query[None])[0].tobytes(), self._scope, min(_VEC0_MOST, _OVERSAMPLING * limit), *values),
        )
        rows = self._db.rows(
            "SELECT DISTINCT d.seq FROM json_each(?) j CROSS JOIN derivatives d ON d.id = j.value WHERE d.seq <= ?",
            (json.dumps([id for (id,) in ids]), upto),
        )
        return [seq for (seq,) in rows]

    def _nearest_scanned(
        self, query: Vector, limit: int, within: Sequence[int] | None, upto: int, last: int = 0
    ) -> tuple[list[int], int]:
        """The episodes, and how many vectors were read: all of those above the id `last`."""
        wanted = _OVERSAMPLING * limit
        allowed: npt.NDArray[np.int64] | None = None
        best, similarities, read = np.empty(0, np.int64), np.empty(0, np.float32), 0
        while rows := self._db.rows(
            "SELECT id, seq, vector FROM derivatives WHERE embedder = ? AND scope = ? AND id > ? ORDER BY id LIMIT ?",
            (self._embedder, self._scope, last, _SLICE),
        ):
            ids, owners, blobs = zip(*rows, strict=True)
            last, read, seqs = ids[-1], read + len(rows), np.array(owners, np.int64)
            if within is not None and allowed is None:
                allowed = np.fromiter(within, np.int64, len(within))
            may = (seqs <= upto) & (True if allowed is None else np.isin(seqs, allowed))
            if may.any():
                packed = Packed.read(list(compress(blobs, may)))
                best = np.concatenate([best, seqs[may]])
                similarities = np.concatenate([similarities, packed.cosines(query)])
            if len(best) > wanted:
                nearest = np.argpartition(-similarities, wanted)[:wanted]
                best, similarities = best[nearest], similarities[nearest]
        return np.unique(best).tolist(), read


def large_scopes(connection: Connection) -> int:
    """How many pairs of embedder and scope have more vectors than are kept in memory."""
    counted: int = connection.row(
        "SELECT count(*) FROM (SELECT 1 FROM derivatives GROUP BY embedder, scope HAVING count(*) > ?)", (IN_MEMORY,)
    )
    return counted


def _quantised(vectors: Vector) -> npt.NDArray[np.int8]:
    """Unit vectors as 8-bit integers. A component of a unit vector of d dimensions has a standard deviation of
    1/sqrt(d); four of them are spread over the range."""
    scale = 32 * np.sqrt(vectors.shape[1])
    quantised: npt.NDArray[np.int8] = np.clip(np.rint(vectors * scale), -127, 127).astype(np.int8)
    return quantised
