"""From settings to a running memory. The only module that knows which providers exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.metadata import entry_points

from mcp_memory import prompts, settings
from mcp_memory.episodic import VectorsView, WordsView
from mcp_memory.errors import SettingsError
from mcp_memory.memory import Memory
from mcp_memory.profile import RulesView
from mcp_memory.protocols import Embedder
from mcp_memory.ranking import Weights
from mcp_memory.retrieval import Embedders
from mcp_memory.rules import Rules
from mcp_memory.settings import Settings
from mcp_memory.store.sqlite import SQLiteStore
from mcp_memory.views import Views
from mcp_memory.workers import Worker
from mcp_memory.working import SummaryView

EMBEDDERS = {
    "use": "mcp_memory.providers.use:UseEmbedder",
    "hashing": "mcp_memory.providers.hashing:HashingEmbedder",
    "sentence-transformers": "mcp_memory.providers.sentence_transformers:SentenceTransformersEmbedder",
    "openai": "mcp_memory.providers.openai:OpenAIEmbedder",
}
"""Provider name -> `module:class`, imported when it is used."""

ENTRY_POINTS = "mcp_memory.embedders"
"""The entry point group in which other distributions offer embedders: a callable that takes the model's name."""


def load_embedder(name: str, config: Settings) -> Embedder:
    """The embedder called `provider:model`; its model is loaded at the first use. Raises SettingsError."""
    provider, colon, model = name.partition(":")
    if provider in EMBEDDERS:
        module, _, attribute = EMBEDDERS[provider].partition(":")
        made: Callable[..., Embedder] = getattr(import_module(module), attribute)
        if provider == "openai":
            return made(model, config.openai_base_url, config.openai_api_key)
        return made(model)
    for found in entry_points(group=ENTRY_POINTS, name=provider):
        embedder: Embedder = found.load()(model)
        return embedder
    known = ", ".join(f"{provider}:" for provider in EMBEDDERS)
    raise SettingsError(
        f"embedder {name!r}: no such provider{'' if colon else ' (write provider:model)'}. Known: {known}"
    )


@asynccontextmanager
async def open_memory(
    config: Settings | None = None,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    embedder: Embedder | None = None,
    background: bool = True,
) -> AsyncIterator[Memory]:
    """A memory that runs until the block ends. `now`, `embedder` and `background` are for tests and benchmarks."""
    config = config or settings.load()
    weights = Weights(**config.weights.model_dump())
    store = SQLiteStore(config.data_dir, now=now, extensions=not config.no_sqlite_extensions)
    worker = Worker("memory-embedder")
    embedders = Embedders(
        embedder or load_embedder(config.embedder, config), worker, lambda name: load_embedder(name, config)
    )
    rules = Rules.parse(prompts.read("rules.toml", config.prompts_dir))
    views = Views(
        store,
        inline=[WordsView(), RulesView(rules), SummaryView(config.window_tokens)],
        views=[VectorsView(embedders.current, worker)],
    )
    try:
        await store.open()
        if background:
            views.start()
        yield Memory(
            store,
            views,
            embedders,
            weights=weights,
            window_tokens=config.window_tokens,
            window_idle=timedelta(hours=config.window_idle_hours),
        )
    finally:
        await views.stop()
        await store.close()
        worker.stop()
