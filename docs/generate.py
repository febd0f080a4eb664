"""Writes docs/tools.md and docs/configuration.md from the code; a test checks that they are up to date.

python docs/generate.py
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

from mcp_memory import fields, filters, settings
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

{filters}
## Instructions

What the server tells a client when it connects:

```
{instructions}
```
"""

FILTERS = """## Filters

```
filter     = condition | filter AND filter | filter OR filter | NOT filter | ( filter )
condition  = field = value                      (or !=, <, <=, >, >=)
           | field [NOT] IN (value, ...)
           | field [NOT] LIKE 'pattern'
           | field IS [NOT] NULL
value      = 'text' | "text" | 3 | -0.5 | true | false | date('2026-05-01') | date('2026-05-01T14:30+02:00')
```

NOT binds closest, then AND, then OR. Words are read in any case (`and`, `True`, `DATE(...)`); at most {characters} characters,
{conditions} conditions, {list} values in a list, {depth} parentheses and NOTs inside each other. Anything else is an error that
shows the place and says what could stand there.

- **Fields.** Of the system: {fields}; `tags` and `entities` are lists. Every other name is one of your `metadata`, also written
  `metadata.name`, which is the way to one that the system has too. `metadata.a.b` is the key `b` of the object `a` (up to {parts} names),
  or a key that is itself called `a.b`. A name that no memory of the user has is an error.
- **Texts.** A doubled quote inside is the quote, and so is one after a backslash; `\\\\` is a backslash; before anything else a backslash is
  itself. Case counts, in order (by code points) and in patterns too.
- **Types.** 3 equals 3.0, but neither '3' nor true. In your own fields, values of two types are unequal and in no order; with a field of
  the system such a comparison is an error, and so is any order of `true` and `false` or of ids.
- **Absent fields.** A field that a memory does not have, or that is empty (null, '', [], {{}}), satisfies no comparison (neither `!=`,
  `NOT IN` nor `NOT LIKE`), and `NOT` before a condition is true wherever that condition is false: `area != 'food'` keeps what has another
  area, `NOT area = 'food'` also what has none.
- **Lists** satisfy a condition when one of their elements does, and `!=`, `NOT IN`, `NOT LIKE` when no element is or fits the value.
- **Patterns.** `%` is any text, `_` one character; `\\%` and `\\_` are the characters themselves.
- **Dates.** A date alone is its whole day in the configured time zone: what was said on it equals it, and is neither before nor after.
  `occurred_at`, `created_at` and `expires_at` are times, and are also compared with a date in quotes; in your own fields, `date(...)` is
  compared with texts such as 2026-05-01 or 2026-05-01T14:30Z, and what names no time is unequal and in no order.

```
role = 'user' AND topic IN ('food', 'travel')
metadata.trip.city LIKE 'San %' AND NOT (rank > 3 OR archived = true)
occurred_at >= date('2026-05-01') AND occurred_at < date('2026-06-01') AND tags != 'draft'
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
    return "".join(parts) + REST.replace("{filters}", _filters()).replace("{instructions}", INSTRUCTIONS)


def _filters() -> str:
    return FILTERS.format(
        characters=f"{filters.MAX_CHARACTERS:,}",
        conditions=filters.MAX_CONDITIONS,
        list=filters.MAX_LIST,
        depth=filters.MAX_DEPTH,
        parts=fields.MAX_PARTS,
        fields=", ".join(f"`{field}`" for field in fields.FIELD_TYPES),
    )


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
