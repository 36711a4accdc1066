"""A chat session: read messages, drive the run, print answers as the model writes them."""

import sys
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.cli.formats import tokens
from loopwright.cli.gate_prompts import ask
from loopwright.cli.repl.line_input import LineInput
from loopwright.cli.terminal import EXIT_CODES, Terminal, Tone, cleaned, one_line
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.kernel.events import GateOpened
from loopwright.kernel.frames import GateState
from loopwright.kernel.state import State
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.dialects import read_definition
from loopwright.operations.messages import (
    ChatEntry,
    StartChat,
    chat_of,
    chat_start,
    check_is_chat,
    expand,
    transcript,
)
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import launch_run
from loopwright.operations.use_cases import runs as operations
from loopwright.operations.use_cases.gates import NamedAnswer, answer_named
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    RunReference,
    local_app,
    local_caller,
)
from loopwright.operations.wiring import Local
from loopwright.ports import Delta
from loopwright.ports.headline import status_of
from loopwright.syntax.document import suggest
from loopwright.views.formats import cost_text
from loopwright.views.status_text import answering
from loopwright.views.summary import final_line


class Speech:
    """The text of a run as it arrives. `turned` is called before the text of a new turn, so that
    output in between is in the right order. Text in `told` was printed with its event, which may
    arrive before the text: it is not printed again.
    """

    def __init__(
        self, terminal: Terminal, run: str, turned: Callable[[], None], told: Container[str] = ()
    ) -> None:
        self._terminal = terminal
        self._run = run
        self._turned = turned
        self._told = told
        self._effect = ""
        self._received: dict[str, str] = {}
        self._in_line = False

    def hear(self, delta: Delta) -> None:
        """A piece of the text."""
        if delta.run != self._run:
            return
        if delta.effect != self._effect:
            self.pause()
            self._turned()
            self._effect = delta.effect
        if delta.effect in self._told:
            return
        if delta.kind == "text":
            self._show_delta(delta)
        elif delta.kind == "note":  # an attempt has failed, and its words do not count
            self.pause()
            self._received.pop(delta.effect, None)
            self._terminal.say(one_line(delta.text), tone="warn")

    def pause(self) -> None:
        """The following output begins on a new line."""
        if self._in_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._in_line = False

    def has_said(self, effect: str, text: str) -> bool:
        """Whether this text is on the screen already."""
        received = self._received.get(effect, "")
        return bool(received) and received.strip() == cleaned(text).strip()

    def _show_delta(self, delta: Delta) -> None:
        text = cleaned(delta.text)
        if not text.strip() and not self._received.get(delta.effect):
            return  # an answer begins with its first word
        self._received[delta.effect] = self._received.get(delta.effect, "") + text
        sys.stdout.write(text)
        sys.stdout.flush()
        self._in_line = not text.endswith("\n")


COMMANDS = {
    "/help": "this list",
    "/export [FILE]": "write the conversation as Markdown, to a file or to the terminal",
    "/cost": "what the chat has used",
    "/end": "end the chat permanently; its run is completed",
    "/quit": "leave; the chat waits, and can be resumed by its id",
}
_NAMES = [name.partition(" ")[0] for name in COMMANDS]
TOOL_CHARS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of a chat."""

    file: str | None
    agent: str | None
    resume: str | None
    workspace: Path
    budget: str | None
    allow_unknown_cost: bool = False
    sandbox: SandboxLevel | None = None


class ChatSession:
    """One chat. The run starts with the first message."""

    def __init__(
        self, terminal: Terminal, here: Local, options: ChatOptions, lines: LineInput
    ) -> None:
        self._terminal = terminal
        self._here = here
        self._options = options
        self._lines = lines
        self._run: str | None = None
        self._told = 0
        self._put_whole: set[str] = set()  # answers that were printed with their events
        self._speech: Speech | None = None

    @property
    def _app(self) -> App:
        return local_app(self._here.service, self._terminal.settings)

    @property
    def _caller(self) -> Caller:
        return local_caller(self._here.service.via)

    async def _answer(self, gate: str, reply: NamedAnswer) -> None:
        await answer_named(self._app, self._caller, gate, reply)

    async def begin(self) -> None:
        """Continue an earlier chat and show its last messages. For a new one, check that its agent
        can be used before the person writes the first message.
        """
        if self._options.resume is None:
            self._here.service.check_cost(self._start_of(""))
            return
        service = self._here.service
        run = service.find(self._options.resume)
        state = service.state(run)
        check_is_chat(state)
        self._run = run
        if status_of(state) != "waiting":
            await operations.resume_named(self._app, self._caller, run)
        await self._settle()

    async def take(self, line: str) -> bool:
        """A line of the person; False when they leave."""
        text = line.strip()
        if not text:
            return True
        if text.startswith("/"):
            return await self._command(text)
        expanded = expand(line, self._options.workspace)
        for why in expanded.skipped:
            self._terminal.say(one_line(why), tone="warn")
        try:
            await self._show_delta(expanded.text)
        except LoopwrightError as error:
            if self._run is None:
                raise
            self._terminal.say(str(error), tone="bad")
        return not self._has_ended()

    def leave(self) -> int:
        """Leave the chat; returns the exit code."""
        if self._run is None:
            return 0
        state = self._here.service.state(self._run)
        if state.finished is None:
            self._terminal.say(f"continue with: loopwright chat --resume {self._run}", tone="dim")
            asked = any(gate.call is not None for gate in state.gates.values())
            return EXIT_CODES["waiting"] if asked else 0
        line = final_line(state, signs=self._terminal.has_signs(sys.stderr))
        self._terminal.say(f"{self._run}: {line}")
        return EXIT_CODES[state.finished.outcome]

    # -- commands: none of them reaches the model --------------------------------------------------

    async def _command(self, text: str) -> bool:
        word, _, rest = text.partition(" ")
        match word:
            case "/help":
                for name, what in COMMANDS.items():
                    self._terminal.put(f"{name:<16} {what}")
            case "/export":
                self._export(rest.strip())
            case "/cost":
                self._cost()
            case "/end":
                await self._end()
                return False
            case "/quit" | "/exit":
                return False
            case _:
                near = suggest(word, _NAMES)
                hint = f"did you mean {near}?" if near else "/help lists the commands"
                self._terminal.say(f"no command {one_line(word)}: {hint}", tone="bad")
        return True

    def _export(self, file: str) -> None:
        if self._run is None:
            self._terminal.say("the conversation is empty", tone="warn")
            return
        text = cleaned(transcript(self._here.service, self._run))
        if not file:
            self._terminal.put(text.rstrip("\n"))
            return
        try:
            with open(file, "x", encoding="utf-8") as out:
                out.write(text)
        except OSError as error:
            why = error.strerror or str(error)
            self._terminal.say(f"{one_line(file)} is not written: {why.lower()}", tone="bad")
        else:
            self._terminal.say(f"written to {one_line(file)}")

    def _cost(self) -> None:
        if self._run is None:
            self._terminal.say("nothing was used yet")
            return
        usage = self._here.service.state(self._run).usage
        used = usage.input_tokens + usage.output_tokens
        self._terminal.put(f"cost {cost_text(usage.usd, usage.unpriced)}, {tokens(used)} tokens")

    async def _end(self) -> None:
        gate = self._turn_gate()
        if self._run is None or gate is None:
            return
        if self._here.service.four_eyes:  # people cannot approve their own requests
            await operations.stop(self._app, self._caller, RunReference(run=self._run))
        else:
            await self._answer(gate.gate, NamedAnswer(decision="approve"))
        await self._settle()

    # -- turns -------------------------------------------------------------------------------------

    async def _show_delta(self, text: str) -> None:
        service = self._here.service
        if self._run is None:
            self._run = await launch_run(service, self._start_of(text))
            self._terminal.say(f"{self._run} started", tone="dim")
        else:
            gate = self._turn_gate()
            if gate is None:
                return
            await self._answer(gate.gate, NamedAnswer(decision="continue", text=text))
        await self._settle()

    def _start_of(self, text: str) -> RunStart:
        options = self._options
        plan = read_definition(Path(options.file)).plan if options.file else None
        start_options = StartChat(
            message=text,
            agent=options.agent,
            workspace=options.workspace,
            budget=options.budget,
            allow_unknown_cost=options.allow_unknown_cost,
            file=plan,
        )
        return replace(chat_start(start_options), sandbox=options.sandbox)

    async def _settle(self) -> None:
        """Let the model work until it is the person's turn, and show its output."""
        assert self._run is not None
        while True:
            self._speech = speech = Speech(self._terminal, self._run, self._show, self._put_whole)
            stop_listening = self._here.bus.listen(speech.hear)
            try:
                await self._here.driver.rest(self._run)
            finally:
                stop_listening()
            speech.pause()
            self._show()
            gate = self._call_gate()
            if gate is None or not await self._decide(gate):
                return

    def _show(self) -> None:
        assert self._run is not None
        service = self._here.service
        events = [numbered.event for numbered in service.events(self._run)]
        entries = list(chat_of(events, service.read_text))
        for one in entries[self._told :]:
            self._put(one)
        self._told = len(entries)

    def _put(self, one: ChatEntry) -> None:
        if one.who == "assistant":
            if self._speech is not None and self._speech.has_said(one.effect, one.text):
                return
            self._put_whole.add(one.effect)
            self._terminal.put(cleaned(one.text).rstrip("\n"))
        elif one.who == "user" and self._options.resume is not None and self._told == 0:
            self._terminal.say(f"you: {one_line(one.text, TOOL_CHARS)}", tone="dim")
        elif one.who in ("tool", "approval"):
            tone: Tone = "dim"
            self._terminal.say(f"[{one_line(one.text, TOOL_CHARS)}]", tone=tone)

    async def _decide(self, gate: GateState) -> bool:
        """Ask the person about a tool call; False if no person is present or they cancel."""
        if not self._lines.at_terminal:
            self._terminal.say(f"  {answering(gate)}")
            return False
        service = self._here.service
        opened = next(
            numbered.event
            for numbered in service.events(self._run or "")
            if isinstance(numbered.event, GateOpened) and numbered.event.gate == gate.gate
        )
        reply = await ask(self._terminal, opened, service.read_text(opened.output))
        if reply is None:
            return False
        try:
            answer = NamedAnswer(
                decision=reply.decision, text=reply.text, digest=opened.digest, call=reply.call
            )
            await self._answer(gate.gate, answer)
        except NotAllowed as refusal:  # the gate stays open for another person
            self._terminal.tell(str(refusal), tone="warn")
            return False
        return True

    def _state(self) -> State | None:
        return self._here.service.state(self._run) if self._run is not None else None

    def _call_gate(self) -> GateState | None:
        state = self._state()
        gates = state.gates.values() if state is not None else ()
        return next((gate for gate in gates if gate.call is not None), None)

    def _turn_gate(self) -> GateState | None:
        state = self._state()
        gates = state.gates.values() if state is not None else ()
        found = next((gate for gate in gates if gate.call is None), None)
        if found is None and state is not None and state.finished is None:
            self._terminal.say("a call of a tool waits for a decision first", tone="warn")
        return found

    def _has_ended(self) -> bool:
        state = self._state()
        return state is not None and state.finished is not None
