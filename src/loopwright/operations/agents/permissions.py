"""Permissions of the agents of a run, set at its start: `--permission`, `--tools`, tool approval.

Some definitions come from systems in which a person approves each tool call, and in which a call is
denied if no one can answer. Their plans say so (`tools: ask`); the options of a start decide these
calls in advance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclasses_replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from loopwright.agents.clis.catalogue import ADDS
from loopwright.agents.clis.command_line import USED_OPTIONS
from loopwright.agents.specs import CHAT_WORDS, Spec, parse_spec, takes_loop_tools, unfit_agent
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.access import is_open, is_rule_for, names_for, reach_of
from loopwright.model.chat import can_see, media_type
from loopwright.model.plan import Agent, ApprovalRule, LoopRight, Plan, agent_calls
from loopwright.operations.agents.backends import UNUSED_MODEL
from loopwright.operations.agents.tool_grants import (
    FILE_TOOLS,
    MISSING_TOOLS,
    OURS,
    SHELL,
    asking,
    granted_names,
    in_own_tool_names,
)
from loopwright.operations.dialects import PORTABLE
from loopwright.operations.workspace_rules import hidden_context_files
from loopwright.tools.toolbox import NATIVE

PermissionMode: TypeAlias = Literal["ask", "edit", "all"]
MODES: tuple[PermissionMode, ...] = get_args(PermissionMode)
UNENFORCED_KINDS = ("command", "jsonl")
"""Programs that get their permission in variables only: nothing enforces it."""


def with_loop_tools(plan: Plan, rights: Sequence[LoopRight]) -> Plan:
    """The plan with loop tools for all of its agents that can have them."""
    if not rights:
        return plan
    fitting = [
        name
        for name, agent in plan.agents.items()
        if not isinstance(spec := parse_spec(agent.spec or ""), Spec) or takes_loop_tools(spec)
    ]
    if not fitting:
        raise LoopwrightError(
            "--loop-tools: none of the agents can use loop tools",
            code="bad-flag",
            hint="give --agent a coding CLI, acp:PROGRAM or model:PROVIDER/NAME",
        )
    agents = {
        name: replace(agent, loops=tuple(dict.fromkeys((*agent.loops, *rights))))
        if name in fitting
        else agent
        for name, agent in plan.agents.items()
    }
    return replace(plan, agents=agents)


def with_permission(
    plan: Plan, permission: str | None, tools: Sequence[str], *, strict: bool = False
) -> Plan:
    """The plan with this permission and these tools for all of its agents. With `strict` they can
    only restrict: tools that the definition denies are not allowed by other means.
    """
    if permission is None and not tools:
        return plan
    if permission is not None and permission not in MODES:
        raise LoopwrightError(
            f"--permission {permission!r} is not known",
            code="bad-flag",
            hint=f"it is one of {', '.join(MODES)}",
        )
    added = [tool for tool in tools if tool.startswith(ADDS)]
    if strict and (permission in ("edit", "all") or added):
        raise NotAllowed(
            "a request may not allow more than the definition does",
            code="widens",
            hint="write `permission` and `tools` into the definition, or start the run there",
        )
    agents = {
        name: _checked(name, _with_permission(agent, permission, tuple(tools)))
        for name, agent in plan.agents.items()
    }
    return replace(plan, agents=agents)


def limit_warnings(plan: Plan, workspace: Path, file: str = "") -> list[str]:
    """Warnings before a run starts: what agents are limited to that nothing enforces, and what they
    are given that they cannot see. `file` is the definition.
    """
    found = [*unenforced_permissions(plan), *unseen_files(plan)]
    for name, agent in plan.agents.items():
        model = agent.options.get(UNUSED_MODEL)
        if isinstance(model, str):
            found.append(
                f"agent {name}: {agent.spec} does not have the model {model}, so it uses its own"
            )
    folder = Path(file).absolute().parent
    return [*found, *(hidden_context_files(plan, workspace, folder) if file else ())]


def unenforced_permissions(plan: Plan) -> list[str]:
    """Warnings about agents whose permission or tools are passed to them but not enforced, and
    about tools of a definition that do not exist here.
    """
    found = []
    for name, agent in plan.agents.items():
        spec = parse_spec(agent.spec or "")
        kind = spec.kind if isinstance(spec, Spec) else ""
        limited = agent.tools is not None or bool(agent.deny_tools)
        if kind in UNENFORCED_KINDS and (agent.permission in MODES or limited):
            variables = "LOOPWRIGHT_PERMISSION, LOOPWRIGHT_TOOLS and LOOPWRIGHT_DENIED_TOOLS"
            found.append(f"agent {name} reads its permission from {variables}; nothing enforces it")
        if kind == "acp" and limited:
            found.append(
                f"agent {name} is kept from tools where it asks for permission; an ACP agent that "
                "does not ask is not kept from them"
            )
        missing = agent.options.get(MISSING_TOOLS)
        if isinstance(missing, list) and missing:
            named = ", ".join(map(str, missing))
            found.append(f"agent {name} has no tool {named}: chat models do not have it here")
    return found


def unseen_files(plan: Plan) -> list[str]:
    """Warnings about images and PDFs that agents are given by name only."""
    found = [
        f"agent {call.agent} is given only the name of {name}: {media} files are attached for chat "
        "models that can look at them"
        for call in agent_calls(plan)
        for name in call.context_files
        if (media := media_type(name)) is not None
        and (agent := plan.agents.get(call.agent)) is not None
        and not can_see(agent, media)
    ]
    return list(dict.fromkeys(found))


OPTIONS = (
    "mcp",
    "skills",
    "hooks",
    "agents",
    "effort",
    "thinking",
    "fallbackModel",
    "betas",
    "sandbox",
    "modelReasoningEffort",
    "webSearchMode",
    "additionalDirectories",
)
"""Options of agents that only some programs use."""


def unsupported_options(written: Plan, bound: Plan) -> list[str]:
    """Warnings about what a workflow gives its agents and what those behind them do not use.
    `written` is the plan as its definition says it.
    """
    found = []
    for name, agent in written.agents.items() if written.dialect in PORTABLE else ():
        spec = parse_spec(bound.agents[name].spec or "") if name in bound.agents else None
        if not isinstance(spec, Spec):
            continue
        unused = [key for key in OPTIONS if key in agent.options]
        unused = [key for key in unused if key not in USED_OPTIONS.get(spec.kind, ())]
        lost = bound.agents[name].tools is None and bound.agents[name].deny_tools == ()
        unused += ["allowed_tools"] if lost and agent.tools is not None else []
        unused += ["denied_tools"] if lost and agent.deny_tools else []
        if unused:
            found.append(f"agent {name} ({spec.kind}) does not use: {', '.join(unused)}")
    return found


def _with_permission(agent: Agent, permission: str | None, tools: tuple[str, ...]) -> Agent:
    if permission is not None:
        word = CHAT_WORDS[permission] if agent.is_chat else permission
        agent = replace(agent, permission=word)
        agent = asking(agent) if agent.is_chat else agent
    if not tools:
        return agent
    only = any(not tool.startswith(ADDS) for tool in tools)
    return replace(agent, tools=tools if only else (*(agent.tools or ()), *tools))


def _checked(name: str, agent: Agent) -> Agent:
    spec = parse_spec(agent.spec or "")
    if isinstance(spec, Spec):
        agent = in_own_tool_names(spec.kind, agent)
    problem = unfit_agent(spec, agent) if isinstance(spec, Spec) else None
    if problem is not None:
        raise LoopwrightError(f"agent {name}: {problem}", code="bad-flag")
    return agent


ALL = "all"
ASK = "ask"
GIVEN = "rights"
DENIED = "denied_tools"
"""Where an agent's options name the tools that are refused by a word of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The options of a start. `attended` means that a person can answer, `strict` that the caller
    may restrict the permissions of the definition, and may not allow calls that need approval.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    file_tools_only: bool = False
    attended: bool = False
    strict: bool = False


def with_rights(plan: Plan, rights: Rights) -> Plan:
    """The plan with the rights that this start gives."""
    if rights.file_tools_only and rights.allow:
        raise LoopwrightError(
            "--file-tools-only and --allow exclude each other",
            code="bad-flag",
            hint="--file-tools-only allows the file tools, and nothing else",
        )
    if rights.strict and rights.allow:
        raise NotAllowed(
            "--allow permits tools without a question, and a server does not accept it",
            code="widens",
            hint="leave it out and answer in the inbox, or start the run on that machine",
        )
    plan, rights = _with_programs(plan, rights)
    rights = dataclasses_replace(
        rights,
        allow=names_for("model", rights.allow),
        deny=names_for("model", rights.deny, denies=True),
        ask=names_for("model", rights.ask),
    )
    asks = plan.settings.get("tools") == ASK
    narrows = bool(rights.deny or rights.ask or rights.file_tools_only)
    _check_names(plan, rights)
    if narrows:
        _check_held(plan)
    if not asks and not narrows:
        return plan
    agents = {
        name: _with_rights(agent, rights, asks=asks) if agent.is_chat else agent
        for name, agent in plan.agents.items()
    }
    settings = {**plan.settings, GIVEN: msgspec.json.encode(rights).decode()}
    return msgspec.structs.replace(plan, agents=agents, settings=settings)


def rights_of(plan: Plan) -> Rights:
    """The options with which the run of this plan started. They apply to every later backend of an
    agent, too; whether a person is present is unknown then, so it counts as no.
    """
    given = plan.settings.get(GIVEN)
    if given is None:
        return Rights()
    return dataclasses_replace(msgspec.json.decode(given, type=Rights), attended=False)


def _with_programs(plan: Plan, rights: Rights) -> tuple[Plan, Rights]:
    """The plan with the programs that `shell.exec:PROGRAM` allows, and the rights without them."""
    programs = [one.partition(":")[2].strip() for one in rights.allow if ":" in one]
    tools = [one.partition(":")[0] for one in rights.allow if ":" in one]
    other = next((name for name in tools if not is_rule_for(name, SHELL)), None)
    if other is not None or not all(programs):
        raise LoopwrightError(
            f"only programs of {SHELL} are allowed by name, not {other or ''!r}",
            code="bad-tool",
            hint=f"--allow {SHELL}:tsc",
        )
    if not programs:
        return plan, rights
    starting = [name for name, agent in plan.agents.items() if _starts_programs(agent)]
    if not starting:
        raise LoopwrightError(
            f"no agent here has {SHELL}", code="bad-tool", hint=f"name it among its tools: {SHELL}"
        )
    agents = {
        name: _allowing(agent, programs) if name in starting else agent
        for name, agent in plan.agents.items()
    }
    left = dataclasses_replace(rights, allow=tuple(one for one in rights.allow if ":" not in one))
    return msgspec.structs.replace(plan, agents=agents), left


def _starts_programs(agent: Agent) -> bool:
    """Whether a chat model has `shell.exec` with programs of one's choice."""
    if not agent.is_chat or SHELL not in granted_names(agent):
        return False
    return reach_of(agent).commands == "all"


def _allowing(agent: Agent, programs: list[str]) -> Agent:
    configured = agent.options.get("commands")
    commands = dict(configured) if isinstance(configured, dict) else {}
    listed = commands.get("allow")
    commands["allow"] = [*(listed if isinstance(listed, list) else ()), *programs]
    return msgspec.structs.replace(agent, options={**agent.options, "commands": commands})


def _check_held(plan: Plan) -> None:
    """Only possible for chat models: the actions of a program are not visible."""
    other = next((n for n, agent in plan.agents.items() if not agent.is_chat), None)
    if other is not None:
        raise LoopwrightError(
            f"--deny, --ask and --file-tools-only hold chat models alone, and agent {other!r} is "
            f"{plan.agents[other].spec!r}",
            code="bad-flag",
            hint="leave them out, or give the agent a model: --agent model:PROVIDER/NAME",
        )


def _check_names(plan: Plan, rights: Rights) -> None:
    """A name that means no tool is an error; continuing would keep a tool that should be denied."""
    chats = [agent for agent in plan.agents.values() if agent.is_chat]
    known = sorted({name for agent in chats for name in granted_names(agent)} | set(NATIVE))
    servers = any(is_open(name) for name in known)
    for name in (*rights.allow, *rights.deny, *rights.ask):
        if name == ALL or not chats or any(is_rule_for(name, one) for one in known):
            continue
        if servers and name.partition(".")[0] not in OURS:
            continue  # of a server whose tools are known when it is asked
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise LoopwrightError(f"there is no tool {name!r} here", code="bad-tool", hint=hint)


def _with_rights(agent: Agent, rights: Rights, *, asks: bool) -> Agent:
    names = granted_names(agent)
    denied = [name for name in names if any(is_rule_for(one, name) for one in rights.deny)]
    if any(map(is_open, names)):
        denied += rights.deny  # they may name what only the server lists
    if rights.file_tools_only:
        denied += [name for name in names if name not in FILE_TOOLS]
    held: dict[str, ApprovalRule] = {
        name: "always" for name in names if ALL in rights.ask or _is_named(name, rights.ask)
    }
    agent = msgspec.structs.replace(
        agent,
        deny_tools=(*agent.deny_tools, *denied),
        approvals={**agent.approvals, **held},
    )
    if not asks or (rights.file_tools_only and not rights.strict) or ALL in rights.allow:
        return agent
    settled = (*denied, *held)
    open_to_ask = [n for n in names if n not in settled and not _is_named(n, rights.allow)]
    if rights.attended:
        rules: dict[str, ApprovalRule] = dict.fromkeys(open_to_ask, "always")
        return msgspec.structs.replace(agent, approvals={**agent.approvals, **rules})
    options = {**agent.options, DENIED: list(open_to_ask)}
    return msgspec.structs.replace(agent, options=options)


def _is_named(tool: str, names: tuple[str, ...]) -> bool:
    """Whether a tool is one of these: by its own name, by the last part of it, or with all others
    of its server.
    """
    return any(
        name == tool or tool.endswith(f".{name}") or (is_open(name) and is_rule_for(name, tool))
        for name in names
    )
