"""What every language model promises, and what each does where it cannot keep it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, WithJsonSchema

from mcp_memory import assembly
from mcp_memory.assembly import load_language_model
from mcp_memory.errors import ProviderError, ProviderRejected, ProviderTruncated, SettingsError
from mcp_memory.protocols import LanguageModel, Replied
from mcp_memory.providers.openai import OpenAIEmbedder
from mcp_memory.settings import Settings
from mcp_memory.testing import WAIT_SECONDS, ScriptedModel, eventually

pytestmark = pytest.mark.anyio

Item = Annotated[Any, WithJsonSchema({"type": "object", "properties": {"value": {"type": "string"}}})]


class Commands(BaseModel):
    commands: list[Item]


class Anything(BaseModel):
    commands: list[Any]


CORK = {"command": "add", "value": "lives in Cork"}
LIST = json.dumps([CORK])


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class Endpoint:
    """A model endpoint on this machine that gives `answers` in their order and then `answer`; it waits until `free`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.answers: list[Answer] = []
        self.answer = Answer()
        self.left = 0
        self.free = threading.Event()
        self.free.set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                endpoint.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                endpoint.paths.append(self.path)
                endpoint.keys.append(self.headers.get("authorization"))
                endpoint.free.wait(WAIT_SECONDS)
                answer = endpoint.answers.pop(0) if endpoint.answers else endpoint.answer
                data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda request, client: None  # type: ignore[method-assign]  # who asked has left
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.free.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


def message(text: str, stop: str = "end_turn") -> dict[str, Any]:
    """As Anthropic's API answers."""
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "x",
        "content": [{"type": "thinking", "thinking": "[1]", "signature": ""}, {"type": "text", "text": text}],
        "stop_reason": {"cut": "max_tokens", "declined": "refusal"}.get(stop, stop),
        "usage": {"input_tokens": 12, "output_tokens": 3},
    }


def completion(text: str, stop: str = "stop") -> dict[str, Any]:
    """As OpenAI's API answers."""
    return {
        "choices": [
            {
                "message": {"role": "assistant", "content": text, "reasoning_content": "[1]"},
                "finish_reason": {"cut": "length", "declined": "content_filter"}.get(stop, stop),
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3},
    }


@dataclass(frozen=True)
class Provider:
    name: str
    answered: Callable[..., dict[str, Any]]
    key: str
    path: str
    shape: str
    """The field of a request that asks for the shape of the answer."""


PROVIDERS = [
    Provider("anthropic", message, "ANTHROPIC_API_KEY", "/v1/messages", "output_config"),
    Provider("openai", completion, "MCP_MEMORY_OPENAI_API_KEY", "/v1/chat/completions", "response_format"),
]


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.name)
def provider(request: pytest.FixtureRequest) -> Provider:
    found: Provider = request.param
    return found


@asynccontextmanager
async def asking(
    provider: str, endpoint: Endpoint | str, key: str = "a-key", **more: Any
) -> AsyncIterator[LanguageModel]:
    url = endpoint if isinstance(endpoint, str) else endpoint.url
    settings = {f"{provider}_base_url": url, f"{provider}_api_key": key} | more
    model = load_language_model(f"{provider}:tiny", Settings(**settings))
    assert model is not None
    try:
        yield model
    finally:
        await model.close()


async def replied(provider: Provider, endpoint: Endpoint | str, **more: Any) -> Replied[Commands]:
    async with asking(provider.name, endpoint, **more) as model:
        return await model.reply("You remember.", "I live in Cork.", Commands)


async def test_a_model_is_asked_and_answers(provider: Provider, endpoint: Endpoint) -> None:
    endpoint.answer.body = provider.answered(json.dumps({"commands": [CORK, 42, None]}))
    async with asking(provider.name, endpoint) as model:
        assert model.name == f"{provider.name}:tiny"
        model.load()
        model.load()
        reply = await model.reply("You remember.", "I live in Cork.", Commands)
    assert reply == Replied(Commands(commands=[CORK, 42, None]), sent=12, received=3)
    [asked] = endpoint.asked
    assert asked["model"] == "tiny"
    assert "Cork" in json.dumps(asked["messages"])
    assert "You remember." in json.dumps(asked)
    assert endpoint.paths == [provider.path]
    assert endpoint.keys == ["Bearer a-key"]


async def test_the_shape_is_asked_for(provider: Provider, endpoint: Endpoint) -> None:
    endpoint.answer.body = provider.answered(LIST)
    await replied(provider, endpoint)
    asked = endpoint.asked[0][provider.shape]
    assert "commands" in json.dumps(asked)
    assert "json_schema" in json.dumps(asked)


async def test_anthropic_is_not_asked_for_a_shape_that_it_has_no_place_for(endpoint: Endpoint) -> None:
    endpoint.answer.body = message(LIST)
    async with asking("anthropic", endpoint) as model:
        await model.reply("", "x", Anything)
        await model.reply("", "x", Commands)
    assert ["output_config" in asked for asked in endpoint.asked] == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        LIST,
        f"```json\n{LIST}\n```\nI found one fact.",
        f"<think>The user said {{something}}. Maybe [1,2]?</think>\n{LIST}",
        f"Here is what I would store:\n{LIST}\nLet me know if you need more.",
        LIST[:-1] + ",]",
    ],
)
async def test_an_endpoint_that_ignores_the_shape_is_understood(
    provider: Provider, endpoint: Endpoint, text: str
) -> None:
    endpoint.answer.body = provider.answered(text)
    assert (await replied(provider, endpoint)).value.commands == [CORK]


@pytest.mark.parametrize(
    ("text", "stop", "kind", "said"),
    [
        (LIST[:20], "cut", ProviderTruncated, "was cut"),
        (LIST, "cut", ProviderTruncated, "was cut"),
        (LIST[:20], "end_turn", ProviderTruncated, "was cut"),
        ("No.", "declined", ProviderRejected, "declined"),
        ("I found nothing.", "end_turn", ProviderRejected, "no JSON"),
        (" ", "end_turn", ProviderRejected, "empty"),
    ],
)
async def test_an_answer_that_cannot_be_used_says_why(
    provider: Provider, endpoint: Endpoint, text: str, stop: str, kind: type[ProviderError], said: str
) -> None:
    endpoint.answer.body = provider.answered(text, stop)
    with pytest.raises(ProviderRejected, match=said) as raised:
        await replied(provider, endpoint)
    assert type(raised.value) is kind


async def test_a_model_that_refuses_in_words_declined(endpoint: Endpoint) -> None:
    endpoint.answer.body = completion("")
    endpoint.answer.body["choices"][0]["message"] |= {"content": None, "refusal": "I will not."}
    with pytest.raises(ProviderRejected, match="declined"):
        await replied(PROVIDERS[1], endpoint)


async def test_an_answer_in_parts_is_put_together(endpoint: Endpoint) -> None:
    endpoint.answer.body = completion("")
    parts = [{"type": "thinking"}, {"type": "text", "text": LIST[:9]}, {"type": "text", "text": LIST[9:]}]
    endpoint.answer.body["choices"][0]["message"]["content"] = parts
    endpoint.answer.body["usage"] = None
    assert await replied(PROVIDERS[1], endpoint) == Replied(Commands(commands=[CORK]))


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (400, ProviderRejected, "does not take this request"),
        (401, ProviderError, "Set {key}"),
        (402, ProviderError, "402"),
        (403, ProviderError, "Set {key}"),
        (404, ProviderError, "does not know this model"),
        (413, ProviderRejected, "does not take this request"),
        (422, ProviderRejected, "does not take this request"),
        (429, ProviderError, "429"),
        (500, ProviderError, "500"),
        (501, ProviderError, "501"),
        (503, ProviderError, "503"),
        (504, ProviderError, "504"),
        (529, ProviderError, "529"),
    ],
)
async def test_a_status_is_a_failure_of_its_kind(
    provider: Provider, endpoint: Endpoint, status: int, kind: type[ProviderError], said: str
) -> None:
    endpoint.answer = Answer(status, {"error": {"type": "scripted", "message": "a secret word"}})
    with pytest.raises(ProviderError, match=said.format(key=provider.key)) as raised:
        await replied(provider, endpoint)
    assert type(raised.value) is kind
    assert str(raised.value).startswith(f"{provider.name}:tiny: the endpoint answered {status}")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("status", [429, 529, 503])
async def test_a_busy_endpoint_is_not_asked_again_at_once(provider: Provider, endpoint: Endpoint, status: int) -> None:
    endpoint.answer = Answer(status, {}, {"retry-after": "7.5"})
    with pytest.raises(ProviderError) as raised:
        await replied(provider, endpoint)
    assert raised.value.retry_after == 7.5
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("-3", 0, 0),
        ("soon", 0, 0),
        ("nan", 0, 0),
        ("inf", 0, 0),
        ("9e9", 86_400, 86_400),
        ("in an hour", 3_000, 3_600),
        ("Mon, 02 Mar 2020 09:00:00 -0000", 0, 0),
    ],
)
async def test_a_wait_that_is_asked_for_is_read(endpoint: Endpoint, said: str, least: float, most: float) -> None:
    if said == "in an hour":
        said = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    endpoint.answer = Answer(429, {}, {"retry-after": said})
    with pytest.raises(ProviderError) as raised:
        await replied(PROVIDERS[1], endpoint)
    assert least <= raised.value.retry_after <= most


@pytest.mark.parametrize(
    "body", [b"<html>Sign in</html>", b"", [], "text", {}, {"content": "x"}, {"choices": []}, {"choices": 1}]
)
async def test_an_answer_that_is_none_is_the_fault_of_the_endpoint(
    provider: Provider, endpoint: Endpoint, body: Any
) -> None:
    endpoint.answer.body = body
    with pytest.raises(ProviderError) as raised:
        await replied(provider, endpoint)
    assert type(raised.value) is ProviderError


async def test_an_endpoint_that_is_not_there_does_not_answer(provider: Provider) -> None:
    with pytest.raises(ProviderError, match="does not answer") as raised:
        await replied(provider, "http://127.0.0.1:9/v1")
    assert type(raised.value) is ProviderError


async def test_an_endpoint_that_hangs_is_left(provider: Provider, endpoint: Endpoint) -> None:
    endpoint.free.clear()
    with pytest.raises(ProviderError, match=r"no answer within 1 s|does not answer \(ReadTimeout\)"):
        await replied(provider, endpoint, language_model_seconds=1)
    assert len(endpoint.asked) == 1


async def test_a_question_that_is_given_up_leaves_nothing_behind(provider: Provider, endpoint: Endpoint) -> None:
    endpoint.free.clear()
    before = asyncio.all_tasks()
    async with asking(provider.name, endpoint) as model:
        question = asyncio.create_task(model.reply("", "x", Commands))
        await eventually(lambda: len(endpoint.asked) == 1)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        assert asyncio.all_tasks() == before
        endpoint.free.set()
        endpoint.answer.body = provider.answered(LIST)
        assert (await model.reply("", "x", Commands)).value.commands == [CORK]


async def test_a_model_can_be_asked_after_it_was_closed(provider: Provider, endpoint: Endpoint) -> None:
    endpoint.answer.body = provider.answered(LIST)
    async with asking(provider.name, endpoint) as model:
        await model.reply("", "x", Commands)
        await model.close()
        await model.close()
        await model.reply("", "x", Commands)


async def test_questions_at_the_same_time_load_a_model_once(provider: Provider, endpoint: Endpoint) -> None:
    endpoint.answer.body = provider.answered(LIST)
    async with asking(provider.name, endpoint) as model:
        replies = await asyncio.gather(*(model.reply("", "x", Commands) for _ in range(5)))
    assert [reply.value.commands for reply in replies] == [[CORK]] * 5


async def test_anthropic_without_shapes_is_asked_once_more_and_remembered(endpoint: Endpoint) -> None:
    unknown = {"error": {"type": "invalid_request_error", "message": "output_config: Extra inputs are not permitted"}}
    endpoint.answers = [Answer(400, unknown)]
    endpoint.answer.body = message(LIST)
    async with asking("anthropic", endpoint) as model:
        for _ in range(2):
            assert (await model.reply("", "x", Commands)).value.commands == [CORK]
    assert ["output_config" in asked for asked in endpoint.asked] == [True, False, False]


async def test_anthropic_is_not_asked_twice_for_another_reason(endpoint: Endpoint) -> None:
    endpoint.answer = Answer(400, {"error": {"type": "invalid_request_error", "message": "prompt is too long"}})
    with pytest.raises(ProviderRejected):
        await replied(PROVIDERS[0], endpoint)
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [400, 422, 501])
@pytest.mark.parametrize("missing", [1, 2])
async def test_openai_falls_back_to_the_shape_that_is_taken_and_remembers(
    endpoint: Endpoint, status: int, missing: int
) -> None:
    endpoint.answers = [Answer(status, {"error": "response_format"})] * missing
    endpoint.answer.body = completion(LIST)
    async with asking("openai", endpoint) as model:
        for _ in range(2):
            assert (await model.reply("", "x", Commands)).value.commands == [CORK]
    kinds = [asked.get("response_format", {}).get("type") for asked in endpoint.asked]
    tried = ["json_schema", "json_object", None][: missing + 1]
    assert kinds == [*tried, tried[-1]]


async def test_a_request_that_is_refused_in_any_shape_teaches_nothing(endpoint: Endpoint) -> None:
    endpoint.answers = [Answer(400, {"error": "too long"})] * 3
    endpoint.answer.body = completion(LIST)
    async with asking("openai", endpoint) as model:
        with pytest.raises(ProviderRejected):
            await model.reply("", "x", Commands)
        await model.reply("", "x", Commands)
    assert endpoint.asked[-1]["response_format"]["type"] == "json_schema"


async def test_a_local_endpoint_needs_no_key(endpoint: Endpoint) -> None:
    endpoint.answer.body = completion(LIST)
    await replied(PROVIDERS[1], endpoint, key="")
    assert endpoint.keys == [None]


@pytest.mark.parametrize("key", ["", " \n"])
async def test_without_a_key_anthropic_says_what_to_set(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "of another program")
    async with asking("anthropic", endpoint, key) as model:
        model.load()
        with pytest.raises(ProviderError, match="Set ANTHROPIC_API_KEY"):
            await model.reply("", "x", Commands)
    assert endpoint.asked == []


async def test_a_text_that_an_embedder_refuses_is_rejected(endpoint: Endpoint) -> None:
    embedder = OpenAIEmbedder("tiny", endpoint.url)
    for status, kind in ((413, ProviderRejected), (429, ProviderError)):
        endpoint.answer = Answer(status, {}, {"retry-after": "3"})
        with pytest.raises(ProviderError, match=str(status)) as raised:
            await asyncio.to_thread(embedder.embed, ["x"], "document")
        assert type(raised.value) is kind
    assert raised.value.retry_after == 3
    embedder.close()


def test_the_agent_is_no_model() -> None:
    assert load_language_model("agent", Settings()) is None


@pytest.mark.parametrize("name", ["nosuch:model", "anthropic:", "openai:", "plain", ""])
def test_a_name_that_names_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="language model"):
        load_language_model(name, Settings())


async def test_another_distribution_can_offer_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoint("theirs", f"{__name__}:theirs", assembly.LANGUAGE_MODEL_ENTRY_POINTS)
    monkeypatch.setattr(
        assembly, "entry_points", lambda group, name: [offered] if (group, name) == (offered.group, "theirs") else []
    )
    model = load_language_model("theirs:big:one", Settings())
    assert model is not None
    assert model.name == "theirs:big:one"
    with pytest.raises(SettingsError):
        assembly.load_embedder("theirs:big:one", Settings())


def theirs(model: str) -> ScriptedModel:
    return ScriptedModel(name=f"theirs:{model}")


def test_a_model_imports_nothing_heavy_until_it_is_loaded() -> None:
    program = """
import sys
import mcp_memory.server
from mcp_memory.assembly import load_language_model
from mcp_memory.settings import Settings
load_language_model("anthropic:x", Settings())
print(*sorted({"anthropic", "json_repair", "torch"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


async def test_a_script_is_followed_in_its_order() -> None:
    model = ScriptedModel([CORK], f"```\n{LIST}\n```", LIST[:-1], ProviderError("busy", 5), default="[]")
    assert (await model.reply("You remember.", "x", Commands)).value.commands == [CORK]
    assert (await model.reply("", "x", Commands)).value.commands == [CORK]
    with pytest.raises(ProviderTruncated):
        await model.reply("", "x", Commands)
    with pytest.raises(ProviderError, match="busy"):
        await model.reply("", "x", Commands)
    model.replies.append(lambda system, user: {"commands": [user]})
    assert (await model.reply("", "said", Commands)).value.commands == ["said"]
    assert (await model.reply("", "x", Commands)).value.commands == []
    assert model.asked[0] == ("You remember.", "x")
    assert len(model.asked) == 6


async def test_a_script_can_be_held() -> None:
    model = ScriptedModel([1], [2])
    with model.held():
        questions = [asyncio.create_task(model.reply("", str(n), Commands)) for n in range(2)]
        await model.reached(2)
        assert not any(question.done() for question in questions)
    assert [reply.value.commands for reply in await asyncio.gather(*questions)] == [[1], [2]]
