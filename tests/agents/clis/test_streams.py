"""What is read out of the streams of the coding CLIs, however they are cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.agents.clis.event_stream import READERS, EventStream, LineSplitter
from loopwright.agents.clis.loose_json import minus
from loopwright.agents.clis.transcript import (
    SHOWN_CHARS,
    TEXT_CHARS,
    LiveEntry,
    Transcript,
    note,
    tool_line,
)
from loopwright.kernel.events import Usage
from tests.agents.clis import events as e
from tests.agents.clis.events import Event


def transcript(cli: str, stream: list[Event]) -> tuple[Transcript, list[LiveEntry]]:
    reader = EventStream(cli)
    said = reader.feed(e.lines(stream))
    return reader.transcript, [*said, *reader.close()]


@pytest.mark.parametrize(
    ("cli", "stream", "output", "usage", "session", "shown"),
    [
        pytest.param(
            "claude",
            e.CLAUDE_WRITES,
            "DONE. File written.",
            Usage(2000, 40, 0.0088),
            e.SESSION,
            [LiveEntry("tool", "Write /ws/hello.txt"), LiveEntry("text", "DONE. File written.")],
            id="claude",
        ),
        pytest.param(
            "codex",
            e.CODEX_WRITES,
            "DONE. File written.",
            None,
            e.THREAD,
            [
                LiveEntry("note", "Model metadata not found."),
                LiveEntry("tool", "command touch a"),
                LiveEntry("text", "DONE. File written."),
            ],
            id="codex",
        ),
        pytest.param(
            "opencode",
            e.OPENCODE_WRITES,
            "DONE. File written.",
            Usage(2010, 40, 0.0066, cache_read_tokens=10),
            e.SES,
            [LiveEntry("tool", "write /ws/a.txt"), LiveEntry("text", "DONE. File written.")],
            id="opencode",
        ),
        pytest.param(
            "gemini",
            e.GEMINI_WRITES,
            "I will write.\n\nDONE.",
            Usage(900, 30, unpriced=1),
            e.SESSION,
            [
                LiveEntry("text", "I will "),
                LiveEntry("text", "write."),
                LiveEntry("tool", "write_file /ws/a.txt"),
                LiveEntry("text", "DONE."),
            ],
            id="gemini",
        ),
    ],
)
def test_a_turn_that_went_well(
    cli: str,
    stream: list[Event],
    output: str,
    usage: Usage | None,
    session: str,
    shown: list[LiveEntry],
) -> None:
    """Text, tools, usage, session and the good end are found; the live view gets them in order."""
    found, said = transcript(cli, stream)
    assert (found.output, found.spent.usage, found.session) == (output, usage, session)
    assert (found.ending.ended, found.counts.tools, found.counts.garbage) == ("well", 1, 0)
    assert said == shown


# -- Claude Code -----------------------------------------------------------------------------------


def test_pieces_are_shown_once() -> None:
    """What came piece by piece is not shown again when the whole text comes."""
    stream = [
        e.claude_piece("Hello "),
        e.claude_piece("there."),
        e.claude_text("Hello there."),
        e.claude_text("More."),
        e.claude_result(result="More."),
    ]
    found, said = transcript("claude", stream)
    assert [one.text for one in said] == ["Hello ", "there.", "More."]
    assert found.output == "More."
    assert found.spoken.parts == ["Hello there.", "More."]


def test_helpers_of_the_agent_are_not_the_agent() -> None:
    """What a sub-agent says is no answer; the tools it uses are shown."""
    inner = e.claude_says(
        {"type": "text", "text": "inner"},
        {"type": "tool_use", "name": "Grep", "input": {"pattern": "x"}},
        parent_tool_use_id="toolu_9",
    )
    found, said = transcript("claude", [inner, e.claude_piece("in", parent_tool_use_id="toolu_9")])
    assert (found.output, found.counts.tools) == ("", 1)
    assert said == [LiveEntry("tool", "Grep x")]


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        pytest.param({}, Usage(2000, 40, 0.0088), id="since the last result"),
        pytest.param(
            {
                "model_usage_since_last_result": {
                    "a": {"inputTokens": 1, "cacheReadInputTokens": 2, "costUSD": 0.1},
                    "b": {"outputTokens": 3, "cacheCreationInputTokens": 4},
                }
            },
            Usage(7, 3, 0.1, cache_read_tokens=2, cache_write_tokens=4),
            id="several models and caches",
        ),
        pytest.param(
            {"model_usage_since_last_result": None}, Usage(2000, 40, 0.0132), id="totals alone"
        ),
        pytest.param(
            {"model_usage_since_last_result": {}, "usage": None, "total_cost_usd": None},
            None,
            id="nothing used",
        ),
    ],
)
def test_usage_of_claude(more: Event, usage: Usage | None) -> None:
    """The totals of a session are not counted again where it is told what came on top."""
    assert transcript("claude", [e.claude_result(**more)])[0].spent.usage == usage


@pytest.mark.parametrize(
    ("event", "trouble", "problem"),
    [
        pytest.param(
            e.claude_fails("error_max_turns", "Reached maximum number of turns (3)"),
            "turns",
            "Reached maximum number of turns (3)",
            id="turns",
        ),
        pytest.param(
            e.claude_fails("error_max_budget_usd", "Reached maximum budget ($0.02)"),
            "budget",
            "Reached maximum budget ($0.02)",
            id="budget",
        ),
        pytest.param(
            e.claude_fails(
                "error_during_execution", "No conversation found with session ID: 9", usage={}
            ),
            "session",
            "No conversation found with session ID: 9",
            id="session",
        ),
        pytest.param(
            e.claude_fails("error_during_execution", terminal_reason="aborted_tools"),
            "aborted",
            "error_during_execution",
            id="interrupted",
        ),
        pytest.param(
            e.claude_fails("error_during_execution", "odd"), "other", "odd", id="anything else"
        ),
    ],
)
def test_a_turn_of_claude_that_ended_badly(event: Event, trouble: str, problem: str) -> None:
    """The flag decides, and the subtype says which trouble it was."""
    found, _ = transcript("claude", [e.CLAUDE_INIT, event])
    assert (found.ending.ended, found.ending.trouble, found.ending.problem) == (
        "badly",
        trouble,
        problem,
    )


def test_an_api_error_is_an_error_though_it_says_success() -> None:
    """Subtype `success` with the error flag is a failure, and its text is no answer."""
    found, said = transcript("claude", e.claude_api_error(500, "API Error: 500"))
    assert (found.ending.ended, found.ending.trouble, found.ending.status) == ("badly", "api", 500)
    assert (found.output, found.spent.usage, found.ending.problem) == ("", None, "API Error: 500")
    assert said == [note("refused (500): retrying (attempt 1)")]


def test_denials_are_named_once() -> None:
    """A denied tool is known from its event and from the result, and counts once."""
    stream = [
        e.claude("system", subtype="permission_denied", tool_name="Write", tool_use_id="a"),
        e.claude_result(
            permission_denials=[
                {"tool_name": "Write", "tool_use_id": "a"},
                {"tool_name": "Bash", "tool_use_id": "b"},
            ]
        ),
    ]
    found, _ = transcript("claude", stream)
    assert (found.denied, found.ending.ended) == (["Write", "Bash"], "well")


@pytest.mark.parametrize(("status", "blocked"), [("rejected", True), ("allowed", False)])
def test_the_allowance_of_an_account(status: str, blocked: bool) -> None:
    """A used-up allowance is known with the time when it is renewed."""
    info: Event = {"status": status, "resetsAt": 1_800_000_000, "rateLimitType": "five_hour"}
    found, said = transcript("claude", [e.claude("rate_limit_event", rate_limit_info=info)])
    assert (found.limit.blocked, found.limit.resets_at, bool(said)) == (
        blocked,
        1_800_000_000,
        blocked,
    )


def test_structured_output_is_the_result() -> None:
    """What Claude Code validated against the schema is the data."""
    found, _ = transcript("claude", [e.claude_result(structured_output={"answer": 42})])
    assert found.data == {"answer": 42}


# -- the others ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "line"),
    [
        pytest.param(
            {"type": "file_change", "changes": [{"path": "/a"}, {"path": "/b"}]},
            "edit /a, /b",
            id="files",
        ),
        pytest.param({"type": "mcp_tool_call", "server": "s", "tool": "t"}, "s.t", id="mcp"),
        pytest.param({"type": "web_search", "query": "q"}, "search q", id="search"),
        pytest.param({"type": "reasoning", "text": "hm"}, None, id="no tool"),
    ],
)
def test_tools_of_codex(item: Event, line: str | None) -> None:
    """Each kind of tool is shown when it starts, and nothing else is."""
    found, said = transcript("codex", [{"type": "item.started", "item": item}])
    assert [one.text for one in said] == ([] if line is None else [line])
    assert found.counts.tools == len(said)
    assert transcript("codex", [{"type": "item.completed", "item": item}])[1] == []


def test_the_usage_of_codex_is_that_of_its_thread() -> None:
    """Codex tells the sum of a thread, which is not what the call used."""
    found, _ = transcript("codex", e.CODEX_WRITES)
    assert (found.spent.usage, found.spent.total) == (None, Usage(2000, 40, unpriced=1))


def test_what_a_session_used_before_is_taken_off() -> None:
    """The rest of a sum is never less than nothing."""
    assert minus(Usage(30, 6, 0.3), Usage(10, 2, 0.1)) == Usage(20, 4, 0.2)
    assert minus(Usage(1, 1, 0.1), Usage(10, 2, 0.2)) == Usage()


def test_a_turn_of_codex_that_failed() -> None:
    """Tries that failed are notes, the last event says that the turn did."""
    found, said = transcript("codex", e.codex_fails("unexpected status 401 Unauthorized"))
    assert (found.ending.ended, found.ending.problem) == (
        "badly",
        "unexpected status 401 Unauthorized",
    )
    assert {one.kind for one in said} == {"note"}


def test_opencode_ends_with_a_step_that_wants_no_tool() -> None:
    """A step that waits for a tool is not the end, even after one that was."""
    found, _ = transcript("opencode", [e.opencode_step("stop"), e.opencode_step("tool-calls")])
    assert found.ending.ended is None


def test_a_refused_tool_ends_the_turn_of_opencode() -> None:
    """Without a last step and with a refused tool, the turn ended badly, though the code is 0."""
    found, _ = transcript("opencode", e.OPENCODE_REFUSED)
    assert (found.ending.ended, found.denied) == ("badly", ["write"])
    assert found.ending.problem == "permission denied: write"


@pytest.mark.parametrize(
    ("stream", "status", "after", "problem", "trouble"),
    [
        (e.opencode_error("stub error", 401), 401, None, "stub error", "api"),
        (
            e.opencode_error("slow down", 429, responseHeaders={"retry-after": "90"}),
            429,
            90.0,
            "slow down",
            "api",
        ),
        (
            [{"type": "error", "sessionID": e.SES, "error": {"name": "UnknownError"}}],
            None,
            None,
            "UnknownError",
            "other",
        ),
    ],
    ids=["401", "429", "unknown"],
)
def test_an_error_of_opencode(
    stream: list[Event], status: int | None, after: float | None, problem: str, trouble: str
) -> None:
    """The provider's number, its wait and its words are found."""
    found, _ = transcript("opencode", stream)
    assert (found.ending.ended, found.ending.status, found.limit.retry_after) == (
        "badly",
        status,
        after,
    )
    assert (found.ending.problem, found.ending.trouble) == (problem, trouble)


def test_an_error_of_gemini() -> None:
    """A result that is no success ended badly; an error before it is a note."""
    stream: list[Event] = [
        {"type": "error", "message": "retrying"},
        {"type": "result", "status": "error", "error": {"message": "quota exceeded"}},
    ]
    found, said = transcript("gemini", stream)
    assert (found.ending.ended, found.ending.problem, found.spent.usage) == (
        "badly",
        "quota exceeded",
        None,
    )
    assert said == [note("retrying")]
    found, _ = transcript("gemini", [{"type": "result", "stats": {"output_tokens": 3}}])
    assert (found.ending.problem, found.spent.usage) == (
        "it ended with an error",
        Usage(0, 3, unpriced=1),
    )


# -- anything --------------------------------------------------------------------------------------

WHOLE = {
    "claude": e.CLAUDE_WRITES,
    "codex": e.CODEX_WRITES,
    "opencode": e.OPENCODE_WRITES,
    "gemini": e.GEMINI_WRITES,
}
every_cli = pytest.mark.parametrize("cli", sorted(READERS))


@every_cli
def test_unknown_events_and_garbage_are_tolerated(cli: str) -> None:
    """Events of later versions, warnings, half lines and rubbish change nothing."""
    rubbish = b'warning: x\n{"type":"from_the_future","a":[1]}\n{"half": \n\xff\xfe\n\n[1,2]\n{}\n'
    reader = EventStream(cli)
    reader.feed(rubbish + e.lines(WHOLE[cli]) + b'{"type":"text","part":{"te')
    reader.close()
    plain, _ = transcript(cli, WHOLE[cli])
    assert reader.transcript.output == plain.output
    assert reader.transcript.ending.ended == "well"
    assert reader.transcript.counts.garbage == 5


@every_cli
@given(cuts=st.lists(st.integers(0, 3_000), max_size=8))
def test_chunks_may_end_anywhere(cli: str, cuts: list[int]) -> None:
    """However a stream is cut into pieces, the same is read out of it."""
    data = e.lines(WHOLE[cli])
    reader, said, start = EventStream(cli), [], 0
    for cut in [*sorted(cuts), len(data)]:
        said += reader.feed(data[start:cut])
        start = max(start, cut)
    said += reader.close()
    plain, shown = transcript(cli, WHOLE[cli])
    assert reader.transcript == plain
    assert said == shown


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**60), 2**60)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = ["type", "subtype", "item", "part", "message", "usage", "error", "result", "content"]
KINDS = ["system", "assistant", "result", "item.started", "item.completed", "turn.completed"]
KINDS += ["turn.failed", "step_finish", "tool_use", "text", "error", "message", "stream_event"]


@every_cli
@given(
    event=st.fixed_dictionaries(
        {"type": st.sampled_from(KINDS)}, optional={name: JSON for name in NAMES[1:]}
    )
)
def test_no_event_breaks_a_reader(cli: str, event: Event) -> None:
    """Fields of any kind in any place are taken without an exception."""
    found, _ = transcript(cli, [event])
    assert found.counts.garbage == 0


@every_cli
def test_a_line_of_ten_megabytes_is_read(cli: str) -> None:
    """A tool result of that size is one line, and what follows it counts."""
    big: Event = {"type": "user", "message": {"content": "x" * 10_000_000}}
    found, _ = transcript(cli, [big, *WHOLE[cli]])
    assert (found.ending.ended, found.counts.cut) == ("well", 0)


def test_a_line_that_is_too_long_is_left_out_and_counted() -> None:
    """A line beyond the limit is dropped as a whole; lines around it are read."""
    reader = EventStream("claude", line_bytes=2_000)
    reader.feed(b'{"type":"x","a":"' + b"y" * 1_500)
    reader.feed(b"y" * 1_500)
    reader.feed(b'"}\n' + e.lines([e.claude_text("after")]))
    assert (reader.transcript.counts.cut, reader.transcript.spoken.parts) == (1, ["after"])


def test_lines() -> None:
    """Both kinds of line ends are known, and a last line without one."""
    splitter = LineSplitter()
    assert splitter.feed(b"a\r\nb\n\nc") == [b"a", b"b", b""]
    assert splitter.last() == [b"c"]
    assert splitter.last() == []


def test_texts_are_bounded() -> None:
    """An agent that never stops talking does not fill the memory."""
    found = Transcript()
    found.add_text("a" * (TEXT_CHARS - 1))
    found.add_text("bcd", new_part=False)
    found.add_text("more")
    assert len(found.output) == TEXT_CHARS
    assert found.output.endswith("ab")


def test_lines_of_the_live_view_are_short() -> None:
    """A tool or a note is one line that fits."""
    assert tool_line("Bash", "a\n  b").text == "Bash a b"
    assert len(tool_line("Bash", "x" * 999).text) == SHOWN_CHARS
    assert note("y" * 999).text.endswith("…")
    assert json.dumps(note("z").text) == '"z"'
