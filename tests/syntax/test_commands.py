"""Command lines are split without a shell, and what needs one is refused."""

import pytest

from loopwright.syntax.notations import CommandFault, checked_words, operator, split_command
from tests.dialects.reading import lowered, only, places


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("pytest -q", ["pytest", "-q"], id="plain"),
        pytest.param("  a   b ", ["a", "b"], id="blanks"),
        pytest.param("run 'two words' \"and more\"", ["run", "two words", "and more"], id="quotes"),
        pytest.param("grep 'a|b && $c' x", ["grep", "a|b && $c", "x"], id="signs-in-quotes"),
        pytest.param(r"grep a\|b x", ["grep", "a|b", "x"], id="escaped-sign"),
        pytest.param(r'echo "a \"b"', ["echo", 'a "b'], id="escaped-in-quotes"),
        pytest.param("pytest t.py::test[a-1]", ["pytest", "t.py::test[a-1]"], id="brackets"),
        pytest.param("make CC=gcc", ["make", "CC=gcc"], id="assignment-as-argument"),
        pytest.param("a~b", ["a~b"], id="tilde-inside"),
    ],
)
def test_lines_are_split(line: str, words: list[str]) -> None:
    """Words and quotes work as everywhere; signs inside single quotes are text."""
    assert split_command(line) == words


@pytest.mark.parametrize(
    ("line", "code", "sign"),
    [
        *[
            pytest.param(f"a {sign} b", "shell-syntax", sign, id=sign)
            for sign in ("&&", "||", "|", ";", ">", ">>", "<", "&", "*", "?", "`", "(", "$x")
        ],
        pytest.param('echo "$HOME"', "shell-syntax", "$", id="variable-in-quotes"),
        pytest.param('echo "`id`"', "shell-syntax", "`", id="backtick-in-quotes"),
        pytest.param(r'echo "\$x"', "shell-syntax", r"\$", id="escaped-variable-in-quotes"),
        pytest.param('echo "a" | b', "shell-syntax", "|", id="pipe-after-quotes"),
        pytest.param("echo 'a' | b", "shell-syntax", "|", id="pipe-after-single-quotes"),
        pytest.param('say "hello', "bad-command", "left open", id="open-double-quote"),
        pytest.param("ls ~/x", "shell-syntax", "~", id="home"),
        pytest.param("a\nb", "shell-syntax", "line break", id="two-lines"),
        pytest.param("CI=1 npm test", "shell-syntax", "CI=1", id="assignment"),
        pytest.param("say 'hello", "bad-command", "left open", id="open-quote"),
        pytest.param("  ", "bad-command", "empty", id="blank"),
    ],
)
def test_what_needs_a_shell_is_refused(line: str, code: str, sign: str) -> None:
    """The sign is named, and the way out where there is one."""
    found = split_command(line)
    assert isinstance(found, CommandFault)
    assert found.code == code
    assert sign[:12].rstrip("x") in found.message


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param([], "bad-command", id="none"),
        pytest.param([" ", "x"], "bad-command", id="blank-program"),
        pytest.param(["sh", "-c", "{{message}}"], "reference-in-command", id="message"),
        pytest.param(["x", "a {{ steps.a.output }}"], "reference-in-command", id="output"),
    ],
)
def test_lists_that_are_no_command(words: list[str], code: str) -> None:
    """A command has a program, and nothing that an agent said becomes part of it."""
    found = checked_words(words)
    assert isinstance(found, CommandFault)
    assert found.code == code


def test_lists_are_taken_literally() -> None:
    """In a list a sign is text, and so are braces that are not ours."""
    words = ["docker", "ps", "--format", "{{.Names}}", "&&", "*"]
    assert checked_words(words) == words


@pytest.mark.parametrize(
    ("words", "found"),
    [
        *[
            pytest.param(["a", sign, "b"], (1, sign), id=sign)
            for sign in ("&&", "||", "|", ";", "&", ">", ">>", "2>", "<", "<<", "2>&1", "&>")
        ],
        pytest.param(["a", "b", "|", "c", ">", "d"], (2, "|"), id="the first"),
        pytest.param(["grep", "a|b", "&&x", ">="], None, id="inside a word"),
        pytest.param(["|", "a"], None, id="the program itself"),
        pytest.param(["find", ".", "-exec", "rm", "{}", ";"], None, id="end of a nested command"),
        pytest.param(["find", "-exec", "rm", ";", "|", "wc"], (4, "|"), id="behind a nested one"),
        pytest.param(["a", 3, ">"], (2, ">"), id="behind what is not text"),
        pytest.param([], None, id="nothing"),
    ],
)
def test_signs_of_a_shell_in_a_list(words: list[object], found: tuple[int, str] | None) -> None:
    """A word that a shell would act on is found where it stands alone."""
    assert operator(words) == found


@pytest.mark.item("B12")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param(
            "repeat: {max: 2, until: {all: [{command: [a, '&&', b, '|', c]}]}}\n",
            "3:46 shell-syntax",
            id="check",
        ),
        pytest.param("steps: [{id: a, run: [a, '>', b]}]\n", "3:26 shell-syntax", id="step"),
    ],
)
def test_a_list_with_signs_of_a_shell_is_doubted(text: str, place: str) -> None:
    """The list form takes every word as it is, so such a sign is a warning, told once."""
    plan, problems = lowered(f"name: x\ngoal: g\n{text}")
    assert plan is not None
    assert places(problems) == [place]
    assert only(problems).severity == "warning"
    assert "script file" in (only(problems).hint or "")
