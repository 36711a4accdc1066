"""The verdict of a check in words: `pytest -q failed (exit code 1)`."""

import shlex

from loopwright.app.views.signs import PERSON, VERDICTS, person_words
from loopwright.kernel.facts import Verdict
from loopwright.model.checks import (
    Approval,
    Command,
    Contains,
    Expr,
    Goal,
    Judge,
    OutputSchema,
    Regex,
    Script,
    Signal,
)

DETAIL_CHARS = 60
_PLAIN: dict[type, tuple[str, str]] = {
    Signal: ("agent signalled completion", "no completion signal"),
    OutputSchema: ("result matches its schema", "result does not match its schema"),
    Judge: ("judge accepted the result", "judge did not accept the result"),
    Goal: ("goal met", "goal not met"),
    Approval: ("reviewer approved", "reviewer did not approve"),
    Expr: ("expression is true", "expression is not true"),
}


def check_phrase(
    leaf: object,
    check: str,
    verdict: Verdict,
    *,
    code: int | None = None,
    by: str = "",
    quoted: bool = False,
) -> str:
    """What a check found. `check` is its kind, for a check that has no words of its own; a command
    line is put in backquotes where it stands inside a sentence.
    """
    if check == PERSON:
        return person_words(verdict, by)
    words = _PLAIN.get(type(leaf)) or _about_text(leaf)
    if words is not None and verdict in ("pass", "fail"):
        return words[0] if verdict == "pass" else words[1]
    line = program(leaf)
    shown = f"`{line}`" if quoted and isinstance(leaf, Command) else line or check
    return f"{shown} {verdict_word(verdict, code)}"


def verdict_word(verdict: Verdict, code: int | None = None) -> str:
    """A verdict as a verb."""
    if verdict == "fail":
        return f"failed (exit code {code})" if code else "failed"
    return VERDICTS.get(verdict, verdict)


def program(leaf: object) -> str:
    """The command line of a check, or what stands for it."""
    if isinstance(leaf, Command):
        return _cut(shlex.join(leaf.argv))
    return "check script" if isinstance(leaf, Script) else ""


def _about_text(leaf: object) -> tuple[str, str] | None:
    if isinstance(leaf, Contains):
        return (
            f"output contains {_cut(leaf.text)!r}",
            f"output does not contain {_cut(leaf.text)!r}",
        )
    if isinstance(leaf, Regex):
        shown = _cut(leaf.pattern)
        return f"output matches {shown}", f"output does not match {shown}"
    return None


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= DETAIL_CHARS else f"{flat[: DETAIL_CHARS - 1].rstrip()}…"
