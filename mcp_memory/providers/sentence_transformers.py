"""`sentence-transformers:<model or path>`: any model of that library, on this machine. The extra `[local]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mcp_memory.errors import ProviderError, ProviderMissing, SettingsError
from mcp_memory.protocols import Purpose
from mcp_memory.providers.calibration import floor_of, unit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class SentenceTransformersEmbedder:
    paid = False

    def __init__(self, model: str) -> None:
        if not model:
            raise SettingsError("embedder sentence-transformers: name a model or a folder after the colon.")
        self.name = f"sentence-transformers:{model}"
        self._name = model
        self._model: SentenceTransformer | None = None
        self._floor: float | None = None

    @property
    def dimensions(self) -> int:
        return int(self._loaded().get_embedding_dimension() or 0)

    @property
    def floor(self) -> float:
        if self._floor is None:
            self._floor = floor_of(lambda texts: self.embed(texts, "document"))
        return self._floor

    def load(self) -> None:
        self._loaded()

    def embed(self, texts: list[str], purpose: Purpose) -> npt.NDArray[np.float32]:
        model = self._loaded()
        encode = model.encode_query if purpose == "query" else model.encode_document
        try:
            return unit(np.asarray(encode(texts, show_progress_bar=False), np.float32))
        except Exception as error:  # the library raises what torch raises
            raise ProviderError(f"{self.name} failed: {type(error).__name__}") from error

    def _loaded(self) -> SentenceTransformer:
        if self._model is None:
            self._model = loaded("SentenceTransformer", self._name, self.name)
        return self._model


def loaded(kind: str, model: str, name: str) -> Any:
    """A model of that class of the library's. Raises ProviderMissing, in which it is called `name`."""
    try:
        import sentence_transformers  # imports torch: seconds and 400 MB
    except ImportError as error:
        raise ProviderMissing(
            f"{name} needs the extra: pip install 'mcp-memory[local]' (torch for your machine first)"
        ) from error
    try:
        return getattr(sentence_transformers, kind)(model)
    except Exception as error:  # a missing model, no network, a broken file: all kinds of exceptions
        raise ProviderMissing(
            f"{name} could not be loaded ({type(error).__name__}): check the name, or name a local folder."
        ) from error
