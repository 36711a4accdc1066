"""Coding CLIs as agents: one process for each call, and every way in which it can come out."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.agents.calls import LONGEST_S, codex_model, resets_at
from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.clis.transcript import LimitReset, TimeOfDay
from loopwright.agents.coding_agents import make_gemini_settings
from loopwright.kernel.events import Usage
from loopwright.ports import Answer, EffectFailure, EffectSuccess
from tests.agents.calls import RecordedActivity, Stage, agent, job
from tests.agents.clis import events as e
from tests.agents.fake_cli import FakeCli

GOOD = {
    "claude": e.CLAUDE_WRITES,
    "codex": e.CODEX_WRITES,
    "opencode": e.OPENCODE_WRITES,
    "gemini": e.GEMINI_WRITES,
}
LINGER_S = 60
"""How long a program stays that is to be ended."""
every_cli = pytest.mark.parametrize("cli", sorted(CLIS))


@pytest.fixture
def fake(tmp_path: Path) -> FakeCli:
    (tmp_path / "ws").mkdir()
    return FakeCli(tmp_path / "fake").install(*CLIS)


def stage(fake: FakeCli, **base: str) -> Stage:
    # As root, Codex writes to its workspace and to its own configuration alone.
    home = {"HOME": "/home/ann", "CODEX_HOME": str(fake.folder)}
    return Stage({"PATH": fake.path, **home, "DATABASE_URL": "canary", **base})


def ask(
    fake: FakeCli,
    spec: str,
    *,
    base: dict[str, str] | None = None,
    hour_after: Callable[[], bool] | None = None,
    **more: object,
) -> Answer:
    given = {
        name: more.pop(name)
        for name in ("system", "model", "max_usd", "max_turns", "permission", "tools", "env")
        if name in more
    }
    worker = agent(spec, **given)
    workspace = fake.folder.parent / "ws"
    here = stage(fake, **(base or {}))
    return here.perform(job(workspace, agent=worker, **more), hour_after=hour_after)


@every_cli
def test_a_call_that_went_well(fake: FakeCli, cli: str) -> None:
    """The answer, what it used and the session come back; the live view saw it coming."""
    fake.says(GOOD[cli])
    here = stage(fake)
    answer = here.perform(job(fake.folder.parent / "ws", agent=agent(cli)))
    assert isinstance(answer, EffectSuccess), answer
    assert "DONE." in answer.output
    assert answer.usage is not None
    assert answer.usage.input_tokens > 0
    assert answer.session in (e.SESSION, e.THREAD, e.SES)
    assert "DONE." in here.said()
    assert here.said("tool")


@pytest.mark.item("rondoflow-19")
@every_cli
def test_no_shell_is_between_us_and_the_program(fake: FakeCli, cli: str) -> None:
    """Words with a meaning for a shell arrive as they are, in the workspace, and start nothing."""
    prompt = "--help; touch evil $(touch evil) `touch evil` | touch evil"
    fake.says(GOOD[cli])
    ask(fake, cli, prompt=prompt, model="m;touch evil")
    (call,) = fake.calls
    argv = call["argv"]
    assert isinstance(argv, list)
    assert "m;touch evil" in argv
    assert argv[-2:] == ["--", prompt] if not call["stdin"] else call["stdin"] == prompt
    assert call["cwd"] == str(fake.folder.parent / "ws")
    assert list((fake.folder.parent / "ws").iterdir()) == []


@pytest.mark.item("rondoflow-55", "rondoflow-56")
def test_one_credential_and_no_secret(fake: FakeCli) -> None:
    """The program sees the allow-list, its own variables and one credential."""
    fake.says(e.CLAUDE_WRITES)
    base = {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "ANTHROPIC_API_KEY": "key",
        "CLAUDE_CODE_OAUTH_TOKEN": "token",
        "OPENAI_API_KEY": "canary",
    }
    ask(fake, "claude", base=base)
    env = fake.calls[0]["env"]
    assert isinstance(env, dict)
    assert env["CLAUDE_CODE_OAUTH_TOKEN"] == "token"
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"
    assert env["LOOPWRIGHT_EFFECT"] == "dev.1/agent#1"
    assert "ANTHROPIC_API_KEY" not in env
    assert "canary" not in json.dumps(env)


def test_a_credential_of_the_definition_is_the_only_one(fake: FakeCli) -> None:
    """Who names a credential in the definition means that one."""
    fake.says(e.CLAUDE_WRITES)
    named = {"ANTHROPIC_API_KEY": "mine"}
    ask(fake, "claude", base={"CLAUDE_CODE_OAUTH_TOKEN": "token"}, env=named)
    env = fake.calls[0]["env"]
    assert isinstance(env, dict)
    assert env["ANTHROPIC_API_KEY"] == "mine"
    assert "CLAUDE_CODE_OAUTH_TOKEN" not in env


@pytest.mark.item("rondoflow-57")
@pytest.mark.parametrize("linger", [0, 60], ids=["ends", "is killed"])
def test_long_instructions_are_a_file_for_the_time_of_the_call(
    fake: FakeCli, linger: float
) -> None:
    """Instructions of 100 KB reach the program through a file that is gone afterwards."""
    fake.says(e.CLAUDE_WRITES[:1] if linger else e.CLAUDE_WRITES, linger=linger)
    system = "Be careful. " * 9_000
    killed = {"wall_ms": 600_000, "hour_after": lambda: bool(fake.calls)} if linger else {}
    answer = ask(fake, "claude", system=system, **killed)
    assert isinstance(answer, EffectFailure if linger else EffectSuccess)
    ((file, text),) = fake.calls[0]["files"].items()  # type: ignore[union-attr]
    assert text == system
    assert not Path(file).exists()


# -- how it comes out ------------------------------------------------------------------------------


@every_cli
def test_a_missing_program_is_reported_with_its_cure(tmp_path: Path, cli: str) -> None:
    """The failure says how to install it."""
    answer = Stage({"PATH": "/nowhere"}).perform(job(tmp_path, agent=agent(cli)))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "not_found"
    assert "npm install -g" in answer.error.detail


def test_what_cannot_be_held_is_not_started(fake: FakeCli) -> None:
    """A right that the program cannot be held to fails the call before it begins."""
    answer = ask(fake, "codex", tools=("Read",))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "bad_input"
    assert fake.calls == []


def test_a_rate_limit_is_known_with_its_end(fake: FakeCli) -> None:
    """The moment stands in the failure, so that the run can wait for it."""
    until = int(time.time()) + 3_600
    fake.says(e.claude_api_error(429, f"Claude usage limit reached|{until}"), code=1)
    answer = ask(fake, "claude")
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "rate_limited"
    assert answer.error.resets_at is not None
    assert 0 <= answer.error.resets_at / 1_000 - until <= 5


@pytest.mark.parametrize(
    ("events", "code", "err", "kind"),
    [
        (e.claude_api_error(401, "no"), 1, "", "not_signed_in"),
        ([e.claude_fails("error_max_turns", "Reached")], 1, "", "turn_limit"),
        ([e.claude_fails("error_max_budget_usd", "Reached")], 1, "", "budget_limit"),
        (e.CLAUDE_WRITES[:3], 0, "", "crashed"),
        (e.CLAUDE_WRITES[:3], 139, "boom", "crashed"),
    ],
    ids=["401", "turns", "budget", "no end", "crash"],
)
def test_each_trouble_has_its_kind(
    fake: FakeCli, events: list[e.Event], code: int, err: str, kind: str
) -> None:
    """What was said and used before is kept with the failure."""
    fake.says(events, code=code, err=err)
    answer = ask(fake, "claude")
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == kind
    assert answer.session == e.SESSION


def test_a_silent_program_is_ended(fake: FakeCli) -> None:
    """A program that says nothing for too long is a time-out, with what it said before."""
    fake.says([e.CLAUDE_INIT, e.claude_text("I begin")], linger=60)
    here = stage(fake)
    what = job(fake.folder.parent / "ws", agent=agent("claude"), idle_ms=600_000)
    answer = here.perform(what, hour_after=lambda: here.said() == "I begin")
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "idle_timeout"
    assert answer.output == "I begin"


def test_a_program_that_stays_after_its_turn_is_ended(
    fake: FakeCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task in the background does not keep a call open: its turn has ended, and went well."""
    monkeypatch.setattr("loopwright.agents.coding_agents.GOODBYE_S", 0.3)
    fake.says(e.CLAUDE_WRITES, linger=LINGER_S)
    began = time.monotonic()
    answer = ask(fake, "claude")
    assert isinstance(answer, EffectSuccess), answer
    assert time.monotonic() - began < LINGER_S
    assert (answer.output, answer.code) == ("DONE. File written.", None)


def test_a_call_that_costs_too_much_is_ended(fake: FakeCli) -> None:
    """OpenCode has no budget of its own, so it is held to it from outside."""
    steps = [e.opencode_step("tool-calls", cost=0.4) for _ in range(3)]
    fake.says(steps, linger=30)
    answer = ask(fake, "opencode", max_usd=0.5)
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "budget_limit"
    assert "of 0.5 USD" in answer.error.detail


def test_a_denied_permission_is_noted(fake: FakeCli) -> None:
    """An agent that goes on without a right has answered; what it could not do is told."""
    fake.says([e.claude_result(permission_denials=[{"tool_name": "Bash"}])])
    answer = ask(fake, "claude")
    assert isinstance(answer, EffectSuccess)
    assert "permission was denied: Bash" in answer.note


# -- sessions --------------------------------------------------------------------------------------


def test_a_session_that_is_gone_is_begun_anew(fake: FakeCli) -> None:
    """The call is made again without it, and the answer says so."""
    fake.says([e.claude_fails("x", "No conversation found with session ID: s-9")], code=1)
    fake.says(e.CLAUDE_WRITES)
    answer = ask(fake, "claude", session="s-9")
    assert isinstance(answer, EffectSuccess), answer
    assert answer.note == "session s-9 was gone and a new one was begun"
    first, second = (call["argv"] for call in fake.calls)
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert "s-9" in first
    assert "--resume" not in second


def test_a_sum_over_the_session_is_not_counted_twice(fake: FakeCli) -> None:
    """Codex tells what the thread has used; what was used before is taken off."""
    fake.says([*e.CODEX_BEGINS, e.codex_item("agent_message", text="x"), e.codex_usage(3000, 60)])
    used = Usage(2000, 40)
    goes_on = ask(fake, "codex", session=e.THREAD, session_used=used)
    assert goes_on.usage == Usage(1000, 20, unpriced=1)
    another = ask(fake, "codex", session="other", session_used=used)
    assert another.usage == Usage(3000, 60, unpriced=1)


# -- results ---------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "required": ["done"], "properties": {"done": {"type": "boolean"}}}


@pytest.mark.parametrize(
    ("more", "result"),
    [
        ({"structured_output": {"done": True}}, '{"done":true}'),
        ({"result": 'So: {"done": false}'}, '{"done": false}'),
        ({"structured_output": {"done": 1}}, None),
    ],
    ids=["handed over", "in the text", "does not fit"],
)
def test_a_structured_result(fake: FakeCli, more: e.Event, result: str | None) -> None:
    """What the program hands over counts, else the last object of its text; it must fit."""
    fake.says([e.claude_result(**more)])
    answer = ask(fake, "claude", schema=SCHEMA)
    if result is None:
        assert isinstance(answer, EffectFailure)
        assert answer.error.type == "bad_result"
    else:
        assert isinstance(answer, EffectSuccess), answer
        assert json.loads(answer.result or "") == json.loads(result)


# -- when a limit is over --------------------------------------------------------------------------

NOON = 1_800_014_400  # 12:00 UTC


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        (LimitReset(at=NOON + 60), 62),
        (LimitReset(at=NOON - 999), 2),
        (LimitReset(after=30.5), 32.5),
        (LimitReset(after=LONGEST_S + 1), None),
        (LimitReset(clock=TimeOfDay(hour=13, zone="UTC")), 3_602),
        (LimitReset(clock=TimeOfDay(hour=11, minute=30, zone="UTC")), 84_602),
        (LimitReset(clock=TimeOfDay(hour=8, zone="America/New_York")), 3_602),
        (None, None),
    ],
    ids=["moment", "past", "wait", "too long", "today", "tomorrow", "zone", "nothing"],
)
def test_from_words_to_the_clock(reset: LimitReset | None, seconds: float | None) -> None:
    """Moments, waits and times of day become a moment on our clock, with a little margin."""
    found = resets_at(reset, NOON)
    assert found == (None if seconds is None else int((NOON + seconds) * 1_000))


def test_an_unknown_zone_is_that_of_this_machine() -> None:
    """A zone that nobody knows does not break anything."""
    found = resets_at(LimitReset(clock=TimeOfDay(hour=9, zone="Mars/Olympus")), NOON)
    assert found is not None
    assert 0 < found / 1_000 - NOON <= 86_402


@pytest.mark.parametrize(
    ("cli", "spec", "more", "config", "model"),
    [
        ("claude", "claude", {}, "", e.MODEL),
        ("gemini", "gemini", {}, "", "gemini-2.5-flash"),
        ("codex", "codex", {"model": "gpt-5"}, "", "gpt-5"),
        ("codex", "codex:-m gpt-5-mini", {}, "", "gpt-5-mini"),
        ("codex", "codex", {}, 'model = "gpt-5-nano"\n', "gpt-5-session"),
        ("codex", "codex", {}, "not toml", "gpt-5-session"),
        ("opencode", "opencode", {"model": "openai/gpt-5"}, "", "openai/gpt-5"),
    ],
    ids=["claude", "gemini", "given", "argument", "session", "bad-settings", "opencode"],
)
def test_an_answer_names_the_model(
    fake: FakeCli, cli: str, spec: str, more: dict[str, object], config: str, model: str
) -> None:
    """The model is what the program reports, else what it was started with: prices depend on it."""
    folder = fake.folder
    (folder / "config.toml").write_text(config)
    day = folder / "sessions" / "2026" / "11" / "18"
    day.mkdir(parents=True)
    turn = {"type": "turn_context", "payload": {"model": "gpt-5-session"}}
    (day / f"rollout-x-{e.THREAD}.jsonl").write_text(f"no json\n{json.dumps(turn)}\n")
    fake.says(GOOD[cli])
    answer = ask(fake, spec, **more)
    assert answer.model == model


# -- activity --------------------------------------------------------------------------------------

DID = {
    "claude": ("edit", "Write", "/ws/hello.txt"),
    "codex": ("command", "command_execution", "touch a"),
    "opencode": ("edit", "write", "/ws/a.txt"),
    "gemini": ("edit", "write_file", "/ws/a.txt"),
}


@pytest.mark.item("rec-6")
@every_cli
def test_what_the_agent_did_is_recorded(fake: FakeCli, cli: str) -> None:
    """Tool calls become entries, and the program's own output is kept as it came."""
    fake.says(GOOD[cli])
    kept = RecordedActivity()
    ask(fake, cli, activity=kept)
    entry = next(one for one in kept.entries if one.kind != "status")
    assert (entry.kind, entry.tool, entry.target) == DID[cli]
    assert kept.stream == e.lines(GOOD[cli])


@pytest.mark.item("rec-31")
def test_a_denied_permission_is_shown_at_once_with_its_flag(fake: FakeCli) -> None:
    """The entry and the live view have the sentence that says what to do."""
    denial = e.claude("system", subtype="permission_denied", tool_use_id="t", tool_name="Bash")
    call = e.claude_says({"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "x"}})
    fake.says([call, denial, e.claude_result()])
    kept, here = RecordedActivity(), stage(fake)
    what = job(fake.folder.parent / "ws", agent=agent("claude"), activity=kept)
    answer = here.perform(what)
    words = "Bash(x) was denied; allow it with --permission all or --tools +Bash"
    assert [(one.kind, one.text) for one in kept.entries] == [("denied", words)]
    assert here.said("note") == words
    assert isinstance(answer, EffectSuccess)
    assert "permission was denied: Bash" in answer.note


@pytest.mark.item("rec-32")
def test_a_status_on_stderr_is_shown_and_explains_a_timeout(fake: FakeCli) -> None:
    """A program that only reports retries is idle, and the failure says what it was waiting for."""
    retry = "Attempt 1 failed with status 503. Retrying with backoff..."
    fake.says([], err=f"{retry}\n{retry}\n", linger=LINGER_S)
    kept, here = RecordedActivity(), stage(fake)
    what = job(fake.folder.parent / "ws", agent=agent("gemini"), idle_ms=600_000, activity=kept)
    answer = here.perform(what, hour_after=lambda: bool(here.said("note")))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "idle_timeout"
    assert f"; the agent's last status: {retry}; allow more with" in answer.error.detail
    assert [(one.kind, one.text) for one in kept.entries] == [("status", retry)]
    assert here.said("note") == retry


@pytest.mark.parametrize(
    ("config", "model"), [('model = "gpt-5-nano"\n', "gpt-5-nano"), ("not toml", "")]
)
def test_codex_without_a_session_file(tmp_path: Path, config: str, model: str) -> None:
    """The settings name the model where no session does."""
    (tmp_path / "config.toml").write_text(config)
    assert codex_model({"CODEX_HOME": str(tmp_path)}, "unknown") == model
    assert codex_model({"HOME": str(tmp_path / "nowhere")}, None) == ""


@pytest.mark.item("bnd-p6")
def test_gemini_has_the_settings_of_the_user_and_the_server_of_its_call(tmp_path: Path) -> None:
    """Its sessions stay in the user's folder; nothing is copied from folders that are hidden."""
    home, own = tmp_path / "user", tmp_path / "user" / ".gemini"
    own.mkdir(parents=True)
    text = '{"theme": "a // b", /* c */ "mcpServers": {"x": {"command": "x"}}} // end'
    (own / "settings.json").write_text(text)
    (own / "oauth.json").write_text("token")
    for name in ("call", "other"):
        (tmp_path / name).mkdir()
        config = {"mcpServers": {"loopwright": {"command": "y"}}}
        (tmp_path / name / "servers.json").write_text(json.dumps(config))
    made = Path(
        make_gemini_settings(
            {"HOME": str(home)}, str(tmp_path / "call" / "servers.json"), hidden=()
        )
    )
    settings = json.loads((made / ".gemini" / "settings.json").read_text())
    servers = {"x": {"command": "x"}, "loopwright": {"command": "y"}}
    assert settings == {"theme": "a // b", "mcpServers": servers}
    assert (made / ".gemini" / "oauth.json").read_text() == "token"
    (made / ".gemini" / "tmp" / "session").touch()
    assert (own / "tmp" / "session").exists()
    assert (own / "settings.json").read_text() == text
    hidden = [str(home)]
    config_file = str(tmp_path / "other" / "servers.json")
    empty = Path(make_gemini_settings({"HOME": str(home)}, config_file, hidden))
    assert [one.name for one in (empty / ".gemini").iterdir()] == ["settings.json"]
