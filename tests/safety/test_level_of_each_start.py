"""The sandbox level of a run, by every way to start, resume or fork one and wherever the level is
from. What is recorded is what was chosen or stricter, and the agent of the run is held to it.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.sandbox.bubblewrap import works
from loopwright.model.plan import Plan
from loopwright.operations.data_directory import open_reader
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.settings import load_settings
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.operations.wiring import near
from tests.cli.conftest import Place, Told, lw, until
from tests.http.served import Served, served

__all__ = ["lw"]

pytestmark = pytest.mark.skipif(works() is not None, reason=f"bubblewrap: {works()}")
FILE = "work.yaml"
PROGRAM = "./program.sh"
RUNS = "/api/v1/runs"


@dataclass
class Machine:
    """A workspace with an agent that writes inside and outside of it, and maybe a server."""

    lw: Place
    server: Served | None = None

    @property
    def beside(self) -> Path:
        return self.lw.folder.parent / "beside"

    def __call__(self, *words: str) -> Told:
        """A command in a process of its own, with the variables of the test."""
        return self.lw.real(*words, env={**os.environ})

    def define(self, **more: Any) -> None:
        value = {"name": "w", "goal": "g", "agent": f"command:{PROGRAM}", "repeat": {"max": 1}}
        self.lw.write(FILE, json.dumps({**value, **more}))

    def written(self) -> tuple[bool, bool]:
        """Whether the agent could write in the workspace, and outside of it."""
        return (self.lw.folder / "inside").exists(), (self.beside / "outside").exists()

    def forget(self) -> None:
        for file in (self.lw.folder / "inside", self.beside / "outside"):
            file.unlink(missing_ok=True)

    def plan(self, run: str) -> Plan:
        """The plan of a run that has ended or waits for a person."""
        with closing((service := open_reader(load_settings().settings)).log):
            until(lambda: service.log.row(run).headline.status != "running")
            return service.state(run).plan

    @contextmanager
    def serving(self) -> Iterator[Served]:
        """The server of the data directory, with the settings of this moment."""
        more = {"sandbox": load_settings().settings.sandbox}
        with served(self.lw.folder.parent, held=True, more=more) as self.server:
            yield self.server


@pytest.fixture
def machine(lw: Place, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """What an agent writes outside is in a folder that every program of the test may change."""
    one = Machine(lw)
    one.beside.mkdir()
    program = lw.write(
        PROGRAM,
        f"#!/bin/sh\ncat > /dev/null\necho x > inside\necho x > {one.beside}/outside\n"
        "[ ! -e fail ] && echo APPROVED\n",
    )
    program.chmod(0o755)
    one.define()
    monkeypatch.chdir(lw.folder)
    return one


# -- ways ------------------------------------------------------------------------------------------

Do = Callable[[Machine, list[str]], str]
"""Do what a command line says, by this interface; the run."""


def run_of(told: Told) -> str:
    assert told.out, told.err
    assert "run" in told.json, told
    return str(told.json["run"])


def by_command(*flags: str) -> Do:
    """A command in a process of its own, which drives the run or has it driven."""
    return lambda machine, words: run_of(machine(*words, *flags, "--json"))


def beside_server(*flags: str) -> Do:
    """A command, while the server of the data directory drives the runs."""

    def do(machine: Machine, words: list[str]) -> str:
        with machine.serving():
            run = by_command(*flags)(machine, words)
            machine.plan(run)
            return run

    return do


def at_server(machine: Machine, words: list[str]) -> str:
    """A command with `--server`."""
    with machine.serving() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_TOKEN", server.token)
        more = ["--workspace", str(machine.lw.folder)] if words[0] == "run" else []
        url = f"http://127.0.0.1:{server.port}"
        run = run_of(machine(*words, *more, "--server", url, "--json"))
        machine.plan(run)
        return run


def over_http(machine: Machine, words: list[str]) -> str:
    """A request with what the options say."""
    verb, subject, *rest = words
    given = [one for one in rest if one.startswith("--") or rest[rest.index(one) - 1] in rest]
    body: dict[str, Any] = dict(zip([n[2:] for n in given[::2]], given[1::2], strict=False))
    path = f"{RUNS}/{subject}/{verb}"
    if verb == "run":
        path, folder = RUNS, machine.lw.folder
        body |= {"definition": (folder / subject).read_text(), "workspace": str(folder)}
    with machine.serving() as server:
        reply = server("POST", path, body)
        assert reply.status in (200, 201), reply.body
        run = str(reply.json.get("run") or subject)
        machine.plan(run)
        return run


def by_tool(machine: Machine, words: list[str]) -> str:
    """A tool of `loopwright mcp`. Its definitions are loops of roles by name."""
    settings, subject = load_settings().settings, words[1]
    tool, given = "loop_control", {"action": words[0], "id": subject}
    if words[0] == "run":
        tool, given = "loop_start", {"definition": "harness", "goal": "g"}

    async def call() -> str:
        async with near(settings, via="mcp") as here:
            agents = (f"command:{PROGRAM}",)
            loops = RoleLoops(here=here, settings=settings, cwd=machine.lw.folder, agents=agents)
            said = await LoopTools(loops=loops).answer(tool, {**given})
            assert not said.error, said.text
            run = str(json.loads(said.text)["loop_id"]) if words[0] == "run" else subject
            await here.driver.rest(run)
            return run

    return asyncio.run(call())


def at_prompt(machine: Machine, words: list[str]) -> str:
    """A line of `repl`."""
    line = f"/loops start {words[1]} g" if words[0] == "run" else f"/loops {' '.join(words)}"
    lines = machine.lw.write("lines", f"{line}\n")
    with pytest.MonkeyPatch.context() as patch, lines.open() as stdin:
        patch.setattr(sys, "stdin", stdin)
        told = machine.lw("repl")
    assert told.code in (0, 1, 4), told
    return str(machine.lw("ls", "--json").json["runs"][0]["run"])


WAYS: dict[str, Do] = {
    "foreground": by_command(),
    "detach": by_command("--detach"),
    "detach-here": by_command("--detach", "--here"),
    "beside-a-server": beside_server(),
    "detach-to-a-server": beside_server("--detach"),
    "server": at_server,
    "http": over_http,
    "mcp": by_tool,
    "repl": at_prompt,
}
HAVE_NO_FLAG = ("mcp", "repl")


# -- where a level is from -------------------------------------------------------------------------


def no_level(machine: Machine, stack: ExitStack) -> list[str]:
    return []


def flag(machine: Machine, stack: ExitStack) -> list[str]:
    return ["--sandbox", "workspace"]


def setting(machine: Machine, stack: ExitStack) -> list[str]:
    machine.lw.write("loopwright.toml", 'sandbox = "workspace"\n')
    return []


def variable(machine: Machine, stack: ExitStack) -> list[str]:
    stack.enter_context(pytest.MonkeyPatch.context()).setenv("LOOPWRIGHT_SANDBOX", "workspace")
    return []


def definition(machine: Machine, stack: ExitStack) -> list[str]:
    machine.define(sandbox="workspace")
    return []


def stricter_definition(machine: Machine, stack: ExitStack) -> list[str]:
    machine.define(sandbox="readonly")
    return ["--sandbox", "workspace"]


SOURCES: dict[str, tuple[Callable[[Machine, ExitStack], list[str]], str]] = {
    "nothing": (no_level, "guard"),
    "flag": (flag, "workspace"),
    "setting": (setting, "workspace"),
    "variable": (variable, "workspace"),
    "definition": (definition, "workspace"),
    "stricter-definition": (stricter_definition, "readonly"),
}
COULD_WRITE = {
    "off": (True, True),
    "guard": (True, True),
    "workspace": (True, False),
    "readonly": (False, False),
}
NOT_THERE = {
    **{(way, "flag"): "it takes no level" for way in HAVE_NO_FLAG},
    **{(way, "stricter-definition"): "it takes no level" for way in HAVE_NO_FLAG},
    ("mcp", "definition"): "loops of roles name no level",
}
STARTS = [
    pytest.param(way, source, id=f"{way}-{source}")
    for way in WAYS
    for source in SOURCES
    if (way, source) not in NOT_THERE
]


@pytest.mark.item("bnd-l13")
@pytest.mark.parametrize(("way", "source"), STARTS)
def test_a_run_starts_at_its_level(machine: Machine, way: str, source: str) -> None:
    """The level is recorded with the run, and its agent is held to it."""
    choose, level = SOURCES[source]
    with ExitStack() as stack:
        flags = choose(machine, stack)
        run = WAYS[way](machine, ["run", FILE, *flags])
        assert machine.plan(run).sandbox == level
    held = "workspace" if way == "mcp" else level  # the role of its agent asks for that
    assert machine.written() == COULD_WRITE[held]
    assert f"sandbox    {level}" in machine.lw("show", run).out


# -- resuming --------------------------------------------------------------------------------------

CHOICES = {"": "workspace", "off": "workspace", "guard": "workspace", "readonly": "readonly"}
"""By the level that is chosen when the run is resumed: its level then."""
RESUMES = [
    pytest.param(way, chosen, id=f"{way}-{chosen or 'as-it-was'}")
    for way in WAYS
    for chosen in CHOICES
    if not (chosen and way in HAVE_NO_FLAG)
]


@pytest.mark.item("bnd-l13")
@pytest.mark.parametrize(("way", "chosen"), RESUMES)
def test_a_run_is_resumed_at_its_level(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, way: str, chosen: str
) -> None:
    """A resumed run keeps at least the level of its definition, whatever is set by then."""
    machine.define(sandbox="workspace")
    machine.lw.write("fail", "")
    run = run_of(machine("run", FILE, "--json"))
    machine.forget()
    (machine.lw.folder / "fail").unlink()
    words = ["resume", run, *(["--sandbox", chosen] if chosen else [])]
    if way in ("server", "http") and chosen == "off":
        with pytest.raises(AssertionError, match=r"weaker|not allowed"):
            WAYS[way](machine, words)
        assert machine.plan(run).sandbox == "workspace"
        return
    if way not in ("server", "http"):
        monkeypatch.setenv("LOOPWRIGHT_SANDBOX", "off")
    assert WAYS[way](machine, words) == run
    level = CHOICES[chosen]
    assert machine.plan(run).sandbox == level
    assert machine.written() == COULD_WRITE[level]


# -- forking, retrying, skipping, answering --------------------------------------------------------


def stopped_stage(machine: Machine) -> str:
    """A loop of roles that stopped at its second stage."""
    machine.lw.write("fail", "")
    agent = machine.lw.script("The plan.", "APPROVED", "APPROVED")
    agents = ("--agent", agent, "--agent", f"coder=command:{PROGRAM}")
    told = machine("run", "harness", "g", *agents, "--sandbox", "workspace", "--json")
    assert told.json["status"] == "failed", told
    (machine.lw.folder / "fail").unlink()
    return run_of(told)


def finished_iteration(machine: Machine) -> str:
    machine.define(repeat={"max": 2})
    return run_of(machine("run", FILE, "--sandbox", "workspace", "--json"))


def open_gate(machine: Machine) -> str:
    machine.define(repeat={"max": 2, "until": {"person": True}})
    told = machine("run", FILE, "--sandbox", "workspace", "--no-wait", "--json")
    assert told.json["status"] == "waiting", told
    return run_of(told)


def answered_gate(machine: Machine) -> str:
    run = open_gate(machine)
    assert machine("continue", run, "again", "--no-drive").code == 0
    return run


LATER: dict[str, tuple[Callable[[Machine], str], tuple[str, ...], tuple[str, ...]]] = {
    "fork": (
        finished_iteration,
        ("--at", "1"),
        ("foreground", "beside-a-server", "server", "http"),
    ),
    "retry": (
        stopped_stage,
        (),
        ("foreground", "beside-a-server", "server", "mcp", "repl"),
    ),
    "skip": (
        stopped_stage,
        (),
        ("foreground", "beside-a-server", "server", "mcp", "repl"),
    ),
    "continue": (open_gate, ("again",), ("foreground", "beside-a-server")),
    "resume": (answered_gate, (), ("detach", "detach-here", "detach-to-a-server")),
}
CONTINUED = [
    pytest.param(verb, way, id=f"{verb}-{way}")
    for verb, (_, _, ways) in LATER.items()
    for way in ways
]


@pytest.mark.item("bnd-l13")
@pytest.mark.parametrize(("verb", "way"), CONTINUED)
def test_what_continues_a_run_keeps_its_level(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, verb: str, way: str
) -> None:
    """Forks, retries, stages left out and answers do not change the level, whatever is set."""
    prepare, more, _ = LATER[verb]
    run = prepare(machine)
    assert not machine.written()[1]
    machine.forget()
    monkeypatch.setenv("LOOPWRIGHT_SANDBOX", "off")
    made = WAYS[way](machine, [verb, run, *more])
    if verb != "skip":
        until(lambda: machine.written() == (True, False))
    machine.lw("stop", made)
    assert machine.plan(made).sandbox == "workspace"
    assert not machine.written()[1]
