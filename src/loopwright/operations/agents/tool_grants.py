"""Tools that the agents of a plan get: grants from the definition, and access to session trackers.

Only tools that the definition names are granted. An agent that names none gets the file tools,
which reach no further than the workspace. An unknown tool name is an error before the run.

The trackers of a session also contain what the engine tracks: outputs of stages as artifacts,
and iterations of loops as sprints. These are computed from the events and the plan, and their
ids are derived from the place, so they never differ from the log.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path

import msgspec

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.files import FileProblem, ReadScope, read_regular
from loopwright.agents.sandbox.bubblewrap import works
from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import AgentCall, LookupCall, ModelCall, ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    IterationFinished,
    IterationStarted,
    RunStarted,
    StepFinished,
    StepSkipped,
    StepStarted,
)
from loopwright.model.access import (
    READ_COMMANDS,
    Reach,
    family_of,
    has_tracker,
    is_offline,
    is_rule_for,
    is_tracker,
    names_for,
    reach_of,
)
from loopwright.model.actions import Action, CallAgent, ModelCycle, Repeat, Steps
from loopwright.model.ids import iteration_number, last_id, parent_path
from loopwright.model.plan import Agent, ApprovalRule, Plan, stored_content, stored_plan
from loopwright.model.record import JsonValue, Text
from loopwright.model.sandbox import strictest
from loopwright.model.trackers import LOOP_OUTPUT, Item, Kind, Trackers, Values
from loopwright.operations.definition_files import project_folders
from loopwright.ports import Answer, Clock, EffectJob, EffectSuccess, EventLog
from loopwright.syntax.notations import front_matter
from loopwright.syntax.readers import read
from loopwright.tools.builtin import ANY_PROGRAM, SandboxAccess, ShellRules, ToolLimit
from loopwright.tools.mcp.server_records import HttpServer, StdioServer
from loopwright.tools.toolbox import NATIVE, Grant, ServerGrant, grant_problem
from loopwright.tools.tracker_scope import TrackerScope
from loopwright.views.summary import ReadText

FILE_TOOLS = ("fs.read", "fs.list", "fs.search", "fs.write", "fs.edit")
_READING = ("fs.read", "fs.list", "fs.search")
_WRITING = ("fs.write", "fs.edit", "fs.mkdir")
READ_ONLY = "read-only"
SHELL = "shell.exec"
WEB = "web.fetch"
ALL_TOOLS = "*"
"""All tools of a server."""
_FILES = "fs."
MISSING_TOOLS = "missing_tools"
"""Where an agent's options name the tools of its definition that chat models do not have."""
SKIP = "skip_missing_tools"
"""Where an agent's options say that tools that are not there are left out, not refused."""
OURS = frozenset(name.partition(".")[0] for name in NATIVE)
Server = StdioServer | HttpServer


def grant_of(agent: Agent, servers: Mapping[str, Server]) -> Grant:
    """What an agent may use; LoopwrightError when it names something that is not there."""
    native, foreign = _named(agent)
    denied = agent.deny_tools
    options = agent.options
    if _discovers(agent):
        foreign = {name: [ALL_TOOLS] for name in servers}
    granted = tuple(_servers(options, foreign, denied, servers))
    if granted and is_offline(agent):
        raise LoopwrightError(
            f"an agent without a network has no MCP servers, and it names {granted[0].name!r}",
            code="bad-tool",
            hint="take the server away, or `network: none`",
        )
    protected = _words(options.get("protected_paths"))
    grant = Grant(
        native=tuple(name for name in native if _is_reached(name, agent)),
        servers=granted if agent.permission != READ_ONLY and reach_of(agent).servers else (),
        commands=_commands(agent),
        limits=dict(_limits(options)),
        aliases=dict(_aliases(agent)),
        **({"protected": protected} if protected else {}),
    )
    problem = grant_problem(grant)
    if problem is not None:
        raise LoopwrightError(problem, code="bad-tool", hint="see docs/reference/tools.md")
    return grant


def _discovers(agent: Agent) -> bool:
    """Whether an agent has the tools of all servers of the settings: a role with full access that
    names no tools, has a network, and is not asked about each change.
    """
    is_free = agent.permission is None and not agent.approvals and not is_offline(agent)
    return agent.access == "full" and agent.role is not None and agent.tools is None and is_free


def in_own_tool_names(kind: str, agent: Agent) -> Agent:
    """The agent with its tools under the names that an agent of this kind knows. A tool that chat
    models do not have is left out; the start says so.
    """
    if kind not in ("model", *CLIS):
        return agent
    tools = None if agent.tools is None else names_for(kind, agent.tools)
    denied = names_for(kind, agent.deny_tools, denies=True)
    missing: tuple[str, ...] = ()
    if kind == "model" and tools is not None:
        missing = tuple(name for name in tools if _is_missing(name))
        tools = tuple(name for name in tools if name not in missing)
    options = {**agent.options, MISSING_TOOLS: list(missing)} if missing else agent.options
    return msgspec.structs.replace(agent, tools=tools, deny_tools=denied, options=options)


def _is_missing(name: str) -> bool:
    """Whether this is a tool of other agents that chat models do not have."""
    family = family_of(name)
    return family is not None and not family.ours


def _commands(agent: Agent) -> ShellRules:
    """Which programs may be started. At `full` that is any of them, where only the workspace can
    be written; otherwise those that the author has listed. Programs that are `confined` are started
    only where a sandbox holds them to the workspace.
    """
    configured = _mapping(agent.options.get("commands"))
    allow, deny = _words(configured.get("allow")), _words(configured.get("deny"))
    wall: SandboxAccess = "none"
    sandbox, offline = agent.sandbox, is_offline(agent)
    if "confined" in configured and works() is None:
        allow = (*allow, *_words(configured.get("confined")))
        level = configured.get("sandbox")
        sandbox = strictest(sandbox or "guard", "readonly" if level == "readonly" else "workspace")
        offline = offline or configured.get("offline") is True
    if agent.access == "full" and works() is None:
        allow, wall = allow or (ANY_PROGRAM,), "writing"
    elif ANY_PROGRAM in allow:  # any program at all only where it can write nothing else
        allow, wall = (allow, "writing") if works() is None else ((), "none")
    if reach_of(agent).commands == "reading":
        kept = tuple(one for one in READ_COMMANDS if not allow or one in allow)
        allow, wall = kept, "reading"
    return ShellRules(
        allow=allow,
        deny=deny,
        pass_env=agent.pass_env,
        wall=wall,
        offline=offline,
        sandbox=sandbox,
    )


def granted_names(agent: Agent) -> list[str]:
    """Every tool that an agent is given, by its own name."""
    native, foreign = _named(agent)
    return [*native, *(f"{server}.{tool}" for server, tools in foreign.items() for tool in tools)]


def check_tools(name: str, agent: Agent) -> None:
    """Every built-in tool that an agent names is there. Servers are known when the run begins."""
    unknown = [one for one in _named(agent)[0] if one not in NATIVE]
    unknown = [] if agent.options.get(SKIP) is True else unknown
    if unknown:
        near = get_close_matches(unknown[0], NATIVE, n=1)
        there = ", ".join(sorted(one for one in NATIVE if not is_tracker(one)))
        hint = f"did you mean {near[0]}?" if near else f"there are {there}"
        raise LoopwrightError(
            f"agent {name!r} names a tool that is not there: {unknown[0]!r}",
            code="bad-tool",
            hint=hint,
        )


def _named(agent: Agent) -> tuple[list[str], dict[str, list[str]]]:
    """The built-in tools that are named, and by server those of others. A built-in one may be
    named as if a server had it (`files.fs.read`): what runs is the tool of that name.
    """
    if agent.tools is None:
        any_program = ANY_PROGRAM in _words(_mapping(agent.options.get("commands")).get("allow"))
        shell = [SHELL] if any_program or agent.access in ("full", "readonly-shell") else []
        web = [WEB] if agent.access == "full" else []
        return [*FILE_TOOLS, *shell, *web, *tracker_names(agent)], {}
    native: list[str] = [*tracker_names(agent)]
    foreign: dict[str, list[str]] = {}
    for name in agent.tools:
        own = next((one for one in NATIVE if name == one or name.endswith(f".{one}")), None)
        server, dot, tool = name.partition(".")
        if own is not None:
            native += [own] if own not in native else []
        elif dot and server and tool and server not in OURS:
            foreign.setdefault(server, []).append(tool)
        elif agent.options.get(SKIP) is not True:
            native.append(name)  # there is no such tool; reported by name below
    return native, foreign


def _aliases(agent: Agent) -> Iterator[tuple[str, str]]:
    """The built-in tools that an author names as if a server had them, by that name."""
    for name in agent.tools or ():
        own = next((one for one in NATIVE if name.endswith(f".{one}")), None)
        if own is not None:
            yield name, own


def tracker_names(agent: Agent) -> list[str]:
    """The tools of the trackers that an agent has: those of its level."""
    if agent.access is None:
        return []
    return [name for name in NATIVE if is_tracker(name) and has_tracker(agent, name)]


def asking(agent: Agent) -> Agent:
    """The agent with a person asked about every change, where that is its permission."""
    if agent.permission != "default":
        return agent
    names = granted_names(agent)
    changing = [name for name in names if name not in _READING and not is_tracker(name)]
    rules: dict[str, ApprovalRule] = dict.fromkeys(changing, "always")
    return msgspec.structs.replace(agent, approvals={**agent.approvals, **rules})


def _is_reached(name: str, agent: Agent) -> bool:
    """Whether neither a deny list nor the rights of the agent keep it from a built-in tool."""
    if any(is_rule_for(one, name) for one in agent.deny_tools):
        return False
    if is_tracker(name):
        return agent.access is None or has_tracker(agent, name)
    if agent.permission == READ_ONLY and name not in _READING:
        return False
    if not _is_within(name, reach_of(agent)):
        return False
    files = _mapping(agent.options.get("permissions")).get("filesystem")
    if files == "none" and name.startswith(_FILES):
        return False
    return not (files == "repo-readonly" and name in _WRITING)


def _is_within(name: str, reach: Reach) -> bool:
    """Whether a built-in tool is one of those that a level has."""
    if name == SHELL:
        return reach.commands != "none"
    if name == WEB:
        return reach.web
    return reach.writes if name in _WRITING else reach.reads


def _servers(
    options: Mapping[str, JsonValue],
    foreign: Mapping[str, list[str]],
    denied: tuple[str, ...],
    known: Mapping[str, Server],
) -> Iterator[ServerGrant]:
    own = {
        str(one.get("server")): spec
        for one in map(_mapping, _list(options.get("mcp")))
        if (spec := server_of(one)) is not None
    }
    for name, tools in foreign.items():
        spec = own.get(name) or known.get(name)
        if spec is None and options.get(SKIP) is True:
            continue
        if spec is None:
            there = ", ".join(sorted({*own, *known})) or "none"
            raise LoopwrightError(
                f"there is no MCP server {name!r} (there are: {there})",
                code="unknown-server",
                hint=f"describe it in loopwright.toml under [mcp.{name}] with command or url",
            )
        allow = tuple(t for t in tools if not any(is_rule_for(d, f"{name}.{t}") for d in denied))
        yield ServerGrant(name=name, spec=spec, allow=allow, deny=denied)


def servers_of(written: Mapping[str, Mapping[str, JsonValue]]) -> dict[str, Server]:
    """The servers of the settings."""
    found = {name: server_of(one) for name, one in written.items()}
    return {name: spec for name, spec in found.items() if spec is not None}


def server_of(value: Mapping[str, JsonValue]) -> Server | None:
    """A server as configured: a command, or an address."""
    command, url = value.get("command"), value.get("url")
    words = (command,) if isinstance(command, str) else _words(command)
    argv = (*words, *_words(value.get("args")))
    if argv:
        return StdioServer(argv=argv, pass_env=_words(value.get("pass_env")))
    if not isinstance(url, str) or not url:
        return None
    bearer = value.get("bearer_env")
    headers = _mapping(value.get("header_env"))
    return HttpServer(
        url=url,
        bearer_env=bearer if isinstance(bearer, str) else None,
        header_env=tuple((header, str(variable)) for header, variable in headers.items()),
    )


def _limits(options: Mapping[str, JsonValue]) -> Iterator[tuple[str, ToolLimit]]:
    for tool, value in _mapping(options.get("tool_limits")).items():
        configured = _mapping(value)
        seconds, at_once = configured.get("seconds"), configured.get("at_once")
        yield (
            tool,
            ToolLimit(
                seconds=float(seconds) if isinstance(seconds, int | float) else ToolLimit().seconds,
                at_once=at_once if isinstance(at_once, int) else None,
                exclusive=configured.get("exclusive") is True,
            ),
        )


def _mapping(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _words(value: JsonValue) -> tuple[str, ...]:
    return tuple(one for one in _list(value) if isinstance(one, str))


LINE_CHARS = 200


@dataclass(slots=True)
class TrackedOutputs:
    """What was made in one run, in the order in which it was made."""

    artifacts: list[Item] = field(default_factory=list)
    sprints: list[Item] = field(default_factory=list)

    def of(self, kind: Kind) -> list[Item]:
        return {"artifact": self.artifacts, "sprint": self.sprints}.get(kind, [])


def rounds_of(plan: Plan, events: Iterable[AnyEvent], read: ReadText) -> TrackedOutputs:
    """The rounds of a run and the outputs of its stages."""
    reading = _Reading(plan, read)
    for event in events:
        reading.take(event)
    return TrackedOutputs(artifacts=reading.artifacts, sprints=list(reading.sprints.values()))


class _Reading:
    def __init__(self, plan: Plan, read: ReadText) -> None:
        self._read = read
        self._loops = {
            step.id: step.action
            for step in plan.steps
            if isinstance(step.action, Repeat) and not isinstance(step.action.body, ModelCycle)
        }
        self._plan = plan
        self._run, self._scope = "", ""
        self._lines: dict[str, list[str]] = {}  # by round, one for each of its stages
        self.artifacts: list[Item] = []
        self.sprints: dict[str, Item] = {}

    def take(self, event: AnyEvent) -> None:
        match event:
            case RunStarted(run=run, session=session):
                self._run, self._scope = run, session or run
            case IterationStarted(path=path) if self._loop(parent_path(path)) is not None:
                self._settle(parent_path(path), "rejected")
                if event.resumed and path in self.sprints:
                    self._move(path, "in_progress")
                else:
                    self._begin(path, event)
            case IterationFinished(path=path) if path in self.sprints:
                if isinstance(self._body(path), CallAgent):
                    self._stage(event, path, last_id(parent_path(path)))
                self._move(path, "complete" if event.done else "review")
            case StepStarted(path=path) | StepSkipped(path=path):
                self._lines.setdefault(parent_path(path), [])
            case StepFinished(path=path) if parent_path(path) in self.sprints:
                self._stage(event, parent_path(path), last_id(path))
            case StepFinished(path=path, status=status) if self._loop(path) is not None:
                ended = status in ("completed", "exhausted")
                self._settle(path, "complete" if ended else "rejected")
            case _:
                pass

    def _loop(self, path: str) -> Repeat | None:
        """The loop at a place, when it is one of the run itself; tries of it count as one."""
        return self._loops.get(path.partition("~")[0])

    def _body(self, round_path: str) -> Action | None:
        loop = self._loop(parent_path(round_path))
        return loop.body if loop is not None else None

    # -- sprints

    def _begin(self, path: str, event: IterationStarted) -> None:
        number = event.iteration or iteration_number(path) + 1
        values: Values = {
            "title": f"{self._plan.name} — iteration {number}",
            "status": "in_progress",
            "iteration": number,
            "run": self._run,
            "created_by": "engine",
        }
        self.sprints[path] = self._item("sprint", path, event.at, values)

    def _settle(self, loop: str, becomes: str) -> None:
        """Decide about the iterations of a loop that have no decision yet."""
        for path, sprint in self.sprints.items():
            if parent_path(path) == loop and sprint.text("status") in ("in_progress", "review"):
                self._move(path, becomes)

    def _move(self, path: str, becomes: str) -> None:
        sprint = self.sprints[path]
        values = {**sprint.values, "status": becomes, "summary": "\n".join(self._list_files(path))}
        self.sprints[path] = msgspec.structs.replace(
            sprint, values=values, version=sprint.version + 1
        )

    def _list_files(self, path: str) -> list[str]:
        return self._lines.get(path, [])

    # -- artifacts

    def _stage(self, event: StepFinished | IterationFinished, around: str, step: str) -> None:
        number, index, role = self._stage_of(around, step)
        output = self._read(event.output) if event.output is not None else ""
        first = next((line.strip() for line in output.splitlines() if line.strip()), "")
        lines = self._lines.setdefault(around, [])
        lines.append(f"- {role} [{event.status}]: {first[:LINE_CHARS]}")
        if event.status != "completed" or not output.strip():
            return
        values: Values = {
            "type": LOOP_OUTPUT,
            "title": f"Loop output: {role} (iter {number}, stage {index})",
            "content": output,
            "role": role,
            "iteration": number,
            "stage": index,
            "run": self._run,
            "path": event.path,
            "created_by": "engine",
        }
        self.artifacts.append(self._item("artifact", event.path, event.at, values))

    def _stage_of(self, around: str, step: str) -> tuple[int, int, str]:
        """The number of the round, the place of a stage in it from 0, and its role."""
        body = self._body(around)
        steps = body.steps if isinstance(body, Steps) else ()
        found = next(((n, one) for n, one in enumerate(steps) if one.id == step), None)
        index, action = (found[0], found[1].action) if found is not None else (0, body)
        return iteration_number(around) + 1, index, self._role(action, step)

    def _role(self, action: Action | None, step: str) -> str:
        while isinstance(action, Repeat):
            action = action.body
        if not isinstance(action, CallAgent | ModelCycle):
            return step
        agent = self._plan.agents.get(action.agent)
        return (agent.role if agent is not None else None) or action.agent

    def _item(self, kind: Kind, path: str, at: int, values: Values) -> Item:
        name = blake2b(f"{self._run}/{kind}/{path}".encode(), digest_size=16).hexdigest()
        return Item(scope=self._scope, kind=kind, id=name, at=at, values=values)


MEMORY = "memory:"
"""How scopes of memories begin; the workspace follows."""
MOST_RUNS = 100
"""Runs of a session whose rounds are shown, the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerScopes:
    """Makes desks; everything about trackers that the wiring has to know."""

    log: EventLog
    trackers: Trackers
    clock: Clock
    data_directory: Path | None = None

    def of(self, job: EffectJob) -> TrackerScope:
        """The desk of the agent that a job is for."""
        agent = job.agent or Agent()
        call = job.call
        name = call.agent if isinstance(call, AgentCall | ModelCall | ToolCall) else ""
        wanted = agent.options.get("skills")

        def skills() -> dict[str, SkillFile]:
            known = find_skills(self.data_directory, Path(job.workspace))
            if not isinstance(wanted, list):
                return known
            return {name: one for name, one in known.items() if name in wanted}

        return TrackerScope(
            trackers=self.trackers,
            scope=job.origin.scope or job.run,
            run=job.run,
            role=agent.role or name,
            now_ms=self.clock.now_ms,
            project=self._project(job.run),
            memory=f"{MEMORY}{job.workspace}",
            made=lambda kind: self.made(job.origin.scope or job.run, kind, run=job.run),
            skills=skills,
        )

    def look(self, job: EffectJob) -> Answer:
        """Whether an agent or a person has left an artifact in the scope of a job."""
        assert isinstance(job.call, LookupCall)
        since, scope = job.call.since, job.origin.scope or job.run
        left = [one for one in self.trackers.all(scope, "artifact") if one.at >= since]
        return EffectSuccess(
            code=0 if left else 1, output="\n".join(one.text("title") or one.id for one in left)
        )

    def _project(self, run: str) -> str:
        first = self.log.read(run, 0, 1)[0].event
        return first.project if isinstance(first, RunStarted) else ""

    def made(self, scope: str, kind: Kind, *, run: str | None = None) -> Sequence[Item]:
        """What the engine has made in a scope, oldest first."""
        if kind not in ("artifact", "sprint"):
            return ()
        rows = self.log.rows(session=scope, limit=MOST_RUNS)
        runs = dict.fromkeys([*([run] if run else ()), *(row.run for row in rows)])
        found = [item for one in reversed(runs) for item in self._rounds(one, kind)]
        return sorted(found, key=lambda item: item.at)

    def _rounds(self, run: str, kind: Kind) -> list[Item]:
        events = [one.event for one in self.log.read(run)]
        first = events[0]
        assert isinstance(first, RunStarted), "every run begins so"
        plan = stored_plan(self.log.blob, first.plan)
        return rounds_of(plan, events, self._read).of(kind)

    def _read(self, text: Text | None) -> str:
        if text is None or isinstance(text, str):
            return text or ""
        return stored_content(self.log.blob, text.blob).decode()


SKILLS_FOLDER = "skills"
MAX_SKILL_BYTES = 262_144
MOST_SKILLS = 1_000


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A skill by its name."""

    name: str
    description: str
    text: str


def find_skills(data_directory: Path | None, project: Path | None) -> dict[str, SkillFile]:
    """All skills by name: `NAME/SKILL.md` or `NAME.md`. Those of the project come first."""
    found: dict[str, SkillFile] = {}
    if data_directory is not None:
        own = _skills_in(data_directory / SKILLS_FOLDER, data_directory)
        found |= {one.name: one for one in own}
    if project is not None:
        for folder in reversed(project_folders(project, SKILLS_FOLDER)):
            found |= {one.name: one for one in _skills_in(folder, project)}
    return dict(sorted(found.items()))


def _skills_in(folder: Path, around: Path) -> Iterator[SkillFile]:
    try:
        entries = sorted(folder.iterdir())[:MOST_SKILLS]
    except OSError:
        return
    for entry in entries:
        file = entry / "SKILL.md" if entry.is_dir() else entry
        if file.suffix != ".md":
            continue
        data = read_regular(file, MAX_SKILL_BYTES, ReadScope(around))
        if not isinstance(data, FileProblem):
            yield _skill(data, entry.name.removesuffix(".md"), str(file))


def _skill(data: bytes, name: str, file: str) -> SkillFile:
    parts = front_matter(data)
    if parts is None:
        return SkillFile(name, "", data.decode(errors="replace").strip())
    document, _ = read(parts[0], file=file)
    head = document.value if document is not None else None
    configured = head.get("description") if isinstance(head, dict) else None
    return SkillFile(name, configured if isinstance(configured, str) else "", parts[1])
