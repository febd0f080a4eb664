"""Corrections by hand: what they change, what undoes them, and how they outlast every rebuild and move."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import Opening
from test_cli import at_a_terminal
from test_language_models import Endpoint, completion

from mcp_memory.cli import main
from mcp_memory.errors import InvalidInput, NotFound
from mcp_memory.memory import Memory
from mcp_memory.settings import Settings
from mcp_memory.testing import Clock, ScriptedModel
from mcp_memory.types import HAND, Decision, Feature, Message, Scope, Undo

asynchronous = pytest.mark.anyio


async def facts(memory: Memory, scope: Scope, **question: Any) -> list[Feature]:
    return (await memory.profile(scope, **question))[0]


async def values(memory: Memory, scope: Scope, **question: Any) -> list[str]:
    return sorted(fact.value for fact in await facts(memory, scope, **question))


async def say(memory: Memory, scope: Scope, *contents: str, **more: Any) -> None:
    for content in contents:
        await memory.add(scope, [Message(content, **more)])


async def last(memory: Memory, scope: Scope, source: str = "rules") -> Decision:
    """The last decision of a source."""
    return [made for made, _ in await memory.decisions(scope) if made.source == source][-1]


def ignore(left: int) -> None:
    pass


# ---- as a library


@asynchronous
async def test_a_correction_holds_from_now_on_and_history_shows_what_it_did(
    memory: Memory, scope: Scope, clock: Clock
) -> None:
    await say(memory, scope, "I live in Ghent")
    said = clock()
    corrected = clock.move(days=1)
    fact = await memory.correct(scope, "profile", "home", "home", "lives in Turku")
    assert (fact.value, fact.source, fact.confidence, fact.citations) == ("lives in Turku", HAND, 1.0, ())
    ended_at = clock.move(days=1)
    await memory.end(scope, fact.id)
    assert await values(memory, scope) == []
    spans = {fact.value: (fact.valid_from, fact.valid_to) for fact in await facts(memory, scope, history=True)}
    assert spans == {"lives in Ghent": (said, corrected), "lives in Turku": (corrected, ended_at)}
    assert await values(memory, scope, as_of=corrected - timedelta(hours=1)) == ["lives in Ghent"]
    assert await values(memory, scope, as_of=corrected + timedelta(hours=1)) == ["lives in Turku"]
    [ghent] = [fact for fact in await facts(memory, scope, history=True) if fact.citations]
    assert ghent.superseded_by == fact.id


@asynchronous
async def test_a_slot_that_rules_and_a_model_fill_holds_what_was_set_alone(
    opening: Opening, scope: Scope, clock: Clock
) -> None:
    add = {"command": "add", "tag": "likes", "feature": "hiking", "value": "goes out at dawn", "citations": [1]}
    async with opening(model=ScriptedModel([add])) as memory:
        await say(memory, scope, "I love hiking")
        await memory.consolidate(scope)
        assert await values(memory, scope, tag="likes") == ["goes out at dawn", "likes hiking"]
        clock.move(minutes=1)
        await memory.correct(scope, "profile", "likes", "hiking", "hikes only downhill")
        assert await values(memory, scope, tag="likes") == ["hikes only downhill"]
        await memory.rebuild(scope, "rules", ignore)
        await memory.rebuild(scope, "extract/profile", ignore)
        assert await values(memory, scope, tag="likes") == ["hikes only downhill"]
        clock.move(hours=1)
        await say(memory, scope, "I love hiking")
        assert "likes hiking" in await values(memory, scope, tag="likes")


@asynchronous
async def test_a_correction_wins_over_what_is_dated_in_the_future(memory: Memory, scope: Scope, clock: Clock) -> None:
    await say(memory, scope, "I live in Ghent", "I love hiking", occurred_at=clock() + timedelta(days=400))
    await memory.correct(scope, "profile", "home", "home", "lives in Turku")
    [liked] = await facts(memory, scope, tag="likes")
    await memory.end(scope, liked.id)
    assert await values(memory, scope) == ["lives in Turku"]


@asynchronous
async def test_what_is_set_as_it_stands_is_only_confirmed(memory: Memory, scope: Scope, clock: Clock) -> None:
    await say(memory, scope, "I live in Ghent")
    [before] = await facts(memory, scope)
    clock.move(days=1)
    assert (await memory.correct(scope, "profile", "home", "home", "Lives in Ghent")).id == before.id
    [after] = await facts(memory, scope, history=True)
    assert (after.verified_at, after.confidence, after.citations) == (clock(), 1.0, before.citations)


@asynchronous
async def test_an_undone_decision_stays_undone_and_can_be_taken_up_again(
    memory: Memory, scope: Scope, clock: Clock
) -> None:
    await say(memory, scope, "I live in Ghent")
    await say(memory, scope, "I moved to Turku", occurred_at=clock.move(days=1))
    moved = await last(memory, scope)
    clock.move(days=1)
    assert (await memory.undo(scope, moved.seq)).seq == moved.seq
    assert await values(memory, scope) == ["lives in Ghent"]
    for _ in range(2):
        await memory.rebuild(scope, "rules", ignore)
        assert await values(memory, scope, history=True) == ["lives in Ghent"]
    clock.move(days=1)
    await memory.undo(scope, (await last(memory, scope, HAND)).seq)
    assert await values(memory, scope) == ["lives in Turku"]
    clock.move(days=1)
    await memory.undo(scope, (await last(memory, scope, HAND)).seq)
    assert await values(memory, scope) == ["lives in Ghent"]
    undone = [stands for made, stands in await memory.decisions(scope) if isinstance(made.command, Undo)]
    assert undone == [True, False, True]


@asynchronous
async def test_a_correction_is_taken_back_whole(memory: Memory, scope: Scope, clock: Clock) -> None:
    await say(memory, scope, "I live in Ghent")
    before = await facts(memory, scope, history=True)
    clock.move(minutes=1)
    await memory.correct(scope, "profile", "home", "home", "lives in Turku")
    after = await facts(memory, scope, history=True)
    for _ in range(2):
        clock.move(minutes=1)
        await memory.undo(scope, (await last(memory, scope, HAND)).seq)
        assert await facts(memory, scope, history=True) == before
        clock.move(minutes=1)
        await memory.undo(scope, (await last(memory, scope, HAND)).seq)
        assert await facts(memory, scope, history=True) == after


@asynchronous
async def test_a_replay_gives_the_same_facts(memory: Memory, scope: Scope, clock: Clock) -> None:
    for content in ("I live in Ghent", "I love tea", "I gave up tea", "I moved to Turku", "I love tea", "我叫张三"):
        clock.move(hours=1)
        await say(memory, scope, content)
    clock.move(hours=1)
    await memory.correct(scope, "profile", "likes", "tea", "likes green tea")
    clock.move(hours=1)
    await memory.undo(scope, next(made.seq for made, _ in await memory.decisions(scope)))
    before = await facts(memory, scope, history=True)
    assert await memory.replay(scope) == len([fact for fact in before if fact.valid_to is None]) == 3
    assert await facts(memory, scope, history=True) == before


@asynchronous
@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda memory, scope: memory.correct(scope, "profile", "home", "home", " "), InvalidInput, "value is empty"),
        (lambda memory, scope: memory.correct(scope, "", "home", "home", "x y"), InvalidInput, "category is empty"),
        (lambda memory, scope: memory.correct(scope, "profile", "", "home", "x y"), InvalidInput, "tag is empty"),
        (lambda memory, scope: memory.correct(scope, "profile", "home", "h", "x" * 501), InvalidInput, "500"),
        (lambda memory, scope: memory.correct(scope, "profile", "home", "h", "<value>"), InvalidInput, "placeholder"),
        (lambda memory, scope: memory.end(scope, "f0000000000"), NotFound, "f0000000000"),
        (lambda memory, scope: memory.undo(scope, 99), NotFound, "99"),
        (lambda memory, scope: memory.undo(scope, 1), NotFound, "no decision 1"),  # an episode stands there
    ],
)
async def test_what_cannot_be_corrected_changes_nothing(
    memory: Memory, scope: Scope, change: Callable[..., Any], error: type[Exception], said: str
) -> None:
    await say(memory, scope, "I live in Ghent")
    before = await memory.decisions(scope)
    with pytest.raises(error, match=said):
        await change(memory, scope)
    assert await memory.decisions(scope) == before


@asynchronous
async def test_nobody_corrects_another_users_profile(memory: Memory, scope: Scope) -> None:
    await say(memory, scope, "I live in Ghent")
    [fact] = await facts(memory, scope)
    other = Scope(scope.org, scope.project, "bo")
    for change in (memory.end(other, fact.id), memory.undo(other, (await last(memory, scope)).seq)):
        with pytest.raises(NotFound):
            await change
    await memory.correct(other, "profile", "home", "home", "lives in Turku")
    assert await facts(memory, scope) == [fact]


@asynchronous
async def test_corrections_and_their_times_move_with_the_memory(
    opening: Opening, settings: Settings, scope: Scope, clock: Clock, tmp_path: Path
) -> None:
    async with opening() as memory:
        await say(memory, scope, "I live in Ghent", "I love hiking", "I'm allergic to peanuts")
        clock.move(days=1)
        await memory.correct(scope, "profile", "home", "home", "lives in Turku")
        clock.move(days=1)
        [hiking] = await facts(memory, scope, tag="likes")
        await memory.end(scope, hiking.id)
        clock.move(days=1)
        [allergy] = [made for made, _ in await memory.decisions(scope) if "peanuts" in str(made.command)]
        await memory.undo(scope, allergy.seq)
        clock.move(days=1)
        await memory.correct(scope, "profile", "home", "home", "lives in Oulu")
        await memory.undo(scope, (await last(memory, scope, HAND)).seq)
        exported = [record async for record in memory.export(scope)]
        before = [_plain(fact) for fact in await facts(memory, scope, history=True)]
        assert [value for value, *_ in before] == ["lives in Turku", "lives in Ghent", "likes hiking"]
    clock.move(days=30)
    async with opening(settings=settings.model_copy(update={"data_dir": tmp_path / "other"})) as memory:
        for _ in range(2):
            await memory.import_(scope, exported)
            assert [_plain(fact) for fact in await facts(memory, scope, history=True)] == before
            await memory.rebuild(scope, "rules", ignore)
            assert [_plain(fact) for fact in await facts(memory, scope, history=True)] == before
        assert (await memory.import_(scope, exported)).decisions == 0


def _plain(fact: Feature) -> tuple[Any, ...]:
    return fact.value, fact.valid_from, fact.valid_to, fact.source, fact.confidence, fact.citations


@asynchronous
async def test_facts_drawn_afresh_leave_nothing_of_what_was_merged_of_the_old(opening: Opening, scope: Scope) -> None:
    def add(value: str, line: int) -> dict[str, Any]:
        return {"command": "add", "tag": "likes", "feature": "boats", "value": value, "citations": [line]}

    first = [add("likes boats", 1), add("likes boats of wood", 2)]
    async with opening(model=ScriptedModel(first, [add("builds boats", 1)])) as memory:
        await say(memory, scope, "Boats, you know", "Of wood!")
        await memory.consolidate(scope)
        assert await values(memory, scope) == ["likes boats of wood"]
        await memory.rebuild(scope, "extract/profile", ignore)
        assert await values(memory, scope, history=True) == ["builds boats"]


# ---- at the command line


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


Run = Callable[..., Result]


@pytest.fixture
def run(data: Path) -> Run:
    def run(*words: str, code: int = 0, **more: Any) -> Result:
        result = CliRunner().invoke(main, ["--data-dir", str(data), "--embedder", "hashing:256", *words], **more)
        assert result.exit_code == code, result.output
        return result

    return run


Read = Callable[..., dict[str, Any]]


@pytest.fixture
def read(run: Run) -> Read:
    def read(*words: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(run(*words, "--json", **more).stdout)
        return answer

    return read


def contents(answer: dict[str, Any], name: str = "facts") -> list[str]:
    return [item["content"] for item in answer[name]]


def test_a_profile_is_corrected_step_by_step(run: Run, read: Read) -> None:
    run("add", "I live in Ghent. I love hiking.")
    (fact,) = read("profile", "set", "home", "home", "lives in Turku")["facts"]
    assert fact["content"] == "lives in Turku"
    assert contents(read("profile", "--tag", "home")) == ["lives in Turku"]
    assert contents(read("profile", "--tag", "home", "--history")) == ["lives in Turku", "lives in Ghent"]
    log = read("profile", "log")["decisions"]
    assert log[-1]["content"] == "add profile/home home: lives in Turku"
    assert {(one["source"], one["stands"]) for one in log} == {("rules", True), (HAND, True)}
    assert contents(read("profile", "undo", str(log[-1]["id"])), "decisions") == [log[-1]["content"]]
    assert contents(read("profile", "--tag", "home")) == ["lives in Ghent"]
    assert [one["stands"] for one in read("profile", "log", "--last", "4")["decisions"]] == [False, False, True, True]
    (hiking,) = read("profile", "--tag", "likes")["facts"]
    assert contents(read("profile", "end", hiking["id"])) == ["likes hiking"]
    assert contents(read("profile")) == ["lives in Ghent"]
    assert read("profile", "rebuild") == read("profile", "rebuild", "--fresh") == {"facts": 1}
    assert contents(read("profile")) == ["lives in Ghent"]
    assert read("--user", "bo", "profile", "log") == {"decisions": []}


def test_people_read_lines(run: Run) -> None:
    assert run("profile", "log").stdout == "Nothing was decided yet.\n"
    run("add", "I live in Ghent")
    number, moment, source, *rest = run("profile", "log").stdout.split()
    assert (source, " ".join(rest)) == ("rules", "add profile/home home: lives in Ghent")
    assert moment.endswith("Z")
    assert run("profile", "undo", number).stdout == "Undone: add profile/home home: lives in Ghent\n"
    assert run("profile", "log").stdout.splitlines()[0].endswith("lives in Ghent  (undone)")
    assert "profile/home: lives in Turku" in run("profile", "set", "home", "home", "lives in Turku").stdout
    assert run("profile", "rebuild").stdout == "1 facts are known.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["end", "f0000000000"], "no current fact f0000000000"),
        (["undo", "99"], "no decision 99"),
        (["undo", "0"], "0 is not in the range"),
        (["set", "home", "home", " "], "value is empty"),
        (["set", "home", "", "lives in Turku"], "feature is empty"),
        (["set", "home", "home"], "Missing argument 'VALUE'"),
        (["--json", "log"], "options of `log` stand behind it"),
        (["log", "--last", "0"], "--last"),
    ],
)
def test_a_failure_is_a_line_on_stderr_and_exit_code_2(run: Run, words: list[str], said: str) -> None:
    run("add", "I live in Ghent")
    result = run("profile", *words, code=2)
    assert said in result.stderr.splitlines()[-1]
    assert (result.stdout, "Traceback" in result.output) == ("", False)


# ---- drawing facts afresh


def test_without_a_model_facts_cannot_be_drawn_afresh_and_nothing_is_lost(run: Run, read: Read, tmp_path: Path) -> None:
    run("add", "The tide is out.")
    batch = read("consolidate")
    answer = tmp_path / "answer.json"
    add = {"command": "add", "tag": "life", "feature": "boat", "value": "owns a boat", "citations": [1]}
    answer.write_text(json.dumps([add]), encoding="utf-8")
    run("consolidate", "--batch", batch["batch"], "--commands", str(answer))
    result = run("rebuild", "extract", code=2)
    assert "MCP_MEMORY_LANGUAGE_MODEL" in result.stderr
    assert "mcp-memory profile rebuild" in result.stderr
    assert contents(read("profile")) == ["owns a boat"]


@pytest.fixture
def modelled() -> Iterator[tuple[Endpoint, dict[str, str]]]:
    """An endpoint, and the environment in which it is the language model."""
    endpoint = Endpoint()
    yield endpoint, {"MCP_MEMORY_LANGUAGE_MODEL": "openai:any", "MCP_MEMORY_OPENAI_BASE_URL": endpoint.url}
    endpoint.close()


def notes(value: str) -> dict[str, Any]:
    add = {"command": "add", "tag": "life", "feature": "boat", "value": value, "citations": [1]}
    return completion(json.dumps({"commands": [add]}))


def test_after_a_change_facts_are_drawn_afresh_for_everybody_with_progress(
    run: Run, read: Read, data: Path, modelled: tuple[Endpoint, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, environment = modelled
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    endpoint.answer.body = notes("owns a boat")
    for user in ("ann", "bo"):
        run("--user", user, "add", "The boat is mine.")
        run("--user", user, "consolidate")
    endpoint.answer.body = notes("owns a red boat")
    done = read("rebuild", "extract")["rebuilt"]
    assert [(one["user"], one["view"], one["episodes"]) for one in done] == [
        ("ann", "extract/profile", 1),
        ("bo", "extract/profile", 1),
    ]
    for user in ("ann", "bo"):
        assert contents(read("--user", user, "profile", "--history")) == ["owns a red boat"]
    endpoint.answer.body = notes("owns a blue boat")
    shown = at_a_terminal(
        "", "--data-dir", str(data), "--embedder", "hashing:256", "--user", "bo", "rebuild", "extract"
    )
    assert "extract/profile of bo" in shown
    assert "1/1" in shown
    assert contents(read("--user", "bo", "profile")) == ["owns a blue boat"]
    endpoint.answer.body = notes("owns a green boat")
    assert read("--user", "ann", "profile", "rebuild", "--fresh") == {"facts": 1}
    assert contents(read("--user", "ann", "profile")) == ["owns a green boat"]
