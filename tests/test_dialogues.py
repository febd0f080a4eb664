"""Sixty dialogues labelled by hand: what the rules make of them, and that the labels are sound."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from mcp_memory.memory import Memory
from mcp_memory.types import Feature, Message, Scope

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from dialogues import LANGUAGES, TRAPS, Dialogue, Score, dialogues, precision, recall, score

pytestmark = pytest.mark.anyio

ALL = {dialogue.id: dialogue for language in LANGUAGES for dialogue in dialogues(language)}


@pytest.fixture(params=ALL.values(), ids=ALL)
def dialogue(request: pytest.FixtureRequest) -> Dialogue:
    return request.param


# ---- the labels


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_trap_is_set_often_enough_in_each_language(language: str) -> None:
    told = dialogues(language)
    assert len(told) == 30
    assert sum(not dialogue.traps for dialogue in told) >= 6
    set_ = Counter(trap for dialogue in told for trap in dialogue.traps)
    assert set(set_) == set(TRAPS)
    assert min(set_.values()) >= 3


def test_a_dialogue_runs_forward_in_time_and_both_sides_speak(dialogue: Dialogue) -> None:
    assert 3 <= len(dialogue.turns) <= 9
    assert all(before.said_at < after.said_at for before, after in pairwise(dialogue.turns))
    assert {turn.role for turn in dialogue.turns} == {"user", "assistant"}
    assert len({turn.content for turn in dialogue.turns}) == len(dialogue.turns)
    others = {turn.speaker for turn in dialogue.turns} - {"", dialogue.user}
    assert bool(others) == ("two_users" in dialogue.traps)


def test_the_notes_of_a_dialogue_are_a_perfect_profile(dialogue: Dialogue) -> None:
    notes = [label.note for label in dialogue.facts]
    judged = score(dialogue, notes, notes)
    assert (judged.wrong, judged.missed, judged.forbidden) == ((), (), ())


def test_a_label_rests_on_what_the_user_said(dialogue: Dialogue) -> None:
    said = " ".join(
        turn.content for turn in dialogue.turns if turn.role == "user" and turn.speaker in ("", dialogue.user)
    )
    for label in dialogue.facts:
        assert label.pattern.matches(said), label.note


def test_a_trap_says_what_must_not_be_learned(dialogue: Dialogue) -> None:
    assert dialogue.never or dialogue.ended or not dialogue.traps


def test_the_score_tells_right_wrong_missed_and_forbidden_apart() -> None:
    ruth, tunde = ALL["en08"], ALL["en23"]
    assert score(ruth, ["drinks rooibos"], ["drinks rooibos", "likes coffee"]).forbidden == ()
    judged = score(ruth, ["likes coffee", "gave up coffee", "likes jazz"], [])
    assert (judged.found, judged.wrong) == ((), ("likes coffee", "likes jazz"))
    assert [label.note for label in judged.missed] == ["drinks rooibos"]
    ended = score(tunde, ["is called Grace"], ["is called Grace", "likes okra"])
    assert (ended.found, ended.wrong, ended.forbidden) == (("is called Grace",), (), ("likes okra",))
    assert precision([judged, ended]) == 1 / 3
    assert recall([judged, ended]) == 1 / 5
    assert precision([]) == recall([]) == 1


# ---- the rules alone


async def played(memory: Memory, dialogue: Dialogue) -> Score:
    """The profile that a dialogue leaves, judged."""
    scope = Scope("org", "project", dialogue.id)
    for turn in dialogue.turns:
        message = Message(turn.content, role=turn.role, speaker=turn.speaker, occurred_at=turn.said_at)
        await memory.add(scope, [message])
    current, history = (await memory.profile(scope))[0], (await memory.profile(scope, history=True))[0]
    return score(dialogue, _values(current), _values(history))


def _values(facts: Sequence[Feature]) -> list[str]:
    return [fact.value for fact in facts]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_rules_learn_half_of_it_and_nothing_wrong(memory: Memory, language: str) -> None:
    scores = {dialogue.id: await played(memory, dialogue) for dialogue in dialogues(language)}
    assert {id: judged.wrong for id, judged in scores.items() if judged.wrong} == {}
    assert {id: judged.forbidden for id, judged in scores.items() if judged.forbidden} == {}
    assert precision(list(scores.values())) == 1
    assert recall(list(scores.values())) > 0.5


# ---- what the rules promise

PROMISED = {
    "name": {
        "My name is Ann": "Ann",
        "my name's Bob": "Bob",
        "I'm called Chidi.": "Chidi",
        "Hi, I'm Zoë.": "Zoë",
        "Good morning! I am Marek Nowak, pleased to meet you": "Marek Nowak",
        "I go by Teddy": "Teddy",
        "I'm Ann.": "Ann",
        "I am Ann Smith": "Ann Smith",
        "I'm Maria da Silva, by the way.": "Maria da Silva",
        "我叫张三。": "张三",
        "我的名字是李四": "李四",
        "大家好，我叫Tom": "Tom",
        "你好，我是王小明": "王小明",
        "我叫欧阳娜，住在海口": "欧阳娜",
    },
    "likes": {
        "I like tea": "tea",
        "i really love trail running!": "trail running",
        "I'm fond of old trains.": "old trains",
        "I adore the Beatles": "Beatles",
        "I'm into synthesizers": "synthesizers",
        "I love chess, because it is quiet": "chess",
        "我喜欢喝茶": "茶",
        "我爱吃火锅！": "火锅",
        "我特别喜欢猫": "猫",
        "我热爱篮球": "篮球",
        "我喜欢爬山，游泳和摄影": "摄影",
    },
    "dislikes": {
        "I hate coriander": "coriander",
        "I don't like mushrooms.": "mushrooms",
        "I can't stand loud music": "loud music",
        "I dislike cold weather": "cold weather",
        "I'm not a big fan of horror films": "horror films",
        "我不喜欢香菜": "香菜",
        "我讨厌抽烟": "抽烟",
        "我受不了烟味": "烟味",
        "我不太喜欢吵闹的地方。": "吵闹",
        "我不爱吃苦瓜": "苦瓜",
    },
    "allergies": {
        "I'm allergic to peanuts": "peanuts",
        "I am severely allergic to bee stings and latex.": "latex",
        "I have a shellfish allergy": "shellfish",
        "I've got a nut allergy, so be careful": "nut",
        "I have an allergy to penicillin": "penicillin",
        "我对花生过敏": "花生",
        "我花粉过敏": "花粉",
        "我有坚果过敏": "坚果",
        "我对海鲜和芒果过敏，请记住": "芒果",
        "我从小对鸡蛋严重过敏": "鸡蛋",
    },
    "home": {
        "I live in Ghent": "Ghent",
        "I'm based in Nairobi.": "Nairobi",
        "I currently live in New York with two cats": "New York",
        "I just moved to Turku": "Turku",
        "I moved to Turku yesterday": "Turku",
        "i live in Medellín so it's warm": "Medellín",
        "我住在杭州": "杭州",
        "我家在成都": "成都",
        "我刚搬到广州": "广州",
        "我上个月搬到宁波了": "宁波",
        "我目前住在苏州，做设计": "苏州",
    },
    "work": {
        "I work at Acme": "Acme",
        "I am a nurse": "nurse",
        "I'm a software engineer at Acme.": "software engineer",
        "I work as a carpenter": "carpenter",
        "I started working at Bosch last week": "Bosch",
        "I work in insurance": "insurance",
        "我在腾讯工作": "腾讯",
        "我是一名护士": "护士",
        "我在小米做产品经理": "产品经理",
        "我目前在人民医院上班": "人民医院",
        "我叫王芳，是物理老师": "物理老师",
    },
    "instructions": {
        "Always answer in French": "French",
        "Please answer in German from now on.": "German",
        "Never use emojis": "emojis",
        "Keep your answers short, please.": "short",
        "Use British spelling from now on": "use British spelling",
        "Always give me prices in euros": "prices in euros",
        "Please always cite your sources": "cite your sources",
        "Call me Jo from now on": "Jo",
        "以后请用中文回答": "中文",
        "请始终用英文回复": "英文",
        "以后不要用表情符号": "表情",
        "以后回答请简短一点": "简短",
        "请叫我老王": "老王",
        "以后写代码都要加注释": "注释",
    },
}


@pytest.mark.parametrize(
    ("tag", "text", "told"), [(tag, text, told) for tag, texts in PROMISED.items() for text, told in texts.items()]
)
async def test_what_is_promised_is_known_in_the_very_next_call(
    memory: Memory, scope: Scope, tag: str, text: str, told: str
) -> None:
    added = await memory.add(scope, [Message(text)])
    assert any(fact.tag == tag and told in fact.value for fact in added.learned)
    known = (await memory.profile(scope, tag=tag))[0]
    assert any(told in fact.value for fact in known)


# ---- what looks like a statement

MISLEADING = [
    # a name, or anything else that may stand there
    "I'm Dutch.",
    "I'm Tired.",
    "I'm Batman.",
    "I'm James Bond.",
    "I'm Will Power personified",
    "I'm Mark's brother.",
    "I'm Ann?",
    "Here is my character. I'm Leo. I love fire.",
    # somebody else at the keyboard
    "Tunde here, on her phone. I adore okra.",
    "Writing from my brother's phone. I love okra.",
    "From: Ben\nI live in Oslo.",
    "我是大伟，用她手机发的。我超爱折耳根。",
    "替她说一句。我喜欢折耳根。",
    # speech without quotation marks
    "My editor keeps saying I love long sentences and I hate commas",
    "Then he sighs, I love flour and thunder, and off he goes",
    "The teacher smiled, I love chalk",
    "下一段她讲，我喜欢听评弹",
    "然后他叹了口气，我喜欢面粉和雷雨",
    "大夫在病历上写着，我对乳胶过敏",
    "星座运势讲，我喜欢变化",
    "孩子的作文第一句，我住在城堡里",
    # another life
    "我在这部戏里当医生",
    "In that life I live in Iceland, and I love winter swimming",
    "到时候我住在阳朔，我喜欢晒太阳",
    "在那种日子里，我住在布达拉宫脚下",
    # not for long
    "I'm vegetarian for two weeks, lost a bet",
    "I live in Oslo for six months",
    "我吃素，就这两个星期",
    "我住在成都，就这几天",
    "I live in Ghent, at least until the lease ends",
    "我住在十二楼",
    # taken back
    "I'm allergic to milk no longer",
    "I live in Ghent, sorry, Bruges",
    "I like cats, I mean dogs",
    "我住在杭州，不对，是苏州",
    "我当过老师",
    # irony
    "And now a report, hooray, I love reports",
    "I adore DNS. (I do not.)",
    "我最爱半夜改需求，简直享受",
    # instructions that are none
    "Always give me a break",
    "Keep quiet from now on",
    "Never test my patience",
    "以后再发一次",
    "以后写论文用",
    "叫我大吃一惊",
]


@pytest.mark.parametrize("text", MISLEADING)
async def test_what_only_looks_like_a_statement_is_not_believed(memory: Memory, scope: Scope, text: str) -> None:
    assert (await memory.add(scope, [Message(text)])).learned == ()


@pytest.mark.parametrize(
    ("text", "things"),
    [
        ("我喜欢爬山，游泳和摄影", {"爬山", "游泳", "摄影"}),
        ("我喜欢摇滚，金属和放克，抒情的别来", {"摇滚", "金属", "放克"}),
        ("我喜欢鸡蛋和牛奶", {"鸡蛋", "牛奶"}),
        ("我喜欢爬山，周末和朋友去", {"爬山"}),
        ("我喜欢画画，老师和同学支持", {"画画"}),
        ("我喜欢下雨，打雷和闪电可怕", {"下雨"}),
        ("I love hiking because of trees, rivers and lakes", {"hiking"}),
    ],
)
async def test_a_list_goes_on_only_with_what_is_listed(
    memory: Memory, scope: Scope, text: str, things: set[str]
) -> None:
    learned = (await memory.add(scope, [Message(text)])).learned
    assert {fact.value.removeprefix("喜欢").removeprefix("likes ") for fact in learned} == things


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("I love coffee", "I gave up coffee last week"),
        ("I love coffee", "I quit coffee yesterday"),
        ("I like window seats", "I prefer aisle seats now instead of window seats"),
        ("我喜欢靠窗的座位", "我现在更喜欢靠过道的座位而不是靠窗的座位"),
        ("我住在郑州", "我上个月搬到宁波了，孩子们很高兴"),
        ("我住在郑州", "我去年搬到宁波，今年又搬到杭州了"),
    ],
)
async def test_a_changed_mind_leaves_nothing_behind(memory: Memory, scope: Scope, before: str, after: str) -> None:
    [stale] = (await memory.add(scope, [Message(before)])).learned
    await memory.add(scope, [Message(after)])
    assert stale.value not in _values((await memory.profile(scope))[0])
    assert stale.value in _values((await memory.profile(scope, history=True))[0])
