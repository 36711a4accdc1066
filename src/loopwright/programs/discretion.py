"""Words of an agent that are for its loop alone, kept from those who look on.

Every agent's live words pass through here, whatever kind it is. Tags of a signal are left out,
also when they come in pieces.
"""

import dataclasses
import re
from collections.abc import Awaitable, Callable

from loopwright.kernel.signal import hidden_tags
from loopwright.ports import Answer, Bus, Delta, Job

HELD_CHARS = 2_000  # of what may become a tag; longer than that it is none

# The beginning of a tag, or a whole one with its content and maybe a part of its end.
_MAY_BECOME_TAG = re.compile(r"<(?:[A-Za-z][\w-]*(?:\s[^<>]*)?(?:>[^<>]*(?:</?[\w-]*\s*)?)?)?\Z")


class Hiding:
    """Takes the tags of a signal out of a text that comes in pieces."""

    def __init__(self, word: str) -> None:
        self._tags = hidden_tags(word)
        self._held = ""

    def take(self, text: str) -> str:
        """What of the text so far may be shown now."""
        text = self._tags.sub("", self._held + text)
        found = _MAY_BECOME_TAG.search(text, max(0, len(text) - HELD_CHARS))
        cut = len(text) if found is None else found.start()
        self._held = text[cut:]
        return text[:cut]

    def rest(self) -> str:
        """What was held back and has become no tag."""
        held, self._held = self._held, ""
        return held


class Discreet:
    """A bus that leaves out, of each call, what is for its loop alone."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._hiding: dict[tuple[str, str], Hiding] = {}
        self._redact: dict[tuple[str, str], Callable[[str], str]] = {}

    def publish(self, delta: Delta) -> None:
        hiding = self._hiding.get((delta.run, delta.effect)) if delta.kind == "text" else None
        redact = self._redact.get((delta.run, delta.effect), str)
        delta = dataclasses.replace(delta, text=redact(delta.text))
        text = delta.text if hiding is None else hiding.take(delta.text)
        if text == delta.text:
            self._bus.publish(delta)
        elif text:
            self._bus.publish(_saying(delta.run, delta.effect, text))

    def around(
        self, job: Job, perform: Callable[[Job], Answer | Awaitable[Answer]]
    ) -> Answer | Awaitable[Answer]:
        """Perform a job, and see to it that neither its signal nor the secrets that its agent was
        given are shown while it lasts.
        """
        if job.hidden is not None:
            self._hiding[job.run, job.effect] = Hiding(job.hidden)
        self._redact[job.run, job.effect] = job.activity.redact
        answer = perform(job)
        if isinstance(answer, Awaitable):
            return self._later(job, answer)
        self._end(job)
        return answer

    async def _later(self, job: Job, answer: Awaitable[Answer]) -> Answer:
        try:
            return await answer
        finally:
            self._end(job)

    def _end(self, job: Job) -> None:
        hiding = self._hiding.pop((job.run, job.effect), None)
        rest = hiding.rest() if hiding is not None else ""
        if rest:
            self._bus.publish(_saying(job.run, job.effect, rest))
        self._redact.pop((job.run, job.effect), None)


def _saying(run: str, effect: str, text: str) -> Delta:
    return Delta(run=run, effect=effect, kind="text", text=text)
