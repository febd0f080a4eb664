"""`anthropic:<model>`: Claude, or whatever else speaks its Messages API, through Anthropic's own SDK."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_memory.errors import ProviderError, ProviderMissing, ProviderRejected, ProviderTruncated, SettingsError
from mcp_memory.protocols import Replied
from mcp_memory.providers.statuses import failure
from mcp_memory.reading import read

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, BadRequestError
    from anthropic.types import Message, OutputConfigParam

T = TypeVar("T")

ENDPOINT = "https://api.anthropic.com"
ANSWER_TOKENS = 4_096
"""The longest answer that is asked for."""

_CUT = ("max_tokens", "model_context_window_exceeded")


class AnthropicModel:
    """`base_url` is the endpoint with or without `/v1`, Anthropic's own where it is empty; `timeout` seconds bound a reply.

    The SDK takes two seconds to import, so it is imported by `load`.
    """

    def __init__(self, model: str, base_url: str = "", api_key: str = "", timeout: float = 30.0) -> None:
        if not model:
            raise SettingsError(
                "language model anthropic: name the model after the colon (anthropic:claude-haiku-5-5)."
            )
        self.name = f"anthropic:{model}"
        self._model = model
        self._base_url = base_url.rstrip("/").removesuffix("/v1") or ENDPOINT
        self._key = api_key
        self._timeout = timeout
        self._takes_shapes = True
        self._client: AsyncAnthropic | None = None
        self._loading = threading.Lock()

    def load(self) -> None:
        self._loaded()

    async def reply(self, system: str, user: str, output_type: type[T]) -> Replied[T]:
        if not self._key:
            raise ProviderError(f"{self.name}: there is no key. Set ANTHROPIC_API_KEY.")
        client = await asyncio.to_thread(self._loaded)
        try:
            async with asyncio.timeout(self._timeout):
                message = await self._ask(client, system, user, output_type)
        except TimeoutError:
            raise ProviderError(f"{self.name}: no answer within {self._timeout:g} s") from None
        usage = getattr(message, "usage", None)
        sent, received = getattr(usage, "input_tokens", 0), getattr(usage, "output_tokens", 0)
        return Replied(read(self._text(message), output_type), sent or 0, received or 0)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _loaded(self) -> AsyncAnthropic:
        with self._loading:
            if self._client is None:
                try:
                    from anthropic import AsyncAnthropic
                except ImportError as error:
                    raise ProviderMissing(f"{self.name} needs the package: pip install anthropic") from error
                self._client = AsyncAnthropic(
                    api_key=self._key,
                    base_url=self._base_url,
                    timeout=self._timeout,
                    max_retries=0,  # whoever asks does so again, with waits that survive a restart
                    open_telemetry=False,
                )
            return self._client

    async def _ask(self, client: AsyncAnthropic, system: str, user: str, output_type: type[Any]) -> Message:
        """The endpoint's answer, in a given shape where it knows how; asked twice where it turns out that it does not."""
        from anthropic import AnthropicError, BadRequestError

        shape = _shape(output_type) if self._takes_shapes else None
        try:
            try:
                return await self._create(client, system, user, shape)
            except BadRequestError as error:
                if shape is None or not _is_about_shapes(error):
                    raise
            message = await self._create(client, system, user, None)
        except AnthropicError as error:
            raise self._failure(error) from error
        except ValueError as error:  # a body that is no JSON
            raise ProviderError(f"{self.name}: the exchange failed ({type(error).__name__})") from error
        self._takes_shapes = False
        return message

    async def _create(self, client: AsyncAnthropic, system: str, user: str, shape: OutputConfigParam | None) -> Message:
        from anthropic import omit

        return await client.messages.create(
            model=self._model,
            max_tokens=ANSWER_TOKENS,
            system=system,
            messages=[{"role": "user", "content": user}],
            output_config=omit if shape is None else shape,
        )

    def _failure(self, error: Exception) -> ProviderError:
        from anthropic import APIStatusError

        if isinstance(error, APIStatusError):
            return failure(
                self.name,
                error.status_code,
                error.response.headers,
                key="ANTHROPIC_API_KEY",
                address="ANTHROPIC_BASE_URL",
            )
        return ProviderError(f"{self.name}: the endpoint does not answer ({type(error.__cause__ or error).__name__})")

    def _text(self, message: Message) -> str:
        """What a finished answer says. The SDK passes on what it does not understand: nothing is taken for granted."""
        content = getattr(message, "content", None)
        if not isinstance(content, list):
            raise ProviderError(f"{self.name}: what the endpoint answered is not a message")
        if message.stop_reason in _CUT:
            raise ProviderTruncated(f"{self.name}: the answer was cut at {ANSWER_TOKENS} tokens")
        if message.stop_reason == "refusal":
            raise ProviderRejected(f"{self.name}: the model declined to answer")
        text = "".join(str(block.text) for block in content if getattr(block, "type", "") == "text")
        if not text.strip():
            raise ProviderRejected(f"{self.name}: the answer is empty")
        return text


def _shape(output_type: type[Any]) -> OutputConfigParam | None:
    """The answer's schema as the endpoint wants it; None where it has no place for such a type."""
    from anthropic import transform_schema

    try:
        return {"format": {"type": "json_schema", "schema": transform_schema(output_type)}}
    except ValueError:  # a part that may be anything
        return None


def _is_about_shapes(error: BadRequestError) -> bool:
    said = str(error.body).casefold()
    return any(word in said for word in ("output_config", "format", "schema", "structured"))
