"""Which facts may be one: what they deny, count, date and name decides, not how alike they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_memory.likeness import agree, calibrated, same_words

AGREE = [
    ("likes hiking", "likes hiking"),
    ("likes hiking", "likes hiking in the mountains"),
    ("likes hiking in the mountains", "Likes going on hikes in the mountains."),
    ("drinks oat milk in the morning", "drinks oat milk in the mornings"),
    ("is a teacher", "is the teacher"),
    ("does not eat pork", "does not eat pork at all"),
    ("works with Anna", "works with Anna in the lab"),
    ("habite à Liège", "habite à Liège en été"),
    ("喜欢喝绿茶", "很喜欢喝绿茶"),
    ("喜欢喝绿茶", "喜欢喝绿茶，加蜂蜜"),
    ("喜欢喝绿茶", "喜欢喝绿茶和咖啡"),
    ("likes 徒步", "likes  徒步。"),
    ("likes tea", "likes tea from 杭州"),
]
DIFFER = [
    # what they deny
    ("eats meat", "does not eat meat"),
    ("eats meat", "never eats meat, no exceptions"),
    ("eats meat", "doesn't eat meat"),
    ("eats meat", "doesn’t eat meat"),
    ("eats meat", "rarely eats meat"),
    ("likes coffee", "dislikes coffee"),
    ("lives in the city", "used to live in the city"),
    ("likes tea but not coffee", "likes coffee but not tea"),
    ("吃肉", "不吃肉"),
    ("吃肉，也吃鱼", "不吃肉，也不吃鱼"),
    ("住在老城", "以前住在老城"),
    ("喜欢咖啡", "讨厌咖啡"),
    # what they count and date
    ("takes 2 sugars", "takes 3 sugars"),
    ("takes two sugars", "takes three sugars"),
    ("takes sugar", "takes 2 spoons of sugar"),
    ("runs on mondays", "runs on fridays"),
    ("was born on 1990-05-01", "was born on 1990-06-01"),
    ("meets at 9:30", "meets at 10:30"),
    ("每周跑步两次", "每周跑步三次"),
    ("有两个孩子", "有孩子"),
    # what they name
    ("works with Anna", "works with Maria"),
    ("works in the lab", "works with Anna in the lab"),
    ("叫张三", "叫张三丰"),
    ("和王芳住在一起", "和王芬住在一起"),
    # one word for another, or in another place
    ("prefers window seats", "prefers aisle seats"),
    ("prefers tea to coffee", "prefers coffee to tea"),
    ("flies to rome from oslo", "flies from rome to oslo"),
    ("likes green tea", "likes black tea"),
    ("喜欢喝绿茶", "喜欢喝红茶"),
    ("对花过敏", "对花生过敏"),
    ("喜欢猫", "喜欢猫头鹰"),
    ("住在北京", "住在上海"),
]


@pytest.mark.parametrize(("one", "other"), AGREE)
def test_facts_that_differ_in_nothing_that_counts_agree(one: str, other: str) -> None:
    assert agree(one, other)
    assert agree(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFER)
def test_facts_that_differ_in_what_counts_do_not_agree(one: str, other: str) -> None:
    assert not agree(one, other)
    assert not agree(other, one)


PIECES = sorted({piece for pair in (*AGREE, *DIFFER) for said in pair for piece in said.replace("，", "， ").split()})
facts = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(" ".join), st.text(min_size=1, max_size=40)
)


@given(facts)
def test_every_fact_agrees_with_itself(said: str) -> None:
    assert agree(said, said)


@given(facts, facts)
def test_agreement_goes_both_ways(one: str, other: str) -> None:
    assert agree(one, other) == agree(other, one)
    assert same_words(one, other) == same_words(other, one)


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(" ".join))
def test_a_fact_never_agrees_with_its_denial(said: str) -> None:
    assert not agree(said, f"not {said}")
    assert not agree(said, f"{said}，不过")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Drinks  oat milk.", "drinks oat milk", True),
        ("喜欢喝绿茶。", "喜欢喝绿茶", True),
        ("ｄｒｉｎｋｓ milk", "drinks milk", True),
        ("tea", "tea", False),  # a single word means something else under another feature
        ("drinks milk", "drinks oat milk", False),
    ],
)
def test_the_same_phrase_is_known_whatever_its_case_and_width(one: str, other: str, same: bool) -> None:
    assert same_words(one, other) is same


@given(st.floats(-1, 1), st.floats(0, 0.99))
def test_a_likeness_begins_at_what_strangers_have_and_ends_at_one(cosine: float, floor: float) -> None:
    assert 0 <= calibrated(cosine, floor) <= 1 + 1e-9
    assert calibrated(floor, floor) == 0
    assert calibrated(1.0, floor) == pytest.approx(1)
