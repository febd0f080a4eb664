"""From settings to a running memory. The only module that knows which providers exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from mcp_memory import prompts, settings
from mcp_memory.consolidation import ConsolidationView
from mcp_memory.embedders import Embedders
from mcp_memory.episodic import VectorsView, WordsView
from mcp_memory.errors import SettingsError
from mcp_memory.extraction import ExtractView
from mcp_memory.memory import Memory
from mcp_memory.profile import RulesView
from mcp_memory.prompts import Category
from mcp_memory.protocols import Embedder, LanguageModel, Reranker, Store
from mcp_memory.ranking import Weights
from mcp_memory.rerankers import OWN, Reranking
from mcp_memory.rules import Rules
from mcp_memory.settings import AGENT, Settings
from mcp_memory.store.sqlite import SQLiteStore
from mcp_memory.strategies import Strategies, Told
from mcp_memory.views import InlineView, View, Views
from mcp_memory.workers import Worker
from mcp_memory.working import ModelSummaryView, SummaryView

EMBEDDERS = {
    "use": "mcp_memory.providers.use:UseEmbedder",
    "hashing": "mcp_memory.providers.hashing:HashingEmbedder",
    "sentence-transformers": "mcp_memory.providers.sentence_transformers:SentenceTransformersEmbedder",
    "openai": "mcp_memory.providers.openai:OpenAIEmbedder",
}
LANGUAGE_MODELS = {
    "anthropic": "mcp_memory.providers.anthropic:AnthropicModel",
    "openai": "mcp_memory.providers.openai:OpenAIModel",
}
"""Provider name -> `module:class`, imported when it is used."""

RERANKERS = {
    "cross-encoder": "mcp_memory.providers.reranking:CrossEncoderReranker",
    "onnx": "mcp_memory.providers.reranking:OnnxReranker",
    "http": "mcp_memory.providers.reranking:HttpReranker",
}

ENTRY_POINTS = "mcp_memory.embedders"
RERANKER_ENTRY_POINTS = "mcp_memory.rerankers"
LANGUAGE_MODEL_ENTRY_POINTS = "mcp_memory.language_models"
"""The entry point groups in which other distributions offer embedders, rerankers and language models: callables that take
the model's name."""


def load_embedder(name: str, config: Settings) -> Embedder:
    """The embedder called `provider:model`; its model is loaded at the first use. Raises SettingsError."""
    options = {"openai": (config.openai_base_url, config.openai_api_key)}
    embedder: Embedder = _load("embedder", name, EMBEDDERS, ENTRY_POINTS, options)
    return embedder


def load_language_model(name: str, config: Settings) -> LanguageModel | None:
    """The language model called `provider:model`, asked for the first time when it replies; None for `agent`. Raises
    SettingsError."""
    if name == AGENT:
        return None
    options = {
        "anthropic": (config.anthropic_base_url, config.anthropic_api_key, config.language_model_seconds),
        "openai": (config.openai_base_url, config.openai_api_key, config.language_model_seconds),
    }
    model: LanguageModel = _load("language model", name, LANGUAGE_MODELS, LANGUAGE_MODEL_ENTRY_POINTS, options)
    return model


def load_reranker(name: str, config: Settings) -> Reranker | None:
    """The reranker called `provider:model`, whose model is loaded at the first use; None for `identity` or no name. Raises
    SettingsError."""
    if name in ("", "identity"):
        return None
    if name in OWN:
        return OWN[name]()
    reranker: Reranker = _load("reranker", name, RERANKERS, RERANKER_ENTRY_POINTS, {"http": (config.rerank_api_key,)})
    return reranker


def _load(what: str, name: str, own: Mapping[str, str], group: str, options: Mapping[str, tuple[Any, ...]]) -> Any:
    """What `name` names: one of our `own`, made with the model's name and its options, or one of an entry point."""
    provider, colon, model = name.partition(":")
    if provider in own:
        module, _, attribute = own[provider].partition(":")
        return getattr(import_module(module), attribute)(model, *options.get(provider, ()))
    for found in entry_points(group=group, name=provider):
        return found.load()(model)
    known = ", ".join(f"{provider}:" for provider in own)
    raise SettingsError(
        f"{what} {name!r}: no such provider{'' if colon else ' (write provider:model)'}. Known: {known}"
    )


@asynccontextmanager
async def open_memory(
    config: Settings | None = None,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    embedder: Embedder | None = None,
    model: LanguageModel | None = None,
    reranker: Reranker | None = None,
    background: bool = True,
) -> AsyncIterator[Memory]:
    """A memory that runs until the block ends. `now`, `embedder`, `model` (for every role), `reranker` and `background` are
    for tests and benchmarks."""
    config = config or settings.load()
    store = SQLiteStore(config.data_dir, now=now, extensions=not config.no_sqlite_extensions)
    worker = Worker("memory-embedder")
    embedders = Embedders(
        embedder or load_embedder(config.embedder, config), worker, lambda name: load_embedder(name, config)
    )
    roles = [one or config.language_model for one in (config.extract_model, config.summarise_model, config.route_model)]
    loaded = {name: model or load_language_model(name, config) for name in roles}
    models = [one for one in dict.fromkeys(loaded.values()) if one is not None]
    extractor, summariser, router = (loaded[name] for name in roles)
    told = Told(*(prompts.read(name, config.prompts_dir) for name in ("route.md", "split.md", "chain.md")))
    chosen = reranker or load_reranker(config.reranker, config)
    reranking = Reranking(chosen, Worker("memory-reranker")) if chosen else None
    views = _views(config, store, embedders, extractor, summariser)
    try:
        await store.open()
        if background:
            views.start()
        yield Memory(
            store,
            views,
            embedders,
            models,
            Strategies(router, told, config.route_seconds, store.now),
            reranking=reranking,
            weights=Weights(**config.weights.model_dump()),
            window_tokens=config.window_tokens,
            window_idle=timedelta(hours=config.window_idle_hours),
            agent_prompt=prompts.read("agent.md", config.prompts_dir).strip(),
            zone=config.zone,
        )
    finally:
        await views.stop()
        for one in models:
            await one.close()
        await store.close()
        worker.stop()
        if reranking is not None:
            reranking.stop()


def _views(
    config: Settings,
    store: Store,
    embedders: Embedders,
    extractor: LanguageModel | None,
    summariser: LanguageModel | None,
) -> Views:
    """Everything that is derived from the log, as the settings want it."""

    def read(name: str) -> str:
        return prompts.read(name, config.prompts_dir).strip()

    patience = timedelta(seconds=config.extract_seconds)
    inline: list[InlineView] = [WordsView(), RulesView(Rules.parse(read("rules.toml")))]
    slow: list[View] = [VectorsView(embedders.current, embedders.worker)]
    categories = _categories(config)
    for number, category in enumerate(categories.values()):
        shown = category if extractor else replace(category, examples="")  # an agent costs its user by the token
        told = prompts.extraction(shown, read("extract.md")).strip()
        if number == 0:  # one question is enough to tell what the messages are
            told = f"{told}\n\n{read('classify.md')}"
        slow.append(
            ExtractView(
                category, told, extractor, embedders.likeness,
                batch=config.extract_messages, patience=patience, classifies=number == 0,
            )
        )  # fmt: skip
    every = config.consolidate_episodes
    slow.append(ConsolidationView(extractor, read("consolidate.md"), embedders.likeness, categories, batch=every))
    if summariser is None:
        inline.append(SummaryView(config.window_tokens))
    else:
        told, capacity = read("summarise.md"), config.window_tokens
        slow.append(ModelSummaryView(summariser, told, capacity, batch=SUMMARISED_AT_ONCE, patience=patience))
    return Views(store, inline, slow)


SUMMARISED_AT_ONCE = 20
"""Messages after which a model retells what left the window; until then their own sentences stand in."""


def _categories(config: Settings) -> dict[str, Category]:
    """The categories that facts are drawn about. Raises SettingsError for one that does not exist."""
    known = prompts.categories(config.prompts_dir)
    names = [name for name in map(str.strip, config.categories.split(",")) if name]
    wanted = dict.fromkeys([*names, *prompts.names_added(config.prompts_dir)])
    if unknown := [name for name in wanted if name not in known]:
        raise SettingsError(f"categories: no category is called {unknown[0]!r}. Known: {', '.join(sorted(known))}.")
    return {name: known[name] for name in wanted}
