"""Whatever a model answers: nothing of it breaks a memory, and nothing becomes a fact that the user did not say."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from conftest import Opening
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mcp_memory import commands
from mcp_memory.commands import MOST, Evidence
from mcp_memory.testing import ScriptedModel
from mcp_memory.types import AddFeature, Command, DeleteFeature, Feature, Message, Scope

pytestmark = pytest.mark.anyio

EVIDENCE = Evidence({"1": (7,), "e1": (7,), "3": (9,), "e3": (9,)}, frozenset({"2", "e2"}))
KNOWN = (
    Feature("f1", "profile", "home", "home", "lives in Ghent", 0.5, 0.8, (), (), datetime(2026, 1, 1, tzinfo=UTC)),
)

SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=30)
JSON = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
NUMBER = st.sampled_from([1, 2, 3, 4, "1", "[3]", "#1", "e1", "e2", "e4", 1.0, True])
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "command": st.sampled_from(["add", "delete", "classify", "ADD", "update"]),
    "category": st.sampled_from(["profile", "coding", "episodic", "policy", ""]),
    "tag": st.sampled_from(["home", "Likes", " ", "<tag>"]),
    "feature": st.sampled_from(["home", "tea", "{feature}"]),
    "value": st.sampled_from(["lives in Ghent", "likes tea", "喜欢喝茶", "n/a", "x" * 501, 42]),
    "citations": st.lists(NUMBER, max_size=3) | NUMBER,
    "line": NUMBER,
    "importance": st.floats() | st.integers(-1, 2),
    "id": st.sampled_from(["f1", "f2", ""]),
}
COMMAND = st.fixed_dictionaries({}, optional={name: likely | JSON for name, likely in LIKELY.items()})
ANSWER = st.lists(COMMAND | JSON, max_size=6)


def check(answer: list[Any]) -> commands.Checked:
    return commands.check(answer, EVIDENCE, KNOWN, "profile", lambda tag: tag == "home")


@given(ANSWER)
@example(["\ud83d", {"command": "add", "tag": "a", "feature": "b", "value": "c", "citations": ["\ud83d"]}])
def test_whatever_is_answered_what_passes_cites_only_evidence_and_names_what_is_known(answer: list[Any]) -> None:
    checked = check(answer)
    passed: list[Command] = list(checked.commands)
    for command in passed:
        assert command.citations
        assert set(command.citations) <= {7, 9}
        assert command.category == "profile"
        if isinstance(command, DeleteFeature):
            assert (command.tag, command.feature, command.value or "lives in Ghent") == (
                "home", "home", "lives in Ghent",
            )  # fmt: skip
        else:
            assert command.tag.strip()
            assert command.feature.strip()
            assert 0 < len(command.value) <= commands.VALUE_LIMIT
            assert "\n" not in command.value
    assert all(found.seq in (7, 9) and 0 <= found.importance <= 1 for found in checked.classified)
    assert len(passed) + len(checked.classified) + len(checked.refused) <= len(answer)
    for refusal in checked.refused:
        f"{refusal.command} {refusal.reason}".encode()  # it reaches a client


def test_deletions_come_first_and_the_same_is_said_once() -> None:
    add = {"command": "add", "tag": "home", "feature": "home", "value": "lives in Turku", "citations": [1]}
    delete = {"command": "delete", "tag": "Home", "feature": "home", "citations": [3]}
    checked = check([add, delete, add, delete])
    assert checked.commands == (
        DeleteFeature("profile", "home", "home", "", (9,)),
        AddFeature("profile", "home", "home", "lives in Turku", (7,), single=True, importance=0.8),
    )


def test_an_endless_answer_is_read_to_a_bound_and_says_so() -> None:
    add = {"command": "add", "tag": "likes", "value": "likes tea"}
    checked = check([add | {"feature": f"tea {n}"} for n in range(MOST + 3)])
    assert len(checked.commands) == MOST
    assert [(refusal.command, str(MOST) in refusal.reason) for refusal in checked.refused] == [("3 more", True)]


@given(answer=ANSWER)
@example(
    answer=[{"command": "add", "tag": "likes", "feature": "\ud83d", "value": "likes \ud83d\x00", "citations": [1]}]
)
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_is_answered_every_fact_cites_what_the_user_said(
    opening: Opening, scope: Scope, answer: list[Any]
) -> None:
    model = ScriptedModel(json.dumps({"commands": answer}))
    async with opening(model=model) as memory:
        said = [Message("first"), Message("second", role="assistant"), Message("third")]
        own = {stored.episode.id for stored in (await memory.add(scope, said)).stored if stored.episode.role == "user"}
        await memory.consolidate(scope)
        facts, lags = await memory.profile(scope, history=True)
        assert lags == []
        assert all(fact.citations and set(fact.citations) <= own for fact in facts)
        await memory.forget_everything(scope)
        assert (await memory.profile(scope, history=True))[0] == []
