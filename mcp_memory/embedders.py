"""Questions and other texts as embedders see them: which embedder serves, its thread, and the vectors of late texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mcp_memory import likeness
from mcp_memory.errors import ProviderError
from mcp_memory.protocols import Embedder
from mcp_memory.workers import Worker

_CACHED_QUERIES = 512
_CACHED_TEXTS = 4_096
_AT_ONCE = 64  # texts that are embedded in one piece, so that others need not wait long


@dataclass(frozen=True, slots=True)
class Meaning:
    """A question as an embedder sees it. `floor`: the cosine below which nothing is close to it."""

    embedder: str
    vector: npt.NDArray[np.float32]
    floor: float


class Embedders:
    """The embedder that is set, and former ones whose vectors still serve: one model each, one thread for all, and the
    vectors of late questions."""

    def __init__(self, current: Embedder, worker: Worker, load: Callable[[str], Embedder]) -> None:
        self.current = current
        self.worker = worker
        self._load = load
        self._loaded = {current.name: current}
        self._meanings: OrderedDict[tuple[str, ...], Meaning] = OrderedDict()
        self._texts: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()

    def named(self, name: str) -> Embedder:
        """Raises ProviderError or SettingsError where it can't be loaded here."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    async def warm(self) -> None:
        await self.worker.run(self.current.load)

    async def meaning(self, query: str, name: str, told: str = "", weight: float = 1.0) -> Meaning:
        """The query as the embedder of that name sees it; with `told`, another form of it, what lies between the two, by
        that form's weight.

        Raises ProviderError where the embedder cannot answer.
        """
        forms = list(dict.fromkeys([query, told or query]))[: 2 if weight else 1]
        key = (name, *forms)
        if key not in self._meanings:
            embedder = self.named(name)

            def embed() -> Meaning:
                vectors = embedder.embed(forms, "query")
                between = vectors[0] + (weight * vectors[1] if len(forms) > 1 else 0)
                length = np.linalg.norm(between)
                return Meaning(name, between / length if length else vectors[0], embedder.floor)

            self._meanings[key] = await self.worker.run(embed)
            while len(self._meanings) > _CACHED_QUERIES:
                self._meanings.popitem(last=False)
        self._meanings.move_to_end(key)
        return self._meanings[key]

    async def cosines(self, query: str, texts: Sequence[str]) -> tuple[list[float], float]:
        """How close each text is to the query, and the floor of the scale. Raises ProviderError."""
        meaning = await self.meaning(query, self.current.name)
        missing = [said for said in dict.fromkeys(texts) if said not in self._texts]
        for at in range(0, len(missing), _AT_ONCE):
            piece = missing[at : at + _AT_ONCE]
            vectors = await self.worker.run(partial(self.current.embed, piece, "document"))
            self._texts.update(zip(piece, vectors, strict=True))
        cosines = [float(self._texts[said] @ meaning.vector) for said in texts]
        while len(self._texts) > _CACHED_TEXTS:
            self._texts.popitem(last=False)
        return cosines, meaning.floor

    async def likeness(self, said: str, others: Sequence[str]) -> list[float]:
        """How alike a text is to others, on the calibrated scale; not at all where the embedder cannot answer."""
        try:
            cosines, floor = await self.cosines(said, others)
        except ProviderError:
            return [0.0] * len(others)
        return [likeness.calibrated(cosine, floor) for cosine in cosines]
