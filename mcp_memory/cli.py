"""`mcp-memory`: the server, and the same verbs for people. Pretty on a terminal, `--json` for programs."""

from __future__ import annotations

import click

from mcp_memory.settings import Settings, load


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mcp-memory")
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where the memory file is.")
@click.option("--user", "user_id", help="Whose memory.")
@click.option("--embedder", help="provider:model")
@click.pass_context
def main(context: click.Context, data_dir: str | None, user_id: str | None, embedder: str | None) -> None:
    """Long-term memory for AI agents."""
    context.obj = load(data_dir=data_dir, user_id=user_id, embedder=embedder)


@main.command()
@click.option("--http", is_flag=True, help="Serve Streamable HTTP on this machine instead of stdio.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, help="Default: the setting `port`.")
@click.pass_obj
def serve(settings: Settings, http: bool, host: str, port: int | None) -> None:
    """Run the MCP server (stdio unless --http)."""
    from mcp_memory.server import build_server

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


if __name__ == "__main__":
    main()
