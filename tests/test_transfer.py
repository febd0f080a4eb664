"""Moving a memory: out as JSON Lines and in again, the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mcp_memory import profile
from mcp_memory.cli import main
from mcp_memory.errors import InvalidInput
from mcp_memory.memory import Memory
from mcp_memory.types import AddFeature, Message, Scope

ELSEWHERE = Scope("org", "project", "elsewhere")
HEADER = {"format": "mcp-memory", "version": 1}


async def exported(memory: Memory, scope: Scope) -> list[dict[str, Any]]:
    return [record async for record in memory.export(scope)]


def placeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seq"} for record in records]


def rich_messages() -> list[Message]:
    then = datetime(2025, 12, 24, 18, 30, 0, 123456, tzinfo=UTC)
    return [
        Message("I live in Ghent.", occurred_at=then, session_id="s", tags=("home", "家")),
        Message(
            "Schau: 你好 👋🏽 \u200d\r\n\ttabbed",
            role="assistant",
            speaker="Kim",
            agent_id="helper",
            session_id="s",
            produced_for="Ann",
            kind="text",
            importance=0.25,
            category="episodic",
            entities=("Ghent",),
            blocks=({"type": "image", "caption": "a canal", "uri": "file:///a.png"},),
            metadata={"topic": "travel", "nested": {"a": [1, 2.5, None, True]}, "空": "格"},
            expires_at=then + timedelta(days=9_000),
            learn=False,
        ),
        Message("Unstamped, in no session."),
    ]


@pytest.mark.anyio
async def test_what_comes_in_elsewhere_is_what_went_out(opening: Any, settings: Any, tmp_path: Path) -> None:
    scope = Scope("org", "project", "ines")
    async with opening() as memory:
        await memory.add(scope, rich_messages())
        out = await exported(memory, scope)
    other = settings.model_copy(update={"data_dir": tmp_path / "other"})
    async with opening(settings=other) as memory:
        lines = [json.loads(json.dumps(record)) for record in out]
        done = await memory.import_(scope, lines)

        assert (done.stored, done.known, done.forgotten) == (3, 0, 0)
        assert placeless(await exported(memory, scope)) == placeless(lines)
        facts, _ = await memory.profile(scope)
        assert [(fact.value, fact.citations) for fact in facts] == [("lives in Ghent", (out[0]["id"],))]


@pytest.mark.anyio
async def test_the_same_records_taken_in_twice_change_nothing(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, rich_messages())
    out = await exported(memory, scope)

    for _ in range(2):
        done = await memory.import_(scope, out)
        assert (done.stored, done.known) == (0, 3)
    assert await exported(memory, scope) == out


@pytest.mark.anyio
async def test_a_copy_for_another_user_of_the_same_file_is_made_once(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, rich_messages())
    out = await exported(memory, scope)

    assert (await memory.import_(ELSEWHERE, out)).stored == 3
    assert (await memory.import_(ELSEWHERE, out)).known == 3
    copies = await exported(memory, ELSEWHERE)
    assert [copy["content"] for copy in copies] == [record["content"] for record in out]
    assert not {copy["id"] for copy in copies} & {record["id"] for record in out}

    await memory.forget(ELSEWHERE, [copies[0]["id"]])
    again = await memory.import_(ELSEWHERE, out)
    assert (again.stored, again.known, again.forgotten) == (0, 2, 1)


@pytest.mark.anyio
async def test_what_was_forgotten_here_stays_forgotten(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, rich_messages())
    out = await exported(memory, scope)
    await memory.forget(scope, [out[0]["id"]])

    done = await memory.import_(scope, out)
    assert (done.stored, done.known, done.forgotten) == (0, 2, 1)
    assert out[0]["content"] not in [record["content"] for record in await exported(memory, scope)]
    assert (await memory.profile(scope))[0] == []


@pytest.mark.anyio
async def test_decisions_by_hand_come_along_once_with_what_they_cite(
    memory: Memory, scope: Scope, opening: Any, settings: Any, tmp_path: Path
) -> None:
    (stored,) = (await memory.add(scope, [Message("The usual, please.")])).stored
    said = stored.episode
    command = AddFeature("profile", "drinks", "usual order", "usually orders a cortado", (said.seq,))
    await memory.store.write(scope, lambda tx: profile.decide(tx, "hand", command, said.occurred_at))
    (before,), _ = await memory.profile(scope)
    out = await exported(memory, scope)
    assert [record["type"] for record in out] == ["episode", "decision"]

    async with opening(settings=settings.model_copy(update={"data_dir": tmp_path / "other"})) as other:
        assert (await other.import_(scope, out)).decisions == 1
        assert (await other.import_(scope, out)).decisions == 0
        (after,), _ = await other.profile(scope)
    assert (after.value, after.citations, after.valid_from, after.confidence, after.source) == (
        before.value,
        before.citations,
        before.valid_from,
        before.confidence,
        "hand",
    )


@pytest.mark.anyio
async def test_more_than_a_batch_goes_and_comes_in_order(memory: Memory, scope: Scope) -> None:
    for start in (0, 600):
        await memory.add(scope, [Message(f"note {number}") for number in range(start, start + 600)])

    done = await memory.import_(ELSEWHERE, await exported(memory, scope))
    assert done.stored == 1_200
    assert [record["content"] for record in await exported(memory, ELSEWHERE)] == [f"note {n}" for n in range(1_200)]


@pytest.mark.anyio
async def test_a_record_that_cannot_be_read_lets_none_in(memory: Memory, scope: Scope) -> None:
    await memory.add(scope, rich_messages())
    out = await exported(memory, scope)

    with pytest.raises(InvalidInput, match=r"record 3: importance"):
        await memory.import_(ELSEWHERE, [*out[:2], out[2] | {"importance": 7}])
    assert await exported(memory, ELSEWHERE) == []


# ---- files


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    def run(*words: str, code: int = 0, data: str = "data", **more: Any) -> Result:
        flags = ["--data-dir", str(tmp_path / data), "--embedder", "hashing:256"]
        result = CliRunner().invoke(main, [*flags, *words], **more)
        assert result.exit_code == code, result.output
        return result

    return run


Run = Callable[..., Result]


def line(**changed: Any) -> dict[str, Any]:
    told = {"type": "episode", "id": "e0123456789", "content": "Fine.", "occurred_at": "2026-01-01T00:00:00Z"}
    return told | {"created_at": "2026-01-01T00:00:00Z"} | changed


def file_of(*lines: object) -> str:
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)


def test_a_file_goes_from_one_memory_to_another(run: Run, tmp_path: Path) -> None:
    run("add", "I like old maps.", "--timestamp", "2026-01-02")
    file = tmp_path / "out.jsonl"

    assert json.loads(run("export", str(file), "--json").stdout)["exported"] == 1
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0]) == HEADER
    assert json.loads(run("import", str(file), "--json", data="other").stdout)["stored"] == 1
    assert "2026-01-02" in run("search", "maps", data="other").stdout
    assert "likes old maps" in run("profile", data="other").stdout
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_an_export_is_for_its_owner_alone(run: Run, tmp_path: Path) -> None:
    run("export", str(tmp_path / "out.jsonl"))

    assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o600


def test_an_export_goes_through_a_pipe(run: Run) -> None:
    run("add", "逐字保存。")

    out = run("export").stdout
    assert "逐字保存。" in out
    assert "Imported: 1." in run("import", "-", data="other", input=out).stdout


def test_all_users_go_and_come_each_into_their_own_memory(run: Run) -> None:
    for user in ("ann", "bo"):
        run("--user", user, "add", f"{user} was here.")
    out = run("export", "--all").stdout

    run("import", "-", data="other", input=out)
    for user, other in (("ann", "bo"), ("bo", "ann")):
        found = run("--user", user, "search", "here", data="other").stdout
        assert f"{user} was here." in found
        assert f"{other} was here." not in found


def test_with_a_user_named_only_that_users_lines_are_taken(run: Run) -> None:
    for user in ("ann", "bo"):
        run("--user", user, "add", f"{user} was here.")
    out = run("export", "--all").stdout

    done = json.loads(run("--user", "bo", "import", "-", "--json", data="other", input=out).stdout)
    assert (done["stored"], done["left_out"]) == (1, 1)
    assert "bo was here." in run("--user", "bo", "search", "here", data="other").stdout


def test_only_what_an_episode_needs_has_to_be_given(run: Run) -> None:
    run("import", "-", input="\ufeff" + file_of(HEADER, "", line()))

    assert "Fine." in run("search", "fine").stdout


def test_secrets_that_a_file_brings_are_not_stored(run: Run) -> None:
    run("import", "-", input=file_of(HEADER, line(content="Fine. <private>the code is swordfish</private>")))

    assert "swordfish" not in run("search", "fine").stdout


@pytest.mark.parametrize(
    ("lines", "number", "said"),
    [
        ([], 1, "empty"),
        (["not json"], 1, "JSON"),
        ([line()], 1, "not an export"),
        ([{"format": "something-else", "version": 1}], 1, "not an export"),
        ([{"format": "mcp-memory", "version": "1"}], 1, "not an export"),
        ([{"format": "mcp-memory", "version": 2}], 1, "newer release"),
        ([HEADER, line(), "{broken"], 3, "JSON"),
        ([HEADER, line(), "[" * 100_000], 3, "JSON"),
        ([HEADER, line(), "[1, 2]"], 3, "object"),
        ([HEADER, line(), '{"type": "episode", "importance": NaN}'], 3, "JSON"),
        ([HEADER, line(), line(speaker="\ud800")], 3, "JSON"),
        ([HEADER, line(), line(type="dream")], 3, "type"),
        ([HEADER, line(), line(id="f0123456789")], 3, "id"),
        ([HEADER, line(), line(id=None)], 3, "id is missing"),
        ([HEADER, line(), line(content=" ")], 3, "content is empty"),
        ([HEADER, line(), line(content=5)], 3, "content"),
        ([HEADER, line(), line(mood="good")], 3, "unknown field 'mood'"),
        ([HEADER, line(), line(role="king")], 3, "role"),
        ([HEADER, line(), line(kind="fact")], 3, "kind"),
        ([HEADER, line(), line(occurred_at="2026-01-01T00:00:00")], 3, "occurred_at"),
        ([HEADER, line(), line(created_at="soon")], 3, "created_at"),
        ([HEADER, line(), line(expires_at=0)], 3, "expires_at"),
        ([HEADER, line(), line(importance=True)], 3, "importance"),
        ([HEADER, line(), line(learn="yes")], 3, "learn"),
        ([HEADER, line(), line(tags="a,b")], 3, "tags"),
        ([HEADER, line(), line(metadata={"_own": 1})], 3, "metadata"),
        ([HEADER, line(), line(session_id="a\nb")], 3, "session_id"),
        ([HEADER, line(), line(user=["ann"])], 3, "user"),
        ([HEADER, line(), {"type": "decision", "source": "hand"}], 3, "missing"),
        (
            [HEADER, line(), {"type": "decision", "source": "hand", "created_at": line()["created_at"], "command": {}}],
            3,
            "command",
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_is_taken_in(
    run: Run, tmp_path: Path, lines: list[object], number: int, said: str
) -> None:
    result = run("import", "-", code=2, input=file_of(*lines))
    assert f"line {number}: " in result.stderr
    assert said in result.stderr
    assert json.loads(run("stats", "--json").stdout)["episodes"] == 0
