"""What ships as data: the files of `prompts/`, of which a user's own folder replaces those of the same name.

A category is one Markdown file in `categories/`: a title, a paragraph on what belongs there, a list of tags, and examples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_memory.errors import SettingsError

_PACKAGED = Path(__file__).parent / "_prompts"
_CHECKOUT = Path(__file__).parent.parent / "prompts"
_CATEGORIES = "categories"

_NAME = re.compile(r"[\w-]{1,40}")
_TAG = re.compile(r"[-*] +(?P<name>[^():（）：]{1,60}?) *(?P<one>[(（]one[)）])? *[:：] *(?P<about>\S.*)")
_TAGS, _EXAMPLES = "tags", "examples"


@dataclass(frozen=True, slots=True)
class Tag:
    """A group of facts. With `single`, each feature of it holds one value at a time."""

    name: str
    about: str
    single: bool

    def __str__(self) -> str:
        return f"- {self.name}{' (one)' if self.single else ''}: {self.about}"


@dataclass(frozen=True, slots=True)
class Category:
    """A field of facts: `about` says what belongs there, `examples` are Markdown, "" where there are none."""

    name: str
    about: str
    tags: tuple[Tag, ...]
    examples: str

    def single(self, tag: str) -> bool:
        """Whether each feature of a tag holds one value at a time; false for a tag that the category does not list."""
        return any(known.single for known in self.tags if known.name == tag.casefold())


def read(name: str, overrides: Path | None = None) -> str:
    """The text of a file such as `rules.toml`. Raises SettingsError where it cannot be read."""
    path = _shipped() / name
    if overrides is not None and (overrides / name).is_file():
        path = overrides / name
    return _text(path, name)


def categories(overrides: Path | None = None) -> dict[str, Category]:
    """The shipped categories by name, replaced and extended by those of the folder `categories` in `overrides`. Raises
    SettingsError where a file cannot be read or understood."""
    files = _files(_shipped()) | _files(overrides)
    return {name: _category(files[name]) for name in sorted(files)}


def names_added(overrides: Path | None) -> tuple[str, ...]:
    """The categories that the user's folder adds or replaces, in the order of their names."""
    return tuple(sorted(_files(overrides)))


def category(text: str, source: str = "category") -> Category:
    """A category as its file describes it. Raises SettingsError, which names `source` and the line."""
    name, parts = _sections(text, source)
    tags = _tags(parts.get(_TAGS, []), source)
    about = " ".join(line.strip() for _, line in parts[""] if line.strip())
    if not about:
        raise SettingsError(f"prompts: {source}: a paragraph below the title has to say what belongs here")
    examples = "\n".join(line for _, line in parts.get(_EXAMPLES, []))
    return Category(name, about, tags, examples.strip())


def extraction(category: Category, template: str) -> str:
    """What a model is told before it draws facts of a category: `extract.md` with the category filled in."""
    filled = {
        "category": category.name,
        "about": category.about,
        "tags": "\n".join(map(str, category.tags)),
        "examples": f"Examples:\n\n{category.examples}" if category.examples else "",
    }
    # in one pass: what a category's file says is never taken for a placeholder
    return re.sub(r"\{(category|about|tags|examples)\}", lambda match: filled[match[1]], template).strip()


def _shipped() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"prompts: {name} cannot be read ({type(error).__name__})") from error


def _files(folder: Path | None) -> dict[str, Path]:
    """The files of categories in a folder of prompts by the category's name."""
    if folder is None:
        return {}
    found = (folder / _CATEGORIES).glob("*.md")
    return {path.stem.casefold(): path for path in found if not path.name.startswith(".")}


def _category(path: Path) -> Category:
    source = f"{_CATEGORIES}/{path.name}"
    found = category(_text(path, source), source)
    if found.name != path.stem.casefold():  # a copy that kept its title would quietly replace the original
        raise SettingsError(f"prompts: {source}: the title has to be the file's name, # {path.stem}")
    return found


_Lines = Sequence[tuple[int, str]]


def _sections(text: str, source: str) -> tuple[str, dict[str, _Lines]]:
    """The title, and the numbered lines of each section by its heading; "" for what stands before the first."""
    lines = [(number, line.rstrip()) for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1)]
    written = [(number, line) for number, line in lines if line]
    top, title = written[0] if written else (1, "")
    name = title.removeprefix("# ").strip().casefold()
    if not title.startswith("# ") or not _NAME.fullmatch(name):
        raise SettingsError(f"prompts: {source}, line {top}: a title of one word is missing, such as # cooking")
    parts: dict[str, list[tuple[int, str]]] = {"": []}
    heading = ""
    for number, line in lines[top:]:
        if line.startswith("## "):
            heading = line[3:].strip().casefold()
            if heading not in (_TAGS, _EXAMPLES) or heading in parts:
                raise SettingsError(
                    f"prompts: {source}, line {number}: the sections are ## Tags and ## Examples, each once"
                )
            parts[heading] = []
        else:
            parts[heading].append((number, line))
    return name, dict(parts)


def _tags(lines: _Lines, source: str) -> tuple[Tag, ...]:
    tags: dict[str, Tag] = {}
    for number, line in lines:
        if not line:
            continue
        match = _TAG.fullmatch(line)
        if match is None:
            raise SettingsError(
                f'prompts: {source}, line {number}: a tag reads like "- home (one): where they live", on one line'
            )
        name = match["name"].casefold()
        if name in tags:
            raise SettingsError(f"prompts: {source}, line {number}: the tag {name} stands there twice")
        tags[name] = Tag(name, match["about"], match["one"] is not None)
    if not tags:
        raise SettingsError(f"prompts: {source}: the section ## Tags is missing or empty")
    return tuple(tags.values())
