"""A filter as SQL: that it says what `match` says, of the scope's own episodes alone, in both dialects."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mcp_memory import filters
from mcp_memory.errors import InvalidFilter
from mcp_memory.store.conditions import Conditions
from mcp_memory.store.dialects import POSTGRESQL, SQLITE
from mcp_memory.store.keys import Keys
from mcp_memory.store.sqlite import SQLiteStore
from mcp_memory.testing import Clock
from mcp_memory.types import CLASSES, KINDS, ROLES, Compare, Episode, In, Message, Scope, Selection

pytestmark = pytest.mark.anyio

ZONE = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)  # the day on which Berlin's clocks went forward
SCOPES = (Scope("org", "project", f"user {number}") for number in itertools.count())

unhurried = hypothesis_settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path, now=clock)
    yield store
    await store.close()


# ---- episodes and filters, drawn from few values that meet often and from any

TEXTS = [
    "", "a", "A", "ab", "a b", "b", "é", "e\u0301", "日本", "日", "😀", "\U0010ffff", "\uffff", "\uff01", "o'b", 'say "a"',
    "a%b", "a_b", "a\\b", "\\", "%", "_", "*", "?", "[a]", "[", "]", "^", "a*", "a\nb", "\t", "3", "true", "null", "\u2028",
    "2026-03-29", "2026-03-28T23:30", "2026-03-29T00:30:00+02:00", "2026-03-29 12:00:00Z", "2026/03/30", "2026-02-30",
]  # fmt: skip
NUMBERS = [
    0, -0.0, 1, -1, 0.1, 0.5, 1.5, -2.5, 3, 3.0, 1e-9, 2**53 + 1, float(2**53), 2**63, -(2**63), 10**30, 1e300, -1e30,
]  # fmt: skip

texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
numbers = (
    st.sampled_from(NUMBERS)
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False, width=64)
)
plain = texts | numbers | st.booleans()
odd = st.sampled_from([None, {}, [], [None], {"deep": "x"}, [["a"]], [{"a": "b"}], float("inf"), float("nan")])
values = plain | odd | st.lists(plain | odd, max_size=3)
own = st.fixed_dictionaries(
    {},
    optional={
        "a": values,
        "b": values,
        "role": values,
        "日": values,
        "o": values
        | st.fixed_dictionaries({}, optional={"p": values, "q": st.fixed_dictionaries({}, optional={"r": values})}),
        "o.p": values,
        "o.q.r": values,
    },
)
moments = (st.integers(-4, 4) | st.integers(-(2**22), 2**22)).map(lambda steps: NOON + timedelta(hours=6 * steps / 2))
messages = st.builds(
    Message,
    content=texts.filter(bool),
    role=st.sampled_from(ROLES),
    speaker=texts,
    occurred_at=moments,
    agent_id=texts,
    session_id=texts,
    kind=st.sampled_from(KINDS),
    produced_for=texts,
    importance=st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0, 1),
    category=st.sampled_from(CLASSES),
    tags=st.lists(texts, max_size=3).map(tuple),
    entities=st.lists(texts, max_size=2).map(tuple),
    metadata=own,
    expires_at=st.none() | st.just(NOON + timedelta(days=9_999)),
)
ANCHORS = [
    Message("anchor", metadata={"a": 1, "b": 2, "role": 3, "日": 4, "o": {"p": 5, "q": {"r": 6}}}, occurred_at=NOON),
    Message("other anchor", metadata={"o": 7}, occurred_at=NOON),
]
"""Have every name that the filters use: one that nobody has would be an error."""


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def number(value: float) -> str:
    return repr(value)


dates = st.sampled_from(
    [
        "2026-03-29",
        "2026-03-28",
        "2026-03-29T12:00",
        "2026-03-29T12:00Z",
        "2026-03-29T02:30",
        "9999-12-31",
        "0001-01-02",
    ]
).map(lambda written: f"date('{written}')")
written_texts = texts.map(quoted)
operators = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
equals = st.sampled_from(["=", "!="])
patterns = st.lists(st.sampled_from(["%", "_", "\\%", "\\_", "\\", *TEXTS]), max_size=5).map("".join).map(quoted)
TEXT_FIELDS = [
    "content", "role", "speaker", "agent_id", "session_id", "produced_for", "kind", "category", "tags", "entities",
]  # fmt: skip
OWN_FIELDS = ["a", "b", "metadata.a", "metadata.role", "日", "o", "o.p", "metadata.o.q.r"]


def compared(field: str, operators: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(values, min_size=1, max_size=3).map(", ".join)
    among = st.tuples(st.sampled_from(["IN", "NOT IN"]), listed).map(lambda parts: f"{field} {parts[0]} ({parts[1]})")
    absent = st.sampled_from([f"{field} IS NULL", f"{field} IS NOT NULL"])
    return st.tuples(operators, values).map(lambda parts: f"{field} {parts[0]} {parts[1]}") | among | absent


def matched(field: str) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(["LIKE", "NOT LIKE"]), patterns).map(
        lambda parts: f"{field} {parts[0]} {parts[1]}"
    )


conditions = st.one_of(
    st.sampled_from(TEXT_FIELDS).flatmap(lambda field: compared(field, operators, written_texts) | matched(field)),
    st.sampled_from(OWN_FIELDS).flatmap(
        lambda field: (
            compared(field, operators, written_texts | numbers.map(number) | dates)
            | compared(field, equals, st.sampled_from(["true", "FALSE"]) | written_texts)
            | matched(field)
        )
    ),
    st.sampled_from(["occurred_at", "created_at", "expires_at"]).flatmap(
        lambda field: compared(field, operators, dates | st.just("'2026-03-29'"))
    ),
    compared("importance", operators, numbers.map(number)),
    compared("id", equals, written_texts | st.just("'e0000000000'")),
)
written = st.recursive(
    conditions,
    lambda inner: st.one_of(
        inner.map(lambda text: f"NOT ({text})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    ),
    max_leaves=6,
)


async def remembered(store: SQLiteStore, scope: Scope, said: list[Message]) -> list[Episode]:
    stored = await store.write(scope, lambda tx: tx.log.append([*ANCHORS, *said]), durable=False)
    return await store.read(scope, lambda tx: tx.log.at([one.episode.seq for one in stored]))


@unhurried
@given(said=st.lists(messages, max_size=8), texts=st.lists(written, min_size=1, max_size=8))
async def test_the_sql_of_a_filter_says_what_matching_says(
    store: SQLiteStore, said: list[Message], texts: list[str]
) -> None:
    scope = next(SCOPES)
    episodes = await remembered(store, scope, said)
    await remembered(store, next(SCOPES), said)
    for text in texts:
        filter = filters.parse(text, ZONE)
        assert filter is not None
        selection = Selection(filter)
        selected = await store.read(scope, lambda tx, chosen=selection: tx.log.selected(chosen))
        assert selected == [episode.seq for episode in episodes if filters.match(filter, episode)], text


@unhurried
@given(message=messages, field=st.sampled_from(["id", "content", *TEXT_FIELDS, "a", "o.p", "metadata.o.q.r"]))
async def test_an_episode_is_found_by_each_value_it_holds(store: SQLiteStore, message: Message, field: str) -> None:
    scope = next(SCOPES)
    *_, episode = await remembered(store, scope, [message])
    for value in filters.held(episode, field):
        if isinstance(value, str | int | float) and value == value:
            for filter in (Compare(field, "=", value), In(field, ("no such value", value))):
                selection = Selection(filter)
                assert episode.seq in await store.read(scope, lambda tx, chosen=selection: tx.log.selected(chosen))


# ---- any text at all

PIECES = [
    "a", "b", "role", "id", "metadata.a", "o.p", "occurred_at", "importance", "content", "nobody", "=", "!=", "<", ">=",
    "(", ")", ",", "IN", "NOT", "LIKE", "IS", "NULL", "AND", "OR", "date('2026-03-29')", "'x'", "'%'", '"a"', "3", "-1.5",
    "true", "'", '"', "\\", "--", ";", "/*", "?", ":x", "$1", "%s", "OR 1=1", "scope", "scope = 1", "\x00", "\ud800", "😀",
]  # fmt: skip
ANY = st.text(st.characters(exclude_categories=()), max_size=60)


@unhurried
@given(text=ANY | st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join) | written.map(lambda text: text[1:]))
@example(text="a = 1 OR scope = 1 OR 1=1 --")
@example(text="content LIKE '%' OR NOT content LIKE '%'")
@example(text="NOT (a = 'x') OR id != 'e0000000000'")
@example(text="role IN ('user')) OR (1=1")
@example(text=" OR ".join(["NOT content LIKE '%x_%'"] * 100))
@example(text="(" * 31 + "NOT a = 1" + ")" * 31)
@example(text="a IN (" + ",".join(["9" * 17] * 200) + ")")
@example(text="a < " + "9" * 300)
@example(text="importance < " + "9" * 300)
async def test_any_filter_selects_from_the_own_scope_or_is_refused(store: SQLiteStore, text: str) -> None:
    scope = Scope("org", "project", "own")
    own = {episode.seq for episode in await remembered(store, scope, [])}
    await remembered(store, replace(scope, user="other"), [])
    try:
        selection = Selection(filters.parse(text))
        selected = await store.read(scope, lambda tx: tx.log.selected(selection))
        latest = await store.read(scope, lambda tx: tx.log.newest(selection, 9, tx.log.position()))
    except InvalidFilter:
        return
    assert set(selected) | {episode.seq for episode in latest} <= own


# ---- the statements

SAID: dict[str, tuple[str, str, list[Any]]] = {
    "role = 'user'": ("role = ?", "role = %s", ["user"]),
    "importance IN (0.5, 1)": (
        "importance IN (SELECT value FROM json_each(?))",
        "importance = ANY(%s)",
        [[0.5, 1.0]],
    ),
    "role > 'a'": ("role > ?", 'role COLLATE "C" > %s', ["a"]),
    "role LIKE '50\\%_*'": ("role GLOB ?", "role LIKE %s ESCAPE '\\'", ["50\\%_*"]),
    "occurred_at <= date('2026-03-29T00:00Z')": ("occurred_at <= ?", "occurred_at <= %s", [1774742400000000]),
    "content = 'x' AND NOT kind = 'step'": (
        "(EXISTS (SELECT 1 FROM texts CROSS JOIN json_each(CAST(body AS TEXT), ?) held WHERE position = seq AND CASE WHEN "
        "held.type = 'text' AND typeof(held.key) <> 'text' THEN nullif(held.value, '') END "
        "IN (SELECT value FROM json_each(?))) AND NOT (kind = ?))",
        "(EXISTS (SELECT 1 FROM texts CROSS JOIN jsonb_path_query(convert_from(body, 'UTF8')::jsonb #> %s, '$[*]') "
        "AS held(value) WHERE position = seq AND CASE jsonb_typeof(held.value) WHEN 'string' THEN "
        "nullif(held.value #>> '{}', '') END = ANY(%s)) AND NOT (kind = %s))",
        [["content"], ["x"], "step"],
    ),
    "id IS NULL OR expires_at IS NULL": (
        "(NOT (TRUE) OR NOT (expires_at IS NOT NULL))",
        "(NOT (TRUE) OR NOT (expires_at IS NOT NULL))",
        [],
    ),
}


@pytest.mark.parametrize("text", SAID)
def test_both_dialects_bind_every_value(text: str) -> None:
    for_sqlite, for_postgresql, expected = SAID[text]
    filter = filters.parse(text)
    assert filter is not None
    keys = Keys(b"key")
    assert Conditions(keys, 7, lambda *_: [(1,)], SQLITE).sql(filter)[0] == for_sqlite
    assert Conditions(keys, 7, lambda *_: [(1,)], POSTGRESQL).sql(filter) == (for_postgresql, tuple(expected))


VOCABULARY = set(
    """
    NOT AND OR IN BETWEEN IS NULL TRUE FALSE EXISTS SELECT FROM WHERE CROSS JOIN AS CASE WHEN THEN END CAST TEXT NUMERIC
    GLOB LIKE ESCAPE ANY COLLATE C
    seq ident role kind class importance occurred_at created_at expires_at labels scope field value texts position body held
    nullif typeof type key json_each text integer real convert_from UTF8 jsonb jsonb_path_query jsonb_typeof string number
    1 s
    """.split()
)


@unhurried
@given(text=written)
def test_a_statement_has_no_words_but_its_own(text: str) -> None:
    filter = filters.parse(text, ZONE)
    assert filter is not None
    for dialect in (SQLITE, POSTGRESQL):
        sql, values = Conditions(Keys(b"key"), 7, lambda *_: [(1, "2026-03-29")], dialect).sql(filter)
        assert set(re.findall(r"\w+", sql)) <= VOCABULARY
        assert sql.count(dialect.mark) == len(values)
