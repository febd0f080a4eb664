"""`hashing:<dimensions>`: vectors of hashed words and character trigrams. No model: it finds likeness of spelling only.

For tests, and for machines on which nothing else fits.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mcp_memory import text
from mcp_memory.errors import SettingsError
from mcp_memory.protocols import Purpose
from mcp_memory.providers.calibration import unit

_CACHED = 32_768


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
        hashed = [b"".join(map(_keys, text.words(said))) for said in texts]
        rows = np.repeat(np.arange(len(texts)), [len(keys) // 8 for keys in hashed])
        keys = np.frombuffer(b"".join(hashed), np.int64)
        places = rows * self.dimensions + (keys >> 1) % self.dimensions
        counts = np.bincount(places, (keys & 1) * 2.0 - 1.0, len(texts) * self.dimensions)
        return unit(counts.reshape(len(texts), self.dimensions).astype(np.float32))


@lru_cache(_CACHED)
def _keys(word: str) -> bytes:
    """The hashes of a word and of its trigrams, as 64-bit integers; the last bit is the sign, the others the place."""
    padded = f"<{word}>"
    grams = [padded[i : i + 3] for i in range(len(padded) - 2)] if len(word) > 3 else []
    return np.array([zlib.crc32(gram.encode()) for gram in (word, *grams)], np.int64).tobytes()
