"""Loop tools of agents: child runs with no more rights than the agent, and refusals of the rest."""

import asyncio
import json
import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from loopwright.agents.processes.supervise import HAS_TABLE
from loopwright.agents.sandbox import bubblewrap
from loopwright.agents.specs import Spec, parse_spec, unfit_agent
from loopwright.errors import NotAllowed
from loopwright.kernel.event_parts import AgentCall
from loopwright.kernel.events import EffectDone, RunStarted
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Agent, LoopRight, Plan
from loopwright.model.policy import Limits
from loopwright.model.record import literal
from loopwright.model.sandbox import SandboxLevel, is_at_least
from loopwright.operations.accounts.access import InsideRun
from loopwright.operations.agents.tools import StageServers, open_workshop
from loopwright.operations.mcp import agent_loop_tools
from loopwright.operations.mcp.agent_loop_tools import (
    AgentLoops,
    CallingAgent,
    confine_agent,
    find_agent_loops,
)
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest, WireServer
from tests.operations import loop_tool_agents
from tests.support.jobs import effect_job

BOTH: tuple[LoopRight, ...] = ("start", "look")
START_TOOLS = {"loop_start", "loop_definitions"}
LOOK_TOOLS = {"loop_list", "loop_status", "loop_activity", "loop_events", "loop_diff"}
GO: dict[str, object] = {"definition": "harness", "goal": "Write it", "max_iterations": 1}
WAIT: dict[str, object] = {"id": "$CHILD", "wait_seconds": 50}
SPECS = {"claude": "claude", "acp": "acp:acp-agent"}


@dataclass
class Played:
    """What came of a run whose agent used its tools."""

    run: str
    listed: set[str]
    came: list[tuple[str, bool, str]]
    runs: dict[str, RunStarted]  # all runs by id
    plans: dict[str, Plan]
    statuses: dict[str, tuple[str, str]]
    audit: list[tuple[str, str, str, str]] = field(default_factory=list)
    server: list[str] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)  # in USD

    def text(self, tool: str) -> str:
        return next(text for name, _, text in self.came if name == tool)

    def json(self, tool: str) -> Any:
        return json.loads(self.text(tool))

    @property
    def child(self) -> str:
        [child] = [run for run in self.runs if run != self.run]
        return child


def made(agent: Agent, limits: Limits | None = None, dialect: str = "native") -> Plan:
    action = CallAgent(agent="worker", prompt=literal("Use the tools."))
    return Plan(
        name="p",
        steps=(Step(id="main", action=action),),
        agents={"worker": agent},
        limits=limits or Limits(),
        dialect=dialect,
    )


async def collected(here: Local, run: str) -> Played:
    events = [one.event for one in here.service.events(run)]
    [done] = [one for one in events if isinstance(one, EffectDone)]
    said = json.loads(here.service.read_text(done.output))
    firsts = {row.run: here.log.read(row.run, limit=1)[0].event for row in here.log.rows()}
    heads = {row.run: row.headline for row in here.log.rows()}
    return Played(
        run=run,
        listed=set(said["listed"]),
        came=[(tool, worked, text) for tool, worked, text in said["came"]],
        runs={name: one for name, one in firsts.items() if isinstance(one, RunStarted)},
        plans={name: here.service.plan(one) for name, one in firsts.items()},
        statuses={name: (head.status, head.reason or "") for name, head in heads.items()},
        audit=[(row.who, row.action, row.subject, row.via) for row in here.log.audited()],
        server=said["server"],
        spent={name: here.service.state(name).usage.usd for name in firsts},
    )


def play(
    top: Path,
    agent: Agent,
    calls: loop_tool_agents.Calls,
    *,
    level: SandboxLevel = "guard",
    limits: Limits | None = None,
    usd: float = 0.0,
) -> Played:
    """A run whose agent makes these calls."""
    if level != "off" and bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    for name in ("home", "work"):
        (top / name).mkdir(exist_ok=True)
    loop_tool_agents.install(top / "bin", calls, usd=usd)
    env = {"PATH": f"{top / 'bin'}:{os.environ['PATH']}", "HOME": str(top / "home")}

    async def work() -> Played:
        async with local(Settings(home=top / "data", durability="normal")) as here:
            start = RunStart(
                plan=made(agent, limits), workspace=top / "work", message="Go.", sandbox=level
            )
            run = await here.service.start(start)
            await here.driver.rest(run)
            return await collected(here, run)

    with patch.dict(os.environ, env):
        return asyncio.run(work())


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize("kind", SPECS)
def test_an_agent_in_a_sandbox_starts_a_child_run_and_sees_its_result(
    tmp_path: Path, kind: str
) -> None:
    """At guard it starts a loop over the server of its call, waits for it and reads its output."""
    calls: loop_tool_agents.Calls = [
        *(("loop_definitions", {}), ("loop_start", GO), ("loop_status", WAIT), ("loop_list", {})),
        *(("loop_events", {"id": "$CHILD"}), ("loop_activity", {"id": "$CHILD"})),
    ]
    played = play(tmp_path, Agent(spec=SPECS[kind], loops=BOTH), calls)
    assert played.listed == {*START_TOOLS, *LOOK_TOOLS}
    assert [tool for tool, worked, _ in played.came if not worked] == []
    told = played.json("loop_status")
    assert (told["id"], told["status"]) == (played.child, "completed"), told
    assert "APPROVED" in told["output"]
    assert "loop_" not in told["output"], "a stage of a role loop has no loop tools"
    assert played.child in played.text("loop_list")
    first = played.runs[played.child]
    actor = f"agent:worker of {played.run}"
    assert (first.parent, first.depth, first.by) == (played.run, 1, actor)
    assert played.json("loop_events")["events"][0]["by"] == actor
    assert (actor, "run.started", played.child, "agent") in played.audit


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize(
    ("rights", "offered"),
    [(("start",), START_TOOLS), (("look",), LOOK_TOOLS), (BOTH, START_TOOLS | LOOK_TOOLS)],
    ids=["start", "look", "both"],
)
def test_an_agent_has_the_tools_of_its_rights_only(
    tmp_path: Path, rights: tuple[LoopRight, ...], offered: set[str]
) -> None:
    """Every other loop tool is refused with inside-run and written to the audit log."""
    every: dict[str, dict[str, object]] = {
        "loop_start": GO,
        "loop_list": {},
        "loop_control": {"action": "stop", "id": "all"},
        "loop_tell": {"id": "run_1", "text": "x"},
        "gate_list": {},
        "gate_answer": {"id": "gate_1", "decision": "approve"},
    }
    calls: loop_tool_agents.Calls = [
        (name, given) for name, given in every.items() if name not in offered
    ]
    played = play(tmp_path, Agent(spec="claude", loops=rights), calls)
    assert played.listed == offered
    actor = f"agent:worker of {played.run}"
    for name, worked, text in played.came:
        assert not worked
        assert text.startswith("inside-run: "), text
        assert (actor, "denied", f"use the tool {name}", "agent") in played.audit
    assert [*played.runs] == [played.run]


@pytest.mark.item("bnd-p6")
def test_an_agent_cannot_look_at_other_runs(tmp_path: Path) -> None:
    """A run of somebody else is refused, recorded, and not in the list."""
    first = play(tmp_path, Agent(spec="claude", loops=BOTH), [])
    calls: loop_tool_agents.Calls = [
        *(("loop_status", {"id": first.run}), ("loop_events", {"id": first.run})),
        *(("loop_diff", {"id": first.run}), ("loop_list", {})),
    ]
    played = play(tmp_path, Agent(spec="claude", loops=BOTH), calls)
    assert [worked for _, worked, _ in played.came] == [False, False, False, True]
    assert first.run not in played.text("loop_list")
    denied = [one for one in played.audit if one[1] == "denied"]
    assert len(denied) == 3
    assert all(first.run in subject for _, _, subject, _ in denied)


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize("level", ["guard", "workspace", "readonly"])
def test_a_child_run_has_at_least_the_level_of_its_caller(
    tmp_path: Path, level: SandboxLevel
) -> None:
    """Its plan and each of its agents are at the level of the agent that started it."""
    agent = Agent(spec="claude", loops=BOTH, sandbox=level)
    played = play(tmp_path, agent, [("loop_start", GO), ("loop_status", WAIT)])
    plan = played.plans[played.child]
    assert plan.sandbox is not None
    assert is_at_least(plan.sandbox, level)
    assert plan.sandbox_least == level
    assert {one.loops for one in plan.agents.values()} == {()}
    assert all(is_at_least(one.sandbox or "off", level) for one in plan.agents.values())


@pytest.mark.item("bnd-p6")
def test_child_runs_count_against_the_budget_of_their_parent(tmp_path: Path) -> None:
    """The first one has what the run has; the second one what the first one has left."""
    calls: loop_tool_agents.Calls = [("loop_start", GO), ("loop_status", WAIT), ("loop_start", GO)]
    agent = Agent(spec="claude", loops=BOTH)
    played = play(tmp_path, agent, calls, limits=Limits(usd=10.0), usd=1.0)
    children = sorted(run for run in played.runs if run != played.run)
    assert [played.plans[run].limits.usd for run in children] == [10.0, 7.0]  # three stages


@pytest.mark.item("bnd-p8")
def test_child_runs_of_one_call_share_one_budget(tmp_path: Path) -> None:
    """Three at the same time have no more to spend than one after the other. A call that reports
    its cost only at its end can exceed the budget, as in one run.
    """
    waits: loop_tool_agents.Calls = [
        ("loop_status", {"id": f"$CHILD{number}", "wait_seconds": 50}) for number in range(3)
    ]
    calls: loop_tool_agents.Calls = [*[("loop_start", GO)] * 3, *waits]
    agent = Agent(spec="claude", loops=BOTH)
    played = play(tmp_path, agent, calls, limits=Limits(usd=4.0), usd=1.0)
    children = sorted(run for run in played.runs if run != played.run)
    assert len(children) == 3
    ended = [played.statuses[run] for run in children]
    assert ("exhausted", "home_budget") in ended, ended
    assert 4.0 <= sum(played.spent[run] for run in children) <= 6.0  # three stages each: 9.0


@pytest.mark.item("bnd-p6")
def test_a_child_run_ends_with_the_call_that_started_it(tmp_path: Path) -> None:
    """One that the agent did not wait for is stopped, and the server of the call is gone."""
    played = play(tmp_path, Agent(spec="claude", loops=BOTH), [("loop_start", GO)])
    assert played.statuses[played.child][0] in ("stopped", "cancelled"), played.statuses
    address, token = map(Path, played.server[-2:])
    assert not address.exists()
    assert not token.exists()


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize(
    ("agent", "fits"),
    [("worker", True), ("opencode", True), ("nobody", False), ("command:./evil", False)],
)
def test_a_child_run_uses_agents_of_its_run_or_of_the_list(
    tmp_path: Path, agent: str, fits: bool
) -> None:
    """Any other name or text is refused before anything starts."""
    loop_tool_agents.install(tmp_path / "bin", [])
    listed = tmp_path / "bin" / "opencode"
    listed.write_text("#!/bin/sh\nexit 1\n")
    listed.chmod(0o755)
    calls: loop_tool_agents.Calls = [("loop_start", {**GO, "agent": agent})]
    played = play(tmp_path, Agent(spec="claude", loops=BOTH), calls)
    [(_, worked, text)] = played.came
    assert worked == fits, text
    if not fits:
        assert text.startswith("agent-not-listed: ")
        assert [*played.runs] == [played.run]


class ChatMind:
    """A chat model: with loop tools it makes its calls, as a stage of a child run it approves."""

    def __init__(self, calls: tuple[ScriptedCall, ...]) -> None:
        self.calls = [*calls]
        self.offered: set[str] = set()
        self.results: list[str] = []
        self.stage_tools: set[str] = set()

    def __call__(self, request: WireRequest) -> ScriptedTurn:
        loops = {name for name in request.tools if name.startswith(("loop_", "gate_"))}
        if not loops:
            self.stage_tools |= {*request.tools}
            return ScriptedTurn(text="APPROVED")
        self.offered |= loops
        messages: Any = request.body["messages"]
        self.results = [one["content"] for one in messages if one["role"] == "tool"]
        if self.calls:
            return ScriptedTurn(calls=(self.calls.pop(0),))
        return ScriptedTurn(text="Done.")


@pytest.mark.item("bnd-p6")
def test_a_chat_model_starts_a_child_run_and_is_given_its_result(tmp_path: Path) -> None:
    """Its start answers when the child run has ended; other tools are refused and recorded."""
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    mind = ChatMind(
        (
            ScriptedCall(name="loop_start", args={**GO}),
            ScriptedCall(name="gate_answer", args={"id": "gate_1", "decision": "approve"}),
            ScriptedCall(name="loop_list", args={}),
        )
    )
    agent = Agent(spec="model:local/tiny", loops=BOTH, tools=("fs.read",))

    async def work() -> tuple[str, dict[str, RunStarted], dict[str, Plan], list[tuple[str, ...]]]:
        async with local(Settings(home=tmp_path / "data", durability="normal")) as here:
            run = await here.service.start(
                RunStart(plan=made(agent), workspace=tmp_path, message="Go.")
            )
            await here.driver.rest(run)
            firsts = {row.run: here.log.read(row.run, limit=1)[0].event for row in here.log.rows()}
            plans = {name: here.service.plan(one) for name, one in firsts.items()}
            started = {n: one for n, one in firsts.items() if isinstance(one, RunStarted)}
            audit = [(row.who, row.action, row.subject) for row in here.log.audited()]
            return run, started, plans, audit

    with (
        WireServer(choose=mind) as wires,
        patch.dict(
            os.environ,
            {"LOOPWRIGHT_MODEL_API_KEY": "k", "LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"},
        ),
    ):
        run, started, plans, audit = asyncio.run(work())
    actor = f"agent:worker of {run}"
    [child] = [name for name in started if name != run]
    assert (started[child].parent, started[child].by) == (run, actor)
    assert mind.offered == {*START_TOOLS, *LOOK_TOOLS}
    answered = json.loads(mind.results[0])
    assert (answered["id"], answered["status"]) == (child, "completed")
    assert "inside-run" in mind.results[1]
    assert (actor, "denied", "use the tool gate_answer") in audit
    assert child in mind.results[2]
    assert "shell_exec" not in mind.stage_tools, "the caller may only read files"
    assert all("shell.exec" not in (one.tools or ()) for one in plans[child].agents.values())


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize(
    ("agent", "dialect"),
    [(Agent(spec="claude", loops=BOTH), "coqui"), (Agent(spec="claude"), "native")],
    ids=["stage-of-a-role-loop", "without-a-right"],
)
def test_no_loop_tools_without_a_right_or_in_a_stage(
    tmp_path: Path, agent: Agent, dialect: str
) -> None:
    """The agent is told of no server at all."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    loop_tool_agents.install(tmp_path / "bin", [])
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}

    async def work() -> str:
        async with local(Settings(home=tmp_path / "data", durability="normal")) as here:
            plan = made(agent, dialect=dialect)
            start = RunStart(plan=plan, workspace=tmp_path / "work", message="Go.")
            run = await here.service.start(start)
            await here.driver.rest(run)
            events = [one.event for one in here.service.events(run)]
            [done] = [one for one in events if isinstance(one, EffectDone)]
            return here.service.read_text(done.output)

    with patch.dict(os.environ, env):
        assert asyncio.run(work()) == "no server"


@pytest.mark.parametrize("spec", ["command:./agent", "jsonl:./agent", "script:answers.yaml"])
def test_plain_programs_cannot_have_loop_tools(spec: str) -> None:
    """A definition that gives them to one is refused."""
    parsed = parse_spec(spec)
    assert isinstance(parsed, Spec)
    problem = unfit_agent(parsed, Agent(spec=spec, loops=BOTH))
    assert problem is not None
    assert "loop tools" in problem


LIMITED = Agent(
    spec="claude",
    tools=("Read",),
    deny_tools=("Bash",),
    permission="read-only",
    access="readonly",
    pass_env=("KEY",),
    model="small",
    loops=BOTH,
)


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize(
    ("field_name", "expected"),
    [
        ("tools", ("Read",)),
        ("deny_tools", ("Bash",)),
        ("permission", "read-only"),
        ("access", "readonly"),
        ("pass_env", ("KEY",)),
        ("model", "small"),
        ("sandbox", "readonly"),
        ("loops", ()),
    ],
)
def test_an_agent_of_a_child_run_has_the_limits_of_its_caller(
    field_name: str, expected: object
) -> None:
    """An agent that could do everything is limited like the agent that starts it."""
    wide = Agent(spec="claude", access="full", role="coder", loops=BOTH, pass_env=("SECRET",))
    confined = confine_agent("coder", wide, LIMITED, "readonly")
    assert getattr(confined, field_name) == expected


def test_a_limited_agent_cannot_start_an_agent_of_another_kind() -> None:
    """Its tools and its permission have no meaning there, so they could not be kept."""
    with pytest.raises(NotAllowed, match="limited"):
        confine_agent("coder", Agent(spec="opencode"), LIMITED, "guard")


@pytest.mark.item("bnd-p6")
@pytest.mark.skipif(not HAS_TABLE, reason="there is no process tree to read")
def test_the_token_of_a_call_is_useless_for_other_processes(tmp_path: Path) -> None:
    """A process that is not of the agent is disconnected in spite of the token, and recorded."""

    async def work() -> tuple[bytes, list[str]]:
        async with local(Settings(home=tmp_path / "data", durability="normal")) as here:
            agent = Agent(spec="claude", loops=BOTH)
            start = RunStart(plan=made(agent), workspace=tmp_path, drive=False)
            run = await here.service.start(start)
            servers = StageServers(
                here.tracker_scopes, open_workshop(os.environ, "t"), tmp_path / "results"
            )
            servers.find_loops = partial(find_agent_loops, here, Settings(home=tmp_path / "data"))
            job = effect_job(
                run=run,
                effect="main/agent#1",
                path="main",
                iteration=1,
                attempt=1,
                call=AgentCall(agent="worker"),
                workspace=str(tmp_path),
                token="t",
                agent=agent,
            )
            async with servers.serve(job, agent) as server:
                assert server is not None
                address, token = map(Path, server.argv[-2:])
                reader, writer = await asyncio.open_unix_connection(address)
                writer.write(token.read_bytes())
                answer = await asyncio.wait_for(reader.read(), 60)
                writer.close()
            denied = [row.subject for row in here.log.audited() if row.action == "denied"]
            return answer, denied

    answer, denied = asyncio.run(work())
    assert answer == b""
    assert len(denied) == 1
    assert denied[0].startswith("use the loop tools of agent:worker of run_")


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize(
    ("peer", "fits"),
    [
        (InsideRun(run="R", agent="worker", runs=("R",)), True),
        (InsideRun(run="R", agent="worker", runs=("R", "other")), False),
        (InsideRun(run="R", agent="reviewer", runs=("R",)), False),
        (InsideRun(run="other", agent="worker", runs=("other",)), False),
        (InsideRun(), False),
        (None, False),
    ],
    ids=["itself", "forged-supervisor", "other-agent", "other-run", "gone", "person"],
)
def test_only_processes_of_the_agent_use_its_tools(
    tmp_path: Path, peer: InsideRun | None, fits: bool
) -> None:
    """The supervisors above a process count, all of them."""

    async def work() -> bool:
        settings = Settings(home=tmp_path / "data", durability="normal")
        async with local(settings) as here:
            agent = Agent(spec="claude", loops=BOTH)
            run = await here.service.start(
                RunStart(plan=made(agent), workspace=tmp_path, drive=False)
            )
            caller = CallingAgent(
                run=run,
                name="worker",
                agent=agent,
                workspace=tmp_path,
                level="guard",
                agents={"worker": agent},
            )
            loops = AgentLoops(here=here, settings=settings, caller=caller)
            named = peer and replace(
                peer,
                run=peer.run.replace("R", run),
                runs=tuple(one.replace("R", run) for one in peer.runs),
            )
            return loops.check_caller(named)

    with patch.object(agent_loop_tools, "find_caller", return_value=None):
        assert asyncio.run(work()) == fits


@pytest.mark.item("bnd-p6")
def test_a_child_run_ends_when_the_call_is_cancelled_while_it_starts(tmp_path: Path) -> None:
    """Whenever the call is cancelled, no child run stays open."""
    replies = tmp_path / "answers.yaml"
    replies.write_text("replies: [{text: APPROVED, delay: 30}]")

    async def work() -> list[str]:
        settings = Settings(home=tmp_path / "data", durability="normal", sandbox="off")
        async with local(settings) as here:
            agent = Agent(spec=f"script:{replies}")
            run = await here.service.start(
                RunStart(plan=made(agent), workspace=tmp_path, drive=False)
            )
            caller = CallingAgent(
                run=run,
                name="worker",
                agent=msgspec.structs.replace(agent, loops=BOTH),
                workspace=tmp_path,
                level="off",
                agents={"worker": agent},
            )
            for turns in (1, 2, 3, 5, 50):
                loops = AgentLoops(here=here, settings=settings, caller=caller)
                task = asyncio.ensure_future(loops.answer("loop_start", {**GO}, until_ended=True))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            return [row.headline.status for row in here.log.rows() if row.run != run]

    statuses = asyncio.run(work())
    assert statuses
    assert {*statuses} <= {"stopped", "cancelled"}, statuses
