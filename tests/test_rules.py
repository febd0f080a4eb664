from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_memory.rules import SENTENCE_LIMIT, VALUE_LIMIT, Rules
from mcp_memory.types import INSTRUCTIONS_TAG, AddFeature, DeleteFeature

RULES = Rules.parse((Path(__file__).parents[1] / "prompts" / "rules.toml").read_text(encoding="utf-8"))


def learned(text: str) -> list[str]:
    """What is added, in words, once each."""
    return [command.value for command in RULES.commands(text, 1) if isinstance(command, AddFeature)]


def ended(text: str) -> set[tuple[str, str, str]]:
    return {(c.tag, c.feature, c.value) for c in RULES.commands(text, 1) if isinstance(c, DeleteFeature)}


STATED = [
    # names
    ("My name is Ann", ["is called Ann"]),
    ("my name is ann", ["is called ann"]),
    ("I'm called Ben Okafor.", ["is called Ben Okafor"]),
    ("Hi, I'm Ann.", ["is called Ann"]),
    ("Hello! I'm Ben, nice to meet you", ["is called Ben"]),
    ("My name is Ann and I live in Ghent.", ["is called Ann", "lives in Ghent"]),
    # likes
    ("I like tea", ["likes tea"]),
    ("I love hiking and pottery", ["likes hiking", "likes pottery"]),
    ("I love hiking because it calms me", ["likes hiking"]),
    ("I love tea, coffee and rye bread.", ["likes tea", "likes coffee", "likes rye bread"]),
    ("I love Romeo and Juliet", ["likes Romeo and Juliet"]),
    ("I like mac and cheese", ["likes mac and cheese"]),
    ("I like strong and sweet coffee", ["likes strong and sweet coffee"]),
    ("I like tea, not coffee", ["likes tea"]),
    ("By the way, I really enjoy old maps!", ["likes old maps"]),
    ("I love tea and I hate coffee", ["likes tea", "does not like coffee"]),
    ("I\u2019m a big fan of tango.", ["likes tango"]),
    ("I like tea very much", ["likes tea"]),
    ("I love tea. What goes well with it?", ["likes tea"]),
    # preferences and favourites
    ("I prefer aisle seats", ["prefers aisle seats"]),
    ("I prefer aisle seats now instead of window seats", ["prefers aisle seats"]),
    ("My favourite colour is blue", ["favourite colour is blue"]),
    ("My favorite author is Le Guin.", ["favourite author is Le Guin"]),
    # dislikes
    ("I hate coriander", ["does not like coriander"]),
    ("I can't stand coriander, keep it out of my food", ["does not like coriander"]),
    ("I can\u2019t stand coriander", ["does not like coriander"]),
    ("I don't like liver or tripe", ["does not like liver", "does not like tripe"]),
    # allergies and diet
    ("I'm allergic to peanuts and shellfish", ["is allergic to peanuts", "is allergic to shellfish"]),
    (
        "I'm allergic to peanuts, shellfish, and eggs",
        ["is allergic to peanuts", "is allergic to shellfish", "is allergic to eggs"],
    ),
    ("Please remember: I am severely allergic to latex.", ["is allergic to latex"]),
    ("I'm allergic to peanuts, so let me know if a dish has any.", ["is allergic to peanuts"]),
    ("I'm allergic to peanuts, what can I order in a Thai restaurant?", ["is allergic to peanuts"]),
    ("I have a severe nut allergy", ["has a severe nut allergy"]),
    ("I'm vegetarian", ["is vegetarian"]),
    ("I am a strict vegan, so no cheese", ["is vegan"]),
    ("I don't eat pork or shellfish", ["does not eat pork", "does not eat shellfish"]),
    ("I'm lactose intolerant", ["is lactose intolerant"]),
    # home
    ("I live in Ghent", ["lives in Ghent"]),
    ("I moved, I live in Turku now", ["lives in Turku"]),
    ("I live in St. Louis.", ["lives in St. Louis"]),
    ("I live in the Netherlands with my cat", ["lives in the Netherlands"]),
    ("I moved from Ghent to Turku last month", ["lives in Turku"]),
    ("I live in Ghent and work at Acme", ["lives in Ghent", "works at Acme"]),
    # work
    ("I work at Acme as a night-shift baker", ["works at Acme", "works as a night-shift baker"]),
    ("I am a night-shift baker", ["works as a night-shift baker"]),
    ("I'm an engineer at Acme, how do I file a patent?", ["works as an engineer"]),
    ("I work in logistics", ["works in logistics"]),
    # standing instructions
    ("Always answer in French", ["answer in French"]),
    ("From now on, please reply in Dutch.", ["answer in Dutch"]),
    ("From now on call me Ace", ["call the user Ace"]),
    ("Never use emojis!", ["do not use emojis"]),
    ("Keep your answers short, please", ["keep answers short"]),
    ("Always use metric units", ["always use metric units"]),
    ("You should never add comments to my tests", ["never add comments to my tests"]),
    # Chinese
    ("我叫张三", ["叫张三"]),
    ("你好，我是王小明。", ["叫王小明"]),
    ("我叫张三，住在杭州，在字节跳动工作", ["叫张三", "住在杭州", "在字节跳动工作"]),
    ("我喜欢爬山", ["喜欢爬山"]),
    ("我喜欢爬山、游泳和看书", ["喜欢爬山", "喜欢游泳", "喜欢看书"]),
    ("我很喜欢喝乌龙茶，因为香。", ["喜欢喝乌龙茶"]),
    ("我喜欢和平", ["喜欢和平"]),
    ("我不喜欢香菜", ["不喜欢香菜"]),
    ("我讨厌抽烟！", ["不喜欢抽烟"]),
    ("我对花生过敏", ["对花生过敏"]),
    ("我对虾和螃蟹过敏，今晚能吃什么？", ["对虾过敏", "对螃蟹过敏"]),
    ("我海鲜过敏", ["对海鲜过敏"]),
    ("我吃素", ["吃素"]),
    ("我不吃猪肉。", ["不吃猪肉"]),
    ("我住在杭州", ["住在杭州"]),
    ("我从根特搬到图尔库了", ["住在图尔库"]),
    ("我搬家了，现在住在苏州", ["住在苏州"]),
    ("我在字节跳动工作", ["在字节跳动工作"]),
    ("我是一名老师", ["是老师"]),
    ("我是程序员。", ["是程序员"]),
    ("我最喜欢的颜色是蓝色", ["最喜欢的颜色是蓝色"]),
    ("以后请用中文回复", ["用中文回答"]),
    ("以后都用中文回答。", ["用中文回答"]),
    ("从现在开始，请用英文回答我", ["用英文回答"]),
    ("请叫我小王", ["称呼用户为小王"]),
    ("以后不要用表情符号", ["不要用表情符号"]),
    ("以后请先给结论", ["以后先给结论"]),
    ("我叫张三。我叫什么？", ["叫张三"]),
]

TRAPS = {
    "negation": [
        "I'm not allergic to peanuts",
        "I don't hate tea",
        "It's not that I like tea",
        "I don't live in Ghent yet",
        "My name is not Ann",
        "I'm not vegetarian",
        "I never said I like tea",
        "I am not a baker",
        "我不叫张三",
        "我不讨厌香菜",
        "我对花生不过敏",
        "我并不住在杭州",
        "我不是老师",
        "我没说我喜欢爬山",
        "我不是不喜欢香菜",
        "我对海鲜没有过敏",
    ],
    "question": [
        "Do I like tea?",
        "Am I allergic to peanuts?",
        "what do I like",
        "I like tea, right?",
        "I live in Ghent, don't I?",
        "I like tea, or do I?",
        "Could you check whether oysters are in season?",
        "Did you know I love tea, coffee and milk?",
        "Should I say I love hiking?",
        "我喜欢什么？",
        "我叫什么",
        "我叫什么名字来着",
        "我住在哪里",
        "我对花生过敏吗？",
        "我叫张三，对吗？",
        "我是不是喜欢爬山",
        "我喜欢茶，还是咖啡？",
        "我住在杭州吗",
        "我在哪里工作",
    ],
    "hypothetical": [
        "If I ever moved to Oslo I'd learn to ski",
        "If I live in Oslo, I love skiing",
        "I wish I lived in Oslo",
        "I would love hiking",
        "I might like tea",
        "Suppose my name is Ann",
        "Maybe I like tea",
        "I'd like tea",
        "Let's say I work at Acme, I hate meetings",
        "I like tea if it is hot",
        "如果我住在杭州，我喜欢爬山",
        "要是我对花生过敏怎么办",
        "假如我叫张三",
        "我可能对花生过敏",
        "我也许喜欢爬山",
        "我希望我住在杭州",
        "我住在杭州的话，会每天爬山",
        "我好像对虾过敏",
    ],
    "somebody else": [
        "My friend says I love tea",
        "My brother is allergic to peanuts",
        "He said: I love hiking. I hate tea.",
        "He said, I love hiking",
        "You said I live in Ghent",
        "I love hiking, she said.",
        '"I live in Oslo" is the first line of the letter',
        "She wrote \u201cI hate coriander\u201d on the card",
        "In the song, I love rain",
        "My wife loves hiking",
        "Everyone thinks I like tea",
        "I like my neighbour's dog",
        "> I live in Ghent",
        "This is Ben, I love hiking",
        "My name's sake is Ann",
        "我女儿叫小满，今年上小学二年级，对猫毛过敏",
        "我朋友喜欢爬山",
        "我妈妈住在杭州，喜欢跳舞",
        "他说我喜欢爬山",
        "他说，I love tea",
        "他说：“我叫张三”",
        "同事说，我喜欢加班",
        "我老婆在字节跳动工作",
        "我爱人是老师",
        "我爸对花生过敏",
        "你说我喜欢爬山",
        "他们叫我小王",
        "我有个女儿，叫小满",
    ],
    "the assistant's guess": [
        "You think I like jazz, apparently",
        "You assumed I live in Ghent",
        "You guessed that I'm a baker",
        "你觉得我喜欢爵士乐",
        "你以为我住在杭州",
        "你猜我对虾过敏",
    ],
    "temporary": [
        "Today I feel like I love everything",
        "This week, I live in Ghent",
        "I live in Ghent, for now",
        "I work at Acme this week",
        "Today, I hate coffee",
        "I like tea tonight",
        "Answer in French this time",
        "Answer in French",
        "我今天喜欢喝茶",
        "这周我住在杭州",
        "我暂时住在杭州",
        "我最近喜欢爬山",
        "这次用英文回答",
        "我住在朋友家",
    ],
    "past": [
        "I used to love tea",
        "I used to live in Ghent",
        "When I was a child, I hated fish",
        "I once worked at Acme",
        "我以前喜欢爬山",
        "我曾经住在杭州",
        "我小时候喜欢吃糖",
    ],
    "sarcasm": [
        "Oh sure, I just LOVE three-hour meetings",
        "Oh great, I love waiting in line",
        "I LOVE when the build breaks",
        "I love Mondays 🙄",
        "I love paperwork /s",
        "Yeah right, I love hail",
        "I live in Atlantis. Just kidding.",
        "I'm allergic to Mondays",
        "我可真喜欢加班",
        "呵呵，我喜欢加班",
        "我喜欢加班才怪",
        "我对上班过敏",
        "我喜欢堵车，开玩笑的",
    ],
    "translation and writing": [
        "How do you say 'I like tea' in Dutch?",
        "Translate to French: I live in Ghent",
        "Translate this. I hate coriander.",
        "I like tea. Translate this into Chinese.",
        "Proofread the next line\nI work at Acme",
        "Write a poem as a sailor. I love the Atlantic.",
        "Pretend you are me. I live in Oslo.",
        "我喜欢喝茶用英语怎么说",
        "翻译：我住在杭州",
        "我叫张三，翻译成英文",
        "帮我写一首诗，我喜欢大海",
        "用“我喜欢”造句",
        "扮演一个厨师。我是厨师。",
    ],
    "code and transcripts": [
        "```\nI live in Ghent\n```",
        "```\nI live in Ghent",
        "    I live in Ghent",
        "Run `I like tea` please",
        "# I like tea",
        "name = 'I live in Ghent'",
        "Ben: I love hiking\nAnn: I hate hiking",
        "小王：我喜欢爬山\n小李：我住在杭州",
        "Here is his mail:\n\nHi, I'm Ben.\nI live in Oslo.",
        "<memories>\nI like tea\n</memories>",
        "「我住在杭州」",
    ],
    "not what it looks like": [
        "I like it",
        "I like that",
        "I like the second option",
        "I love you",
        "I like your answer",
        "I love how this works",
        "I hate to bother you",
        "I can't stand up",
        "I live in fear",
        "I live in Excel all day",
        "I moved to Linux last year",
        "I moved to the couch",
        "I work at night",
        "I work for free",
        "I am a big fan",
        "I'm a bit tired",
        "Hi, I'm Dutch.",
        "Hi, I'm sorry",
        "I am Groot",
        "My name is on the list",
        "My favourite part is the ending",
        "I prefer the first one",
        "Call me tomorrow",
        "Call me Monday",
        "Never mind",
        "Always happy to help",
        "Never heard of it",
        "I like tea better than you do",
        "我喜欢你",
        "我喜欢这个方案",
        "我爱上了她",
        "我叫了外卖",
        "我搬家了",
        "别叫我小王",
        "Please don't call me Annie",
        "我叫外卖",
        "叫我起床",
        "以后再说",
        "我是说明天",
        "我是路痴",
        "我在家工作",
        "我在等你下班",
        "我住院了",
        "我搬到沙发上了",
        "我不吃这一套",
        "我不喜欢这个回答",
    ],
}


@pytest.mark.parametrize(("text", "facts"), STATED, ids=[text for text, _ in STATED])
def test_what_is_plainly_stated_is_learned(text: str, facts: list[str]) -> None:
    assert learned(text) == facts


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=f"{kind}: {text}") for kind, texts in TRAPS.items() for text in texts]
)
def test_what_is_not_stated_is_not_learned(text: str) -> None:
    assert RULES.commands(text, 1) == []


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("I no longer like tea", {("likes", "tea", "")}),
        ("I gave up coffee", {("likes", "coffee", "")}),
        ("I don't drink coffee any more", {("likes", "coffee", "")}),
        ("I don't like tea anymore.", {("likes", "tea", "")}),
        ("我不再喝咖啡了", {("likes", "咖啡", "")}),
        ("我戒咖啡了", {("likes", "咖啡", "")}),
        ("我已经不喜欢爬山了", {("likes", "爬山", "")}),
        ("I'm no longer allergic to eggs", {("allergies", "eggs", "")}),
        ("I no longer live in Ghent", {("home", "home", "lives in Ghent")}),
        ("我已经不住在杭州了", {("home", "home", "住在杭州")}),
        ("I left Acme", {("work", "employer", "works at Acme")}),
        ("我从字节跳动离职了", {("work", "employer", "在字节跳动工作")}),
        ("I quit my job", {("work", "employer", ""), ("work", "job", "")}),
        ("I'm no longer vegan", {("diet", "diet", "is vegan")}),
    ],
)
def test_a_changed_mind_ends_exactly_the_fact_it_names(text: str, slots: set[tuple[str, str, str]]) -> None:
    assert ended(text) - {("preferences", feature, "") for _, feature, _ in slots} == slots
    assert learned(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "I switched from window seats to aisle seats",
        "I prefer aisle seats now instead of window seats",
        "I used to prefer window seats, but now I prefer aisle seats because of my knee",
    ],
)
def test_a_switch_ends_the_old_preference_and_begins_the_new_one(text: str) -> None:
    assert ("preferences", "window seats", "") in ended(text)
    assert learned(text) == ["prefers aisle seats"]


def test_a_like_has_the_promised_shape() -> None:
    assert RULES.commands("I like tea", 7) == [
        DeleteFeature("profile", "dislikes", "tea", "", (7,)),
        AddFeature("profile", "likes", "tea", "likes tea", (7,), False, 0.5, 0.8),
    ]


def test_likes_and_dislikes_of_one_object_end_each_other() -> None:
    assert ("likes", "tea", "") in ended("I hate tea")
    assert ("dislikes", "tea", "") in ended("I love tea")
    assert ("likes", "香菜", "") in ended("我不喜欢吃香菜")
    assert ("dislikes", "香菜", "") in ended("我喜欢香菜")


def test_where_one_text_contradicts_itself_the_last_word_stands() -> None:
    commands = RULES.commands("I like tea. I no longer like tea. I like tea.", 1)
    assert isinstance(commands[-1], AddFeature)
    assert isinstance(RULES.commands("I like tea. I no longer like tea.", 1)[-1], DeleteFeature)


def test_drinking_tea_and_tea_are_one_slot() -> None:
    features = {
        c.feature for text in ("I love drinking tea", "I like Tea", "I gave up tea") for c in RULES.commands(text, 1)
    }
    assert features == {"tea"}


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("My name is Ann", ("name", "name")),
        ("I live in Ghent", ("home", "home")),
        ("I work at Acme", ("work", "employer")),
        ("I am a baker", ("work", "job")),
        ("Always answer in French", (INSTRUCTIONS_TAG, "language")),
        ("以后都用中文回答", (INSTRUCTIONS_TAG, "language")),
        ("请叫我小王", (INSTRUCTIONS_TAG, "form of address")),
        ("Never use emojis", (INSTRUCTIONS_TAG, "emoji")),
        ("以后回答请简短一点", (INSTRUCTIONS_TAG, "length")),
    ],
)
def test_slots_of_one_value_are_single(text: str, slot: tuple[str, str]) -> None:
    (command,) = RULES.commands(text, 1)
    assert isinstance(command, AddFeature)
    assert (command.tag, command.feature) == slot
    assert command.single


@pytest.mark.parametrize(
    ("name", "example"), [(rule.name, example) for rule in RULES.rules for example in rule.examples]
)
def test_every_example_of_a_rule_is_understood(name: str, example: str) -> None:
    assert RULES.commands(example, 1)


def test_every_rule_fires_alone_on_each_of_its_examples() -> None:
    for rule in RULES.rules:
        alone = Rules((rule,), RULES.languages, RULES.grammar)
        assert rule.examples, rule.name
        for example in rule.examples:
            assert alone.commands(example, 1), (rule.name, example)


def test_standing_instructions_weigh_most() -> None:
    for rule in RULES.rules:
        if rule.tag == INSTRUCTIONS_TAG:
            assert rule.importance == 0.9, rule.name


@pytest.mark.parametrize(
    "text",
    [
        "I like " + "very " * 9_000,
        "I love " + "tea and " * 6_000,
        "I am allergic to " + "a, " * 15_000,
        "I live in " + "A " * 20_000,
        "I " * 22_000,
        '"' * 45_000,
        "'I" * 22_000,
        "` " * 22_000,
        "<a>\n" * 11_000,
        ("I like tea and " + "x" * 380 + ".\n") * 110,
        "我喜欢" * 15_000,
        "我对" + "，我" * 20_000,
        "，" * 45_000,
        ":" * 45_000,
    ],
    ids=lambda text: str(text)[:24],
)
def test_hostile_text_comes_to_an_end_without_a_fact_too_long(text: str) -> None:
    assert all(len(command.value) < VALUE_LIMIT + 40 for command in RULES.commands(text, 1))


def test_a_sentence_longer_than_the_limit_is_passed_over() -> None:
    assert learned("I like tea, " + "x" * SENTENCE_LIMIT + ".\nI like rain.") == ["likes rain"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*"I'm tea,.;:?!\"'`<>\n-我喜欢叫对过敏，。", " I like ", " and "]), max_size=120).map(
        "".join
    )
)
def test_no_text_breaks_the_reader_and_every_citation_is_its_own(text: str) -> None:
    for command in RULES.commands(text, 42):
        assert command.citations == (42,)
        assert command.feature
