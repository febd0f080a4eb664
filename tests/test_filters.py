from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_memory.errors import InvalidFilter
from mcp_memory.filters import (
    MAX_CHARACTERS,
    MAX_LIST,
    SYSTEM_FIELDS,
    canonical,
    fields,
    label_field,
    labels,
    match,
    metadata_name,
    parse,
)
from mcp_memory.types import And, Compare, Episode, Filter, In, Not, Scalar

NOON = datetime(2030, 2, 3, 12, tzinfo=UTC)


def episode(metadata: Mapping[str, Any] | None = None, tags: tuple[str, ...] = (), speaker: str = "") -> Episode:
    return Episode(
        id="e1",
        seq=1,
        content="Reads the tide table before breakfast",
        role="user",
        speaker=speaker,
        produced_for="",
        agent_id="",
        session_id="s1",
        kind="message",
        blocks=(),
        occurred_at=NOON,
        created_at=NOON,
        importance=0.5,
        category="general",
        tags=tags,
        entities=(),
        metadata=metadata or {},
    )


def satisfied(text: str, subject: Episode) -> bool:
    filter = parse(text)
    assert filter is not None
    return match(filter, subject)


def refusal(text: str) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        parse(text)
    assert str(caught.value).startswith("filter: ")
    return caught.value


def quoted(value: str, quote: str = "'") -> str:
    return quote + value.replace("\\", "\\\\").replace(quote, quote * 2) + quote


any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
names = st.from_regex(r"[a-z][a-z0-9_-]{0,6}", fullmatch=True).map(lambda name: f"metadata.{name}")
scalars = st.one_of(any_text, st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
words = ["a", "tags", "=", "!=", "IN", "in", "(", ")", ",", "AND", "OR", "'x'", "'", '"', "\\", "3", "-", "."]
filter_like = st.lists(st.sampled_from(words)).map(" ".join)


# Reading


@pytest.mark.parametrize("blank", ["", "   ", "\n\t\u3000"])
def test_blank_text_is_no_filter(blank: str) -> None:
    assert parse(blank) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("area = 'habits'", Compare("area", "=", "habits")),
        ('area="habits"', Compare("area", "=", "habits")),
        ("area != 'habits'", Compare("area", "!=", "habits")),
        ("level = 3", Compare("level", "=", 3)),
        ("level = -3.5", Compare("level", "=", -3.5)),
        ("level=-5", Compare("level", "=", -5)),
        ("open = True", Compare("open", "=", True)),
        ("open != FALSE", Compare("open", "!=", False)),
        ("level in (1, 'two', true)", In("level", (1, "two", True))),
        ("a = 1 and b = 2 AND c = 3", And((Compare("a", "=", 1), Compare("b", "=", 2), Compare("c", "=", 3)))),
        ("metadata.role = 'cook'", Compare("metadata.role", "=", "cook")),
        ("metadata.in = 1", Compare("metadata.in", "=", 1)),
        ("due-date = '2030-01-01'", Compare("due-date", "=", "2030-01-01")),
        ("date = '2030-01-01'", Compare("date", "=", "2030-01-01")),
        ("部门 = '销售'", Compare("部门", "=", "销售")),
        ("metadata.部门 IN ('销售')", In("metadata.部门", ("销售",))),
    ],
)
def test_a_filter_is_read(text: str, expected: Filter) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"x = 'o''brien'", "o'brien"),
        (r"x = 'o\'brien'", "o'brien"),
        (r'x = "say ""hi"""', 'say "hi"'),
        (r'x = "say \"hi\""', 'say "hi"'),
        (r"x = 'back\\slash'", "back\\slash"),
        (r"x = 'C:\temp'", "C:\\temp"),
        ("x = 'o''brien \" ; DROP TABLE memories; --'", "o'brien \" ; DROP TABLE memories; --"),
        ("x = 'a = 1 AND b'", "a = 1 AND b"),
        ("x = 'two\nlines'", "two\nlines"),
        ("x = ''", ""),
    ],
)
def test_a_quoted_text_is_taken_word_for_word(text: str, value: str) -> None:
    assert parse(text) == Compare("x", "=", value)


@given(any_text, st.sampled_from("'\""))
def test_every_text_can_be_quoted(value: str, quote: str) -> None:
    assert parse(f"x = {quoted(value, quote)}") == Compare("x", "=", value)


# Refusing


@given(st.text() | filter_like)
def test_any_text_is_read_or_refused(text: str) -> None:
    refused: InvalidFilter | None = None
    try:
        parse(text)
    except InvalidFilter as error:
        refused = error
    assert refused is None or (str(refused).startswith("filter: ") and 0 <= refused.position <= len(text))


@pytest.mark.parametrize(
    "text",
    [
        "((",
        "area ==== broken",
        "lab' = 'north' OR '1'='1' -- = 'zzz'",
        "area = 'habits",
        "area = 'habits''",
        "area = 12ab",
        "area = 1.",
        "area = --3",
        "area IN ()",
        "area IN (1 2)",
        "area IN (1,",
        "area IN (1,)",
        "area = 1 area = 2",
        "AND",
        "a = 1 AND",
        "AND a = 1",
        "= 3",
        "3 = a",
        "a",
        "a = 1e999",
        "a = \0",
        "a\0 = 1",
        "a = '\ud800'",
        "user.name = 'x'",
        "metadata.user.name = 'x'",
        "(" * 10_000,
        "(" * MAX_CHARACTERS,
        "a = 1 AND " * (MAX_CHARACTERS // 10),
        f"a = '{'x' * 100_000}'",
        f"a = '{'x' * 100_000}",
        "a = " + "'" * (MAX_CHARACTERS - 5),
    ],
)
def test_odd_text_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("level < 3", "<"),
        ("level >= 3", ">="),
        ("level <> 3", "<>"),
        ("level == 3", "=="),
        ("level =~ 'x'", "=~"),
        ("NOT level = 3", "NOT"),
        ("level NOT IN (3)", "NOT"),
        ("level = 3 OR level = 4", "OR"),
        ("(level = 3)", "("),
        ("area LIKE 'hab%'", "LIKE"),
        ("area IS NULL", "IS"),
        ("area = null", "null"),
        ("area = date('2030-01-01')", "date"),
    ],
)
def test_what_is_not_offered_is_named_with_what_is(text: str, operator: str) -> None:
    error = refusal(text)
    assert f"{operator} is not offered; there are =, !=, IN (…) and AND" in str(error)
    assert text[error.position :].startswith(operator)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("area = habits", "stands in quotes"),
        ("area = 'habits", "not closed"),
        ("area IN 'habits'", "in parentheses"),
        ("in = 3", "metadata.in"),
        ("occurred_at = '2030-01-01'", "since and until"),
        ("a = 1 AND created_at IN ('2030-01-01')", "since and until"),
        ("user.name = 'x'", "dot"),
        ("level = ", "ends too early"),
        ("level = 3 level = 4", "joined by AND"),
    ],
)
def test_a_refusal_names_the_way_out(text: str, advice: str) -> None:
    assert advice in str(refusal(text))


def test_a_caret_stands_under_the_place() -> None:
    error = refusal("area = 'x' AND level ? 3")
    *_, shown, caret = str(error).splitlines()
    assert shown[caret.index("^")] == "?"
    assert error.position == 21


def test_a_list_is_bounded() -> None:
    full = ", ".join(["1"] * MAX_LIST)
    assert parse(f"a IN ({full})") == In("a", (1,) * MAX_LIST)
    assert str(MAX_LIST) in str(refusal(f"a IN ({full}, 1)"))


def test_importing_the_module_does_not_load_the_parser() -> None:
    check = "import sys, mcp_memory.filters; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0


# Names


def test_all_fields_of_a_filter_are_named() -> None:
    filter = parse("tags = 'x' AND metadata.area != 'y' AND level IN (1)")
    assert filter is not None
    assert fields(filter) == {"tags", "metadata.area", "level"}
    assert fields(Not(filter)) == fields(filter)


@pytest.mark.parametrize(
    ("field", "name", "label"),
    [
        ("area", "area", "metadata.area"),
        ("metadata.area", "area", "metadata.area"),
        ("role", None, "role"),
        ("metadata.role", "role", "metadata.role"),
    ],
)
def test_a_bare_name_is_metadata_unless_the_system_has_it(field: str, name: str | None, label: str) -> None:
    assert metadata_name(field) == name
    assert label_field(field) == label


# Meaning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("level = 3", True),
        ("level = 3.0", True),
        ("level = 30", False),
        ("level = '3'", False),
        ("level != '3'", True),
        ("level != 3", False),
        ("open = false", True),
        ("open = 0", False),
        ("open != 0", True),
        ("one = true", False),
        ("area = 'art'", True),
        ("area = 'Art'", False),
        ("area = 'ar'", False),
        ("area IN ('nope', 'art')", True),
        ("area IN ('nope')", False),
        ("area = 'art' AND level = 3", True),
        ("area = 'art' AND level = 4", False),
        ("missing = 'x'", False),
        ("missing != 'x'", False),
        ("missing IN ('x')", False),
        ("nothing != 'x'", False),
        ("blank = ''", False),
        ("blank != 'x'", False),
        ("nested = 'x'", False),
        ("nested != 'x'", False),
        ("toppings = 'plum'", True),
        ("toppings != 'plum'", False),
        ("toppings != 'kale'", True),
        ("toppings IN ('kale', 'fig')", True),
        ("empty != 'x'", False),
        ("tags = 'sea'", True),
        ("tags != 'sea'", False),
        ("tags != 'hill'", True),
        ("tags IN ('hill', 'dawn')", True),
        ("role = 'user'", True),
        ("metadata.role = 'cook'", True),
        ("metadata.role = 'user'", False),
        ("speaker != 'Ines'", False),
        ("importance = 0.5", True),
        ("id = 'e1'", True),
    ],
)
def test_conditions_hold_as_in_sql(text: str, expected: bool) -> None:
    metadata = {
        "level": 3,
        "open": False,
        "one": 1,
        "area": "art",
        "nothing": None,
        "blank": "",
        "nested": {"x": 1},
        "toppings": ["plum", "fig"],
        "empty": [],
        "role": "cook",
    }
    assert satisfied(text, episode(metadata, tags=("sea", "dawn"))) is expected


def test_an_empty_tag_list_satisfies_no_condition() -> None:
    assert not satisfied("tags != 'x'", episode())


@pytest.mark.parametrize("filter", [Compare("a", "<", 3), Not(Compare("a", "=", 3)), Compare("created_at", "=", "x")])
def test_matching_refuses_what_is_not_offered(filter: Filter) -> None:
    with pytest.raises(InvalidFilter):
        match(And((Compare("missing", "=", 1), filter)), episode())


@given(scalars, scalars)
def test_canonical_texts_are_equal_where_the_values_are(one: Scalar, other: Scalar) -> None:
    def kind(value: Scalar) -> type:
        return type(value) if isinstance(value, bool | str) else float

    assert (canonical(one) == canonical(other)) == (kind(one) == kind(other) and one == other)


@given(st.integers(-(2**53), 2**53))
def test_a_whole_number_is_the_same_with_and_without_a_point(number: int) -> None:
    assert canonical(number) == canonical(float(number))


@given(
    st.dictionaries(names, scalars | st.none() | st.lists(scalars, max_size=3) | st.just({"deep": 1}), max_size=4),
    st.lists(st.sampled_from(["sea", "dawn", "", "x"]), max_size=3),
    st.data(),
)
def test_labels_agree_with_match(metadata: dict[str, Any], tags: list[str], data: st.DataObject) -> None:
    subject = episode({name.removeprefix("metadata."): held for name, held in metadata.items()}, tuple(tags), "Ines")
    system = sorted(SYSTEM_FIELDS - {"id", "occurred_at", "created_at"})
    field = data.draw(st.sampled_from([*metadata, *system, "other"]))
    held = metadata.get(field)
    value = data.draw(st.sampled_from([*(held if isinstance(held, list) else [held]), "sea", "user", 0.5]) | scalars)
    if isinstance(value, str | int | float):
        found = (label_field(field), canonical(value)) in labels(subject)
        assert match(Compare(field, "=", value), subject) is found
        assert match(In(field, (value, "no such value")), subject) is found


def test_labels_name_every_value_once() -> None:
    subject = episode({"area": "art", "toppings": ["fig", "fig", {"deep": 1}], "blank": ""}, ("sea", "", "sea"), "Ines")
    assert sorted(labels(subject)) == [
        ("importance", "n:0.5"),
        ("kind", "s:message"),
        ("metadata.area", "s:art"),
        ("metadata.toppings", "s:fig"),
        ("role", "s:user"),
        ("session_id", "s:s1"),
        ("speaker", "s:Ines"),
        ("tags", "s:sea"),
    ]
