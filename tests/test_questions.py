"""How a question is turned into what would answer it, and what counts as asking."""

from __future__ import annotations

import pytest

from mcp_memory import questions, text


@pytest.mark.parametrize(
    ("query", "speakers", "told"),
    [
        ("When did Ann go to the support group?", ["Ann"], "I go to the support group"),
        ("What did ann's friend sing?", ["Ann"], "my friend sing"),
        ("What did Ann Lee and Ann plant?", ["Ann", "Ann Lee"], "I and I plant"),
        ("小明昨天去哪里吃饭了？", ["小明"], "昨天去里吃饭"),
        ("What did I buy?", [], "I buy"),
        ("Who?", [], "Who?"),
        ("Ann", ["Ann"], "I"),
        ("吗", [], "吗"),
        ("我开什么车？", [], "我开什么车"),
        ("是的呢，周末去灵隐寺喝茶吗？", [], "周末去灵隐寺喝茶"),
        ("😀", [], "😀"),
    ],
)
def test_a_question_is_put_as_its_answer_would_be(query: str, speakers: list[str], told: str) -> None:
    assert questions.told(query, speakers) == told


def test_names_may_be_written_small_or_in_several_words() -> None:
    found = questions.names("what does ann marie think of bob?")
    assert {"Ann", "Ann Marie", "Bob", "ann", "bob"} <= set(found)
    assert {"小明", "李小明"} <= set(questions.names("李小明在哪？"))
    assert questions.names("") == []
    assert len(questions.names("word " * 100_000)) < 20
    assert len(questions.names("架" * 50_000)) < 20


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ("I went home.", 0.0),
        ("Did you?", 1.0),
        ("你去了吗？", 1.0),
        ('She asked "really?"', 1.0),
        ("I did. Did you?", 8 / 14),
        ("", 0.0),
        ("a?b", 0.0),
    ],
)
def test_what_asks_is_measured_by_its_length(said: str, share: float) -> None:
    assert questions.asks(said) == pytest.approx(share)


def test_irregular_forms_are_one_word() -> None:
    for form, word in (("bought", "buy"), ("children's", "child"), ("Went", "going"), ("wrote", "writes")):
        assert text.words(form)[0] == text.words(word)[0]
