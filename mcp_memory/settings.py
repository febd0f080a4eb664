"""Settings: defaults, below one TOML file, below the environment (`MCP_MEMORY_*`), below flags.

The only module that reads the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import platformdirs
from pydantic import AliasChoices, BaseModel, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from mcp_memory.errors import SettingsError

APP = "mcp-memory"

AGENT = "agent"
"""The language model of a memory that has none: the connected agent."""


class WeightSettings(BaseModel, extra="forbid"):
    """What `ranking.Weights` holds; `MCP_MEMORY_WEIGHTS__SPEAKER=0` and so on."""

    words_least: float = Field(default=0.3, ge=0, le=1)
    """The share of words against meaning where no memory holds any of the query's words..."""
    words_most: float = Field(default=0.7, ge=0, le=1)
    """...and where one holds all of them."""
    ranks: bool = False
    """Compare what words and meaning find by ranks instead of scores (reciprocal rank fusion)."""
    told: float = Field(default=1.0, ge=0)
    """How much a query as its answer would put it counts beside the query as it stands, where meaning is compared."""
    previous: float = Field(default=0.3, ge=0, le=1)
    """What a memory gets of the score of the one before it in its session..."""
    before_previous: float = Field(default=0.1, ge=0, le=1)
    """...of the one before that..."""
    next: float = Field(default=0.2, ge=0, le=1)
    """...and of the one after it."""
    links: float = Field(default=0.1, ge=0, le=1)
    """What a memory gets at least of the score of one that it is linked to, times their likeness."""
    speaker: float = Field(default=0.2, ge=0)
    """For what was said by the one speaker whom the query names."""
    asking: float = Field(default=0.2, ge=0, le=1)
    """The share of its score that a memory loses where all of it is questions."""
    recency: float = Field(default=0.05, ge=0)
    """For the newest; falls with age."""
    time: float = Field(default=0.3, ge=0, le=1)
    """The part of its score that a memory gets once more where it was said at a time that the query names."""
    importance: float = Field(default=0.1, ge=0, le=0.5)
    """The share of its score that a memory gains with an importance of 1, and loses with 0; 0.5 changes nothing."""
    role: float = Field(default=0.05, ge=0, le=0.5)
    """The share of its score that a memory loses where it is not the user's own word."""
    accesses: float = Field(default=0.0, ge=0, le=1)
    """The share of its score that a memory gains for being found ten times, a tenth of it for each. Above 0, every
    search writes."""
    fact_importance: float = Field(default=0.3, ge=0, le=1)
    """The part of a fact's score that its importance makes; its closeness to the query makes the rest."""
    newer: float = Field(default=0.6, ge=0, le=1)
    """How much of an older memory's score a newer one about the same may lack and still go before it; 0 for never."""
    reranker: float = Field(default=2.0, ge=0)
    """How much a reranker's judgement counts against the order that it was given."""
    min_score: float = Field(default=0.0, ge=0, le=1)
    """What scores less is left out of every answer."""


class Settings(BaseSettings):
    """Every setting, with the names that docs/configuration.md lists."""

    model_config = SettingsConfigDict(
        env_prefix="MCP_MEMORY_", env_nested_delimiter="__", extra="ignore", env_ignore_empty=True, frozen=True
    )

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir(APP, appauthor=False)))
    """Where the memory file is."""
    embedder: str = "use:multilingual-v3"
    """`provider:model`: `use:multilingual-v3`, `openai:<model>`, `sentence-transformers:<model or folder>` or
    `hashing:<n>`."""
    language_model: str = "agent"
    """`agent` (no model is asked, the connected agent answers for it), `anthropic:<model>` or `openai:<model>`."""
    extract_model: str = ""
    """The model that draws facts out of what was said; empty for `language_model`."""
    summarise_model: str = ""
    """The model that summarises sessions; empty for `language_model`."""
    route_model: str = ""
    """The model that chooses how to search, splits questions and judges what was found; empty for `language_model`, `agent`
    for rules alone."""
    route_seconds: float = Field(15.0, ge=0)
    """The longest that such a model may hold up a search; then the answer is what was found until then."""
    language_model_seconds: float = Field(60.0, ge=1)
    """The longest wait for one answer of a language model."""
    extract_messages: int = Field(5, ge=1, le=100)
    """Messages from which facts are drawn at once, as soon as so many wait..."""
    extract_seconds: float = Field(300.0, ge=0)
    """...or the oldest has waited so long."""
    categories: str = "profile"
    """Comma-separated: what facts are drawn about (profile, coding, writing, finance, health, crm); a category of
    `prompts_dir` is always among them."""
    consolidate_episodes: int = Field(200, ge=1)
    """After so many new memories of a user the facts are merged and stale ones ended, without being asked."""
    user_id: str = "default"
    """The user whose memory it is where a call names none."""
    org_id: str = "default"
    """The organisation, the outermost part of a scope."""
    project_id: str = "default"
    """The project, the part of a scope between organisation and user."""
    timezone: str = "UTC"
    """The zone of a time without one."""
    window_tokens: int = Field(2_000, ge=100, le=200_000)
    """Capacity of a session's working window."""
    window_idle_hours: float = Field(168.0, ge=0)
    """After this time without a new message a session's window is empty; 0 for never."""
    weights: WeightSettings = WeightSettings()
    """How the signals of a search are weighed."""
    reranker: str = ""
    """What orders the first hits once more: empty or `identity` for nothing, `bm25`, `rrf`, `onnx:ms-marco-minilm-l12`
    (English, offline), `onnx:<folder>`, `cross-encoder:<model or folder>` or `http:<address of a /rerank>#<model>`."""
    rerank_api_key: str = ""
    """Sent to that address as bearer token."""
    prompts_dir: Path | None = None
    """A folder whose files replace the shipped ones of the same name."""
    openai_base_url: str = "http://127.0.0.1:11434/v1"
    """The endpoint of `openai:` embedders and language models, with `/v1`; the default is Ollama on this machine."""
    openai_api_key: str = ""
    """Sent to that endpoint as bearer token; empty for a local one."""
    anthropic_base_url: str = Field(
        "", validation_alias=AliasChoices("mcp_memory_anthropic_base_url", "anthropic_base_url")
    )
    """The endpoint of `anthropic:` language models, also read from `ANTHROPIC_BASE_URL`; empty for Anthropic's own."""
    anthropic_api_key: str = Field(
        "", validation_alias=AliasChoices("mcp_memory_anthropic_api_key", "anthropic_api_key")
    )
    """The key for that endpoint, also read from `ANTHROPIC_API_KEY`."""
    http_token: str = ""
    """The bearer token of `serve --http`."""
    port: int = Field(8765, ge=0, le=65_535)
    """Where `serve --http` listens, on this machine only."""
    log_level: str = "WARNING"
    """DEBUG, INFO, WARNING, ERROR or CRITICAL; the log goes to stderr."""
    no_sqlite_extensions: bool = Field(
        False, validation_alias=AliasChoices("FORCE_NO_SQLITE_EXTENSIONS", "no_sqlite_extensions")
    )
    """Behave as a Python that cannot load SQLite extensions: the same answers, without sqlite-vec."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"no time zone is called {name!r} (an IANA name such as Europe/Berlin is wanted)"
            ) from error
        return name

    @field_validator("language_model", "extract_model", "summarise_model", "route_model")
    @classmethod
    def _names_a_provider(cls, name: str) -> str:
        if name not in ("", AGENT) and ":" not in name:
            raise ValueError(f"{name!r} names no provider: write provider:model (anthropic:{name}), or {AGENT}")
        return name

    @field_validator("openai_base_url", "anthropic_base_url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no address: it begins with http:// or https://")
        return url

    @field_validator("openai_api_key", "anthropic_api_key")
    @classmethod
    def _can_be_sent(cls, key: str) -> str:
        key = key.strip()
        if not key.isascii() or not key.isprintable():
            raise ValueError("it holds characters that no key has")
        return key

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, default_file())


def default_file() -> Path:
    return Path(platformdirs.user_config_dir(APP, appauthor=False)) / "config.toml"


def load(**flags: Any) -> Settings:
    """The settings of this process; `flags` win, those that are None count as not given.

    Raises SettingsError, naming the setting.
    """
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()]
        raise SettingsError("settings: " + "; ".join(problems)) from error
    except ValueError as error:  # what the file says is not TOML
        raise SettingsError(f"settings: {default_file()} cannot be read: {error}") from error
