"""Completion at a prompt: our candidates in the words of the line editor."""

from collections.abc import Callable, Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

Complete = Callable[[str], Iterable[str]]
"""What may stand in place of the word before the cursor, given the line up to there."""


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
