"""Programs that are not here are told before a run starts, and nothing is created."""

from __future__ import annotations

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
def test_what_is_not_here_is_told_at_once(
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
    assert "warning: check `./nope`" in told.err
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
    assert "warning: step use" in told.err


def test_a_dry_run_needs_no_programs(lw: Place) -> None:
    """Nothing is called there, so nothing has to be here."""
    assert lw("run", definition(lw, agent="command:./nope"), "--dry-run").code == 0


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
