"""Times in words: what range they name, seen from a Wednesday in Berlin, and what they do to a search."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from conftest import Opening
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from mcp import Client

from mcp_memory import timeparse
from mcp_memory.errors import InvalidInput
from mcp_memory.memory import Memory
from mcp_memory.settings import Settings, WeightSettings
from mcp_memory.testing import Clock
from mcp_memory.timeparse import BEGINNING, END, Span, instant, mentioned, since, until
from mcp_memory.types import Hit, Message, Question, Scope

BERLIN, NEW_YORK, TOKYO = (ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Asia/Tokyo"))
NOW = datetime(2026, 7, 15, 10, 0, tzinfo=BERLIN)
TICK = timedelta(microseconds=1)


def first(day: str, zone: ZoneInfo = BERLIN) -> datetime:
    return datetime.combine(date.fromisoformat(day), time(), zone).astimezone(UTC)


def last(day: str, zone: ZoneInfo = BERLIN) -> datetime:
    return first((date.fromisoformat(day) + timedelta(days=1)).isoformat(), zone) - TICK


def at(local: str, zone: ZoneInfo = BERLIN) -> datetime:
    return datetime.fromisoformat(local).replace(tzinfo=zone).astimezone(UTC)


def named(query: str, now: datetime = NOW, zone: ZoneInfo = BERLIN) -> Span:
    span = mentioned(query, now, zone)
    assert span is not None, query
    return span


# ---- days

DAYS = [
    # days
    ("what did I do today?", "today", "2026-07-15", "2026-07-15"),
    ("What did I say yesterday?", "yesterday", "2026-07-14", "2026-07-14"),
    ("yesterday's plan", "yesterday's", "2026-07-14", "2026-07-14"),
    ("the day before yesterday", "the day before yesterday", "2026-07-13", "2026-07-13"),
    ("Two days ago I called", "Two days ago", "2026-07-13", "2026-07-13"),
    ("10 days ago", "10 days ago", "2026-07-05", "2026-07-05"),
    ("what was said on 3 May", "3 May", "2026-05-03", "2026-05-03"),
    ("on May 3rd", "May 3rd", "2026-05-03", "2026-05-03"),
    ("on the 3rd of August", "the 3rd of August", "2025-08-03", "2025-08-03"),
    ("on Sunday, 3 May 2020,", "Sunday, 3 May 2020", "2020-05-03", "2020-05-03"),
    ("on October 13, 2023?", "October 13, 2023", "2023-10-13", "2023-10-13"),
    ("since when, 2023-05-03?", "2023-05-03", "2023-05-03", "2023-05-03"),
    ("at 2023-05-03T10:00:00Z sharp", "2023-05-03T10:00:00Z", "2023-05-03", "2023-05-03"),
    ("Sept. 3, 2023", "Sept. 3, 2023", "2023-09-03", "2023-09-03"),
    ("on 29 February", "29 February", "2024-02-29", "2024-02-29"),
    ("last Friday", "last Friday", "2026-07-10", "2026-07-10"),
    ("last Wednesday", "last Wednesday", "2026-07-08", "2026-07-08"),
    ("on Wednesday", "Wednesday", "2026-07-15", "2026-07-15"),
    ("on Thursday", "Thursday", "2026-07-09", "2026-07-09"),
    ("on Friday last week", "Friday last week", "2026-07-10", "2026-07-10"),
    ("on New Year’s Eve 2022", "New Year’s Eve 2022", "2022-12-31", "2022-12-31"),
    # weeks
    ("what did I say last week", "last week", "2026-07-06", "2026-07-12"),
    ("this week's tasks", "this week", "2026-07-13", "2026-07-19"),
    ("the week before last", "the week before last", "2026-06-29", "2026-07-05"),
    ("the week of 5 June", "the week of 5 June", "2026-06-01", "2026-06-07"),
    ("what did we do at the weekend?", "weekend", "2026-07-11", "2026-07-12"),
    ("last weekend", "last weekend", "2026-07-11", "2026-07-12"),
    ("two weeks ago", "two weeks ago", "2026-06-28", "2026-07-04"),
    ("the week before Christmas 2022", "the week before Christmas 2022", "2022-12-17", "2022-12-23"),
    ("two weeks before August 11, 2023", "two weeks before August 11, 2023", "2023-07-28", "2023-08-10"),
    # months
    ("last month", "last month", "2026-06-01", "2026-06-30"),
    ("in May", "May", "2026-05-01", "2026-05-31"),
    ("trips in august", "august", "2025-08-01", "2025-08-31"),
    ("in May 2023", "May 2023", "2023-05-01", "2023-05-31"),
    ("In May of last year", "May of last year", "2025-05-01", "2025-05-31"),
    ("2023-05", "2023-05", "2023-05-01", "2023-05-31"),
    ("early June", "early June", "2026-06-01", "2026-06-10"),
    ("at the end of last month", "the end of last month", "2026-06-21", "2026-06-30"),
    ("between 3 and 10 May", "3 and 10 May", "2026-05-03", "2026-05-10"),
    ("May 3-10, 2023", "May 3-10, 2023", "2023-05-03", "2023-05-10"),
    ("between March and June 2023", "between March and June 2023", "2023-03-01", "2023-06-30"),
    ("from November to February", "from November to February", "2025-11-01", "2026-02-28"),
    ("in March and April", "in March and April", "2026-03-01", "2026-04-30"),
    # seasons and years
    ("last summer", "last summer", "2025-06-01", "2025-08-31"),
    ("this summer", "this summer", "2026-06-01", "2026-08-31"),
    ("in the summer of 2022", "summer of 2022", "2022-06-01", "2022-08-31"),
    ("in winter 2022", "winter 2022", "2022-12-01", "2023-02-28"),
    ("this year", "this year", "2026-01-01", "2026-12-31"),
    ("last year's budget", "last year", "2025-01-01", "2025-12-31"),
    ("How often in 2022?", "2022", "2022-01-01", "2022-12-31"),
    ("between 2019 and 2021", "between 2019 and 2021", "2019-01-01", "2021-12-31"),
    ("at Christmas", "Christmas", "2025-12-24", "2025-12-26"),
    # of several times what they share, or what holds them all
    ("last month on 15 June", "last month on 15 June", "2026-06-15", "2026-06-15"),
    ("in 2021 or in 2023", "2021 or in 2023", "2021-01-01", "2023-12-31"),
    ("what was new recently, on 3 June", "3 June", "2026-06-03", "2026-06-03"),
    # Chinese
    ("我今天说了什么", "今天", "2026-07-15", "2026-07-15"),
    ("昨天的会", "昨天的", "2026-07-14", "2026-07-14"),
    ("前天", "前天", "2026-07-13", "2026-07-13"),
    ("大前天我去了哪", "大前天", "2026-07-12", "2026-07-12"),
    ("三天前", "三天前", "2026-07-12", "2026-07-12"),
    ("十二天以前", "十二天以前", "2026-07-03", "2026-07-03"),
    ("五月三号", "五月三号", "2026-05-03", "2026-05-03"),
    ("5月3日下雨", "5月3日", "2026-05-03", "2026-05-03"),
    ("2023年5月3日", "2023年5月3日", "2023-05-03", "2023-05-03"),
    ("２０２３ 年 5 月 3 日", "２０２３ 年 5 月 3 日", "2023-05-03", "2023-05-03"),
    ("上个月三号", "上个月三号", "2026-06-03", "2026-06-03"),
    ("上周五聊过", "上周五", "2026-07-10", "2026-07-10"),
    ("上禮拜五", "上禮拜五", "2026-07-10", "2026-07-10"),
    ("周五我们说了什么", "周五", "2026-07-10", "2026-07-10"),
    ("我上周说了什么", "上周", "2026-07-06", "2026-07-12"),
    ("上上周", "上上周", "2026-06-29", "2026-07-05"),
    ("本周", "本周", "2026-07-13", "2026-07-19"),
    ("上周末", "上周末", "2026-07-11", "2026-07-12"),
    ("五月三号那周", "五月三号那周", "2026-04-27", "2026-05-03"),
    ("两周前", "两周前", "2026-06-28", "2026-07-04"),
    ("上个月", "上个月", "2026-06-01", "2026-06-30"),
    ("上個月", "上個月", "2026-06-01", "2026-06-30"),
    ("八月去哪了", "八月", "2025-08-01", "2025-08-31"),
    ("2023年5月", "2023年5月", "2023-05-01", "2023-05-31"),
    ("二〇二三年五月", "二〇二三年五月", "2023-05-01", "2023-05-31"),
    ("去年三月", "去年三月", "2025-03-01", "2025-03-31"),
    ("2023年3月到6月", "2023年3月到6月", "2023-03-01", "2023-06-30"),
    ("从去年三月到五月", "从去年三月到五月", "2025-03-01", "2025-05-31"),
    ("2023年5月3日到10日", "2023年5月3日到10日", "2023-05-03", "2023-05-10"),
    ("去年夏天", "去年夏天", "2025-06-01", "2025-08-31"),
    ("今年", "今年", "2026-01-01", "2026-12-31"),
    ("前年", "前年", "2024-01-01", "2024-12-31"),
    ("2022年圣诞节", "2022年圣诞节", "2022-12-24", "2022-12-26"),
    ("2021年和2023年之间", "2021年和2023年之间", "2021-01-01", "2023-12-31"),
]


@pytest.mark.parametrize(("query", "phrase", "since", "until"), DAYS, ids=[case[0] for case in DAYS])
def test_a_phrase_names_days(query: str, phrase: str, since: str, until: str) -> None:
    span = named(query)
    assert (span.since, span.until) == (first(since), last(until))
    assert query[span.start : span.end] == phrase


UP_TO_NOW = [
    ("since January", "2026-01-01"),
    ("what changed since last Friday?", "2026-07-10"),
    ("after Christmas", "2025-12-27"),
    ("in the last 3 days", "2026-07-12"),
    ("over the past two weeks", "2026-07-01"),
    ("in the past month", "2026-06-15"),
    ("the last few months", "2026-03-15"),
    ("自从五月", "2026-05-01"),
    ("去年以来", "2025-01-01"),
    ("五月之后", "2026-06-01"),
    ("最近三天", "2026-07-12"),
    ("过去一周", "2026-07-08"),
    ("近一个月", "2026-06-15"),
]


@pytest.mark.parametrize(("query", "since"), UP_TO_NOW, ids=[case[0] for case in UP_TO_NOW])
def test_some_ranges_go_on_until_now(query: str, since: str) -> None:
    span = named(query)
    assert (span.since, span.until) == (first(since), NOW.astimezone(UTC) - TICK)


@pytest.mark.parametrize(
    ("query", "until"),
    [
        ("before Christmas 2022", "2022-12-23"),
        ("before yesterday", "2026-07-13"),
        ("until May 2023", "2023-05-31"),
        ("五月前", "2026-04-30"),
        ("上周五之前", "2026-07-09"),
    ],
)
def test_some_ranges_have_no_beginning(query: str, until: str) -> None:
    assert (named(query).since, named(query).until) == (BEGINNING, last(until))


@pytest.mark.parametrize(
    ("query", "since", "until"),
    [
        ("this morning", "2026-07-15T05:00", "2026-07-15T12:00"),
        ("yesterday afternoon", "2026-07-14T12:00", "2026-07-14T18:00"),
        ("last night", "2026-07-14T18:00", "2026-07-15T06:00"),
        ("on Monday evening", "2026-07-13T18:00", "2026-07-14T00:00"),
        ("昨晚", "2026-07-14T18:00", "2026-07-15T06:00"),
        ("前天下午", "2026-07-13T12:00", "2026-07-13T18:00"),
        ("今早", "2026-07-15T05:00", "2026-07-15T12:00"),
        ("上周五晚上", "2026-07-10T18:00", "2026-07-11T06:00"),
        ("two hours ago", "2026-07-15T07:30", "2026-07-15T08:30"),
        ("半小时前", "2026-07-15T09:30", "2026-07-15T09:30:00.000001"),
    ],
)
def test_a_phrase_names_hours(query: str, since: str, until: str) -> None:
    assert (named(query).since, named(query).until) == (at(since), at(until) - TICK)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("recently", "2026-07-01"),
        ("what have I been reading lately?", "2026-07-14"),
        ("the other day", "2026-07-10"),
        ("a few days ago", "2026-07-11"),
        ("a couple of months ago", "2026-05-20"),
        ("a year ago", "2025-06-01"),
        ("half a year ago", "2026-01-15"),
        ("a fortnight ago", "2026-07-01"),
        ("我最近在学什么", "2026-07-01"),
        ("前几天", "2026-07-11"),
        ("三个月前", "2026-04-15"),
        ("三年前", "2023-07-15"),
    ],
)
def test_a_rough_phrase_holds_what_people_mean(query: str, said: str) -> None:
    span = named(query)
    assert span.since <= first(said) <= span.until
    assert span.until < NOW + timedelta(days=1)


FALSE_FRIENDS = (
    """
may I ask who owns the boat|May I come in?|this may be wrong|I have 3 may be 4 dogs|march on|the last march to Rome
Who is April?|What is Jan's favourite fruit|a room of May's|the sun is out|he sat down|should I wed|one second please
the second question on the list|what is the first step|room 2022|in 2000 words|in the 1970s|3.5 days ago|a decade of work
in a day or two|one day|day by day|last time|at last|at the last minute|the last of us|my previous year's time
the fall of Rome|in the fall of Rome|spring water|week after week|on the 3rd floor|10:30|3/4 of it|May
every Sunday|on Sundays|on Sunday mornings|each May|next Friday|coming Monday|next week|next year in May|Friday next week
tomorrow night|in three weeks|this winter|in 2035|on 31 April 2023|9999 years ago|2023-13-45|what time is it in Berlin
有一天|我一天喝几杯咖啡|第二天|三天|三天后|五月天的歌|月饼|一周一次|一月一次|每周五做什么|每天早上|每年五月|周一到周五几点上班
下周五开会吗|下个月三号|明年三月|明天下午|马上周五了|网上周边|最近的加油站|哪家超市离我最近|最近一次|周末愉快|年轻人|两千年前|以前
提前天气预报|日本|周九|13月
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.parametrize("query", FALSE_FRIENDS)
def test_what_only_looks_like_a_time_is_none(query: str) -> None:
    assert mentioned(query, NOW, BERLIN) is None


def test_a_year_left_open_is_that_of_the_latest() -> None:
    january = datetime(2026, 1, 2, 9, tzinfo=BERLIN)
    assert named("in December", january).since == first("2025-12-01")
    assert named("last winter", january).since == first("2024-12-01")
    assert named("this winter", january).until == last("2026-02-28")
    assert named("last month", january).since == first("2025-12-01")
    assert named("上个月", january).since == first("2025-12-01")
    assert named("last week", january).since == first("2025-12-22")


def test_a_month_ago_from_its_31st_is_the_last_day_of_a_shorter_one() -> None:
    now = datetime(2026, 3, 31, 9, tzinfo=BERLIN)
    assert since("1 month ago", BERLIN, now) == first("2026-02-28")
    assert until("一个月前", BERLIN, now) == last("2026-02-28")


def test_a_day_is_a_day_of_the_zone() -> None:
    late = datetime(2026, 7, 14, 23, 30, tzinfo=UTC)  # half past eight in the morning of the 15th in Tokyo
    assert named("yesterday", late, TOKYO).since == datetime(2026, 7, 13, 15, tzinfo=UTC)
    assert named("yesterday", late, NEW_YORK).since == datetime(2026, 7, 13, 4, tzinfo=UTC)


# ---- clocks that are put forward and back


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        (BERLIN, "2026-03-29", 23),
        (BERLIN, "2026-10-25", 25),
        (NEW_YORK, "2026-03-08", 23),
        (NEW_YORK, "2026-11-01", 25),
        (TOKYO, "2026-03-29", 24),
        (ZoneInfo("America/Havana"), "2026-03-08", 23),  # has no midnight
        (ZoneInfo("America/Havana"), "2026-11-01", 25),  # has two
    ],
    ids=str,
)
def test_a_day_is_as_long_as_it_is(zone: ZoneInfo, day: str, hours: int) -> None:
    noon = datetime.combine(date.fromisoformat(day), time(12), zone)
    for span in (
        (since(day, zone, noon), until(day, zone, noon)),
        (since("yesterday", zone, noon + timedelta(days=1)), until("昨天", zone, noon + timedelta(days=1))),
        (named("today", noon, zone).since, named("today", noon, zone).until),
    ):
        beginning, end = span
        assert beginning is not None
        assert end is not None
        assert end - beginning == timedelta(hours=hours) - TICK
        assert beginning < noon.astimezone(UTC) < end
        assert (beginning - TICK).astimezone(zone).date() == date.fromisoformat(day) - timedelta(days=1)
        assert (end + TICK).astimezone(zone).date() == date.fromisoformat(day) + timedelta(days=1)


def test_an_hour_is_an_hour_over_a_change() -> None:
    for now in (datetime(2026, 3, 29, 3, 30, tzinfo=BERLIN), datetime(2026, 10, 25, 3, 30, tzinfo=BERLIN)):
        for back in (1, 2, 3):
            moment = now.astimezone(UTC) - timedelta(hours=back)
            assert since(f"{back} hours ago", BERLIN, now) == until(f"{back}小时前", BERLIN, now) == moment


def test_an_hour_that_clocks_show_twice_counts_whole() -> None:
    written = "2026-10-25T02:30"
    assert since(written, BERLIN, NOW) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert until(written, BERLIN, NOW) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


# ---- since and until


@pytest.mark.parametrize(
    ("text", "begins", "ends"),
    [
        ("2026-05-01", first("2026-05-01"), last("2026-05-01")),
        ("2026/05/01", first("2026-05-01"), last("2026-05-01")),
        ("20260501", first("2026-05-01"), last("2026-05-01")),
        ("1850-01-01", first("1850-01-01"), last("1850-01-01")),
        (" 2026-05-01T14:30 ", at("2026-05-01T14:30"), at("2026-05-01T14:30")),
        ("2026-05-01 14:30:05", at("2026-05-01T14:30:05"), at("2026-05-01T14:30:05")),
        ("2026-05-01T14:30:00+08:00", datetime(2026, 5, 1, 6, 30, tzinfo=UTC), datetime(2026, 5, 1, 6, 30, tzinfo=UTC)),
        ("2026-05-01T14:30:00Z", datetime(2026, 5, 1, 14, 30, tzinfo=UTC), datetime(2026, 5, 1, 14, 30, tzinfo=UTC)),
        ("7 days ago", first("2026-07-08"), last("2026-07-08")),
        ("a week ago", first("2026-07-08"), last("2026-07-08")),
        ("yesterday", first("2026-07-14"), last("2026-07-14")),
        ("last week", first("2026-07-06"), last("2026-07-12")),
        ("Last Week", first("2026-07-06"), last("2026-07-12")),
        ("the last 3 days", first("2026-07-12"), NOW.astimezone(UTC) - TICK),
        ("May", first("2026-05-01"), last("2026-05-31")),
        ("friday", first("2026-07-10"), last("2026-07-10")),
        ("2025", first("2025-01-01"), last("2025-12-31")),
        ("2025-06", first("2025-06-01"), last("2025-06-30")),
        ("3 May 2023", first("2023-05-03"), last("2023-05-03")),
        ("三天前", first("2026-07-12"), last("2026-07-12")),
        ("上周", first("2026-07-06"), last("2026-07-12")),
        ("去年", first("2025-01-01"), last("2025-12-31")),
        ("", None, None),
        ("  ", None, None),
    ],
)
def test_a_range_begins_and_ends(text: str, begins: datetime | None, ends: datetime | None) -> None:
    assert since(text, BERLIN, NOW) == begins
    assert until(text, BERLIN, NOW) == ends


def test_the_last_day_that_there_is_has_an_end() -> None:
    for zone in (UTC, TOKYO, NEW_YORK):
        end = until("9999-12-31", zone, NOW)
        assert end is not None
        assert end.year == 9999


NONSENSE = """
soon|now and then|2026-02-30|2026-13-01|2026-05-01T25:00|1756713600|31 April|last|5|yesterday or so|since May|tomorrow|周九
""".strip().split("|")


@pytest.mark.parametrize("text", [*NONSENSE, "\x00", "\ud800", "x" * 9_999, "9999 years ago"])
@pytest.mark.parametrize("end", [since, until], ids=["since", "until"])
def test_nonsense_is_refused_with_what_would_be_read(text: str, end: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        end(text, BERLIN, NOW)
    told = str(refused.value)
    assert told.startswith(f"{end.__name__}: ")
    assert "7 days ago" in told
    assert "2026-05-01" in told
    assert len(told) < 300


def test_a_timestamp_is_a_date_and_no_phrase() -> None:
    with pytest.raises(InvalidInput, match="timestamp"):
        instant("yesterday", BERLIN)


# ---- anything

ZONES = [ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia")]
WORDS = """
last this next the of in on since before between and to ago may May March 3 31 2023 1999年 week weeks weekend month year
Friday summer Christmas morning early past few half 2023-05-03 2023-02-30 上 上个 周 五 月 三 天 前 去年 初 最近 每 到 年
十 日 半 个 以来 - , 's 0 00 99999 ９ ½ İ 那周 夏天
""".split()
anything = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
    st.lists(st.sampled_from([*WORDS, "\ud800", "\x00"]), max_size=8).map("".join),
)
whenever = st.integers(0, 4_102_444_800).map(lambda second: datetime.fromtimestamp(second, UTC))


@hypothesis_settings(max_examples=400, deadline=None)
@given(text=anything, now=whenever, zone=st.sampled_from(ZONES))
@example(text="last year " * 5_000, now=NOW, zone=BERLIN)
@example(text="last year, yesterday, this week, in May", now=BEGINNING, zone=NEW_YORK)
@example(text="last year, today, this week, in May", now=END, zone=TOKYO)
@example(text="三天前" * 5_000, now=NOW, zone=BERLIN)
@example(text="1" * 9_000 + " days ago", now=NOW, zone=BERLIN)
def test_any_text_names_a_range_or_none(text: str, now: datetime, zone: ZoneInfo) -> None:
    span = mentioned(text, now, zone)
    if span is not None:
        assert span.since <= span.until
        assert span.since.utcoffset() == span.until.utcoffset() == timedelta(0)
        assert 0 <= span.start < span.end <= len(text)
        assert text[span.start : span.end].strip() == text[span.start : span.end]


@hypothesis_settings(max_examples=200, deadline=None)
@given(text=anything, now=whenever, zone=st.sampled_from(ZONES))
def test_any_text_is_a_range_or_refused(text: str, now: datetime, zone: ZoneInfo) -> None:
    try:
        begins, ends = since(text, zone, now), until(text, zone, now)
    except InvalidInput:
        return
    if begins is not None:
        assert ends is not None
        assert begins <= ends


@hypothesis_settings(max_examples=100, deadline=None)
@given(now=whenever, count=st.integers(1, 400), zone=st.sampled_from(ZONES[:4]))
def test_days_ago_are_counted_on_the_calendar(now: datetime, count: int, zone: ZoneInfo) -> None:
    day = now.astimezone(zone).date() - timedelta(days=count)
    for phrase in (f"{count} days ago", f"{count}天前"):
        assert since(phrase, zone, now) == since(day.isoformat(), zone, now)
        assert until(phrase, zone, now) == until(day.isoformat(), zone, now)


# ---- what a time does to a search

JANUARY, LAST_WEEK, TODAY = (datetime(2026, *day, 8, tzinfo=UTC) for day in ((1, 14), (2, 25), (3, 2)))
GATE = {
    JANUARY: "The code of the gate is 4417",
    LAST_WEEK: "The code of the gate is 9023",
    TODAY: "The code of the gate is 8895",
}


@pytest.fixture
async def gate(memory: Memory, scope: Scope) -> Memory:
    """Three statements alike, of which only the time tells one from another; it is the morning of the last."""
    await memory.add(scope, [Message(text, session_id=str(day), occurred_at=day) for day, text in GATE.items()])
    await memory.add(
        scope,
        [
            Message(f"Fine weather, remark {hour}", session_id="weather", occurred_at=LAST_WEEK + timedelta(hours=hour))
            for hour in range(30)
        ],
    )
    return memory


async def hits(memory: Memory, scope: Scope, query: str, **question: Any) -> list[Hit]:
    answer = await memory.search(scope, Question(query, **({"limit": 3, "expand": 0} | question)))
    return list(answer.found.hits)


ASKED = [
    ("What did I say last week about the code of the gate?", LAST_WEEK),
    ("What did I say in January about the code of the gate?", JANUARY),
    ("code of the gate 上周", LAST_WEEK),
    ("code of the gate 一月", JANUARY),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("query", "day"), ASKED)
async def test_what_was_said_at_the_time_comes_first_and_the_rest_is_found(
    gate: Memory, scope: Scope, query: str, day: datetime
) -> None:
    found = await hits(gate, scope, query)
    assert found[0].episode.content == GATE[day]
    assert {hit.episode.content for hit in found} == set(GATE.values())
    assert found[0].why["time"] > max(hit.why.get("time", 0) for hit in found[1:])
    assert all(0 <= hit.score <= 1 for hit in found)


@pytest.mark.anyio
async def test_without_a_time_the_latest_comes_first(gate: Memory, scope: Scope) -> None:
    found = await hits(gate, scope, "What is the code of the gate?")
    assert [hit.episode.content for hit in found] == [GATE[TODAY], GATE[LAST_WEEK], GATE[JANUARY]]
    assert not any("time" in hit.why for hit in found)


@pytest.mark.anyio
async def test_a_date_alone_does_not_win(gate: Memory, scope: Scope) -> None:
    [best] = await hits(gate, scope, "What did I say last week of the gate 4417?", limit=1)
    assert best.episode.content == GATE[JANUARY]


@pytest.mark.anyio
async def test_the_lift_fades_beside_the_range(memory: Memory, scope: Scope) -> None:
    days = {0: "within", 3: "soon after", 30: "long after", -200: "long before"}
    await memory.add(
        scope,
        [
            Message("The tide table hangs by the door", session_id=name, occurred_at=LAST_WEEK + timedelta(days=day))
            for day, name in days.items()
        ],
    )
    found = await hits(memory, scope, "tide table on 25 February 2026", limit=4)
    assert len(found) == 4
    part = {hit.episode.session_id: hit.why.get("time", 0) / (hit.score - hit.why.get("time", 0)) for hit in found}
    assert part["within"] == pytest.approx(WeightSettings().time)
    assert part["within"] > part["soon after"] > part["long after"] >= 0
    assert part["long before"] < 0.001


@pytest.mark.anyio
async def test_the_lift_can_be_switched_off(opening: Opening, settings: Settings, gate: Memory, scope: Scope) -> None:
    plain = settings.model_copy(update={"weights": WeightSettings(time=0)})
    async with opening(settings=plain) as memory:
        for query, _ in ASKED:
            found = await hits(memory, scope, query)
            assert found[0].episode.content == GATE[TODAY]
            assert not any("time" in hit.why for hit in found)


@pytest.mark.anyio
async def test_days_are_those_of_the_zone_that_is_set(
    opening: Opening, settings: Settings, scope: Scope, clock: Clock
) -> None:
    clock.set(datetime(2026, 3, 2, 9, tzinfo=UTC))
    said = {datetime(2026, 2, 28, 20, tzinfo=UTC): "tide 1", datetime(2026, 3, 1, 20, tzinfo=UTC): "tide 2"}
    best = []
    for zone in ("UTC", "Asia/Tokyo"):  # where both were said on the day after
        here = settings.model_copy(update={"timezone": zone})
        async with opening(settings=here) as memory:
            await memory.add(scope, [Message(text, session_id=text, occurred_at=day) for day, text in said.items()])
            best.append((await hits(memory, scope, "which tide yesterday?"))[0].episode.content)
    assert best == ["tide 2", "tide 1"]


@pytest.mark.anyio
async def test_pages_see_last_week_from_where_the_question_was_asked(gate: Memory, scope: Scope, clock: Clock) -> None:
    question = Question("the code of the gate, or the weather, last week", limit=4, expand=0)
    whole = [hit.episode.id for hit in await hits(gate, scope, question.query, limit=33)]
    answer = await gate.search(scope, question)
    paged = [hit.episode.id for hit in answer.found.hits]
    while following := answer.next():
        clock.move(days=5)
        answer = await gate.search(scope, question, following)
        paged += [hit.episode.id for hit in answer.found.hits]
    assert paged == whole


# ---- through the tools


@pytest.mark.anyio
async def test_the_tools_read_relative_times(client: Client) -> None:
    async def found(**arguments: Any) -> list[str]:
        answer = await client.call_tool("search_memory", {"query": "parcel", "expand": 0} | arguments)
        assert not answer.is_error, answer.content
        assert answer.structured_content is not None
        return [item["content"] for item in answer.structured_content["memories"]]

    old = (datetime.now(UTC) - timedelta(days=40)).isoformat()
    for content, timestamp in (("old parcel", old), ("new parcel", "")):
        await client.call_tool("add_memory", {"content": content, "timestamp": timestamp})
    assert await found(since="7 days ago") == ["new parcel"]
    assert await found(until="三天前") == ["old parcel"]
    assert await found(since="60 days ago", until="30 days ago") == ["old parcel"]
    assert await found(since="2 hours ago") == ["new parcel"]
    assert sorted(await found(until="today")) == ["new parcel", "old parcel"]


@pytest.mark.anyio
async def test_pages_of_a_relative_range_go_on(client: Client) -> None:
    for number in range(5):
        await client.call_tool("add_memory", {"content": f"parcel {number}"})
    arguments = {"query": "parcel", "since": "2 hours ago", "limit": 2, "expand": 0}
    contents: list[str] = []
    cursor = ""
    while True:
        answer = await client.call_tool("search_memory", arguments | {"cursor": cursor})
        assert not answer.is_error, answer.content
        assert answer.structured_content is not None
        contents += [item["content"] for item in answer.structured_content["memories"]]
        if not (cursor := answer.structured_content["next"]):
            break
    assert sorted(contents) == [f"parcel {number}" for number in range(5)]


def test_an_answer_writes_a_time_in_utc() -> None:
    assert timeparse.shown(at("2026-07-15T10:00:00.25")) == "2026-07-15T08:00:00Z"
