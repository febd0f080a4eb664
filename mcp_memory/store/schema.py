"""The tables, as a list of steps; each step is recorded in the transaction that made it.

What is where, and why:

- User text stands in one table alone, `texts`, keyed by a position of the log and only ever appended to. A forgotten text
  is overwritten in place with zeros of the same length: whoever deletes a row lets SQLite merge pages, and that leaves
  stale copies of the rows beside it, which `secure_delete` does not reach. `compact` gives the room back.
- What must be looked up by a text (a scope, a session, a word, a label, a repeated utterance) is looked up by a keyed hash.
- `episodes`, `decisions` and `tombstones` together are the log; they share one counter of positions.
- Everything from `cursors` on is how far views are, or a view, and can be derived again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_memory import fields
from mcp_memory.errors import StoreTooNew
from mcp_memory.store.keys import Keys

if TYPE_CHECKING:
    from mcp_memory.store.database import Connection


FILE_NAME = "memory.db"


def _first(connection: Connection) -> None:
    for statement in _FIRST.split(";\n\n"):
        connection.execute(statement)
    connection.execute("INSERT INTO words(words, rank) VALUES ('secure-delete', 1)")
    connection.execute("INSERT INTO meta(name, value) VALUES ('key', ?)", (os.urandom(32),))
    connection.execute("INSERT INTO meta(name, value) VALUES ('position', 0)")


_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

CREATE TABLE scopes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL UNIQUE,
  org TEXT NOT NULL, project TEXT NOT NULL, user TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE texts (position INTEGER PRIMARY KEY, body BLOB NOT NULL);

CREATE TABLE episodes (
  seq INTEGER PRIMARY KEY, scope INTEGER NOT NULL REFERENCES scopes, ident INTEGER NOT NULL,
  session INTEGER NOT NULL, agent INTEGER NOT NULL, role TEXT NOT NULL, kind TEXT NOT NULL,
  occurred_at INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER,
  utterance INTEGER NOT NULL, voice INTEGER NOT NULL, importance REAL NOT NULL, learn INTEGER NOT NULL,
  stamped INTEGER NOT NULL, length INTEGER NOT NULL
);

CREATE UNIQUE INDEX episodes_ident ON episodes(ident);

CREATE INDEX episodes_scope ON episodes(scope);

CREATE INDEX episodes_session ON episodes(scope, session, occurred_at, seq);

CREATE INDEX episodes_time ON episodes(scope, occurred_at);

CREATE INDEX episodes_utterance ON episodes(utterance);

CREATE INDEX episodes_expiring ON episodes(scope, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE labels (
  scope INTEGER NOT NULL, field INTEGER NOT NULL, value INTEGER NOT NULL, seq INTEGER NOT NULL,
  PRIMARY KEY (scope, field, value, seq)
) WITHOUT ROWID;

CREATE TABLE decisions (
  seq INTEGER PRIMARY KEY, scope INTEGER NOT NULL REFERENCES scopes, source TEXT NOT NULL, created_at INTEGER NOT NULL,
  slot INTEGER NOT NULL, said_at INTEGER NOT NULL, ends INTEGER NOT NULL
);

CREATE INDEX decisions_slot ON decisions(scope, slot);

CREATE TABLE tombstones (
  seq INTEGER NOT NULL, scope INTEGER NOT NULL REFERENCES scopes, key INTEGER NOT NULL, PRIMARY KEY (scope, key)
) WITHOUT ROWID;

CREATE TABLE cursors (
  scope INTEGER NOT NULL REFERENCES scopes, view TEXT NOT NULL, position INTEGER NOT NULL DEFAULT 0,
  owner TEXT NOT NULL DEFAULT '', owned_until INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0, retry_at INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (scope, view)
) WITHOUT ROWID;

CREATE TABLE marks (
  scope INTEGER NOT NULL REFERENCES scopes, view TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (scope, view, seq)
) WITHOUT ROWID;

CREATE VIRTUAL TABLE words USING fts5(tokens, tokenize = 'ascii');

CREATE VIRTUAL TABLE words_instances USING fts5vocab(words, instance);

CREATE VIRTUAL TABLE words_documents USING fts5vocab(words, row);

CREATE TABLE word_counts (
  scope INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (scope, seq)
) WITHOUT ROWID;

CREATE TABLE word_totals (scope INTEGER PRIMARY KEY, episodes INTEGER NOT NULL, words INTEGER NOT NULL);

CREATE TABLE embedders (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimensions INTEGER NOT NULL,
  indexed INTEGER NOT NULL DEFAULT 0);

CREATE TABLE derivatives (
  id INTEGER PRIMARY KEY AUTOINCREMENT, embedder INTEGER NOT NULL REFERENCES embedders, scope INTEGER NOT NULL,
  kind INTEGER NOT NULL, seq INTEGER NOT NULL, other INTEGER NOT NULL, vector BLOB NOT NULL
);

CREATE INDEX derivatives_scope ON derivatives(embedder, scope);

CREATE INDEX derivatives_seq ON derivatives(seq);

CREATE INDEX derivatives_other ON derivatives(other) WHERE other > 0;

CREATE TABLE facts (
  id INTEGER PRIMARY KEY AUTOINCREMENT, ident INTEGER NOT NULL UNIQUE, scope INTEGER NOT NULL, slot INTEGER NOT NULL,
  statement INTEGER NOT NULL, source TEXT NOT NULL, decision INTEGER NOT NULL,
  importance REAL NOT NULL, confidence REAL NOT NULL, valid_from INTEGER NOT NULL, valid_to INTEGER,
  superseded_by INTEGER, verified_at INTEGER
);

CREATE INDEX facts_slot ON facts(scope, slot);

CREATE TABLE citations (
  item INTEGER NOT NULL, decision INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (item, decision, seq)
) WITHOUT ROWID;

CREATE INDEX citations_seq ON citations(seq);

CREATE TABLE summaries (
  position INTEGER PRIMARY KEY, scope INTEGER NOT NULL, session INTEGER NOT NULL, upto INTEGER NOT NULL
);

CREATE INDEX summaries_session ON summaries(scope, session)
"""


def _extraction(connection: Connection) -> None:
    for statement in _EXTRACTION.split(";\n\n"):
        connection.execute(statement)


_EXTRACTION = """
ALTER TABLE decisions DROP COLUMN ends;

ALTER TABLE episodes ADD COLUMN class TEXT NOT NULL DEFAULT 'general';

ALTER TABLE cursors ADD COLUMN rejections INTEGER NOT NULL DEFAULT 0;

CREATE TABLE aside (
  scope INTEGER NOT NULL REFERENCES scopes, view TEXT NOT NULL, seq INTEGER NOT NULL, reason TEXT NOT NULL,
  PRIMARY KEY (scope, view, seq)
) WITHOUT ROWID
"""


def _labels(connection: Connection) -> None:
    """Labels for what could not be filtered on before: entities, and what lies inside objects of metadata."""
    keys = Keys(connection.row("SELECT value FROM meta WHERE name = 'key'"))
    after = 0
    while rows := connection.rows(
        "SELECT seq, scope, body FROM episodes CROSS JOIN texts ON position = seq WHERE seq > ? ORDER BY seq LIMIT ?",
        (after, _AT_ONCE),
    ):
        after = rows[-1][0]
        for seq, scope, text in rows:
            body = json.loads(text)
            found = fields.labelled([("entities", body.get("entities")), *fields.named(body.get("metadata", {}))])
            connection.executemany(
                "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)",
                [(scope, keys.often("field", name), keys.often("value", value), seq) for name, value in found],
            )


_AT_ONCE = 1_000


def _scale(connection: Connection) -> None:
    connection.execute(_SCALE)


# derivatives that have been removed and may still stand in an index file beside the database
_SCALE = """
CREATE TABLE outdated (
  embedder INTEGER NOT NULL, scope INTEGER NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (embedder, scope, id)
) WITHOUT ROWID
"""


def _asks(connection: Connection) -> None:
    """What of an episode is questions stands beside its length. Irregular forms fold together now: the words of all
    episodes are indexed again, by their view."""
    connection.execute("ALTER TABLE word_counts ADD COLUMN asks REAL NOT NULL DEFAULT 0")
    for table in ("words", "word_counts", "word_totals"):
        connection.execute(f"DELETE FROM {table}")
    connection.execute("DELETE FROM marks WHERE view = 'words'")
    connection.execute("UPDATE cursors SET position = 0 WHERE view = 'words'")


def _links(connection: Connection) -> None:
    connection.execute(_LINKS)
    connection.execute("ALTER TABLE episodes ADD COLUMN accesses INTEGER NOT NULL DEFAULT 0")


_LINKS = """
CREATE TABLE links (
  scope INTEGER NOT NULL, embedder INTEGER NOT NULL REFERENCES embedders, seq INTEGER NOT NULL, other INTEGER NOT NULL,
  likeness REAL NOT NULL, PRIMARY KEY (scope, embedder, seq, other)
) WITHOUT ROWID
"""


MIGRATIONS: list[tuple[str, Callable[[Connection], None], bool]] = [
    # name, what it does, whether it rewrites rows (then a copy of the file is kept first)
    ("first", _first, False),
    ("extraction", _extraction, False),
    ("labels", _labels, False),
    ("scale", _scale, False),
    ("asks", _asks, False),
    ("links", _links, False),
]


def migrate(connection: Connection, path: Path) -> None:
    """Bring the file to this release's schema.

    Raises StoreTooNew where the file knows steps that this release does not.
    """
    version = connection.row("PRAGMA user_version")
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"The memory file was written by a newer release (schema {version}, this release knows {len(MIGRATIONS)}). "
            "Nothing was changed: upgrade with `pip install -U mcp-memory`, or use another data directory."
        )
    for number, (name, step, rewrites) in enumerate(MIGRATIONS[version:], version + 1):
        if rewrites and version > 0:
            connection.truncate_log(1_000)
            shutil.copy2(path, path.with_name(f"{path.name}.before-{number}-{name}"))
        with connection.writing(durable=True):
            if connection.row("PRAGMA user_version") >= number:
                continue  # another process was faster
            step(connection)
            connection.execute(f"PRAGMA user_version = {number}")
