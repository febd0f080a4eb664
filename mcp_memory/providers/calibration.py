"""Where a model's scale of likeness begins. Cosines differ by model: unrelated texts may stand at 0.1 or at 0.8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

UNRELATED = (
    "The ferry leaves at nine from the northern pier.",
    "She paints birds on old kitchen tiles.",
    "Our tax return is due at the end of the month.",
    "The compiler rejects the second template argument.",
    "He broke his wrist while skating last winter.",
    "Boil the lentils with a bay leaf for half an hour.",
    "这家公司去年换了三任总经理。",
    "我昨晚梦见自己在沙漠里骑骆驼。",
    "请把窗户关上，外面风很大。",
    "量子计算机的误差率仍然偏高。",
)
"""Sentences of everyday subjects that have nothing to do with each other, in the two languages we promise."""


def floor_of(embed: Callable[[list[str]], npt.NDArray[np.float32]]) -> float:
    """The cosine that unrelated texts rarely reach: mean plus two standard deviations over all pairs of `UNRELATED`."""
    vectors = embed(list(UNRELATED))
    cosines = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    return float(np.clip(cosines.mean() + 2 * cosines.std(), 0.0, 0.98))


def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows of unit length; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: npt.NDArray[np.float32] = (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32, copy=False)
    return scaled
