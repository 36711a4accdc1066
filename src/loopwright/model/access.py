"""Access levels: how far an agent reaches, and what that means for files, commands and trackers."""

from typing import Literal, TypeAlias

from loopwright.model.plan import Access, Agent
from loopwright.model.record import Record

LEVELS: tuple[Access, ...] = ("minimal", "readonly", "readonly-shell", "full")
"""From the narrowest to the widest."""

PLAIN_READ_COMMANDS = (
    *("grep", "cat", "head", "tail", "wc", "ls", "uniq", "diff"),
    *("cut", "nl", "stat"),
)
"""Programs of `readonly-shell` that are not made to write or to start other programs."""

READ_COMMANDS = (*PLAIN_READ_COMMANDS, "find", "sort")
"""All programs of `readonly-shell`. Some options of the last two write or start programs, so they
are there where arguments are checked one by one.
"""

TOOLKITS = (
    *("files", "shell", "web", "servers", "memory"),
    *("artifacts", "todos", "sprints", "projects", "skills"),
)
"""What the filter of a role speaks of."""

DENIED_TOOLKITS = "denied_toolkits"
"""Where an agent's options name the toolkits that its role takes away."""

NETWORK = "network"
"""Where an agent's options say whether what it starts has a network: `none` or `full`."""

_TRACKERS = {
    "artifact": "artifacts",
    "todo": "todos",
    "sprint": "sprints",
    "project": "projects",
    "skill": "skills",
    "memory": "memory",
}
_FULL_ONLY = ("artifact.delete", "todo.complete", "todo.delete")
"""Tools that end things for everybody."""

Commands: TypeAlias = Literal["none", "reading", "all"]


class Reach(Record, frozen=True, kw_only=True):
    """What an agent may do in its workspace."""

    reads: bool = True
    writes: bool = True
    commands: Commands = "all"
    servers: bool = True
    web: bool = True


_REACHES: dict[Access, Reach] = {
    "full": Reach(),
    "readonly-shell": Reach(writes=False, commands="reading", servers=False, web=False),
    "readonly": Reach(writes=False, commands="none", servers=False, web=False),
    "minimal": Reach(reads=False, writes=False, commands="none", servers=False, web=False),
}


def reach_of(agent: Agent) -> Reach:
    """How far an agent reaches; one without a level is not held by any."""
    level = _REACHES[agent.access or "full"]
    taken = denied_toolkits(agent)
    files = "files" not in taken and agent.sandbox != "none"
    shell = "shell" not in taken and agent.sandbox != "none"
    return Reach(
        reads=level.reads and files,
        writes=level.writes and files and agent.sandbox != "readonly",
        commands=level.commands if shell else "none",
        servers=level.servers and "servers" not in taken,
        web=level.web and "web" not in taken and not is_offline(agent),
    )


def denied_toolkits(agent: Agent) -> frozenset[str]:
    """The toolkits that a role has taken away."""
    named = agent.options.get(DENIED_TOOLKITS)
    return (
        frozenset(one for one in named if isinstance(one, str))
        if isinstance(named, list)
        else (frozenset())
    )


def is_offline(agent: Agent) -> bool:
    """Whether what an agent starts has no network at all."""
    return agent.options.get(NETWORK) == "none"


def network_problem(agent: Agent) -> str | None:
    """Why what an agent says about the network means nothing."""
    said = agent.options.get(NETWORK, "full")
    if said in ("none", "full"):
        return None
    return f"network is {said!r}; it may be none or full, and no list of hosts is kept to"


def is_tracker(tool: str) -> bool:
    """Whether a tool is one of the trackers, which every level has."""
    return tool.partition(".")[0] in _TRACKERS


def has_tracker(agent: Agent, tool: str) -> bool:
    """Whether an agent has a tool of the trackers at its level."""
    toolkit = _TRACKERS[tool.partition(".")[0]]
    if toolkit in denied_toolkits(agent) or (tool in _FULL_ONLY and agent.access != "full"):
        return False
    if toolkit == "memory":
        return agent.access == "full"
    return toolkit != "skills" or agent.access != "minimal"


def narrower(one: Access | None, other: Access | None) -> Access | None:
    """The narrower of two levels; none at all is no level."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=LEVELS.index)
