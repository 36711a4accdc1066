"""The line that a person reads."""

from loopwright.syntax.document import Diagnostic

PROBLEM = Diagnostic(
    "file.yaml", 12, 5, "unknown-field", "max_iteration", "did you mean max_iterations?"
)


def test_a_problem_on_one_line() -> None:
    """File, line, column, code, message, hint."""
    assert PROBLEM.render() == (
        "file.yaml:12:5: unknown-field: max_iteration (did you mean max_iterations?)"
    )


def test_without_a_hint() -> None:
    """No hint, no brackets."""
    assert Diagnostic("f", 1, 2, "bad-id", "no").render() == "f:1:2: bad-id: no"


def test_a_warning_says_so() -> None:
    """A warning is marked behind its position."""
    found = Diagnostic("f", 1, 2, "self-judging", "hm", severity="warning")
    assert found.render() == "f:1:2: warning: self-judging: hm"


def test_rendering_cannot_drive_a_terminal() -> None:
    """Line ends, escapes and direction marks of the input are shown, not sent."""
    found = Diagnostic("f", 1, 1, "c", "a\nb\x1b[31m\u202e\U000e0041é")
    assert found.render() == "f:1:1: c: a\\nb\\u001b[31m\\u202e\\U000e0041é"


def test_as_a_dict() -> None:
    """The keys of the error list of a problem report."""
    assert PROBLEM.as_dict() == {
        "file": "file.yaml",
        "line": 12,
        "column": 5,
        "code": "unknown-field",
        "message": "max_iteration",
        "hint": "did you mean max_iterations?",
    }
