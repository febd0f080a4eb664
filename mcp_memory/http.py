"""Streamable HTTP on the loopback interface: one bearer token, which decides whose memory a request sees."""

from __future__ import annotations

import gc
import hmac
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import FrameType
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcp_memory.errors import SettingsError

TOKEN_CHARACTERS = 8
DRAIN_SECONDS = 1


def run_http(server: MCPServer[Any], *, host: str, port: int, token: str, user_id: str) -> None:
    """Serve until SIGTERM or Ctrl-C; the lifespan of `server` spans the whole run and is shared by all requests."""
    import uvicorn

    app = http_app(server, token=token, user_id=user_id, host=host, port=port)
    config = uvicorn.Config(
        app,
        log_config=None,  # the default one sends the access log to stdout
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )

    async def main(listener: socket.socket) -> None:
        async with app.router.lifespan_context(app):  # here, because uvicorn turns its error into a trace and code 3
            with suppress(KeyboardInterrupt):  # uvicorn raises the signal that stopped it once more when it is done
                await uvicorn.Server(config).serve(sockets=[listener])

    with _listen(_loopback(host), port) as listener, _interruptible(), suppress(KeyboardInterrupt):
        anyio.run(main, listener)
    gc.freeze()  # the interpreter's last collection would take ten times as long as all the rest of the end


def http_app(server: MCPServer[Any], *, token: str, user_id: str, host: str, port: int) -> Starlette:
    """`/mcp` for whoever holds the token, called by a loopback name; `/health` for everybody, to whom it says nothing.

    The lifespan of `server` opens and closes with the app's own, once for all requests.
    """
    names = {"127.0.0.1", "localhost", "[::1]", _in_url(_loopback(host))}
    security = TransportSecuritySettings(
        allowed_hosts=[f"{name}:{port}" for name in names],
        allowed_origins=[f"http://{name}:{port}" for name in names],
    )
    core = server._lowlevel_server  # where auth belongs to the app; in MCPServer it would be part of a stdio server too
    return core.streamable_http_app(
        stateless_http=True,
        transport_security=security,
        custom_starlette_routes=[Route("/health", _health)],
        **bearer_auth(token, user_id),
    )


def bearer_auth(token: str, user_id: str) -> dict[str, Any]:
    """The arguments `auth` and `token_verifier`, for a token that stands for one user."""
    token = token.strip()
    if len(token) < TOKEN_CHARACTERS:
        raise SettingsError(
            f"Serving over HTTP needs a token of at least {TOKEN_CHARACTERS} characters: set MCP_MEMORY_HTTP_TOKEN, "
            "for instance to the output of `openssl rand -hex 32`."
        )
    # An issuer is required and, without a resource_server_url, never published: there is no OAuth here.
    auth = AuthSettings(issuer_url=AnyHttpUrl("http://localhost"), resource_server_url=None)
    return {"auth": auth, "token_verifier": _StaticToken(token, user_id)}


def caller() -> str:
    """The user whom the running request's token stands for; "" on stdio, where there is no token."""
    token = get_access_token()
    return (token.subject or token.client_id) if token else ""


class _StaticToken:
    def __init__(self, token: str, user_id: str) -> None:
        self._token = token.encode()
        self._user_id = user_id

    async def verify_token(self, token: str) -> AccessToken | None:
        # Header values are decoded as Latin-1, whatever they were.
        if not hmac.compare_digest(token.encode("latin-1", errors="replace"), self._token):
            return None
        return AccessToken(token=token, client_id=self._user_id, subject=self._user_id, scopes=[])


async def _health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


def _loopback(host: str) -> IPv4Address | IPv6Address:
    """The address to listen on: never what a name server says that a name means."""
    with suppress(ValueError):
        address = ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
        if address.is_loopback:
            return address
    raise SettingsError(
        f"The HTTP server listens on this machine only: host must be 127.0.0.1, ::1 or localhost, not {host!r}. "
        "To reach it from elsewhere, put a reverse proxy with TLS in front of it."
    )


def _in_url(address: IPv4Address | IPv6Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM a KeyboardInterrupt, and keep asyncio from making SIGINT the cancellation of a closing lifespan."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(address: IPv4Address | IPv6Address, port: int) -> socket.socket:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(address), port), family=family)
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"Cannot listen on {_in_url(address)}:{port}: {error}. If another server runs there, choose another port "
            "with MCP_MEMORY_PORT."
        ) from error
