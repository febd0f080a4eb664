"""Text as the index sees it: cleaning, cutting into sentences, folding into words, counting tokens.

Everything here is pure. What is stored is the caller's text (`clean` only removes what no database can carry); what is
folded is used for finding it again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import Stemmer

MAX_SENTENCE = 400
"""Characters. Longer sentences are cut: an embedder's cost grows with length, and its sharpness falls."""

MAX_WORD = 64
"""Characters of a word that the index looks at; longer ones (hashes, base64) are cut."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_EMOJI = "\u2600-\u27bf\U0001f000-\U0001faff"
_WORD = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+|[{_EMOJI}]")
_ASCII_WORDS = bytes(ord(chr(i).lower()) if chr(i).isalnum() else 32 for i in range(128)) + bytes(128)
"""Lower case and blanks: what `_WORD` finds in plain ASCII, many times faster."""
_IS_CJK = re.compile(rf"[{_CJK}]")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？；…])[”’」』）]*\s*|\n+")
_LABEL = re.compile(rf"([^\W{_CJK}][^:：\n]{{2,38}}|[{_CJK}][^:：\n，。]{{1,18}})(?:：|:\s)\s*(?=\S)")
_SOFT_END = re.compile(r"[,;:，、：]\s*|\s+")

STOP_WORDS = frozenset(
    """
    a about above after again against all am an and any are as at be because been before being below between both
    but by can could did do does doing don down during each few for from further had has have having he her here
    hers herself him himself his how i if in into is it its itself just let me more most my myself no nor not now of
    off on once only or other our ours ourselves out over own s same she should so some such t than that the their
    theirs them themselves then there these they this those through to too under until up very was we were what when
    where which while who whom why will with would you your yours yourself yourselves d ll m re ve didn doesn hadn
    hasn haven isn wasn weren won wouldn
    """.split()
)
"""English words that carry no subject: left out of queries, kept in the index."""


_IRREGULAR = """
    am be, is be, are be, was be, were be, been be, began begin, begun begin, broke break, broken break, brought bring,
    built build, bought buy, caught catch, chose choose, chosen choose, came come, did do, done do, drew draw, drawn draw,
    drank drink, drunk drink, drove drive, driven drive, ate eat, eaten eat, fell fall, fallen fall, fed feed, felt feel,
    fought fight, found find, flew fly, flown fly, forgot forget, forgotten forget, forgave forgive, forgiven forgive,
    froze freeze, frozen freeze, got get, gotten get, gave give, given give, went go, gone go, grew grow, grown grow,
    hung hang, had have, has have, heard hear, hid hide, hidden hide, held hold, kept keep, knew know, known know, led lead,
    learnt learn, left leave, lent lend, lost lose, made make, meant mean, met meet, paid pay, rode ride, ridden ride,
    rang ring, rung ring, rose rise, risen rise, ran run, said say, saw see, seen see, sold sell, sent send, shook shake,
    shaken shake, shone shine, shot shoot, shown show, sang sing, sung sing, sank sink, sunk sink, sat sit, slept sleep,
    spoke speak, spoken speak, spent spend, stood stand, stole steal, stolen steal, stuck stick, struck strike, swore swear,
    sworn swear, swam swim, swum swim, swung swing, took take, taken take, taught teach, tore tear, torn tear, told tell,
    thought think, threw throw, thrown throw, understood understand, woke wake, woken wake, wore wear, worn wear, won win,
    wrote write, written write, children child, men man, women woman, feet foot, teeth tooth, mice mouse, people person,
    wives wife, knives knife, leaves leave, shelves shelf, halves half, wolves wolf
"""
"""English forms that no stemmer brings together, with the word that they are a form of: one asks "did she buy", and was
told "I bought"."""


def clean(text: str) -> str:
    """The text with NUL and lone surrogates replaced by U+FFFD: SQLite stops at the one and cannot encode the other."""
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\ufffd", text)


def is_blank(text: str) -> bool:
    """Whether the text shows nothing: white space, control and zero-width characters only."""
    return not any(unicodedata.category(character)[0] not in "ZC" for character in text)


def folded(text: str) -> str:
    """A name or a value as it is compared: case, width and spaces do not count."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def is_cjk(word: str) -> bool:
    """Whether a word is written without spaces: it begins with a Chinese, Japanese or Korean character."""
    return _IS_CJK.match(word) is not None


def sentences(text: str) -> Iterator[str]:
    """The text cut at sentence ends, Chinese ones too, after a label ("Steps: ..."), which says what the rest is about,
    and at softer places where a sentence exceeds `MAX_SENTENCE`.

    Nothing but white space is left out.
    """
    start = 0
    for end in [match.end() for match in _SENTENCE_END.finditer(text)] + [len(text)]:
        sentence = text[start:end].strip()
        start = end
        if label := _LABEL.match(sentence):
            yield label[1]
            sentence = sentence[label.end() :]
        while len(sentence) > MAX_SENTENCE:
            cut = max(
                (m.end() for m in _SOFT_END.finditer(sentence, MAX_SENTENCE // 2, MAX_SENTENCE)), default=MAX_SENTENCE
            )
            yield sentence[:cut].strip()
            sentence = sentence[cut:].strip()
        if sentence:
            yield sentence


def words(text: str) -> list[str]:
    """The folded words of a document, in order: NFKC, case folded, stemmed; Chinese, Japanese and Korean runs as
    overlapping pairs and single characters.

    Pairs are what finds two-character words anywhere in a run that no space divides.
    """
    if text.isascii():
        return list(map(_stem, text.encode().translate(_ASCII_WORDS).decode().split()))
    folded: list[str] = []
    for run in _runs(text):
        if _IS_CJK.match(run):
            folded += [run[i : i + 2] for i in range(len(run) - 1)]
            folded += run
        else:
            folded.append(_stem(run))
    return folded


def query_words(text: str) -> list[str]:
    """The distinct folded words of a query, without stop words unless there is nothing else; single characters of a
    Chinese, Japanese or Korean run only where the run is one character long."""
    kept: dict[str, None] = {}
    dropped: dict[str, None] = {}
    for run in _runs(text):
        if _IS_CJK.match(run):
            kept.update(dict.fromkeys([run[i : i + 2] for i in range(len(run) - 1)] or [run]))
        elif run in STOP_WORDS:
            dropped[_stem(run)] = None
        else:
            kept[_stem(run)] = None
    return list(kept or dropped)


def count_tokens(text: str) -> int:
    """An estimate of the tokens a language model sees: a quarter per ASCII character, one and a half per other."""
    wide = len(text) - len(text.encode("ascii", "ignore"))
    return (len(text) - wide + 3) // 4 + (3 * wide + 1) // 2


def shorten(text: str, tokens: int) -> str:
    """The beginning of the text, at most about `tokens` long by `count_tokens`, with an ellipsis where it was cut."""
    if count_tokens(text) <= tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(text[:middle]) <= tokens - 2:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "…"


def excerpt(text: str, sought: Collection[str], tokens: int) -> str:
    """A part of a long text, about `tokens` long, around the sentence that holds most of the `sought` folded words."""
    if count_tokens(text) <= tokens:
        return text
    parts = list(sentences(text))
    held = [len(set(words(part)) & set(sought)) for part in parts]
    first = last = held.index(max(held))
    room = tokens - 4 - count_tokens(parts[first])
    while True:  # grow to both sides, as the room allows
        before = count_tokens(parts[first - 1]) if first > 0 else None
        after = count_tokens(parts[last + 1]) if last + 1 < len(parts) else None
        if before is not None and before <= room:
            first, room = first - 1, room - before - 1
        elif after is not None and after <= room:
            last, room = last + 1, room - after - 1
        else:
            break
    joined = shorten(" ".join(parts[first : last + 1]), tokens)
    return ("… " if first > 0 else "") + joined + (" …" if last + 1 < len(parts) and not joined.endswith("…") else "")


def _runs(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    stem: str = _stemmer().stemWord(_regular().get(word, word[:MAX_WORD]))
    return stem


@cache
def _regular() -> dict[str, str]:
    forms = (form.split() for form in _IRREGULAR.split(","))
    return dict(forms)


@cache
def _stemmer() -> Stemmer.Stemmer:
    import Stemmer  # late: the handshake of a stdio server must not wait for it

    return Stemmer.Stemmer("porter")
