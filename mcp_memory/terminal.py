"""How the command line shows what it has to say: pretty to people at a terminal, plainly to everybody else."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mcp_memory.settings import Settings

if TYPE_CHECKING:
    from mcp.types import CallToolResult

    from mcp_memory.memory import Memory
    from mcp_memory.tools import Tools
    from mcp_memory.types import Scope

T = TypeVar("T")

UNCUT = 1_000_000
"""Tokens of an answer: what people and programs ask for here is not cut."""


def echo_json(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))


def show(said: str, data: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(data)
    else:
        lines(said)


def lines(said: str) -> None:
    """Lines as they are; on a terminal wrapped, with ids and what is incomplete in colour."""
    harmless = _CONTROL.sub("\ufffd", said)
    if not sys.stdout.isatty():
        click.echo(harmless)
        return
    from rich.console import Console
    from rich.text import Text

    shown = Text(harmless)
    shown.highlight_regex(r"(?m)^(?:- |    )?(\[[ef][0-9a-z]{10}\])", "cyan")
    shown.highlight_regex(r"(?m)^(?:Not complete yet:|\(not caught up:).*$", "yellow")
    shown.highlight_regex(r"(?m)^(?:## .*|Learned:)", "bold")
    Console(highlight=False).print(shown)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
"""What a stored text must not do to a terminal."""

Start = Callable[[str], tuple[Callable[[int], None], Callable[[], int]]]


@contextmanager
def progress(*, hidden: bool) -> Iterator[Start]:
    """Gives a function that begins a bar; that gives one that is told what is left, and one that tells how much it was."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console,
        disable=hidden or not console.is_terminal,
    ) as bars:

        def start(description: str) -> tuple[Callable[[int], None], Callable[[], int]]:
            bar = bars.add_task(description, total=None)
            most = 0

            def tell(left: int) -> None:
                nonlocal most
                most = max(most, left)
                bars.update(bar, total=most, completed=most - left)

            return tell, lambda: most

        yield start


# ---- running


as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")


def own(settings: Settings) -> Scope:
    from mcp_memory.types import Scope

    return Scope(settings.org_id, settings.project_id, settings.user_id)


def flag(name: str) -> Any:
    """A global option as it was given on the command line; None where it was not."""
    return click.get_current_context().find_root().params[name]


def with_memory(settings: Settings, act: Callable[[Memory], Awaitable[T]]) -> T:
    async def run() -> T:
        from mcp_memory.assembly import open_memory

        async with open_memory(settings, background=False) as memory:
            return await act(memory)

    return asyncio.run(run())


def answer(settings: Settings, as_json: bool, ask: Callable[[Tools], Awaitable[CallToolResult]]) -> None:
    """Show what one of the server's tools answers."""

    async def call(memory: Memory) -> CallToolResult:
        from mcp_memory.tools import Tools

        async def running() -> Memory:
            return memory

        return await ask(Tools(running, settings, lambda: ""))

    answered = with_memory(settings, call)
    said = "\n".join(part.text for part in answered.content if part.type == "text")
    show(said, answered.structured_content or {}, as_json)
