"""`openai:<model>`: any endpoint with OpenAI's `/embeddings` or `/chat/completions` (OpenAI, Ollama, LM Studio, vLLM,
llama.cpp)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
import numpy as np
import numpy.typing as npt

from mcp_memory.errors import ProviderError, ProviderRejected, ProviderTruncated, SettingsError
from mcp_memory.protocols import Purpose, Replied
from mcp_memory.providers.calibration import floor_of, unit
from mcp_memory.providers.statuses import failure
from mcp_memory.reading import read

T = TypeVar("T")

_TIMEOUT_SECONDS = 30.0

_SHAPES = ("json_schema", "json_object", "")
"""How the shape of an answer is asked for, from the strictest on; "" for not at all."""

_NOT_THIS_SHAPE = (400, 422, 501)
"""What endpoints answer that do not know a `response_format`, and 400 and 422 for much else."""


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
        self._client = httpx2.Client(base_url=_folder(base_url), headers=_headers(api_key), timeout=_TIMEOUT_SECONDS)

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
        with _failures(self.name):
            response = self._client.post("embeddings", json={"model": self._model, "input": texts})
            response.raise_for_status()
        try:
            data = sorted(response.json()["data"], key=lambda item: item["index"])
            vectors = np.array([item["embedding"] for item in data], np.float32)
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


class OpenAIModel:
    """`base_url` is the endpoint up to and with `/v1`; `api_key` may be empty for a local server; `timeout` seconds bound a
    reply.

    No length and no temperature are asked for: some endpoints refuse them, and the time bounds an answer that does not end.
    """

    def __init__(self, model: str, base_url: str, api_key: str = "", timeout: float = 120.0) -> None:
        if not model:
            raise SettingsError("language model openai: name the model after the colon (openai:qwen3).")
        self.name = f"openai:{model}"
        self._model = model
        self._base_url = _folder(base_url)
        self._headers = _headers(api_key)
        self._timeout = timeout
        self._shape = 0
        self._client: httpx2.AsyncClient | None = None
        self._loading = threading.Lock()

    def load(self) -> None:
        self._loaded()

    async def reply(self, system: str, user: str, output_type: type[T]) -> Replied[T]:
        client = await asyncio.to_thread(self._loaded)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            with _failures(self.name):
                async with asyncio.timeout(self._timeout):
                    response = await self._ask(client, messages, output_type)
        except TimeoutError:
            raise ProviderError(f"{self.name}: no answer within {self._timeout:g} s") from None
        try:
            answer = response.json()
            text, usage = self._text(answer["choices"][0]), answer.get("usage") or {}
            sent, received = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ProviderError(f"{self.name}: what the endpoint answered is not a completion") from error
        return Replied(read(text, output_type), sent, received)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _loaded(self) -> httpx2.AsyncClient:
        with self._loading:
            if self._client is None:  # its certificates take a fifth of a second
                self._client = httpx2.AsyncClient(base_url=self._base_url, headers=self._headers, timeout=self._timeout)
            return self._client

    async def _ask(
        self, client: httpx2.AsyncClient, messages: list[dict[str, str]], output_type: type[Any]
    ) -> httpx2.Response:
        """The endpoint's answer, in the strictest shape that it takes, which is remembered."""
        for shape in range(self._shape, len(_SHAPES)):
            body: dict[str, Any] = {"model": self._model, "messages": messages, "stream": False}
            response = await client.post("chat/completions", json=body | _response_format(shape, output_type))
            if response.status_code not in _NOT_THIS_SHAPE:
                break
        response.raise_for_status()
        self._shape = shape
        return response

    def _text(self, choice: dict[str, Any]) -> str:
        """What a finished answer says, without the reasoning that some endpoints put beside it."""
        message = choice["message"]
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part["text"] for part in content if part.get("type") == "text")
        if choice.get("finish_reason") == "length":
            raise ProviderTruncated(f"{self.name}: the answer was cut at the length that the endpoint allows")
        if choice.get("finish_reason") == "content_filter" or message.get("refusal"):
            raise ProviderRejected(f"{self.name}: the model declined to answer")
        if not content.strip():
            raise ProviderRejected(f"{self.name}: the answer is empty")
        return str(content)


def _response_format(shape: int, output_type: type[Any]) -> dict[str, Any]:
    kind = _SHAPES[shape]
    if kind == "json_schema":
        schema = {"name": output_type.__name__, "schema": output_type.model_json_schema()}
        return {"response_format": {"type": kind, kind: schema}}
    return {"response_format": {"type": kind}} if kind else {}


def _folder(base_url: str) -> str:
    return base_url.rstrip("/") + "/"


def _headers(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Turns what goes wrong on the way to an endpoint and back into a ProviderError that says it."""
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise failure(
            name,
            error.response.status_code,
            error.response.headers,
            key="MCP_MEMORY_OPENAI_API_KEY",
            address="MCP_MEMORY_OPENAI_BASE_URL",
        ) from error
    except httpx2.HTTPError as error:
        raise ProviderError(f"{name}: the endpoint does not answer ({type(error).__name__})") from error
