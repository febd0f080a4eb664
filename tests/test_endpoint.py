"""The scripted endpoint of the benchmarks, met by the real clients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx2
import pytest
from pydantic import BaseModel

from mcp_memory.errors import ProviderError, ProviderRejected, ProviderTruncated
from mcp_memory.protocols import LanguageModel
from mcp_memory.providers.anthropic import AnthropicModel
from mcp_memory.providers.openai import OpenAIModel

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from endpoint import FAILURES, Endpoint

pytestmark = pytest.mark.anyio


class Commands(BaseModel):
    commands: list[str]


def echo(system: str, user: str) -> str:
    return f'{{"commands": ["{system}", "{user}"]}}'


MODELS: dict[str, Callable[[Endpoint], LanguageModel]] = {
    "anthropic": lambda endpoint: AnthropicModel("any", endpoint.url, "key"),
    "openai": lambda endpoint: OpenAIModel("any", endpoint.url + "/v1"),
}


@pytest.fixture(params=MODELS)
def connect(request: pytest.FixtureRequest) -> Callable[[Endpoint], LanguageModel]:
    return MODELS[request.param]


async def kinds_of_failure(model: LanguageModel, times: int) -> list[type[Exception] | None]:
    met: list[type[Exception] | None] = []
    for number in range(times):
        try:
            assert (await model.reply("s", f"{number}", Commands)).value.commands == ["s", f"{number}"]
            met.append(None)
        except ProviderError as error:
            met.append(type(error))
    return met


async def test_a_reply_is_what_the_script_says_and_its_tokens_are_counted(
    connect: Callable[[Endpoint], LanguageModel],
) -> None:
    with Endpoint(echo, failures=0) as endpoint:
        model = connect(endpoint)
        replied = await model.reply("be brief", "hello", Commands)
        await model.close()
    assert replied.value.commands == ["be brief", "hello"]
    [exchange] = endpoint.exchanges
    assert (exchange.system, exchange.user, exchange.outcome) == ("be brief", "hello", "answered")
    assert (replied.sent, replied.received) == (endpoint.sent, endpoint.received) == (3, exchange.received)


async def test_every_kind_of_failure_reaches_the_client_as_what_it_is(
    connect: Callable[[Endpoint], LanguageModel],
) -> None:
    with Endpoint(echo, failures=1, hold=0) as endpoint:
        model = connect(endpoint)
        met = await kinds_of_failure(model, 3 * len(FAILURES))
        await model.close()
    assert endpoint.outcomes == dict.fromkeys(FAILURES, 3)
    for error, exchange in zip(met, endpoint.exchanges, strict=True):
        assert (
            error
            in {
                "429": {ProviderError},
                "529": {ProviderError},
                "timeout": {ProviderError},
                "truncated": {ProviderTruncated},
                "garbage": {ProviderRejected, ProviderTruncated},
            }[exchange.outcome]
        ), exchange


async def test_the_seed_decides_what_becomes_of_which_request() -> None:
    async def outcomes(seed: int) -> list[str]:
        with Endpoint(echo, failures=0.3, seed=seed, hold=0) as endpoint:
            model = MODELS["openai"](endpoint)
            await kinds_of_failure(model, 60)
            await model.close()
        return [exchange.outcome for exchange in endpoint.exchanges]

    first = await outcomes(1)
    assert first == await outcomes(1)
    assert first != await outcomes(2)
    assert 6 <= sum(outcome != "answered" for outcome in first) <= 30


async def test_a_client_that_gives_up_first_does_not_keep_the_endpoint_from_ending() -> None:
    with Endpoint(echo, failures=0, delay=600) as endpoint:
        model = OpenAIModel("any", endpoint.url + "/v1", timeout=0.05)
        with pytest.raises(ProviderError, match="no answer"):
            await model.reply("s", "u", Commands)
        await model.close()
    assert endpoint.outcomes == {"answered": 1}


async def test_many_requests_at_once_are_each_answered_once() -> None:
    with Endpoint(echo, failures=0) as endpoint:
        model = MODELS["openai"](endpoint)

        async def ask(number: int) -> None:
            assert (await model.reply("s", f"{number}", Commands)).value.commands[1] == f"{number}"

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(ask, number)
        await model.close()
    assert {exchange.user for exchange in endpoint.exchanges} == set(map(str, range(30)))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/models", {}, 404),
        ("/v1/messages", {"model": "any"}, 400),
        ("/v1/chat/completions", {"model": "any", "messages": [], "stream": True}, 400),
    ],
)
async def test_what_is_no_request_for_a_reply_is_refused(path: str, body: dict[str, object], status: int) -> None:
    with Endpoint(echo) as endpoint:
        assert httpx2.post(endpoint.url + path, json=body).status_code == status
    assert endpoint.exchanges == []


def test_a_probability_is_one() -> None:
    with pytest.raises(ValueError, match="probability"):
        Endpoint(echo, failures=30)
