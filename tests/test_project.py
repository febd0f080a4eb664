"""Rules of the project that a machine can hold."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mcp_memory"

# fmt: off
LAYERS = [
    {"types", "protocols", "errors"},
    {
        "fields", "filters", "grammar", "text", "ranking", "prompts", "rules", "times", "timeparse", "redaction", "reading",
        "commands", "classification", "likeness", "tokens", "queries", "questions", "rerankers", "updates", "workers",
    },
    {"store"},
    {"views"},
    {
        "working", "episodic", "links", "profile", "extraction", "consolidation", "handing", "embedders", "retrieval",
        "paging", "strategies", "context", "forgetting", "transfer", "providers",
    },
    {"memory"},
    {"settings"},
    {"assembly", "testing"},
    {"answers", "integrations"},
    {"cli", "server", "tools", "http", "stdio", "demo", "doctor", "dashboard", "terminal", "corrections", "__main__"},
]
# fmt: on
"""From the vocabulary up to the edges: a module imports what stands below it or beside it."""

UPWARD = {
    ("protocols", "store"): "the rooms of the SQLite store are the reference of the protocol; for type checkers only",
    ("memory", "assembly"): "Memory.open, for those who use the package as a library",
    ("memory", "settings"): "the type of Memory.open's argument",
}
"""The few imports that point up, and why."""

EDGES = {"server", "tools", "http", "stdio", "demo", "doctor"}
DRIVERS = {"apsw", "sqlite_vec", "faiss", "sqlite3", "psycopg", "asyncpg"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def unit(path: Path) -> str:
    """The module or folder of the package that a file belongs to."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path, *, for_types: bool = True) -> Iterator[tuple[str, int]]:
    """Every module that is imported anywhere in a file, with the line; `for_types` those for type checkers only, too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inside in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only and not for_types:
            continue
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative"
            for name in node.names:
                yield f"{node.module}.{name.name}", node.lineno


def own(name: str) -> str | None:
    """The unit that an import names, if it is one of ours."""
    parts = name.split(".")
    return parts[1] if parts[0] == "mcp_memory" and len(parts) > 1 else None


def test_every_module_has_its_layer() -> None:
    known = set().union(*LAYERS)
    assert {unit(path) for path in modules()} - known - {"__init__"} == set()


def test_imports_point_down_only() -> None:
    height = {name: level for level, names in enumerate(LAYERS) for name in names}
    upward = {
        f"{unit(path)} -> {target} (line {line})"
        for path in modules()
        for name, line in imports(path)
        if (target := own(name)) in height
        and unit(path) in height
        and target != unit(path)
        and height[target] > height[unit(path)]
        and (unit(path), target) not in UPWARD
    }
    assert upward == set()


def test_every_exception_is_still_needed() -> None:
    used = {(unit(path), own(name)) for path in modules() for name, _ in imports(path)}
    assert set(UPWARD) - used == set()


@pytest.mark.parametrize(
    ("packages", "allowed"),
    [
        ({"mcp"}, EDGES),
        (DRIVERS, {"store"}),
        ({"lark"}, {"grammar"}),
        ({"uvicorn", "starlette"}, {"http", "dashboard"}),
        ({"anthropic"}, {"providers"}),
        ({"json_repair"}, {"reading"}),
        ({"tiktoken"}, {"tokens"}),
    ],
    ids=lambda value: "-".join(sorted(value)),
)
def test_a_package_is_imported_where_it_belongs_only(packages: set[str], allowed: set[str]) -> None:
    strays = {
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules()
        for name, line in imports(path, for_types=False)
        if name.split(".")[0] in packages and unit(path) not in allowed
    }
    assert strays == set()


def test_only_the_settings_read_the_environment() -> None:
    strays = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        if unit(path) != "settings"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
    }
    assert strays == set()


def test_nothing_is_printed() -> None:
    strays = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert strays == set()


def test_no_class_is_named_for_nothing() -> None:
    empty = ("Manager", "Service", "Factory", "Helper", "Util")
    strays = {
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.endswith(empty)
    }
    assert strays == set()


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", [("check", "--no-cache", "."), ("format", "--no-cache", "--check", ".")], ids=lambda c: c[0]
)
def test_ruff_finds_nothing(command: tuple[str, ...]) -> None:
    run("ruff", *command)


def test_mypy_finds_nothing() -> None:
    run("mypy")


def test_the_wheel_holds_the_prompts(tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"] == {"prompts": "mcp_memory/_prompts"}
    if find_spec("hatchling") is None:
        pytest.skip("without hatchling no wheel is built")
    run("hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for prompt in ("rules.toml", "extract.md", "categories/profile.md"):
        assert f"mcp_memory/_prompts/{prompt}" in names
    assert "mcp_memory/testing.py" in names
    assert not any(name.startswith(("tests/", "benchmarks/", "prompts/")) for name in names)
