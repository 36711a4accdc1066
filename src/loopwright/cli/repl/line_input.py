"""Lines that a person types: with history and completion on a terminal, one by one from a pipe."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

Complete = Callable[[str], Iterable[str]]
"""Completions for the word before the cursor, given the line up to it."""


class WordCompleter(Completer):
    """Completes the word before the cursor."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        word = before.rpartition(" ")[2]
        for candidate in self._complete(before):
            if candidate.startswith(word):
                yield Completion(candidate, start_position=-len(word))


class LineInput:
    """Reads lines. Output while a line is being typed appears above it and does not break it."""

    def __init__(self, *, history: Path, complete: "Complete") -> None:
        self._history = history
        self._complete = complete
        self._session: PromptSession[str] | None = None
        self.at_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    async def read(self, prompt: str) -> str | None:
        """The next line; None at the end of the input, an empty one if it was cancelled."""
        if not self.at_terminal:
            line = await asyncio.to_thread(sys.stdin.readline)
            return line.rstrip("\n") if line else None
        if self._session is None:
            self._session = self._begin()
        try:
            return await self._session.prompt_async(prompt)
        except EOFError:
            return None
        except KeyboardInterrupt:
            return ""

    @contextmanager
    def above(self) -> Iterator[None]:
        """While this is open, whatever is printed appears above the line that is typed."""
        if not self.at_terminal:
            yield
            return
        from prompt_toolkit.patch_stdout import patch_stdout  # noqa: PLC0415 - needed at a terminal alone

        with patch_stdout(raw=True):
            yield

    def _begin(self) -> "PromptSession[str]":
        from prompt_toolkit import PromptSession  # noqa: PLC0415 - needed at a terminal alone
        from prompt_toolkit.history import FileHistory  # noqa: PLC0415 - needed at a terminal alone

        self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The input of people may be confidential: other users cannot read it.
        os.close(os.open(self._history, os.O_CREAT | os.O_APPEND, 0o600))
        return PromptSession(
            history=FileHistory(str(self._history)),
            completer=WordCompleter(self._complete),
            complete_while_typing=False,
        )
