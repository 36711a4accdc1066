"""`repl`: a prompt at which loops are started, watched, answered and steered."""

import json
import stat

import pytest

from tests.cli.conftest import Place, Told, until
from tests.person import ME

GATED = """
name: gated
steps:
  - {id: write, agent: writer, prompt: Write it.}
  - {id: look, gate: {message: Is it good?}, needs: [write]}
agents: {writer: {}}
"""


def typed(lw: Place, *lines: str, args: tuple[str, ...] = ()) -> Told:
    """What a prompt says to lines that come through a pipe."""
    return lw.real("repl", *args, stdin="".join(f"{line}\n" for line in lines).encode())


def runs(lw: Place) -> list[dict[str, object]]:
    found: list[dict[str, object]] = lw("ls", "--json").json["runs"]
    return found


@pytest.mark.item("coqui-15")
def test_a_loop_is_started_and_seen_through(lw: Place) -> None:
    """A loop that is started here runs here; its iterations and its output are shown as they
    come.
    """
    lw.loop(lw.script("one", "two DONE"), until={"contains": "DONE"})
    told = typed(lw, "/loops start loop.yaml Do it well", "/loops")
    assert told.code == 0, told
    assert "iteration 1/3" in told.err
    assert "two DONE" in told.out
    assert "Completed in 2 iterations" in told.err
    (run,) = runs(lw)
    assert run["status"] == "completed"
    assert lw("show", "last", "--json").json["goal"] == "Do it well"


def test_a_definition_by_its_name(lw: Place) -> None:
    """What `/loops definitions` lists can be started, and its stages are told."""
    agent = lw.script("a plan", "the work", "APPROVED")
    told = typed(lw, "/loops start harness Build it", args=("--agent", agent))
    assert "iteration 1/5: plan started" in told.err
    assert "iteration 1/5: implement: completed" in told.err
    assert [run["status"] for run in runs(lw)] == ["completed"]


def test_a_gate_is_answered(lw: Place) -> None:
    """What waits is told with how it is answered, and /workflow approve lets it go on."""
    lw.write("gated.yaml", GATED)
    agent = lw.script("written")
    first = typed(lw, "/workflow run gated.yaml", args=("--agent", agent))
    assert "approve" in first.err
    (waiting,) = runs(lw)
    assert waiting["status"] == "waiting"
    told = typed(lw, "/inbox", f"/workflow approve {str(waiting['run'])[-6:]} fine")
    assert "Is it good?" in told.out
    assert f"{waiting['run']}: approve" in told.out
    (ended,) = runs(lw)
    assert ended["status"] == "completed"
    answered = [event for event in lw.events(str(ended["run"])) if event["kind"] == "gate.answered"]
    assert [(one["decision"], one["text"], one["by"]) for one in answered] == [
        ("approve", "fine", ME)
    ]


@pytest.mark.parametrize(
    ("word", "status"),
    [("reject", "failed"), ("abandon", "cancelled"), ("cancel", "cancelled")],
)
def test_other_ends(lw: Place, word: str, status: str) -> None:
    """A workflow that waits can be turned down, given up and ended."""
    lw.write("gated.yaml", GATED)
    typed(lw, "/workflow run gated.yaml", args=("--agent", lw.script("written")))
    typed(lw, f"/workflow {word} last")
    assert [run["status"] for run in runs(lw)] == [status]


@pytest.mark.item("coqui-43", "coqui-46")
def test_steering_all(lw: Place) -> None:
    """`all` acts on what can be acted on and tells how many; with none that is no error."""
    lw.write("gated.yaml", GATED)
    agent = lw.script("written", "written")
    start = "/workflow run gated.yaml"
    typed(lw, start, start, args=("--agent", agent))
    told = typed(lw, "/loops pause all", "/loops pause all")
    assert told.out.count(": paused") == 2
    assert "2 paused" in told.out
    assert "nothing to do: 0 paused" in told.out
    assert {run["status"] for run in runs(lw)} == {"paused"}
    told = typed(lw, "/loops stop ALL", "/loops stop all")
    assert "2 stopped" in told.out
    assert "nothing to do: 0 stopped" in told.out
    assert {run["status"] for run in runs(lw)} == {"cancelled"}


@pytest.mark.item("coqui-44", "coqui-47")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("hello", "commands begin with /"),
        ("/lops", "did you mean /loops?"),
        ("/loops show last", "did you mean /loops status?"),
        ("/loops kill last", "did you mean /loops stop?"),
        ("/loops ls", "did you mean /loops?"),
        ("/workflow aprove x", "did you mean /workflow approve?"),
        ("/nothing at all", "/help lists them"),
        ("/loops status nobody", "no run 'nobody'"),
        ("/loops pause", "write /loops pause RUN|all"),
        ("/workflow approve", "write /workflow approve GATE|RUN [TEXT]"),
        ("/workflow approve gate_nope", "no gate 'gate_nope'"),
        ("/workflow run", "write /workflow run [--input NAME=VALUE] [--max N] [--worktree]"),
        ("/workflow run nowhere.yaml", "nowhere.yaml"),
        ("/workflow run bad.yaml", "unknown-field"),
        ("/loops stop last", "has already ended"),
    ],
)
def test_mistakes_are_reported_and_nothing_is_lost(lw: Place, line: str, told: str) -> None:
    """A mistake is told with what to write, and the prompt goes on; its exit code is the end's."""
    lw.loop(lw.script("fine"), until={"contains": "fine"})
    lw.write("bad.yaml", json.dumps({"name": "x", "agent": "script:replies.yaml", "gaol": "y"}))
    assert lw("run", "loop.yaml").code == 0
    said = typed(lw, line, "/help loops")
    assert said.code == (8 if "has already ended" in told else 2), said
    assert told in said.err
    assert "/loops status RUN" in said.out
    assert len(runs(lw)) == 1


def test_the_worst_of_several_mistakes(lw: Place) -> None:
    """Of all commands that failed the worst counts, whatever came after it; a loop that failed is
    no command that failed.
    """
    lw.loop(lw.script("a", "b", "c"), until={"contains": "fine"})
    assert typed(lw, "/loops start loop.yaml").code == 0
    assert [run["status"] for run in runs(lw)] == ["exhausted"]
    assert typed(lw, "/loops stop last", "/lops", "/loops").code == 8


def test_at_a_terminal(lw: Place) -> None:
    """Tab completes, lines are kept for the next time by nobody else to read, /quit leaves."""
    lw.loop(lw.script("fine"), until={"contains": "fine"})
    with lw.terminal("repl") as terminal:
        terminal.wait_for("loopwright>")
        terminal.type("/loops st\t")
        terminal.wait_for("start")
        terminal.type("\x15/loops start loop.yaml\r")
        terminal.wait_for("Completed in 1 iteration")
        terminal.type("/lops\r")
        terminal.wait_for("did you mean")
        terminal.type("/quit\r")
        assert terminal.leave() == 0
    history = lw.folder.parent / "home" / "history"
    assert "/loops start loop.yaml" in history.read_text(encoding="utf-8")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_leaving_in_the_middle(lw: Place) -> None:
    """Who leaves while a loop runs is told how it is taken up again; nothing of it is lost."""
    agent = lw.probe({"say": "fine", "wait_for": "go"})
    lw.loop(agent, until={"contains": "fine"})
    with lw.terminal("repl") as terminal:
        terminal.wait_for("loopwright>")
        terminal.type("/loops start loop.yaml\r")
        until(lambda: bool(lw.calls()))
        terminal.type("/quit\r")
        terminal.wait_for("continues it")
        assert terminal.leave() == 0
    (run,) = runs(lw)
    assert run["status"] == "running"
    lw.write("go", "")
    assert lw("resume", "last").code == 0
    assert [one["status"] for one in runs(lw)] == ["completed"]


@pytest.mark.item("coqui-81")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/loops frobnicate", "unknown command /loops frobnicate"),
        ("/loops stauts x", "did you mean /loops status?"),
        ("/inbox x", "unknown command /inbox x"),
        ("/workflow frobnicate", "unknown command /workflow"),
    ],
)
def test_unknown_subcommands_are_refused(lw: Place, line: str, says: str) -> None:
    """Nothing is listed in their place, and the exit code says that a command was wrong."""
    told = typed(lw, line)
    assert told.code == 2
    assert says in told.err
    assert told.out == ""


@pytest.mark.item("coqui-46", "coqui-82")
@pytest.mark.parametrize("word", ["/loops", "/workflow"])
def test_everything_that_was_paused_here_is_resumed_without_a_server(lw: Place, word: str) -> None:
    """`resume all` resumes what this very prompt has paused and drives. The first stage takes long
    enough to be paused, however fast the machine is.
    """
    slow = [
        {"when": {"agent": "plan"}, "text": "a plan", "delay": 3},
        {"when": {"agent": "coder"}, "text": "the work"},
        {"when": {"agent": "reviewer"}, "text": "APPROVED"},
    ]
    lw.write("slow.yaml", json.dumps({"replies": slow}))
    agent = "script:slow.yaml"
    told = typed(
        lw,
        "/loops start harness Build it",
        "/loops pause all",
        f"{word} resume all",
        args=("--agent", agent),
    )
    assert told.code == 0, told
    assert ": paused" in told.out
    assert ": resumed" in told.out
    assert [run["status"] for run in runs(lw)] == ["completed"]


@pytest.mark.item("coqui-81", "coqui-82", "coqui-87")
def test_the_table_of_commands(lw: Place) -> None:
    """Each of them is understood, for one loop and for all."""
    agent = lw.script("a plan", "the work", "APPROVED")
    lw("run", "harness", "Build it", "--agent", agent)
    lines = [
        "/loops",
        "/loops definitions",
        "/loops status last",
        "/loops pause all",
        "/loops resume all",
        "/loops stop all",
    ]
    told = lw.real("repl", stdin="".join(f"{line}\n" for line in lines).encode())
    assert told.code == 0, told
    assert "harness" in told.out
    assert "plan → coder → reviewer" in told.out
    assert told.out.count("nothing to do") == 3
    for word in ("pause", "resume", "stop"):
        refused = lw.real("repl", stdin=f"/loops {word}\n".encode())
        assert (refused.code, f"/loops {word} RUN|all" in refused.err) == (2, True)


@pytest.mark.item("coqui-10", "coqui-13")
def test_a_loop_is_started_with_parameters_and_a_limit(lw: Place) -> None:
    """`--input` and `--max` as for the command `run`; a wrong number is refused."""
    agent = lw.script("facts", "the table", "Rejected")
    line = '/loops start --input output_format="comparison matrix" --max 1 research Look at it'
    told = typed(lw, line, "/loops start --max x research y", args=("--agent", agent))
    assert told.code == 2
    assert "write /loops start" in told.err
    (run,) = runs(lw)
    first = lw.events(str(run["run"]))[0]
    assert first["inputs"]["output_format"] == "comparison matrix"
    assert first["message"] == "Look at it"
    assert run["status"] == "exhausted"
