"""The black-box cases of `cases/`, each against the real command in a process of its own.

MCP_MEMORY_EMBEDDER=use:multilingual-v3 runs all of them with the default embedder.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CASES = Path(__file__).parent / "cases"
OFFERED = {"core", "proc", "http", "embed", "llm_script"}
WAITING = {"O046": "a store of an older release is wanted"}
COMMAND = f"{sys.executable} -m mcp_memory serve"


def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_cases", CASES / "run_cases.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[Any]:
    read = [json.loads(line) for line in (CASES / "open_cases.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        pytest.param(case, id=f"{case['id']}-{case['kind']}")
        for case in read
        if set(case["needs"]) <= OFFERED and case["id"] not in WAITING
    ]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the runner leaves files and sockets to the collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    if "embed" not in case["needs"] and "MCP_MEMORY_EMBEDDER" not in os.environ:
        monkeypatch.setenv("MCP_MEMORY_EMBEDDER", "hashing:256")  # loading the default's model takes a second a server
    options = argparse.Namespace(
        server=COMMAND, http_server=f"{COMMAND} --http --port {{port}}", needs=["embed"], slow=4.0
    )
    outcome, why = runner().Run(options, case).run()
    assert outcome == "PASS", f"{why}\n{case['expect']}"
