"""`openai:<model>`: any endpoint with OpenAI's `/embeddings` (OpenAI, Ollama, LM Studio, vLLM, llama.cpp)."""

from __future__ import annotations

import httpx2
import numpy as np
import numpy.typing as npt

from mcp_memory.errors import ProviderError, SettingsError
from mcp_memory.protocols import Purpose
from mcp_memory.providers.calibration import floor_of, unit

_TIMEOUT_SECONDS = 30.0


class OpenAIEmbedder:
    """`base_url` is the endpoint up to and with `/v1`; `api_key` may be empty for a local server."""

    paid = True

    def __init__(self, model: str, base_url: str, api_key: str = "") -> None:
        if not model:
            raise SettingsError("embedder openai: name the model after the colon (openai:nomic-embed-text).")
        self.name = f"openai:{model}"
        self._model = model
        self._dimensions = 0
        self._floor: float | None = None
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.Client(base_url=base_url.rstrip("/") + "/", headers=headers, timeout=_TIMEOUT_SECONDS)

    @property
    def dimensions(self) -> int:
        self.load()
        return self._dimensions

    @property
    def floor(self) -> float:
        if self._floor is None:
            self._floor = floor_of(lambda texts: self.embed(texts, "document"))
        return self._floor

    def load(self) -> None:
        if not self._dimensions:
            self.embed(["ready"], "query")

    def close(self) -> None:
        self._client.close()

    def embed(self, texts: list[str], purpose: Purpose) -> npt.NDArray[np.float32]:
        try:
            response = self._client.post("embeddings", json={"model": self._model, "input": texts})
            response.raise_for_status()
            data = sorted(response.json()["data"], key=lambda item: item["index"])
            vectors = np.array([item["embedding"] for item in data], np.float32)
        except httpx2.HTTPStatusError as error:
            raise ProviderError(f"{self.name}: the endpoint answered {error.response.status_code}") from error
        except httpx2.HTTPError as error:
            raise ProviderError(f"{self.name}: the endpoint does not answer ({type(error).__name__})") from error
        except (KeyError, TypeError, ValueError) as error:
            raise ProviderError(f"{self.name}: the answer is not an embedding") from error
        if (
            vectors.ndim != 2
            or len(vectors) != len(texts)
            or vectors.shape[1] != (self._dimensions or vectors.shape[1])
        ):
            raise ProviderError(f"{self.name}: the answer has the wrong shape {vectors.shape}")
        self._dimensions = vectors.shape[1]
        return unit(vectors)
