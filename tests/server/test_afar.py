"""What a command says with `--server` is what it says on the machine of the server: the same words,
JSON and exit code, as long as both look at the same runs.
"""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, Told, lw
from tests.server.served import Served, leave, served
from tests.server.test_command_line import There
from tests.server.test_loops import start, until

__all__ = ["lw"]


class Both(There):
    """The command line at a server, and on the machine of that server."""

    def here(self, *args: str) -> Told:
        """In its data directory, past it."""
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
    return Both(lw, shared, monkeypatch)


@pytest.fixture(scope="module")
def done(shared: Served) -> str:
    """A loop of roles that has come to its end in two rounds."""
    loop = str(start(shared, "Needs changes: no test \N{BELL}", "APPROVED")["loop"]["id"])
    until(shared, loop, "completed")
    return loop


# -- looking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "RUN"], 0, "completed"),
        (["show", "RUN", "--json"], 0, '"seq": '),
        (["show", "RUN", "--metrics"], 0, "rounds of main"),
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
    ],
    ids=named,
)
def test_looking(both: Both, done: str, words: list[str], code: int, said: str) -> None:
    """Pages, figures, pictures, outputs and logs."""
    told = both.alike(*[done if word == "RUN" else word for word in words])
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
    answer = threading.Timer(0.2, both.server, ("POST", f"/api/v1/gates/{gate}/approve", {}))
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
    kinds = [fact["kind"] for fact in both("events", run, "--follow").lines]
    assert (kinds.count("run.finished"), kinds[-1]) == (2, "run.finished")
    assert both.alike("logs", run, "-f").out.count(" of 1 pass: ") == 2


def test_a_server_that_leaves(lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --no-retry a command that follows leaves with 7 when the line breaks."""
    with served(tmp_path, home="elsewhere") as server:
        there = There(lw, server, monkeypatch)
        run, _ = server.gated()
        ending = threading.Timer(
            0.3, lambda: server.loop.call_soon_threadsafe(leave, server.context)
        )
        ending.start()
        told = there("logs", run, "-f", "--no-retry")
        ending.join()
    assert (told.code, "does not answer" in told.err) == (7, True)
    assert "asked (gate_" in told.out


GONE = [
    ["logs", "x"],
    ["show", "x", "--metrics"],
    ["show", "x", "--svg", "-"],
    ["show", "x", "--output", "main"],
]


@pytest.mark.parametrize("words", GONE, ids=named)
def test_a_server_that_is_gone(lw: Place, words: list[str]) -> None:
    """Nobody answers: exit code 7, and a problem for programs."""
    told = lw(*words, "--server", "127.0.0.1:9", "--json")
    assert told.code == 7
    assert told.json["type"].endswith(":unreachable")
