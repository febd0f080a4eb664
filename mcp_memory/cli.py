"""`mcp-memory`: the server, and the same verbs for people. Pretty on a terminal, `--json` for programs.

Nothing but click and the settings is imported before a command runs: a client waits for `serve`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mcp_memory.corrections import profile
from mcp_memory.errors import InvalidInput, MemoryServerError, NotFound, SettingsError
from mcp_memory.settings import Settings, load
from mcp_memory.terminal import (
    UNCUT,
    answer,
    as_json_option,
    echo_json,
    flag,
    lines,
    own,
    progress,
    show,
    with_memory,
)

if TYPE_CHECKING:
    from mcp.types import CallToolResult

    from mcp_memory.memory import Memory
    from mcp_memory.tools import Tools

REBUILT = ("words", "rules", "summary", "vectors")
ASKED_FOR = ("extract",)


class Commands(click.Group):
    """Commands whose every expected failure is one line on stderr: exit code 2 for what the caller can correct, else 1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (MemoryServerError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # `mcp-memory search … | head`: click ends quietly
            kind = Misuse if isinstance(error, InvalidInput | NotFound | SettingsError) else click.ClickException
            raise kind(str(error)) from None


class Misuse(click.ClickException):
    exit_code = 2


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mcp-memory")
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where the memory file is.")
@click.option("--user", "user_id", help="Whose memory.")
@click.option("--embedder", help="provider:model")
@click.pass_context
def main(context: click.Context, data_dir: str | None, user_id: str | None, embedder: str | None) -> None:
    """Long-term memory for AI agents."""
    context.obj = load(data_dir=data_dir, user_id=user_id, embedder=embedder)


# ---- the server


@main.command()
@click.option("--http", is_flag=True, help="Serve Streamable HTTP on this machine instead of stdio.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, help="Default: the setting `port`.")
@click.pass_obj
def serve(settings: Settings, http: bool, host: str, port: int | None) -> None:
    """Run the MCP server (stdio unless --http)."""
    from mcp_memory.server import build_server
    from mcp_memory.store.schema import FILE_NAME

    click.echo(f"mcp-memory: the memory is {settings.data_dir.absolute() / FILE_NAME}", err=True)
    if http:
        from mcp_memory.http import caller, run_http

        run_http(
            build_server(settings, caller),
            host=host,
            port=settings.port if port is None else port,
            token=settings.http_token,
            user_id=settings.user_id,
        )
    else:
        from mcp_memory.stdio import run_stdio

        run_stdio(build_server(settings))


@main.command()
@as_json_option
@click.pass_obj
def demo(settings: Settings, as_json: bool) -> None:
    """Show and prove what the memory does, on a throw-away file, through a real client."""
    from mcp_memory.demo import Step, play

    def tell(step: Step) -> None:
        if not as_json:
            mark = click.style("✓" if step.holds else "✗", "green" if step.holds else "red")
            call = click.style(f"  {step.call}", "cyan")
            shown = [f"    {line}" for line in step.shown]
            click.echo("\n".join([click.style(step.title, bold=True), call, *shown, f"  {mark} {step.expected}", ""]))

    played = play(settings, tell)
    show(played.farewell, played.data, as_json)
    sys.exit(0 if played.proven else 1)


# ---- the verbs


@main.command()
@click.argument("text")
@click.option("--role", default="user", show_default=True, help="user, assistant, system or tool")
@click.option("--speaker", default="", help="Who said it, if not the user.")
@click.option("--session", default="", help="The conversation it belongs to.")
@click.option("--timestamp", default="", help="When it was said, if not now (ISO 8601).")
@click.option("--tags", default="", help="Separated by commas.")
@click.option("--metadata", default="{}", help="Your own fields, as a JSON object.")
@as_json_option
@click.pass_obj
def add(
    settings: Settings, text: str, role: str, speaker: str, session: str, timestamp: str, tags: str, metadata: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Remember TEXT, word for word; `-` reads it from stdin."""
    if text == "-":
        with click.open_file("-", encoding="utf-8", errors="replace") as stdin:
            text = stdin.read().removesuffix("\n")
    try:
        fields = json.loads(metadata)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidInput('metadata: not a JSON object; write --metadata \'{"topic": "travel"}\'.')
    answer(
        settings,
        as_json,
        lambda tools: tools.add_memory(
            content=text,
            role=role,
            speaker=speaker,
            session_id=session,
            timestamp=timestamp,
            tags=tags,
            metadata=fields,
        ),
    )


@main.command()
@click.argument("query", default="")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True)
@click.option("--filter", default="", help="Such as: role = 'user' AND topic = 'travel'")
@click.option("--since", default="", help="Said at or after (ISO date or time, or '7 days ago').")
@click.option("--until", default="", help="Said at or before; a day or 'last week' counts to its end.")
@click.option("--session", default="", help="Only this conversation.")
@click.option("--order", type=click.Choice(["relevance", "time"]), default="relevance", show_default=True)
@click.option(
    "--mode",
    type=click.Choice(["auto", "direct", "split", "chain"]),
    default="auto",
    show_default=True,
    help="At once, in parts, step by step, or as the question asks for.",
)
@click.option("--kinds", default="", help="Separated by commas; `fact` searches the profile too.")
@click.option("--cursor", default="", help="Where the page before ended.")
@as_json_option
@click.pass_obj
def search(
    settings: Settings, query: str, limit: int, filter: str, since: str, until: str, session: str, order: str,
    mode: str, kinds: str, cursor: str, as_json: bool,
) -> None:  # fmt: skip
    """Find what was said, by meaning and words. Without QUERY: the newest that the options select."""
    answer(
        settings,
        as_json,
        lambda tools: tools.search_memory(
            query=query,
            filter=filter,
            session_id=session,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
            order=order,
            mode=mode,
            kinds=kinds,
            max_tokens=UNCUT,
        ),
    )


@main.command()
@click.argument("query", default="")
@click.option("--session", default="", help="The conversation at hand.")
@click.option("--max-tokens", type=click.IntRange(50, 100_000), default=1_500, show_default=True)
@as_json_option
@click.pass_obj
def context(settings: Settings, query: str, session: str, max_tokens: int, as_json: bool) -> None:
    """The block that an agent gets before it answers QUERY (or the session's last message)."""
    answer(
        settings,
        as_json,
        lambda tools: tools.read_context(query=query, session_id=session, max_tokens=max_tokens),
    )


@main.command()
@click.argument("ids", nargs=-1)
@click.option("--filter", default="", help="Everything that fits, as in search.")
@click.option("--query", default="", help="What is close to this.")
@click.option("--session", default="", help="Everything of this conversation.")
@click.option("--everything", is_flag=True, help="All that is known of the user.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
@click.pass_obj
def forget(
    settings: Settings, ids: tuple[str, ...], filter: str, query: str, session: str, everything: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Erase for good: memories and facts by IDS at once, anything broader after you have seen what it is."""
    selection: dict[str, Any] = {"filter": filter, "query": query, "session_id": session, "everything": everything}

    async def forget(tools: Tools) -> CallToolResult:
        if ids:
            return await tools.forget(memory_ids=list(ids), **selection)
        preview = await tools.forget(**selection)
        shown: dict[str, Any] = preview.structured_content or {}
        if "preview" not in shown:
            return preview
        if not yes:
            _ask(shown, as_json)
        return await tools.forget(**selection, confirm=True, preview=shown["preview"])

    answer(settings, as_json, forget)


def _ask(shown: dict[str, Any], as_json: bool) -> None:
    """Goes on only where somebody at a terminal agrees to what is shown."""
    if as_json:
        echo_json(shown)
    else:
        samples = [f"[{sample['id']}] {sample['content']}" for sample in shown["candidates"]]
        lines("\n".join([f"To be forgotten: {shown['count']}, such as", *samples]))
        if sys.stdin.isatty():
            click.confirm("Forget them for good?", abort=True)
            return
    raise click.ClickException("nothing was forgotten; repeat with --yes to forget these.")


@main.command()
@click.option("--dry-run", is_flag=True, help="Only report.")
@click.option("--commands", type=click.File("r", encoding="utf-8"), help="The answer to a batch, as JSON; - for stdin.")
@click.option("--batch", default="", help="The token of the batch that it answers.")
@as_json_option
@click.pass_obj
def consolidate(settings: Settings, dry_run: bool, commands: Any, batch: str, as_json: bool) -> None:
    """Bring everything that is derived up to date, merge and end facts. Without a language model: show what waits."""
    given = commands.read() if commands else ""
    answer(settings, as_json, lambda tools: tools.consolidate(dry_run=dry_run, commands=given, batch=batch))


@main.command()
@as_json_option
@click.pass_obj
def stats(settings: Settings, as_json: bool) -> None:
    """How much is remembered."""

    async def count(memory: Memory) -> None:
        from mcp_memory import answers

        reply = answers.stats(await memory.stats(own(settings)))
        show(reply.text, reply.data, as_json)

    with_memory(settings, count)


# ---- looking after


@main.command()
@click.argument("views", nargs=-1, type=click.Choice([*REBUILT, *ASKED_FOR]))
@click.option("--aside", is_flag=True, help="Only what was set aside after many failures.")
@as_json_option
@click.pass_obj
def rebuild(settings: Settings, views: tuple[str, ...], aside: bool, as_json: bool) -> None:
    """Throw VIEWS away and derive them again, for all users unless --user is given. Without VIEWS: all but `extract`, which
    asks a language model for every message."""

    async def rebuild(memory: Memory) -> list[dict[str, Any]]:
        wanted = views or ((*REBUILT, *ASKED_FOR) if aside else REBUILT)
        chosen = [name for name in memory.views.names() if name.partition("/")[0] in wanted]
        scopes = [own(settings)] if flag("user_id") else await memory.store.scopes()
        done = []
        with progress(hidden=as_json) as start:
            for scope in scopes:
                for name in chosen:
                    tell, count = start(f"{name} of {scope.user}")
                    await (memory.retry_aside if aside else memory.rebuild)(scope, name, tell)
                    done.append({"user": scope.user, "view": name, "episodes": count()})
        return done

    done = with_memory(settings, rebuild)
    lines = [f"{one['user']}: {one['view']}, {one['episodes']} derived" for one in done]
    show("\n".join(lines) or "There is nothing to rebuild.", {"rebuilt": done}, as_json)


@main.command()
@click.option("--vacuum", is_flag=True, help="Give the file's unused space back, too.")
@as_json_option
@click.pass_obj
def doctor(settings: Settings, vacuum: bool, as_json: bool) -> None:
    """Look for what is wrong, and say what to do. Exit code 1 if something fails."""
    from mcp_memory.doctor import Check, examine

    colours = {"ok": "green", "warn": "yellow", "fail": "red"}

    async def collect() -> list[Check]:
        checks = []
        async for check in examine(settings, vacuum=vacuum):
            checks.append(check)
            if not as_json:
                advice = f"\n      -> {check.advice}" if check.advice else ""
                verdict = click.style(f"{check.verdict:4}", colours[check.verdict])
                click.echo(f"{verdict}  {check.name}: {check.found}{advice}")
        return checks

    checks = asyncio.run(collect())
    worst = max((check.verdict for check in checks), key=list(colours).index)
    if as_json:
        shown = [
            {"id": check.name, "verdict": check.verdict, "content": check.found, "advice": check.advice}
            for check in checks
        ]
        echo_json({"checks": shown, "verdict": worst})
    sys.exit(1 if worst == "fail" else 0)


@main.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--all", "everyone", is_flag=True, help="All users, each named in their lines.")
@as_json_option
@click.pass_obj
def export_(settings: Settings, file: Path | None, everyone: bool, as_json: bool) -> None:
    """Write everything that was said to FILE as JSON Lines (to stdout without one)."""
    if as_json and file is None:
        raise InvalidInput("export: --json reports on a FILE; without one, stdout is the export.")

    async def export(memory: Memory) -> int:
        from mcp_memory.transfer import HEADER, writing

        mine = own(settings)
        scopes = [
            scope for scope in await memory.store.scopes() if (scope.org, scope.project) == (mine.org, mine.project)
        ]
        count = 0
        with writing(file) if file else nullcontext(echo_json) as write:
            write(HEADER)
            for scope in scopes if everyone else [mine]:
                async for record in memory.export(scope):
                    write({"user": scope.user, **record} if everyone else record)
                    count += record["type"] == "episode"
        return count

    count = with_memory(settings, export)
    if file is not None:
        show(f"Exported to {file}: {count}.", {"exported": count, "file": str(file)}, as_json)


@main.command("import")
@click.argument("file", type=click.File("rb"))
@as_json_option
@click.pass_obj
def import_(settings: Settings, file: Any, as_json: bool) -> None:
    """Take in an export from FILE (`-` for stdin). What is here already, or was forgotten here, is not stored again.

    Lines that name a user go to that user; with --user, only that user's lines and those that name none are taken.
    """

    async def take_in(memory: Memory) -> dict[str, int]:
        from mcp_memory import transfer

        mine = own(settings)
        by_user: dict[str, list[transfer.Record]] = {}
        for record in transfer.records(file):
            by_user.setdefault(record.get("user", mine.user), []).append(record)
        others = [user for user in by_user if flag("user_id") and user != mine.user]
        total = {"stored": 0, "left_out": sum(len(by_user.pop(user)) for user in others)}
        for user, records in by_user.items():
            done = await memory.import_(replace(mine, user=user), records)
            for name in ("stored", "known", "forgotten", "decisions"):
                total[name] = total.get(name, 0) + getattr(done, name)
            total["behind"] = total.get("behind", 0) + max((lag.episodes for lag in done.lags), default=0)
        return total

    total = with_memory(settings, take_in)
    said = [
        f"{what}: {total[name]}."
        for name, what in (
            ("stored", "Imported"),
            ("known", "Already here"),
            ("forgotten", "Forgotten here before, and left so"),
            ("decisions", "Decisions applied"),
            ("left_out", "Lines of other users, left out"),
            ("behind", "Not yet found by meaning (`mcp-memory consolidate` goes on)"),
        )
        if total.get(name) or name == "stored"
    ]
    show(" ".join(said), total, as_json)


main.add_command(profile)


if __name__ == "__main__":
    main()
