"""`hashing:<dimensions>`: vectors of hashed words and character trigrams. No model: it finds likeness of spelling only.

For tests, and for machines on which nothing else fits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mcp_memory import text
from mcp_memory.errors import SettingsError
from mcp_memory.protocols import Purpose
from mcp_memory.providers.calibration import unit


class HashingEmbedder:
    floor = 0.1
    paid = False

    def __init__(self, model: str) -> None:
        if not model.isdigit() or not 8 <= int(model) <= 8192:
            raise SettingsError(f"embedder hashing:{model}: say how many dimensions, from 8 to 8192 (hashing:256).")
        self.name = f"hashing:{model}"
        self.dimensions = int(model)

    def load(self) -> None:
        pass

    def embed(self, texts: list[str], purpose: Purpose) -> npt.NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, said in zip(vectors, texts, strict=True):
            for grams in _grams(said):
                hashed = zlib.crc32(grams.encode())
                row[hashed % self.dimensions] += 1 if hashed & 0x8000_0000 else -1
        return unit(vectors)


def _grams(said: str) -> Iterator[str]:
    for word in text.words(said):
        yield word
        padded = f"<{word}>"
        if len(word) > 3:
            yield from (padded[i : i + 3] for i in range(len(padded) - 2))
