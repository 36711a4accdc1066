"""Hand messages to a program while it works, as further lines on its standard input.

A message is read from the inbox of the call, so its delivery is recorded before it is sent. A call
that fails or is repeated after a crash has the delivered messages in its prompt.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from uuid import uuid4

from loopwright.agents.letters import said_by
from loopwright.ports import Job
from loopwright.programs.process import Running
from loopwright.programs.talking import used

WAIT_S = 600

Encode = Callable[[str, str], str]
"""A message and its id as the program reads them: one line."""


class TurnMessages:
    """The messages of one call. Each has an id that the program repeats when it has read it."""

    def __init__(self, job: Job, encode: Encode) -> None:
        self._job = job
        self._encode = encode
        self._sent: dict[str, bytes] = {}
        self._running: Running | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_ending = False

    def begin(self, running: Running) -> None:
        """The program has started; what an earlier attempt of the call was sent is sent again."""
        self._running, self._is_ending = running, False
        for line in self._sent.values():
            running.write(line)
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while not self._is_ending:
            told = await used(self._job, "read_inbox", {"wait": WAIT_S})
            if not told.ok:
                return
            for one in told.messages:
                name, text = str(uuid4()), said_by(one.sender, one.text, told=one.kind == "tell")
                self._sent[name] = f"{self._encode(text, name)}\n".encode()
                if self._running is not None:
                    self._running.write(self._sent[name])

    def end_turn(self, read: AbstractSet[str], finish: Callable[[], None]) -> None:
        """The program has ended its turn. A message whose delivery is being recorded is still
        sent, then no more. `finish` is called when the program has read everything; one that has
        not begins another turn with the rest.
        """
        if self._reading is None:
            self._end_input(read, finish)
        elif not self._is_ending:
            self._is_ending = True
            self._reading.add_done_callback(lambda task: self._ended(task, read, finish))
            if self._job.talk is not None:
                self._job.talk.end_waiting()

    def _ended(
        self, task: asyncio.Task[None], read: AbstractSet[str], finish: Callable[[], None]
    ) -> None:
        if task is self._reading:  # else the call has been closed
            self._reading = None
            self._end_input(read, finish)

    def _end_input(self, read: AbstractSet[str], finish: Callable[[], None]) -> None:
        if self._running is not None:
            self._running.end_input()
        if self._sent.keys() <= read:
            finish()

    def close(self) -> None:
        """Read no more messages: they wait for the next call."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
