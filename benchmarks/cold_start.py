"""Cold start: from nothing to the list of tools, against the bare SDK's server.

Both are started in turn, and measured at the answer to tools/list, before any tool was called.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from common import Server, arguments, hello_server, memory_server, publish, table, verdict

TARGET = 1.35


@dataclass(frozen=True)
class Start:
    cpu: float
    wall: float
    rss: float


def start(make: Callable[[], Server]) -> Start:
    began = time.perf_counter()
    server = make()
    try:
        server.initialize().request("tools/list")
        return Start(server.cpu_seconds(), time.perf_counter() - began, server.rss_mib())
    finally:
        server.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    ours, bare = [], []
    for number in range(options.rounds + 1):  # the first fills the page cache and the compiled files
        with tempfile.TemporaryDirectory() as folder:
            pair = start(lambda folder=folder: memory_server(Path(folder))), start(hello_server)
        if number:
            ours.append(pair[0])
            bare.append(pair[1])
    rows = []
    for what, field, target in (("CPU s", "cpu", TARGET), ("wall s", "wall", None), ("RSS MiB", "rss", TARGET)):
        mine, theirs = (median(getattr(one, field) for one in starts) for starts in (ours, bare))
        ratio = mine / theirs
        digits = 1 if field == "rss" else 3
        aim = (f"<= {target}", verdict(ratio <= target)) if target else ("", "")
        rows.append((what, f"{mine:.{digits}f}", f"{theirs:.{digits}f}", f"{ratio:.2f}", *aim))
    head = ("median at tools/list", "mcp-memory", "bare SDK, 5 tools", "ratio", "target", "")
    publish("cold_start", table(head, rows), write=options.write)


if __name__ == "__main__":
    main()
