"""Facts that a user states in plain words, found without a language model.

The patterns are data, `prompts/rules.toml`; this module is how they are applied. A text loses what its writer only
shows (code, quotations, transcripts), then goes sentence by sentence and clause by clause. A pattern has to account
for a whole clause from its subject on, and a guard may still veto what it found: a missed fact can be said again,
while a false one is believed.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mcp_memory.types import AddFeature, Command, DeleteFeature

VALUE_LIMIT = 120
SENTENCE_LIMIT = 400
TEXT_LIMIT = 200_000

_SHOWN = "\ufffc"  # stands where a quotation or a piece of code was, so that its clause is not read as complete
_PUNCTUATION = " \t\r\n.,;:!?~*_()[]。，、；：！？～…（）【】"


@dataclass(frozen=True, slots=True)
class Ending:
    """A slot whose fact a rule ends; with `value` only the fact that says exactly this."""

    tag: str
    feature: str = "{value}"
    value: str = ""


@dataclass(frozen=True)
class Rule:
    """One way of stating a fact. `feature`, `value` and the endings are templates over the groups of `pattern`.

    `whole` patterns read a sentence instead of a clause. `listed` ones state one fact for each item of a list. After
    a rule that `carries`, the next clause may leave out its subject. Without `tag` a rule only ends facts.
    """

    name: str
    language: str
    pattern: str
    category: str = "profile"
    tag: str = ""
    feature: str = "{value}"
    value: str = "{value}"
    single: bool = False
    importance: float = 0.5
    confidence: float = 0.8
    listed: bool = False
    whole: bool = False
    carries: bool = False
    unless: str = r"(?!)"
    ends: tuple[Ending, ...] = ()
    examples: tuple[str, ...] = ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return _compiled(self.pattern)

    @cached_property
    def refused(self) -> re.Pattern[str]:
        return _compiled(self.unless)


@dataclass(frozen=True)
class Language:
    """How sentences of one language begin: `hint` is in every clause worth reading, `lead` may precede a subject,
    and `carry` opens a clause that goes on with the `subject` of the one before. `script` is a letter of it."""

    script: str
    hint: str
    lead: str
    carry: str
    subject: str

    @cached_property
    def written(self) -> re.Pattern[str]:
        return _compiled(self.script)

    @cached_property
    def hinted(self) -> re.Pattern[str]:
        return _compiled(self.hint)

    @cached_property
    def led(self) -> re.Pattern[str]:
        return _compiled(f"^(?:{self.lead})+")

    @cached_property
    def carried(self) -> re.Pattern[str]:
        return _compiled(self.carry)


@dataclass(frozen=True)
class Grammar:
    """The named patterns of the tables `[guards]` and `[shape]`, each compiled when it is first asked for."""

    patterns: Mapping[str, str]
    compiled: dict[str, re.Pattern[str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> re.Pattern[str]:
        if name not in self.compiled:
            self.compiled[name] = _compiled(self.patterns[name])
        return self.compiled[name]


@dataclass(frozen=True)
class Rules:
    """All rules of a file, ready to read texts."""

    rules: tuple[Rule, ...]
    languages: Mapping[str, Language]
    grammar: Grammar

    @classmethod
    def parse(cls, toml_text: str) -> Rules:
        """The rules written in `toml_text`; a rule with an unknown key is a TypeError."""
        data = tomllib.loads(toml_text)
        words = {name: "|".join(listed) for name, listed in data["words"].items()}
        languages = {name: Language(**_filled(table, words)) for name, table in data["languages"].items()}
        rules = []
        for table in data["rule"]:
            ends = tuple(Ending(**ending) for ending in table.pop("ends", ()))
            examples = tuple(table.pop("examples", ()))
            rules.append(Rule(**_filled(table, words), ends=ends, examples=examples))
        return cls(tuple(rules), languages, Grammar(_filled(data["guards"] | data["shape"], words)))

    def commands(self, text: str, seq: int) -> list[Command]:
        """What `text`, said by the user at log position `seq`, adds to the profile and ends in it."""
        found: dict[Command, None] = {}
        for sentence in self._sentences(text[:TEXT_LIMIT]):
            for language, rules in self._spoken(sentence):
                for command in self._read(sentence, language, rules, seq):
                    found.pop(command, None)  # said again, it counts where it was said last
                    found[command] = None
        if found and self.grammar["text"].search(text):
            return []
        return list(found)

    @cached_property
    def _by_language(self) -> Mapping[str, tuple[Rule, ...]]:
        return {name: tuple(rule for rule in self.rules if rule.language == name) for name in self.languages}

    def _spoken(self, sentence: str) -> Iterator[tuple[Language, tuple[Rule, ...]]]:
        for name, language in self.languages.items():
            if language.hinted.search(sentence):
                yield language, self._by_language[name]

    def _sentences(self, text: str) -> Iterator[str]:
        """The sentences in the writer's own voice, up to where a pasted text or a transcript begins."""
        text = text.replace("\u2019", "'").replace("\u2018", "'")
        for line in self.grammar["shown"].sub(_SHOWN, text).splitlines():
            for piece in self.grammar["sentence_end"].split(self.grammar["bullet"].sub("", line)):
                sentence = piece.strip()
                if label := self.grammar["label"].match(sentence):
                    if not self.grammar["introduction"].search(label[0]):
                        if label.end() == len(sentence):
                            return
                        break
                    sentence = sentence[label.end() :].strip()
                if 1 < len(sentence) <= SENTENCE_LIMIT:
                    yield sentence

    def _read(self, sentence: str, language: Language, rules: tuple[Rule, ...], seq: int) -> Iterator[Command]:
        clauses = [
            clause for part in self.grammar["clause_end"].split(sentence) if (clause := part.strip(_PUNCTUATION))
        ]
        for rule in rules:
            if not rule.whole or not (match := rule.regex.fullmatch(sentence.strip(_PUNCTUATION))):
                continue
            if _SHOWN not in sentence and self._earnest(sentence, clauses) == len(clauses):
                yield from self._stated(rule, match, "", seq)
        carries = False
        earnest = -1  # not yet asked
        for index, clause in enumerate(clauses):
            if carries:
                clause = language.carried.sub(language.subject, clause, count=1)
            carries = False
            if not language.hinted.search(clause):
                continue
            clause = language.led.sub("", clause, count=1)
            for rule in rules:
                if rule.whole or not (match := rule.regex.fullmatch(clause)):
                    continue
                if earnest < 0:
                    earnest = self._earnest(sentence, clauses)
                if index >= earnest or self._guarded("clause", clauses[index]):
                    break
                stated = list(self._stated(rule, match, self._continued(clauses, index), seq))
                carries = carries or (rule.carries and bool(stated))
                yield from stated

    def _earnest(self, sentence: str, clauses: list[str]) -> int:
        """How many of the clauses, from the first on, are meant as said, and said by the writer."""
        if self._guarded("sentence", sentence):
            return 0
        doubts = (index for index, clause in enumerate(clauses) if self._guarded("onward", clause))
        count = next(doubts, len(clauses))
        if self.grammar["question"].search(sentence):
            # "I live in Ghent, what can I see there?" asks with its last clause only; "..., right?" with all
            return min(count, len(clauses) - 1) if self.grammar["asking"].match(clauses[-1]) else 0
        return count

    def _guarded(self, guard: str, text: str) -> bool:
        languages = (name for name, language in self.languages.items() if language.written.search(text))
        return any(self.grammar[f"{guard}_{name}"].search(text) for name in languages)

    def _continued(self, clauses: list[str], index: int) -> str:
        """The clauses that only go on with the list begun at `index`: "tea, coffee and hiking" is cut at commas."""
        for last, clause in enumerate(clauses[index + 1 : index + 9], index + 1):
            if not self.grammar["further"].fullmatch(clause):
                break
            if self.grammar["last_item"].search(clause):
                return "".join(f", {part}" for part in clauses[index + 1 : last + 1])
        return ""

    def _stated(self, rule: Rule, match: re.Match[str], more: str, seq: int) -> Iterator[Command]:
        groups = {name: self._trimmed(text) for name, text in match.groupdict().items() if text}
        if "manner" in groups:
            groups["manner"] = groups["manner"].lower()
        if any(self._refuses(rule, text) for name, text in groups.items() if name != "manner"):
            return
        value = groups.get("value") or groups[match.lastgroup or "value"]
        if not match[0].endswith(value):
            more = ""  # what follows the next comma goes on with something else
        values = self._items(value, more) if rule.listed else [value]
        for value in values:
            if rule.listed and self._refuses(rule, value):
                continue
            said = dict.fromkeys(rule.regex.groupindex, "") | groups | {"value": value}
            slots = {name: self._folded(text) for name, text in said.items()}
            for end in rule.ends:
                if feature := end.feature.format_map(slots):
                    yield DeleteFeature(rule.category, end.tag, feature, end.value.format_map(said), (seq,))
            if rule.tag:
                yield AddFeature(
                    category=rule.category,
                    tag=rule.tag,
                    feature=rule.feature.format_map(slots),
                    value=rule.value.format_map(said),
                    citations=(seq,),
                    single=rule.single,
                    importance=rule.importance,
                    confidence=rule.confidence,
                )

    def _trimmed(self, value: str) -> str:
        value = self.grammar["cut"].split(value, maxsplit=1)[0].strip(_PUNCTUATION)
        while (shorter := self.grammar["tail"].sub("", value).strip(_PUNCTUATION)) != value:
            value = shorter
        return value

    def _refuses(self, rule: Rule, value: str) -> bool:
        if not value or len(value) > VALUE_LIMIT:
            return True
        return bool(self.grammar["value"].search(value) or rule.refused.search(value))

    def _items(self, value: str, more: str = "") -> list[str]:
        """The items of a list, or the value itself where it may be one name ("Romeo and Juliet")."""
        items = [item.strip() for item in self.grammar["separator"].split(value + more)]
        if self.grammar["inseparable"].search(value) or not all(map(self.grammar["item"].fullmatch, items)):
            return [value]
        return items

    def _folded(self, value: str) -> str:
        folded = " ".join(unicodedata.normalize("NFKC", value).casefold().split())
        return self.grammar["article"].sub("", folded) or folded


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _filled(table: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """The table with `%name%` in its patterns replaced by that word list, and a list of patterns made one."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            value = "|".join(value)
        if not isinstance(value, str):
            return value
        return re.sub(r"%(\w+)%", lambda match: f"(?:{words[match[1]]})", value)

    return {key: filled(value) for key, value in table.items()}
