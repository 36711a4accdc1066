"""From bytes to events: lines as they come, cut anywhere, of any length, with anything between."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from loopwright.agents.clis import claude, codex, gemini, opencode
from loopwright.agents.clis.heard import Heard, Said
from loopwright.agents.clis.loose import decode_object
from loopwright.model.record import JsonValue

LINE_BYTES = 32 * 1024 * 1024
"""The longest line that is looked at: a tool result of some megabytes is one line."""

Take: TypeAlias = Callable[[Heard, JsonValue], list[Said]]

READERS: Mapping[str, Take] = {
    "claude": claude.take,
    "codex": codex.take,
    "gemini": gemini.take,
    "opencode": opencode.take,
}
_IS_PROGRESS: Mapping[str, Callable[[JsonValue], bool]] = {
    "claude": claude.is_progress,
    "codex": codex.is_progress,
    "gemini": gemini.is_progress,
    "opencode": opencode.is_progress,
}


class Lines:
    """Splits chunks into lines; one that is too long is left out as a whole and counted."""

    def __init__(self, most: int = LINE_BYTES) -> None:
        self._most = most
        self._rest: list[bytes] = []
        self._size = 0
        self._skipping = False
        self.cut = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes."""
        *ends, rest = chunk.split(b"\n")
        lines = [line for end in ends if (line := self._complete(end)) is not None]
        self._keep(rest)
        return lines

    def last(self) -> list[bytes]:
        """What stands after the last newline when nothing more comes."""
        line = self._complete(b"")
        return [line] if line else []

    def _complete(self, end: bytes) -> bytes | None:
        self._keep(end)
        line = None if self._skipping else b"".join(self._rest).rstrip(b"\r")
        self._rest, self._size, self._skipping = [], 0, False
        return line

    def _keep(self, piece: bytes) -> None:
        if self._skipping or not piece:
            return
        self._size += len(piece)
        if self._size > self._most:
            self._rest, self._skipping = [], True
            self.cut += 1
            return
        self._rest.append(piece)


class Stream:
    """The events of one call, taken in as they come."""

    def __init__(self, cli: str, *, line_bytes: int = LINE_BYTES) -> None:
        self.heard = Heard()
        self._take = READERS[cli]
        self._is_progress = _IS_PROGRESS[cli]
        self._lines = Lines(line_bytes)

    def feed(self, chunk: bytes, now_ms: int = 0) -> list[Said]:
        """What the next bytes have for the live view. `now_ms` is when they arrived, by any clock
        that never goes back.
        """
        self.heard.now_ms = now_ms
        lines = self._lines.feed(chunk)
        self.heard.progress = not lines  # a part of a long line is output, too
        return self._taken(lines)

    def close(self, now_ms: int = 0) -> list[Said]:
        """The same for a line that the program did not end; nothing more comes."""
        self.heard.now_ms = now_ms or self.heard.now_ms
        said = self._taken(self._lines.last())
        self.heard.end_calls()
        return said

    def _taken(self, lines: list[bytes]) -> list[Said]:
        said: list[Said] = []
        for line in lines:
            event = decode_object(line)
            if event is not None:
                said += self._take(self.heard, event)
                self.heard.progress = self.heard.progress or self._is_progress(event)
            elif line.strip():
                self.heard.garbage += 1
        self.heard.cut = self._lines.cut
        return said
