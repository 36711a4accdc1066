"""What a command says with `--server` is what it says on the machine of the server: the same words,
JSON and exit code, as long as both look at the same runs.
"""

import asyncio
import json
import re
import signal
import threading
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from loopwright.cli.main import COMMANDS
from loopwright.client.http_transport import HttpTransport
from loopwright.kernel.events import GateOpened, IterationStarted
from loopwright.operations.dialects import exit_codes
from tests.cli.aldo import DONE, says
from tests.cli.conftest import Place, Told, lw
from tests.http.served import Served, left_when_followed, served
from tests.http.test_approvals import started
from tests.http.test_command_line import There
from tests.http.test_loops import start, until
from tests.journeys.flows import flow

__all__ = ["lw"]


class Both(There):
    """The command line at a server, and on the machine of that server."""

    def here(self, *args: str) -> Told:
        """In its data directory, past it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOOPWRIGHT_HERE", "1")
            return self.lw(*args, "--data-dir", str(self.server.folder / "home"))

    def alike(self, *args: str) -> Told:
        """The same at both doors; what was said."""
        here, there = self.here(*args), self(*args)
        said = there.out.replace(f" --server {self.url}", "")
        assert (there.code, said, there.err) == (here.code, here.out, here.err), args
        return Told(there.code, said, there.err)


def named(value: object) -> str:
    """A command line as the name of its test; what is expected of it is told with a failure."""
    return " ".join(value) if isinstance(value, list) else ""


@pytest.fixture
def both(lw: Place, shared: Served, monkeypatch: pytest.MonkeyPatch) -> Both:
    """The server of this module, and the command line for it."""
    monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", "http://127.0.0.1:9/v1")  # nobody is there
    return Both(lw, shared, monkeypatch)


@pytest.fixture(scope="module")
def done(shared: Served) -> str:
    """A loop of roles that has come to its end in two rounds."""
    loop = str(start(shared, "Needs changes: no test \N{BELL}", "APPROVED")["loop"]["id"])
    until(shared, loop, "completed")
    return loop


@pytest.fixture(scope="module")
def telling(shared: Served) -> str:
    """A run of a system that tells events of its own."""
    with pytest.MonkeyPatch.context() as patch:
        run, wires = started(shared, says(DONE), monkeypatch=patch)
        shared.until(run, "completed")
        wires.__exit__(None, None, None)
    return str(run)


# -- looking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "RUN"], 0, "completed"),
        (["show", "RUN", "--json"], 0, '"seq": '),
        (["show", "RUN", "--metrics"], 0, "iterations of main"),
        (["show", "RUN", "--metrics", "--json"], 0, '"rounds"'),
        (["show", "RUN", "--svg", "-"], 0, "<svg"),
        (["show", "RUN", "--svg", "new.svg", "--json"], 0, '"rounds"'),
        (["show", "RUN", "--output", "main.0.plan"], 0, "The plan."),
        (["show", "RUN", "--output", "main.0.plan", "--json"], 0, '"output": "The plan."'),
        (["show", "RUN", "--output", "main.0.plam"], 2, "did you mean main.0.plan?"),
        (["show", "none", "--metrics"], 2, "no run 'none'"),
        (["show", "none", "--output", "main"], 2, "loopwright ls"),
        (["logs", "RUN"], 0, "agent coder"),
        (["logs", "RUN", "--json"], 0, '"entries"'),
        (["logs", "RUN", "-f"], 0, "APPROVED"),
        (["logs", "RUN", "-f", "--json"], 2, "--follow has no end"),
        (["logs", "none"], 2, "no run 'none'"),
        (["logs", "none", "--json"], 2, "urn:loopwright:problem:not-found"),
        (["events", "RUN", "--after", "3"], 0, "run.finished"),
        (["events", "RUN", "-f"], 0, "run.finished"),
        (["events", "RUN", "--dialect"], 2, "has no events of its own"),
        (["events", "RUN", "--dialect", "--json"], 2, "urn:loopwright:problem:no-events"),
        (["events", "none", "--json"], 2, "urn:loopwright:problem:not-found"),
        (["events", "TOLD", "--dialect"], 0, '"type"'),
        (["events", "TOLD", "--dialect", "--after", "4", "--json"], 0, '"type"'),
        (["events", "TOLD", "--dialect", "--follow"], 0, '"type"'),
        (["events", "TOLD", "--dialect", "-f", "--after", "6"], 0, '"type"'),
    ],
    ids=named,
)
def test_looking(
    both: Both, done: str, telling: str, words: list[str], code: int, said: str
) -> None:
    """Pages, figures, pictures, outputs, logs and events."""
    names = {"RUN": done, "TOLD": telling}
    told = both.alike(*[names.get(word, word) for word in words])
    assert told.code == code
    assert said in told.out + told.err
    if "new.svg" in words:
        assert (both.lw.folder / "new.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_viewer_may_look(both: Both, done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is only looked at."""
    monkeypatch.setenv("LOOPWRIGHT_TOKEN", both.server.made("viewer"))
    for words in (["logs", done], ["show", done, "--metrics"], ["show", done, "--svg", "-"]):
        assert both.alike(*words).code == 0


def test_logs_in_pages(shared: Served, done: str) -> None:
    """Programs read them page by page, by number; the pages are the whole."""
    base, asked = f"/api/v1/runs/{done}/logs", {"Accept": "application/json"}
    whole = shared("GET", base, headers=asked).json
    assert (whole["run"], whole["next"]) == (done, None)
    found: list[Any] = []
    more: int | None = 0
    while more is not None:
        page = shared("GET", f"{base}?after={more}&limit=3", headers=asked).json
        found, more = [*found, *page["entries"]], page["next"]
        assert 0 < len(page["entries"]) <= 3
    assert found == whole["entries"]
    nothing = shared("GET", f"{base}?after={whole['seq']}", headers={"Accept": "text/event-stream"})
    assert nothing.status == 204


def test_a_picture_runs_nothing(shared: Served, done: str) -> None:
    """Whoever opens it in a browser gets a drawing, alone."""
    drawn = shared("GET", f"/api/v1/runs/{done}/picture")
    assert drawn.headers["content-type"].startswith("image/svg+xml")
    assert drawn.headers["content-security-policy"].startswith("sandbox; default-src 'none'")


@pytest.mark.parametrize(
    "path", ["output", "output?path=", "output?path=x&other=1", "logs?limit=0"]
)
def test_what_is_asked_wrongly(shared: Served, done: str, path: str) -> None:
    """A question that cannot be answered is a problem that says why."""
    reply = shared("GET", f"/api/v1/runs/{done}/{path}", headers={"Accept": "application/json"})
    assert (reply.status, reply.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.parametrize("verb", ["metrics", "picture", "output?path=main", "logs"])
def test_a_run_that_is_none(shared: Served, verb: str) -> None:
    """Nothing of that name: 404."""
    reply = shared("GET", f"/api/v1/runs/run_none/{verb}")
    assert (reply.status, reply.code) == (404, "not-found")


def test_logs_are_followed(both: Both) -> None:
    """What is said while somebody listens is told, until the run has ended."""
    run, gate = both.server.gated()

    def approve() -> None:
        both.server.followed(GateOpened)
        both.server("POST", f"/api/v1/gates/{gate}/approve", {})

    answer = threading.Thread(target=approve, daemon=True)
    answer.start()
    told = both("logs", run, "--follow")
    answer.join()
    assert told.code == 0
    assert "asked (gate_" in told.out
    assert "approve by first-start" in told.out
    assert "Completed" in told.out.splitlines()[-1]


def test_a_run_that_ended_twice_is_followed_to_its_end(both: Both) -> None:
    """The first end is not the last."""
    agent = both.server.script({"fail": "no space"}, "DONE", name="twice.yaml")
    run = both.server.start(both.server.definition(agent, until={"contains": "DONE"}, max=1))
    both.server.until(run, "failed")
    assert both("resume", run).code == 0
    both.server.until(run, "completed")
    kinds = [event["kind"] for event in both("events", run, "--follow").lines]
    assert (kinds.count("run.finished"), kinds[-1]) == (2, "run.finished")
    logs = both.alike("logs", run, "-f").out
    assert ("✗ Failed in iteration 1 of 1: " in logs, "✓ Completed in 1 iteration" in logs) == (
        True,
        True,
    )


def test_everyone_who_leaves_changes_nothing(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the watch and not the run, and says so."""
    follow = HttpTransport.follow

    async def interrupted(*args: Any, **more: Any) -> AsyncIterator[Any]:
        yield await anext(aiter(follow(*args, **more)))
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(HttpTransport, "follow", interrupted)
    file = both.lw.loop(both.server.script("a", "DONE", name="left.yaml"), until={"contains": "D"})
    told = both("run", file)
    assert told.code == 130
    run = re.findall(r"run_[0-9a-z]{26}", told.err)[-1]
    assert f"{run} keeps running\n  loopwright watch {run} --server {both.url}" in told.err
    both.server.until(run, "completed")


@pytest.mark.parametrize("verb", ["logs", "run"])
def test_a_server_that_leaves(
    lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """With --no-retry a command that follows leaves with 7 when the line breaks."""
    with served(tmp_path, home="elsewhere") as server:
        there = There(lw, server, monkeypatch)
        slow = server.script({"text": "a", "delay": 600})
        run = server.gated()[0] if verb == "logs" else lw.loop(slow)
        ending = left_when_followed(server, GateOpened if verb == "logs" else IterationStarted)
        told = there(verb, run, *["-f"] * (verb == "logs"), "--no-retry")
        ending.join()
    assert (told.code, "does not answer" in told.err) == (7, True)
    assert {"logs": "asked (gate_", "run": "iteration 1/3 started"}[verb] in told.out + told.err


# -- starting --------------------------------------------------------------------------------------

FILES = {
    "bad.yaml": "name: a\ngoal: b\nagnet: c\n",
    "two.yaml": "name: a\nagent: command:true\nsteps: [{id: x, prompt: x}, {id: y, prompt: y}]\n",
    "loop.yaml": "name: a\nagent: command:true\ngoal: b\nrepeat: {max: 2}\n",
    "chat.yaml": "name: a\nagent: model:local/tiny\ngoal: b\nrepeat: {max: 2}\n",
    "odd.yaml": "name: x\nsteps: [{id: a, run: x}, {id: b, stop: '{{steps.a.output}}'}]\n",
    "whose.yaml": "name: a\ngoal: b\nrepeat: {max: 2}\n",
    "parts.yaml": "name: x\nsteps:\n  - {id: a, include: part.yaml}\n",  # which is not there
}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bad.yaml"], 2, "bad.yaml:3:1: unknown-field: agnet (did you mean agent?)"),
        (["bad.yaml", "--json"], 2, '"file": "bad.yaml"'),
        (["parts.yaml"], 2, "parts.yaml:3:22: cannot-read"),
        (["none.yaml"], 2, "none.yaml"),
        (["whose.yaml"], 2, "--agent"),
        (["loop.yaml", "--input", "x"], 2, "write --input NAME=VALUE"),
        (["loop.yaml", "--input", "x=1"], 2, "x"),
        (["loop.yaml", "--budget", "usd"], 2, "is not NAME=VALUE"),
        (["loop.yaml", "--json", "--jsonl"], 2, "exclude each other"),
        (["loop.yaml", "--name", ""], 2, "--name cannot be that"),
        (["loop.yaml", "--workspace", "/none"], 2, "/none is not a folder"),
        (["loop.yaml", "--base-branch=-x"], 2, "is not a name of a branch"),
        (["loop.yaml", "--promoted"], 6, "loop.yaml was not promoted as it is now"),
        (["loop.yaml", "--file-tools-only"], 2, "hold chat models alone"),
        (["two.yaml", "--max", "2"], 2, "--max is for a definition that is one loop"),
        (["chat.yaml", "--deny", "fs.wriet"], 2, "did you mean fs.write?"),
        (["chat.yaml", "--ask", "fs.read,nothing", "--json"], 2, "bad-tool"),
        (["loop.yaml", "--dry-run"], 0, "a dry run, nothing is called"),
        (["whose.yaml", "--dry-run", "--json", "--max", "7"], 0, '"endings"'),
        (["bad.yaml", "--dry-run"], 2, "unknown-field"),
    ],
    ids=named,
)
def test_starts_that_start_nothing(both: Both, words: list[str], code: int, said: str) -> None:
    """A start that cannot be, and one that is only rehearsed, are told alike."""
    for name, text in FILES.items():
        both.lw.write(name, text)
    told = both.alike("run", *words)
    assert (told.code, said in told.out + told.err) == (code, True), told
    assert both("ls", "--json").json["runs"] == both.here("ls", "--json").json["runs"]


def test_tools_are_taken_there(both: Both) -> None:
    """A start takes tools from chat models and holds others for a person; it lets nothing pass
    unasked, whoever starts it.
    """
    file = str(both.lw.write("chat.yaml", FILES["chat.yaml"]))
    words = ["--deny", "fs.write,fs.edit", "--ask", "fs.read", "--detach", "--json"]
    run = both("run", file, *words).json["run"]
    service = both.server.context.service
    plan = both.server.call(lambda: service.plan(service.events(run)[0].event))
    agent = next(iter(plan.agents.values()))
    assert (agent.deny_tools, agent.approvals) == (("fs.write", "fs.edit"), {"fs.read": "always"})
    both("stop", run)
    runs = both("ls", "--json").json
    refused = both("run", file, "--allow", "all")
    assert (refused.code, "start the run on that machine" in refused.err) == (6, True)
    told = both("run", file, "--allow", "fs.read", "--json")
    assert told.json["type"] == "urn:loopwright:problem:widens"
    for words in (("--permission", "all"), ("--permission", "edit"), ("--tools", "+fs.write")):
        assert both("run", file, *words, "--json").json["type"].endswith(":widens")
    assert both("ls", "--json").json == runs


def test_what_happens_is_reported_alike(both: Both) -> None:
    """Passes, checks, steps, failures and ends on stderr, events and results on stdout."""
    folder = ["--workspace", str(both.server.folder)]
    loop = both.lw.loop(both.server.script("a", "DONE", name="d.yaml"), until={"contains": "DONE"})
    capped = both.lw.loop("command:echo x", name="capped.yaml", max=2, until={"contains": "y"})
    file = str(both.lw.write("flow.yaml", flow("  - {id: plan, agent: w, instructions: x}\n")))
    bad = both.server.script({"fail": "no\nspace"}, name="bad.yaml")
    for words in (
        [loop, "Do it."],
        [loop, "Do it.", "--json", "--name", "mine"],
        [loop, "--jsonl"],
        [loop, "-q"],
        [capped],
        [file, "Go.", "--agent", bad],
    ):
        here, there = both.here("run", *words, *folder), both("run", *words, *folder)
        assert told_apart(there) == told_apart(here), words


def told_apart(told: Told) -> tuple[int, list[str], list[str]]:
    """What was said, without what is another with every run."""
    only_here = ("driven by", "loopwright resume")  # who drives, and what is not done from afar
    lines = [one for one in told.err.splitlines() if not any(word in one for word in only_here)]
    said = [re.sub(r"run_[0-9a-z]{26}", "RUN", one) for one in lines]
    said = [re.sub(r" --server \S+|[\d.]+ s\b", "", one) for one in said]
    lines = told.out.splitlines()
    if '"kind"' in told.out:  # times differ, and with them what an event says about them
        lines = [f"{event['seq']} {event['kind']} {event['path']}" for event in told.lines]
    lines = [re.sub(r"run_[0-9a-z]{26}", "RUN", one) for one in lines]
    return told.code, [re.sub(r"[\d.]+ s\b", "", one) for one in lines], said


def test_words_in_pages(shared: Served, done: str) -> None:
    """Programs that show a run to people have the lines too, from any number on."""
    base, asked = f"/api/v1/runs/{done}/events", {"Accept": "application/json"}
    whole = shared("GET", f"{base}?words=true&limit=1000", headers=asked).json["events"]
    assert whole[0]["told"] == {"text": f"{done} started: harness", "good": None, "detail": ""}
    late = shared("GET", f"{base}?words=true&after=5&limit=4", headers=asked).json["events"]
    assert late == whole[5:9]
    plain = shared("GET", f"{base}?limit=1000", headers=asked).json["events"]
    assert [{**one, "told": 0} for one in plain] == [{**one, "told": 0} for one in whole]


def test_a_start_with_its_options(both: Both) -> None:
    """Passes and exit codes as they were asked for."""
    agent = both.server.script(*["a"] * 9, name="passes.yaml")
    file = both.lw.loop(agent, until={"contains": "x"})
    told = both("run", file, "--max", "1", "--json", "--exit-codes", "dialect")
    assert (told.code, told.json["iterations"]) == (4, 1)


def test_warnings_are_reported_before_the_start(both: Both) -> None:
    """What is odd about a definition is told here as there, and is no reason not to start."""
    file = str(both.lw.write("odd.yaml", FILES["odd.yaml"]))
    told = both.alike("run", file, "--dry-run")
    assert (told.code, "warning: " in told.err) == (0, True), told


def test_a_cap_is_raised_over_http(both: Both) -> None:
    """A loop that stopped at its cap goes on with more iterations; without, it is told how."""
    agent = both.server.script("a", "DONE", name="capped.yaml")
    run = both.server.start(both.server.definition(agent, until={"contains": "DONE"}, max=1))
    both.server.until(run, "exhausted", "failed")
    path = f"/api/v1/runs/{run}/resume"
    assert (both.server("POST", path).status, both.server("POST", path, {}).code) == (409, "at-cap")
    assert f"loopwright resume {run} --max" in both("show", run).out
    assert both.server("POST", path, {"max": 1}).code == "bad-max"
    refused = both("resume", run, "--max", "1")
    assert (refused.code, "iterations already" in refused.err) == (2, True)
    told = both("resume", run, "--max", "2", "--json")
    assert (told.code, told.json["status"], told.json["iterations"]) == (0, "completed", 2)
    assert "iteration 2/2 started" in told.err
    assert both("resume", "all", "--max", "2").code == 2


def test_the_exit_codes_of_another_system(both: Both) -> None:
    """A definition that was written for another system ends as it would there."""
    text = flow("  - {id: plan, agent: w, instructions: Plan it.}\n")
    file = str(both.lw.write("flow.yaml", text))
    agent = both.server.script({"fail": "no"}, name="flow.yaml")
    ours = both("run", file, "Go.", "--agent", agent)
    theirs = both("run", file, "Go.", "--agent", agent, "--exit-codes", "dialect")
    assert (ours.code, theirs.code) == (3, exit_codes("zenflow")["failed"])


# -- forks and restarts --------------------------------------------------------------------------


@pytest.fixture
def stuck(shared: Served) -> str:
    """A loop of roles that stopped at its last stage."""
    loop = str(start(shared, "fail:no space", "APPROVED")["loop"]["id"])
    until(shared, loop, "failed")
    return loop


def approving(server: Served) -> str:
    """An agent that says what ends a round."""
    return server.script("APPROVED", name="approving.yaml")


def test_what_failed_is_tried_again_there(both: Both, stuck: str) -> None:
    """With another agent and a note; the command sees it through and leaves as it ended."""
    page = both("show", stuck).out
    assert f"loopwright retry {stuck} NOTE --server {both.url}" in page
    words = ["Mind the gap \udcff", "--agent", approving(both.server), "--budget", "tokens=1M"]
    told = both("retry", stuck[-8:], *words, "--json")
    assert (told.code, told.json["run"], told.json["status"]) == (0, stuck, "completed")
    reopened = next(
        event for event in both("events", stuck).lines if event["kind"] == "run.reopened"
    )
    assert (reopened["note"], reopened["limits"]["tokens"]) == ("Mind the gap ?", 1_000_000)
    assert reopened["by"] == "first-start"
    assert "Completed" in told.err
    assert "iteration 1 started" not in told.err.partition("main~2")[0], (
        "what was before is not told"
    )


def test_what_failed_is_left_out_there(both: Both, stuck: str) -> None:
    """The next stage goes on; with the last one left out nobody has approved, so it fails again."""
    told = both("skip", stuck, "by hand", "--json")
    assert (told.json["run"], told.code) == (stuck, {"completed": 0}.get(told.json["status"], 3))
    kept = [
        event["reason"] for event in both("events", stuck).lines if event["kind"] == "step.kept"
    ]
    assert "skipped" in kept


def test_what_is_blocked_again_waits_again(both: Both) -> None:
    """Tried again and blocked again: exit code 5, and how to answer at that server."""
    blocked = "STATUS: BLOCKED\nNo key."
    replies = [{"text": text} for text in ("The plan.", *[blocked] * 2)]
    agent = both.server.script(*replies, name="blocked.yaml")
    loop = str(start(both.server, agent=agent)["loop"]["id"])
    until(both.server, loop, "blocked", "waiting", "paused")
    told = both("retry", loop, "Try", "--json")
    assert (told.code, told.json["status"]) == (5, "waiting")
    gate = told.json["gates"][0]["id"]
    assert f"loopwright approve {gate} --server {both.url}" in told.err


def test_a_run_rests_when_all_of_it_does(both: Both) -> None:
    """A gate of one step does not end the watch while another step is at work."""
    slow = both.server.script({"text": "late", "delay": 0.3}, name="slow.yaml")
    quick = both.server.script("early", name="quick.yaml")
    asks = {"max": 2, "until": {"person": True}}
    steps = [
        {"id": "a", "agent": "quick", "prompt": "x", "repeat": asks},
        {"id": "b", "agent": "slow", "prompt": "x"},
    ]
    agents = {"quick": {"use": quick}, "slow": {"use": slow}}
    file = both.lw.write("two.json", json.dumps({"name": "t", "agents": agents, "steps": steps}))
    told = both("run", str(file), "--json")
    assert (told.code, told.json["status"]) == (5, "waiting")
    assert told.json["steps"]["b"]["output"] == "late"


def test_a_loop_is_changed_there(both: Both) -> None:
    """Goal, cap, labels and metadata, as the loop has them afterwards."""
    loop = str(start(both.server, "APPROVED", slow={"plan": 600})["loop"]["id"])
    words = ["--goal", "A queue", "--max", "8", "--label", "x", "--metadata", '{"a": 1}']
    told = both("edit", loop, *words, "--json")
    names = ["goal", "max_iterations", "labels", "metadata"]
    assert told.json == {"run": loop, "changed": names}
    now = both.server("GET", f"/api/v1/loops/{loop}").json["loop"]
    assert [now["goal"], now["max_iterations"], now["labels"]] == ["A queue", 8, ["x"]]
    assert now["metadata"]["a"] == 1
    assert both("edit", loop, "--max", "none").err == f"{loop}: changed max_iterations\n"
    both("stop", loop)


def test_loop_of_roles_is_changed_by_the_routes_of_the_commands(both: Both) -> None:
    """What is left out stays as it is, null removes the limit, and mistakes are named."""
    loop = str(start(both.server, "APPROVED", slow={"plan": 600})["loop"]["id"])
    path = f"/api/v1/runs/{loop}/edit"
    assert both.server("POST", path, {"max_iterations": 4}).json == {
        "run": loop,
        "status": "running",
    }
    assert both.server("POST", path, {"labels": ["a"]}).status == 200
    now = both.server("GET", f"/api/v1/loops/{loop}").json["loop"]
    assert (now["max_iterations"], now["labels"]) == (4, ["a"])
    both.server("POST", path, {"max_iterations": None})
    assert both.server("GET", f"/api/v1/loops/{loop}").json["loop"]["max_iterations"] is None
    for body, code in (({}, "missing-field"), ({"metadata": {"dispatch": 1}}, "bad-value")):
        refused = both.server("POST", path, body)
        assert (refused.status, refused.json["type"].rpartition(":")[2]) == (400, code)
    for body in ({"max_iterations": 0}, {"goal": ""}, {"other": 1}, {"labels": "x"}):
        assert both.server("POST", path, body).status == 422, body
    assert both.server("POST", f"/api/v1/runs/{loop}/skip").json["type"].endswith("wrong-state")
    assert both.server("POST", f"/api/v1/runs/{loop[:-1]}/retry").status == 404
    both("stop", loop)


def test_a_fork_there(both: Both) -> None:
    """A new run from an iteration of another: only what is new is told, and the other stays."""
    agent = both.server.script("a", "b", "DONE", name="fork.yaml")
    run = both.server.start(both.server.definition(agent, until={"contains": "DONE"}))
    both.server.until(run, "completed")
    before = both("show", run, "--json").json
    told = both("fork", run, "--at", "2", "--edit", "Be done", "--jsonl")
    assert (told.code, told.lines[0]["kind"]) == (0, "run.forked")
    assert (told.lines[0]["parent"], told.lines[0]["text"]) == (run, "Be done")
    new = told.lines[0]["run"]
    assert both("show", new, "--json").json["forked"] == {"run": run, "at": "main.1"}
    assert both("show", run, "--json").json == before
    other = both.server.script("DONE", name="other.yaml")
    folder = str(both.server.folder)
    words = ["--at", "main.0", "--max", "2", "--agent", other, "--workspace", folder, "--json"]
    made = both("fork", run, *words)
    assert (made.code, made.json["output"], made.json["iterations"]) == (0, "DONE", 2)


def test_a_fork_is_made_once(both: Both, done: str) -> None:
    """The answer says where it is and how much of it is the other's; repeated, it is the same."""
    key, path = {"Idempotency-Key": "fork-1"}, f"/api/v1/runs/{done}/fork"
    made, again = (both.server("POST", path, {"at": "main.0"}, headers=key) for _ in range(2))
    assert (made.status, made.headers["location"]) == (201, f"/api/v1/runs/{made.json['run']}")
    events = both("events", made.json["run"]).lines
    assert events[made.json["seq"]]["kind"] == "run.forked"
    assert again.json == made.json


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["retry", "DONE"], 8, "completed"),
        (["retry", "DONE", "--json"], 8, "urn:loopwright:problem:ended"),
        (["retry", "OTHER"], 8, "is not a loop of roles"),
        (["retry", "none"], 2, "loopwright ls"),
        (["retry", "STUCK", "--budget", "usd=x"], 2, "--budget"),
        (["skip", "DONE"], 8, "completed"),
        (["skip", "BUSY"], 8, "nothing of it is blocked"),
        (["edit", "DONE", "--goal", "x"], 8, "has ended"),
        (["edit", "DONE"], 2, "nothing to change"),
        (["edit", "OTHER", "--goal", "x", "--json"], 8, "urn:loopwright:problem:not-editable"),
        (["edit", "DONE", "--metadata", "{"], 2, "not JSON"),
        (["fork", "DONE"], 2, "say where: --at PATH"),
        (["fork", "DONE", "--at", "main.9"], 2, "did you mean"),
        (["fork", "DONE", "--at", "main.0", "--max", "1"], 2, "give more than that"),
        (["fork", "DONE", "--at", "main.0", "--model", "x/y", "--json"], 2, "no-chat-model"),
        (
            ["fork", "DONE", "--at", "main.0", "--workspace", "/none"],
            2,
            "the workspace /none is not a folder",
        ),
        (["fork", "DONE", "--at", "main.0", "--jsonl", "--json"], 2, "excludes"),
        (["fork", "none", "--at", "main.0"], 2, "no run 'none'"),
        (["hook", "ls"], 0, "no hooks"),
        (["hook", "ls", "--json"], 0, "hooks"),
        (["hook", "add", "Bad", "--run", "x"], 2, "cannot be the name"),
        (["hook", "add", "good", "--run", "none", "--json"], 2, "urn:loopwright:problem:not-found"),
        (["hook", "rm", "none"], 2, "no hook"),
    ],
    ids=named,
)
def test_refusals(both: Both, done: str, words: list[str], code: int, said: str) -> None:
    """What cannot be is told with the same words, the same fix and the same exit code."""
    names = {"DONE": done}
    if "OTHER" in words:
        names["OTHER"] = both.server.gated()[0]
    if "STUCK" in words:
        names["STUCK"] = str(start(both.server, "fail:no space")["loop"]["id"])
        until(both.server, names["STUCK"], "failed")
    if "BUSY" in words:
        names["BUSY"] = str(start(both.server, "APPROVED", slow={"plan": 600})["loop"]["id"])
    told = both.alike(*[names.get(word, word) for word in words])
    assert (told.code, said in told.out + told.err) == (code, True), told
    if "BUSY" in words:
        both("stop", names["BUSY"])


def test_hooks_there(both: Both) -> None:
    """Made, listed and ended at the server; the secret is told once."""
    text = both.server.definition(both.server.script("done"))
    both.server("PUT", "/api/v1/definitions/triage", {"text": text})
    made = both("hook", "add", "issues", "--run", "triage", "--message", "New:", "--json")
    assert made.json["path"] == "/api/v1/hooks/issues"
    assert made.json["secret"].startswith("whsec_")
    assert both("hook", "add", "more", "--run", "triage", "--at-once", "2").out.startswith("whsec_")
    listed = both.alike("hook", "ls", "--json").out
    assert made.json["secret"] not in listed
    assert "triage" in both.alike("hook", "ls").out
    taken = both.alike("hook", "add", "issues", "--run", "triage")
    assert (taken.code, "already" in taken.err) == (8, True)
    assert both("hook", "rm", "more").err == "more is deleted\n"
    assert both("hook", "rm", "issues", "--json").json == {"name": "issues", "removed": True}
    assert both("hook", "ls", "--json").json == {"hooks": []}


CHANGING = [
    ["retry", "DONE"],
    ["skip", "DONE"],
    ["edit", "DONE", "--goal", "x"],
    ["fork", "DONE", "--at", "main.0"],
    ["apply", "DONE"],
    ["discard", "DONE", "--yes"],
    ["hook", "ls"],
    ["hook", "add", "x", "--run", "y"],
    ["hook", "rm", "x"],
    ["run", "loop.yaml"],
    ["run", "loop.yaml", "--dry-run"],
]


@pytest.mark.parametrize("words", CHANGING, ids=named)
def test_a_viewer_changes_nothing(
    both: Both, done: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs more than a viewer is exit code 6, and nothing has happened."""
    both.lw.write("loop.yaml", FILES["loop.yaml"])
    before = both.here("ls", "--json").json
    monkeypatch.setenv("LOOPWRIGHT_TOKEN", both.server.made("viewer"))
    told = both(*[done if word == "DONE" else word for word in words], "--json")
    assert (told.code, told.json["status"]) == (6, 403)
    assert told.json["type"].endswith(":role")
    assert both.here("ls", "--json").json == before


GONE = [
    ["logs", "x"],
    ["show", "x", "--metrics"],
    ["show", "x", "--svg", "-"],
    ["show", "x", "--output", "main"],
    *CHANGING,
]


@pytest.mark.parametrize("words", GONE, ids=named)
def test_a_server_that_is_gone(lw: Place, words: list[str]) -> None:
    """Nobody answers: exit code 7, and a problem for programs."""
    lw.write("loop.yaml", FILES["loop.yaml"])
    told = lw(*words, "--server", "127.0.0.1:9", "--json")
    assert told.code == 7
    assert told.json["type"].endswith(":unreachable")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--max", "1"], 0),
        (["--until-signal", "DONE"], 0),
        (["--until-regex", "never", "--max", "2"], 4),
        (["--manual", "--input", "tone=dry"], 5),
        (["--until-regex", "(x"], 2),
        (["--max", "0"], 2),
        (["--budget", "usd=nothing"], 2),
    ],
)
def test_a_loop_without_a_file(both: Both, words: list[str], code: int) -> None:
    """It goes there as it goes here, and what is wrong with it is told in the same words."""
    agent = both.server.script("a", "b\nDONE", *["c"] * 9, name="loop-afar.yaml")
    told = both.here("loop", "Do it", "--agent", agent, *words, "--workspace", str(both.lw.folder))
    there = both("loop", "Do it", "--agent", agent, *words, "--workspace", str(both.lw.folder))
    assert (told.code, there.code) == (code, code), told
    if code != 5:  # who answers a question is told how, here and there
        assert told_apart(there) == told_apart(told)


def test_a_watch_prints_every_event(both: Both, done: str) -> None:
    """`--jsonl` begins with the first event, also of a run that has ended or waits."""
    waiting = both.server.gated()[0]
    for run, code in ((done, 0), (waiting, 5)):
        told = both("watch", run, "--jsonl", "--no-wait")
        here = both.here("watch", run, "--jsonl", "--no-wait")
        assert (told.code, told.out) == (code, here.out)
        assert [one["seq"] for one in told.lines] == list(range(1, len(told.lines) + 1))
        assert ("iteration 1" in told.err, told.lines != []) == ("iteration 1" in here.err, True)
    both("stop", waiting)


def test_continue_without_text(both: Both) -> None:
    """It resumes a run that has failed; a run that has not ended needs a text."""
    agent = both.server.script({"fail": "no"}, "DONE", name="failed.yaml")
    file = both.lw.loop(agent, until={"contains": "DONE"})
    failed = both("run", file, "--json")
    assert (failed.code, failed.json["status"]) == (3, "failed")
    told = both("continue", failed.json["run"], "--json")
    assert (told.code, told.json["status"]) == (0, "completed"), told
    run, gate = both.server.gated()
    for name in (run, gate):
        assert (both.alike("continue", name).code, "needs TEXT" in both("continue", name).err) == (
            2,
            True,
        )
    both("stop", run)


def test_the_guide_lists_every_command_for_servers() -> None:
    """The paragraph about `--server` names each command that takes it."""
    guide = (Path(__file__).parents[2] / "docs/howto/serve.md").read_text()
    paragraph = guide.partition("## The command line with a remote server")[2].partition("```")[0]
    for name, entry in COMMANDS.items():
        found = import_module(f"loopwright.cli.{entry.module}").VERBS[name]
        leaves = found.commands.values() if isinstance(found, click.Group) else [found]
        if any("--server" in one.opts for leaf in leaves for one in leaf.params):
            assert f"`{name}`" in paragraph


def test_following_a_paused_run_ends(both: Both) -> None:
    """With 5 and the command that continues it, at the server and on its machine."""
    run, _ = both.server.gated()
    both("pause", run)
    for words in (["logs", run, "-f"], ["events", run, "-f"]):
        here, there = both.here(*words), both(*words)
        assert (here.code, there.code, there.out) == (5, 5, here.out)
        assert f"loopwright resume {run} --server {both.url}" in there.err
    both("stop", run)
