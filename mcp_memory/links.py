"""Links: episodes of a scope that are alike, found when they are indexed. What is linked to a hit is one hop away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcp_memory.likeness import calibrated_all
from mcp_memory.protocols import Tx
from mcp_memory.ranking import Positions
from mcp_memory.types import Link

LINKED = 0.5
"""Likeness, on the embedder's calibrated scale, from which two episodes are linked."""

LOOKED_BACK = 50
"""Episodes of the scope that a new one is compared with: the latest before it."""

Vectors = npt.NDArray[np.float32]


def found(tx: Tx, embedder: str, floor: float, seqs: Sequence[int]) -> list[Link]:
    """The links from the episodes at these positions, which follow each other in the log and have their vectors by now, to
    those before each of them. `floor` is where the embedder's scale begins."""
    row = [*reversed(tx.log.before(seqs[0], LOOKED_BACK)), *seqs]
    owners, vectors = tx.vectors(embedder).sentences(row)
    first = int(np.searchsorted(owners, seqs[0]))
    if first == len(owners):
        return []
    new, all_, cosines = _likeness(owners[first:], vectors[first:], owners, vectors)
    # to three digits: the rest differs with the size of a batch, and a view derived again must give the same
    alike = calibrated_all(cosines, floor).astype(np.float64).round(3)
    places = np.searchsorted(row, new)[:, None] - np.searchsorted(row, all_)[None, :]
    at, other = np.nonzero((alike >= LINKED) & (places > 0) & (places <= LOOKED_BACK))
    return list(map(Link, new[at].tolist(), all_[other].tolist(), alike[at, other].tolist()))


def _likeness(
    owners: Positions, vectors: Vectors, other_owners: Positions, others: Vectors
) -> tuple[Positions, Positions, Vectors]:
    """How alike each episode is to each other one, as a mean of cosines: over its sentences, of the closest one of the
    other; or the other way round where that is less, so that a greeting alone links nothing. Owners are sorted."""
    rows, columns = (np.flatnonzero(np.diff(one, prepend=-1)) for one in (owners, other_owners))
    cosines = vectors @ others.T
    told = np.add.reduceat(np.maximum.reduceat(cosines, columns, axis=1), rows, axis=0)
    heard = np.add.reduceat(np.maximum.reduceat(cosines, rows, axis=0), columns, axis=1)
    told /= np.diff(rows, append=len(owners))[:, None]
    heard /= np.diff(columns, append=len(other_owners))[None, :]
    return owners[rows], other_owners[columns], np.minimum(told, heard)
