"""Writes docs/tools.md and docs/configuration.md from the code; a test checks that they are up to date.

python docs/generate.py
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

from mcp_memory import settings
from mcp_memory.server import INSTRUCTIONS, build_server

HERE = Path(__file__).parent

CONFIGURATION = """# Configuration

Defaults, below one TOML file, below the environment, below flags of the command line. The file is `config.toml` in the user's
configuration folder (`~/.config/mcp-memory/` on Linux); the names in it are the environment's in lower case, without the prefix:

```toml
user_id = "me"
timezone = "Europe/Berlin"
[weights]
speaker = 0.1
```

| variable | default | what it does |
|---|---|---|
"""

TOOLS = """# Tools

What an agent may call, as `tools/list` shows it. An argument left out takes its default. Unknown arguments are an error that names
the nearest known one; lists and objects are also understood as JSON text.

Every answer comes as plain lines and, equally complete, as structured content with the list of items first; `next` is the cursor
of the page that follows, "" at the end. Errors are short texts that say what to do; an error never comes as a success.
"""

REST = """
## Resources

| uri | what it holds |
|---|---|
| `memory://profile` | the profile of the default user (over HTTP: the token's) |
| `memory://session/{id}` | the working window of a session |
| `memory://episode/{id}` | one memory, whole |
| `memory://stats` | what is stored, and what is behind |

## Prompts

`recall(question)`, `distill`, `review_profile`.

## Filters

`field = value`, `field != value`, `field IN (value, ...)`, joined by `AND`. Values are `'text'` or `"text"` (a doubled quote inside is the
quote), numbers, `true` and `false`; a number is never equal to a text. System fields: `id`, `role`, `speaker`, `agent_id`, `session_id`,
`produced_for`, `kind`, `importance`, `category`, `tags`; every other name is one of your `metadata`, also written `metadata.name`. A memory
without the field satisfies neither `=` nor `!=`. A name that no memory of the user has is an error.

## Instructions

What the server tells a client when it connects:

```
{instructions}
```
"""


def tools() -> str:
    server = build_server(settings.Settings())
    parts = [TOOLS]
    for tool in server._tool_manager.list_tools():
        parts.append(f"\n## {tool.name}\n\n{tool.description}\n\n| argument | default | what it is |\n|---|---|---|\n")
        parts += [
            f"| `{name}` | `{_shown(schema.get('default'))}` | {schema['description'].replace('|', '/')} |\n"
            for name, schema in tool.parameters["properties"].items()
        ]
    return "".join(parts) + REST.replace("{instructions}", INSTRUCTIONS)


def configuration() -> str:
    rows = []
    for name, default, description in _fields(settings.Settings):
        variable = "FORCE_NO_SQLITE_EXTENSIONS" if name == "no_sqlite_extensions" else f"MCP_MEMORY_{name.upper()}"
        if name == "weights":
            rows += [
                f"| `MCP_MEMORY_WEIGHTS__{weight.upper()}` | {value} | {text} |"
                for weight, value, text in _fields(settings.WeightSettings)
            ]
        else:
            rows.append(f"| `{variable}` | {default} | {description} |")
    return CONFIGURATION + "\n".join(rows) + "\n"


def _fields(model: Any) -> list[tuple[str, str, str]]:
    """Name, default and the text below each field of a settings class."""
    body = ast.parse(inspect.getsource(model)).body[0].body  # type: ignore[attr-defined]
    fields = []
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = " ".join(str(after.value.value).split()) if documented else ""  # type: ignore[union-attr]
        field = model.model_fields[name]
        default = "" if field.default_factory or field.default in ("", None) else f"`{field.default}`"
        fields.append((name, "the user's data folder" if name == "data_dir" else default, text))
    return fields


def _shown(default: Any) -> str:
    return '""' if default == "" else str(default).lower() if isinstance(default, bool) else str(default)


if __name__ == "__main__":
    (HERE / "tools.md").write_text(tools(), encoding="utf-8")
    (HERE / "configuration.md").write_text(configuration(), encoding="utf-8")
