"""What a language model wrote is read as what it meant, and never as less than it began to say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from mcp_memory.errors import ProviderRejected, ProviderTruncated
from mcp_memory.reading import read


class Commands(BaseModel):
    commands: list[Any]


class Route(BaseModel):
    category: str
    importance: float = Field(ge=0, le=1)


class Summary(BaseModel):
    text: str = ""
    topics: list[str] = []
    people: list[str] = []


CITY = {"command": "add", "tag": "home", "feature": "city", "value": "lives in Cork"}
LIST = json.dumps([CITY])


def commands(text: str) -> list[Any]:
    return read(text, Commands).commands


@pytest.mark.parametrize(
    "text",
    [
        LIST,
        json.dumps({"commands": [CITY]}),
        f"```json\n{LIST}\n```\nI found one fact.",
        f"```\n{json.dumps({'commands': [CITY]}, indent=2)}\n```",
        f"<think>The user said {{something}}. Maybe [1,2]? Let me answer.</think>\n{LIST}",
        f"<thinking>Perhaps [{{}}], or ```[]```?</thinking>{LIST}",
        f"<think>One</think> Then <THINK>two [3].</THINK> So: {LIST}",
        f"<think>Maybe [1,2]? {{something}} Well.\n{LIST}",
        f'I could add [{{"a": 1}}] here.</think>\n{LIST}',
        f'I could write [{{"command": "add" and so on.</think>\n{LIST}',
        f"Here is what I would store:\n{LIST}\nLet me know if you need more.",
        f"Maybe [1,2]? {{something}} See [the list below]. {LIST} That is [1] fact.",
        f"{LIST}\nNothing to delete: []",
        f"Of [{{...}}] I make {LIST}",
        f"At first [{{'command': 'add'}}], but then:\n{LIST}",
        f"```json\n{LIST}\n```\nI left out [{{'command': 'delete'}}].",
        LIST[:-1] + ",]",
        '[{"command": "add", "tag": "home", "feature": "city", "value": "lives in Cork",},]',
        "[{'command': 'add', 'tag': 'home', 'feature': 'city', 'value': 'lives in Cork'}]",
        '[{command: "add", tag: "home", feature: "city", value: "lives in Cork"}]',
        '[{"command": "add", "tag": "home" /* a "place"? */, // it\'s [so\n "feature": "city", "value": "lives in Cork"}]',
        '[\n  # one "fact\n  {"command": "add", "tag": "home", "feature": "city", "value": "lives in Cork"}\n]',
        '[{"command": "add", "tag": "home", "feature": "city"\n "value": "lives in Cork"}]',
        '[{"command": "add", "tag": "home", "feature": "city", "value": "lives in Cork"}}]',
        "[{“command”: “add”, “tag”: “home”, “feature”: “city”, “value”: “lives in Cork”}]",
    ],
)
def test_one_fact_is_read_whatever_stands_around_it(text: str) -> None:
    assert commands(text) == [CITY]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[{'value': 'it's a dog'}]", "it's a dog"),
        ("{'commands': [{'value': \"doesn't eat [meat]\"}], }", "doesn't eat [meat]"),
        ("[{'value': 'said \"no\" to [it', }]", 'said "no" to [it'),
        ("[{'value': 'doesn\\'t', }]", "doesn't"),
        ('[{"value": "has a 5" disk"}]', 'has a 5" disk'),
        ('[{"value": "said "hi", then left"}]', 'said "hi", then left'),
        ('[{value: "said \\"no\\" to [it", tag: "x"}]', 'said "no" to [it'),
        ('[{"value": "uses ``` and </think> and [, //x",},]', "uses ``` and </think> and [, //x"),
        ('[{"value": "two\nlines"}]', "two\nlines"),
        ('[{"value": "C:\\data", }]', "C:\\data"),
        ('[{"value": "https://x.example/#a", }]', "https://x.example/#a"),
        ('[{"value": "None, True,]", }]', "None, True,]"),
        ("[{'value': '小明说“不”，然后走了', }]", "小明说“不”，然后走了"),
        ("[{'value': None, }]", None),
        ('[{"value": True}]', True),
    ],
)
def test_what_a_careless_model_quotes_keeps_its_text(text: str, value: object) -> None:
    [command] = commands(text)
    assert command["value"] == value


def test_every_item_of_a_list_survives_whatever_it_is() -> None:
    assert commands('[{"command": "frobnicate"}, {"command": "add"}, 42, null, "x"]') == [
        {"command": "frobnicate"},
        {"command": "add"},
        42,
        None,
        "x",
    ]
    assert commands("[42, null, ]") == [42, None]


@pytest.mark.parametrize("text", ["[]", "Nothing here: []", "```\n[]\n```", "Maybe [1,2]? []", "[ // nothing\n]"])
def test_an_empty_list_is_an_answer(text: str) -> None:
    assert commands(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I could not find anything to remember.",
        "{something}",
        "[see below]",
        "<think>[]",
        "<think>[]</think> none",
        "{}",
    ],
)
def test_an_answer_without_the_shape_is_rejected(text: str) -> None:
    if text == "<think>[]":  # thinking that was never closed is read as the answer
        assert commands(text) == []
        return
    with pytest.raises(ProviderRejected) as raised:
        commands(text)
    assert not isinstance(raised.value, ProviderTruncated)


@pytest.mark.parametrize(
    "text",
    [
        '{"category": "secretive", "importance": 7}',
        '{"secretive": 1}',
        '[{"secretive": 1}]',
        "secretive",
        '{"category": "fact", "importance": "secretive"}',
        '["secretive"',
        '["secretive", {"category": 1, "importance": "secretive"}]',
    ],
)
def test_the_reason_does_not_quote_the_answer(text: str) -> None:
    with pytest.raises(ProviderRejected) as raised:
        read(text, Route)
    assert "secretive" not in str(raised.value)
    assert raised.value.__context__ is None  # what pydantic says does quote it


def test_the_reason_names_the_field() -> None:
    with pytest.raises(ProviderRejected, match="importance: less_than_equal"):
        read('{"category": "fact", "importance": 7}', Route)


def test_an_object_is_read_with_its_defaults() -> None:
    assert read('Sure: {"text": "a talk",}', Summary) == Summary(text="a talk")
    assert read("{}", Summary) == Summary()


def test_an_object_that_knows_none_of_the_fields_is_no_answer() -> None:
    with pytest.raises(ProviderRejected):
        read('{"result": {"text": "a talk"}}', Summary)


def test_a_bare_list_is_refused_where_it_could_be_several_fields() -> None:
    with pytest.raises(ProviderRejected):
        read('["a", "b"]', Summary)


@pytest.mark.parametrize(
    "text",
    [
        LIST[: len(LIST) * 2 // 3],
        LIST[:-1],
        f"{LIST[:-1]}, ",
        f"```json\n{LIST[:-2]}\n```\nThat is all.",
        f'{{"commands": {LIST}',
        f'I found this: {{"commands": {LIST}, "note": "and',
        "[{'command': 'add', 'value': 'lives in",
        f"<think>Hm.</think>{LIST[:-1]}",
        'Let me think [{"a": 1</think> of it',
        f"{LIST}\nAlso: [{{",
    ],
)
def test_a_bracket_that_is_never_closed_means_that_the_answer_was_cut(text: str) -> None:
    with pytest.raises(ProviderTruncated):
        commands(text)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 20_000 + "]" * 20_000, '{"a":' * 5_000, "[1 </think>" * 5_000])
def test_a_nonsensical_answer_is_refused_in_reasonable_time(text: str) -> None:
    with pytest.raises(ProviderRejected):
        commands(text)


NAMES = st.text(max_size=8)
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=30)
COMMANDS = st.lists(st.dictionaries(NAMES, VALUES | st.lists(VALUES, max_size=3), min_size=1, max_size=4), min_size=1)
THOUGHTS = st.text(alphabet="ab [1,2]{}\"'`:\n", max_size=30)

WRAPPINGS = [
    "{answer}",
    "```json\n{answer}\n```",
    "``` {answer} ``` I found that, [1] of [2].",
    "Here is what I would store:\n{answer}\nLet me know if you need more.",
    "The user said {{something}}. Maybe [1,2]?\n{answer}",
    "<think>{thought}</think>\n{answer}",
    "<thinking>{thought}</thinking> So:\n```\n{answer}\n```\nDone.",
    "{thought}</think>{answer}",
]


@given(COMMANDS, THOUGHTS, st.sampled_from(WRAPPINGS), st.booleans(), st.booleans(), st.sampled_from([None, 2]))
def test_any_commands_come_back_out_of_any_wrapping(
    expected: list[Any], thought: str, wrapping: str, named: bool, plain: bool, indent: int | None
) -> None:
    answer = json.dumps({"commands": expected} if named else expected, ensure_ascii=plain, indent=indent)
    assert commands(wrapping.format(answer=answer, thought=thought)) == expected


@given(COMMANDS, st.sampled_from([None, 2]))
def test_any_commands_come_back_out_of_careless_json(expected: list[Any], indent: int | None) -> None:
    answer = json.dumps(expected, indent=indent, ensure_ascii=False)
    assert commands(answer[:-1] + ",] // done") == expected
    assert commands(f'{{commands: /* "all */ {answer},}}') == expected


PRINTABLE = st.text(alphabet=st.characters(exclude_categories=["C", "Z"], include_characters=" "), max_size=30)


@given(
    st.lists(st.dictionaries(PRINTABLE, st.none() | st.booleans() | st.integers() | PRINTABLE, min_size=1), min_size=1)
)
def test_any_commands_come_back_out_of_pythons_notation(expected: list[Any]) -> None:
    assert commands(repr(expected)) == expected


@given(COMMANDS, st.booleans(), st.floats(0, 1, exclude_max=True))
def test_no_beginning_of_an_answer_is_taken_for_an_answer(expected: list[Any], named: bool, share: float) -> None:
    answer = json.dumps({"commands": expected} if named else expected, ensure_ascii=False)
    beginning = answer[: max(1, int(len(answer) * share))]
    with pytest.raises(ProviderTruncated):
        commands(beginning)
    with pytest.raises(ProviderTruncated):
        commands(f"Here you are:\n```json\n{beginning}")
