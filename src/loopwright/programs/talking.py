"""Talking: the tools of a run for an agent that is a program, and the way answers reach it.

A `tool` line that names a tool of the run and has no result is a use of it. The answer comes as one
JSON line in the pipe named by `LOOPWRIGHT_INBOX`. Uses are answered one after the other, in order.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loopwright.kernel.calls import AgentCall
from loopwright.kernel.tools import tools_of
from loopwright.model.record import JsonValue
from loopwright.ports import Job, Told
from loopwright.programs.jsonl import Line
from loopwright.programs.streams import Trickle

SUBMIT = "submit_result"
ACCEPTED = Told(text="accepted: the result is taken, and the talk is over")
LATE = Told(text="not taken: a result was accepted before", ok=False)


class Submission:
    """The structured result of a call: the first one that fits counts."""

    def __init__(self, problem: Callable[[str | None], str | None]) -> None:
        self._problem = problem
        self.accepted: str | None = None

    def take(self, arguments: JsonValue) -> Told:
        """Look at a result; one that does not fit is explained, and may be handed in again."""
        if self.accepted is not None:
            return LATE
        text = msgspec.json.encode(arguments).decode()
        problem = self._problem(text)
        if problem is not None:
            return Told(text=f"not taken: {problem}", ok=False)
        self.accepted = text
        return ACCEPTED


def talk_tools(job: Job) -> tuple[str, ...]:
    """The tools of the run that the agent of a call has."""
    call = job.call
    role = call.role if isinstance(call, AgentCall) else ""
    found: tuple[str, ...] = ()
    if job.talk is not None and role in ("worker", "reply"):
        found = tools_of("step")
    elif job.talk is not None and role == "coordinator":
        found = tools_of("coordinator")
    return (*found, SUBMIT) if job.schema is not None else found


class Conversation:
    """The uses of one program, in order, and their answers."""

    def __init__(self, job: Job, submission: Submission) -> None:
        self._job = job
        self._submission = submission
        self._tools = frozenset(talk_tools(job))
        self._uses: asyncio.Queue[Line | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[Told] | None = None
        self._ended = False
        self._folder = tempfile.mkdtemp(prefix="loopwright-")
        self.pipe = str(Path(self._folder, "inbox"))
        try:
            os.mkfifo(self.pipe, 0o600)
            # Also for reading: so it opens at once, and keeps what nobody has read yet.
            fd = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._answers = Trickle(asyncio.get_running_loop(), fd)

    def variables(self) -> dict[str, str]:
        """What the program is told about it."""
        return {
            "LOOPWRIGHT_INBOX": self.pipe,
            "LOOPWRIGHT_RUN_TOOLS": ",".join(talk_tools(self._job)),
        }

    def take(self, line: Line) -> bool:
        """A line of the program; one that uses a tool of the run is answered. True when a result
        was accepted, and with it all is said.
        """
        if line.type != "tool" or line.name not in self._tools or line.result is not None:
            return False
        if line.name == SUBMIT:
            told = self._submission.take(line.args)
            self._tell(line, told)
            return told is ACCEPTED
        self._uses.put_nowait(line)
        if self._task is None:
            self._task = asyncio.ensure_future(self._answer())
        return False

    async def _answer(self) -> None:
        while (line := await self._uses.get()) is not None:
            if line.name == "read_inbox":
                await self._read(line)
            else:
                self._tell(line, await used(self._job, line.name or "", line.args))

    async def _read(self, line: Line) -> None:
        """A reader that has gone gets nothing: what it would have read waits for another."""
        if self._ended:
            return
        self._reading = asyncio.ensure_future(used(self._job, "read_inbox", line.args))
        await asyncio.wait([self._reading])
        if not self._reading.cancelled():
            self._tell(line, self._reading.result())
        self._reading = None

    def _tell(self, line: Line, told: Told) -> None:
        answer: dict[str, JsonValue] = {
            "type": "tool_result",
            "name": line.name,
            "result": told.text,
        }
        if line.id is not None:
            answer["id"] = line.id
        if not told.ok:
            answer["is_error"] = True
        if told.messages:
            answer["messages"] = [
                {"from": one.sender, "text": one.text, "kind": one.kind} for one in told.messages
            ]
        self._answers.write(msgspec.json.encode(answer) + b"\n")

    async def finish(self) -> None:
        """The program has ended: what it asked for before is still done, but nobody reads."""
        self._ended = True
        if self._reading is not None:
            self._reading.cancel()
        if self._task is not None:
            self._uses.put_nowait(None)
            await self._task

    def close(self) -> None:
        """Leave nothing behind."""
        for task in (self._reading, self._task):
            if task is not None:
                task.cancel()
        self._answers.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def conversation(job: Job, submission: Submission, *, lines: bool) -> Iterator[Conversation | None]:
    """The talk of a program that speaks in lines, where there is anything to talk about."""
    if not lines or not talk_tools(job):
        yield None
        return
    talk = Conversation(job, submission)
    try:
        yield talk
    finally:
        talk.close()


async def used(job: Job, name: str, arguments: JsonValue) -> Told:
    """Use a tool of the run."""
    if job.talk is None:
        return Told(text=f"there is no tool {name!r} here", ok=False)
    return await job.talk.use(name, arguments)
