"""JSON lines of an agent program: text, tools, usage, session, result. Other lines are text."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from loopwright.agents.clis.loose import decode_object
from loopwright.kernel.facts import NO_USAGE, ToolUse, Usage
from loopwright.kernel.masking import mask
from loopwright.model.record import JsonValue
from loopwright.programs.reported_tools import ReportedTool


class Line(msgspec.Struct):
    """One line, loosely: fields of the wrong type make it plain text. Numbers are looked at when
    they are counted, so that a usage is never taken for something the agent said.
    """

    type: str
    text: str | None = None
    name: str | None = None
    args: JsonValue = None
    result: JsonValue = None
    input_tokens: JsonValue = None
    output_tokens: JsonValue = None
    usd: JsonValue = None
    cache_read_tokens: JsonValue = None
    model: str | None = None
    id: str | None = None
    data: JsonValue = None
    is_error: bool | None = None
    ok: JsonValue = None  # of a tool, like everything below
    code: JsonValue = None
    exit_code: JsonValue = None
    ms: JsonValue = None
    duration_ms: JsonValue = None
    target: JsonValue = None
    kind: JsonValue = None


MOST_TOOLS = 200  # that are written down of one call
TOOL_CHARS = 500
NAME_CHARS = 100
MOST = 10**15  # of tokens or dollars; beyond that it is no report but a mistake
KNOWN = frozenset({"text", "tool", "usage", "session", "result"})
MAX_LINE_WARNINGS = 5  # of one call
_AMOUNTS = ("input_tokens", "output_tokens", "usd", "cache_read_tokens")
_PLAIN_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")


def parse_line(raw: bytes) -> Line | None:
    """A line of the protocol, or None when it is just text."""
    value = decode_object(raw)
    if value is None and b'"usage"' in raw:
        value = _decode_odd_numbers(raw)
    if not isinstance(value, dict):
        return None
    if value.get("type") == "usage":
        return _usage_line(value)
    try:
        line = msgspec.convert(value, Line)
    except msgspec.ValidationError:
        return None
    return line if line.type in KNOWN else None


def _decode_odd_numbers(raw: bytes) -> JsonValue:
    """A line with numbers that are not JSON (NaN, Infinity) or too large for it. A usage line that
    contains one is reported as wrong, not taken for text.
    """
    try:
        value: JsonValue = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("type") == "usage" else None


def _usage_line(value: dict[str, JsonValue]) -> Line:
    """A usage line; only its numbers matter, so no other field can make it plain text."""
    model = value.get("model")
    return Line(
        type="usage",
        model=model if isinstance(model, str) else None,
        input_tokens=value.get("input_tokens"),
        output_tokens=value.get("output_tokens"),
        usd=value.get("usd"),
        cache_read_tokens=value.get("cache_read_tokens"),
    )


def tool_of(line: Line) -> ReportedTool:
    """The tool call that a line of the type `tool` reports."""
    return ReportedTool(
        name=line.name or "",
        arguments=line.args,
        result=line.result,
        ok=line.ok,
        code=line.code if line.code is not None else line.exit_code,
        ms=line.ms if line.ms is not None else line.duration_ms,
        target=line.target,
        kind=line.kind,
        text=line.text,
    )


@dataclass(slots=True)
class Spoken:
    """What an agent said, collected line by line."""

    price: Callable[[str, Usage], Usage] = lambda model, usage: usage
    texts: list[str] = field(default_factory=list)
    usage: Usage | None = None
    session: str | None = None
    final: str | None = None
    data: JsonValue = None
    has_data: bool = False
    is_error: bool = False
    warnings: list[str] = field(default_factory=list)
    tools: list[ToolUse] = field(default_factory=list)
    _reported: float | None = None
    _priced: Usage = NO_USAGE
    _unknown: int = 0  # 1: a report was no amount

    def take(self, raw: bytes) -> Line | None:
        """Take one line in; answers the protocol line that it was, if it was one."""
        line = parse_line(raw)
        if line is None:
            if raw:
                self.texts.append(raw.decode(errors="replace") + "\n")
            return None
        match line.type:
            case "text":
                self.texts.append(line.text or "")
            case "tool":
                note_tool(self.tools, line.name or "", line.args)
            case "usage":
                self._count(line)
            case "session":
                self.session = line.id or self.session
            case "result":
                self.final = line.text if line.text is not None else self.final
                self.data, self.has_data = line.data, line.data is not None
                self.is_error = bool(line.is_error)
        return line

    def _count(self, line: Line) -> None:
        amounts = {name: _amount(getattr(line, name)) for name in _AMOUNTS}
        wrong = [f"{name} {found}" for name, found in amounts.items() if isinstance(found, str)]
        if wrong:
            self._warn(f"ignored usage line: {', '.join(wrong)}")
            self._unknown = 1
            self.usage = replace(self.usage or Usage(), unpriced=1)
            return
        read, written, usd, cached = (float(found) for found in amounts.values())
        used = Usage(int(read), int(written), usd, cache_read_tokens=int(cached))
        if line.usd is not None:
            self._reported = round((self._reported or 0.0) + usd, 9)
        elif used.tokens:
            self._priced = self._priced + self.price(line.model or "", replace(used, unpriced=1))
        total = (self.usage or Usage()) + used
        usd = round((self._reported or 0.0) + self._priced.usd, 9)
        unknown = min(self._priced.unpriced + self._unknown, 1)
        self.usage = replace(total, usd=usd, unpriced=unknown)

    def _warn(self, text: str) -> None:
        """Note something about a line, each once."""
        if text not in self.warnings and len(self.warnings) < MAX_LINE_WARNINGS:
            self.warnings.append(text)

    @property
    def output(self) -> str:
        """The answer: the result's own text, else all that was said."""
        return self.final if self.final is not None else "".join(self.texts)


def note_tool(tools: list[ToolUse], name: str, arguments: JsonValue) -> None:
    """Write down that a tool was used and with what; secrets are masked and length is bounded."""
    if len(tools) >= MOST_TOOLS:
        return
    given = "" if arguments is None else msgspec.json.encode(mask(arguments)).decode()
    shown = given if len(given) <= TOOL_CHARS else f"{given[:TOOL_CHARS]}…"
    tools.append(ToolUse(name=name[:NAME_CHARS], input=shown))


def _amount(value: JsonValue) -> float | str:
    """A number that can be added up, also written as text; nothing counts as 0. For anything else,
    what is wrong with it.
    """
    if value is None:
        return 0
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if not math.isfinite(value):
        return "must be a finite number"
    if value < 0:
        return "must not be negative"
    return value if value <= MOST else "is too large"
