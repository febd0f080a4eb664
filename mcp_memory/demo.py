"""`mcp-memory demo`: a short conversation with the real server, as any client would have it, in English and Chinese.

Everything that is shown is checked: the demonstration is a proof, and ends where something is not as it should be.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextResourceContents

from mcp_memory.settings import Settings
from mcp_memory.store.schema import FILE_NAME

ANSWER_SECONDS = 30.0

ENGLISH = (
    ("user", "Hi, my name is Maya. I live in Lisbon and I love hiking."),
    ("assistant", "Nice to meet you, Maya! Lisbon has fine hills for that."),
    ("user", "I'm training for a marathon in October."),
    ("user", "The rent of my flat is 900 euros a month."),
    ("user", "From now on, please use metric units."),
)
CHINESE = (
    ("user", "我喜欢听古典音乐，我对花生过敏。"),
    ("assistant", "好的，我记住了。"),
    ("user", "我每周三晚上学游泳。"),
    ("user", "我的猫叫团子，今年三岁。"),
    ("user", "以后请用中文回答。"),
)
QUESTIONS = (
    ("an English question, an English memory", "How much do I pay for my apartment?", "900 euros"),
    ("a Chinese question, a Chinese memory", "我养了什么宠物？", "团子"),
    ("an English question, a Chinese memory", "When do I have swimming lessons?", "游泳"),
    ("a Chinese question, an English memory", "房租多少钱？", "900 euros"),
)
LEARNED = {
    "name": "Maya",
    "home": "Lisbon",
    "likes": "hiking",
    "likes, in Chinese": "古典音乐",
    "allergies, in Chinese": "花生",
    "instructions": "metric",
    "instructions, in Chinese": "中文",
}
SECRET = "900 euros a month"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was tried: the call, what came back, and what that has to show."""

    title: str
    call: str
    shown: tuple[str, ...]
    expected: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Played:
    steps: tuple[Step, ...]
    connect: tuple[str, ...]
    file: Path

    @property
    def proven(self) -> bool:
        return all(step.holds for step in self.steps)

    @property
    def farewell(self) -> str:
        if not self.proven:
            last = self.steps[-1]
            return f"Not as it should be: {last.title} (expected: {last.expected}). `mcp-memory doctor` says more."
        return f"To connect a client, let it run: {' '.join(self.connect)}   (the memory will be {self.file})"

    @property
    def data(self) -> dict[str, Any]:
        return {
            "steps": [{"call": step.call, "expected": step.expected, "holds": step.holds} for step in self.steps],
            "proven": self.proven,
            "command": list(self.connect),
            "file": str(self.file),
        }


class Refused(Exception):
    """A call that the server answered with an error."""


def play(settings: Settings, show: Callable[[Step], None]) -> Played:
    """Play it on a throw-away memory, with the embedder that is set; `show` sees each step as it comes. Ends at the first
    that does not hold."""
    with tempfile.TemporaryDirectory(prefix="mcp-memory-demo-") as folder, Path(folder, "log").open("w+b") as log:
        steps = asyncio.run(_play(settings, Path(folder, "data"), log, show))
    return Played(tuple(steps), connection(), settings.data_dir.absolute() / FILE_NAME)


def connection() -> tuple[str, ...]:
    """The command line that starts this installation's server."""
    script = Path(sys.executable).with_name("mcp-memory.exe" if sys.platform == "win32" else "mcp-memory")
    return (str(script), "serve") if script.exists() else (sys.executable, "-m", "mcp_memory", "serve")


async def _play(settings: Settings, data: Path, log: IO[bytes], show: Callable[[Step], None]) -> list[Step]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mcp_memory", "--data-dir", str(data), "--embedder", settings.embedder, "serve"],
        env={
            "MCP_MEMORY_OPENAI_BASE_URL": settings.openai_base_url,
            "MCP_MEMORY_OPENAI_API_KEY": settings.openai_api_key,
        },
    )
    steps: list[Step] = []
    try:
        transport = stdio_client(server, errlog=log)  # type: ignore[arg-type]  # whatever has a descriptor will do
        async with Client(transport, read_timeout_seconds=ANSWER_SECONDS) as client:
            stage = _Stage(client, data)
            for act in stage.acts():
                steps.append(await stage.played(act))
                show(steps[-1])
                if not steps[-1].holds:
                    break
    except* (MCPError, OSError) as errors:  # the client's task groups wrap what they let through
        log.seek(0)
        said = [*_reasons(errors), *log.read().decode(errors="replace").splitlines()[-5:]]
        steps.append(Step("Start the server", " ".join(connection()), tuple(said), "it answers", False))
        show(steps[-1])
    return steps


def _reasons(errors: BaseExceptionGroup[Any]) -> Iterator[str]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _reasons(error)
        else:
            yield str(error)


class _Stage:
    """The acts, one after another; each calls what it shows and says what that has to be."""

    def __init__(self, client: Client, data: Path) -> None:
        self._client = client
        self._data = data
        self._ids: dict[str, str] = {}
        self.said = ""

    def acts(self) -> Iterator[Coroutine[Any, Any, Step]]:
        yield self.remember("english", ENGLISH)
        yield self.remember("chinese", CHINESE)
        yield self.read_back()
        for title, question, wanted in QUESTIONS:
            yield self.find(title, question, wanted)
        yield self.profile()
        yield self.context()
        yield self.change_of_mind()
        yield self.forget()

    async def played(self, act: Coroutine[Any, Any, Step]) -> Step:
        try:
            return await act
        except (Refused, MCPError) as error:
            return Step("The server does not do it", self.said, (str(error),), "an answer", False)

    async def _call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        written = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
        self.said = f"{tool}({written})"
        answer = await self._client.call_tool(tool, arguments)
        if answer.is_error:
            raise Refused(" ".join(getattr(part, "text", "") for part in answer.content))
        return answer.structured_content or {}

    async def remember(self, session: str, said: tuple[tuple[str, str], ...]) -> Step:
        messages = [{"role": role, "content": content} for role, content in said]
        answer = await self._call("add_memory", messages=messages, session_id=session)
        stored = [memory["id"] for memory in answer["memories"]]
        self._ids |= dict(zip(stored, (content for _, content in said), strict=True))
        learned = [f"learned: {fact['content']}" for fact in answer["learned"]]
        shown = (*(f"{role}: {content}" for role, content in said), *learned)
        call = f'add_memory(messages=[{len(said)} messages], session_id="{session}")'
        return Step(
            f"Remember a conversation ({session})",
            call,
            shown,
            f"{len(said)} memories, stored",
            len(stored) == len(said),
        )

    async def read_back(self) -> Step:
        same = 0
        for id, content in self._ids.items():
            read = (await self._client.read_resource(f"memory://episode/{id}")).contents[0]
            same += isinstance(read, TextResourceContents) and read.text == content
        shown = (f"{same} of {len(self._ids)} are the same, character for character",)
        return Step(
            "Read each back", "read memory://episode/{id}", shown, "every word as it was said", same == len(self._ids)
        )

    async def find(self, title: str, question: str, wanted: str) -> Step:
        answer = await self._call("search_memory", query=question, limit=2, expand=0)
        hits = [f"{hit['score']:.2f}  {hit['content']}" for hit in answer["memories"]]
        holds = bool(hits) and wanted in hits[0]
        return Step(f"Find: {title}", self.said, tuple(hits), f"the first says “{wanted}”", holds)

    async def profile(self) -> Step:
        facts = (await self._call("read_profile"))["facts"]
        missing = [
            what
            for what, value in LEARNED.items()
            if not any(fact["tag"] == what.partition(",")[0] and value in fact["value"] for fact in facts)
        ]
        shown = tuple(f"{fact['tag']}: {fact['value']}" for fact in facts)
        expected = f"{', '.join(LEARNED)}" + (f" (missing: {', '.join(missing)})" if missing else "")
        return Step("What is known of the user now, without any model", self.said, shown, expected, not missing)

    async def context(self) -> Step:
        answer = await self._call("read_context", query="What can I cook tonight?", session_id="today")
        slots = {line["slot"] for line in answer["memories"]}
        shown = tuple(f"{line['slot']}: {line['content']}" for line in answer["memories"])[:9]
        said = " ".join(line["content"] for line in answer["memories"])
        holds = {"constraints", "profile"} <= slots and "metric" in said and "花生" in said
        return Step("What an agent is given before it answers", self.said, shown, "instructions and the allergy", holds)

    async def change_of_mind(self) -> Step:
        await self._call("add_memory", content="I moved from Lisbon to Porto.", session_id="today")
        said = self.said
        facts = (await self._call("read_profile", tag="home", history=True))["facts"]
        shown = tuple(f"{fact['value']}{' (ended)' if 'valid_to' in fact else ''}" for fact in facts)
        now = [fact["value"] for fact in facts if "valid_to" not in fact]
        ended = [fact["value"] for fact in facts if "valid_to" in fact]
        holds = len(now) == 1 and "Porto" in now[0] and any("Lisbon" in value for value in ended)
        return Step("Change one's mind", f"{said}; {self.said}", shown, "Porto now, Lisbon as history", holds)

    async def forget(self) -> Step:
        id = next(id for id, content in self._ids.items() if SECRET in content)
        answer = await self._call("forget", memory_id=id)
        said = self.said
        found = await self._call("search_memory", query="rent of the flat", limit=100, expand=0)
        left = [hit["content"] for hit in found["memories"] if SECRET in hit["content"]]
        traces = _holding(self._data, SECRET)
        shown = (
            f"forgotten: {answer['count']}, erasure {answer['erasure']}",
            f"found again: {len(left)}; files that hold its text: {', '.join(traces) or 'none'}",
        )
        holds = answer["count"] == 1 and not left and not traces
        return Step("Forget", f"{said}; {self.said}", shown, "gone from every answer and from the disk", holds)


def _holding(folder: Path, text: str) -> list[str]:
    return [file.name for file in folder.iterdir() if text.encode() in file.read_bytes()]
