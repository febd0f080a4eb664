"""What ships as data: the files of `prompts/`, of which a user's own folder replaces those of the same name."""

from __future__ import annotations

from pathlib import Path

from mcp_memory.errors import SettingsError

_PACKAGED = Path(__file__).parent / "_prompts"
_CHECKOUT = Path(__file__).parent.parent / "prompts"


def read(name: str, overrides: Path | None = None) -> str:
    """The text of a file such as `rules.toml`. Raises SettingsError where it cannot be read."""
    shipped = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
    path = shipped / name
    if overrides is not None and (overrides / name).is_file():
        path = overrides / name
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"prompts: {name} cannot be read ({type(error).__name__})") from error
