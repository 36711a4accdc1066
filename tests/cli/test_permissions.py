"""`--permission`, `--tools`, denied permissions and sign-in, from the command line."""

import json
import os
import sys
from pathlib import Path

import pytest

from loopwright.agents.clis.catalogue import CLIS
from loopwright.errors import LoopwrightError
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import literal
from loopwright.operations.agents.programs import is_signed_out
from loopwright.operations.preflight import preflight
from loopwright.operations.run_request import RunStart
from tests.agents.clis import events as e
from tests.agents.fake_cli import FakeCli
from tests.cli.conftest import Place, until


@pytest.fixture
def fake(lw: Place) -> FakeCli:
    cli = FakeCli(lw.folder.parent / "fake").install(*CLIS)
    lw.env["PATH"] = f"{cli.folder / 'bin'}:{os.environ['PATH']}"
    return cli


def given(fake: FakeCli, flag: str) -> str:
    """What the fake program was given for a flag in its only call."""
    (call,) = fake.calls
    argv = call["argv"]
    assert isinstance(argv, list)
    return str(argv[argv.index(flag) + 1]) if flag in argv else ""


@pytest.mark.item("rec-31")
@pytest.mark.parametrize(
    ("flags", "mode", "allowed"),
    [
        ((), "acceptEdits", "Bash(true -q)"),
        (("--permission", "edit"), "acceptEdits", "Bash(true -q)"),
        (("--permission", "ask"), "default", ""),
        (
            ("--tools", "+Bash(npm test -- a,b),+WebFetch"),
            "acceptEdits",
            "Bash(true -q),Bash(npm test -- a,b),WebFetch",
        ),
        (("--tools", "Read,Edit"), "acceptEdits", "Read,Edit"),
    ],
    ids=["default", "edit", "ask", "added", "only"],
)
def test_permission_and_tools_reach_the_agent(
    lw: Place, fake: FakeCli, flags: tuple[str, ...], mode: str, allowed: str
) -> None:
    """The check of the loop is allowed by default; flags say the rest in the agent's own words."""
    fake.says(e.CLAUDE_WRITES)
    loop = ("loop", "go", "--agent", "claude", "--until-command", "true -q", "--max", "1")
    told = lw.real(*loop, *flags)
    assert told.code == 0, told.err
    assert given(fake, "--permission-mode") == mode
    assert given(fake, "--allowedTools") == allowed


@pytest.mark.item("rec-31")
def test_flags_that_an_agent_cannot_be_held_to(lw: Place, fake: FakeCli) -> None:
    """One that knows no tools by name is refused; one that can only be told is warned about."""
    refused = lw.real("loop", "go", "--agent", "codex", "--tools", "Read", "--max", "1")
    assert refused.code == 2
    assert "agent worker: codex works on files by running commands" in refused.err
    probe = lw.probe({"text": "ok"})
    loop = ("loop", "go", "--agent", probe, "--max", "1")
    told = lw.real(*loop, "--permission", "edit", "--tools", "a,b")
    assert "nothing enforces it" in told.err
    (call,) = lw.calls()
    assert call["env"]["LOOPWRIGHT_PERMISSION"] == "edit"
    assert call["env"]["LOOPWRIGHT_TOOLS"] == "a,b"
    assert lw.real(*loop, "--permission", "yes").code == 2


DENIED = "Bash(npm test) was denied; allow it with --permission all or --tools +Bash"


@pytest.mark.item("rec-31")
def test_a_denied_permission_is_on_the_screen_in_logs_and_in_show(lw: Place, fake: FakeCli) -> None:
    """Everywhere with the flag that allows it."""
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "npm test"}}
    denial = e.claude("system", subtype="permission_denied", tool_use_id="t1", tool_name="Bash")
    fake.says([e.CLAUDE_INIT, e.claude_says(use), denial, e.claude_result()])
    told = lw.real("loop", "go", "--agent", "claude", "--max", "1")
    assert f"agent worker: {DENIED}" in told.err
    run = json.loads(lw.real("ls", "--json").out)["runs"][0]["run"]
    assert DENIED in lw.real("logs", run).out
    assert DENIED in lw.real("show", run).out


@pytest.mark.item("rec-32")
def test_a_status_of_the_agent_is_on_the_screen(lw: Place, fake: FakeCli) -> None:
    """Away from a terminal it is a line, on a terminal the status line of the agent."""
    retry = e.claude("system", subtype="api_retry", attempt=1, error="overloaded", error_status=529)
    fake.says([e.CLAUDE_INIT, retry, *e.CLAUDE_WRITES[1:]])
    told = lw.real("loop", "go", "--agent", "claude", "--max", "1")
    assert "agent worker: overloaded (529): retrying (attempt 1)" in told.err


def test_a_call_stopped_by_the_time_limit_is_shown_with_the_last_status(
    lw: Place, fake: FakeCli
) -> None:
    """It names what the agent was waiting for."""
    retry = e.claude("system", subtype="api_retry", attempt=1, error="unknown", retry_delay_ms=599)
    fake.says([e.CLAUDE_INIT, retry], linger=30)
    told = lw.real("loop", "go", "--agent", "claude", "--max", "1", "--budget", "time=3s")
    assert told.code == 4, told.err
    words = "the agent's last status: cannot reach the model service: retrying in 1 s (attempt 1)"
    assert f"(the call was stopped; {words})" in lw.real("show", "last").out


@pytest.mark.item("rec-32")
def test_show_has_the_status_of_an_agent_that_does_nothing_else(lw: Place, fake: FakeCli) -> None:
    """The next morning it says what the run waits for, and for how long."""
    retry = e.claude("system", subtype="api_retry", attempt=1, error="unknown", retry_delay_ms=599)
    fake.says([e.CLAUDE_INIT, retry], linger=60)
    with lw.start("loop", "go", "--agent", "claude", "--max", "1"):
        status = "(the agent's status: cannot reach the model service: retrying in 1 s (attempt 1))"
        until(lambda: status in lw.real("show", "last").out)
        lw.real("stop", "last")


# -- sign-in ---------------------------------------------------------------------------------------

STATUS = """\
#!/usr/bin/env node
import json, sys
if sys.argv[1:] == {words!r}:
    print({said!r})
    sys.exit({code})
open({called!r}, "a").close()
print(json.dumps({{"type": "result", "subtype": "success", "result": "ok"}}))
"""


def real_looking(folder: Path, name: str, words: list[str], said: str, code: int) -> Path:
    """A program that looks like one of Node, and a `node` that runs it."""
    programs = folder / "node-bin"
    programs.mkdir()
    node = programs / "node"
    node.write_text(f'#!/bin/sh\nexec {sys.executable} -IS "$@"\n')
    file = programs / name
    called = str(folder / "work" / "called")  # as root, codex writes to its workspace alone
    file.write_text(STATUS.format(words=words, said=said, code=code, called=called))
    for one in (node, file):
        one.chmod(0o755)
    return programs


@pytest.mark.item("rec-33")
@pytest.mark.parametrize(
    ("name", "words", "said", "code", "fix"),
    [
        ("claude", ["auth", "status"], '{"loggedIn": false}', 1, "claude auth login"),
        ("codex", ["login", "status"], "Not logged in", 1, "codex login"),
    ],
)
def test_an_agent_that_is_not_signed_in_is_refused(
    lw: Place, name: str, words: list[str], said: str, code: int, fix: str
) -> None:
    """Exit 2 with the command to sign in; nothing was started and no run is there."""
    programs = real_looking(lw.folder.parent, name, words, said, code)
    home = lw.folder.parent / "empty"
    home.mkdir()
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home)}
    hidden = dict.fromkeys(CLIS[name].credentials, "")
    told = lw.real("loop", "go", "--agent", name, "--max", "1", env={**env, **hidden})
    assert told.code == 2
    assert "is not signed in" in told.err
    assert fix in told.err
    assert not (lw.folder / "called").exists()
    assert lw("ls", "--json").json["runs"] == []
    key = CLIS[name].credentials[-1]
    lw.real("loop", "go", "--agent", name, "--max", "1", env={**env, **hidden, key: "k"})
    assert (lw.folder / "called").exists()


@pytest.mark.item("rec-33")
@pytest.mark.parametrize(
    ("name", "said", "files", "env", "out"),
    [
        ("claude", '{"loggedIn": true}', {}, {}, False),
        ("claude", "no json", {}, {}, False),
        ("codex", "Not logged in", {".codex/config.toml": 'model_provider = "x"'}, {}, False),
        ("codex", "Not logged in", {".codex/config.toml": 'model = "x"'}, {}, True),
        ("opencode", "0 credentials", {}, {}, False),
        ("gemini", "", {}, {}, True),
        ("gemini", "", {".gemini/oauth_creds.json": "{}"}, {}, False),
        ("gemini", "", {".gemini/.env": "GEMINI_API_KEY=x"}, {}, False),
        ("gemini", "", {}, {"GOOGLE_GENAI_USE_VERTEXAI": "true"}, False),
        (
            "gemini",
            "",
            {".gemini/settings.json": '{"security": {"auth": {"selectedType": "vertex-ai"}}}'},
            {},
            False,
        ),
    ],
    ids=[
        *("claude-yes", "claude-unknown", "codex-provider", "codex-no", "opencode-unknown"),
        *("gemini-no", "gemini-yes", "gemini-env-file", "gemini-cloud", "gemini-method"),
    ],
)
def test_only_what_is_known_to_be_signed_out_is_refused(
    tmp_path: Path, name: str, said: str, files: dict[str, str], env: dict[str, str], out: bool
) -> None:
    """What cannot be known is not refused."""
    words = {"claude": ["auth", "status"], "codex": ["login", "status"]}.get(name, ["auth", "list"])
    programs = real_looking(tmp_path, name, words, said, 1)
    for place, text in files.items():
        file = tmp_path / "home" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    given = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path / "home"), **env}
    assert is_signed_out(CLIS[name], given, str(tmp_path / "work")) is out


@pytest.mark.item("rec-33")
def test_a_key_in_the_definition_or_in_a_file_counts(tmp_path: Path) -> None:
    """The program is asked in the environment that it will have."""
    programs = real_looking(tmp_path, "claude", ["auth", "status"], '{"loggedIn": false}', 1)
    base = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path), "TOKEN": "x"}

    def look(agent: Agent, **variables: str) -> None:
        action = CallAgent(agent="w", prompt=literal("x"))
        plan = Plan(
            name="p",
            steps=(Step(id="a", action=action),),
            agents={"w": agent},
            pass_env=tuple(variables),
        )
        start = RunStart(plan=plan, workspace=tmp_path / "ws", message="x", variables=variables)
        preflight(start, base)

    (tmp_path / "ws").mkdir()
    with pytest.raises(LoopwrightError, match="agent w: Claude Code is not signed in"):
        look(Agent(spec="claude"))
    look(Agent(spec="claude", env={"ANTHROPIC_API_KEY": "k"}))
    look(Agent(spec="claude"), ANTHROPIC_API_KEY="k")
    look(Agent(spec="claude:--settings x"))
    (tmp_path / "ws" / ".env").write_text("ANTHROPIC_API_KEY=k")
    look(Agent(spec="claude"))


@pytest.mark.item("rec-31", "rec-32")
def test_the_live_view_shows_status_and_denial(lw: Place, fake: FakeCli) -> None:
    """The status line is there while the agent waits; what was denied stays in the scroll-back."""
    retry = e.claude("system", subtype="api_retry", attempt=1, error="overloaded", error_status=529)
    denial = e.claude("system", subtype="permission_denied", tool_use_id="t1", tool_name="Bash")
    call = e.claude_says({"type": "tool_use", "id": "t1", "name": "Bash", "input": {}})
    fake.says([e.CLAUDE_INIT, call, denial, retry], linger=1.5)
    loop = ("loop", "go", "--agent", "claude", "--max", "1")
    with lw.terminal(*loop, size=(24, 120)) as screen:
        screen.wait_for("status: overloaded (529): retrying (attempt 1)")
        screen.wait_for("agent worker: Bash was denied; allow it with --permission all")
        screen.leave()
