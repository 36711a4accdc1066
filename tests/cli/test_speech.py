"""What a chat model says while it says it."""

import pytest

from loopwright.cli.repl.chat_session import Speech
from loopwright.cli.terminal import CommonOptions, Terminal
from loopwright.ports import Delta


class Heard:
    """A run that speaks; what stands on the screen after each piece."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.turns = 0
        self.speech = Speech(Terminal(CommonOptions()), "run_1", self._turned)

    def _turned(self) -> None:
        self.turns += 1

    def hear(self, text: str, *, effect: str = "e1", kind: str = "text", run: str = "run_1") -> str:
        self.speech.hear(Delta(run=run, effect=effect, kind=kind, text=text))  # type: ignore[arg-type]
        return self._capsys.readouterr().out


@pytest.fixture
def heard(capsys: pytest.CaptureFixture[str]) -> Heard:
    return Heard(capsys)


def test_words_are_shown_as_they_come(heard: Heard) -> None:
    """Each piece at once, and a text that was shown whole is known."""
    assert [heard.hear("\n"), heard.hear("Hel"), heard.hear("lo.")] == ["", "Hel", "lo."]
    assert heard.speech.has_said("e1", "\nHello.\n")
    assert not heard.speech.has_said("e1", "Hello. And more.")
    assert not heard.speech.has_said("e2", "")


def test_what_its_event_has_told_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    """An event that is read before the words of its turn have come, as beside a server, counts."""
    told: set[str] = set()
    speech = Speech(Terminal(CommonOptions()), "run_1", lambda: told.add("e1"), told)
    for effect in ("e1", "e1", "e2"):
        speech.hear(Delta(run="run_1", effect=effect, kind="text", text=f"{effect}."))
    assert capsys.readouterr().out == "e2."


def test_a_new_turn_begins_on_its_own_line(heard: Heard) -> None:
    """Whatever came between two turns is shown between them."""
    heard.hear("I look.")
    heard.hear("fs.read", kind="tool")
    assert heard.turns == 1
    assert heard.hear("It is 7.", effect="e2") == "\nIt is 7."
    assert heard.turns == 2


def test_words_of_an_attempt_that_failed_do_not_count(heard: Heard) -> None:
    """The next attempt says it all again."""
    heard.hear("It i")
    assert heard.hear("tiny: overloaded; trying again", kind="note") == "\n"
    heard.hear("It is 7.")
    assert heard.speech.has_said("e1", "It is 7.")


def test_other_runs_and_hidden_signs_are_not_shown(heard: Heard) -> None:
    """A screen is not steered by what a model says."""
    assert heard.hear("no", run="run_2") == ""
    assert "\x1b" not in heard.hear("\x1b[2Jred")
