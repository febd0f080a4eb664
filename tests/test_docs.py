"""What the documents say is what the code does."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_tools_is_up_to_date(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "tools.md").read_text(encoding="utf-8") == generate.tools()


def test_the_table_of_settings_is_up_to_date_and_describes_each(generate: ModuleType) -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == generate.configuration()
    assert not re.findall(r"^\| `\w+` \|.*\|\s*\|$", written, re.MULTILINE)


def test_every_json_example_of_the_readme_can_be_read() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```json\n(.*?)```", readme, re.DOTALL)
    assert len(examples) == 4
    for example in examples:
        assert json.loads(example)


@pytest.mark.parametrize("document", ["README.md", "docs/architecture.md", "docs/benchmarks.md", "docs/tools.md"])
def test_every_relative_link_leads_somewhere(document: str) -> None:
    page = ROOT / document
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_ci_runs_the_second_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    second = re.findall(r"```bash\n(.*?)```", readme, re.DOTALL)[1].strip()
    assert second in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
