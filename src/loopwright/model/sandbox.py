"""Sandbox levels: how far the programs of a run are confined, and which level applies to a call.

`off`: not confined. `guard`: Loopwright's own files and the settings of the kernel are out of
reach, the files of the person are as usual. `workspace`: only the workspace can be changed.
`readonly`: nothing can be changed, and the folders of people are hidden except for the workspace.
`none`: no files except the program itself.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

SandboxLevel: TypeAlias = Literal["off", "guard", "workspace", "readonly", "none"]
ConfinedLevel: TypeAlias = Literal["guard", "workspace", "readonly", "none"]
"""What a definition may ask for: only a person chooses `off`."""

SANDBOX_LEVELS: tuple[SandboxLevel, ...] = ("off", "guard", "workspace", "readonly", "none")
"""From the weakest to the strictest."""

DEFAULT_SANDBOX: SandboxLevel = "guard"

LEVEL_SAYS: Mapping[SandboxLevel, str] = MappingProxyType(
    {
        "off": "not confined",
        "guard": "Loopwright's data and the settings of the kernel are out of reach",
        "workspace": "writes only to the workspace, temporary files and its own configuration",
        "readonly": "changes nothing, and sees no other files of people than the workspace",
        "none": "sees no files but its own program",
    }
)
"""Each level in a few words."""

LEVEL_OF_ACCESS: Mapping[str, SandboxLevel] = MappingProxyType(
    {
        "full": "workspace",
        "readonly-shell": "readonly",
        "readonly": "readonly",
        "minimal": "none",
    }
)
"""The level that the access of a role stands for."""


COMMAND_SANDBOX = "command_sandbox"
"""The setting of a plan with the least level of its check commands and scripts."""


def strictest(*levels: SandboxLevel | None) -> SandboxLevel:
    """The strictest of some levels; without any, `off`."""
    found = [SANDBOX_LEVELS.index(level) for level in levels if level is not None]
    return SANDBOX_LEVELS[max(found, default=0)]


def is_at_least(level: SandboxLevel, other: SandboxLevel) -> bool:
    """Whether a level is as strict as another one, or stricter."""
    return SANDBOX_LEVELS.index(level) >= SANDBOX_LEVELS.index(other)


def command_level(level: SandboxLevel | None, settings: Mapping[str, str]) -> SandboxLevel | None:
    """The level of the commands of a plan: that of the run, or what its settings ask for."""
    least = next((one for one in SANDBOX_LEVELS if one == settings.get(COMMAND_SANDBOX)), None)
    return level if least is None else strictest(level, least)


def effective_level(
    chosen: SandboxLevel | None,
    *,
    requested: SandboxLevel | None = None,
    access: str | None = None,
    offline: bool = False,
    default: SandboxLevel = DEFAULT_SANDBOX,
) -> SandboxLevel:
    """The level of one call: the strictest of all that speak about it.

    `chosen` is the level of the run (the person's choice and the definition's), `requested` that
    of the agent, `access` that of its role. A program without a network needs a sandbox to be
    without one. Only `chosen` can be `off`, as nothing else makes a level weaker.
    """
    return strictest(
        chosen if chosen is not None else default,
        requested,
        LEVEL_OF_ACCESS.get(access or ""),
        "guard" if offline else None,
    )
