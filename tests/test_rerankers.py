"""Rerankers: the order after a second look, page by page, and what happens when one fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from conftest import Opening

from mcp_memory.assembly import load_reranker
from mcp_memory.errors import ProviderError, ProviderMissing, SettingsError
from mcp_memory.memory import Memory
from mcp_memory.providers.reranking import CrossEncoderReranker, HttpReranker, OnnxReranker
from mcp_memory.rerankers import RERANKED, Bm25Reranker, RrfReranker
from mcp_memory.settings import Settings
from mcp_memory.types import Message, Question, Scope

pytestmark = pytest.mark.anyio

DAY = datetime(2026, 1, 5, 9, tzinfo=UTC)
TEXTS = ["the kettle is on", "a red boat on the lake", "the boat", "lake lake lake"]


class Backwards:
    """The last text is the best; remembers what it was asked."""

    name = "test:backwards"

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    def load(self) -> None:
        pass

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self.asked.append((query, list(texts)))
        return [float(place) for place in range(len(texts))]


class Broken(Backwards):
    def __init__(self, failure: Exception | None = None, scores: list[float] | None = None) -> None:
        super().__init__()
        self._failure, self._scores = failure, scores

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        if self._failure is not None:
            raise self._failure
        return self._scores or []


async def parcels(memory: Memory, scope: Scope, count: int) -> None:
    messages = [
        Message(f"parcel {i} on shelf {'blue ' * (i % 4)}", session_id=f"s{i}", speaker="Ann",
                occurred_at=DAY + timedelta(minutes=i))
        for i in range(count)
    ]  # fmt: skip
    await memory.add(scope, messages)


def ids(hits: Sequence[Any]) -> list[str]:
    return [hit.episode.id for hit in hits]


QUESTION = Question("parcel on the blue shelf", limit=100, expand=0)


async def test_a_reranker_orders_what_was_found_and_says_so(opening: Opening, scope: Scope) -> None:
    async with opening() as memory:
        await parcels(memory, scope, 6)
        before = await memory.search(scope, QUESTION)
    backwards = Backwards()
    async with opening(reranker=backwards) as memory:
        answer = await memory.search(scope, QUESTION)
        assert sorted(ids(answer.found.hits)) == sorted(ids(before.found.hits))
        assert ids(answer.found.hits)[0] == ids(before.found.hits)[-1]
        assert ids(answer.found.hits)[-1] == ids(before.found.hits)[0]
        assert [hit.score for hit in answer.found.hits] == [hit.score for hit in before.found.hits]
        assert answer.found.hits[0].why["reranker"] > 0
        assert answer.found.hits[-1].why["reranker"] < 0
        assert answer.lags == ()
        ((query, texts),) = backwards.asked
        assert query == QUESTION.query
        assert all(said.startswith("Ann: parcel") for said in texts)
        around = await memory.search(scope, Question("parcel on the blue shelf", limit=2, expand=3))
        assert all(not hit.around for hit in around.found.hits)  # each stands in a session of its own


async def test_pages_of_reranked_hits_hold_every_hit_once(opening: Opening, scope: Scope) -> None:
    backwards = Backwards()
    async with opening(reranker=backwards) as memory:
        await parcels(memory, scope, RERANKED + 20)
        whole = ids((await memory.search(scope, QUESTION)).found.hits)
        paged: list[str] = []
        cursor = ""
        while True:
            answer = await memory.search(scope, Question(QUESTION.query, limit=9, expand=0), cursor)
            paged += ids(answer.found.hits)
            if not (cursor := answer.next()):
                break
    assert paged == whole
    assert len(set(whole)) == RERANKED + 20
    assert {len(texts) for _, texts in backwards.asked} == {RERANKED}
    assert len(backwards.asked) == 1


@pytest.mark.parametrize(
    "broken",
    [
        Broken(ProviderError("the service does not answer")),
        Broken(ZeroDivisionError()),
        Broken(scores=[1.0]),
        Broken(scores=[float("nan")] * 6),
    ],
    ids=["refuses", "raises", "too few", "no numbers"],
)
async def test_a_failing_reranker_leaves_the_order_and_says_so(opening: Opening, scope: Scope, broken: Broken) -> None:
    async with opening() as memory:
        await parcels(memory, scope, 6)
        before = await memory.search(scope, QUESTION)
    async with opening(reranker=broken) as memory:
        answer = await memory.search(scope, QUESTION)
    assert ids(answer.found.hits) == ids(before.found.hits)
    assert [lag.view for lag in answer.lags] == ["reranker/test:backwards"]
    assert answer.lags[0].reason


class Finds:
    """Thinks highly of one text."""

    name = "test:finds"

    def __init__(self, sought: str) -> None:
        self._sought = sought

    def load(self) -> None:
        pass

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        return [float(self._sought in said) for said in texts]


async def test_what_follows_a_text_that_is_thought_highly_of_rises_with_it(opening: Opening, scope: Scope) -> None:
    said = ["parcel in the hall", "Do you know where the parcel is?", "It is the blue parcel", "parcel on the stairs"]
    async with opening(reranker=Finds("where the")) as memory:
        await memory.add(scope, [Message(line, session_id="ab"[i in (1, 2)], occurred_at=DAY + timedelta(minutes=i))
                                 for i, line in enumerate(said)])  # fmt: skip
        answer = await memory.search(scope, Question("parcel", limit=2, expand=3))
    assert [hit.episode.content for hit in answer.found.hits] == said[1:3]


async def test_nothing_found_needs_no_reranker(opening: Opening, scope: Scope) -> None:
    backwards = Backwards()
    async with opening(reranker=backwards) as memory:
        assert (await memory.search(scope, QUESTION)).found.hits == ()
    assert backwards.asked == []


def test_words_and_ranks_make_an_order_without_a_model() -> None:
    by_words = Bm25Reranker().rerank("red boat", TEXTS)
    assert by_words.index(max(by_words)) == 1
    assert by_words[0] == by_words[3] == 0
    by_ranks = RrfReranker().rerank("red boat", TEXTS)
    assert by_ranks.index(max(by_ranks)) == 1
    assert by_ranks[0] > by_ranks[3]  # no word decides: the order in which they were found does
    assert Bm25Reranker().rerank("", []) == RrfReranker().rerank("", []) == []


async def test_a_reranker_is_loaded_before_the_first_question_and_may_fail_to(opening: Opening) -> None:
    class Heavy(Bm25Reranker):
        loads = 0

        def load(self) -> None:
            self.loads += 1
            raise RuntimeError("no room")

    heavy = Heavy()
    async with opening(reranker=heavy) as memory:
        await memory.warm()
    assert heavy.loads == 1


def test_a_reranker_is_known_by_its_name(settings: Settings) -> None:
    assert load_reranker("", settings) is load_reranker("identity", settings) is None
    for name in ("bm25", "rrf", "onnx:ms-marco-minilm-l12", "cross-encoder:some/model"):
        made = load_reranker(name, settings)
        assert made is not None
        assert made.name == name
    for name in ("magic", "magic:wand", "cross-encoder:", "http:nowhere"):
        with pytest.raises(SettingsError):
            load_reranker(name, settings)


def test_a_model_that_is_not_there_is_an_error_with_advice(tmp_path: Any) -> None:
    with pytest.raises(ProviderMissing):
        OnnxReranker(str(tmp_path / "nothing")).rerank("q", TEXTS)
    with pytest.raises(ProviderMissing):
        CrossEncoderReranker(str(tmp_path / "nothing")).rerank("q", TEXTS)


class Service(BaseHTTPRequestHandler):
    answer: Any = None
    status = 200
    asked: Any = None

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked = json.loads(body) | {"authorization": self.headers["Authorization"]}
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/rerank"
        server.shutdown()
        thread.join()


def test_a_service_is_asked_in_the_common_shape(service: str) -> None:
    Service.status = 200
    Service.answer = {"results": [{"index": 2, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]}
    reranker = HttpReranker(f"{service}#tiny", "key")
    scores = reranker.rerank("boat?", TEXTS)
    assert Service.asked == {
        "query": "boat?", "documents": TEXTS, "top_n": 4, "model": "tiny", "authorization": "Bearer key",
    }  # fmt: skip
    assert scores[2] == 0.9
    assert scores[0] == 0.1
    assert max(scores[1], scores[3]) < 0.1
    reranker.close()


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, {}),
        (200, {}),
        (200, []),
        (200, {"results": [{"index": 9, "relevance_score": 1}]}),
        (200, {"results": [1]}),
    ],
)
def test_a_service_that_fails_is_an_error(service: str, status: int, answer: Any) -> None:
    Service.status, Service.answer = status, answer
    reranker = HttpReranker(service)
    with pytest.raises(ProviderError):
        reranker.rerank("boat?", TEXTS)
    reranker.close()
    absent = HttpReranker("http://127.0.0.1:9/rerank")
    with pytest.raises(ProviderError, match="does not answer"):
        absent.rerank("boat?", TEXTS)
    absent.close()
