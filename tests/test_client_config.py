"""The example of a client's configuration, started exactly as it is written."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

CONFIG = Path(__file__).parent.parent / "claude_desktop_config.example.json"


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform == "win32", reason="the home of a user is named otherwise")
async def test_the_example_starts_a_server_that_remembers_below_the_users_home(tmp_path: Path) -> None:
    entry = json.loads(CONFIG.read_text(encoding="utf-8"))["mcpServers"]["memory"]
    machine = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "share"),
    }
    server = StdioServerParameters(
        command=entry["command"], args=entry["args"], env=entry["env"] | machine, cwd=tmp_path
    )

    with (tmp_path / "stderr").open("w", encoding="utf-8") as log:
        async with Client(stdio_client(server, errlog=log), read_timeout_seconds=60) as client:
            await client.call_tool("add_memory", {"content": "My bicycle is locked behind the bakery."})
            answer = await client.call_tool("search_memory", {"query": "Where did I leave my bike?"})

    assert answer.structured_content is not None
    assert [hit["content"] for hit in answer.structured_content["memories"]] == [
        "My bicycle is locked behind the bakery."
    ]
    assert _file_that_stderr_names(tmp_path).is_relative_to(tmp_path)


def _file_that_stderr_names(home: Path) -> Path:
    (file,) = home.rglob("memory.db")
    assert str(file) in (home / "stderr").read_text(encoding="utf-8")
    return file
