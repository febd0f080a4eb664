"""Words for times in English and Chinese, and a text as a row of them.

`KINDS` says which word is of which kind, the other tables what it means. Phrases are sequences of kinds (`phrases`).
Words that are listed as nothing stand there because something else is hidden in them: 马上 in 马上周五.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

V = TypeVar("V")

DAY = timedelta(days=1)


def _table(listed: Mapping[V, str]) -> dict[str, V]:
    """From each word to what it means; words are listed by meaning, divided by bars."""
    return {word: value for value, words in listed.items() for word in words.split("|")}


MONTHS = _table(
    {
        1: "january|jan", 2: "february|feb", 3: "march|mar", 4: "april|apr", 5: "may", 6: "june|jun", 7: "july|jul",
        8: "august|aug", 9: "september|sept|sep", 10: "october|oct", 11: "november|nov", 12: "december|dec",
    }
)  # fmt: skip

WEEKDAYS = _table(
    {
        0: "monday|mon|一", 1: "tuesday|tues|tue|二", 2: "wednesday|wed|三", 3: "thursday|thurs|thur|thu|四",
        4: "friday|fri|五", 5: "saturday|sat|六", 6: "sunday|sun|日|天",
    }
)  # fmt: skip

SEASONS = _table({3: "spring|春天|春季", 6: "summer|夏天|夏季", 9: "autumn|fall|秋天|秋季", 12: "winter|冬天|冬季"})
"""The month in which each begins, north of the equator."""

PARTS = _table(
    {
        (0, 6): "凌晨",
        (5, 12): "morning|早上|早晨|清晨|上午|早|晨",
        (11, 14): "中午",
        (12, 18): "afternoon|下午",
        (17, 20): "傍晚",
        (18, 24): "evening",
        (18, 30): "night|tonight|晚上|夜里|夜晚|晚|夜",
    }
)
"""The hours of a part of the day, counted from its midnight."""

HOLIDAYS = _table(
    {
        (1, 1, 1): "new year's day|new years day|new year's|new year|元旦",
        (2, 14, 1): "valentine's day|valentines day|情人节",
        (5, 1, 3): "劳动节",
        (10, 1, 7): "国庆节|国庆",
        (10, 31, 1): "halloween|万圣节",
        (12, 24, 1): "christmas eve|圣诞前夜|平安夜",
        (12, 24, 3): "christmas|xmas|圣诞节|圣诞",
        (12, 25, 1): "christmas day",
        (12, 31, 1): "new year's eve|new years eve|跨年夜",
    }
)
"""Feasts that keep their date: the month, the first day, and how many days people mean by the word."""

BACK = _table(
    {
        0: "this|today|今天|今日|今年|本年|今|这|这个|本",
        1: "last|yesterday|昨天|昨日|去年|昨|上|上个|上一个",
        2: "before last|the day before yesterday|day before yesterday|前天|前日|前年|上上|上上个",
        3: "大前天|大前年|上上上个",
    }
)
"""How many days, weeks, months or years a word goes back."""

VAGUE = _table(
    {
        (4, 0): "in recent days|这几天|这两天|近几天",
        (8, 2): "前几天|前些天|前两天",
        (14, 1): "the other day",
        (30, 0): "recently|lately|in recent weeks|最近|近来|近日|近期|这阵子|这段时间",
        (75, 10): "前阵子|前段时间|前一阵子|前一阵|前一段时间",
        (120, 0): "in recent months",
    }
)
"""From how many days ago to how many."""

SIDES = _table(
    {
        (0.0, 1 / 3): "early|beginning|start|初|年初|月初|上旬",
        (0.0, 1 / 2): "first half|上半年",
        (1 / 3, 2 / 3): "mid|middle|中旬|年中",
        (1 / 2, 1.0): "second half|下半年",
        (2 / 3, 1.0): "late|end|底|末|年底|年末|月底|月末|下旬",
    }
)
"""A part of a month, a season or a year, in shares of it."""

UNITS = _table(
    {
        "minute": "minutes|minute|mins|min|分钟",
        "hour": "hours|hour|小时|钟头",
        "day": "days|day|天",
        "week": "weeks|week|周|星期|礼拜",
        "weekend": "weekends|weekend|周末",
        "fortnight": "fortnights|fortnight",
        "month": "months|month|月",
        "year": "years|year|年",
    }
)

LENGTHS = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": DAY,
    "week": 7 * DAY,
    "month": 30 * DAY,
    "year": 365 * DAY,
}
"""About how long a unit is; days and what is longer are counted on the calendar."""

ROUGH = {"hour": timedelta(minutes=30), "week": 3 * DAY, "month": 15 * DAY, "year": 182 * DAY}
"""How far off a time may be that is told in whole units ("three weeks ago"); days are meant as they are told."""

HALVES = {"hour": (30, "minute"), "day": (12, "hour"), "month": (15, "day"), "year": (6, "month")}

ROUND_NUMBERS = _table({4: "a few|few|several|好几|几|数"})
"""Numbers that leave open which, by half of themselves."""

NUMBERS = ROUND_NUMBERS | _table(
    {
        0: "零|〇", 1: "an|a|one|一", 2: "a couple of|couple of|two|两|二", 3: "three|三", 4: "four|四", 5: "five|五",
        6: "six|六", 7: "seven|七", 8: "eight|八", 9: "nine|九", 10: "ten|十", 11: "eleven", 12: "twelve", 20: "twenty",
        30: "thirty",
    }
)  # fmt: skip


def number(word: str) -> int:
    """What digits, a word, or a Chinese numeral below a hundred or written digit by digit mean. Raises ValueError."""
    if word in NUMBERS:
        return NUMBERS[word]
    if word.isdecimal():
        return int(word)
    tens, ten, ones = word.rpartition("十")
    try:
        if ten:
            return 10 * (NUMBERS[tens] if tens else 1) + (NUMBERS[ones] if ones else 0)
        return int("".join(str(NUMBERS[digit]) for digit in word))
    except KeyError:
        raise ValueError(f"{word!r} is no number") from None


# ---- kinds of words


def _but(table: Mapping[str, object], *left_out: str) -> str:
    return "|".join(word for word in table if word not in left_out)


_NUMERALS = "零〇一二两三四五六七八九十"
_DIGITS = re.compile(f"[{_NUMERALS}]+")

KINDS = {
    "month": _but(MONTHS, "may", "march", "mar"),
    "weekday": _but(WEEKDAYS, "sat", "sun", *"一二三四五六日天"),
    "sun": "sat|sun",
    "season": _but(SEASONS),
    "holiday": _but(HOLIDAYS),
    "vague": _but(VAGUE),
    "side": _but(SIDES),
    "part": _but(PARTS, "tonight", *"早晨晚夜"),
    "tonight": "tonight",
    "evenings": "mornings|afternoons|evenings|nights",
    "number": _but(NUMBERS, *_NUMERALS) + "|half a|half an|半",
    "unit": "minutes|minute|mins|min|hours|hour|days|day|fortnights|fortnight|weeks|months|years|分钟|小时|钟头",
    "week": "week|周|星期|礼拜",
    "weekend": "weekend|周末",
    "month's": "month",
    "year's": "year",
    "yesterday": "today|yesterday|the day before yesterday|day before yesterday|今天|今日|昨天|昨日|前天|前日|大前天",
    "before last": "before last",
    "last": "last",
    "next": "next|coming|following|upcoming|tomorrow|马上|下|下个|下一个|明年|后年|来年|次年|明天|后天",
    "every": "every|each|any|每|每个|每一个|隔",
    "single": "other|single|second",
    "of": "of|beginning|starting",
    "during": "during|throughout|around",
    "before": "before|prior to",
    "since": "since|ever since|自从",
    "until": "until|till|up to|截至|截止|直到",
    "to": "to|through|到|至",
    "and": "and|or|和|与|跟",
    "counted": "words|steps|lines|characters|tokens|pieces|ways|people|miles|km|metres|meters|dollars|euros|pounds|calories"
    "|degrees|pages|items|points|copies|times",
    "去年": "今年|本年|去年|前年|大前年",
    "昨": "今|昨",
    "上": "上|上个|上一个|上上|上上个|上上上个|这|这个|本",
    "晚": "早|晨|晚|夜",
    "日": "日|号",
    "前": "前|之前|以前",
    "后": "后|之后|以后|过后",
    "以来": "以来|起",
    "那周": "那周|那一周|那星期|那个星期|那个礼拜",
    "里": "里|内|来",
    "次": "次|回|趟",
    "从": "从|自",
    "近": "近|过去",
    "离": "离|距",
    "-": "-|–|—|~|～",
    ",": ",|，",
    "other": "以上|网上|线上|街上|路上|身上|手上|天气|天天|月饼|月球|月光|月亮|月票|月刊|月天|年轻|年纪|年龄"
    "|年代|年度|年级|周围|周边|周年|周期|周到|日本|日常|日子|日期|日记|目前|提前|前后|前面|后面|今后|起来|附近"
    "|接近|将近|本人|本来|本书|这样|这么|一天到晚|一点|一起|一下|一些|一样|第一|第二|第三",
}
"""Which words are of which kind. What is like any other word stands there because it hides one of them: 网上 hides 上."""

KINDS |= {word: word for word in "this past ago the in on at over for after between from most 's 之间".split()}
KINDS |= {word: word for word in "年月天份个多的在"}

MORE_KINDS = ("day", "nth", "year", "iso", "May", "may")
"""Of what no table lists: a number up to 31, the same with an ending, the number of a year, a date or month of ISO 8601,
and "may" and "march" with a capital, which makes months of them rather, and without."""

_LEXICON = {word: kind for kind, words in KINDS.items() for word in words.split("|")}
_LONGEST = max(len(word) for word in _LEXICON if not word.isascii())
_STARTS = {word.split()[0] for word in _LEXICON if " " in word}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text: its kind, "other" where it is none of these, and what it reads in lower case."""

    kind: str
    text: str
    start: int
    end: int


_PLAIN = str.maketrans(
    "０１２３４５６７８９’週個這兩幾禮後號時鐘過數節聖誕國慶勞動從於間內點",
    "0123456789'周个这两几礼后号时钟过数节圣诞国庆劳动从于间内点",
)
"""Full-width digits, curly apostrophes, and the traditional characters among our words."""

_PIECE = re.compile(
    r"(?P<iso>(?<![0-9A-Za-z_-])(?:19|20)\d\d(?P<mark>[-/])\d\d?(?P=mark)\d\d?(?![\d/-])"
    r"(?:[Tt ]\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[-+]\d\d:?\d\d)?)?"
    r"|(?<![0-9A-Za-z_-])(?:19|20)\d\d-(?:0[1-9]|1[0-2])(?![0-9A-Za-z_-]))"
    r"|(?P<digits>\d+(?:[.,:]\d+)*)(?P<ending>[^\W一-鿿]+)?"
    r"|(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\.(?= ?\d)"
    r"|(?P<chinese>[一-鿿〇]+)|[^\W\d_一-鿿〇]+(?:'[^\W\d_一-鿿〇]+)?|\S",
    re.IGNORECASE,
)


def words(text: str) -> list[Word]:
    """A text as words, none left out."""
    plain = text.translate(_PLAIN)
    pieces = list(_PIECE.finditer(plain))
    read: list[Word] = []
    at = 0
    while at < len(pieces):
        piece = pieces[at]
        count = 1
        if piece["chinese"]:
            read += _chinese(piece[0], piece.start())
        elif piece[0].lower() in _STARTS and (several := _together(plain, pieces[at : at + 4])):
            read.append(several[0])
            count = several[1]
        else:
            read += _single(piece)
        at += count
    return read


def _together(plain: str, pieces: list[re.Match[str]]) -> tuple[Word, int] | None:
    """The longest known word of several that begins here, and how many it is."""
    start = pieces[0].start()
    for count in range(len(pieces), 1, -1):
        end = pieces[count - 1].end()
        joined = " ".join(plain[start:end].lower().split())
        if joined in _LEXICON:
            return Word(_LEXICON[joined], joined, start, end), count
    return None


def _single(piece: re.Match[str]) -> Iterator[Word]:
    start, end, read = piece.start(), piece.end(), piece[0].lower()
    read = read.rstrip(".") or read
    if piece["iso"]:
        yield Word("iso", read, start, end)
    elif digits := piece["digits"]:
        yield Word(_numeric(digits, (piece["ending"] or "").lower()), digits, start, end)
    elif read in ("may", "march", "mar"):
        yield Word("May" if piece[0][0].isupper() else "may", read, start, end)
    elif read not in _LEXICON and read.endswith("'s"):
        yield Word(_LEXICON.get(read[:-2], "other"), read[:-2], start, end - 2)
        yield Word("'s", "'s", end - 2, end)
    else:
        yield Word(_LEXICON.get(read, "other"), read, start, end)


def _chinese(run: str, start: int) -> Iterator[Word]:
    """The words of a run of characters: at each place the longest, as readers divide it mostly."""
    at = 0
    while at < len(run):
        most = min(_LONGEST, len(run) - at)
        known = next((length for length in range(most, 0, -1) if run[at : at + length] in _LEXICON), 0)
        numerals = match.end() - at if (match := _DIGITS.match(run, at)) else 0
        length = max(known, numerals, 1)
        word = run[at : at + length]
        kind = _numeric(word) if numerals == length else _LEXICON.get(word, "other")
        yield Word(kind, word, start + at, start + at + length)
        at += length


def _numeric(digits: str, ending: str = "") -> str:
    try:
        value = number(digits)
    except ValueError:  # 3.5, 10:30
        return "other"
    if ending:
        return "nth" if ending in ("st", "nd", "rd", "th") and 1 <= value <= 31 else "other"
    if 1900 <= value < 2100 and len(digits) == 4:
        return "year"
    return "day" if 1 <= value <= 31 and len(digits) < 4 else "number"
