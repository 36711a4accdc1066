"""`--permission` and `--tools`: what the agents of a run may do, set when it is started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from msgspec.structs import replace

from loopwright.agents.clis.arguments import USED_OPTIONS
from loopwright.agents.clis.check_rules import ADDS
from loopwright.app.dialects import PORTABLE
from loopwright.app.granting import MISSING_TOOLS, asking, in_own_tool_names
from loopwright.app.models_fit import UNUSED_MODEL
from loopwright.app.repository import hidden_context_files
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.attachments import can_see, media_type
from loopwright.model.plan import Agent, LoopRight, Plan, agent_calls
from loopwright.programs.specs import CHAT_WORDS, Spec, parse_spec, takes_loop_tools, unfit_agent

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
    """The plan with this permission and these tools for all of its agents. With `strict` they may
    only take away: what the definition denies is not allowed from elsewhere.
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
