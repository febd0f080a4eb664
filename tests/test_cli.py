"""The command line as people and programs use it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mcp_memory.cli import main
from mcp_memory.store import quantizer, vectors

Run = Callable[..., Result]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(data: Path) -> Run:
    """Runs a command on one memory; `code` is the exit code that is expected."""

    def run(*words: str, code: int = 0, **more: Any) -> Result:
        result = CliRunner().invoke(main, ["--data-dir", str(data), "--embedder", "hashing:256", *words], **more)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def read(run: Run) -> Callable[..., dict[str, Any]]:
    """Runs a command with `--json`; what it answers."""

    def read(*words: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(run(*words, "--json", **more).stdout)
        return answer

    return read


Read = Callable[..., dict[str, Any]]


def contents(answer: dict[str, Any], name: str = "memories") -> list[str]:
    return [item["content"] for item in answer[name]]


def test_what_was_added_is_found_by_another_run(run: Run, read: Read) -> None:
    run("add", "The key is under the blue pot.", "--session", "home")
    run("add", "钥匙在蓝色花盆下面。")

    assert contents(read("search", "key blue pot"))[0] == "The key is under the blue pot."
    assert contents(read("search", "花盆"))[0] == "钥匙在蓝色花盆下面。"
    assert "under the blue pot" in run("search", "key").stdout


def test_a_text_from_stdin_is_kept_word_for_word(run: Run, read: Read) -> None:
    run("add", "-", input="  first line\n第二行\n\nlast line\n")

    assert contents(read("search", "第二行")) == ["  first line\n第二行\n\nlast line"]


def test_everything_that_can_be_told_of_a_memory_is_kept(run: Run, read: Read) -> None:
    run(
        *("add", "Ship on Friday.", "--role", "assistant", "--speaker", "Kim", "--session", "plan"),
        *("--timestamp", "2026-03-04T05:06:07+01:00", "--tags", "work, ship", "--metadata", '{"topic": "release"}'),
    )

    (found,) = read("search", "--filter", "topic = 'release' AND tags = 'ship'")["memories"]
    assert found["speaker"] == "Kim"
    assert found["role"] == "assistant"
    assert found["session_id"] == "plan"
    assert found["occurred_at"] == "2026-03-04T04:06:07Z"


def test_a_search_can_be_narrowed_ordered_and_continued(run: Run, read: Read) -> None:
    for day in range(1, 6):
        run("add", f"Tea number {day}", "--timestamp", f"2026-05-0{day}", "--session", "odd" if day % 2 else "even")

    assert contents(read("search", "tea", "--since", "2026-05-02", "--until", "2026-05-03", "--order", "time")) == [
        "Tea number 2",
        "Tea number 3",
    ]
    assert len(contents(read("search", "tea", "--session", "even"))) == 2
    first = read("search", "tea", "--limit", "3")
    second = read("search", "tea", "--limit", "3", "--cursor", first["next"])
    assert sorted(contents(first) + contents(second)) == [f"Tea number {day}" for day in range(1, 6)]


def test_facts_are_found_by_search_where_they_are_wanted(run: Run, read: Read) -> None:
    run("add", "I'm allergic to peanuts.")

    (fact,) = read("search", "peanuts", "--kinds", "fact")["memories"]
    assert fact["tag"] == "allergies"


def test_the_profile_shows_now_then_and_why(run: Run, read: Read) -> None:
    run("add", "I live in Ghent.", "--timestamp", "2026-01-01")
    run("add", "I moved to Turku.", "--timestamp", "2026-02-01")

    assert contents(read("profile", "--tag", "home"), "facts") == ["lives in Turku"]
    assert contents(read("profile", "--as-of", "2026-01-15"), "facts") == ["lives in Ghent"]
    assert len(contents(read("profile", "--history"), "facts")) == 2
    assert contents(read("profile", "--category", "nothing"), "facts") == []
    assert "I moved to Turku." in run("profile", "--sources").stdout


def test_the_context_is_what_an_agent_would_get(run: Run) -> None:
    run("add", "From now on, please use metric units.")
    run("add", "Let us plan the garden.", "--session", "garden")

    shown = run("context", "What next?", "--session", "garden").stdout
    assert "always use metric units" in shown
    assert "Let us plan the garden." in shown


def test_ids_are_forgotten_at_once(run: Run, read: Read) -> None:
    id = read("add", "The code is swordfish.")["memories"][0]["id"]

    run("forget", id)
    assert contents(read("search", "swordfish")) == []


def test_a_broad_forgetting_shows_first_and_forgets_only_on_a_yes(run: Run, read: Read) -> None:
    run("add", "One for the fire.", "--session", "old")
    run("add", "One to keep.")

    shown = run("forget", "--session", "old", code=1)
    assert "One for the fire." in shown.stdout
    assert "--yes" in shown.stderr
    preview = json.loads(run("forget", "--everything", "--json", code=1).stdout)
    assert preview["count"] == 2
    assert len(contents(read("search", "one"))) == 2

    assert read("forget", "--session", "old", "--yes")["count"] == 1
    assert contents(read("search", "one")) == ["One to keep."]
    assert read("forget", "--everything", "--yes")["count"] == 1
    assert read("stats")["episodes"] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")
def test_at_a_terminal_a_broad_forgetting_asks(run: Run, read: Read, data: Path) -> None:
    run("add", "One for the fire.", "--session", "old")

    shown = at_a_terminal("y\n", "--data-dir", str(data), "--embedder", "hashing:256", "forget", "--session", "old")
    assert "One for the fire." in shown
    assert "for good?" in shown
    assert contents(read("search", "fire")) == []


def at_a_terminal(typed: str, *words: str) -> str:
    """What a person sees who runs a command and types this."""
    import pty

    here, there = pty.openpty()
    os.write(here, typed.encode())
    command = [sys.executable, "-m", "mcp_memory", *words]
    subprocess.run(command, stdin=there, stdout=there, stderr=there, timeout=60, check=False)
    os.close(there)
    shown = b""
    with contextlib.suppress(OSError):  # Linux says EIO where others say that it ended
        while read := os.read(here, 65_536):
            shown += read
    os.close(here)
    return shown.decode()


def test_forgetting_what_is_not_there_needs_no_yes(read: Read) -> None:
    assert read("forget", "--everything")["count"] == 0


def test_users_are_kept_apart(run: Run, read: Read) -> None:
    run("--user", "ann", "add", "Ann's secret garden.")

    assert contents(read("--user", "bo", "search", "garden")) == []
    assert contents(read("--user", "ann", "search", "garden")) == ["Ann's secret garden."]


@pytest.mark.parametrize(
    "command",
    [
        ["add", "a text"],
        ["search", "a text"],
        ["profile"],
        ["context", "a text"],
        ["forget", "--query", "a text", "--yes"],
        ["consolidate", "--dry-run"],
        ["consolidate"],
        ["rebuild", "words"],
        ["stats"],
        ["doctor"],
    ],
)
def test_json_is_one_object_on_stdout_and_nothing_else(run: Run, command: list[str]) -> None:
    run("add", "I like a text with \n two lines")

    result = run(*command, "--json")
    assert len(result.stdout.splitlines()) == 1
    assert isinstance(json.loads(result.stdout), dict)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["search"], 2, "query"),
        (["search", "--filter", "topic ="], 2, "filter"),
        (["search", "x", "--cursor", "nonsense"], 2, "cursor"),
        (["search", "x", "--limit", "0"], 2, "--limit"),
        (["add", " "], 2, "content is empty"),
        (["add", "x", "--timestamp", "yesterday-ish"], 2, "timestamp"),
        (["add", "x", "--metadata", "[1]"], 2, "metadata"),
        (["add", "x", "--role", "king"], 2, "role"),
        (["forget"], 2, "forget what?"),
        (["forget", "e0000000000"], 2, "not found"),
        (["forget", "e0000000000", "--everything"], 2, "ids stand alone"),
        (["rebuild", "everything"], 2, "everything"),
        (["--embedder", "nobody:x", "stats"], 2, "nobody:x"),
        (["--embedder", "openai:", "stats"], 2, "openai"),
        (["import", "no-such-file"], 2, "no-such-file"),
        (["export", "no/such/folder/file"], 1, "No such file"),
        (["export", "--json"], 2, "FILE"),
    ],
)
def test_a_failure_is_a_line_on_stderr_and_an_exit_code(run: Run, words: list[str], code: int, said: str) -> None:
    result = run(*words, code=code)
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_place_that_cannot_hold_a_memory_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")

    result = CliRunner().invoke(main, ["--data-dir", str(tmp_path / "file" / "below"), "stats"])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


def test_what_was_stored_cannot_drive_the_terminal(run: Run) -> None:
    run("add", "red \x1b[31mtext\r\nand more")

    assert "\x1b" not in run("search", "red").stdout


def test_rebuilding_is_for_all_users_unless_one_is_named(run: Run, read: Read) -> None:
    for user in ("ann", "bo"):
        run("--user", user, "add", "I like old maps.")

    done = read("rebuild")["rebuilt"]
    assert {one["user"] for one in done} == {"ann", "bo"}
    assert {one["view"] for one in done} == {"words", "rules", "summary", "vectors/hashing:256"}
    assert all(one["episodes"] == 1 for one in done)
    assert [one["user"] for one in read("--user", "bo", "rebuild", "rules")["rebuilt"]] == ["bo"]
    assert contents(read("--user", "bo", "search", "maps")) == ["I like old maps."]
    assert contents(read("--user", "bo", "profile"), "facts") == ["likes old maps"]


# ---- doctor


def verdicts(answer: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["verdict"] for check in answer["checks"]}


def test_the_doctor_looks_at_an_installation_without_making_a_memory(read: Read, data: Path) -> None:
    assert read("doctor")["verdict"] == "ok"
    assert not data.exists()


def test_the_doctor_finds_a_used_memory_sound(run: Run, read: Read) -> None:
    run("add", "I like old maps.")

    found = verdicts(read("doctor", "--vacuum"))
    assert set(found.values()) == {"ok"}
    assert {"integrity", "embedder", "view words", "view vectors/hashing:256", "erasure", "vacuum"} <= found.keys()


@pytest.mark.parametrize("installed", [True, False])
def test_the_doctor_names_the_extra_where_a_memory_is_large_and_has_no_index(
    run: Run, read: Read, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(quantizer, "available", lambda: installed)
    run("add", "I like old maps.")
    assert verdicts(read("doctor"))["index"] == "ok"
    monkeypatch.setattr(vectors, "IN_MEMORY", 1)
    [check] = [check for check in read("doctor")["checks"] if check["id"] == "index"]
    assert check["verdict"] == ("ok" if installed else "warn")
    assert ("mcp-memory[scale]" in check.get("advice", "")) != installed


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_the_doctor_warns_of_what_others_may_read(run: Run, read: Read, data: Path) -> None:
    run("add", "I like old maps.")
    data.chmod(0o755)
    (data / "memory.db").chmod(0o644)

    found = verdicts(read("doctor"))
    assert found["data directory"] == "warn"
    assert found["file modes"] == "warn"


def test_the_doctor_fails_where_the_embedder_cannot_be_used(run: Run, read: Read) -> None:
    run("add", "I like old maps.")

    answer = read("--embedder", "nobody:x", "doctor", code=1)
    assert answer["verdict"] == "fail"
    assert verdicts(answer)["embedder"] == "fail"
    assert verdicts(answer)["integrity"] == "ok"


def test_the_doctor_fails_on_a_damaged_file_and_names_where_it_is_kept(run: Run, read: Read, data: Path) -> None:
    data.mkdir()
    (data / "memory.db").write_bytes(b"this is no database at all")

    answer = read("doctor", code=1)
    (aside,) = data.glob("memory.db.damaged-*")
    assert aside.read_bytes() == b"this is no database at all"
    assert any(aside.name in check["advice"] for check in answer["checks"])
    run("add", "A new beginning.")
    assert verdicts(read("doctor"))["copies"] == "warn"


def test_the_doctor_names_a_setting_that_does_not_exist(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "config" / "mcp-memory"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('embeder = "use:multilingual-v3"\n', encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    (check,) = [check for check in read("doctor")["checks"] if check["id"] == "settings file"]
    assert check["verdict"] == "warn"
    assert "embeder" in check["content"]


# ---- the server, and the demonstration


def child(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mcp_memory", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment or None,
        check=False,
    )


def test_serving_tells_where_the_memory_is_and_keeps_stdout_for_the_client(data: Path) -> None:
    done = child("--data-dir", str(data), "serve")

    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr.splitlines() == [f"mcp-memory: the memory is {data / 'memory.db'}"]


def test_serving_with_a_setting_that_cannot_be_used_ends_with_2_and_one_line(run: Run) -> None:
    result = run("serve", code=2, env={"MCP_MEMORY_TIMEZONE": "Mars/Base"})

    assert len(result.stderr.splitlines()) == 1
    assert "timezone" in result.stderr
    assert "Mars/Base" in result.stderr


def test_settings_that_are_no_toml_end_with_2_and_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mcp-memory").mkdir()
    (tmp_path / "mcp-memory" / "config.toml").write_text("embedder =", encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    assert "config.toml" in run("serve", code=2).stderr


def test_the_demonstration_proves_everything_it_shows() -> None:
    result = CliRunner().invoke(main, ["demo"])

    assert result.exit_code == 0, result.output
    assert result.stdout.count("✓") == 11
    assert "✗" not in result.stdout
    assert result.stdout.splitlines()[-1].startswith("To connect a client")


def test_the_demonstration_says_why_a_server_does_not_do_its_work() -> None:
    result = CliRunner().invoke(main, ["--embedder", "nobody:x", "demo"])

    assert result.exit_code == 1
    assert "nobody:x" in result.stdout
    assert "Traceback" not in result.output


def test_the_demonstration_says_so_where_it_does_not_hold() -> None:
    """An embedder of spelling finds nothing across languages."""
    result = CliRunner().invoke(main, ["--embedder", "hashing:256", "demo", "--json"])

    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert not answer["proven"]
    assert [step["holds"] for step in answer["steps"]].count(False) == 1
