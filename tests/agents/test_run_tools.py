"""Programs that use the tools of their run, and how they receive the answers."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from loopwright.agents.json_lines import (
    LATE,
    MOST_TOOLS,
    TOOL_CHARS,
    JsonLinesAnswer,
    Submission,
    run_tool_names,
)
from loopwright.agents.processes.process import PipeFeed
from loopwright.kernel.event_parts import AgentCall, ToolUse
from loopwright.model.record import JsonValue
from loopwright.ports import (
    Answer,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    InboxMessage,
    ToolReply,
)
from tests.agents.calls import Stage, agent, job

MB = 1024 * 1024
SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer"}},
}
HEAD = """
import json, os, sys, time
sys.stdin.read()
inbox = open(os.environ["LOOPWRIGHT_INBOX"])
def say(**line): print(json.dumps(line), flush=True)
def use(name, **args):
    say(type="tool", name=name, args=args, id="7")
    return json.loads(inbox.readline())
"""


class Run:
    """A run that answers every use by a table, and remembers them."""

    def __init__(self, answers: dict[str, ToolReply] | None = None) -> None:
        self.answers = answers or {}
        self.uses: list[tuple[str, JsonValue]] = []

    async def use(self, tool: str, arguments: JsonValue) -> ToolReply:
        self.uses.append((tool, arguments))
        await asyncio.sleep(0)
        if tool == "read_inbox" and arguments == {"wait": 600}:
            await asyncio.Event().wait()
        return self.answers.get(tool, ToolReply(text="ok"))

    def end_waiting(self) -> None:
        """Programs that read lines of their own choice are not asked to stop."""


def spec(folder: Path, code: str, kind: str = "jsonl") -> str:
    program = folder / "agent.py"
    program.write_text(HEAD + code if kind == "jsonl" else code, encoding="utf-8")
    return f"{kind}:{sys.executable} -I -S {program}"


def ask(
    folder: Path,
    code: str,
    run: Run | None = None,
    *,
    hour_after: Callable[[], bool] | None = None,
    **more: object,
) -> Answer:
    what = job(folder, agent=agent(spec(folder, code)), talk=run or Run(), **more)
    return Stage().perform(what, hour_after=hour_after)


def test_a_use_is_answered_in_the_pipe(tmp_path: Path) -> None:
    """The answer names the tool and the id; messages come with who wrote them."""
    letter = InboxMessage(sender="coordinator", text="mind the gap")
    run = Run({"read_inbox": ToolReply(text="1 messages", messages=(letter,))})
    code = """
one, two = use("send_message", text="hi"), use("read_inbox")
say(type="result", text=json.dumps([one, two]))
"""
    answer = ask(tmp_path, code, run)
    assert isinstance(answer, EffectSuccess), answer
    assert json.loads(answer.output) == [
        {"type": "tool_result", "name": "send_message", "result": "ok", "id": "7"},
        {
            "type": "tool_result",
            "name": "read_inbox",
            "result": "1 messages",
            "id": "7",
            "messages": [{"from": "coordinator", "text": "mind the gap", "kind": "info"}],
        },
    ]
    assert run.uses == [("send_message", {"text": "hi"}), ("read_inbox", {})]
    assert [tool.name for tool in answer.tools] == ["send_message", "read_inbox"]


def test_a_refusal_is_marked(tmp_path: Path) -> None:
    """What did not work is an error, with the words that say why."""
    run = Run({"send_message": ToolReply(text="dropped: no-coordinator", ok=False)})
    answer = ask(tmp_path, 'say(type="text", text=json.dumps(use("send_message", text="x")))', run)
    told = json.loads(answer.output)
    assert (told["is_error"], told["result"]) == (True, "dropped: no-coordinator")


def test_what_was_said_last_is_still_read(tmp_path: Path) -> None:
    """A program that writes and leaves, without even ending its line, has written."""
    run = Run()
    line = '{"type": "tool", "name": "send_message", "args": {"text": "bye"}}'
    answer = ask(tmp_path, f"sys.stdout.write({line!r})", run)
    assert isinstance(answer, EffectSuccess)
    assert run.uses == [("send_message", {"text": "bye"})]


def test_a_reader_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """A program that asks for mail and does not wait for it ends its call."""
    code = """
say(type="tool", name="read_inbox", args={"wait": 600})
say(type="tool", name="send_message", args={"text": "gone"})
say(type="tool", name="read_inbox", args={"wait": 600})
"""
    run = Run()
    assert isinstance(ask(tmp_path, code, run), EffectSuccess)
    assert [tool for tool, _ in run.uses] == ["read_inbox", "send_message"]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param({"type": "tool", "name": "send_message", "result": "sent"}, id="done already"),
        pytest.param({"type": "tool", "name": "narrate", "args": {"text": "x"}}, id="not its tool"),
        pytest.param({"type": "text", "text": "send_message"}, id="words"),
    ],
)
def test_other_lines_are_no_use(tmp_path: Path, line: dict[str, JsonValue]) -> None:
    """Only a tool of the run, without a result, is a use of it."""
    run = Run()
    assert isinstance(ask(tmp_path, f"say(**{line!r})", run), EffectSuccess)
    assert run.uses == []


@pytest.mark.parametrize(
    ("call", "more", "tools"),
    [
        pytest.param(AgentCall(agent="a"), {}, ("send_message", "read_inbox"), id="step"),
        pytest.param(
            AgentCall(agent="a", role="coordinator"),
            {},
            ("forward_to_agent", "narrate", "finalize"),
            id="coordinator",
        ),
        pytest.param(
            AgentCall(agent="a", role="judge"), {"schema": SCHEMA}, ("submit_result",), id="judge"
        ),
        pytest.param(AgentCall(agent="a"), {"talk": None}, (), id="nobody to talk to"),
    ],
)
def test_who_has_which_tools(
    tmp_path: Path, call: AgentCall, more: dict[str, object], tools: tuple[str, ...]
) -> None:
    """A step, the coordinator and a judge each have their own; a schema adds the result."""
    what: EffectJob = job(tmp_path, call, **{"talk": Run(), **more})
    assert run_tool_names(what) == tools


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe is gone after the call."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = ask(tmp_path, 'say(type="text", text=os.environ["LOOPWRIGHT_INBOX"])')
    assert not os.path.exists(answer.output)
    assert list(tmp_path.glob("loopwright-*")) == []


# -- results ---------------------------------------------------------------------------------------


def test_the_first_result_that_fits_counts() -> None:
    """What does not fit is explained; after one that fits nothing is taken."""
    submission = Submission(lambda text: None if text == "1" else "not one")
    assert submission.check(2) == ToolReply(text="not taken: not one", ok=False)
    assert submission.check(1).ok
    assert submission.check(1) is LATE
    assert submission.accepted == "1"


@pytest.mark.item("zenflow-56")
def test_an_accepted_result_ends_the_talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that stays is ended, and that is no failure; what it used is counted."""
    # The time to say the rest is over when it was said, however long the machine took.
    monkeypatch.setattr("loopwright.agents.processes.process._LINGER_SECONDS", 600)
    code = """
use("submit_result", n=3)
say(type="usage", output_tokens=5)
open("said", "w").close()
time.sleep(60)
"""
    answer = ask(tmp_path, code, schema=SCHEMA, hour_after=(tmp_path / "said").exists)
    assert isinstance(answer, EffectSuccess), answer
    assert answer.result == '{"n":3}'
    assert answer.usage is not None
    assert answer.usage.output_tokens == 5


@pytest.mark.item("zenflow-56")
def test_a_submitted_result_beats_a_later_result_line(tmp_path: Path) -> None:
    """The result line may still give the text; its data comes too late."""
    code = 'use("submit_result", n=3); say(type="result", text="done", data={"n": 4})'
    answer = ask(tmp_path, code, schema=SCHEMA)
    assert isinstance(answer, EffectSuccess)
    assert (answer.result, answer.output) == ('{"n":3}', "done")


@pytest.mark.item("zenflow-56")
def test_without_a_result_that_fits_the_call_fails(tmp_path: Path) -> None:
    """What was handed in did not fit, and nothing else was."""
    answer = ask(tmp_path, 'assert use("submit_result", n="x")["is_error"]', schema=SCHEMA)
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "bad_result"


# -- tools that were used --------------------------------------------------------------------------


@pytest.mark.item("zenflow-67")
def test_tools_are_noted_with_bounds_and_masks() -> None:
    """Name and input, without secrets, cut, and only so many."""
    spoken = JsonLinesAnswer()
    for _ in range(MOST_TOOLS + 5):
        spoken.add_line(b'{"type": "tool", "name": "sh", "args": {"api_key": "k", "x": "y"}}')
    assert len(spoken.tools) == MOST_TOOLS
    assert spoken.tools[0] == ToolUse(name="sh", input='{"api_key":"***","x":"y"}')
    long = JsonLinesAnswer()
    long.add_line(json.dumps({"type": "tool", "name": "n" * 500, "args": "z" * 5_000}).encode())
    assert len(long.tools[0].input) == TOOL_CHARS + 1
    assert len(long.tools[0].name) == 100
    bare = JsonLinesAnswer()
    bare.add_line(b'{"type": "tool", "name": "ls"}')
    assert bare.tools == [ToolUse(name="ls")]


# -- the pipe --------------------------------------------------------------------------------------


def test_a_slow_reader_gets_everything_in_order() -> None:
    """More than a pipe holds is kept until it is read; beyond the limit it is dropped."""

    async def body() -> bytes:
        read, write = os.pipe()
        trickle = PipeFeed(write, b"", keep_open=True, most=MB)
        for number in range(3):
            trickle.write(str(number).encode() * 100_000)
        trickle.write(b"x" * (MB + 1))
        found = b""
        os.set_blocking(read, False)
        while len(found) < 300_000:
            with suppress(BlockingIOError):
                found += os.read(read, 65_536)
            await asyncio.sleep(0)
        trickle.close()
        trickle.close()
        trickle.write(b"late")
        os.close(read)
        return found

    assert asyncio.run(body()) == b"0" * 100_000 + b"1" * 100_000 + b"2" * 100_000
