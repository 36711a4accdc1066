"""Deciding about tool calls: what a person sees, and what may be said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from loopwright.cli.formats import MOST_LINES, call_lines
from loopwright.cli.gate_prompts import GateReply, ask
from loopwright.cli.terminal import CommonOptions, Terminal
from loopwright.kernel.events import GateOpened
from loopwright.model.chat import RequestedCall
from loopwright.model.record import JsonValue
from loopwright.views.run_responses import GateCall
from tests.cli.conftest import Place
from tests.cli.planting import first_event, plant, texts
from tests.kernel.driving import Driver
from tests.kernel.test_cycles import plan as cycle_plan
from tests.kernel.test_cycles import turn
from tests.person import ME

RULES = {"shell.exec": "always", "fs.write": "protected_paths"}
NASTY = "ls \x1b[2J\u202e\u200b\tend"


def held(*calls: RequestedCall, name: str = "run_tools") -> str:
    """A run that waits for decisions about these calls."""
    made = cycle_plan(approvals=RULES)
    driver = Driver(made, texts=texts(), events=[first_event(made, name)]).start()
    driver.answer("main.0/model#1", turn("let me", *calls))
    return plant(made, driver.events)


def shell(id: str = "c1", **arguments: object) -> RequestedCall:
    return RequestedCall(id=id, tool="shell.exec", arguments=arguments or {"argv": ["ls"]})  # type: ignore[arg-type]


def gates(lw: Place) -> list[Any]:
    return lw("inbox", "--json").json["gates"]


def answered(lw: Place, run: str) -> dict[str, Any]:
    [event] = [event for event in lw.events(run) if event["kind"] == "gate.answered"]
    return event


@pytest.mark.item("aldo-34")
def test_what_a_person_sees(lw: Place) -> None:
    """Tool, arguments, why it was held and the model's own reason, in lists and objects."""
    run = held(shell(argv=["make", "deploy"], reason="to ship it"))
    [gate] = gates(lw)
    assert gate["run"] == run
    assert gate["call"] == {
        "id": "c1",
        "tool": "shell.exec",
        "arguments": {"argv": ["make", "deploy"], "reason": "to ship it"},
        "held": "every call of this tool is approved by a person",
        "reason": "to ship it",
    }
    assert lw("show", run, "--json").json["gates"][0]["call"] == gate["call"]
    listed = lw("inbox").out
    assert "shell.exec? (every call of this tool" in listed
    assert '{"argv": ["make", "deploy"]' in listed
    shown = lw("show", run).out
    for words in ("tool       shell.exec", "held       every call", "its words  to ship it"):
        assert words in shown
    assert 'argv: ["make", "deploy"]' in shown
    assert f"loopwright reject {gate['id']} REASON" in shown


def test_nothing_in_arguments_drives_the_terminal(lw: Place) -> None:
    """What cannot be seen is shown by its code, where a person decides, and in the log book."""
    run = held(shell(command=NASTY, text=f"a\n  b {NASTY}"))
    for words in (["inbox"], ["show", run], ["logs", run]):
        out = lw(*words).out
        assert "shell.exec" in out
        assert "\x1b" not in out
        assert "\u202e" not in out
    shown = lw("show", run).out
    assert "ls \\x1b[2J\\u202e\\u200b" in shown
    assert "           b ls" in shown  # blanks at the beginning of a line stay


@pytest.mark.item("G12")
def test_nothing_hides_in_a_command(lw: Place) -> None:
    """Where a person decides, a command is there whole, with what it could hide behind named."""
    hiding = ["sh", "-c", "ls" + " " * 2_000 + "; rm -rf /", "\u202etxt.exe", "\x1b[8mx"]
    run = held(shell(argv=hiding))
    for words in (["inbox"], ["show", run]):
        out = lw(*words).out
        flat = "".join(line.strip() for line in out.splitlines())
        assert "CAREFUL: gate_" in flat
        assert "a long row of blanks" in flat
        assert "ls[2000 blanks]; rm -rf /" in flat
        assert "\\u202etxt.exe" in flat
        assert "\x1b" not in out
        assert "\u202e" not in out
    plain = held(shell(argv=["ls", "é", "日本"]), name="run_plain")
    assert "CAREFUL" not in lw("show", plain).out
    [_, _, line] = call_lines(
        GateCall("c", "shell.exec", arguments={"argv": ["x" * 5_000]}, held="", reason=None)
    )
    assert line.endswith(f'{"x" * 5_000}"]')


def test_long_arguments_are_cut_and_say_so() -> None:
    """Of many lines the first are shown, of a long line its beginning; both tell how much."""

    def call(arguments: JsonValue) -> GateCall:
        return GateCall("c", "fs.write", arguments=arguments, held="", reason=None)

    lines = call_lines(call({"text": "\n".join("ab" * 100)}))
    assert len(lines) == MOST_LINES + 3
    assert lines[-1] == "  … 171 more lines; --json shows all of them"
    [_, _, line] = call_lines(call({"text": "x" * 5_000}))
    assert line.endswith("… (5000 characters in all)")
    assert call_lines(call({}))[-1] == "arguments  {}"


@pytest.mark.item("aldo-36")
def test_an_approval_with_edited_arguments(lw: Place) -> None:
    """JSON, or a file with JSON in it; who decided and when stays, and so does what was edited."""
    run = held(shell())
    file = lw.write("fixed.json", '{"argv": ["ls", "-l"]}')
    told = lw("approve", run, "look only", "--arguments", f"@{file}", "--remember", "--no-drive")
    assert told.code == 0
    event = answered(lw, run)
    assert json.loads(event["arguments"]) == {"argv": ["ls", "-l"]}
    assert (event["decision"], event["text"], event["by"]) == ("approve", "look only", ME)
    assert event["remember"] is True
    assert f"approve with other arguments, and from now on by {ME}" in lw("logs", run).out


def test_long_edited_arguments_are_stored_apart(lw: Place) -> None:
    """They are named by their content, as every long text of an event."""
    run = held(shell())
    given = json.dumps({"argv": ["echo", "x" * 5_000]})
    assert lw("approve", run, "--arguments", given, "--no-drive").code == 0
    assert answered(lw, run)["arguments"]["size"] > 5_000
    assert lw("doctor", "--deep", "--json").json["ok"] is True


@pytest.mark.item("aldo-35", "aldo-39")
@pytest.mark.parametrize("words", [[], [" "]], ids=["nothing", "blanks"])
def test_a_rejection_needs_a_reason(lw: Place, words: list[str]) -> None:
    """Without one it is refused with the command that works, and the call still waits."""
    run = held(shell())
    told = lw("reject", run, *words, "--no-drive", "--json")
    assert (told.code, told.json["status"]) == (2, 400)
    assert told.json["type"].endswith("reason-needed")
    [gate] = gates(lw)
    assert f"loopwright reject {gate['id']}" in told.json["hint"]
    assert lw("reject", gate["id"], "not here", "--no-drive").code == 0
    assert answered(lw, run)["text"] == "not here"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param("{", "not JSON", id="no JSON"),
        pytest.param("", "not JSON", id="nothing"),
        pytest.param('["ls"]', "must be a JSON object", id="a list"),
        pytest.param("null", "must be a JSON object", id="null"),
        pytest.param('{"a": NaN}', "not JSON", id="no number"),
        pytest.param("@nowhere.json", "nowhere.json cannot be read", id="no file"),
        pytest.param("@.", "cannot be read", id="a folder"),
        pytest.param("[" * 3_000, "not JSON", id="deep"),
        pytest.param('{"a": "' + "x" * 1_000_001 + '"}', "more than 1,000,000 bytes", id="long"),
    ],
)
def test_arguments_that_are_none(lw: Place, given: str, words: str) -> None:
    """They are refused with how to write them, and nothing is recorded."""
    run = held(shell())
    told = lw("approve", run, "--arguments", given, "--no-drive")
    assert told.code == 2
    assert words in told.err
    assert "--arguments @FILE" in told.err
    assert len(gates(lw)) == 1


def test_a_file_of_other_bytes(lw: Place) -> None:
    """What is not text, or too much of it, is refused before it is read as JSON."""
    run = held(shell())
    (lw.folder / "bytes").write_bytes(b"\xff\xfe")
    (lw.folder / "large").write_bytes(b" " * 1_000_001)
    assert "not UTF-8" in lw("approve", run, "--arguments", "@bytes", "--no-drive").err
    assert "more than" in lw("approve", run, "--arguments", "@large", "--no-drive").err


@pytest.mark.parametrize("option", [["--arguments", "{}"], ["--remember"]], ids=["edit", "keep"])
def test_other_gates_have_no_arguments(lw: Place, option: list[str]) -> None:
    """A question that is not about a tool call takes neither, and stays open."""
    file = lw.loop(lw.script("one"), until={"person": True})
    run = lw("run", file, "--json").json["run"]
    told = lw("approve", run, *option, "--no-drive")
    assert told.code == 2
    assert "leave out --arguments and --remember" in told.err
    assert len(gates(lw)) == 1
    assert lw("reject", run, "--no-drive").code == 0  # and needs no reason


@pytest.mark.parametrize("verb", ["reject", "continue"])
def test_only_an_approval_takes_arguments(lw: Place, verb: str) -> None:
    """The other verbs do not know the options."""
    told = lw(verb, held(shell()), "x", "--arguments", "{}")
    assert told.code == 2
    assert "--arguments" in told.err


@pytest.mark.item("aldo-33")
def test_each_call_is_answered_alone(lw: Place) -> None:
    """Several open questions: one must be named, and its answer leaves the others open."""
    run = held(shell("c1"), shell("c2", argv=["rm", "x"]))
    first, second = gates(lw)
    told = lw("approve", run, "--no-drive", "--json")
    assert told.code == 2
    for gate in (first, second):
        assert gate["id"] in told.json["detail"]
    assert "shell.exec" in told.json["detail"]
    assert lw("reject", second["id"], "no", "--no-drive").code == 0
    assert [gate["id"] for gate in gates(lw)] == [first["id"]]
    assert lw("approve", run, "--no-drive").code == 0  # the only one that is left
    again = lw("approve", second["id"], "--no-drive")
    assert again.code == 8
    assert f"already answered: reject by {ME}" in again.err


def test_the_hint_names_what_a_call_takes(lw: Place) -> None:
    """A command that leaves a call waiting says how it is answered, and with what."""
    run = held(shell())
    told = lw("resume", run, "--no-wait")
    [gate] = gates(lw)
    assert told.code == 5
    also = "(or with other arguments: --arguments JSON, or reject with a reason)"
    assert f"  loopwright approve {gate['id']}   {also}\n" in told.err


def test_a_call_takes_no_other_word(lw: Place) -> None:
    """`continue` is for passes: it is refused and the call waits on."""
    run = held(shell())
    told = lw("continue", run, "go on", "--no-drive")
    assert told.code == 2
    assert "takes approve, reject, not continue" in told.err
    assert len(gates(lw)) == 1


# -- at the terminal -------------------------------------------------------------------------------


def asked(*lines: str, output: str = '{"argv": ["ls"], "text": "a\\tb"}') -> GateReply | None:
    typed: Iterator[str] = iter(lines)

    async def read_line() -> str | None:
        return next(typed, None)

    gate = GateOpened(
        at=1,
        path="main.0",
        gate="gate_1",
        digest="d" * 32,
        message="Run shell.exec? (held)",
        answers=("approve", "reject"),
        about="tool",
        call=1,
    )
    return asyncio.run(ask(Terminal(CommonOptions()), gate, output, read_line))


@pytest.mark.item("aldo-63")
@pytest.mark.parametrize(
    ("lines", "decision", "text", "arguments", "remember"),
    [
        pytest.param(["a"], "approve", "", None, False, id="approve"),
        pytest.param(["a fine"], "approve", "fine", None, False, id="approve with words"),
        pytest.param(["m"], "approve", "", None, True, id="remember"),
        pytest.param(["r too risky"], "reject", "too risky", None, False, id="reject"),
        pytest.param(["r", " ", "risky"], "reject", "risky", None, False, id="asked for a reason"),
        pytest.param(['e {"a":1}'], "approve", "", '{"a":1}', False, id="edit"),
        pytest.param(["e", "{", "e", '{"a": 2}'], "approve", "", '{"a":2}', False, id="edit twice"),
        pytest.param(["c", "x", "a"], "approve", "", None, False, id="no such answer"),
    ],
)
def test_answers_at_the_terminal(
    lines: list[str], decision: str, text: str, arguments: str | None, remember: bool
) -> None:
    """A key for each decision; a rejection is asked for its reason, bad arguments anew."""
    reply = asked(*lines)
    assert reply is not None
    assert (reply.decision, reply.text) == (decision, text)
    assert (reply.call.arguments, reply.call.remember) == (arguments, remember)


@pytest.mark.parametrize("lines", [["l"], [], ["r"], ["e"]], ids=["leave", "end", "reject", "edit"])
def test_leaving_decides_nothing(lines: list[str]) -> None:
    """Whoever goes away in the middle of an answer has not given one."""
    assert asked(*lines) is None


def test_the_arguments_are_shown_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Each on its own line, blanks and all, with the question and the keys."""
    asked("l")
    told = capsys.readouterr().err
    assert "Run shell.exec? (held)" in told
    assert 'argv: ["ls"]' in told
    assert "[e]dit the arguments" in told
