"""Questions as text: the parts of one that asks several things, and what a rewritten one makes up.

Rules for English and Chinese that would rather leave a question whole than cut it wrongly.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from mcp_memory import text

MOST = 6
"""Parts of one question; what seems to have more is no question but a text."""

LONGEST = 200
"""Characters of a part, or of a rewritten question."""

_ENDS = re.compile(r"(?<=[?？])[\s”\"')）]*|[;；]\s*|\n+")
_BULLET = re.compile(r"^(?:\d{1,2}[.)、]|[-*•]|and\b|also\b|另外|还有|以及)[\s,，]*", re.IGNORECASE)

_STATED = re.compile(r"(?:I|we)[ '’]", re.IGNORECASE)
"""How a statement begins, which says what the question after it is about."""

_ASKING = r"(?:what|where|when|who|whom|whose|which|why|how)"
_AUXILIARY = r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)"
_CLAUSE = re.compile(
    rf",?\s+(?:and|or|and also|plus)\s+(?={_ASKING}\b|{_AUXILIARY}\s+(?:I|my|we|our|you|the|[A-Z]))|,\s+(?={_ASKING}\b)"
)
_ASKS = re.compile(rf"\b{_ASKING}\b|^{_AUXILIARY}\b", re.IGNORECASE)
_COMPARED = (
    re.compile(r"^(?P<head>.*\bbetween )(?P<one>.+?) and (?P<other>.+)$", re.IGNORECASE),
    re.compile(r"^(?P<head>.*\bcompar(?:e|ing) )(?P<one>.+?) (?:with|to|and) (?P<other>.+)$", re.IGNORECASE),
    re.compile(r"^(?P<head>(?:.*[,:] )?)(?P<one>[^,:]+?) (?:vs\.?|versus) (?P<other>.+)$", re.IGNORECASE),
)
_CHOICE = re.compile(rf"^(?P<left>(?:{_ASKING}|{_AUXILIARY})\b.+?),? or (?P<right>[^,]+)$", re.IGNORECASE)
_LEADS = frozenset("the a an my our his her their to in at on with for from by".split())
_NO_CHOICE = frozenset("not so no else more less later never something anything somebody anyone whatever both".split())

_NAME = r"(?!(?:{stop})\b)[A-Z][\w'’-]*(?: [A-Z][\w'’-]*)*".format(
    stop="|".join(sorted({word.capitalize() for word in text.STOP_WORDS if word.isalpha()}))
)
_NAMES = re.compile(rf"\b(?P<items>{_NAME}(?:, {_NAME})*,? (?:and|or|&) {_NAME})")
_OWN = re.compile(r"\b(?:my|our) ", re.IGNORECASE)
_OWN_JOINED = re.compile(r",? (?:and|or) (?=(?:my|our) )|, (?=(?:my|our) )", re.IGNORECASE)
_LISTED = re.compile(r",? (?:and|or|&) |, ")
_TOGETHER = re.compile(r"\b(?:together|each other|one another|in common|collaborat\w+)\b", re.IGNORECASE)
_EACH = re.compile(r"\bboth | (?:both|each|respectively)\b", re.IGNORECASE)

_DEPENDENT = re.compile(
    r"\b(?:he|she|it|they|him|them|his|hers?|its|their|this|that|these|those|one|ones|there|then)\b|[他她它其]|那(?!么)|这",
    re.IGNORECASE,
)
_ZH_ASKING = re.compile(r"什么|谁|哪|几|多少|怎|为何|何时|何地|如何|是否|吗")
_ZH_EMPTY = re.compile(
    r"什么|时候|为何|何时|何地|如何|是否|多少|[谁哪里儿几怎么样为吗呢的是在了有我你们和请问、，。？！\s]"
)
_ZH_COMMA = re.compile(r"[，,。]\s*(?:以及|还有|并且|而且|和)?")
_ZH_AND = re.compile(r"以及|还有|并且|而且|和|跟")
_ZH_EACH = re.compile(r"^(?P<items>.{3,40}?)(?:分别|各自)都?(?P<tail>.+)$")
_ZH_LISTED = re.compile(r"、|，|,|以及|还有|和|与|跟")
_ZH_OWN = re.compile(
    r"^(?P<head>.{0,20}?我们?的)(?P<items>[^的，。？?]{1,30}?(?:、|和|以及|还有|跟|与).+?)"
    r"(?P<tail>(?:都|分别|各自)?(?:是什么|是谁|是多少|是哪\S*|有哪些|叫什么|在哪\S*)?[？?]?)$"
)
_ZH_CHOICE = re.compile(
    r"^(?P<head>.*(?:更?喜欢|先|选|想|要|用|买|养|住在?|是))(?P<left>[^，,]{1,10})，?还是(?P<right>[^，,了吗不]{1,12}?)[？?]?$"
)

_QUOTED = re.compile(r"《([^》]+)》|“([^”]+)”|「([^」]+)」|\"([^\"]+)\"")
_LATIN = re.compile(r"[^\W_]+")
_WIDE_RUN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+")
_ZH_CUT = re.compile(r"什么|时候|多少|[的在是和与跟了吗呢把被给对从向到去住叫有没不都也很就谁哪里几怎么为于]")
_SURNAMES = frozenset("王李张刘陈赵吴徐孙朱郭郑谢冯邓曹彭蒋蔡魏吕姚卢崔谭廖汪邹薛郝邵贾潘袁董阎侯孟秦丁沈韩")
"""Common Chinese surnames that hardly any other word begins with: names cannot be told from other words by their case."""

_NO_NAMES = frozenset(
    """
    i find name list search tell show give look january february march april may june july august september october
    november december monday tuesday wednesday thursday friday saturday sunday
    """.split()
)
"""Words that English writes large, and that a question may begin with or use for what it was shown as a date."""


def parts(query: str) -> tuple[str, ...]:
    """The 2 to 6 independent questions in a question; () where it asks one thing, as most do."""
    if len(query) > MOST * LONGEST:
        return ()
    pieces = [bare for piece in _ENDS.split(query) if (bare := _BULLET.sub("", piece.strip()).strip(" ,，"))]
    if len(pieces) > 1:
        if not _independent(pieces) or any(map(_STATED.match, pieces)):
            return ()
        pieces = [part for piece in pieces for part in _within(piece) or (piece,)]
        return tuple(pieces) if _independent(pieces) else ()
    return _within(pieces[0]) if pieces else ()


def _within(piece: str) -> tuple[str, ...]:
    """The parts of one sentence, by the first rule that gives any."""
    bare = piece.rstrip("?？.!。！ ")
    if len(bare) > 2 * LONGEST:
        return ()
    for rule in (_clauses, _compared, _chosen, _named, _owned, _chinese):
        found = rule(bare)
        if _independent(found):
            return tuple(found)
    return ()


def _independent(found: Sequence[str]) -> bool:
    """Whether these are several, each says something by itself, and none leans on the one before."""
    return (
        2 <= len(found) <= MOST
        and len(set(map(text.folded, found))) == len(found)
        and all(len(part) <= LONGEST and _tells(part) for part in found)
        and not any(_DEPENDENT.search(part) for part in found[1:])
    )


def _tells(part: str) -> bool:
    """Whether a part holds a word that can be searched for."""
    return any(
        word not in text.STOP_WORDS if word.isascii() else _ZH_EMPTY.sub("", word)
        for word in _LATIN.findall(unicodedata.normalize("NFKC", part).casefold())
    )


def _clauses(piece: str) -> list[str]:
    """ "Where does Ann live and what does Bo play"."""
    clauses = _CLAUSE.split(piece)
    return clauses if all(map(_ASKS.search, clauses)) else []


def _compared(piece: str) -> list[str]:
    """ "How many days lie between the move to Turku and the wedding": both, each with the words before them."""
    match = next(filter(None, (pattern.match(piece) for pattern in _COMPARED)), None)
    if match is None or " and " in match["other"] or any(_is_time(match[side]) for side in ("one", "other")):
        return []
    return [match["head"] + match["one"], match["head"] + match["other"]]


def _is_time(item: str) -> bool:
    words = _LATIN.findall(item.casefold())
    return all(word in _NO_NAMES or word.isdigit() or word in text.STOP_WORDS for word in words)


def _chosen(piece: str) -> list[str]:
    """ "Does Ann prefer green tea or black coffee": each with the words that both share."""
    match = _CHOICE.match(piece)
    if match is None or " or " in match["right"]:
        return []
    left, right = match["left"], match["right"].split()
    if right[0].casefold() in _NO_CHOICE or re.match(_AUXILIARY, right[0], re.IGNORECASE) or _is_time(match["right"]):
        return []
    before, comma, last = left.rpartition(", ")
    if comma and len(last.split()) <= 8:
        return [f"{before}, {last}", f"{before}, {match['right']}"]
    words = left.split()
    lead = right[0].casefold()
    if lead in _LEADS:
        at = max((at for at, word in enumerate(words) if word.casefold() == lead), default=0)
    else:
        at = len(words) - len(right) if len(right) <= 2 else 0
    return [left, " ".join([*words[:at], *right])] if at >= 2 and len(right) <= 8 else []


def _named(piece: str) -> list[str]:
    """ "What do Ann, Bo and Cem like to eat": of each of them; not what they do together."""
    found = list(_NAMES.finditer(piece))
    if len(found) != 1 or _TOGETHER.search(piece):
        return []
    names = _LISTED.split(found[0]["items"])
    if any(map(_is_time, names)):
        return []
    start, end = found[0].span("items")
    before, after = _EACH.sub("", piece[:start]), _EACH.sub("", piece[end:])
    return [before + name + after for name in names]


def _owned(piece: str) -> list[str]:
    """ "What are my blood type, my size and my plate number"."""
    match = _OWN.search(piece)
    if match is None:
        return []
    items = _OWN_JOINED.split(piece[match.start() :])
    return [] if any(len(item.split()) > 5 for item in items) else [piece[: match.start()] + item for item in items]


def _chinese(piece: str) -> list[str]:
    """Clauses that each ask something, things of which each is asked, and choices."""
    for joint in (_ZH_COMMA, _ZH_AND):
        clauses = [clause for clause in joint.split(piece) if clause]
        if len(clauses) > 1 and all(map(_ZH_ASKING.search, clauses)):
            return clauses
    if match := _ZH_EACH.match(piece):
        return [name + match["tail"] for name in _ZH_LISTED.split(match["items"]) if name]
    if (match := _ZH_OWN.match(piece)) and not _ZH_ASKING.search(match["items"]):
        items = [re.sub("^我们?的", "", item) for item in _ZH_LISTED.split(match["items"])]
        if all(1 <= len(item) <= 8 for item in items):
            return [match["head"] + item + match["tail"] for item in items]
    if match := _ZH_CHOICE.match(piece):
        verb = re.search("(?:更?喜欢|先|选|想|要|用|买|养|住在?|是)$", match["head"])
        right = match["right"].removeprefix(verb[0]) if verb else match["right"]
        return [match["head"] + match["left"], match["head"] + right]
    return []


def fitting(query: str) -> str:
    """What a model wrote as a question, on one line; "" where it is none that could be searched for."""
    line = " ".join(text.clean(query).split())
    return line if len(line) <= LONGEST and _tells(line) else ""


def invented(query: str, seen: str) -> list[str]:
    """The names, numbers and titles of a rewritten question that do not stand in what was `seen`; the whole question where
    it shares no word with that at all.

    A name is told by a capital letter or, in Chinese, by a surname that begins a word.
    """
    known = set(text.words(seen))
    folded = text.folded(seen)
    line = unicodedata.normalize("NFKC", query)
    strangers = [
        title for found in _QUOTED.findall(line) for title in found if title and text.folded(title) not in folded
    ]
    for word in _LATIN.findall(_WIDE_RUN.sub(" ", line)):
        named = any(character.isupper() or character.isdigit() for character in word)
        common = word.casefold() in text.STOP_WORDS or word.casefold() in _NO_NAMES
        if named and not common and not known.issuperset(text.words(word)):
            strangers.append(word)
    for run in _WIDE_RUN.findall(line):
        for word in _ZH_CUT.split(run):
            if word[:1] in _SURNAMES and len(word) > 1 and word[:2] not in known:
                strangers.append(word)
    return strangers or ([] if known.intersection(text.query_words(query)) else [query])
