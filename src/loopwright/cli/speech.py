"""What a chat model says, on the screen while it says it."""

import sys
from collections.abc import Callable, Container

from loopwright.cli.door import Door
from loopwright.cli.texts import cleaned, one_line
from loopwright.ports import Delta


class Speech:
    """The words of a run as they come. `turned` is called before a new turn begins to speak, so
    that what came between stands between. What is in `told` was put by its fact, which may be there
    before the words: those are not said again.
    """

    def __init__(
        self, door: Door, run: str, turned: Callable[[], None], told: Container[str] = ()
    ) -> None:
        self._door = door
        self._run = run
        self._turned = turned
        self._told = told
        self._effect = ""
        self._heard: dict[str, str] = {}
        self._in_line = False

    def hear(self, delta: Delta) -> None:
        """A piece of what is said."""
        if delta.run != self._run:
            return
        if delta.effect != self._effect:
            self.pause()
            self._turned()
            self._effect = delta.effect
        if delta.effect in self._told:
            return
        if delta.kind == "text":
            self._say(delta)
        elif delta.kind == "note":  # an attempt has failed, and its words do not count
            self.pause()
            self._heard.pop(delta.effect, None)
            self._door.say(one_line(delta.text), tone="warn")

    def pause(self) -> None:
        """What follows begins on a line of its own."""
        if self._in_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._in_line = False

    def has_said(self, effect: str, text: str) -> bool:
        """Whether this very text stands on the screen already."""
        heard = self._heard.get(effect, "")
        return bool(heard) and heard.strip() == cleaned(text).strip()

    def _say(self, delta: Delta) -> None:
        text = cleaned(delta.text)
        if not text.strip() and not self._heard.get(delta.effect):
            return  # an answer begins with its first word
        self._heard[delta.effect] = self._heard.get(delta.effect, "") + text
        sys.stdout.write(text)
        sys.stdout.flush()
        self._in_line = not text.endswith("\n")
