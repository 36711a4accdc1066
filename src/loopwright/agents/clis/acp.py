"""The client side of the Agent Client Protocol (JSON-RPC over lines), as a state machine.

It takes messages and returns what to send, what to show and what a person has to decide. It never
reads a pipe, so a test can run a whole conversation.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from loopwright.agents.clis.catalogue import ADDS, added_tools, check_lines, only_tools
from loopwright.agents.clis.loose_json import amount, at, decode_object, items, text, whole
from loopwright.agents.clis.transcript import (
    CallKind,
    LiveEntry,
    Transcript,
    Trouble,
    as_text,
    tool_line,
)
from loopwright.kernel.events import Usage
from loopwright.model.access import family_of, inside_shell
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue

PROTOCOL_VERSION = 1
NO_SUCH_METHOD = -32601
ABOUT_CHARS = 16 * 1024

Message: TypeAlias = dict[str, JsonValue]
Phase: TypeAlias = Literal["initialize", "session/new", "session/load", "session/prompt", "over"]


@dataclass(frozen=True, slots=True)
class Send:
    """A message for the agent."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """An action that the agent may not perform by itself."""

    id: JsonValue  # of the request
    title: str
    kind: str
    about: str
    allow: str | None  # the option that allows it this once
    reject: str | None
    call: str = ""  # the tool call that it is about
    command: str = ""  # exactly what it would run, if it is a command


Move: TypeAlias = Send | LiveEntry | Permission

_STOPS: dict[str, tuple[str, Trouble]] = {
    "cancelled": ("the turn was cancelled", "aborted"),
    "max_tokens": ("the answer was longer than the model may give", "turns"),
    "max_turn_requests": ("the agent made as many turns as it may", "turns"),
    "refusal": ("the agent refused to continue", "other"),
}


@dataclass(slots=True)
class AcpConversation:
    """One prompt to an agent, from the first message to the last."""

    prompt: str
    cwd: str
    session: str | None = None  # to continue
    servers: tuple[tuple[str, tuple[str, ...]], ...] = ()  # MCP servers by name: how they start
    transcript: Transcript = field(default_factory=Transcript)
    phase: Phase = "initialize"
    cost: float | None = None  # of the whole session, in USD
    began_anew: bool = False
    _number: int = 0
    _calls: dict[str, Message] = field(default_factory=dict)  # running, as far as known
    _ended: set[str] = field(default_factory=set)

    def begin(self) -> list[Move]:
        """The first messages."""
        return [
            self._request(
                "initialize",
                {
                    "protocolVersion": PROTOCOL_VERSION,
                    "clientCapabilities": {
                        "fs": {"readTextFile": False, "writeTextFile": False},
                        "terminal": False,
                    },
                    "clientInfo": {"name": "loopwright", "version": "1"},
                },
            )
        ]

    def read_line(self, line: bytes, now_ms: int = 0) -> list[Move]:
        """The result of a line of the agent, which arrived at `now_ms`. A line that is not a
        message has none.
        """
        self.transcript.now_ms = now_ms
        message = decode_object(line)
        if message is None:
            self.transcript.counts.garbage += bool(line.strip())
            return []
        self.transcript.progress = self.transcript.progress or _is_progress(message)
        if text(message, "method"):
            return list(self._on_permission(message))
        if at(message, "id") == self._number and self.phase != "over":
            return list(self._answered(message))
        return []

    def decide(self, permission: Permission, *, allowed: bool, by_person: bool = False) -> Send:
        """The answer to a permission request; without a fitting option the request is denied."""
        option = permission.allow if allowed else permission.reject
        outcome: Message = {"outcome": "cancelled"}
        if option is not None:
            outcome = {"outcome": "selected", "optionId": option}
        if not allowed:
            words = f"{permission.title} was denied by a person" if by_person else ""
            self._ended.add(permission.call)
            self.transcript.deny(permission.call, permission.title, words=words)
        return Send({"jsonrpc": "2.0", "id": permission.id, "result": {"outcome": outcome}})

    def cancel(self) -> list[Move]:
        """Ask the agent to end its turn."""
        if self.phase != "session/prompt":
            return []
        params: Message = {"sessionId": self.transcript.session}
        return [Send({"jsonrpc": "2.0", "method": "session/cancel", "params": params})]

    # -- what the agent asks or tells --------------------------------------------------------------

    def _on_permission(self, message: JsonValue) -> Iterator[Move]:
        number = at(message, "id")
        match text(message, "method"):
            case "session/update":
                yield from self._update(at(message, "params", "update"))
            case "session/request_permission" if number is not None:
                self._tool(at(message, "params", "toolCall"))
                yield _permission(number, at(message, "params"))
            case other if number is not None:
                error: Message = {"code": NO_SUCH_METHOD, "message": f"no method {other}"}
                yield Send({"jsonrpc": "2.0", "id": number, "error": error})

    def _update(self, update: JsonValue) -> Iterator[Move]:
        if self.phase != "session/prompt":
            return  # a loaded session replays old messages
        match text(update, "sessionUpdate"):
            case "agent_message_chunk":
                piece = text(update, "content", "text")
                self.transcript.add_text(piece, new_part=not self.transcript.spoken.streaming)
                self.transcript.spoken.streaming = True
                yield LiveEntry("text", piece)
            case "tool_call":
                self.transcript.spoken.streaming = False
                self.transcript.counts.tools += 1
                yield tool_line(text(update, "kind") or "tool", text(update, "title"))
                self._tool(update)
            case "tool_call_update":
                self._tool(update)
            case "usage_update":
                if text(update, "cost", "currency") == "USD":
                    self.cost = amount(update, "cost", "amount")

    def _tool(self, update: JsonValue) -> None:
        """A tool call starts, gets more details, or ends."""
        call = text(update, "toolCallId")
        if not isinstance(update, dict) or not call or call in self._ended:
            return
        known = self._calls.setdefault(call, {})
        known.update({name: value for name, value in update.items() if value})
        kind = _KINDS.get(text(known, "kind"))
        self.transcript.begin_call(
            call, _tool_name(known), at(known, "rawInput"), kind=kind, target=_target(kind, known)
        )
        status = text(update, "status")
        if status in ("completed", "failed"):
            code = _exit_code(known)
            ok = status == "completed" and code in (None, 0)
            self._ended.add(call)
            del self._calls[call]
            self.transcript.end_call(call, ok=ok, code=code, result=_result(known))

    # -- what the agent answers --------------------------------------------------------------------

    def _answered(self, message: JsonValue) -> Iterator[Move]:
        failed = at(message, "error")
        result = at(message, "result")
        if failed is not None:
            yield from self._refused(failed)
        elif self.phase == "initialize":
            can_load = at(result, "agentCapabilities", "loadSession") is True
            yield self._open(self.session if can_load else None)
        elif self.phase == "session/prompt":
            self._end(result)
        else:
            self.transcript.session = text(result, "sessionId") or self.transcript.session
            self.transcript.model = _model(result) or self.transcript.model
            yield self._ask()

    def _open(self, session: str | None) -> Send:
        self.began_anew = self.session is not None and session is None
        servers: list[JsonValue] = [
            {"name": name, "command": argv[0], "args": list(argv[1:]), "env": []}
            for name, argv in self.servers
        ]
        params: Message = {"cwd": self.cwd, "mcpServers": servers}
        if session is None:
            return self._request("session/new", params)
        self.transcript.session = session
        return self._request("session/load", {**params, "sessionId": session})

    def _ask(self) -> Send:
        prompt: JsonValue = [{"type": "text", "text": self.prompt}]
        return self._request(
            "session/prompt", {"sessionId": self.transcript.session, "prompt": prompt}
        )

    def _refused(self, failed: JsonValue) -> Iterator[Move]:
        if self.phase == "session/load":
            self.transcript.session = None
            yield self._open(None)
            return
        details = [text(failed, "message"), *(text(failed, "data", n) for n in _DETAILS)]
        self.transcript.ending.status = whole(failed, "code") or None
        self.transcript.end("badly", ": ".join(one for one in details if one), "api")
        self.phase = "over"

    def _end(self, result: JsonValue) -> None:
        read, written = (whole(result, "usage", n) for n in ("inputTokens", "outputTokens"))
        if read is not None or written is not None or self.cost is not None:
            self.transcript.spent.usage = Usage(
                input_tokens=read or 0, output_tokens=written or 0, unpriced=1
            )
        self.phase = "over"
        stop = text(result, "stopReason")
        if stop in _STOPS:
            self.transcript.end("badly", *_STOPS[stop])
        else:
            self.transcript.end("well")

    def _request(self, method: Phase, params: Message) -> Send:
        self.phase = method
        self._number += 1
        return Send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})


_DETAILS = ("message", "details")
_KINDS: dict[str, CallKind] = {
    "edit": "edit",
    "delete": "edit",
    "move": "edit",
    "execute": "command",
    "read": "read",
    "search": "read",
    "fetch": "fetch",
}
_NEWS_ONLY = (
    "usage_update",
    "available_commands_update",
    "config_option_update",
    "current_mode_update",
    "session_info_update",
)


def _is_progress(message: JsonValue) -> bool:
    """Whether a message shows progress of the agent; messages about its own state do not."""
    return text(message, "params", "update", "sessionUpdate") not in _NEWS_ONLY


def _tool_name(call: JsonValue) -> str:
    """The agent's own name for a tool, else the kind of the protocol."""
    meta = at(call, "_meta")
    own = text(meta, "toolName") or text(meta, "claudeCode", "toolName")
    return own or text(call, "kind") or text(call, "title") or "tool"


def _target(kind: CallKind | None, call: JsonValue) -> str:
    """The path or command of a call, where its arguments do not name it."""
    if kind in ("edit", "read"):
        paths = [text(place, "path") for place in items(call, "locations")]
        return ", ".join(dict.fromkeys(path for path in paths if path))
    if kind == "command" and not at(call, "rawInput", "command"):
        return text(call, "title")
    return ""


def _exit_code(call: JsonValue) -> int | None:
    output = at(call, "rawOutput")
    found = whole(output, "exit_code")
    return found if found is not None else whole(output, "metadata", "exit")


def _result(call: JsonValue) -> str:
    output = at(call, "rawOutput")
    own = text(output, "aggregated_output") or text(output, "output") or text(output, "error")
    parts = [text(part, "content", "text") for part in items(call, "content")]
    return own or "\n".join(part for part in parts if part) or as_text(output)


def _model(session: JsonValue) -> str:
    """The model of a session that was opened, unless it is only called the default."""
    options = (o for o in items(session, "configOptions") if text(o, "category") == "model")
    named = text(session, "models", "currentModelId") or text(next(options, None), "currentValue")
    return "" if named == "default" else named


def _permission(number: JsonValue, params: JsonValue) -> Permission:
    call = at(params, "toolCall")
    shown = at(call, "rawInput") or at(call, "content")
    about = msgspec.json.encode(shown).decode() if shown is not None else ""
    return Permission(
        id=number,
        call=text(call, "toolCallId"),
        title=text(call, "title") or text(call, "kind") or "use a tool",
        kind=text(call, "kind"),
        about=_shortened(about),
        allow=_option(params, "allow_once"),
        reject=_option(params, "reject_once") or _option(params, "reject_always"),
        command=_command(at(call, "rawInput", "command")),
    )


def _command(given: JsonValue) -> str:
    """A command line in the syntax of a shell: a text, or a list of arguments."""
    if isinstance(given, str):
        return given
    words = [word for word in given if isinstance(word, str)] if isinstance(given, list) else []
    return inside_shell(words) or shlex.join(words)


def _shortened(about: str) -> str:
    """The shortened form of a long request, with the hash of all of it: two different ones never
    look alike.
    """
    if len(about) <= ABOUT_CHARS:
        return about
    name = blake2b(about.encode(errors="replace"), digest_size=16).hexdigest()
    return f"{about[:ABOUT_CHARS]}… ({len(about)} characters, hash {name})"


def _option(params: JsonValue, kind: str) -> str | None:
    found = (text(o, "optionId") for o in items(params, "options") if text(o, "kind") == kind)
    return next(found, None)


# -- rights ----------------------------------------------------------------------------------------

PERMISSIONS = (
    *("ask", "edit", "all"),
    *("default", "acceptEdits", "bypassPermissions", "plan", "read-only", "dontAsk"),
)


def policy(
    agent: Agent, wanted: "Permission", checks: tuple[tuple[str, ...], ...] = ()
) -> Literal["allow", "ask", "reject"]:
    """The rule of a definition about such a tool; by default a person decides, unless the agent
    wants to run a check of the loop around it.
    """
    kind = wanted.kind
    if kind != "think" and not _is_given(agent, kind):
        return "reject"
    if kind in _kinds(added_tools(agent)):
        return "allow"
    if kind == "execute" and agent.permission in (None, "edit", "acceptEdits"):
        editing = replace(agent, permission="edit")
        if wanted.command and wanted.command in check_lines(checks, editing):
            return "allow"
    match agent.permission:
        case "bypassPermissions" | "all":
            return "allow"
        case "acceptEdits" | "edit" if kind in ("edit", "read", "search", "think"):
            return "allow"
        case "plan" | "read-only" | "dontAsk":
            return "allow" if kind in ("read", "search", "think") else "reject"
    return "ask"


def unfit(agent: Agent) -> str | None:
    """Settings of an agent that the protocol cannot express."""
    if agent.permission is not None and agent.permission not in PERMISSIONS:
        known = ", ".join(PERMISSIONS)
        return f"acp knows no permission {agent.permission!r}; it has {known}"
    named = (*(agent.tools or ()), *agent.deny_tools)
    unknown = [name for name in named if not _kinds((name,))]
    if unknown:
        return (
            f"an acp agent cannot be confined to or kept from {unknown[0]!r}: the protocol has no "
            "such kind of tool"
        )
    return None


def _kinds(names: Iterable[str]) -> frozenset[str]:
    """The kinds of tools that these names mean."""
    families = (family_of(name.removeprefix(ADDS)) for name in names)
    return frozenset(kind for family in families if family is not None for kind in family.acp)


def _is_given(agent: Agent, kind: str) -> bool:
    """Whether the tools that an agent has, and those it is denied, leave it this kind."""
    if kind in _kinds(agent.deny_tools):
        return False
    only = only_tools(agent)
    return only is None or kind in _kinds((*only, *added_tools(agent)))
