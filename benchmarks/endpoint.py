"""A language model's endpoint on this machine that answers by a script, and fails as often as it is told to.

It speaks Anthropic's `/v1/messages` and OpenAI's `/v1/chat/completions`, so that the real clients meet on a real socket
what real endpoints do to them:

    with Endpoint(answer, failures=0.3, seed=1) as endpoint:
        ...  # ANTHROPIC_BASE_URL = endpoint.url, or an OpenAI base URL = endpoint.url + "/v1"
    endpoint.outcomes["429"], endpoint.sent, endpoint.received

What happens to the n-th request depends on the seed and on n only. Failures come with the given probability, and their
kinds in equal shares: every five failures are one of each kind, in a drawn order.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from mcp_memory import tokens

Answer = Callable[[str, str], str]
"""What the model says to (`system`, `user`). It is called from several threads."""

Outcome = Literal["answered", "429", "529", "timeout", "truncated", "garbage"]

FAILURES: tuple[Outcome, ...] = ("429", "529", "timeout", "truncated", "garbage")
"""`timeout` holds the connection and then closes it without a word; `truncated` is the first half of the answer, marked as
cut; `garbage` is in turn prose, the first half of the answer not marked as cut, and JSON of another type."""

_GARBAGE: tuple[Callable[[str], str], ...] = (
    lambda text: "I have read the messages with great interest, and there is a lot in them. Shall I go on?",
    lambda text: text[: len(text) // 2],
    lambda text: '{"commands": "none that I know of"}',
)

_ERRORS = {"429": "rate_limit_error", "529": "overloaded_error"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what became of it. `sent` and `received` are tokens; a status or a time-out brings none."""

    path: str
    system: str
    user: str
    outcome: Outcome
    sent: int
    received: int


class Endpoint:
    """Serves while the block lasts. `failures` is a probability; `delay` seconds pass before an answer and `hold` before a
    time-out (if longer than the client waits, it gives up by itself); `retry_after` seconds are asked for with a 429."""

    def __init__(
        self,
        answer: Answer,
        failures: float = 0.3,
        *,
        seed: int = 1,
        delay: float = 0.0,
        hold: float = 0.05,
        retry_after: float = 0.0,
    ) -> None:
        if not 0 <= failures <= 1:
            raise ValueError(f"failures: a probability is in [0, 1], not {failures}")
        self.exchanges: list[Exchange] = []
        self._answer = answer
        self._delay = delay
        self._hold = hold
        self._retry_after = retry_after
        self._drawn = _outcomes(failures, seed)
        self._garbage = itertools.cycle(_GARBAGE)
        self._lock = threading.Lock()
        self._ending = threading.Event()

    def __enter__(self) -> Endpoint:
        tokens.count("")  # loads the encoding, so that no request has to wait for it
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Without `/v1`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def outcomes(self) -> Counter[Outcome]:
        """How many requests there were of each outcome."""
        return Counter(exchange.outcome for exchange in self.exchanges)

    @property
    def sent(self) -> int:
        """Tokens of all requests, failed ones too."""
        return sum(exchange.sent for exchange in self.exchanges)

    @property
    def received(self) -> int:
        """Tokens of all answers, useless ones too."""
        return sum(exchange.received for exchange in self.exchanges)

    def exchange(self, path: str, system: str, user: str) -> tuple[Exchange, str]:
        """What becomes of a request, and the text of the answer, "" where there is none."""
        with self._lock:
            outcome = next(self._drawn)
            spoil = next(self._garbage) if outcome == "garbage" else str
        text = "" if outcome in ("429", "529", "timeout") else self._answer(system, user)
        if outcome == "truncated":
            text = text[: len(text) // 2]
        text = spoil(text)
        exchange = Exchange(path, system, user, outcome, tokens.count(system) + tokens.count(user), tokens.count(text))
        with self._lock:
            self.exchanges.append(exchange)
        return exchange, text

    def wait(self, outcome: Outcome) -> None:
        """Let the time pass that an outcome takes, at most until the block ends."""
        if outcome not in ("429", "529"):
            self._ending.wait(self._hold if outcome == "timeout" else self._delay)

    def headers(self, outcome: Outcome) -> dict[str, str]:
        return {"retry-after": f"{self._retry_after:g}"} if outcome == "429" else {}


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = endpoint
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End the connections that clients keep open for later."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may leave whenever it likes
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece, and at once: in two, the second waits 40 ms for the first
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: stderr belongs to the benchmark."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path not in _DIALECTS:
            self._refuse(404, "not_found_error", "no such path")
            return
        try:
            body = json.loads(raw)
            system, user = _asked(body)
        except (AttributeError, KeyError, TypeError, ValueError):
            self._refuse(400, "invalid_request_error", "not a request for a reply")
            return
        exchange, text = self.server.endpoint.exchange(self.path, system, user)
        self.server.endpoint.wait(exchange.outcome)
        if exchange.outcome == "timeout":
            self.close_connection = True
        elif kind := _ERRORS.get(exchange.outcome):
            headers = self.server.endpoint.headers(exchange.outcome)
            self._refuse(int(exchange.outcome), kind, "try again later", headers)
        else:
            self._send(200, _DIALECTS[self.path](str(body["model"]), text, exchange))

    def _refuse(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, {"type": "error", "error": {"type": kind, "message": message}}, headers)

    def _send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def _outcomes(failures: float, seed: int) -> Iterator[Outcome]:
    rng = random.Random(seed)
    kinds: list[Outcome] = []
    while True:
        if rng.random() >= failures:
            yield "answered"
            continue
        kinds = kinds or rng.sample(FAILURES, len(FAILURES))
        yield kinds.pop()


def _asked(body: dict[str, Any]) -> tuple[str, str]:
    """What a request says as the system, and as everybody else."""
    if body.get("stream") or not body["model"]:
        raise ValueError("an answer comes in one piece, from a model with a name")
    said = [(message["role"], _text(message["content"])) for message in body["messages"]]
    system = [_text(body.get("system") or ""), *(text for role, text in said if role == "system")]
    return "\n\n".join(filter(None, system)), "\n\n".join(text for role, text in said if role != "system")


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


def _message(model: str, text: str, exchange: Exchange) -> dict[str, Any]:
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "max_tokens" if exchange.outcome == "truncated" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": exchange.sent, "output_tokens": exchange.received},
    }


def _completion(model: str, text: str, exchange: Exchange) -> dict[str, Any]:
    finish = "length" if exchange.outcome == "truncated" else "stop"
    usage = {
        "prompt_tokens": exchange.sent,
        "completion_tokens": exchange.received,
        "total_tokens": exchange.sent + exchange.received,
    }
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": usage,
    }


_DIALECTS: dict[str, Callable[[str, str, Exchange], dict[str, Any]]] = {
    "/v1/messages": _message,
    "/v1/chat/completions": _completion,
}
