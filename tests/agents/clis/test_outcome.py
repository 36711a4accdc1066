"""Exit code, last event and error flag are judged together."""

from typing import Any

import pytest

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.clis.event_stream import CallFailure, EventStream, ProcessExit, find_failure
from loopwright.agents.clis.transcript import LimitReset, TimeOfDay, reset_in, reset_seconds
from tests.agents.clis import events as e
from tests.agents.clis.events import Event

HALF = [e.CLAUDE_INIT, e.claude_text("I begin")]
OK = ProcessExit(code=0)


def judged(cli: str, stream: list[Event], end: ProcessExit) -> CallFailure | None:
    reader = EventStream(cli)
    reader.feed(e.lines(stream))
    return find_failure(CLIS[cli], reader.transcript, end)


@pytest.mark.parametrize(
    ("cli", "stream", "end"),
    [
        pytest.param("claude", e.CLAUDE_WRITES, OK, id="claude"),
        pytest.param("codex", e.CODEX_WRITES, OK, id="codex"),
        pytest.param("opencode", e.OPENCODE_WRITES, OK, id="opencode"),
        pytest.param("gemini", e.GEMINI_WRITES, OK, id="gemini"),
        pytest.param("claude", e.CLAUDE_WRITES, ProcessExit(code=143, ours=True), id="ended by us"),
        pytest.param(
            "claude",
            [*HALF, e.claude_result(permission_denials=[{"tool_name": "Write"}])],
            OK,
            id="went on without a right",
        ),
    ],
)
def test_it_went_well(cli: str, stream: list[Event], end: ProcessExit) -> None:
    """A good last event and a code that does not say otherwise."""
    assert judged(cli, stream, end) is None


def claude_words(said: str) -> list[Event]:
    return [e.claude_result(is_error=True, result=said, terminal_reason="api_error")]


def gemini_words(said: str) -> list[Event]:
    return [{"type": "result", "status": "error", "error": {"message": said}}]


UNREACHED: list[Any] = [
    (
        "claude",
        claude_words,
        "API Error: Can't reach the API server — check your internet or DNS (ENOTFOUND)",
        "DNS",
    ),
    (
        "claude",
        claude_words,
        "API Error: Connection refused — a firewall or proxy may be blocking it (ECONNREFUSED)",
        "refused",
    ),
    ("claude", claude_words, "API Error: connect ENETUNREACH 2600::1:443", "no network"),
    ("codex", e.codex_fails, "error sending request for url (http://x.invalid/v1)", "DNS"),
    ("gemini", gemini_words, "request failed, reason: getaddrinfo EAI_AGAIN x.invalid", "DNS"),
]
NOT_FOUND = "Error: thread/resume failed: no rollout found for thread id 9"


@pytest.mark.parametrize(
    ("cli", "stream", "end", "kind", "says"),
    [
        pytest.param(
            "claude", e.claude_api_error(500, "API Error: 500"), ProcessExit(code=1), "overloaded",
            "API Error: 500", id="claude 500",
        ),
        pytest.param(
            "claude", e.claude_api_error(401, "Failed to authenticate"), ProcessExit(code=1),
            "not_signed_in", "run `claude auth login`", id="claude 401",
        ),
        pytest.param(
            "claude", e.claude_api_error(429, "Request rejected"), ProcessExit(code=1),
            "rate_limited",
            "Request rejected", id="claude 429",
        ),
        pytest.param(
            "claude", e.claude_api_error(400, "bad request"), ProcessExit(code=1), "agent",
            "bad request", id="claude 400",
        ),
        pytest.param(
            "claude", [e.claude_fails("error_max_turns", "Reached 3")], ProcessExit(code=1),
            "turn_limit", "Reached 3", id="turns",
        ),
        pytest.param(
            "claude", [e.claude_fails("error_max_budget_usd", "Reached $1")], ProcessExit(code=1),
            "budget_limit", "Reached $1", id="budget",
        ),
        pytest.param(
            "claude", [e.claude_fails("error_during_execution", "No conversation found: 9")],
            ProcessExit(code=1), "session_gone", "No conversation found", id="claude session",
        ),
        pytest.param(
            "claude", [e.claude_fails("x", terminal_reason="aborted_streaming")], OK, "crashed",
            "was interrupted", id="interrupted with code 0",
        ),
        pytest.param(
            "claude", [e.claude_result(is_error=True, result="")], OK, "agent", "success",
            id="flagged without words",
        ),
        pytest.param(
            "claude", e.CLAUDE_WRITES, ProcessExit(code=3, stderr="oh"), "exit",
            "gave an answer and then exited with code 3: oh", id="good event, bad code",
        ),
        pytest.param(
            "claude", HALF, OK, "crashed", "exited with code 0 but never finished its turn",
            id="code 0 without a last event",
        ),
        pytest.param(
            "claude", HALF, ProcessExit(signal=9), "crashed", "was ended by signal 9", id="killed",
        ),
        pytest.param(
            "claude", [], ProcessExit(code=1,
            stderr="--x cannot be used with root/sudo privileges"),
            "permission_denied", "set IS_SANDBOX=1", id="root",
        ),
        pytest.param(
            "claude", [], ProcessExit(code=1, stderr="Invalid API key · Please run /login"),
            "not_signed_in", "ANTHROPIC_API_KEY", id="not signed in by words",
        ),
        pytest.param(
            "codex", e.codex_fails("unexpected status 401 Unauthorized: x"), ProcessExit(code=1),
            "not_signed_in", "codex login", id="codex 401",
        ),
        pytest.param(
            "codex", e.codex_fails("We’re currently experiencing high demand"), ProcessExit(code=1),
            "overloaded", "high demand", id="codex 500",
        ),
        pytest.param(
            "codex", [], ProcessExit(code=1, stderr=NOT_FOUND), "session_gone", "no rollout",
            id="codex session",
        ),
        pytest.param(
            "opencode", e.opencode_error("stub error", 401), ProcessExit(code=1), "not_signed_in",
            "opencode auth login", id="opencode 401",
        ),
        pytest.param(
            "opencode", e.opencode_error("Cannot connect to API: Unable to connect", None),
            ProcessExit(code=1), "overloaded", "Cannot connect", id="server down",
        ),
        *(
            pytest.param(
                cli, said(words), ProcessExit(code=1), "overloaded", words, id=f"{cli} {name}"
            )
            for cli, said, words, name in UNREACHED
        ),
        pytest.param(
            "opencode", [], ProcessExit(code=1, stderr="Session not found"), "session_gone",
            "Session",
            id="opencode session",
        ),
        pytest.param(
            "opencode", e.OPENCODE_REFUSED, OK, "permission_denied",
            "permission denied: write; allow it", id="refused tool with code 0",
        ),
        pytest.param(
            "gemini", [], ProcessExit(code=145, stderr="API key not valid"), "not_signed_in",
            "GEMINI_API_KEY", id="gemini 401",
        ),
        pytest.param(
            "gemini", [], ProcessExit(code=42, stderr="Error resuming session: none"),
            "session_gone",
            "resuming", id="gemini session",
        ),
        pytest.param(
            "gemini", e.GEMINI_WRITES[:4], OK, "crashed", "never finished", id="gemini stopped",
        ),
    ],
)  # fmt: skip
def test_each_trouble_is_its_own_failure(
    cli: str, stream: list[Event], end: ProcessExit, kind: str, says: str
) -> None:
    """The kind of a failure can be read by a policy, and its words by a person."""
    found = judged(cli, stream, end)
    assert found is not None
    assert found.failure.type == kind
    assert says in found.failure.detail


@pytest.mark.parametrize(
    ("cli", "stream", "reset"),
    [
        pytest.param(
            "claude",
            [
                e.claude(
                    "rate_limit_event",
                    rate_limit_info={"status": "rejected", "resetsAt": 1_800_000_000},
                ),
                *e.claude_api_error(400, "You've hit your session limit"),
            ],
            LimitReset(at=1_800_000_000),
            id="claude says when",
        ),
        pytest.param(
            "claude",
            e.claude_api_error(429, "Claude usage limit reached|1800000000"),
            LimitReset(at=1_800_000_000),
            id="claude of old",
        ),
        pytest.param(
            "opencode",
            e.opencode_error("slow down", 429, responseHeaders={"retry-after": "90"}),
            LimitReset(after=90.0),
            id="a header",
        ),
        pytest.param(
            "codex",
            e.codex_fails("You've hit your usage limit. Try again in 2 hours 5 minutes."),
            LimitReset(after=7_500.0),
            id="codex",
        ),
        pytest.param("codex", e.codex_fails("Too Many Requests"), None, id="nobody knows"),
    ],
)
def test_a_rate_limit_names_its_end(
    cli: str, stream: list[Event], reset: LimitReset | None
) -> None:
    """Where the program says when it may be tried again, that is known."""
    found = judged(cli, stream, ProcessExit(code=1))
    assert found is not None
    assert found.failure.type == "rate_limited"
    assert found.reset == reset


@pytest.mark.parametrize(
    ("words", "reset"),
    [
        ("usage limit reached|1794799950", LimitReset(at=1_794_799_950)),
        ("usage limit reached|1794799950123", LimitReset(at=1_794_799_950)),
        ("Please try again in 20s.", LimitReset(after=20.0)),
        ("please retry in 34.5s", LimitReset(after=34.5)),
        ("Your quota will reset after 5h20m3s.", LimitReset(after=19_203.0)),
        ("try again in 1 day, 2 hours and 3 minutes", LimitReset(after=93_780.0)),
        ("try again in 500ms", LimitReset(after=0.5)),
        ('{"retry-after": 17}', LimitReset(after=17.0)),
        ("retry_after=9", LimitReset(after=9.0)),
        (
            "You've hit your limit · resets 3pm (America/New_York)",
            LimitReset(clock=TimeOfDay(hour=15, zone="America/New_York")),
        ),
        ("resets 12:30am", LimitReset(clock=TimeOfDay(hour=0, minute=30))),
        ("or try again at 3:05 PM.", LimitReset(clock=TimeOfDay(hour=15, minute=5))),
        ("resets at 17pm", None),
        ("Too many requests", None),
        ("", None),
    ],
)
def test_times_in_words(words: str, reset: LimitReset | None) -> None:
    """Moments, waits and times of day are found in what providers write."""
    assert reset_in(words) == reset


@pytest.mark.parametrize(
    ("words", "found"), [("90", 90.0), (" 7 ", 7.0), ("soon", None), ("", None), ("9" * 10, None)]
)
def test_seconds_of_a_header(words: str, found: float | None) -> None:
    """A header counts when it is a number of seconds."""
    assert reset_seconds(words) == found
