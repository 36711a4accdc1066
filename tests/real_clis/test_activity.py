"""Activity of the real programs: what they did, what they were denied and what they reported."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.model.record import JsonValue
from loopwright.ports import ActivityEntry, EffectFailure, EffectSuccess
from loopwright.testing.wires import (
    ScriptedCall,
    ScriptedFault,
    ScriptedTurn,
    WireRequest,
    WireScript,
)
from tests.agents.calls import RecordedActivity
from tests.real_clis.conftest import Lab, Labs, needs

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(600)]

PATCH = "*** Begin Patch\n*** Add File: a.txt\n+hi\n*** End Patch\n"

EDITS: dict[str, Callable[[Path], ScriptedCall]] = {
    "claude": lambda work: ScriptedCall(
        name="Write", args={"file_path": str(work / "a.txt"), "content": "hi\n"}
    ),
    "codex": lambda work: ScriptedCall(name="apply_patch", text=PATCH),
    "opencode": lambda work: ScriptedCall(
        name="write", args={"filePath": str(work / "a.txt"), "content": "hi\n"}
    ),
    "gemini": lambda work: ScriptedCall(
        name="write_file", args={"file_path": str(work / "a.txt"), "content": "hi\n"}
    ),
}
SHELLS = {
    "claude": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "opencode": ("bash", "command"),
    "gemini": ("run_shell_command", "command"),
}
every_cli = pytest.mark.parametrize("cli", sorted(EDITS))


def runs(cli: str, command: str) -> ScriptedCall:
    name, field = SHELLS[cli]
    more: dict[str, JsonValue] = {"description": "x"} if cli in ("claude", "opencode") else {}
    return ScriptedCall(name=name, args={field: command, **more})


def in_turns(*calls: ScriptedCall) -> Callable[[WireRequest], ScriptedTurn]:
    """A model that makes these calls one after the other; titles and summaries get a word."""
    left = list(calls)

    def choose(request: WireRequest) -> ScriptedTurn:
        asks_for_a_title = not request.tools and request.wire != "responses"
        if asks_for_a_title or not left:
            return ScriptedTurn(text="That was all.")
        return ScriptedTurn(calls=(left.pop(0),))

    return choose


def recorded(lab: Lab, cli: str, **more: object) -> tuple[list[ActivityEntry], RecordedActivity]:
    kept = RecordedActivity()
    answer, _ = lab.ask(cli, activity=kept, **more)
    assert isinstance(answer, EffectSuccess), answer
    return [one for one in kept.entries if one.kind not in ("status", "stderr")], kept


@pytest.mark.item("rec-6")
@every_cli
def test_an_edit_and_a_command_are_recorded(labs: Labs, cli: str) -> None:
    """Tool, target, result and duration of what the program really did."""
    needs(cli)
    lab = labs()
    lab.wires.choose_by(in_turns(EDITS[cli](lab.work), runs(cli, "cat a.txt")))
    entries, kept = recorded(lab, cli, permission="all")
    assert [(one.kind, one.ok) for one in entries] == [("edit", True), ("command", True)]
    edit, command = entries
    assert edit.target.endswith("a.txt")
    assert (command.target, command.code in (None, 0)) == ("cat a.txt", True)
    assert "hi" in command.result
    assert all(one.ms is not None for one in entries)
    assert kept.stream
    assert (lab.work / "a.txt").read_text() == "hi\n"


CHECK = ("./check.sh", "-q")


def script(lab: Lab, name: str, text: str) -> None:
    """A program of the workspace."""
    file = lab.work / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.mark.item("rec-31")
@pytest.mark.parametrize("cli", ["claude", "opencode", "gemini"])
def test_the_check_is_allowed_and_nothing_that_begins_like_it(labs: Labs, cli: str) -> None:
    """Without any flag the agent can run the check of its loop, and no other command."""
    needs(cli)
    lab = labs()
    script(lab, "check.sh", "echo ran >> ran.txt")
    script(lab, "evil.sh", "echo evil > evil.txt")
    others = [runs(cli, "./check.sh -q; ./evil.sh"), runs(cli, "./check.sh -q --more")]
    lab.wires.choose_by(in_turns(runs(cli, "./check.sh -q"), *others))
    if cli == "opencode":
        lab.opencode_settings(permission={"bash": "deny", "edit": "allow"})
    entries, _ = recorded(lab, cli, checks=(CHECK,))
    assert (lab.work / "ran.txt").read_text() == "ran\n"
    assert not (lab.work / "evil.txt").exists()
    assert [one.kind for one in entries] == ["command", "denied", "denied"]
    assert (entries[0].target, entries[0].ok) == ("./check.sh -q", True)
    assert "--permission all" in entries[1].text


@pytest.mark.item("rec-31")
def test_claude_is_denied_and_the_flag_allows_it(labs: Labs) -> None:
    """The sentence of a denial names a flag; with that flag the command runs."""
    needs("claude")
    for tools, kind in ((None, "denied"), (("+Bash(./b.sh)",), "command")):
        lab = labs()
        script(lab, "b.sh", "echo hi > b.txt")
        lab.wires.choose_by(in_turns(runs("claude", "./b.sh")))
        (entry,), _ = recorded(lab, "claude", tools=tools)
        assert entry.kind == kind
        assert (lab.work / "b.txt").exists() is (kind == "command")


@pytest.mark.item("rec-31")
@every_cli
def test_permission_ask_changes_nothing(labs: Labs, cli: str) -> None:
    """Without a person an agent that has to ask neither edits nor runs anything."""
    needs(cli)
    lab = labs()
    lab.wires.choose_by(in_turns(EDITS[cli](lab.work), runs(cli, "touch b.txt")))
    kept = RecordedActivity()
    lab.ask(cli, activity=kept, permission="ask", checks=(("touch", "b.txt"),))
    assert [one.name for one in lab.work.iterdir()] == []


@pytest.mark.item("rec-32")
@pytest.mark.parametrize("cli", ["claude", "codex"])
def test_retries_are_statuses(labs: Labs, cli: str) -> None:
    """What the program says about its retries is recorded and shown as its status."""
    needs(cli)
    kept = RecordedActivity()
    lab = labs(WireScript(otherwise=ScriptedTurn(fault=ScriptedFault(status=500))))
    answer, here = lab.ask(cli, activity=kept)
    assert isinstance(answer, EffectFailure)
    words = [one.text.lower() for one in kept.entries if one.kind == "status"]
    assert any("retrying" in text or "reconnecting" in text for text in words), words
    assert here.said("note")


@pytest.mark.item("rec-6")
@pytest.mark.parametrize("name", ["claude-agent-acp", "opencode", "gemini"])
def test_activity_of_real_acp_agents(labs: Labs, name: str) -> None:
    """An edit that is allowed is recorded with its path."""
    needs(name)
    cli = {"claude-agent-acp": "claude"}.get(name, name)
    lab = labs()
    lab.wires.choose_by(in_turns(EDITS[cli](lab.work)))
    specs = {"claude": "acp:claude-agent-acp", "opencode": "acp:opencode acp"}
    spec = specs.get(cli, "acp:gemini --acp")
    kept = RecordedActivity()
    answer, _ = lab.ask(spec, activity=kept, permission="all", pass_env=tuple(lab.credentials))
    assert isinstance(answer, EffectSuccess), answer
    (entry,) = [one for one in kept.entries if one.kind == "edit"]
    assert (entry.ok, entry.target.endswith("a.txt")) == (True, True)
    assert (lab.work / "a.txt").read_text() == "hi\n"
