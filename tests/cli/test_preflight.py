"""Programs that are not here are told before a run starts, and nothing is created."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import pytest

from tests.cli.conftest import Place

ECHO = "command:echo ok"


def definition(lw: Place, **more: Any) -> str:
    return lw.loop(more.pop("agent", ECHO), top=more.pop("top", None), **more)


REFUSED: list[Any] = [
    pytest.param({"agent": "command:./nope"}, "agent", "nope does not exist", id="agent"),
    pytest.param({"agent": "jsonl:nope-nope"}, "agent", "not on PATH", id="agent on PATH"),
    pytest.param({"agent": "acp:/nope/agent --x"}, "agent", "/nope/agent does not", id="acp"),
    pytest.param({"agent": "codex"}, "npm install -g @openai/codex", "not on PATH", id="cli"),
    pytest.param({"until": {"command": "nope-nope"}}, "check", "not on PATH", id="check"),
    pytest.param({"until": {"command": "/nope/x"}}, "check", "/nope/x does not", id="check path"),
    pytest.param({"until": {"command": "../nope"}}, "check", "does not exist", id="check outside"),
    pytest.param(
        {"until": {"command": "./nope"}, "check_first": True}, "check", "nope", id="check first"
    ),
    pytest.param({"agent": "command:./plain"}, "agent", "chmod +x", id="not executable"),
    pytest.param({"until": {"command": "./folder"}}, "check", "is a directory", id="a directory"),
]


@pytest.mark.parametrize(("wanted", "what", "why"), REFUSED)
def test_what_is_not_here_is_reported_at_once(
    lw: Place, wanted: dict[str, Any], what: str, why: str
) -> None:
    """Exit 2 with what is missing and the fix; no run is there afterwards."""
    lw.write("plain", "#!/bin/sh\n")
    (lw.folder / "folder").mkdir()
    told = lw("run", definition(lw, **wanted))
    assert told.code == 2
    assert what in told.err
    assert why in told.err
    assert lw("ls", "--json").json["runs"] == []


@pytest.mark.item("B9")
def test_a_check_that_the_loop_may_bring(lw: Place) -> None:
    """A program of the workspace may be what the agent is to write: that is a warning."""
    told = lw("run", definition(lw, until={"command": "./nope"}))
    assert told.code == 3
    assert "warning: loop.yaml: step main: check `./nope`" in told.err
    assert "nope does not exist (so far)" in told.err
    assert lw("ls", "--json").json["runs"][0]["reason"] == "check_broken"


def test_a_step_after_others(lw: Place) -> None:
    """What stands behind another step may be brought by it; what is first may not."""
    lw.write("made.sh", "#!/bin/sh\nprintf '#!/bin/sh\\necho used' > new; chmod +x new\n")
    (lw.folder / "made.sh").chmod(0o755)
    file = lw.write(
        "steps.yaml",
        "name: two\nsteps:\n  - {id: make, run: ./made.sh}\n"
        "  - {id: use, needs: [make], run: ./new}\n",
    )
    told = lw("run", str(file))
    assert (told.code, told.out) == (0, "used\n")
    assert f"warning: {file}: step use" in told.err


def test_a_dry_run_needs_no_programs(lw: Place) -> None:
    """Nothing is called there, so nothing has to be here; what would be refused is a warning."""
    told = lw("run", definition(lw, agent="command:./nope"), "--dry-run")
    assert told.code == 0
    assert "nope does not exist; the run would not start" in told.err


@pytest.mark.parametrize("verb", ["resume", "fork"])
def test_another_agent_that_is_not_here(lw: Place, verb: str) -> None:
    """Whoever takes the place of an agent is looked for first; the run is left as it was."""
    file = lw.loop(lw.script("a", "b"), max=1, until={"contains": "DONE"})
    run = lw("run", file, "--json").json["run"]
    before = lw.kinds(run)
    told = lw(
        verb,
        run,
        "--max",
        "3",
        "--agent",
        "command:./nope",
        *(("--at", "1") if verb == "fork" else ()),
    )
    assert (told.code, "nope" in told.err) == (2, True), told
    assert lw.kinds(run) == before
    assert len(lw("ls", "--json").json["runs"]) == 1


@pytest.mark.item("rec-39")
def test_a_missing_check_is_refused_with_file_and_step(lw: Place) -> None:
    """The definition, the step and the command are named; a program of a step likewise."""
    repeat = {"max": 2, "until": {"command": ["nope-nope", "-q"]}}
    plain = {"name": "w", "agent": ECHO, "goal": "Do it.", "repeat": repeat}
    lw.write("plain.yaml", json.dumps(plain))
    inner = {"id": "fix", "agent": ECHO, "prompt": "Do it.", "repeat": repeat}
    lw.write("steps.yaml", json.dumps({"name": "w", "steps": [inner]}))
    lw.write("run.yaml", json.dumps({"name": "w", "steps": [{"id": "go", "run": ["nope-nope"]}]}))
    check = "check `nope-nope -q`: nope-nope is not on PATH"
    for file, words in (
        ("plain.yaml", f"error: plain.yaml: step main: {check}"),
        ("steps.yaml", f"error: steps.yaml: step fix: {check}"),
        ("run.yaml", "error: run.yaml: step go: nope-nope is not on PATH"),
    ):
        told = lw("run", file)
        assert (told.code, words in told.err) == (2, True), told.err
        dry = lw("run", file, "--dry-run")
        assert f"{words.removeprefix('error: ')}; install it" in dry.err
    assert lw("ls", "--json").json["runs"] == []


@pytest.mark.item("rec-39")
def test_the_option_of_a_check_is_named(lw: Place) -> None:
    """`loop` says which option names the program that is not there."""
    words = ["--agent", ECHO, "--until-command", "true && nope-nope --all"]
    told = lw("loop", "Go", *words)
    assert told.code == 2
    assert "--until-command `nope-nope --all`: nope-nope is not on PATH" in told.err
    assert lw("ls", "--json").json["runs"] == []


@pytest.mark.item("rec-39")
def test_a_check_that_is_removed_during_the_run(lw: Place) -> None:
    """A check whose program is gone is broken; it is never counted as "not yet"."""
    check = lw.write("check.sh", "#!/bin/sh\nexit 1\n")
    check.chmod(0o755)
    remover = lw.write("agent.sh", "#!/bin/sh\nrm -f check.sh\necho ok\n")
    remover.chmod(0o755)
    words = ["--agent", "command:./agent.sh", "--until-command", "./check.sh", "--json"]
    told = lw("loop", "Go", *words)
    assert (told.code, told.json["reason"], told.json["iterations"]) == (3, "check_broken", 3)
    verdicts = [
        one["verdict"] for one in lw.events(told.json["run"]) if one["kind"] == "check.verdict"
    ]
    assert verdicts == ["error"] * 3


@pytest.mark.item("rec-38")
@pytest.mark.parametrize(
    ("words", "ran"),
    [
        pytest.param(["./first && ./second"], "12", id="in-order"),
        pytest.param(["./fail && ./second"], "", id="stops-at-a-failure"),
        pytest.param(["./first", "./second"], "12", id="given-twice"),
        pytest.param(["./fail", "./second"], "2", id="all-are-run"),
    ],
)
def test_several_check_commands(lw: Place, words: list[str], ran: str) -> None:
    """`a && b` runs in order until one fails; of several options all are run, and all must pass."""
    for name, code in (("first", "printf 1"), ("second", "printf 2"), ("fail", "exit 1")):
        lw.write(name, f"#!/bin/sh\n{code} >> ran\n" if "printf" in code else "#!/bin/sh\nexit 1\n")
        (lw.folder / name).chmod(0o755)
    given = [word for command in words for word in ("--until-command", command)]
    told = lw("loop", "Go", "--agent", ECHO, *given, "--max", "1")
    assert told.code == (4 if "fail" in " ".join(words) else 0), told
    file = lw.folder / "ran"
    assert (file.read_text() if file.exists() else "") == ran


@pytest.mark.item("rec-38")
@pytest.mark.parametrize("line", ["a | b", "a ; b", "a > b", "a || b", "a &", "a && ", "&& b"])
def test_other_shell_syntax_is_refused(lw: Place, line: str) -> None:
    """No shell is used, and the message says what to do instead."""
    told = lw("loop", "Go", "--agent", ECHO, "--until-command", line)
    assert told.code == 2
    assert "--until-command: " in told.err
    assert "script" in told.err or "&& needs a command" in told.err


@pytest.mark.parametrize("dry", [False, True], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("command", "first", "warned"),
    [
        ("true -q", ".venv/bin", True),
        ("true -q", ".", True),
        (".venv/bin/true -q", ".venv/bin", False),
        ("true -q", "", False),
    ],
    ids=["virtual environment", "the workspace itself", "by its path", "not on PATH"],
)
def test_a_program_of_the_workspace_that_is_first_on_path_is_reported(
    lw: Place,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    first: str,
    warned: bool,
    dry: bool,
) -> None:
    """One warning names the file that a shell would run, the one that is run, and what to write."""
    (lw.folder / ".venv/bin").mkdir(parents=True)
    for name in (".venv/bin/true", "true"):
        lw.write(name, "#!/bin/sh\n").chmod(0o755)
    theirs = shutil.which("true")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{lw.folder / first}:{path}" if first else path)
    flags = ("--agent", ECHO, "--max", "1", *(["--dry-run"] if dry else []))
    told = lw("loop", "Do it", "--until-command", command, *flags)
    assert told.code == 0, told
    mine = lw.folder / first / "true"
    written = "./true" if first == "." else f"{first}/true"
    said = (
        f"warning: --until-command `true -q` runs {theirs}, and not {mine}, which is first on "
        f"PATH: bare names are not looked up in the workspace; write {written} to run that one\n"
    )
    assert told.err.count("looked up in the workspace") == warned
    assert (said in told.err) is warned
