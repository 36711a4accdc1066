"""One problem in one place, and the line a person reads about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loopwright.syntax.characters import escaped

# More than this is a wall of text: the first ones are to be mended first.
MAX_PROBLEMS = 50


class Position(NamedTuple):
    """Where something stands; both count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A problem (or a warning) about a definition; `code` is a slug that scripts may rely on."""

    file: str
    line: int
    column: int
    code: str
    message: str
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"

    def render(self) -> str:
        """`file.yaml:12:5: unknown-field: max_iteration (did you mean max_iterations?)`."""
        label = "warning: " if self.severity == "warning" else ""
        hint = f" ({self.hint})" if self.hint else ""
        # An option of the command line has no lines to count.
        flag = self.file.startswith("--")
        place = self.file if flag else f"{self.file}:{self.line}:{self.column}"
        return escaped(f"{place}: {label}{self.code}: {self.message}{hint}")

    def as_dict(self) -> dict[str, str | int | None]:
        """The entry of an `errors` list in a problem report. A warning says that it is one."""
        marked = {"severity": self.severity} if self.severity == "warning" else {}
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            **marked,
        }


class Refusal(Exception):
    """Inside this room only: reading cannot go on, for the one reason given."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.code)
        self.diagnostic = diagnostic


def in_order(problems: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each problem once, by position, and not more than a person will read."""
    ordered = sorted(set(problems), key=lambda d: (d.line, d.column, d.code, d.message))
    return ordered[:MAX_PROBLEMS]
