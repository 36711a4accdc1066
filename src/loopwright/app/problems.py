"""Errors of the product as every door tells them: one problem object, by RFC 9457."""

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
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


_KINDS: list[tuple[type[LoopwrightError], int, int, str]] = [
    (DefinitionError, 2, 422, "The definition is not valid"),
    (NotFound, 2, 404, "There is no such thing"),
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


def known_problem(error: LoopwrightError) -> Problem:
    """The problem that an exception of the product stands for."""
    exit_code, status, title = next(
        (code, status, title) for kind, code, status, title in _KINDS if isinstance(error, kind)
    )
    if error.code in _ASKED_WRONGLY:
        exit_code = 2
    found = [p for p in getattr(error, "problems", ()) if hasattr(p, "render")]
    return Problem(
        exit=exit_code,
        status=status,
        code=error.code,
        title=title,
        detail=error.message,
        hint=error.hint,
        errors=[p.as_dict() for p in found],
        lines=[p.render() for p in found],
    )
