"""Rights: what whoever starts a run lets its chat models do, on top of what the definition says.

Some definitions come from systems where a person is asked about every tool, and where with nobody
to ask the answer is no. Their plans say so (`tools: ask`); the options of a start answer it.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches

import msgspec

from loopwright.app.granting import FILE_TOOLS, OURS, SHELL, granted_names
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.access import reach_of
from loopwright.model.plan import Agent, ApprovalRule, Plan
from loopwright.model.toolnames import is_open, names_for, speaks_of
from loopwright.tools.toolbox import NATIVE

ALL = "all"
ASK = "ask"
GIVEN = "rights"
DENIED = "denied_tools"
"""Where an agent's options name the tools that are refused by a word of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What was said at the start. `attended`: somebody is there to be asked. `strict`: whoever said
    it may take from what the definition gives, and let nothing pass unasked that it asks about.
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
            "--allow lets tools be used unasked, and that is not said from elsewhere",
            code="widens",
            hint="leave it out and answer in the inbox, or start the run on that machine",
        )
    plan, rights = _with_programs(plan, rights)
    rights = replace(
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
    """What was said when the run of this plan started. It holds for whatever stands behind an
    agent later, too; whether somebody is there is not known then, so nobody is.
    """
    given = plan.settings.get(GIVEN)
    if given is None:
        return Rights()
    return replace(msgspec.json.decode(given, type=Rights), attended=False)


def _with_programs(plan: Plan, rights: Rights) -> tuple[Plan, Rights]:
    """The plan with the programs that `shell.exec:PROGRAM` allows, and the rights without them."""
    programs = [one.partition(":")[2].strip() for one in rights.allow if ":" in one]
    tools = [one.partition(":")[0] for one in rights.allow if ":" in one]
    other = next((name for name in tools if not speaks_of(name, SHELL)), None)
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
    left = replace(rights, allow=tuple(one for one in rights.allow if ":" not in one))
    return msgspec.structs.replace(plan, agents=agents), left


def _starts_programs(agent: Agent) -> bool:
    """Whether a chat model has `shell.exec` with programs of one's choice."""
    if not agent.is_chat or SHELL not in granted_names(agent):
        return False
    return reach_of(agent).commands == "all"


def _allowing(agent: Agent, programs: list[str]) -> Agent:
    said = agent.options.get("commands")
    commands = dict(said) if isinstance(said, dict) else {}
    listed = commands.get("allow")
    commands["allow"] = [*(listed if isinstance(listed, list) else ()), *programs]
    return msgspec.structs.replace(agent, options={**agent.options, "commands": commands})


def _check_held(plan: Plan) -> None:
    """Only chat models can be held to it: what a program does nobody sees."""
    other = next((n for n, agent in plan.agents.items() if not agent.is_chat), None)
    if other is not None:
        raise LoopwrightError(
            f"--deny, --ask and --file-tools-only hold chat models alone, and agent {other!r} is "
            f"{plan.agents[other].spec!r}",
            code="bad-flag",
            hint="leave them out, or give the agent a model: --agent model:PROVIDER/NAME",
        )


def _check_names(plan: Plan, rights: Rights) -> None:
    """A name that means no tool at all was not meant; to go on would keep what was to be denied."""
    chats = [agent for agent in plan.agents.values() if agent.is_chat]
    known = sorted({name for agent in chats for name in granted_names(agent)} | set(NATIVE))
    servers = any(is_open(name) for name in known)
    for name in (*rights.allow, *rights.deny, *rights.ask):
        if name == ALL or not chats or any(speaks_of(name, one) for one in known):
            continue
        if servers and name.partition(".")[0] not in OURS:
            continue  # of a server whose tools are known when it is asked
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise LoopwrightError(f"there is no tool {name!r} here", code="bad-tool", hint=hint)


def _with_rights(agent: Agent, rights: Rights, *, asks: bool) -> Agent:
    names = granted_names(agent)
    denied = [name for name in names if any(speaks_of(one, name) for one in rights.deny)]
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
        name == tool or tool.endswith(f".{name}") or (is_open(name) and speaks_of(name, tool))
        for name in names
    )
