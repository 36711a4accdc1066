"""Errors as every interface reports them: one problem object as in RFC 9457."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from loopwright.errors import (
    CannotServe,
    Conflict,
    DefinitionError,
    LoopwrightError,
    NotAllowed,
    NotFound,
    NotSignedIn,
    ServerFailed,
    StorageError,
    Unreachable,
)
from loopwright.syntax.document import Diagnostic


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReport:
    """What went wrong, for whoever asked."""

    exit: int
    status: int
    code: str
    title: str
    detail: str
    hint: str | None = None
    errors: list[dict[str, str | int | None]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """The problem as RFC 9457 has it."""
        found: dict[str, object] = {
            "type": f"urn:loopwright:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            found["errors"] = self.errors
        if self.hint:
            found["hint"] = self.hint
        return found

    def as_lines(self) -> list[str]:
        """The problem as a person reads it."""
        if self.lines:
            return self.lines
        hint = f"\n  {self.hint}" if self.hint else ""
        return [f"error: {self.detail}{hint}"]


_QUOTED = re.compile(r"`[^`]*`|(?<!\w)'[^'\n]*'(?!\w)")
_FLAG = re.compile(r"(?P<tick>`?)(?<![\w-])--(?P<name>[a-z][a-z-]*)")
_FIELDS = {"input": "inputs", "label": "labels"}
"""Options of the command line that other interfaces call otherwise."""


def without_flags(text: str) -> str:
    """A text for interfaces other than the command line: an option is written as the parameter of
    the same name (`--allow-unknown-cost` is `allow_unknown_cost`). A whole command in backticks
    stays, since it says itself where it belongs, and so does what somebody has written.
    """
    if "--" not in text:
        return text
    parts: list[str] = []
    end = 0
    for quoted in _QUOTED.finditer(text):
        if not quoted[0].startswith("`--"):
            parts += [_FLAG.sub(_as_parameter, text[end : quoted.start()]), quoted[0]]
            end = quoted.end()
    return "".join([*parts, _FLAG.sub(_as_parameter, text[end:])])


def _as_parameter(found: re.Match[str]) -> str:
    name = _FIELDS.get(found["name"], found["name"].replace("-", "_"))
    return f"`{name}" if found["tick"] else f"`{name}`"


def neutral(problem: "ProblemReport") -> "ProblemReport":
    """A problem for interfaces other than the command line."""
    errors = [
        {
            key: without_flags(value) if isinstance(value, str) else value
            for key, value in one.items()
        }
        for one in problem.errors
    ]
    hint = None if problem.hint is None else without_flags(problem.hint)
    return replace(problem, detail=without_flags(problem.detail), hint=hint, errors=errors)


def rendered(found: Iterable[Diagnostic]) -> list[str]:
    """Findings as lines for interfaces other than the command line."""
    return [without_flags(one.render()) for one in found]


def problem_words(error: LoopwrightError) -> str:
    """A refusal as one line for agents: code, message and remedy, the same as over HTTP."""
    problem = neutral(known_problem(error))
    hint = f" ({problem.hint})" if problem.hint else ""
    found = [p for p in getattr(error, "problems", ()) if hasattr(p, "render")]
    lines = rendered(found)
    return "\n".join([f"{problem.code}: {problem.detail}{hint}", *lines])


_KINDS: list[tuple[type[LoopwrightError], int, int, str]] = [
    (DefinitionError, 2, 422, "The definition is not valid"),
    (NotFound, 2, 404, "Not found"),
    (Conflict, 8, 409, "The state does not allow it"),
    (NotSignedIn, 6, 401, "Not signed in"),
    (NotAllowed, 6, 403, "Not allowed"),
    (Unreachable, 7, 502, "The server cannot be reached"),
    (ServerFailed, 1, 502, "The server failed"),
    (CannotServe, 1, 503, "The server cannot start"),
    (StorageError, 1, 503, "The data directory cannot be used"),
    (LoopwrightError, 2, 400, "This cannot be done as asked"),
]
_ASKED_WRONGLY = ("ambiguous", "bad-decision")  # the state allows something else that was meant


def known_problem(error: LoopwrightError) -> ProblemReport:
    """The problem that an exception of the product stands for."""
    exit_code, status, title = next(
        (code, status, title) for kind, code, status, title in _KINDS if isinstance(error, kind)
    )
    if error.code in _ASKED_WRONGLY:
        exit_code = 2
    found = [p for p in getattr(error, "problems", ()) if hasattr(p, "render")]
    return ProblemReport(
        exit=exit_code,
        status=status,
        code=error.code,
        title=title,
        detail=error.message,
        hint=error.hint,
        errors=[p.as_dict() for p in found],
        lines=[p.render() for p in found],
    )
