from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_memory import commands, prompts
from mcp_memory.commands import Checked, Evidence
from mcp_memory.errors import SettingsError
from mcp_memory.likeness import agree
from mcp_memory.prompts import Category, Tag
from mcp_memory.text import count_tokens
from mcp_memory.types import CLASSES, INSTRUCTIONS_TAG, AddFeature, DeleteFeature, Feature

ROOT = Path(__file__).parents[1]
PROMPTS = ROOT / "prompts"
SHIPPED = prompts.categories()
TEMPLATE = prompts.read("extract.md")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)

FENCE = re.compile(r"^```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINE = re.compile(
    r"\[(?P<number>\d+)\] \d{4}-\d\d-\d\d (?P<who>user|assistant|tool)(?P<else> \([^()]+, somebody else\))?: .+"
)
FACT = re.compile(r"(?P<tag>[^/]+) / (?P<feature>[^:]+): (?P<value>.+)")

COOKING = """# cooking

What the user cooks.

## Tags

- dishes: what they cook often
- stove (one): what they cook on
"""


@dataclass(frozen=True)
class Example:
    """What an example shows, and the answer that it teaches."""

    known: tuple[Feature, ...]
    lines: dict[str, re.Match[str]]
    answer: list[dict[str, Any]]

    @property
    def of_the_user(self) -> set[str]:
        return {number for number, line in self.lines.items() if line["who"] == "user" and not line["else"]}

    def checked(self, category: Category) -> Checked:
        """The answer, put to the checks that a model's has to pass."""
        positions = {number: (int(number),) for number in self.of_the_user}
        evidence = Evidence(positions, frozenset(self.lines.keys() - positions.keys()))
        return commands.check(self.answer, evidence, self.known, category.name, category.single)


def fact(category: str, tag: str, feature: str, value: str, number: int = 1) -> Feature:
    return Feature(f"f{number}", category, tag, feature, value, 0.5, 0.8, (), (), NOON)


def examples(category: Category) -> Iterator[Example]:
    pieces = FENCE.split(category.examples)
    assert pieces.pop().strip() == ""
    for shown, answer in zip(pieces[::2], pieces[1::2], strict=True):
        head, _, messages = shown.strip().rpartition("Messages:\n")
        heading, *stated = head.split("\n")
        assert heading in ("", "Current facts:")
        known = [FACT.fullmatch(line) for line in stated if line]
        lines = [LINE.fullmatch(line) for line in messages.split("\n")]
        yield Example(
            tuple(fact(category.name, one["tag"], one["feature"], one["value"]) for one in known if one),
            {line["number"]: line for line in lines if line},
            json.loads(answer),
        )
        assert None not in [*known, *lines]


EXAMPLES = [
    pytest.param(category, example, id=f"{category.name}-{number}")
    for category in SHIPPED.values()
    for number, example in enumerate(examples(category), 1)
]


# ---- what ships


def test_six_categories_ship() -> None:
    assert set(SHIPPED) == {"profile", "coding", "writing", "finance", "health", "crm"}


@pytest.mark.parametrize("path", sorted(PROMPTS.rglob("*.md")), ids=lambda path: path.stem)
def test_every_block_of_a_prompt_is_json(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(FENCE.findall(text))
    for block in FENCE.findall(text):
        assert isinstance(json.loads(block), list | dict)


@pytest.mark.parametrize("category", SHIPPED.values(), ids=lambda category: category.name)
def test_a_shipped_category_shows_both_languages_and_a_trap(category: Category) -> None:
    shown = list(examples(category))
    assert 6 <= len(category.tags) <= 14
    assert 2 <= len(shown) <= 3
    learned = [json.dumps(example.answer, ensure_ascii=False) for example in shown if example.answer]
    assert {answer.isascii() for answer in learned} == {True, False}
    assert [] in [example.answer for example in shown]


@pytest.mark.parametrize(("category", "example"), EXAMPLES)
def test_an_example_uses_the_tags_of_its_category(category: Category, example: Example) -> None:
    tags = {tag.name for tag in category.tags}
    assert {command["tag"] for command in example.answer} <= tags
    assert {one.tag for one in example.known} <= tags


@pytest.mark.parametrize(("category", "example"), EXAMPLES)
def test_an_example_cites_only_what_the_user_said(category: Category, example: Example) -> None:
    for command in example.answer:
        assert command["citations"]
        assert {str(number) for number in command["citations"]} <= example.of_the_user


@pytest.mark.parametrize(("category", "example"), EXAMPLES)
def test_an_example_passes_the_checks_of_every_answer(category: Category, example: Example) -> None:
    checked = example.checked(category)
    assert checked.refused == ()
    assert len(checked.commands) == len(example.answer)


@pytest.mark.parametrize(("category", "example"), EXAMPLES)
def test_an_example_ends_facts_that_it_shows_and_repeats_none(category: Category, example: Example) -> None:
    known = {(one.tag, one.name, one.value) for one in example.known}
    for command in example.answer:
        named = (command["tag"], command["feature"], command["value"])
        assert (named in known) == (command["command"] == "delete")


@pytest.mark.parametrize(("category", "example"), EXAMPLES)
def test_an_example_answers_in_the_language_of_the_line_it_cites(category: Category, example: Example) -> None:
    for command in example.answer:
        cited = "".join(example.lines[str(number)][0] for number in command["citations"])
        assert command["value"].isascii() == cited.isascii()


def test_a_changed_mind_is_shown_in_every_category() -> None:
    for category in SHIPPED.values():
        kinds = [[command["command"] for command in example.answer] for example in examples(category)]
        assert any(kind[:2] == ["delete", "add"] for kind in kinds), category.name


def test_rules_and_models_speak_of_the_same_slots() -> None:
    rules = tomllib.loads(prompts.read("rules.toml"))["rule"]
    profile = SHIPPED["profile"]
    used = {rule["tag"] for rule in rules if "tag" in rule}
    used |= {end["tag"] for rule in rules for end in rule.get("ends", [])}
    assert used <= {tag.name for tag in profile.tags}
    assert [rule["name"] for rule in rules if rule.get("single") and not profile.single(rule["tag"])] == []


def test_only_the_profile_says_what_the_user_is_called() -> None:
    """Whose words count as the user's is told by the facts tagged `name`."""
    assert [name for name, category in SHIPPED.items() if "name" in {tag.name for tag in category.tags}] == ["profile"]


def test_standing_instructions_have_one_tag_in_every_category() -> None:
    for category in SHIPPED.values():
        assert category.single(INSTRUCTIONS_TAG), category.name


def test_the_example_of_merging_passes_its_checks() -> None:
    text = prompts.read("consolidate.md")
    shown = re.findall(r"^\[(\d+)\] since \S+ ([^/]+) / ([^:]+): (.+)$", text, re.MULTILINE)
    facts = tuple(fact("profile", tag, name, value, int(number)) for number, tag, name, value in shown)
    evidence = Evidence({number: (int(number),) for number, *_ in shown})
    (answer,) = FENCE.findall(text)
    checked = commands.check(json.loads(answer), evidence, facts, "profile", SHIPPED["profile"].single)
    assert checked.refused == ()
    for command in checked.commands:
        if isinstance(command, AddFeature):
            replaced = [facts[number - 1] for number in command.citations]
            assert all(agree(one.value, command.value) for one in replaced)
            ended = {ended.value for ended in checked.commands if isinstance(ended, DeleteFeature)}
            assert ended == {one.value for one in replaced}


def test_the_classes_that_a_model_is_told_are_those_that_there_are() -> None:
    text = prompts.read("classify.md")
    assert set(re.findall(r"^- (\w+): ", text, re.MULTILINE)) == set(CLASSES)
    (answer,) = FENCE.findall(text)
    checked = commands.check(json.loads(answer), Evidence({"2": (7,)}), (), "profile", lambda _: False)
    assert [(found.seq, found.category, found.importance) for found in checked.classified] == [(7, "episodic", 0.4)]


def test_a_summary_is_told_its_budget() -> None:
    assert prompts.read("summarise.md").count("{tokens}") == 1


# ---- what they cost


@pytest.mark.parametrize(
    ("name", "most"), [("consolidate.md", 450), ("summarise.md", 300), ("classify.md", 200), ("agent.md", 150)]
)
def test_a_prompt_is_short(name: str, most: int) -> None:
    assert count_tokens(prompts.read(name)) < most


def test_the_prompt_for_extraction_is_short() -> None:
    empty = Category("", "", (), "")
    assert count_tokens(prompts.extraction(empty, TEMPLATE)) < 450
    assert max(count_tokens(prompts.extraction(category, TEMPLATE)) for category in SHIPPED.values()) < 1_500


# ---- filled in


@pytest.mark.parametrize("category", SHIPPED.values(), ids=lambda category: category.name)
def test_a_model_is_told_all_of_its_category(category: Category) -> None:
    told = prompts.extraction(category, TEMPLATE)
    assert f"Category: {category.name}. {category.about}" in told
    assert all(f"\n- {tag.name}{' (one)' if tag.single else ''}: {tag.about}\n" in told for tag in category.tags)
    assert told.endswith(category.examples)
    assert re.findall(r"\{\w+\}", told) == []


def test_what_a_category_says_is_never_a_placeholder() -> None:
    category = Category("maths", "Sets such as {tags}.", (Tag("sets", "{examples}", False),), "")
    assert prompts.extraction(category, "{about} {tags}") == "Sets such as {tags}. - sets: {examples}"


def test_without_examples_none_are_announced() -> None:
    assert "Examples" not in prompts.extraction(prompts.category(COOKING), TEMPLATE)


# ---- read


def test_a_category_is_read_from_its_file() -> None:
    category = prompts.category(COOKING)
    assert (category.name, category.about, category.examples) == ("cooking", "What the user cooks.", "")
    assert category.tags == (Tag("dishes", "what they cook often", False), Tag("stove", "what they cook on", True))
    assert category.single("stove")
    assert category.single("Stove")
    assert not category.single("dishes")
    assert not category.single("never heard of")


def test_a_category_may_be_written_in_chinese() -> None:
    category = prompts.category(
        "\ufeff# 烹饪\r\n\r\n用户做的菜。\r\n\r\n## Tags\r\n\r\n- 炉灶（one）：用什么炉灶\r\n* 菜：常做的菜\r\n"
    )
    assert category.name == "烹饪"
    assert category.tags == (Tag("炉灶", "用什么炉灶", True), Tag("菜", "常做的菜", False))


BROKEN = [
    ("", "line 1: a title of one word is missing"),
    ("What the user cooks.\n", "line 1: a title of one word is missing"),
    ("\n# home cooking\n", "line 2: a title of one word is missing"),
    (COOKING.replace("What the user cooks.", ""), "has to say what belongs here"),
    (COOKING.replace("## Tags", "## Labels"), "line 5: the sections are ## Tags and ## Examples, each once"),
    (COOKING + "## tags\n", "line 9: the sections are"),
    (COOKING.replace("- stove (one): ", "- stove (two): "), "line 8: a tag reads like"),
    (COOKING.replace("- dishes: what they cook often", "dishes"), "line 7: a tag reads like"),
    (COOKING.replace("stove", "Dishes"), "line 8: the tag dishes stands there twice"),
    ("# cooking\n\nWhat the user cooks.\n", "## Tags is missing or empty"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN, ids=[problem for _, problem in BROKEN])
def test_a_broken_category_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "categories").mkdir()
    (tmp_path / "categories" / "cooking.md").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=re.escape(problem)) as caught:
        prompts.categories(tmp_path)
    assert str(caught.value).startswith("prompts: categories/cooking.md")
    assert str(tmp_path) not in str(caught.value)


def test_a_category_that_is_no_text_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "categories").mkdir()
    (tmp_path / "categories" / "cooking.md").write_bytes(b"# cooking\n\xff\xfe")
    with pytest.raises(SettingsError, match=r"categories/cooking\.md cannot be read"):
        prompts.categories(tmp_path)


def test_a_copy_that_kept_its_title_is_refused(tmp_path: Path) -> None:
    (tmp_path / "categories").mkdir()
    (tmp_path / "categories" / "garden.md").write_text(COOKING, encoding="utf-8")
    with pytest.raises(SettingsError, match="the title has to be the file's name, # garden"):
        prompts.categories(tmp_path)


# ---- the user's own folder


def test_a_folder_adds_and_replaces_categories(tmp_path: Path) -> None:
    (tmp_path / "categories").mkdir()
    (tmp_path / "categories" / "cooking.md").write_text(COOKING, encoding="utf-8")
    (tmp_path / "categories" / "crm.md").write_text(COOKING.replace("# cooking", "# CRM"), encoding="utf-8")
    (tmp_path / "categories" / "._crm.md").write_bytes(b"\x00\xff")  # left behind by some file systems
    (tmp_path / "categories" / "notes.txt").write_text("not a category", encoding="utf-8")
    known = prompts.categories(tmp_path)
    assert set(known) == {*SHIPPED, "cooking"}
    assert known["cooking"] == prompts.category(COOKING)
    assert [tag.name for tag in known["crm"].tags] == ["dishes", "stove"]
    assert known["profile"] == SHIPPED["profile"]
    assert prompts.names_added(tmp_path) == ("cooking", "crm")


def test_a_folder_without_categories_changes_nothing(tmp_path: Path) -> None:
    assert prompts.categories(tmp_path) == SHIPPED
    assert prompts.categories(tmp_path / "missing") == SHIPPED
    assert prompts.names_added(tmp_path) == prompts.names_added(None) == ()


def test_a_folder_replaces_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "agent.md").write_text("Be brief.", encoding="utf-8")
    assert prompts.read("agent.md", tmp_path) == "Be brief."
    assert prompts.read("extract.md", tmp_path) == TEMPLATE
    with pytest.raises(SettingsError, match=r"prompts: nothing\.md cannot be read"):
        prompts.read("nothing.md", tmp_path)
