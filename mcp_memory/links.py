"""Links: episodes of a scope that are alike, found when an episode is indexed. What is linked to a hit is one hop away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from mcp_memory.likeness import calibrated
from mcp_memory.protocols import Tx
from mcp_memory.types import Link

LINKED = 0.5
"""Likeness, on the embedder's calibrated scale, from which two episodes are linked."""

LOOKED_BACK = 50
"""Episodes of the scope that a new one is compared with: the latest before it."""


def found(tx: Tx, embedder: str, floor: float, seqs: Sequence[int]) -> list[Link]:
    """The links from these episodes to earlier ones, by the vectors of an embedder whose scale begins at `floor`."""
    earlier = {seq: tx.log.before(seq, LOOKED_BACK) for seq in seqs}
    owners, vectors = tx.vectors(embedder).sentences(list({*seqs, *chain.from_iterable(earlier.values())}))
    links = []
    for seq, before in earlier.items():
        first, begin, end = np.searchsorted(owners, (before[-1] if before else seq, seq, seq + 1))
        if first < begin < end:
            others, cosines = _likeness(owners[first:begin], vectors[begin:end] @ vectors[first:begin].T)
            for other, cosine in zip(others.tolist(), cosines.tolist(), strict=True):
                if (likeness := calibrated(cosine, floor)) >= LINKED:
                    links.append(Link(seq, other, min(1.0, likeness)))
    return links


def _likeness(
    owners: npt.NDArray[np.int64], cosines: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """How alike one episode is to others: the mean over its sentences of the closest one of the other, or the other way
    round where that is less, so that a greeting alone links nothing. `cosines[i, j]` is that of its sentence i and a
    sentence of `owners[j]`, which are sorted."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    told = np.maximum.reduceat(cosines, starts, axis=1).mean(axis=0)
    heard = np.add.reduceat(cosines.max(axis=0), starts) / np.diff(starts, append=len(owners))
    return owners[starts], np.minimum(told, heard)
