"""What an episode is good for, told when it is stored from the facts that rules found in it and from its words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_memory import text
from mcp_memory.types import (
    DEFAULT_IMPORTANCE,
    INSTRUCTIONS_TAG,
    UNCLASSIFIED,
    Command,
    Episode,
    EpisodeClass,
)

IMPORTANCE: dict[EpisodeClass, float] = {
    "policy": 0.9,
    "identity": 0.8,
    "fact": 0.7,
    "preference": 0.6,
    "episodic": DEFAULT_IMPORTANCE,
    "tool_failure": 0.4,
    "general": DEFAULT_IMPORTANCE,
}
"""Of an episode of each class, where whoever stored it said nothing else."""

_TAGS: dict[str, EpisodeClass] = {
    INSTRUCTIONS_TAG: "policy",
    "name": "identity",
    "home": "identity",
    "work": "identity",
    "likes": "preference",
    "dislikes": "preference",
    "preferences": "preference",
    "favourites": "preference",
}
_FAILED = re.compile(
    r"\b(?:errors?|\w+(?:Error|Exception)|exceptions?|traceback|failed|failures?|fatal|panic(?:ked)?|time(?:d ?)?[ -]?out|"
    r"denied|refused|unable to|command not found|no such file|segmentation fault|exit (?:code|status):? [1-9]\d*|"
    r"HTTP(?:/\d(?:\.\d)?)? [45]\d\d)\b|"
    r"错误|失败|异常|超时|拒绝",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:no|0|zero|without(?: any)?) (?:errors?|exceptions?|failures?|failed)\b|"
    r"\b(?:errors?|exceptions?|failures?|failed)\b[\"']?\s*[:=]?\s*(?:0|none|null|nil|false|\[\])(?![\w.])|"
    r"\btime-?out[\"']?\s*[:=]\s*\d+|"
    r"(?:没有|没|无|未|\b0 ?个)(?:任何)?(?:错误|失败|异常|超时)|(?:错误|失败|异常|超时)数?[:：] ?[0无]",
    re.IGNORECASE,
)
"""Words of failure that say that there was none."""

_AT_A_TIME = (
    r"(?:yesterday|last (?:night|week|weekend|month|year|summer|winter|spring|autumn|\w+day)|"
    r"(?:\d+|two|three|a few|a couple of) (?:days|weeks|months|years) ago|this morning|earlier today)"
)
_THEN = "(?:昨天|昨晚|前天|上周|上个月|去年|今早|刚才|刚刚)"
_HAPPENED = re.compile(
    rf"\b(?:I|we)\b.*\b{_AT_A_TIME}\b|\b{_AT_A_TIME}\b.*\b(?:I|we)\b|[我咱].*{_THEN}|{_THEN}.*[我咱]", re.IGNORECASE
)
_NOT_TOLD = re.compile(
    r"(?:(?:and|but|so|then|ok|okay|hey|hi),? )*(?:please|can|could|would|will|did|do|have|tell|remind|show|find|list|"
    r"summari[sz]e|what|when|where|who|why|how|which|if|suppose|imagine|pretend|let['’]s)\b|"
    r"(?:请|帮我|麻烦|告诉我|提醒我|总结|列出|如果|要是|假如|假设)|.*(?:吗|呢|什么|多少|哪里|哪儿|哪个|谁|怎么样?|[?？])[。!！…”\"]*$",
    re.IGNORECASE | re.DOTALL,
)
"""A question, an order or a supposition about the past is no event."""


def classified(episode: Episode, commands: Sequence[Command]) -> EpisodeClass:
    """The class of an episode by rule, given what the rules found in it; `general` where none tells."""
    if episode.role == "tool":
        return "tool_failure" if _FAILED.search(_HARMLESS.sub("", episode.content)) else UNCLASSIFIED
    found = {_TAGS.get(command.tag, "fact") for command in commands}
    if found:
        return max(found, key=IMPORTANCE.__getitem__)
    if episode.role == "user" and any(map(_tells, text.sentences(episode.content))):
        return "episodic"
    return UNCLASSIFIED


def _tells(sentence: str) -> bool:
    """Whether a sentence tells of something that happened."""
    return bool(_HAPPENED.search(sentence)) and not _NOT_TOLD.match(sentence)
