from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_memory.errors import InvalidFilter
from mcp_memory.fields import FIELD_TYPES, SYSTEM_FIELDS, canonical, held, label_field, labels, metadata_name
from mcp_memory.filters import MAX_CHARACTERS, MAX_CONDITIONS, MAX_DEPTH, MAX_LIST, fields, like, match, parse
from mcp_memory.types import And, Compare, Episode, Filter, In, IsNull, Like, Not, Or, Period, Scalar

NOON = datetime(2030, 2, 3, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


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


def satisfied(text: str, subject: Episode, zone: tzinfo = UTC) -> bool:
    filter = parse(text, zone)
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
words = [
    "a", "tags", "occurred_at", "importance", "=", "!=", "<", ">=", "IN", "in", "(", ")", ",", "AND", "OR", "NOT", "LIKE",
    "IS", "NULL", "date(", "'2030-02-03'", "'x'", "'", '"', "\\", "3", "-", ".", "%", "true",
]  # fmt: skip
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
        ("level < 3", Compare("level", "<", 3)),
        ("level<=-.5", Compare("level", "<=", -0.5)),
        ("area > 'h'", Compare("area", ">", "h")),
        ("level >= 1e3", Compare("level", ">=", 1000.0)),
        ("area LIKE 'hab%'", Like("area", "hab%")),
        ("area is null", IsNull("area")),
        ("area IS NOT NULL", Not(IsNull("area"))),
        ("not area = 'x'", Not(Compare("area", "=", "x"))),
        ("NOT NOT a = 1", Not(Not(Compare("a", "=", 1)))),
        ("a NOT IN (1)", And((Not(IsNull("a")), Not(In("a", (1,)))))),
        ("a not like 'x'", And((Not(IsNull("a")), Not(Like("a", "x"))))),
        ("a = 1 OR b = 2 OR c = 3", Or((Compare("a", "=", 1), Compare("b", "=", 2), Compare("c", "=", 3)))),
        ("a = 1 or b = 2 and c = 3", Or((Compare("a", "=", 1), And((Compare("b", "=", 2), Compare("c", "=", 3)))))),
        ("(a = 1 or b = 2) and c = 3", And((Or((Compare("a", "=", 1), Compare("b", "=", 2))), Compare("c", "=", 3)))),
        ("NOT(a=1)AND(b=2)", And((Not(Compare("a", "=", 1)), Compare("b", "=", 2)))),
        ("NOT a = 1 AND b = 2", And((Not(Compare("a", "=", 1)), Compare("b", "=", 2)))),
        ("a.b = 1", Compare("a.b", "=", 1)),
        ("metadata.user.name = 'x'", Compare("metadata.user.name", "=", "x")),
        ("not_now = 1", Compare("not_now", "=", 1)),
        ("in-tray = 1", Compare("in-tray", "=", 1)),
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


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("date('2030-02-03')", "2030-02-03T00:00:00", "2030-02-03T23:59:59.999999"),
        ('DATE ( "2030-02-03" )', "2030-02-03T00:00:00", "2030-02-03T23:59:59.999999"),
        ("'2030-02-03'", "2030-02-03T00:00:00", "2030-02-03T23:59:59.999999"),
        ("date('2030-02-03T12:30')", "2030-02-03T12:30:00", "2030-02-03T12:30:00"),
        ("date('2030-02-03 12:30:05.5')", "2030-02-03T12:30:05.5", "2030-02-03T12:30:05.5"),
        ("date('2030-02-03T12:30Z')", "2030-02-03T12:30:00+00:00", "2030-02-03T12:30:00+00:00"),
        ("date('2030-02-03T12:30-05:00')", "2030-02-03T12:30:00-05:00", "2030-02-03T12:30:00-05:00"),
        ("date('2030-03-31')", "2030-03-31T00:00:00+01:00", "2030-03-31T23:59:59.999999+02:00"),
        ("date('9999-12-31')", "9999-12-31T00:00:00", "9999-12-31T23:59:59.999999"),
    ],
)
def test_a_date_is_a_day_or_a_moment_of_the_zone(text: str, first: str, last: str) -> None:
    def moment(written: str) -> datetime:
        read = datetime.fromisoformat(written)
        return (read if read.tzinfo else read.replace(tzinfo=BERLIN)).astimezone(UTC)

    assert parse(f"occurred_at >= {text}", BERLIN) == Compare(
        "occurred_at", ">=", Period(moment(first), moment(last), BERLIN)
    )


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
        "user..name = 'x'",
        "user. name = 'x'",
        ".name = 'x'",
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
    ("text", "instead"),
    [
        ("level ~<> 3", "!="),
        ("level ~== 3", "="),
        ("level ~=> 3", ">="),
        ("level ~=~ 'x'", "there are =, !=, <"),
        ("level ~~ 'x'", "there are =, !=, <"),
        ("level ~BETWEEN 1 AND 3", "level >= 1 AND level <= 3"),
        ("area ~ILIKE 'x'", "LIKE"),
        ("area ~REGEXP 'x'", "LIKE"),
        ("~! level = 3", "NOT"),
        ("level = 3 ~|| level = 4", "OR"),
        ("level = 3 ~&& level = 4", "AND"),
    ],
)
def test_what_is_not_offered_is_named_with_what_is(text: str, instead: str) -> None:
    place = text.index("~")
    text = text[:place] + text[place + 1 :]
    error = refusal(text)
    assert error.position == place
    problem, *_ = str(error).splitlines()
    assert problem.startswith(f"filter: {re.split(r'[ (]', text[place:])[0]} is not offered; ")
    assert instead in problem


PLACES = [
    ("area = ^habits", "stands in quotes"),
    ("area = ^'habits", "not closed"),
    ("area = ^'habits''", "not closed"),
    ("area IN ^'habits'", "in parentheses"),
    ("area IN ^('habits', 'food'", "parenthesis is not closed"),
    ("^(a = 1 OR b = 2", "parenthesis is not closed"),
    ("(a = 1 OR ^(b = 2", "parenthesis is not closed"),
    ("a = 1^) OR b = 2", "was not opened"),
    ("a = date^('2030-02-03'", "parenthesis is not closed"),
    ("^in = 3", "metadata.in"),
    ("a = 1 AND ^like = 3", "metadata.like"),
    ("user^..name = 'x'", "name of a key"),
    ("level =^", "ends too early"),
    ("level = 3 AND^", "ends too early"),
    ("(level = 3 AND^", "ends too early"),
    ("NOT^", "ends too early"),
    ("level = 3 ^level = 4", "joined by AND or OR"),
    ("area = ^null", "IS NULL"),
    ("area IS ^'x'", "NULL or NOT NULL"),
    ("area IS NOT ^'x'", "NULL or NOT NULL"),
    ("area NOT ^= 'x'", "stands first"),
    ("area LIKE ^3", "text in quotes"),
    ("area = date(^3)", "text in quotes"),
    ("area = ^now()", "no function now; there is date"),
    ("lower^(area) = 'x'", "no functions"),
    ("^3 = level", "name of a field"),
    ("level = ^(3)", "value is expected"),
    ("level = ^3rd", "value is expected"),
    ("level = ^-", "value is expected"),
    ("level IN (^)", "value is expected"),
    ("level = ^1e999", "too large"),
    ("level ^3", "operator is expected"),
    ("occurred_at >= ^3", "occurred_at is a time: occurred_at >= date('2026-05-01')"),
    ("occurred_at >= ^true", "is a time"),
    ("occurred_at >= ^'soon'", "no date of the calendar"),
    ("occurred_at >= date(^'2030-02-30')", "no date of the calendar"),
    ("occurred_at >= date(^'')", "no date of the calendar"),
    ("due >= date(^'0001-01-01T00:00+12:00')", "no date of the calendar"),
    ("created_at IN (date('2030-02-03'), ^5)", "is a time"),
    ("importance > ^'high'", "importance is a number"),
    ("importance = ^true", "is a number"),
    ("importance < ^date('2030-02-03')", "is a number"),
    ("role = ^3", "role is a text"),
    ("tags IN ('a', ^3)", "metadata.tags"),
    ("content = ^date('2030-02-03')", "is a text"),
    ("id = ^7", "id is a text"),
    ("id ^> 'e1'", "no order"),
    ("open ^>= true", "no order"),
    ("id ^LIKE 'e%'", "LIKE compares texts"),
    ("created_at NOT ^LIKE '2030%'", "LIKE compares texts"),
    ("importance ^LIKE '0%'", "metadata.importance"),
]


@pytest.mark.parametrize(("text", "advice"), PLACES)
def test_a_refusal_shows_the_place_and_the_way_out(text: str, advice: str) -> None:
    place = text.index("^")
    text = text[:place] + text[place + 1 :]
    error = refusal(text)
    problem, shown, caret = str(error).splitlines()
    assert advice in problem
    assert error.position == place
    assert shown == f"  {text}"
    assert caret == f"  {' ' * place}^"


def test_a_caret_stands_under_the_place() -> None:
    error = refusal("area = 'x' AND level ? 3")
    *_, shown, caret = str(error).splitlines()
    assert shown[caret.index("^")] == "?"
    assert error.position == 21


def test_a_list_is_bounded() -> None:
    full = ", ".join(["1"] * MAX_LIST)
    assert parse(f"a IN ({full})") == In("a", (1,) * MAX_LIST)
    assert str(MAX_LIST) in str(refusal(f"a IN ({full}, 1)"))


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("NOT ", ""), ("NOT(", ")")])
def test_the_depth_is_bounded(opening: str, closing: str) -> None:
    levels = MAX_DEPTH // (2 if opening == "NOT(" else 1)
    assert parse(opening * levels + "a = 1" + closing * levels) is not None
    assert str(MAX_DEPTH) in str(refusal(opening * (levels + 1) + "a = 1" + closing * (levels + 1)))


@pytest.mark.parametrize("word", [" AND ", " OR "])
def test_the_number_of_conditions_is_bounded(word: str) -> None:
    assert len(fields(parse(word.join(f"a{i} = 1" for i in range(MAX_CONDITIONS))) or IsNull("x"))) == MAX_CONDITIONS
    assert str(MAX_CONDITIONS) in str(refusal(word.join(["a = 1"] * (MAX_CONDITIONS + 1))))


def test_importing_the_module_does_not_load_the_parser() -> None:
    check = "import sys, mcp_memory.filters; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0


# Names


def test_all_fields_of_a_filter_are_named() -> None:
    filter = parse("tags = 'x' AND metadata.area != 'y' AND level IN (1)")
    assert filter is not None
    assert fields(filter) == {"tags", "metadata.area", "level"}
    assert fields(Not(Or((filter, Like("area", "x"), IsNull("b"))))) == {*fields(filter), "area", "b"}


@pytest.mark.parametrize(
    ("field", "name", "label"),
    [
        ("area", "area", "metadata.area"),
        ("metadata.area", "area", "metadata.area"),
        ("role", None, "role"),
        ("metadata.role", "role", "metadata.role"),
        ("a.b", "a.b", "metadata.a.b"),
        ("metadata.a.b", "a.b", "metadata.a.b"),
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
        ("level < 3.5", True),
        ("level < 3", False),
        ("level <= 3", True),
        ("level > -4", True),
        ("level >= 3.0", True),
        ("level > 'a'", False),
        ("area > 3", False),
        ("area < 'b'", True),
        ("area > 'Z'", True),
        ("area >= 'art'", True),
        ("area < 'art'", False),
        ("one > 0", True),
        ("open < 1", False),
        ("open >= 0", False),
        ("missing < 1", False),
        ("missing >= 1", False),
        ("nothing < 1", False),
        ("blank < 'x'", False),
        ("blank LIKE '%'", False),
        ("toppings < 'g'", True),
        ("toppings > 'q'", False),
        ("toppings LIKE 'pl_m'", True),
        ("toppings LIKE 'x%'", False),
        ("tags LIKE 'se%'", True),
        ("tags NOT LIKE 'se%'", False),
        ("tags NOT LIKE 'x%'", True),
        ("tags NOT IN ('hill')", True),
        ("tags NOT IN ('hill', 'sea')", False),
        ("area LIKE 'a%'", True),
        ("area LIKE 'A%'", False),
        ("area LIKE 'r'", False),
        ("area LIKE '%r%'", True),
        ("area LIKE '___'", True),
        ("area LIKE '__'", False),
        ("level LIKE '3'", False),
        ("level LIKE '%'", False),
        ("content LIKE '%tide table%'", True),
        ("content LIKE '%Tide%'", False),
        ("content NOT LIKE '%reef%'", True),
        ("content IS NULL", False),
        ("area IS NULL", False),
        ("area IS NOT NULL", True),
        ("missing IS NULL", True),
        ("nothing IS NULL", True),
        ("blank IS NULL", True),
        ("empty IS NULL", True),
        ("nested IS NULL", True),
        ("nested.x = 1", True),
        ("metadata.nested.x > 0", True),
        ("nested.x IS NULL", False),
        ("nested.deep.y = 'z'", True),
        ("nested.deep.y LIKE 'z%'", True),
        ("nested.list = 2", True),
        ("nested.x.y = 1", False),
        ("nested.y IS NULL", True),
        ("dotted.name = 'n'", True),
        ("dotted.name LIKE 'n'", True),
        ("open IS NULL", False),
        ("speaker IS NULL", True),
        ("expires_at IS NULL", True),
        ("entities = 'Ghent'", True),
        ("missing NOT IN ('x')", False),
        ("missing NOT LIKE 'x'", False),
        ("NOT missing = 'x'", True),
        ("NOT missing != 'x'", True),
        ("NOT missing IN ('x')", True),
        ("NOT missing < 3", True),
        ("NOT level = 3", False),
        ("NOT (level = 3 AND area = 'nope')", True),
        ("NOT NOT level = 3", True),
        ("level = 4 OR area = 'art'", True),
        ("level = 4 OR area = 'nope'", False),
        ("level = 3 OR area = 'nope' AND open = true", True),
        ("(level = 3 OR area = 'nope') AND open = true", False),
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
        "nested": {"x": 1, "deep": {"y": "z"}, "list": [1, 2]},
        "dotted.name": "n",
        "toppings": ["plum", "fig"],
        "empty": [],
        "role": "cook",
    }
    assert satisfied(text, replace(episode(metadata, tags=("sea", "dawn")), entities=("Ghent",))) is expected


def test_an_empty_tag_list_satisfies_no_condition() -> None:
    assert not satisfied("tags != 'x'", episode())


DAYS = [
    ("= date('2030-02-03')", "2030-02-03"),
    ("!= date('2030-02-03')", "2030-02-02 2030-02-04"),
    ("< date('2030-02-03')", "2030-02-02"),
    ("<= date('2030-02-03')", "2030-02-02 2030-02-03"),
    ("> date('2030-02-03')", "2030-02-04"),
    (">= date('2030-02-03')", "2030-02-03 2030-02-04"),
    ("IN (date('2030-02-02'), date('2030-02-04'))", "2030-02-02 2030-02-04"),
    ("NOT IN (date('2030-02-02'), date('2030-02-04'))", "2030-02-03"),
]


@pytest.mark.parametrize(("condition", "days"), DAYS)
def test_a_day_is_whole_in_the_zone(condition: str, days: str) -> None:
    for day in ("2030-02-02", "2030-02-03", "2030-02-04"):
        for hour in ("00:00:00", "12:00:00", "23:59:59.999999"):
            said = datetime.fromisoformat(f"{day}T{hour}").replace(tzinfo=BERLIN)
            subject = replace(
                episode({"due": f"{day}T{hour}", "stamp": said.astimezone(UTC).isoformat()}), occurred_at=said
            )
            for field in ("occurred_at", "due", "stamp"):
                assert satisfied(f"{field} {condition}", subject, BERLIN) is (day in days), (field, said)


@pytest.mark.parametrize("due", ["soon", "", 20300203, None, True, {"day": "2030-02-03"}])
def test_what_names_no_time_satisfies_no_comparison_with_one(due: Any) -> None:
    for operator in ("=", "<", "<=", ">", ">="):
        assert not satisfied(f"due {operator} date('2030-02-03')", episode({"due": due}))


@pytest.mark.parametrize(
    "filter",
    [
        Compare("open", "<", True),
        Compare("id", "<", "e1"),
        Compare("role", "=", 3),
        Not(Compare("created_at", "=", "2030-02-03")),
        In("importance", (0.5, "high")),
        Or((Like("importance", "%"), Compare("a", "=", 1))),
    ],
)
def test_matching_refuses_what_has_no_meaning(filter: Filter) -> None:
    with pytest.raises(InvalidFilter):
        match(And((Compare("missing", "=", 1), filter)), episode())


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("50\\%", ["50%"], ["500", "50\\%", "50"]),
        ("a\\_b", ["a_b"], ["axb"]),
        ("a_b", ["a_b", "axb", "a\nb", "a龙b", "a😀b"], ["ab", "axxb"]),
        ("C:\\\\%", ["C:\\", "C:\\temp"], ["C:", "C:%"]),
        ("C:\\temp", ["C:\\temp"], ["C:temp"]),
        ("%", ["", "x", "x\ny"], []),
        ("", [""], ["x"]),
        ("%%", ["", "x"], []),
        ("_%_", ["ab", "abc"], ["a"]),
        ("a%b%c", ["abc", "axbxc", "abbcc"], ["acb", "abcd"]),
        ("%ab%ab%", ["abab", "xabxabx"], ["ab", "aab"]),
        ("a*?[x]^.$", ["a*?[x]^.$"], ["a*?x^.$", "aab"]),
        ("%\\", ["x\\", "\\"], ["x"]),
    ],
)
def test_a_pattern_has_two_signs_that_a_backslash_makes_characters(
    pattern: str, fits: list[str], fails: list[str]
) -> None:
    assert [text for text in (*fits, *fails) if like(text, pattern)] == fits


def test_a_pattern_of_many_signs_ends() -> None:
    assert not like("a" * 20_000, "%a" * 1_000 + "b")


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
    system = sorted(
        field for field in SYSTEM_FIELDS - {"id", "content"} if FIELD_TYPES[field] != "time" and field != "importance"
    )
    field = data.draw(st.sampled_from([*metadata, *system, "metadata.deep", "other"]))
    value = data.draw(st.sampled_from([*held(subject, field), "sea", "user"]) | scalars)
    if isinstance(value, str) or field not in system:
        assert isinstance(value, str | int | float)
        found = (label_field(field), canonical(value)) in labels(subject)
        assert match(Compare(field, "=", value), subject) is found
        assert match(In(field, (value, "no such value")), subject) is found


def test_labels_name_every_value_once() -> None:
    metadata = {
        "area": "art",
        "toppings": ["fig", "fig", {"deep": 1}],
        "blank": "",
        "a": {"b": {"c": [1, 1.0]}, "x.y": 2},
        "a.b": {"d": 3},
        "a.b.c": 4,
    }
    subject = replace(episode(metadata, ("sea", "", "sea"), "Ines"), entities=("Ghent",))
    assert sorted(labels(subject)) == [
        ("category", "s:general"),
        ("entities", "s:Ghent"),
        ("importance", "n:0.5"),
        ("kind", "s:message"),
        ("metadata.a.b.c", "n:1"),
        ("metadata.a.b.c", "n:4"),
        ("metadata.area", "s:art"),
        ("metadata.toppings", "s:fig"),
        ("role", "s:user"),
        ("session_id", "s:s1"),
        ("speaker", "s:Ines"),
        ("tags", "s:sea"),
    ]
