"""`mcp-memory profile`: the profile for people, its log, and how to correct it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mcp_memory.settings import Settings
from mcp_memory.terminal import UNCUT, answer, as_json_option, own, progress, show, with_memory

if TYPE_CHECKING:
    from mcp_memory.memory import Memory
    from mcp_memory.types import Decision, Feature


@click.group(invoke_without_command=True)
@click.option("--category", default="")
@click.option("--tag", default="", help="Such as likes, home, instructions.")
@click.option("--as-of", default="", help="As it stood then (ISO date or time).")
@click.option("--history", is_flag=True, help="What has ended, too.")
@click.option("--sources", is_flag=True, help="Quote what each fact rests on.")
@as_json_option
@click.pass_context
def profile(
    context: click.Context, category: str, tag: str, as_of: str, history: bool, sources: bool, as_json: bool
) -> None:
    """What is known about the user; and below, how to correct it."""
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
        if given:
            raise click.UsageError(f"options of `{context.invoked_subcommand}` stand behind it")
    else:
        answer(
            context.obj,
            as_json,
            lambda tools: tools.read_profile(
                category=category, tag=tag, as_of=as_of, history=history, sources=sources, max_tokens=UNCUT
            ),
        )


@profile.command()
@click.option("--last", type=click.IntRange(1), default=50, show_default=True, help="How many, from the newest on.")
@as_json_option
@click.pass_obj
def log(settings: Settings, last: int, as_json: bool) -> None:
    """Every command that made the profile: its number, when, who decided, what, and whether it was undone."""

    async def read(memory: Memory) -> list[tuple[Decision, bool]]:
        return (await memory.decisions(own(settings)))[-last:]

    made = with_memory(settings, read)
    shown = [_decision(decision, stands) for decision, stands in made]
    lines = [
        f"{one['id']:>6}  {one['said_at']}  {one['source']:16}  {one['content']}{'' if one['stands'] else '  (undone)'}"
        for one in shown
    ]
    show("\n".join(lines) or "Nothing was decided yet.", {"decisions": shown}, as_json)


def _decision(decision: Decision, stands: bool) -> dict[str, Any]:
    from mcp_memory.timeparse import shown
    from mcp_memory.types import AddFeature, Undo

    command = decision.command
    if isinstance(command, Undo):
        content = "undo"
    else:
        kind = "add" if isinstance(command, AddFeature) else "delete"
        content = f"{kind} {command.category}/{command.tag} {command.feature}: {command.value or '(all)'}"
    return {
        "id": decision.seq,
        "content": content,
        "source": decision.source,
        "said_at": shown(decision.said_at),
        "decided_at": shown(decision.created_at),
        "stands": stands,
    }


@profile.command("set")
@click.argument("tag")
@click.argument("feature")
@click.argument("value")
@click.option("--category", default="profile", show_default=True)
@as_json_option
@click.pass_obj
def set_(settings: Settings, tag: str, feature: str, value: str, category: str, as_json: bool) -> None:
    """Let FEATURE of TAG be VALUE from now on: `profile set home home "lives in Turku"`."""

    async def correct(memory: Memory) -> Feature:
        return await memory.correct(own(settings), category, tag, feature, value)

    fact = with_memory(settings, correct)
    show(f"[{fact.id}] {fact.category}/{fact.tag}: {fact.value}", {"facts": [_fact(fact)]}, as_json)


@profile.command()
@click.argument("id")
@as_json_option
@click.pass_obj
def end(settings: Settings, id: str, as_json: bool) -> None:
    """Let the fact ID end now. It stays in the history; `mcp-memory forget ID` erases it."""

    async def finish(memory: Memory) -> Feature:
        return await memory.end(own(settings), id)

    fact = with_memory(settings, finish)
    show(f"Ended: [{fact.id}] {fact.value}", {"facts": [_fact(fact)]}, as_json)


@profile.command()
@click.argument("number", type=click.IntRange(1))
@as_json_option
@click.pass_obj
def undo(settings: Settings, number: int, as_json: bool) -> None:
    """Let decision NUMBER of the log count as never made. An undo can be undone."""

    async def take_back(memory: Memory) -> Decision:
        return await memory.undo(own(settings), number)

    decision = with_memory(settings, take_back)
    shown = _decision(decision, False)
    show(f"Undone: {shown['content']}", {"decisions": [shown]}, as_json)


@profile.command()
@click.option("--fresh", is_flag=True, help="Draw the facts again from what was said, instead of replaying the log.")
@as_json_option
@click.pass_obj
def rebuild(settings: Settings, fresh: bool, as_json: bool) -> None:
    """Derive the profile again: from the log of decisions, or with --fresh from the memories themselves."""

    async def derive(memory: Memory) -> int:
        scope = own(settings)
        if fresh:
            with progress(hidden=as_json) as start:
                for view in memory.learning():
                    tell, _ = start(f"{view} of {scope.user}")
                    await memory.rebuild(scope, view, tell)
        return await memory.replay(scope)

    count = with_memory(settings, derive)
    show(f"{count} facts are known.", {"facts": count}, as_json)


def _fact(fact: Feature) -> dict[str, Any]:
    return {"id": fact.id, "content": fact.value, "category": fact.category, "tag": fact.tag, "feature": fact.name}
