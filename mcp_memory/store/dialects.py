"""The places in which the SQL of a filter differs between the two databases.

SQLite is what the store runs on. PostgreSQL is for the store to come: the tables of the same names, `body` as BYTEA, the
placeholders of psycopg.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_memory import filters


@dataclass(frozen=True, slots=True)
class Dialect:
    """Statements are written with `?`, which becomes `mark`.

    `held` is what to select from for the values at a path of an episode's body, one row for each element of a list;
    `held_text` and `held_number` are the value of such a row if it is of that type and not empty, else null.
    `exactly` stands between a text and an operator, for an order by code points. What stands in `listed(values)` is
    looked for with `among`, and what fits `pattern(pattern)` with `like`.
    """

    mark: str
    held: str
    held_text: str
    held_number: str
    exactly: str
    among: str
    like: str
    path: Callable[[Sequence[str]], Any]
    listed: Callable[[Sequence[Any]], Any]
    pattern: Callable[[str], str]


def _json_path(keys: Sequence[str]) -> str:
    return "$" + "".join(f'."{key}"' for key in keys)


def _glob(pattern: str) -> str:
    """A pattern of LIKE for GLOB, which counts case."""
    signs = {"%": "*", "_": "?", "\\*": "[*]", "\\?": "[?]", "\\[": "[[]"}
    return "".join(signs.get(part, part[-1]) for part in filters.pattern_parts(pattern))


def _escaped(pattern: str) -> str:
    """A pattern of LIKE in which a backslash stands before what it must stand before, and nothing else."""
    return "".join(
        part if part in ("%", "_", "\\%", "\\_", "\\\\") else part[-1] for part in filters.pattern_parts(pattern)
    )


SQLITE = Dialect(
    mark="?",
    held="texts CROSS JOIN json_each(CAST(body AS TEXT), ?) held",
    # a row with a textual key is a part of an object, not an element of a list
    held_text="CASE WHEN held.type = 'text' AND typeof(held.key) <> 'text' THEN nullif(held.value, '') END",
    held_number="CASE WHEN held.type IN ('integer', 'real') AND typeof(held.key) <> 'text' THEN held.value END",
    exactly="",
    among="IN (SELECT value FROM json_each(?))",
    like="GLOB ?",
    path=_json_path,
    listed=json.dumps,
    pattern=_glob,
)

POSTGRESQL = Dialect(
    mark="%s",
    held="texts CROSS JOIN jsonb_path_query(convert_from(body, 'UTF8')::jsonb #> ?, '$[*]') AS held(value)",
    held_text="CASE jsonb_typeof(held.value) WHEN 'string' THEN nullif(held.value #>> '{}', '') END",
    held_number="CASE jsonb_typeof(held.value) WHEN 'number' THEN CAST(held.value AS NUMERIC) END",
    exactly='COLLATE "C" ',
    among="= ANY(?)",
    like="LIKE ? ESCAPE '\\'",
    path=list,
    listed=list,
    pattern=_escaped,
)
