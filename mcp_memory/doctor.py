"""What is right and wrong with an installation and its memory, line by line, and what to do about it."""

from __future__ import annotations

import asyncio
import os
import platform
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from mcp_memory.assembly import load_embedder, load_language_model, open_memory
from mcp_memory.errors import MemoryServerError
from mcp_memory.memory import Memory
from mcp_memory.protocols import Embedder, Store
from mcp_memory.settings import Settings, default_file
from mcp_memory.store.schema import FILE_NAME
from mcp_memory.types import Lag
from mcp_memory.working import Summarised

Verdict = Literal["ok", "warn", "fail"]

STAND_IN = "hashing:256"
"""The embedder under which the store is looked at where the one that is set cannot even be named."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `advice` says what to do, where something is to be done."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


async def examine(settings: Settings, *, vacuum: bool = False) -> AsyncIterator[Check]:
    """Every check, one after another; with `vacuum` the file is rewritten without its free space at the end."""
    yield Check("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _settings_file(default_file())
    yield Check("time zone", "ok", f"{settings.timezone}: it is {datetime.now(settings.zone):%Y-%m-%d %H:%M} there")
    for check in (*_directory(settings.data_dir), *_modes(settings.data_dir)):
        yield check
    embedder, check = await _embedder(settings)
    yield check
    yield await _language_model(settings)
    file = settings.data_dir / FILE_NAME
    if not file.exists():
        yield Check("memory file", "ok", f"none yet; the first use makes {file}")
        return
    try:
        async with _opened(settings, embedder) as memory:
            async for check in _store(memory, file, known=embedder is not None, vacuum=vacuum):
                yield check
    except (MemoryServerError, OSError) as error:
        yield Check("memory file", "fail", f"{file} cannot be used", str(error))


@asynccontextmanager
async def _opened(settings: Settings, embedder: Embedder | None) -> AsyncIterator[Memory]:
    """The memory, with nothing going on in the background that would change what is looked at."""
    stand_in = embedder or load_embedder(STAND_IN, settings)
    async with open_memory(settings, embedder=stand_in, background=False) as memory:
        yield memory


# ---- around the file


def _settings_file(file: Path) -> Check:
    name = "settings file"
    if not file.exists():
        return Check(name, "ok", f"none; {file} would be read")
    try:
        unknown = tomllib.loads(file.read_text(encoding="utf-8")).keys() - Settings.model_fields.keys()
    except (OSError, ValueError) as error:
        return Check(name, "fail", f"{file} cannot be read", str(error))
    if unknown:
        return Check(
            name, "warn", f"{file} sets {', '.join(sorted(unknown))}", "No such setting exists: correct its name."
        )
    return Check(name, "ok", str(file))


def _directory(directory: Path) -> Iterator[Check]:
    name = "data directory"
    if directory.exists() and not directory.is_dir():
        yield Check(name, "fail", f"{directory} is no directory", "Name another one with MCP_MEMORY_DATA_DIR.")
        return
    above = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        yield Check(
            name, "fail", f"{above} cannot be written", "Give yourself the right to, or set MCP_MEMORY_DATA_DIR."
        )
    elif above != directory:
        yield Check(name, "ok", f"{directory}, made by the first use")
    elif os.name == "posix" and (mode := _open_to_others(directory)):
        yield Check(name, "warn", f"{directory} has mode {mode}: others may look into it", f"chmod 700 {directory}")
    else:
        yield Check(name, "ok", str(directory))


def _modes(directory: Path) -> Iterator[Check]:
    """Looked at before the store opens, which sets the mode of its file right."""
    if os.name != "posix" or not directory.is_dir() or not (directory / FILE_NAME).exists():
        return
    wrong = {file.name: mode for file in sorted(directory.glob(f"{FILE_NAME}*")) if (mode := _open_to_others(file))}
    if wrong:
        listed = ", ".join(f"{name} {mode}" for name, mode in wrong.items())
        yield Check("file modes", "warn", f"others may read {listed}", f"chmod 600 {directory / FILE_NAME}*")
    else:
        yield Check("file modes", "ok", "only you can read the memory")


def _open_to_others(path: Path) -> str:
    """The mode of a path that others than its owner may use; "" where none may."""
    mode = path.stat().st_mode & 0o777
    return f"{mode:04o}" if mode & 0o077 else ""


async def _embedder(settings: Settings) -> tuple[Embedder | None, Check]:
    name = "embedder"
    try:
        embedder = load_embedder(settings.embedder, settings)
    except MemoryServerError as error:
        return None, Check(name, "fail", f"{settings.embedder} cannot be used", str(error))
    try:
        await asyncio.to_thread(embedder.load)
        vectors = await asyncio.to_thread(embedder.embed, ["What do I like to drink?"], "query")
        floor = await asyncio.to_thread(lambda: embedder.floor)
    except MemoryServerError as error:
        advice = f"{error} Until then words alone find."
        return embedder, Check(name, "fail", f"{embedder.name} does not answer", advice)
    return embedder, Check(name, "ok", f"{embedder.name} answers: {vectors.shape[1]} dimensions, floor {floor:.2f}")


async def _language_model(settings: Settings) -> Check:
    name = "language model"
    try:
        names = {settings.extract_model or settings.language_model, settings.summarise_model or settings.language_model}
        models = [model for one in sorted(names) if (model := load_language_model(one, settings)) is not None]
    except MemoryServerError as error:
        return Check(name, "fail", "what is set cannot be used", str(error))
    if not models:
        return Check(name, "ok", "none: facts come from rules, and from the connected agent when it consolidates")
    failed = []
    for model in models:
        try:
            await model.reply('Answer with the JSON {"summary": "ready"} and nothing else.', "Ready?", Summarised)
        except MemoryServerError as error:
            failed.append(f"{error} Until then messages wait; none is lost.")
        finally:
            await model.close()
    listed = ", ".join(model.name for model in models)
    return Check(name, "fail" if failed else "ok", f"{listed} {'fails' if failed else 'answers'}", " ".join(failed))


# ---- the file


async def _store(memory: Memory, file: Path, *, known: bool, vacuum: bool) -> AsyncIterator[Check]:
    store = memory.store
    parts = await store.describe()
    yield Check("memory file", "ok", f"{file}, {_megabytes(file)}")
    yield Check("SQLite", "ok", f"{parts['SQLite']}; the file's schema is {parts['schema']}")
    if parts["sqlite-vec"]:
        yield Check("sqlite-vec", "ok", parts["sqlite-vec"])
    else:
        advice = "Vectors are compared one by one: exact, slower in a large memory. pip install sqlite-vec"
        yield Check("sqlite-vec", "warn", "not loaded", advice)
    yield _index(parts)
    sound = await store.check()
    if sound == "ok":
        yield Check("integrity", "ok", "SQLite finds nothing wrong")
    else:
        advice = "Stop every server, keep a copy of the file, then `mcp-memory export` what can still be read."
        yield Check("integrity", "fail", sound, advice)
    yield await _aside(memory)
    async for check in _views(memory, [name for name in memory.views.names() if known or STAND_IN not in name]):
        yield check
    yield await _erasure(store)
    copies = store.copies()
    if copies:
        found = f"{', '.join(copies)} in {file.parent}"
        yield Check(
            "copies", "warn", found, "They hold what has been forgotten since: delete them once you don't need them."
        )
    else:
        yield Check("copies", "ok", "none were set aside")
    if vacuum:
        before = _megabytes(file)
        await store.compact()
        yield Check("vacuum", "ok", f"{before} before, {_megabytes(file)} now")


def _index(parts: Mapping[str, str]) -> Check:
    """What serves users with so many memories that they are not compared in memory any more."""
    name, large = "index", int(parts.get("large", "0"))
    files = parts.get("index", "")
    if not large:
        return Check(name, "ok", f"no user has so many memories as to need one{f'; {files}' if files else ''}")
    if not parts.get("faiss"):
        advice = "pip install 'mcp-memory[scale]'"
        return Check(name, "warn", f"{large} large memories are searched without one, slowly", advice)
    return Check(name, "ok", f"faiss {parts['faiss']}: {files or 'the next search has it built'}")


async def _views(memory: Memory, names: Sequence[str]) -> AsyncIterator[Check]:
    scopes = await memory.store.scopes()
    behind: dict[str, list[tuple[str, Lag]]] = {name: [] for name in names}
    for scope in scopes:
        for lag in await memory.store.read(scope, partial(memory.views.lags, thorough=True)):
            if lag.view in behind:
                behind[lag.view].append((scope.user, lag))
    for view, lags in behind.items():
        name = f"view {view}"
        if not lags:
            yield Check(name, "ok", f"up to date for {len(scopes)} {'user' if len(scopes) == 1 else 'users'}")
            continue
        listed = ", ".join(
            f"{user} by {lag.episodes}{f' ({lag.reason})' if lag.reason else ''}" for user, lag in lags[:5]
        )
        more = f", and {len(lags) - 5} more users" if len(lags) > 5 else ""
        failed = any(lag.reason for _, lag in lags)
        advice = f"mcp-memory rebuild {view.partition('/')[0]}" if failed else "The next use catches up."
        yield Check(name, "warn" if failed else "ok", f"behind: {listed}{more}", advice)


async def _aside(memory: Memory) -> Check:
    """What views go on without after many tries."""
    found = []
    for scope in await memory.store.scopes():
        left = await memory.store.read(scope, lambda tx: [(tx.log.at([one.seq]), one) for one in tx.cursors.aside()])
        for episodes, aside in left:
            found += [f"{aside.view}: {episode.id} of {scope.user} ({aside.reason})" for episode in episodes]
    if not found:
        return Check("set aside", "ok", "nothing")
    more = f", and {len(found) - 5} more" if len(found) > 5 else ""
    return Check("set aside", "warn", "; ".join(found[:5]) + more, "mcp-memory rebuild --aside tries again.")


async def _erasure(store: Store) -> Check:
    if await store.erased() or await store.finish_erasing():
        return Check("erasure", "ok", "nothing forgotten is left in the files")
    return Check(
        "erasure", "warn", "pending: another process is reading", "Close other clients; the next write finishes it."
    )


def _megabytes(file: Path) -> str:
    return f"{file.stat().st_size / 1_000_000:.1f} MB"
