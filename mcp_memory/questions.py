"""How a question differs from what answers it. Pure; English and Chinese.

A question about somebody names them and asks; the answer was said by them and tells: "What did Ann plant?", "I planted
tulips". An embedder sees the difference, so a question is embedded as asked and once more as an answer would put it.
"""

from __future__ import annotations

import re

from mcp_memory import text

ASKING = frozenset(
    """
    who whom whose what when where which why how many much do does did is are was were has have had can could will would
    shall should
    """.split()
)
"""English words that make a question of a statement."""

PARTICLES = frozenset("的了吗呢吧啊呀嘛嗯哦哎唉哈你我他她它们是也都就还又很太这那么什怎哪谁着过得把被")
"""Chinese characters that carry no subject by themselves: pronouns, particles, what asks."""

_TOKENS_READ = 60  # of a query; who asks in more words says enough without its names
_LONGEST_NAME = 2  # words
_LONGEST_CHINESE_NAME = 4  # characters
_TOKEN = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_ASKED = re.compile(r"[?？][\"'”’」』)\]]*$")


def names(query: str) -> list[str]:
    """Whatever in a query could be the name of a speaker, as it may be written: words and pairs of words, as they
    stand and with capitals; in Chinese every run of two to four characters."""
    tokens = _TOKEN.findall(query)[:_TOKENS_READ]
    found: dict[str, None] = {}
    for at, token in enumerate(tokens):
        if text.is_cjk(token):
            for start in range(min(len(token), _TOKENS_READ)):
                for length in range(2, _LONGEST_CHINESE_NAME + 1):
                    found[token[start : start + length]] = None
            continue
        for length in range(1, _LONGEST_NAME + 1):
            row = tokens[at : at + length]
            if len(row) == length and not any(word.lower() in text.STOP_WORDS for word in row):
                found |= dict.fromkeys((" ".join(row), " ".join(row).title()))
    return list(found)


def told(query: str, speakers: list[str]) -> str:
    """The question as its answer would put it: `speakers`, who are named in it, say "I" of themselves, and the words that
    ask are gone. The query itself where nothing would be left."""
    for name in sorted(speakers, key=len, reverse=True):
        edge, said = ("", " ") if text.is_cjk(name) else (r"\b", " I ")
        named = rf"{edge}{re.escape(name)}"
        without = re.sub(rf"{named}['’]s\b", " my ", query, flags=re.IGNORECASE)
        without = re.sub(rf"{named}{edge}", said, without, flags=re.IGNORECASE)
        query = without if without.strip() else query
    kept = [_without_particles(word) for word in re.findall(r"[\w'’]+", query) if word.lower() not in ASKING]
    return " ".join(word for word in kept if word) or query


def _without_particles(word: str) -> str:
    """A Chinese run without its particles, or as it is where these are most of it: 我开什么车 is more than 开车."""
    kept = "".join(character for character in word if character not in PARTICLES)
    return kept if 2 * len(kept) >= len(word) or not kept else word


def asks(said: str) -> float:
    """The share of a text that is questions, in [0, 1], by characters."""
    if "?" not in said and "？" not in said:
        return 0.0
    lengths = [(len(sentence), bool(_ASKED.search(sentence))) for sentence in text.sentences(said)]
    return sum(length for length, asked in lengths if asked) / max(1, sum(length for length, _ in lengths))
