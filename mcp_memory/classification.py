"""What an episode is good for, told when it is stored from the facts that rules found in it and from its words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_memory.types import (
    DEFAULT_IMPORTANCE,
    INSTRUCTIONS_TAG,
    UNCLASSIFIED,
    AddFeature,
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
    r"\b(?:error|exception|traceback|failed|failure|timed? ?out|denied|refused|"
    r"exit (?:code|status) [1-9]\d*|HTTP [45]\d\d)\b|"
    r"错误|失败|异常|超时|拒绝",
    re.IGNORECASE,
)
_HAPPENED = re.compile(
    r"\b(?:I|we)\b[^.!?]*\b(?:yesterday|last (?:night|week|weekend|month|year|summer|winter|spring|autumn|\w+day)|"
    r"(?:\d+|two|three|a few|a couple of) (?:days|weeks|months|years) ago|this morning|earlier today)\b|"
    r"[我咱][^。！？]*(?:昨天|昨晚|前天|上周|上个月|去年|今早|刚才|刚刚)|(?:昨天|昨晚|前天|上周|上个月|去年|今早|刚才|刚刚)[^。！？]*[我咱]",
    re.IGNORECASE,
)


def classified(episode: Episode, commands: Sequence[Command]) -> EpisodeClass:
    """The class of an episode by rule, given what the rules found in it; `general` where none tells."""
    if episode.role == "tool":
        return "tool_failure" if _FAILED.search(episode.content) else UNCLASSIFIED
    found = {_TAGS.get(command.tag, "fact") for command in commands if isinstance(command, AddFeature)}
    if found:
        return max(found, key=IMPORTANCE.__getitem__)
    if episode.role == "user" and not episode.content.rstrip().endswith(("?", "？")):
        return "episodic" if _HAPPENED.search(episode.content) else UNCLASSIFIED
    return UNCLASSIFIED
