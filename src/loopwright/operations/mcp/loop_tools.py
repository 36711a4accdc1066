"""The tools with which other agents start and control loops, and the MCP server `loopwright mcp`.

An agent that is itself inside a run has fewer tools: it starts loops below its run, with what
its run has left to spend, and can look only at those. The server speaks the Model Context
Protocol on stdin and stdout; its library is loaded by name when the server starts.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.model.actions import MAX_ITERATIONS, Decision
from loopwright.model.chat import ChatTool
from loopwright.model.ids import ITERATION_PATTERN
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Request
from loopwright.operations.background_runs import drive_in_background
from loopwright.operations.library import LibraryEntry
from loopwright.operations.messages import WHEN_WORDS
from loopwright.operations.problems import find_problem, problem_words
from loopwright.operations.run_control import ResumeChanges
from loopwright.operations.run_variables import names_only
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases import loops
from loopwright.operations.use_cases.gates import NamedAnswer, answer_named
from loopwright.operations.use_cases.lists import ListGates, list_open
from loopwright.operations.use_cases.role_loops import (
    ACTIONS,
    ALL,
    OF_ONE,
    STATUSES,
    RoleLoops,
    StartRoleLoop,
)
from loopwright.operations.use_cases.run_changes import MessageRun, send_message
from loopwright.operations.use_cases.run_views import (
    DiffRun,
    ReadEvents,
    ReadNewestActivity,
    read_diff,
    read_events,
    read_newest_activity,
)
from loopwright.operations.wiring import near
from loopwright.ports import OPEN_STATUSES
from loopwright.tools.builtin import schema, text
from loopwright.tools.results import ToolCallResult
from loopwright.views.summary import summary

MOST_ENTRIES = 100
Arguments = dict[str, JsonValue]
DECISIONS: dict[str, Decision] = {one: one for one in get_args(Decision)}
DIFF_CHARS = 100_000
INSIDE_RUN = (
    *("loop_start", "loop_list", "loop_status", "loop_activity", "loop_events", "loop_diff"),
    "loop_definitions",
)
"""The tools of an agent inside a run."""
_ITERATION: JsonValue = {
    "type": ["integer", "string"],
    "minimum": 0,
    "pattern": f"^{ITERATION_PATTERN}$",
    "description": "2, or after a restart 2~1 for iteration 2 of the first try",
}
Work = Callable[[Arguments], Awaitable[str]]
ALLOW_UNKNOWN_COST: JsonValue = {
    "type": "boolean",
    "description": "Continue although a limit in USD cannot be enforced for an agent whose cost is "
    "unknown; only if the user asked for it",
}
RESUME_OPTIONS: dict[str, JsonValue] = {
    "max": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_ITERATIONS,
        "description": "For resume: iterations that the loop may make in total",
    },
    "budget": text("For resume: limits of the whole run with what it has spent, e.g. usd=5"),
    "time": text("For resume: time limit from now on, e.g. 2h"),
    "agent": text("For resume: agent backend from now on, or NAME=SPEC"),
    "restart": {"type": "boolean", "description": "For resume: begin with iteration 1"},
    "allow_unknown_cost": ALLOW_UNKNOWN_COST,
    "accept_changes": {
        "type": "boolean",
        "description": "For resume: accept protected files as they are now",
    },
    "env": {
        "type": "array",
        "items": {"type": "string"},
        "description": "For resume: names of variables that the loop was started with; their "
        "values are those of the environment of this server",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTools:
    """The tools on offer; answers of gates only if the start of the server allowed it."""

    loops: RoleLoops
    session: str = ""
    answers: bool = False

    def specs(self) -> list[ChatTool]:
        return [spec for spec, _ in self._all()]

    def all_names(self) -> frozenset[str]:
        """The names of all loop tools, also of those that are not offered."""
        every = (*self._loops_offered(), *self._gates_offered())
        return frozenset(spec.name for spec, _ in every)

    def refused_names(self) -> frozenset[str]:
        """Tools that an agent inside a run does not have: using them is recorded."""
        if self.loops.here.service.rights is None:
            return frozenset()
        return self.all_names() - {*INSIDE_RUN}

    async def answer(self, name: str, arguments: Arguments) -> ToolCallResult:
        """Run one of them. A problem is returned as an error, with its hint."""
        rights = self.loops.here.service.rights
        try:
            if rights is not None and name not in INSIDE_RUN:
                rights.refuse("use the tool", name)
            spec, work = {spec.name: (spec, one) for spec, one in self._all()}[name]
            check_arguments(spec, arguments)
            return ToolCallResult(text=await work(arguments))
        except LoopwrightError as error:
            return ToolCallResult(text=problem_words(error), error=True)

    def _all(self) -> list[tuple[ChatTool, Work]]:
        offered = [*self._loops_offered()]
        if self.loops.here.service.rights is not None:
            return [one for one in offered if one[0].name in INSIDE_RUN]
        if self.answers:
            offered += self._gates_offered()
        return offered

    def _loops_offered(self) -> list[tuple[ChatTool, Work]]:
        return [
            (
                ChatTool(
                    name="loop_start",
                    description="Start a loop from a definition with a goal. It runs in the "
                    "background; loop_status shows its progress.",
                    schema=schema(
                        ("definition", "goal"),
                        definition=text("Name of a definition; loop_definitions lists them"),
                        goal=text("What shall be reached"),
                        max_iterations={
                            "type": "integer",
                            "minimum": 1,
                            "maximum": MAX_ITERATIONS,
                            "description": "The most iterations",
                        },
                        worktree={
                            "type": "boolean",
                            "description": "Work in a Git worktree on a branch of its own",
                        },
                        allow_unknown_cost=ALLOW_UNKNOWN_COST,
                        parameters={
                            "type": ["string", "object"],
                            "description": "Parameters of the definition, as a JSON object",
                        },
                        project_id=text("The project it belongs to, by its id"),
                        project_slug=text("The same by its slug; only one of the two"),
                    ),
                ),
                self._start,
            ),
            (
                ChatTool(
                    name="loop_list",
                    description="List loops, newest first.",
                    schema=schema((), status={"type": "string", "enum": list(STATUSES)}),
                ),
                self._list,
            ),
            (
                ChatTool(
                    name="loop_status",
                    description="One loop in detail: round, stages, what came of them.",
                    schema=schema(("id",), id=text("Id of the loop, or the beginning of it")),
                ),
                self._status,
            ),
            (
                ChatTool(
                    name="loop_activity",
                    description="What the agents of a loop did: tool calls, commands with their "
                    f"exit codes, edited files. The newest {MOST_ENTRIES} entries, oldest first.",
                    schema=schema(
                        ("id",),
                        id=text("Id of the loop, or the beginning of it"),
                        iteration=_ITERATION,
                    ),
                ),
                self._activity,
            ),
            (
                ChatTool(
                    name="loop_events",
                    description=f"The newest {MOST_ENTRIES} events of a run, oldest first.",
                    schema=schema(
                        ("id",),
                        id=text("Id of the run, or the beginning of it"),
                        after={
                            "type": "integer",
                            "minimum": 0,
                            "maximum": 1_000_000_000,
                            "description": "Only events with a greater number",
                        },
                    ),
                ),
                self._events,
            ),
            (
                ChatTool(
                    name="loop_diff",
                    description="What a run changed in its workspace: the whole run, one "
                    "iteration (`from` alone), or between two (`from` and `to`). Iterations count "
                    "from 1, and 0 is before the first one.",
                    schema=schema(
                        ("id",),
                        id=text("Id of the run, or the beginning of it"),
                        **{"from": _ITERATION, "to": _ITERATION},
                        stat={"type": "boolean", "description": "Only the files and their counts"},
                    ),
                ),
                self._diff,
            ),
            (
                ChatTool(
                    name="loop_control",
                    description="Pause a loop after its current stage, resume it, or stop it now. "
                    "A loop that failed, was stopped or met a limit resumes at the iteration that "
                    "did not finish. "
                    "The id `all` means every loop that it can be done to. Of one loop that is "
                    "blocked or has failed: retry what it stopped at, or skip that stage.",
                    schema=schema(
                        ("action", "id"),
                        action={"type": "string", "enum": list(ACTIONS)},
                        id=text("Id of the loop, or `all`"),
                        note=text("For retry and skip: a note for the loop"),
                        **RESUME_OPTIONS,
                    ),
                ),
                self._control,
            ),
            (
                ChatTool(
                    name="loop_tell",
                    description="Send a message to the agents of a loop. Its next iteration reads "
                    "it; claude, chat models and jsonl: agents read it while they work.",
                    schema=schema(
                        ("id", "text"),
                        id=text("Id of the loop, or the beginning of it"),
                        text=text("The message"),
                        to=text("Only the agent of this step reads it"),
                    ),
                ),
                self._send_text,
            ),
            (
                ChatTool(
                    name="loop_definitions",
                    description="List loop definitions: roles, what ends them, parameters (`?` "
                    "marks optional ones), and what is wrong with files that cannot be used.",
                    schema=schema(()),
                ),
                self._definitions,
            ),
        ]

    def _gates_offered(self) -> list[tuple[ChatTool, Work]]:
        return [
            (
                ChatTool(
                    name="gate_list",
                    description="What waits for a decision.",
                    schema=schema(()),
                ),
                self._gates,
            ),
            (
                ChatTool(
                    name="gate_answer",
                    description="Decide about a gate.",
                    schema=schema(
                        ("id", "decision"),
                        id=text("Id of the gate"),
                        decision={"type": "string", "enum": list(DECISIONS)},
                        text=text("Feedback, or the reason"),
                    ),
                ),
                self._answer,
            ),
        ]

    # -- each of them

    async def _start(self, given: Arguments) -> str:
        most = given.get("max_iterations")
        request = StartRoleLoop(
            definition=read_text(given, "definition"),
            goal=read_text(given, "goal"),
            parameters=read_parameters(given.get("parameters")),
            agents=tuple(self.loops.agents),
            max_iterations=most if isinstance(most, int) else None,
            worktree=given.get("worktree") is True,
            allow_unknown_cost=given.get("allow_unknown_cost") is True and self._is_person(),
            project_id=read_text(given, "project_id"),
            project_slug=read_text(given, "project_slug"),
            session=self.session,
        )
        begun = await loops.start(self.loops.app_here, self.loops.caller(), request)
        return _json(msgspec.structs.asdict(begun))

    def _is_person(self) -> bool:
        """Whether a person has started this server, and not an agent inside a run."""
        return self.loops.here.service.rights is None

    async def _list(self, given: Arguments) -> str:
        request = loops.DescribeLoops(status=read_text(given, "status"))
        lines = await loops.describe(self.loops.app_here, self.loops.caller(), request)
        return "\n".join(lines) or "there are no loops"

    async def _status(self, given: Arguments) -> str:
        run = self.loops.here.service.find(read_text(given, "id"))
        service = self.loops.here.service
        result = summary(service.state(run), service.read_text)
        more = {"iterations": result.iterations, "output": result.output}
        return _json({**msgspec.structs.asdict(self.loops.status(run)), **more})

    async def _events(self, given: Arguments) -> str:
        after = given.get("after")
        request = ReadEvents(
            run=self.loops.here.service.find(read_text(given, "id")),
            after=after if isinstance(after, int) else 0,
            limit=MOST_ENTRIES,
            newest=True,
        )
        page = await read_events(self.loops.app_here, self.loops.caller(), request)
        return _json({"run": page.run, "events": page.events})

    async def _diff(self, given: Arguments) -> str:
        start, end = (_iteration(given.get(name)) for name in ("from", "to"))
        request = DiffRun(
            run=self.loops.here.service.find(read_text(given, "id")),
            start=start,
            end=end,
            stat=given.get("stat") is True,
        )
        found = await read_diff(self.loops.app_here, self.loops.caller(), request)
        result = msgspec.to_builtins(found)
        whole = result.pop("diff")
        if whole is None:
            return _json(result)
        cut = {"truncated": True} if len(whole) > DIFF_CHARS else {}
        return _json({**result, "diff": whole[:DIFF_CHARS], **cut})

    async def _control(self, given: Arguments) -> str:
        action, loop, note = (read_text(given, name) for name in ("action", "id", "note"))
        if action in OF_ONE and not self.answers and self._waits(loop):
            raise LoopwrightError(
                f"{loop} waits for a person or was ended by one, whose decision this would be",
                code="not-allowed",
                hint="`loopwright mcp --allow-answers` lets agents decide",
            )
        changes = _changes(given)
        if changes.accept_changes and not self.answers:
            raise LoopwrightError(
                "only a person may accept changes of protected files",
                code="not-allowed",
                hint="`loopwright mcp --allow-answers` lets agents decide",
            )
        if action == "resume" and loop.casefold() != ALL:
            return (await self.loops.resume(loop, changes)).message
        allowed = ResumeChanges(allow_unknown_cost=changes.allow_unknown_cost and action in OF_ONE)
        if changes != allowed:
            raise LoopwrightError(
                f"{', '.join(RESUME_OPTIONS)} are for the action resume of one loop; "
                "allow_unknown_cost also for retry and skip",
                code="bad-option",
            )
        return await self.loops.control(action, loop, note=note, changes=allowed)

    async def _send_text(self, given: Arguments) -> str:
        loop, words, to = (read_text(given, name) for name in ("id", "text", "to"))
        request = MessageRun(run=self.loops.here.service.find(loop), text=words, to=to)
        sent = await send_message(self.loops.app_here, self.loops.caller(), request)
        return f"{sent.run}: message {sent.message} recorded: {WHEN_WORDS[sent.when]}"

    def _waits(self, loop: str) -> bool:
        """Whether a person is asked about a loop now, or has ended it."""
        service = self.loops.here.service
        run = service.find(loop)
        return bool(service.log.gates(run)) or service.log.row(run).headline.reason == "rejected"

    async def _activity(self, given: Arguments) -> str:
        request = ReadNewestActivity(
            run=self.loops.here.service.find(read_text(given, "id")),
            iteration=_iteration(given.get("iteration")),
            limit=MOST_ENTRIES,
        )
        newest = await read_newest_activity(self.loops.app_here, self.loops.caller(), request)
        return _json({"run": request.run, "entries": newest})

    async def _definitions(self, given: Arguments) -> str:
        found = await loops.list_definitions(self.loops.app_here, self.loops.caller(), Request())
        return "\n".join(map(described, found))

    async def _gates(self, given: Arguments) -> str:
        page = await list_open(self.loops.app_here, self.loops.caller(), ListGates())
        return _json({"gates": page.gates})

    async def _answer(self, given: Arguments) -> str:
        gate = read_text(given, "id")
        decision = DECISIONS.get(read_text(given, "decision"))
        if decision is None:
            there = ", ".join(DECISIONS)
            raise LoopwrightError(f"the decision must be one of {there}", code="bad-decision")
        reply = NamedAnswer(decision=decision, text=read_text(given, "text"))
        run = (await answer_named(self.loops.app_here, self.loops.caller(), gate, reply)).run
        return f"{gate}: {decision}, sent to {run}"


def check_arguments(spec: ChatTool, given: Arguments) -> None:
    """Refuse arguments that the tool does not have or that have the wrong type."""
    names = {"id": "gate" if spec.name.startswith("gate_") else "run"}
    problem = find_problem(spec.schema, given, names)
    if problem is not None:
        raise problem


def _changes(given: Arguments) -> ResumeChanges:
    """What is different when a loop is resumed."""
    most, agent, names = given.get("max"), read_text(given, "agent"), given.get("env")
    return ResumeChanges(
        agents=(agent,) if agent else (),
        budget=read_text(given, "budget") or None,
        passes=most if isinstance(most, int) else None,
        time=read_text(given, "time") or None,
        restart=given.get("restart") is True,
        allow_unknown_cost=given.get("allow_unknown_cost") is True,
        accept_changes=given.get("accept_changes") is True,
        env=names_only([*map(str, names)] if isinstance(names, list) else [], "a tool call"),
    )


def read_text(given: Arguments, name: str) -> str:
    value = given.get(name)
    return value.strip() if isinstance(value, str) else ""


def _iteration(value: JsonValue) -> str | None:
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else None


def read_parameters(value: JsonValue) -> dict[str, JsonValue]:
    """Parameters as an object, or as the text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value or "{}")
        except msgspec.DecodeError as error:
            raise LoopwrightError(
                f"parameters must be a JSON object: {error}", code="bad-parameter"
            ) from None
    if value is not None and not isinstance(value, dict):
        raise LoopwrightError("parameters must be a JSON object", code="bad-parameter")
    return value or {}


def _json(value: Mapping[str, object]) -> str:
    return msgspec.json.encode(value).decode()


def described(one: LibraryEntry) -> str:
    """A definition on a few lines, or what is wrong with its file."""
    if not one.is_valid:
        first = next((p for p in one.problems if p.severity == "error"), None)
        return f"{one.name}: cannot be used: {first.render() if first else 'unknown'}"
    given = one.about.get("parameters")
    names = [
        f"{p.get('name')}{'' if p.get('required') else '?'}"
        for p in (given if isinstance(given, list) else [])
        if isinstance(p, dict)
    ]
    parts = [f"{one.name}: {one.about.get('description', '')}", f"  roles: {one.chain}"]
    parts.append(f"  termination: {one.termination}")
    parts += [f"  parameters: {', '.join(names)}"] if names else []
    return "\n".join(parts)


INSTRUCTIONS = (
    "Loops of agents that run in the background until the work is approved or a limit is reached. "
    "Start one with loop_start, and look at it with loop_status from time to time."
)


async def serve(
    settings: Settings,
    *,
    cwd: Path,
    agents: Sequence[str],
    session: str,
    answers: bool,
    alone: bool = False,
) -> list[str]:
    """Serve until the client has gone. Loops that are under way then are driven on by a process
    of their own; the answer names them.
    """
    from loopwright.tools.mcp.server import serve_stdio  # noqa: PLC0415 - takes 0.5 s

    async with near(settings, via="mcp", alone=alone) as here:
        if answers and here.service.rights is not None:
            here.service.rights.refuse("answer gates", "loopwright mcp --allow-answers")
        of_here = RoleLoops(here=here, settings=settings, cwd=cwd, agents=agents)
        tools = LoopTools(loops=of_here, session=session, answers=answers)
        await serve_stdio(
            "loopwright",
            tools.specs(),
            tools.answer,
            instructions=INSTRUCTIONS,
            refused=tools.refused_names(),
        )
        mine = here.driver.owner
        left = [
            row.run
            for row in here.log.rows(statuses=OPEN_STATUSES)
            if row.owner == mine and row.headline.status == "running"
        ] + here.driver.stranded()
    for run in left:
        drive_in_background(settings, run, alone=alone)
    return left
