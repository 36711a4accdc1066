"""Tool calls that agents report, as entries of activity, and the secrets that agents were given."""

from collections.abc import Mapping, Sequence

import msgspec

from loopwright.agents.activity_targets import tool_target
from loopwright.agents.clis.heard import Said, note, tool_line
from loopwright.agents.clis.tool_calls import as_text
from loopwright.kernel.masking import is_secret_name, mask_text
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from loopwright.ports import ActivityEntry, ActivityKind

KINDS: Mapping[str, ActivityKind] = {
    "tool": "tool",
    "command": "command",
    "edit": "edit",
    "read": "read",
    "fetch": "fetch",
    "status": "status",
    "denied": "denied",
}
_PATH_STARTS = ("/", "./", "../", "~")


class ReportedTool(msgspec.Struct, kw_only=True):
    """A tool call as an agent reports it, every field as it came."""

    name: str
    arguments: JsonValue = None
    result: JsonValue = None
    ok: JsonValue = None
    code: JsonValue = None
    ms: JsonValue = None
    target: JsonValue = None
    kind: JsonValue = None
    text: JsonValue = None


def entry_of(tool: ReportedTool) -> ActivityEntry:
    """The entry of a tool call. What the agent does not say is derived from name and arguments."""
    found = tool_target(tool.name, tool.arguments)
    code = _whole(tool.code)
    ok = tool.ok if isinstance(tool.ok, bool) else None
    if ok is None and code is not None:
        ok = code == 0
    return ActivityEntry(
        kind=KINDS.get(tool.kind, found.kind) if isinstance(tool.kind, str) else found.kind,
        tool=tool.name,
        target=tool.target if isinstance(tool.target, str) and tool.target else found.target,
        ok=ok,
        code=code,
        ms=_whole(tool.ms),
        text=tool.text if isinstance(tool.text, str) else "",
        arguments=as_text(tool.arguments),
        result=as_text(tool.result),
    )


def live_words(entry: ActivityEntry) -> Said:
    """An entry as it is shown while the agent works: a denied permission and a status in their own
    words, as those of coding agents are, and what else it is as a tool with its target.
    """
    if entry.kind in ("denied", "status") and entry.text:
        return note(mask_text(entry.text))
    return tool_line(entry.tool, mask_text(entry.target))


def given_secrets(
    base: Mapping[str, str], agent: Agent, env: Mapping[str, str], pass_env: Sequence[str]
) -> dict[str, str]:
    """Variables whose values are not stored: those whose names say that they are secret, and those
    that the definition or `--env` passes on, unless they are paths.
    """
    named = {**base, **env, **agent.env}
    passed = {
        name: named[name]
        for name in (*agent.pass_env, *pass_env)
        if name in named and not named[name].startswith(_PATH_STARTS)
    }
    return {**passed, **{name: named[name] for name in named if is_secret_name(name)}}


def _whole(value: JsonValue) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < 1e15 else None
