"""The door: what the person at the command line wants, and how to speak to them.

Data goes to stdout, talk to stderr. Colour and signs are decided for each stream apart.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, TextIO

import click

from loopwright.cli.texts import cleaned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loopwright.app.settings import Settings
    from loopwright.cli.remote import Remote

Tone = Literal["good", "bad", "warn", "dim", "bold", "plain"]
_STYLES: dict[Tone, Callable[[str], str]] = {
    "good": partial(click.style, fg="green"),
    "bad": partial(click.style, fg="red"),
    "warn": partial(click.style, fg="yellow"),
    "dim": partial(click.style, dim=True),
    "bold": partial(click.style, bold=True),
}


@dataclass(slots=True)
class Wanted:
    """The flags that every command takes, before or after its name."""

    as_json: bool = False
    data_dir: str | None = None
    no_color: bool = False
    quiet: bool = False
    server: str | None = None
    no_retry: bool = False
    here: bool = False


class Door:
    """One command's way to speak and to learn its settings."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted

    @property
    def as_json(self) -> bool:
        return self.wanted.as_json

    @property
    def quiet(self) -> bool:
        return self.wanted.quiet

    @cached_property
    def settings(self) -> "Settings":
        from loopwright.app.settings import load_settings  # noqa: PLC0415 - help stays quick

        resolved = load_settings(data_dir=self.wanted.data_dir)
        for warning in resolved.warnings:
            self.say(f"warning: {warning}", tone="warn")
        return resolved.settings

    @cached_property
    def remote(self) -> "Remote | None":
        """The server that is asked in the place of the log here."""
        if self.wanted.server is None:
            return None
        if self.wanted.here:
            raise click.UsageError("--here and --server exclude each other")
        from loopwright.cli.remote import Remote  # noqa: PLC0415 - only when asked for

        return Remote(self.wanted.server, self.say)

    # -- speaking ------------------------------------------------------------------------------

    def put(self, text: str) -> None:
        """Data, as it is; the caller has seen to what may stand in it."""
        put(text)

    def put_json(self, value: object) -> None:
        """One object on stdout."""
        put(as_json(value, indent=2 if sys.stdout.isatty() else None))

    def done(self, words: str, told: object) -> None:
        """What was done: as JSON where that is wanted, else in words."""
        if self.as_json:
            self.put_json(told)
        else:
            self.say(words)

    def say(self, text: str, *, tone: Tone = "plain") -> None:
        """A line of talk on stderr."""
        if not self.quiet:
            self.tell(text, tone=tone)

    def tell(self, text: str, *, tone: Tone = "plain") -> None:
        """A line of talk that is said even when quiet is wanted: an error, a question."""
        stream = sys.stderr
        with contextlib.suppress(OSError):  # nobody listens, which is no reason to stop
            stream.write(self.painted(cleaned(text), tone, stream) + "\n")
            stream.flush()

    def painted(self, text: str, tone: Tone, stream: TextIO) -> str:
        style = _STYLES.get(tone)
        if style is None or not self.has_color(stream):
            return text
        return style(text)

    # -- what the terminal can do --------------------------------------------------------------

    def has_color(self, stream: TextIO) -> bool:
        if self.wanted.no_color:
            return False
        choice = color_choice(os.environ)
        if choice is not None:
            return choice
        configured = self._configured_color()
        if configured != "auto":
            return configured == "always"
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def _configured_color(self) -> str:
        # Only when it was read already: an error about the settings is spoken without them.
        settings = self.__dict__.get("settings")
        return settings.color if settings is not None else "auto"

    @staticmethod
    def has_signs(stream: TextIO) -> bool:
        """Whether signs beyond ASCII can be written."""
        return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask: questions need a terminal on both sides."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def color_choice(env: "Mapping[str, str]") -> bool | None:
    """What the environment says about colour, or None when it says nothing."""
    if env.get("NO_COLOR"):
        return False
    forced = env.get("FORCE_COLOR")
    return forced not in ("0", "false") if forced else None


def as_json(value: object, *, indent: int | None = None) -> str:
    """JSON that any stdout can carry."""
    return json.dumps(value, indent=indent, ensure_ascii=not Door.has_signs(sys.stdout))


def put(text: str) -> None:
    """A line on stdout. A reader that has gone is no error."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()
