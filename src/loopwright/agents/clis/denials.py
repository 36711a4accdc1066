"""What a person does about a denied permission: the sentence with the flag that allows it."""

from loopwright.agents.activity_targets import tool_kind
from loopwright.agents.clis.check_rules import ADDS, EDIT_WORDS
from loopwright.agents.clis.table import CLIS, DEFAULT_PERMISSION
from loopwright.model.plan import Agent

ALL_WORDS = ("all", "bypassPermissions", "yolo", "danger-full-access")
TARGET_CHARS = 100


def denial_words(program: str, agent: Agent, tool: str, target: str) -> str:
    """What was denied, and what allows it: a flag, or the setting that forbids it. `program` is the
    name of a coding CLI, or `acp`.
    """
    shown = target if len(target) <= TARGET_CHARS else target[: TARGET_CHARS - 1] + "…"
    what = f"{tool or 'a tool'}({shown})" if shown else tool or "a tool"
    if agent.access not in (None, "full"):
        return f"{what} was denied at the access level {agent.access}"
    bare = tool.partition("(")[0]
    if any(bare == named.partition("(")[0] for named in agent.deny_tools):
        return f"{what} was denied by `deny_tools` of the definition"
    permission = agent.permission or (DEFAULT_PERMISSION if program in CLIS else "ask")
    if permission in ALL_WORDS:
        return f"{what} was denied by the agent's own settings"
    edits = tool_kind(tool) == "edit" and permission not in EDIT_WORDS
    flags = ["--permission edit" if edits else "--permission all"]
    if program in CLIS and CLIS[program].can_add_tools and bare:
        flags.append(f"--tools {ADDS}{bare}")
    return f"{what} was denied; allow it with {' or '.join(flags)}"
