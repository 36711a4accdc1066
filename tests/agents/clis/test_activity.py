"""What the streams of the coding CLIs tell about activity: tool calls, denials and statuses."""

import pytest

from loopwright.agents.clis.acp import AcpConversation, Permission
from loopwright.agents.clis.catalogue import denial_words
from loopwright.agents.clis.event_stream import EventStream
from loopwright.agents.clis.transcript import (
    OPEN_CALLS,
    STATUS_LINES,
    Act,
    LiveEntry,
    Transcript,
    status_in,
    without_log,
    without_shell,
)
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from tests.agents.clis import events as e
from tests.agents.clis.events import Event

pytestmark = pytest.mark.item("rec-6")


def acts(cli: str, *moments: tuple[int, list[Event]]) -> list[Act]:
    """The activity of a stream whose events arrive at these times."""
    reader = EventStream(cli)
    for now_ms, events in moments:
        reader.feed(e.lines(events), now_ms)
    reader.close()
    return reader.transcript.drain()


def claude_call(call: str, name: str, **given: JsonValue) -> Event:
    return e.claude_says({"type": "tool_use", "id": call, "name": name, "input": given})


def claude_end(call: str, content: JsonValue, *, is_error: bool = False) -> Event:
    block: Event = {"type": "tool_result", "tool_use_id": call, "content": content}
    return e.claude("user", message={"content": [{**block, "is_error": is_error}]})


def codex_item(call: str, kind: str, state: str, **more: JsonValue) -> Event:
    return {"type": f"item.{state}", "item": {"id": call, "type": kind, **more}}


def gemini_call(call: str, name: str, **given: JsonValue) -> Event:
    return {"type": "tool_use", "tool_id": call, "tool_name": name, "parameters": given}


def gemini_end(call: str, status: str, **more: JsonValue) -> Event:
    return {"type": "tool_result", "tool_id": call, "status": status, **more}


BASH = "/bin/bash -lc 'pytest -q'"
CHANGES: JsonValue = [{"path": "/ws/a.py", "kind": "add"}, {"path": "/ws/b.py", "kind": "update"}]


@pytest.mark.parametrize(
    ("cli", "begin", "end", "expected"),
    [
        pytest.param(
            "claude",
            claude_call("t1", "Edit", file_path="/ws/a.py", old_string="x"),
            claude_end("t1", [{"type": "text", "text": "updated"}]),
            Act(kind="edit", tool="Edit", target="/ws/a.py", ok=True, ms=40, result="updated"),
            id="claude-edit",
        ),
        pytest.param(
            "claude",
            claude_call("t1", "Bash", command="pytest -q"),
            claude_end("t1", "Exit code 2\n1 failed", is_error=True),
            Act(
                kind="command",
                tool="Bash",
                target="pytest -q",
                ok=False,
                code=2,
                ms=40,
                text="Exit code 2 1 failed",
                result="Exit code 2\n1 failed",
            ),
            id="claude-failed-command",
        ),
        pytest.param(
            "claude",
            claude_call("t1", "WebFetch", url="https://u:p@docs.example:8443/x?y", prompt="z"),
            claude_end("t1", "page"),
            Act(
                kind="fetch",
                tool="WebFetch",
                target="docs.example",
                ok=True,
                ms=40,
                result="page",
            ),
            id="claude-fetch",
        ),
        pytest.param(
            "codex",
            codex_item("i1", "command_execution", "started", command=BASH, status="in_progress"),
            codex_item(
                "i1",
                "command_execution",
                "completed",
                command=BASH,
                exit_code=1,
                status="failed",
                aggregated_output="1 failed",
            ),
            Act(
                kind="command",
                tool="command_execution",
                target="pytest -q",
                ok=False,
                code=1,
                ms=40,
                text="1 failed",
                result="1 failed",
            ),
            id="codex-command",
        ),
        pytest.param(
            "codex",
            codex_item("i1", "file_change", "started", changes=CHANGES, status="in_progress"),
            codex_item("i1", "file_change", "completed", changes=CHANGES, status="completed"),
            Act(kind="edit", tool="file_change", target="/ws/a.py, /ws/b.py", ok=True, ms=40),
            id="codex-file-change",
        ),
        pytest.param(
            "codex",
            codex_item("i1", "mcp_tool_call", "started", server="plat", tool="submit"),
            codex_item(
                "i1",
                "mcp_tool_call",
                "completed",
                server="plat",
                tool="submit",
                status="completed",
                result={"content": [{"type": "text", "text": "taken"}]},
            ),
            Act(kind="tool", tool="plat.submit", ok=True, ms=40, result="taken"),
            id="codex-mcp",
        ),
        pytest.param(
            "gemini",
            gemini_call("g1", "write_file", file_path="a.txt", content="hi"),
            gemini_end("g1", "success", output="ok"),
            Act(kind="edit", tool="write_file", target="a.txt", ok=True, ms=40, result="ok"),
            id="gemini-edit",
        ),
        pytest.param(
            "gemini",
            gemini_call("g1", "run_shell_command", command="pytest -q"),
            gemini_end("g1", "error", error={"type": "failed", "message": "no such program"}),
            Act(
                kind="command",
                tool="run_shell_command",
                target="pytest -q",
                ok=False,
                ms=40,
                text="no such program",
                result="no such program",
            ),
            id="gemini-failed-command",
        ),
    ],
)
def test_a_call_is_paired_with_its_result(
    cli: str, begin: Event, end: Event, expected: Act
) -> None:
    """One entry for each call, with its duration by the arrival of its events."""
    found = acts(cli, (1_000, [begin]), (1_040, [end]))
    assert [_without_arguments(act) for act in found] == [expected]


def _without_arguments(act: Act) -> Act:
    return Act(**{n: getattr(act, n) for n in Act.__slots__ if n != "arguments"})


def test_arguments_are_kept_whole() -> None:
    """What a tool was given is recorded as JSON; a command line as it is."""
    (act,) = acts("claude", (0, [claude_call("t", "Write", file_path="a", content="hi")]))
    assert act.arguments == '{"file_path":"a","content":"hi"}'


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            {"status": "completed", "output": "ok", "time": {"start": 5, "end": 25}},
            {"ok": True, "ms": 20, "result": "ok"},
        ),
        (
            {"status": "completed", "output": "no", "metadata": {"exit": 3}},
            {"ok": False, "code": 3, "result": "no"},
        ),
        ({"status": "error", "error": "File not found"}, {"ok": False, "result": "File not found"}),
    ],
    ids=["well", "exit-code", "error"],
)
def test_opencode_reports_ended_calls(state: Event, expected: dict[str, object]) -> None:
    """Its events come when a call has ended, with the duration in them."""
    event = e.opencode_tool("bash", input={"command": "pytest -q"}, **state)
    (act,) = acts("opencode", (0, [event]))
    assert (act.kind, act.tool, act.target) == ("command", "bash", "pytest -q")
    assert {name: getattr(act, name) for name in expected} == expected


@pytest.mark.parametrize("cli", ["claude", "codex", "gemini"])
def test_a_call_that_never_ends_is_recorded_without_result(cli: str) -> None:
    """The program was ended in the middle: nobody knows how the call came out."""
    begins = {
        "claude": claude_call("t1", "Bash", command="sleep 9"),
        "codex": codex_item("i1", "command_execution", "started", command="sleep 9"),
        "gemini": gemini_call("g1", "run_shell_command", command="sleep 9"),
    }
    (act,) = acts(cli, (0, [begins[cli]]))
    assert (act.kind, act.target, act.ok, act.ms) == ("command", "sleep 9", None, None)


@pytest.mark.item("rec-31")
@pytest.mark.parametrize(
    ("cli", "events", "tool", "target"),
    [
        (
            "claude",
            [
                claude_call("t1", "Bash", command="npm test"),
                e.claude("system", subtype="permission_denied", tool_use_id="t1", tool_name="Bash"),
                claude_end("t1", "requires approval", is_error=True),
                e.claude_result(permission_denials=[{"tool_name": "Bash", "tool_use_id": "t1"}]),
            ],
            "Bash",
            "npm test",
        ),
        (
            "claude",
            [
                e.claude_result(
                    permission_denials=[
                        {
                            "tool_name": "Write",
                            "tool_use_id": "t1",
                            "tool_input": {"file_path": "/a"},
                        }
                    ]
                )
            ],
            "Write",
            "/a",
        ),
        ("opencode", e.OPENCODE_REFUSED, "write", "/ws/a.txt"),
        (
            "codex",
            [
                codex_item(
                    "i1",
                    "command_execution",
                    "completed",
                    command="/bin/bash -lc 'touch /etc/x'",
                    exit_code=1,
                    status="failed",
                    aggregated_output="touch: /etc/x: Read-only file system",
                )
            ],
            "command_execution",
            "touch /etc/x",
        ),
        (
            "codex",
            [codex_item("i1", "file_change", "completed", changes=CHANGES, status="declined")],
            "file_change",
            "/ws/a.py, /ws/b.py",
        ),
        (
            "gemini",
            [
                gemini_call("g1", "run_shell_command", command="npm test"),
                gemini_end("g1", "error", error={"type": "policy_violation", "message": "no"}),
            ],
            "run_shell_command",
            "npm test",
        ),
    ],
    ids=["claude", "claude-result-only", "opencode", "codex", "codex-declined", "gemini"],
)
def test_a_denied_call_is_recorded_once(
    cli: str, events: list[Event], tool: str, target: str
) -> None:
    """As denied, with what was wanted, and not again as a call that failed."""
    (act,) = acts(cli, (0, events))
    assert (act.kind, act.tool, act.target, act.ok) == ("denied", tool, target, False)


@pytest.mark.item("rec-31")
@pytest.mark.parametrize(
    ("program", "agent", "tool", "target", "words"),
    [
        (
            "claude",
            Agent(),
            "Bash",
            "npm test",
            "Bash(npm test) was denied; allow it with --permission all or --tools +Bash",
        ),
        (
            "claude",
            Agent(permission="ask"),
            "Write",
            "a.txt",
            "Write(a.txt) was denied; allow it with --permission edit or --tools +Write",
        ),
        (
            "codex",
            Agent(permission="read-only"),
            "file_change",
            "a.txt",
            "file_change(a.txt) was denied; allow it with --permission edit",
        ),
        ("acp", Agent(), "execute", "ls", "execute(ls) was denied; allow it with --permission all"),
        (
            "claude",
            Agent(permission="all"),
            "Bash",
            "",
            "Bash was denied by the agent's own settings",
        ),
        (
            "claude",
            Agent(deny_tools=("WebFetch",)),
            "WebFetch",
            "x.example",
            "WebFetch(x.example) was denied by `deny_tools` of the definition",
        ),
        (
            "opencode",
            Agent(access="readonly"),
            "write",
            "a",
            "write(a) was denied at the access level readonly",
        ),
    ],
    ids=["command", "edit", "codex", "acp", "all", "deny-tools", "level"],
)
def test_denial_words_name_what_allows_it(
    program: str, agent: Agent, tool: str, target: str, words: str
) -> None:
    """The sentence has a flag that works, or says which setting forbids it."""
    assert denial_words(program, agent, tool, target) == words


RETRY = e.claude(
    "system",
    subtype="api_retry",
    attempt=2,
    max_retries=3,
    retry_delay_ms=4_200,
    error_status=529,
    error="overloaded",
)
UNREACHED = e.claude(  # as Claude Code 2.1 says it for a refused connection and a failed lookup
    "system",
    subtype="api_retry",
    attempt=1,
    max_retries=10,
    retry_delay_ms=599,
    error_status=None,
    error="unknown",
)
LIMIT = e.claude(
    "rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": 1_800_021_600}
)
RECONNECTING: Event = {"type": "error", "message": "Reconnecting... 1/5 (high demand)"}


def opencode_log(error: str, small: str = "false") -> str:
    """A line that OpenCode logs for each request that fails."""
    return (
        'timestamp=2026-11-18T06:15:42.408Z level=ERROR run=6f1f380f message="stream error" '
        f"providerID=fake modelID=fake-model session.id=ses_1 small={small} agent=build "
        f'mode=primary error.error="{error}"'
    )


@pytest.mark.item("rec-32")
@pytest.mark.parametrize(
    ("cli", "event", "line"),
    [
        ("claude", RETRY, "overloaded (529): retrying in 4 s (attempt 2 of 3)"),
        ("claude", UNREACHED, "cannot reach the model service: retrying in 1 s (attempt 1 of 10)"),
        ("claude", LIMIT, "rate limit reached until 14:00 UTC"),
        ("codex", RECONNECTING, "Reconnecting... 1/5 (high demand)"),
        ("gemini", {"type": "error", "message": "Retrying"}, "Retrying"),
    ],
    ids=["claude-retry", "claude-unreached", "claude-limit", "codex", "gemini"],
)
def test_a_status_is_shown_and_recorded_but_is_no_progress(
    cli: str, event: Event, line: str
) -> None:
    """A retry loop says what it waits for; it does not look like work."""
    reader = EventStream(cli)
    assert reader.feed(e.lines([event, event])) == [LiveEntry("note", line)]
    assert reader.transcript.drain() == [Act(kind="status", text=line)]
    assert not reader.transcript.progress
    assert reader.transcript.status_line == line


@pytest.mark.item("rec-32")
@pytest.mark.parametrize(
    ("cli", "event"),
    [
        ("claude", e.claude_text("hi")),
        ("claude", e.claude_piece("h")),
        ("claude", claude_end("t", "ok")),
        ("codex", e.codex_item("reasoning", text="…")),
        ("opencode", e.opencode("step_start")),
        ("gemini", {"type": "message", "role": "assistant", "content": "x"}),
    ],
    ids=["text", "piece", "result", "codex", "opencode", "gemini"],
)
def test_output_is_progress(cli: str, event: Event) -> None:
    """Whatever the agent says or does restarts the idle limit, also next to a status."""
    reader = EventStream(cli)
    reader.feed(e.lines([RETRY if cli == "claude" else RECONNECTING, event]))
    assert reader.transcript.progress
    reader.feed(b"half a li")
    assert reader.transcript.progress


def test_statuses_and_open_calls_are_bounded() -> None:
    """An agent that never stops retrying or never ends its calls fills no memory."""
    transcript = Transcript()
    for number in range(STATUS_LINES + 50):
        transcript.note_status(f"attempt {number}")
    assert len(transcript.drain()) == STATUS_LINES
    for number in range(OPEN_CALLS + 5):
        transcript.begin_call(str(number), "Read", {})
    assert len(transcript.drain()) == 5


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "\x1b[33mAttempt 1 failed with status 503. Retrying with backoff...\x1b[0m",
            "Attempt 1 failed with status 503. Retrying with backoff...",
        ),
        ("Not logged in · Please run /login", "Not logged in · Please run /login"),
        ("(node:1) ExperimentalWarning: x", ""),
        ("", ""),
        (opencode_log("AI_APICallError: Rate limit reached"), "request failed: Rate limit reached"),
        (
            opencode_log("AI_APICallError: Cannot connect to API: Unable to connect."),
            "request failed: Cannot connect to API: Unable to connect.",
        ),
        (
            opencode_log("AI_APICallError: Invalid API key, log in again"),
            "request failed: Invalid API key, log in again",
        ),
        (opencode_log("AI_RetryError: Rate limit reached", small="true"), ""),
        (
            'timestamp=2026-11-18T06:15:52Z level=ERROR run=6f message=process error="Rate limit"',
            "",
        ),
    ],
    ids=[
        "retry",
        "sign-in",
        "warning",
        "empty",
        "opencode-limit",
        "opencode-connection",
        "opencode-sign-in",
        "opencode-title",
        "opencode-other",
    ],
)
def test_status_in_a_line_for_people(line: str, found: str) -> None:
    """Lines about retries, limits and signing in are statuses; warnings are not."""
    assert status_in(line) == found


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/bin/bash -lc 'touch a'", "touch a"),
        ("bash -c \"echo 'x y'\"", "echo 'x y'"),
        ("/bin/bash -lc 'open", "/bin/bash -lc 'open"),
        ("pytest -q", "pytest -q"),
    ],
)
def test_without_shell(line: str, command: str) -> None:
    """People see the command, not the shell that it was handed to."""
    assert without_shell(line) == command


# -- ACP -------------------------------------------------------------------------------------------


def acp(*updates: Event) -> AcpConversation:
    """A conversation in the middle of its prompt, after these messages."""
    talk = AcpConversation(prompt="p", cwd="/ws", phase="session/prompt")
    for number, update in enumerate(updates):
        message = {"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}}
        talk.read_line(e.lines([update if "method" in update else message]), 1_000 + 10 * number)
    return talk


def acp_call(state: str = "tool_call", **more: JsonValue) -> Event:
    return {"sessionUpdate": state, "toolCallId": "c1", **more}


def test_acp_calls_are_recorded_when_they_end() -> None:
    """Kind, places and arguments come in several updates; a replay of the end adds nothing."""
    talk = acp(
        acp_call(title="write", kind="edit", status="pending", rawInput={}),
        acp_call("tool_call_update", locations=[{"path": "/ws/a"}], rawInput={"filePath": "/ws/a"}),
        acp_call("tool_call_update", status="completed", rawOutput={"output": "Wrote it."}),
        acp_call("tool_call_update", status="completed", rawOutput={"output": "Wrote it."}),
    )
    (act,) = talk.transcript.drain()
    assert (act.kind, act.tool, act.target, act.ok) == ("edit", "edit", "/ws/a", True)
    assert (act.ms, act.result, act.arguments) == (20, "Wrote it.", '{"filePath":"/ws/a"}')


def test_acp_commands_have_their_exit_code() -> None:
    """A command that failed is no success, whatever the status says."""
    talk = acp(
        acp_call(title="ls", kind="execute", rawInput={"command": ["bash", "-lc", "ls x"]}),
        acp_call("tool_call_update", status="completed", rawOutput={"exit_code": 2}),
    )
    (act,) = talk.transcript.drain()
    assert (act.kind, act.target, act.ok, act.code) == ("command", "ls x", False, 2)


@pytest.mark.item("rec-31")
@pytest.mark.parametrize(
    ("by_person", "words"), [(False, ""), (True, "Write a was denied by a person")]
)
def test_an_acp_permission_that_is_rejected_is_a_denial(by_person: bool, words: str) -> None:
    """It is recorded once, although the agent reports the failed call, too."""
    call: Event = {
        "toolCallId": "c1",
        "kind": "edit",
        "title": "Write a",
        "rawInput": {"path": "a"},
    }
    asks: Event = {"id": 5, "method": "session/request_permission", "params": {"toolCall": call}}
    talk = acp(asks)
    asked = Permission(
        id=5, call="c1", title="Write a", kind="edit", about="", allow=None, reject="no"
    )
    talk.decide(asked, allowed=False, by_person=by_person)
    update = acp_call("tool_call_update", status="failed", rawOutput="refused")
    talk.read_line(e.lines([{"method": "session/update", "params": {"update": update}}]))
    (act,) = talk.transcript.drain()
    assert (act.kind, act.target, act.ok, act.text) == ("denied", "a", False, words)


@pytest.mark.item("rec-32")
@pytest.mark.parametrize(
    ("update", "progress"),
    [("usage_update", False), ("available_commands_update", False), ("agent_thought_chunk", True)],
)
def test_what_an_acp_agent_says_about_itself_is_no_progress(update: str, progress: bool) -> None:
    """Thoughts and calls restart the idle limit, figures and lists do not."""
    assert acp({"sessionUpdate": update}).transcript.progress is progress


@pytest.mark.item("rec-6")
@pytest.mark.parametrize(
    "broken",
    [b"caf\xe9", b"\\ud83d", b"\\ude00 x", b"\\ud83d\\u0041", b"\xed\xa0\x80"],
    ids=["latin-1", "high-half", "low-half", "half-pair", "encoded-surrogate"],
)
@pytest.mark.parametrize(
    ("cli", "begin", "end"),
    [
        (
            "claude",
            claude_call("t1", "Bash", command="cat BROKEN"),
            claude_end("t1", "printed BROKEN"),
        ),
        (
            "codex",
            codex_item("i1", "command_execution", "started", command="cat BROKEN"),
            codex_item(
                "i1",
                "command_execution",
                "completed",
                command="cat BROKEN",
                aggregated_output="printed BROKEN",
                exit_code=0,
                status="completed",
            ),
        ),
        (
            "gemini",
            gemini_call("t1", "run_shell_command", command="cat BROKEN"),
            gemini_end("t1", "success", output="printed BROKEN"),
        ),
    ],
    ids=["claude", "codex", "gemini"],
)
def test_text_that_is_not_unicode_does_not_hide_a_call(
    cli: str, begin: Event, end: Event, broken: bytes
) -> None:
    """A program prints what it has read from any file; broken characters are replaced."""
    reader = EventStream(cli)
    reader.feed(e.lines([begin, end]).replace(b"BROKEN", broken))
    (act,) = reader.transcript.drain()
    assert (act.kind, act.ok) == ("command", True)
    assert act.target.startswith("cat ")
    assert act.result.startswith("printed ")
    f"{act.target}{act.result}".encode()
    assert reader.transcript.counts.garbage == 0


def test_lines_of_a_log_are_not_shown_as_the_reason_of_a_failure() -> None:
    """What else the program printed is, as it came."""
    logged = opencode_log("AI_APICallError: Rate limit reached")
    assert without_log(f"{logged}\nSession not found\n{logged}\n") == "Session not found\n"
