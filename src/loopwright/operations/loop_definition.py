"""The definition of a loop that is written on the command line, without a file.

A loop whose options are of plain forms gets its plan directly. Any loop could be read as a native
definition, but loading the validators of that language takes longer than the rest of the start.
Other options are read as a definition, which reports their errors. Both lead to the same plan.
Budgets (`--budget`) are read in the same two ways.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.model.actions import MAX_ITERATIONS, CallAgent, Repeat, Step
from loopwright.model.checks import AllOf, Cap, Check, CommandCheck, Signal
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import (
    Limits,
    Memory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    Retry,
    SameSession,
)
from loopwright.model.record import JsonValue, literal
from loopwright.operations.dialects import ParsedDefinition, parse_definition
from loopwright.operations.run_request import StartRun
from loopwright.syntax.document import Diagnostic, Document, check_text, clip, suggest
from loopwright.syntax.notations import (
    CommandFault,
    checked_words,
    is_duration,
    is_token_count,
    parse_duration,
    parse_tokens,
    split_command,
)

COMMAND_LINE = "(command line)"
NAME_CHARS = 40
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_BUDGET_HINT = "write --budget usd=5,tokens=2M,time=2h,idle=10m"
_BUDGET = ("usd", "tokens", "time", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How a loop without a file is repeated, and when it is done."""

    commands: Sequence[str] = ()
    patterns: Sequence[str] = ()
    signals: Sequence[str] = ()
    judges: Sequence[str] = ()
    manual: bool = False
    max: int = 10
    memory: str = "progress-log"
    criteria: bool = True


def plain_definition(request: StartRun, loop: LoopOptions) -> ParsedDefinition | None:
    """The definition of a loop whose options need no validation; None for any other. It is the
    same as that of `loop_definition`, without the time that loading the validators takes.
    """
    if loop.judges or loop.patterns or loop.manual or request.inputs:
        return None
    checks = plain_checks(loop.signals, loop.commands)
    limits = plain_limits(budget_values(request.budget) if request.budget is not None else {})
    if checks is None or limits is None:
        return None
    step = plain_repeat(loop.max, loop.memory, checks, criteria=loop.criteria)
    plan = plain_plan(_loop_name(request), step, limits) if step is not None else None
    if plan is None:
        return None
    document = _LoopText()
    _write_loop(document, request, loop)
    value = msgspec.json.decode(document.data())
    digest = Document.plain(value, file=COMMAND_LINE).digest
    return ParsedDefinition(plan=plan, dialect=plan.dialect, digest=digest, file=COMMAND_LINE)


def loop_definition(request: StartRun, loop: LoopOptions) -> tuple[ParsedDefinition, bytes]:
    """A loop from the command line by way of a native definition, and the text of that."""
    document = _LoopText()
    _write_loop(document, request, loop)
    data = document.data()
    try:
        return parse_definition(data, file=COMMAND_LINE, force="native"), data
    except DefinitionError as error:
        problems = [_in_range(one, loop) for one in document.translate_problems(error.problems)]
        raise DefinitionError(error.message, problems=problems) from error


def _in_range(problem: Diagnostic, loop: LoopOptions) -> Diagnostic:
    """A number too long for any definition is refused with the range of its option."""
    if problem.file != "--max" or problem.code != "out-of-range":
        return problem
    message = f"max must be a whole number from 1 to {MAX_ITERATIONS}, not {clip(str(loop.max))}"
    return replace(problem, message=message)


def _loop_name(request: StartRun) -> str:
    return request.name or _name_of(request.message or "")


def _name_of(message: str) -> str:
    """A name for a loop without a file: how its message begins."""
    line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    short = line if len(line) <= NAME_CHARS else line[:NAME_CHARS].rsplit(" ", 1)[0] + "…"
    return short or "loop"


# -- plain forms -----------------------------------------------------------------------------------


WORKER = "worker"
COMMAND_MS = 600_000
MOST_USD = 1_000_000
LONGEST_NAME = 500
_MEMORIES: Mapping[str, Memory] = {
    "progress-log": ProgressLog(chars=300, total=8_000),
    "previous-output": PreviousOutput(),
    "session": SameSession(),
    "none": NoMemory(),
}
# Nothing in these has a meaning for a shell, a template or a reader of hidden characters.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PLAIN_COMMAND = re.compile(r"[A-Za-z0-9_./:=@%+, -]{1,2000}")


def plain_checks(signals: Sequence[str], commands: Sequence[str]) -> list[Check] | None:
    """The checks of a loop, or None when one of them has to be read as a definition."""
    if not all(_PLAIN_WORD.fullmatch(word) for word in signals):
        return None
    found: list[Check] = [Signal(word=word) for word in signals]
    for line in commands:
        words = split_command(line) if _PLAIN_COMMAND.fullmatch(line) else None
        if words is None or isinstance(words, CommandFault):
            return None
        if isinstance(checked_words(words), CommandFault):
            return None
        found.append(CommandCheck(argv=tuple(words), timeout_ms=COMMAND_MS, done_codes=(0,)))
    return found


def plain_limits(given: Mapping[str, JsonValue]) -> Limits | None:
    """A budget (usd, tokens, time, idle) as limits; None when it must be read as a definition."""
    usd, tokens = given.get("usd"), given.get("tokens")
    if usd is not None and not (isinstance(usd, int | float) and 0 < usd <= MOST_USD):
        return None
    count = parse_tokens(tokens)
    if tokens is not None and (count is None or not is_token_count(count)):
        return None
    lengths = {name: _length(given[name]) for name in ("time", "idle") if name in given}
    if None in lengths.values():
        return None
    return Limits(
        usd=None if usd is None else float(usd),
        tokens=count,
        wall_ms=lengths.get("time"),
        idle_ms=lengths.get("idle"),
    )


def _length(value: JsonValue) -> int | None:
    found = parse_duration(value) if isinstance(value, str) else None
    return found if found is not None and is_duration(found) else None


def plain_repeat(most: int, memory: str, checks: Sequence[Check], *, criteria: bool) -> Step | None:
    """One agent that is repeated until all checks hold, or None as above."""
    kind = _MEMORIES.get(memory)
    if kind is None or not 1 <= most <= MAX_ITERATIONS:
        return None
    until = Cap() if not checks else checks[0] if len(checks) == 1 else AllOf(parts=tuple(checks))
    action = Repeat(
        body=CallAgent(agent=WORKER, prompt=()),
        max=most,
        until=until,
        memory=kind,
        at_cap="exhaust" if checks else "complete",
        criteria=criteria and bool(checks),
    )
    return Step(id=MAIN, action=action, retry=Retry(attempts=3))


def plain_plan(name: str, step: Step, limits: Limits) -> Plan | None:
    """The plan of such a loop, or None when its name has to be read as a definition."""
    if not name.isprintable() or name != name.strip() or check_text(name):
        return None
    if not 1 <= len(name) <= LONGEST_NAME:
        return None
    return Plan(name=name, steps=(step,), agents={WORKER: Agent()}, limits=limits)


# -- budgets -------------------------------------------------------------------------------------


def tightened(limits: Limits, text: str) -> Limits:
    """The limits of the plan; values of `--budget` replace those of the file."""
    given = budget_values(text)
    wanted = plain_limits(given) or _read_limits(given)
    return msgspec.structs.replace(
        limits,
        usd=limits.usd if wanted.usd is None else wanted.usd,
        tokens=limits.tokens if wanted.tokens is None else wanted.tokens,
        wall_ms=limits.wall_ms if wanted.wall_ms is None else wanted.wall_ms,
        idle_ms=limits.idle_ms if wanted.idle_ms is None else wanted.idle_ms,
    )


def _read_limits(given: dict[str, JsonValue]) -> Limits:
    document = {"name": "budget", "goal": "-", "agents": {"a": {}}, "agent": "a", "budget": given}
    try:
        read = parse_definition(msgspec.json.encode(document), file="--budget", force="native")
    except DefinitionError as error:
        messages = (one.message for one in error.problems if isinstance(one, Diagnostic))
        raise _bad_budget(next(messages, error.message)) from error
    return read.plan.limits


def budget_values(text: str) -> dict[str, JsonValue]:
    """`usd=5,tokens=2M,time=2h,idle=10m` as a native definition has it."""
    values: dict[str, JsonValue] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise _bad_budget(f"{part.strip()!r} is not NAME=VALUE")
        if name not in _BUDGET:
            near = suggest(name, _BUDGET)
            raise _bad_budget(f"unknown limit {name!r}{f' (did you mean {near}?)' if near else ''}")
        if name in values:
            raise _bad_budget(f"{name} is given twice")
        values[name] = _number(name, value)
    if plain_limits(values) is None:
        _read_limits(values)  # raises an error that names the option
    return values


def _number(name: str, text: str) -> JsonValue:
    """The number that a text is, else the text."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        message = f"--budget: {name} must be finite, not {clip(text)}"
        raise LoopwrightError(message, code="not-finite", hint=_BUDGET_HINT)
    # A longer one is out of every range; as a fraction it is refused with the right range.
    return int(text) if _WHOLE.fullmatch(text) else number


def _bad_budget(message: str) -> LoopwrightError:
    return LoopwrightError(f"--budget: {message}", code="bad-budget", hint=_BUDGET_HINT)


# -- a loop as a definition ----------------------------------------------------------------------


class _LoopText:
    """A native definition as JSON text, one line for each option, so that a problem in a line is
    reported as a problem of its option.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def line(self, text: str, option: str = COMMAND_LINE) -> None:
        self._lines.append((text, option))

    def field(self, name: str, value: JsonValue, option: str, *, after: str = ",") -> None:
        written = msgspec.json.encode(value).decode()
        self.line(f'"{name}": {written}{after}', option)

    def data(self) -> bytes:
        return "\n".join(text for text, _ in self._lines).encode()

    def translate_problems(self, problems: Sequence[object]) -> list[Diagnostic]:
        return [
            Diagnostic(
                file=self._option(problem.line),
                line=1,
                column=1,
                code=problem.code,
                message=problem.message,
                hint=problem.hint,
                severity=problem.severity,
            )
            for problem in problems
            if isinstance(problem, Diagnostic)
        ]

    def _option(self, line: int) -> str:
        return self._lines[line - 1][1] if line <= len(self._lines) else COMMAND_LINE


def _write_loop(text: _LoopText, request: StartRun, loop: LoopOptions) -> None:
    text.line("{")
    text.field("name", _loop_name(request), "--name")
    if request.budget is not None:
        text.field("budget", budget_values(request.budget), "--budget")
    # Its backend is bound afterwards, like every agent given on the command line.
    judge = ', "judge": {}' if loop.judges else ""
    text.line(f'"agents": {{"worker": {{}}{judge}}}, "agent": "worker",', "--agent")
    if request.inputs:
        text.field("inputs", {name: {} for name in request.inputs}, "--input")
        listed = "\n".join(f"- {name}: {{{{input.{name}}}}}" for name in request.inputs)
        text.field("prompt", f"{{{{message}}}}\n\n{listed}", "--input")
    text.line('"repeat": {')
    text.field("max", loop.max, "--max")
    if not loop.criteria:
        text.line('"criteria": false,', "--no-criteria")
    checks = _checks(loop)
    text.field("memory", loop.memory, "--memory", after="," if checks else "")
    for number, (check, option) in enumerate(checks):
        start = '"until": ' + ('{"all": [' if len(checks) > 1 else "") if number == 0 else ""
        end = "," if number + 1 < len(checks) else ("]}" if len(checks) > 1 else "")
        text.line(f"{start}{msgspec.json.encode(check).decode()}{end}", option)
    text.line("}}")


def _checks(loop: LoopOptions) -> list[tuple[JsonValue, str]]:
    """The checks in the order of what they cost: judges come late, a person last."""
    found: list[tuple[JsonValue, str]] = []
    found += [({"signal": word}, "--until-signal") for word in loop.signals]
    found += [({"regex": pattern}, "--until-regex") for pattern in loop.patterns]
    found += [({"command": command}, "--until-command") for command in loop.commands]
    found += [(_judge(criterion), "--until-judge") for criterion in loop.judges]
    if loop.manual:
        found.append(({"person": True}, "--manual"))
    return found


def _judge(criterion: str) -> JsonValue:
    """A judge that holds the work against a criterion, which is taken as it is written."""
    if not criterion.strip():
        raise LoopwrightError(
            "--until-judge: the criterion is empty",
            code="bad-value",
            hint='say what must hold: --until-judge "every claim has a source"',
        )
    words = (
        "Judge whether the work below meets this criterion. Look at the work, not at what is "
        f"claimed.\n\n## Criterion\n\n{criterion}"
    )
    from loopwright.dialects.native.templates import write  # noqa: PLC0415 - loads validators

    return {"judge": {"agent": "judge", "prompt": write(literal(words))}}
