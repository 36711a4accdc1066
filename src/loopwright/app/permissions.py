"""`--permission` and `--tools`: what the agents of a run may do, set when it is started."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from msgspec.structs import replace

from loopwright.agents.clis.check_rules import ADDS
from loopwright.app.granting import asking
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.plan import Agent, Plan
from loopwright.programs.specs import CHAT_WORDS, Spec, parse_spec, unfit_agent

PermissionMode: TypeAlias = Literal["ask", "edit", "all"]
MODES: tuple[PermissionMode, ...] = get_args(PermissionMode)
UNENFORCED_KINDS = ("command", "jsonl")
"""Programs that get their permission in variables only: nothing enforces it."""


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


def unenforced_permissions(plan: Plan) -> list[str]:
    """Warnings about agents whose permission is passed to them but not enforced."""
    found = []
    for name, agent in plan.agents.items():
        spec = parse_spec(agent.spec or "")
        has_any = agent.permission in MODES or agent.tools is not None
        if isinstance(spec, Spec) and spec.kind in UNENFORCED_KINDS and has_any:
            variables = "LOOPWRIGHT_PERMISSION and LOOPWRIGHT_TOOLS"
            found.append(f"agent {name} reads its permission from {variables}; nothing enforces it")
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
    problem = unfit_agent(spec, agent) if isinstance(spec, Spec) else None
    if problem is not None:
        raise LoopwrightError(f"agent {name}: {problem}", code="bad-flag")
    return agent
