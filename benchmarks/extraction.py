"""Extraction: what a language model costs, what its failures cost, and what it learns.

Against a scripted endpoint: messages a second, tokens a message, and what is lost or learned twice when three answers in
ten fail, or the server is killed. With `--model provider:model` (and a key or an address in the environment, as for the
server) the dialogues of `data/` are played to a real one as well; the rules are measured on them in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dialogues
from common import Gone, arguments, isolate, memory_server, publish, table, verdict
from corpus import turns
from dialogues import Dialogue, Score
from endpoint import Endpoint

from mcp_memory import tokens
from mcp_memory.assembly import open_memory
from mcp_memory.memory import Memory
from mcp_memory.settings import Settings
from mcp_memory.types import AddFeature, Message, Scope

HASHING = "hashing:256"
USERS = 8
FAILING = 0.3

_ITEM = re.compile(r"\[(\d+)\][^\n]*?user[^\n]*?: I keep item (\d+) in the shed")


def answer(system: str, user: str) -> str:
    """A model that learns exactly one fact from each message, so that what is missing or doubled can be counted."""
    if "running summary" in system:
        return json.dumps({"summary": "They talked."})
    commands = [
        {"command": "add", "tag": "belongings", "feature": f"item {item}", "value": f"keeps item {item} in the shed",
         "citations": [int(line)]}
        for line, item in _ITEM.findall(user)
    ]  # fmt: skip
    return json.dumps(commands)


def said(count: int, seed: int) -> list[str]:
    """Messages of a conversation, each with a fact of its own."""
    return [
        f"I keep item {number:05} in the shed. {turn.content}" for number, turn in enumerate(turns(count, seed=seed))
    ]


# ---- throughput, and failures


async def extracting(provider: str, messages: int, failures: float) -> dict[str, Any]:
    """Add messages of several users, and wait until every fact is there."""
    told = said(messages, seed=9)
    with tempfile.TemporaryDirectory() as folder, Endpoint(answer, failures=failures, seed=9) as endpoint:
        address = {f"{provider}_base_url": endpoint.url + ("/v1" if provider == "openai" else "")}
        settings = Settings(
            data_dir=Path(folder), embedder=HASHING, language_model=f"{provider}:scripted", anthropic_api_key="none",
            language_model_seconds=2, **address,
        )  # fmt: skip
        scopes = [Scope("o", "p", f"user {number}") for number in range(USERS)]
        async with open_memory(settings) as memory:
            await memory.warm()
            start = time.perf_counter()
            for number, content in enumerate(told):
                await memory.add(scopes[number % USERS], [Message(content)])
            for scope in scopes:
                await settled(memory, scope)
            seconds = time.perf_counter() - start
            aside = sum([await tried_again(memory, scope) for scope in scopes])
            learned, doubled = await counted(memory, scopes)
        return {
            "per second": len(told) / seconds,
            "own": sum(map(tokens.count, told)) / len(told),
            "sent": endpoint.sent / len(told),
            "received": endpoint.received / len(told),
            "requests": len(endpoint.exchanges),
            "failed": ", ".join(
                f"{count} {kind}" for kind, count in sorted(endpoint.outcomes.items()) if kind != "answered"
            ),
            "lost": len(told) - len(learned),
            "doubled": doubled,
            "aside": aside,
        }


async def settled(memory: Memory, scope: Scope) -> None:
    """Consolidate until nothing waits."""
    while True:
        report = await memory.consolidate(scope)
        if not any(lag.view.startswith("extract/") for lag in report.lags):
            return
        await asyncio.sleep(0.1)


async def tried_again(memory: Memory, scope: Scope) -> int:
    """How many episodes had been set aside; they are tried again until none is."""
    total = 0
    while aside := await memory.store.read(scope, lambda tx: tx.cursors.aside()):
        total += len(aside)
        for view in {one.view for one in aside}:
            await memory.retry_aside(scope, view, lambda left: None)
        await settled(memory, scope)
    return total


async def counted(memory: Memory, scopes: list[Scope]) -> tuple[set[str], int]:
    """The items that facts tell of, and how many facts or commands there are too many."""
    learned: Counter[str] = Counter()
    decided: Counter[str] = Counter()
    for scope in scopes:
        facts, _ = await memory.profile(scope, history=True)
        learned.update(fact.value for fact in facts if fact.tag == "belongings")
        made = [decision.command for decision, _ in await memory.decisions(scope)]
        decided.update(
            command.value for command in made if isinstance(command, AddFeature) and command.tag == "belongings"
        )
    return set(learned), sum(learned.values()) - len(learned) + sum(decided.values()) - len(decided)


def throughput(messages: int) -> str:
    rows = []
    for provider in ("anthropic", "openai"):
        for failures in (0.0, FAILING):
            got = asyncio.run(extracting(provider, messages, failures))
            rows.append(
                [
                    f"{provider}, {failures:.0%} of the answers fail",
                    f"{got['per second']:.1f}",
                    f"{got['own']:.0f}",
                    f"{got['sent']:.0f}",
                    f"{got['received']:.0f}",
                    f"{got['requests']} ({got['failed'] or 'none failed'})",
                    got["lost"],
                    got["doubled"],
                    got["aside"],
                    verdict(got["lost"] == 0 and got["doubled"] == 0),
                ]
            )
    head = [
        f"{messages} messages of {USERS} users", "messages/s", "tokens of a message", "sent a message",
        "received a message", "requests", "messages lost", "facts twice", "set aside, then retried", "0 lost, 0 twice",
    ]  # fmt: skip
    return table(head, rows)


# ---- killed


def killing(rounds: int) -> str:
    """Each round starts a server on the same file, adds, and kills it at a random moment while a model is being asked."""
    rng = random.Random(3)
    told = iter(said(rounds * 60, seed=3))
    acknowledged: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Endpoint(answer, failures=0.1, seed=3, delay=0.03) as endpoint:
        for _ in range(rounds):
            with memory_server(
                Path(folder), HASHING, MCP_MEMORY_LANGUAGE_MODEL="openai:scripted",
                MCP_MEMORY_OPENAI_BASE_URL=f"{endpoint.url}/v1", MCP_MEMORY_EXTRACT_SECONDS="0.2",
            ) as server:  # fmt: skip
                server.call("read_profile")  # the memory is open
                timer = threading.Timer(rng.uniform(0.05, 1.2), server.process.kill)
                timer.start()
                with contextlib.suppress(Gone):
                    for _ in range(40):
                        content = next(told)
                        server.call("add_memory", content=content, session_id="s")
                        acknowledged.append(content)
                        time.sleep(rng.uniform(0, 0.03))
                timer.join()
                server.kill()
        settings = Settings(
            data_dir=Path(folder),
            embedder=HASHING,
            language_model="openai:scripted",
            openai_base_url=f"{endpoint.url}/v1",
        )
        kept, learned, doubled, behind = asyncio.run(_after(settings, acknowledged))
    rows = [
        ["acknowledged messages in the log", len(acknowledged), kept, verdict(kept == len(acknowledged))],
        ["acknowledged messages with their fact", len(acknowledged), learned, verdict(learned == len(acknowledged))],
        ["facts or commands applied twice", 0, doubled, verdict(doubled == 0)],
        ["episodes that the view is behind by", 0, behind, verdict(behind == 0)],
    ]
    return table([f"kill -9 at {rounds} random moments during extraction", "wanted", "got", ""], rows)


async def _after(settings: Settings, acknowledged: list[str]) -> tuple[int, int, int, int]:
    scope = Scope(settings.org_id, settings.project_id, settings.user_id)
    async with open_memory(settings) as memory:
        await settled(memory, scope)
        await tried_again(memory, scope)
        contents = {episode.content for episode in await memory.store.read(scope, lambda tx: tx.log.after(0, 10**6))}
        learned, doubled = await counted(memory, [scope])
        behind = await memory.store.read(scope, lambda tx: memory.views.lags(tx, thorough=True))
    wanted = [
        re.sub(r"I keep (item \d+) in the shed.*", r"keeps \1 in the shed", one, flags=re.S) for one in acknowledged
    ]
    late = sum(lag.episodes for lag in behind if lag.view.startswith("extract/"))
    return sum(one in contents for one in acknowledged), sum(one in learned for one in wanted), doubled, late


# ---- what is learned


async def played(settings: Settings, dialogue: Dialogue) -> Score:
    """The dialogue as the server hears it, message by message, and the profile at its end."""
    scope = Scope("o", "p", dialogue.id)
    async with open_memory(settings) as memory:
        for turn in dialogue.turns:
            message = Message(turn.content, turn.role, turn.speaker, turn.said_at, session_id=dialogue.id)
            await memory.add(scope, [message])
        if settings.language_model != "agent":
            await settled(memory, scope)
        ever, _ = await memory.profile(scope, history=True)
    held = [fact.value for fact in ever if fact.valid_to is None]
    return dialogues.score(dialogue, held, [fact.value for fact in ever])


def learning(models: list[str]) -> str:
    rows = []
    for model in models:
        for language in dialogues.LANGUAGES:
            with tempfile.TemporaryDirectory() as folder:
                settings = Settings(data_dir=Path(folder), embedder=HASHING, language_model=model)
                scores = [asyncio.run(played(settings, dialogue)) for dialogue in dialogues.dialogues(language)]
            for score in scores:
                for wrong in score.wrong:
                    print(f"  {model} {language}: wrong: {wrong}", file=sys.stderr)
            rows.append(
                [
                    "rules alone" if model == "agent" else f"rules and {model}",
                    language,
                    len(scores),
                    f"{dialogues.precision(scores):.3f}",
                    f"{dialogues.recall(scores):.3f}",
                    sum(len(score.forbidden) for score in scores),
                ]
            )
    return table(
        ["who draws the facts", "language", "dialogues", "fact precision", "fact recall", "forbidden facts"], rows
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--model", help="provider:model, to be measured on the dialogues too")
    given = parser.parse_args()
    real = {name: value for name, value in os.environ.items() if name.startswith(("MCP_MEMORY_OPENAI_", "ANTHROPIC_"))}
    isolate()
    parts = [throughput(given.messages), killing(given.kills)]
    os.environ.update(real)
    parts.append(learning(["agent", *([given.model] if given.model else [])]))
    publish("extraction", *parts, write=given.write)


if __name__ == "__main__":
    main()
