"""Conversations made up from a seed: two speakers, many sessions, English and Chinese, 8 to 30 words a turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

TURNS_A_SESSION = 20
TOPICS = 100
SPEAKERS = ("Mira", "Jonas")

_BEGIN = datetime(2025, 1, 6, 9, tzinfo=UTC)

_ENGLISH = (
    "Yesterday {who} and I went to {place}, and {event}",
    "I finally finished {work}, though it took me {number} {unit} longer than planned because {reason}",
    "Do you remember {who}? We met at {place} last {season} and talked about {subject} for hours",
    "My {relative} asked whether we could bring {food} to {place} on {day}, but {reason}",
    "For {subject} you should really read the notes that {who} sent me after {event}",
    "We paid {number} euros for {thing} in {city}, which is far too much when you think about {subject}",
    "Next {day} I have to take {thing} to {place}, otherwise {who} will be annoyed with both of us",
    "It rained all {season} in {city}, so {who} stayed at home and learned everything about {subject}",
    "Honestly, {food} with {food2} tasted much better than I expected when {who} cooked it in {city}",
    "The meeting about {work} was moved to {day} at {number}, since {reason}",
    "I would love to visit {city} in {season} with {who}, mostly because of {subject}",
    "When {event}, I was sitting at {place} with {food} and thinking about {work}",
)
_ENGLISH_TAILS = (
    "What do you think about that?",
    "I will tell you more on {day}.",
    "That reminds me of {city}.",
    "{who} laughed for {number} minutes.",
    "Please do not forget {thing}.",
    "It had to do with {subject}, as always.",
)
_ENGLISH_SLOTS = {
    "who": "Clara|Uncle Piet|Dr. Okafor|Yusuf|our neighbour Lene|Tomás|Priya|the new intern|Helga|Samir|Noor|"
    "my old teacher|Ingrid|Captain Ruiz|Bao|Wanda from accounting|Emil|Teresa|Kofi|Anouk",
    "place": "the swimming hall|a tiny bookshop|the botanical garden|the car repair shop|a rooftop bar|the town archive|"
    "the allotment|the climbing gym|the harbour market|our cellar|the clinic|a lecture hall|the ferry pier|"
    "the flea market|the observatory|a bakery on the corner",
    "event": "the lights went out twice|somebody lost a golden earring|the choir sang until midnight|a goose chased us|"
    "the printer caught fire|we won the second prize|the bridge was closed|a storm tore off the awning|"
    "the projector refused to start|they announced the winner|nobody had brought the keys|the train stood still",
    "work": "the tax return|my thesis chapter|the garden fence|the quarterly report|a woollen blanket|the database move|"
    "the insurance claim|our holiday album|the grant proposal|a birdhouse|the kitchen floor|the translation",
    "number": "|".join(map(str, range(2, 97))),
    "unit": "days|weeks|hours|evenings|months",
    "reason": "the supplier sent the wrong parts|nobody answered the phone|the museum is shut|my knee still hurts|"
    "half of the team was ill|the paint would not dry|the permit came late|we could not agree on a colour|"
    "the old contract had expired|the baby would not sleep|it was snowing|the password was lost",
    "season": "spring|summer|autumn|winter|May|October",
    "subject": "beekeeping|medieval law|battery storage|Finnish grammar|sourdough|orbital mechanics|tax treaties|"
    "watercolours|coral reefs|chess endings|noise insulation|rare orchids|railway timetables|mushrooms|"
    "violin strings|solar roofs|knitting patterns|migraine diets|pension funds|tidal power",
    "relative": "sister|cousin|grandmother|father-in-law|nephew|aunt",
    "food": "lentil soup|plum cake|smoked trout|dumplings|rye bread|pumpkin curry|pancakes|goat cheese|fried noodles|"
    "stuffed peppers|rhubarb pie|olives",
    "food2": "mint tea|pickled beets|walnut sauce|cherry jam|black coffee|horseradish|fresh basil|ginger syrup",
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "thing": "the spare wheel|a second-hand cello|the blue suitcase|two train tickets|the coffee grinder|a bicycle lamp|"
    "the winter tyres|an antique clock|the borrowed drill|a pair of boots|the camera bag|a set of knives",
    "city": "Lisbon|Ghent|Tallinn|Kyoto|Bergen|Valparaíso|Tbilisi|Graz|Halifax|Cork|Da Nang|Turin|Leeds|Oaxaca",
}
_CHINESE = (
    "昨天我和{who}去了{place}，没想到{event}，我们一直待到{number}点才回家。",
    "{who}说下个{day}要带{food}过来，不过因为{reason}，可能要推迟{number}天。",
    "我花了{number}个小时才把{work}做完，主要是{reason}，希望{who}不要介意。",
    "你还记得{who}吗？去年{season}我们在{place}聊了很久{subject}，后来{event}。",
    "关于{subject}，{who}推荐了{number}本书，我打算{day}去{place}借来看看。",
    "{season}的时候想去{city}旅行，{who}说那里的{food}特别好吃，还能了解{subject}。",
)
_CHINESE_SLOTS = {
    "who": "小林|王老师|隔壁的李阿姨|表哥|新来的同事|陈医生|老周|外婆|房东|阿明",
    "place": "图书馆|河边的咖啡店|植物园|游泳馆|旧货市场|社区医院|天文台|面包店|码头|体育馆",
    "event": "突然停电了|有人丢了钥匙|合唱团唱到半夜|火车晚点了|打印机坏了|我们得了二等奖|下起了大雪|桥被封了",
    "work": "报税表|毕业论文|花园的篱笆|季度报告|旅行相册|数据迁移|保险理赔|厨房的地板",
    "number": "|".join(map(str, range(2, 60))),
    "reason": "零件寄错了|没有人接电话|膝盖还在疼|许可证来得太晚|油漆一直不干|团队里一半人生病|合同已经到期",
    "season": "春天|夏天|秋天|冬天",
    "subject": "养蜂|电池储能|书法|围棋残局|珊瑚礁|隔音材料|兰花|古代法律|太阳能屋顶|退休金",
    "day": "星期一|星期二|星期三|星期四|星期五|周末",
    "food": "绿豆汤|烤鱼|饺子|南瓜粥|葱油饼|凉拌木耳|豆腐脑|牛肉面",
    "city": "成都|京都|里斯本|大理|哈尔滨|厦门|西安|台南",
}


@dataclass(frozen=True, slots=True)
class Turn:
    content: str
    role: str
    speaker: str
    session_id: str
    occurred_at: datetime
    topic: str  # one in a hundred turns shares it

    @property
    def timestamp(self) -> str:
        return self.occurred_at.isoformat()


def turns(count: int, seed: int = 1) -> list[Turn]:
    """`count` distinct turns, one in four of them Chinese, in the order in which they were said."""
    rng = random.Random(seed)
    contents: dict[str, None] = {}
    while len(contents) < count:
        contents[_chinese(rng) if rng.random() < 0.25 else _english(rng)] = None
    return list(_spoken(contents))


def questions(count: int, seed: int = 2) -> list[str]:
    """Distinct questions about what such turns say."""
    rng = random.Random(seed)
    asked: dict[str, None] = {}
    while len(asked) < count:
        if rng.random() < 0.25:
            asked[_filled(rng, "{who}在{place}说了什么关于{subject}的事？", _CHINESE_SLOTS)] = None
        else:
            asked[_filled(rng, "What did {who} say about {subject} when we were in {city}?", _ENGLISH_SLOTS)] = None
    return list(asked)


def _spoken(contents: dict[str, None]) -> Iterator[Turn]:
    for number, content in enumerate(contents):
        session, place = divmod(number, TURNS_A_SESSION)
        yield Turn(
            content,
            ("user", "assistant")[number % 2],
            SPEAKERS[number % 2],
            f"session-{session}",
            _BEGIN + timedelta(hours=6 * session, minutes=place),
            f"topic-{number * 7 % TOPICS}",
        )


def _english(rng: random.Random) -> str:
    said = _filled(rng, rng.choice(_ENGLISH), _ENGLISH_SLOTS) + "."
    while len(said.split()) < 14 and rng.random() < 0.7:
        said += " " + _filled(rng, rng.choice(_ENGLISH_TAILS), _ENGLISH_SLOTS)
    return said


def _chinese(rng: random.Random) -> str:
    return _filled(rng, rng.choice(_CHINESE), _CHINESE_SLOTS)


def _filled(rng: random.Random, template: str, slots: dict[str, str]) -> str:
    return template.format(**{name: rng.choice(words.split("|")) for name, words in slots.items()})
