"""Settings: defaults, below the file, below the environment, below flags."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from mcp_memory.errors import SettingsError
from mcp_memory.settings import APP, Settings, default_file, load


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    file = default_file()
    assert file.is_relative_to(tmp_path)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def test_flags_win_over_the_environment_over_the_file_over_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load().user_id == "default"
    file.write_text('user_id = "file"\nport = 1\ntimezone = "Europe/Berlin"\n')
    monkeypatch.setenv("MCP_MEMORY_USER_ID", "environment")
    monkeypatch.setenv("MCP_MEMORY_PORT", "2")
    settings = load(user_id="flag", port=None)
    assert (settings.user_id, settings.port, settings.timezone) == ("flag", 2, "Europe/Berlin")


def test_an_empty_variable_is_not_given(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('user_id = "file"\n')
    monkeypatch.setenv("MCP_MEMORY_USER_ID", "")
    assert load().user_id == "file"


@pytest.mark.parametrize("given", ["environment", "file", "flag"])
def test_extensions_can_be_done_without(file: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    assert not load().no_sqlite_extensions
    if given == "environment":
        monkeypatch.setenv("FORCE_NO_SQLITE_EXTENSIONS", "1")
    elif given == "file":
        file.write_text("no_sqlite_extensions = true\n")
    settings = load(no_sqlite_extensions=True) if given == "flag" else load()
    assert settings.no_sqlite_extensions


def test_weights_are_set_one_by_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_MEMORY_WEIGHTS__SPEAKER", "0.5")
    assert load().weights.speaker == 0.5
    assert load().weights.recency == Settings().weights.recency


@pytest.mark.parametrize(
    ("name", "value"),
    [("timezone", "Mars/Olympus"), ("port", "-1"), ("port", "http"), ("window_tokens", "1"), ("language_model", "x:y")],
)
def test_a_value_that_cannot_be_used_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"MCP_MEMORY_{name.upper()}", value)
    with pytest.raises(SettingsError, match=name):
        load()


def test_a_file_that_is_no_toml_is_an_error_with_advice(file: Path) -> None:
    file.write_text("user_id = ")
    with pytest.raises(SettingsError):
        load()


def test_the_data_are_in_the_users_data_directory(file: Path) -> None:
    assert load().data_dir == Path(platformdirs.user_data_dir(APP, appauthor=False))
    assert load().data_dir != Path.cwd()
