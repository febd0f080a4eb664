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
    [
        ("timezone", "Mars/Olympus"),
        ("port", "-1"),
        ("port", "http"),
        ("window_tokens", "1"),
        ("language_model", "claude-haiku-5-5"),
        ("extract_model", "gpt"),
        ("language_model_seconds", "0"),
        ("openai_base_url", "127.0.0.1:11434/v1"),
        ("anthropic_base_url", "ftp://x.example"),
        ("anthropic_api_key", "schlüssel"),
        ("openai_api_key", "two\nlines"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"MCP_MEMORY_{name.upper()}", value)
    with pytest.raises(SettingsError, match=name):
        load()


def test_a_model_without_a_provider_is_told_how_it_is_written() -> None:
    with pytest.raises(SettingsError, match=r"anthropic:claude-haiku-5-5.*agent"):
        load(language_model="claude-haiku-5-5")


@pytest.mark.parametrize("name", ["agent", "anthropic:claude-haiku-5-5", "openai:qwen3:8b", "theirs:model"])
def test_a_language_model_is_the_agent_or_a_providers(name: str) -> None:
    assert load(language_model=name, route_model=name).route_model == name


def test_roles_take_the_language_model_unless_told_otherwise() -> None:
    settings = load(language_model="anthropic:x")
    assert settings.extract_model == settings.summarise_model == settings.route_model == ""


@pytest.mark.parametrize("name", ["anthropic_base_url", "anthropic_api_key"])
def test_anthropics_own_variables_are_read_below_ours_and_above_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(name.upper(), raising=False)
    assert getattr(load(), name) == ""
    file.write_text(f'{name} = "https://file.example"\n')
    assert getattr(load(), name) == "https://file.example"
    monkeypatch.setenv(name.upper(), "https://theirs.example")
    assert getattr(load(), name) == "https://theirs.example"
    monkeypatch.setenv(f"MCP_MEMORY_{name.upper()}", "https://ours.example")
    assert getattr(load(), name) == "https://ours.example"
    assert getattr(load(**{name: "https://flag.example"}), name) == "https://flag.example"


def test_a_key_is_read_without_the_blanks_around_it_and_never_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", " a-key\n")
    assert load().anthropic_api_key == "a-key"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "se\tcret")
    with pytest.raises(SettingsError, match="anthropic_api_key") as raised:
        load()
    assert "cret" not in str(raised.value)


def test_a_file_that_is_no_toml_is_an_error_with_advice(file: Path) -> None:
    file.write_text("user_id = ")
    with pytest.raises(SettingsError):
        load()


def test_the_data_are_in_the_users_data_directory(file: Path) -> None:
    assert load().data_dir == Path(platformdirs.user_data_dir(APP, appauthor=False))
    assert load().data_dir != Path.cwd()
