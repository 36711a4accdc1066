"""Names, rules and paths against one another: no spelling gets a call past a person.

Each call goes the way of the product: the name on the wire, the toolbox, the decision of the
kernel. What the kernel lets through at once is really done, and the world is looked at.
"""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loopwright.engine.services import schema_problem
from loopwright.gateway.models import WireNames, wire_names
from loopwright.kernel.event_parts import ModelCall
from loopwright.kernel.events import AnyEvent, EffectRequested, TurnTaken
from loopwright.model.actions import ModelCycle, Repeat, Step
from loopwright.model.chat import AssistantMessage, CallPart, ModelTurn, RequestedCall, encode_turn
from loopwright.model.checks import Cap
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, ApprovalRule, Plan
from loopwright.model.policy import ConversationHistory
from loopwright.model.record import JsonValue
from loopwright.operations.agents.tools import SupervisedPrograms
from loopwright.tools.builtin import Bench, ShellRules, ToolSlots
from loopwright.tools.mcp.server_records import ListedTool, ServerAnswer, StdioServer
from loopwright.tools.results import FolderResultStore, as_json
from loopwright.tools.toolbox import Grant, ServerGrant, Toolbox
from loopwright.tools.workspace_tree import Protection, WorkspaceTree
from tests.kernel.driving import Driver, Reply, nobody
from tests.tools.boxes import environment

OPEN_SCHEMA: dict[str, JsonValue] = {"type": "object"}
RULES: tuple[ApprovalRule, ...] = ("always", "protected_paths", "never")
PATHS = {
    "src/a.txt": False,
    ".git/x": True,
    "dotgit/x": True,
    ".GIT/x": True,
    "src/../.git/x": True,
    "src/link/x": True,
    ".git /x": True,
    "package.json": True,
}


def spellings(own: str) -> list[str]:
    """A tool's own name and everything that looks as if it could mean it."""
    short = own.rpartition(".")[2]
    return [
        own,
        short,
        own.replace(".", "_"),
        own.replace(".", "-"),
        own.replace(".", "/"),
        own.replace(".", "__"),
        f"far.{own}",
        f"bench.{own}",
        f"far.{short}",
        own.upper(),
        own.title(),
        short.upper(),
        f" {own}",
        f"{own} ",
        f"{own}\n",
        f".{own}",
        f"{own}.",
        f".{short}",
        f"{own}\0",
        own.replace(".", "\u2024"),
        own.replace("e", "\u0435"),
        own.replace("e", "\uff45"),
        own.replace(".", ".\u200b"),
        f"{own}()",
        f"functions.{own}",
        f"mcp__{own.replace('.', '__')}",
        "*",
        "",
    ]


@dataclass
class Stub:
    """A server that notes what it was asked to do."""

    names: tuple[str, ...]
    called: list[str] = field(default_factory=list)

    async def tools(self) -> list[ListedTool]:
        return [ListedTool(name=name, description="", schema=OPEN_SCHEMA) for name in self.names]

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> ServerAnswer:
        self.called.append(tool)
        return ServerAnswer(text="done")


@dataclass
class World:
    """A workspace, a server and a toolbox over both."""

    work: Path
    server: Stub
    box: Toolbox
    names: WireNames

    def effects(self) -> set[str]:
        """What has happened: calls of the server, and files that were not there before."""
        made = {
            str(path.relative_to(self.work))
            for path in self.work.rglob("*")
            if path.is_file() and not path.is_symlink() and path.read_text() == "written"
        }
        return made | {f"server:{name}" for name in self.server.called}

    def clear(self) -> None:
        self.server.called.clear()
        for name in [one for one in self.effects() if not one.startswith("server:")]:
            (self.work / name).unlink()
        (self.work / "package.json").write_text("{}")


def world(top: Path, tools: tuple[str, ...]) -> World:
    work = top / "work"
    for folder in (".git", "src"):
        (work / folder).mkdir(parents=True)
    (work / "dotgit").symlink_to(".git")
    (work / "src" / "link").symlink_to("../.git")
    (work / "package.json").write_text("{}")
    (work / "source.txt").write_text("to copy")
    server = Stub(tools)
    grant = Grant(
        native=("fs.write", "shell.exec"),
        servers=(ServerGrant(name="bench", spec=StdioServer(argv=("x",)), allow=("*",)),),
        commands=ShellRules(allow=("cp", "tee")),
    )
    programs = SupervisedPrograms(environment(), "token-of-a-test")
    bench = Bench(
        tree=WorkspaceTree(work),
        protection=Protection(),
        programs=programs,
        shelf=FolderResultStore(top / "shelf"),
        commands=grant.commands,
    )
    box = Toolbox(
        grant,
        bench,
        gate=ToolSlots(),
        servers={"bench": server},
        check=schema_problem,  # type: ignore[dict-item]
    )
    offered = asyncio.run(box.specs()).tools
    return World(work, server, box, wire_names(spec.name for spec in offered))


def wanted(of: World, spelling: str, arguments: JsonValue, number: int) -> RequestedCall:
    """A call as the engine sees it, after the name has come back from the wire."""
    tool = of.names.tool(spelling)
    part = CallPart(id=f"c{number}", tool=tool, args=as_json(arguments))
    return asyncio.run(of.box.resolve(part))


def decided(calls: list[RequestedCall], rules: dict[str, ApprovalRule]) -> list[bool]:
    """Which calls the kernel lets run at once, by the events of a run."""
    parts = tuple(CallPart(id=one.id, tool=one.tool, args="{}") for one in calls)
    turn = ModelTurn(message=AssistantMessage(parts=parts), calls=tuple(calls))
    loop = Repeat(
        body=ModelCycle(agent="a"), max=1, until=Cap(), memory=ConversationHistory(window=10**9)
    )
    plan = Plan(name="t", steps=(Step(id=MAIN, action=loop),), agents={"a": Agent(approvals=rules)})

    def answer(request: EffectRequested) -> Reply | None:
        said = isinstance(request.call, ModelCall)
        return Reply("", result=encode_turn(turn)) if said else None

    events: list[AnyEvent] = Driver(plan, script=answer, people=nobody).run().events
    [taken] = [event for event in events if isinstance(event, TurnTaken)]
    asked = {event.effect for event in events if isinstance(event, EffectRequested)}
    runs = [f"{MAIN}.0/tool{number}#1" in asked for number in range(1, len(calls) + 1)]
    assert runs == [not (note.held or note.problem) for note in taken.calls]
    return runs


TARGETS: dict[str, tuple[tuple[str, ...], list[JsonValue]]] = {
    "fs.write": ((), [{"path": path, "content": "written"} for path in PATHS]),
    "shell.exec": ((), [{"argv": ["cp", "source.txt", "copied"]}]),
    "bench.deploy": (("deploy",), [{"path": "src/a.txt"}, {"path": ".git/x"}, {}]),
    "bench.fs.write": (("fs.write", "write"), [{"path": ".git/x", "content": "written"}]),
    "bench.exec": (("exec", "shell.exec"), [{"argv": ["x"]}]),
}


def keys(own: str) -> list[str]:
    """How an author may name the tool in a rule."""
    return [own, own.rpartition(".")[2], f"far.{own}", f"{own.partition('.')[0]}.*", "*"]


def matrix(of: World, own: str, shapes: list[JsonValue]) -> Iterator[RequestedCall]:
    pairs = itertools.product(spellings(own), shapes)
    for number, (spelling, arguments) in enumerate(pairs):
        yield wanted(of, spelling, arguments, number)


@pytest.mark.item("aldo-30", "aldo-32", "aldo-40", "aldo-41", "W4")
@pytest.mark.parametrize("own", TARGETS)
def test_no_call_gets_past_a_person(tmp_path: Path, own: str) -> None:
    """For every name, rule and path: what is held does not happen, what happens was not held, and
    nothing that may not be written without a person is written.
    """
    tools, shapes = TARGETS[own]
    of = world(tmp_path, tools)
    calls = list(matrix(of, own, shapes))
    (tmp_path / "work" / "source.txt").write_text("written")
    base = of.effects()
    done: list[set[str]] = []
    for one in calls:
        if not one.problem:
            asyncio.run(of.box.run(one.tool, one.arguments))
        done.append(of.effects() - base)
        of.clear()
        (tmp_path / "work" / "source.txt").write_text("written")
    assert any(done), "the tool works under one of its names"
    ungated: list[str] = []
    for key, rule in itertools.product(keys(own), RULES):
        for one, runs, what in zip(calls, decided(calls, {key: rule}), done, strict=True):
            if runs and what & forbidden(what, rule, one.tool, own):
                ungated.append(f"{key}: {rule}: {one.tool} {one.arguments} did {what}")
    assert ungated == []


def forbidden(what: set[str], rule: ApprovalRule, tool: str, own: str) -> set[str]:
    """Of what a call does, what it may not do without a person."""
    if rule == "always":
        return what
    if rule == "protected_paths":
        paths_known = tool == "fs.write"
        return {one for one in what if not paths_known or is_protected(one)}
    return {one for one in what if tool == "fs.write" and is_protected(one)}


def is_protected(name: str) -> bool:
    return name.casefold().startswith((".git", "package.json"))


@pytest.mark.item("aldo-41")
def test_only_names_that_were_given_mean_a_tool(tmp_path: Path) -> None:
    """Of all spellings the own name, its last part and the one for the wire mean the tool."""
    of = world(tmp_path, ("deploy",))
    for own in ("fs.write", "shell.exec", "bench.deploy"):
        arguments: JsonValue = {
            "fs.write": {"path": "src/a", "content": ""},
            "shell.exec": {"argv": ["cp"]},
        }.get(own, {})
        found = [name for name in spellings(own) if not wanted(of, name, arguments, 0).problem]
        assert found == [own, own.rpartition(".")[2], own.replace(".", "_")]


@pytest.mark.item("aldo-41")
def test_a_server_with_tools_of_the_same_name(tmp_path: Path) -> None:
    """What the built-in tool is called is the built-in tool; a short name that both have is
    refused; a rule about one is a rule about its twin too.
    """
    of = world(tmp_path, ("fs.write", "write", "exec"))
    assert wanted(of, "fs.write", {"path": "src/a", "content": ""}, 1).tool == "fs.write"
    assert wanted(of, "bench.fs.write", {}, 2).tool == "bench.fs.write"
    for short in ("write", "exec"):
        assert "may mean" in wanted(of, short, {}, 3).problem
    twin = wanted(of, "bench.fs.write", {"path": "src/a"}, 4)
    for key in ("fs.write", "bench.fs.write", "write", "bench.*"):
        for rule in ("always", "protected_paths"):
            assert decided([twin], {key: rule}) == [False]
