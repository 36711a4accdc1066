"""Turns: asks a chat model for the next step of a conversation, and does the tools that it wants.

The engine decides what becomes of a turn; here it is only put into words that the engine knows.
A call whose end nobody saw is done again only where that cannot hurt.
"""

import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Literal, TypeAlias

import msgspec

from loopwright.agents.activity_targets import tool_target
from loopwright.agents.conversation import HAND_IN, SEND, submit_tool
from loopwright.errors import LoopwrightError
from loopwright.gateway.asking import failure_of, is_measured, request_of, usage_of
from loopwright.kernel.calls import AgentCall, ModelCall, ToolCall
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.cycles import SUBMIT
from loopwright.kernel.facts import Failure, Usage
from loopwright.model.exchange import (
    Answered,
    AttemptFailed,
    AttemptStarted,
    CallDelta,
    ModelEnd,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThoughtDelta,
    Unanswered,
)
from loopwright.model.messages import AssistantMessage, CallPart, ToolSpec, UserMessage
from loopwright.model.record import JsonValue
from loopwright.model.turns import Turn, WantedCall, encode_turn
from loopwright.ports import (
    UNLIMITED,
    ActivityEntry,
    Answer,
    Bus,
    Delta,
    Done,
    Failed,
    Job,
    ModelCatalogue,
    ModelClient,
    ToolEnd,
    Tools,
)

ToolsOf: TypeAlias = Callable[[Job], Tools]
SchemaProblem: TypeAlias = Callable[[dict[str, JsonValue], JsonValue], str | None]

INTERRUPTED = (
    "the call was interrupted, and nobody knows whether it had an effect; look before you do it "
    "again"
)
UNMEASURED = (
    "the service does not tell what it used, and a limit in money or tokens cannot be kept; leave "
    "the limit out, or ask another service"
)
LOOK_EVERY_CHARS = 2_000
MOST_CHARS_PER_TOKEN = 8  # twice the usual number, so that no call is cut off too early
CUT_OFF = "the answer was cut off here, so the call may not be whole; say it in smaller parts"
NOT_HANDED_IN = f"the model gave no result: it called no {SUBMIT}, and its text has no JSON"


class Turns:
    """A performer of everything that agents do which are chat models."""

    def __init__(
        self,
        client: ModelClient,
        tools_of: ToolsOf,
        bus: Bus,
        schema_problem: SchemaProblem,
        catalogue: ModelCatalogue | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._client = client
        self._tools_of = tools_of
        self._bus = bus
        self._schema_problem = schema_problem

    async def perform(self, job: Job) -> Answer:
        try:
            match job.call:
                case ModelCall(role="summary"):
                    return await self._summary(job)
                case ModelCall():
                    return await self._turn(job)
                case ToolCall() as call:
                    return await self._tool(job, call)
                case _:
                    return await self._answer(job)
        except _OverBudget as over:
            failure = Failure(type="budget_limit", detail=over.words, outer=True)
            return Failed(error=failure, output=over.text, usage=over.usage)
        except LoopwrightError as error:  # of what the agent is granted
            words = f"{error.message}; {error.hint}" if error.hint else error.message
            return Failed(error=Failure(type="not_found", detail=words))

    # -- the model -----------------------------------------------------------------------------

    async def _turn(self, job: Job) -> Answer:
        """The next turn of a conversation."""
        tools = self._tools_of(job)
        offered: tuple[ToolSpec, ...] = ()
        if not job.forced:
            offer = await tools.specs()
            if offer.problems:  # to go on without what the author gave would end in false words
                return Failed(error=Failure(type="not_found", detail="; ".join(offer.problems)))
            offered = offer.tools
        end = await self._ask(job, request_of(job, (*offered, *job.offers)))
        if isinstance(end, Unanswered):
            return _unanswered(end)
        usage = usage_of(end.attempts)
        # A model on this machine costs nothing, so that a limit in money needs no count of tokens.
        is_limited = job.counted or (job.budgeted and usage.unpriced)
        if is_limited and not is_measured(end.attempts):
            return Failed(
                error=Failure(type="budget_limit", detail=UNMEASURED),
                output=end.message.text,
                usage=usage,
            )
        calls = [await self._wanted(job, tools, call) for call in end.message.calls]
        if calls and end.finish == "length":
            calls[-1] = msgspec.structs.replace(calls[-1], problem=CUT_OFF)
        form = next((spec.schema for spec in job.offers if spec.name == SUBMIT), None)
        if not calls and form is not None:
            written = _written_result(end.message.text)
            problem = self._unfit(form, written)
            if problem is not None or written is None:
                failure = Failure(type="bad_result", detail=problem or NOT_HANDED_IN)
                return Failed(error=failure, output=end.message.text, usage=usage)
            # No id: the model made no call, so the conversation has no result of one.
            calls.append(WantedCall(id="", tool=SUBMIT, arguments=msgspec.json.decode(written)))
        turn = Turn(
            message=end.message,
            calls=tuple(calls),
            finish=end.finish,
            model=_full_name(end),
            task=job.task,
        )
        return Done(output=end.message.text, result=encode_turn(turn), usage=usage)

    async def _summary(self, job: Job) -> Answer:
        end = await self._ask(job, request_of(job, ()))
        if isinstance(end, Unanswered):
            return _unanswered(end)
        return Done(output=end.message.text, usage=usage_of(end.attempts))

    async def _answer(self, job: Job) -> Answer:
        """A single answer: of a judge, a coordinator, or whoever works on what was rejected."""
        assert isinstance(job.call, AgentCall)
        job.messages = (UserMessage(text=job.prompt),)
        spent: list[Usage] = []
        tools = (submit_tool(job.schema),) if job.schema is not None else ()
        said = ""
        for attempt in range(2):
            end = await self._ask(job, request_of(job, tools))
            if isinstance(end, Unanswered):
                return _unanswered(end, spent)
            spent.append(usage_of(end.attempts))
            said, result = end.message.text, _handed_in(end)
            if job.schema is None:
                return Done(output=said, usage=_sum(spent))
            problem = self._unfit(job.schema, result)
            if problem is None:
                return Done(output=said, result=result, usage=_sum(spent))
            if attempt == 0:
                told = f"{problem}\n\n{HAND_IN}"
                job.messages = (*job.messages, UserMessage(text=told))
        return Failed(
            error=Failure(type="bad_result", detail=problem or NOT_HANDED_IN),
            output=said,
            usage=_sum(spent),
        )

    def _unfit(self, schema: dict[str, JsonValue], result: str | None) -> str | None:
        if result is None:
            return NOT_HANDED_IN
        try:
            value: JsonValue = msgspec.json.decode(result)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"the result is not JSON: {error}"
        return self._schema_problem(schema, value)

    async def _ask(self, job: Job, request: ModelRequest) -> ModelEnd:
        watch = _Watch(job, request, self._catalogue)
        async with aclosing(self._client.stream(request)) as events:
            async for event in events:
                watch.take(event)
                match event:
                    case TextDelta(text=text):
                        self._tell(job, "text", _clean(text))
                    case CallDelta(tool=tool) if tool:
                        self._tell(job, "tool", tool)
                    case AttemptFailed(attempt=attempt, wait_ms=wait) if wait is not None:
                        failure = attempt.failure
                        words = failure.detail if failure is not None else ""
                        self._tell(job, "note", f"{attempt.model}: {words}; trying again")
                    case Answered():
                        return msgspec.structs.replace(event, message=_storable(event.message))
                    case Unanswered():
                        return event
                    case _:
                        pass
        raise AssertionError("an exchange ends with an answer or a failure")

    def _tell(self, job: Job, kind: Literal["text", "tool", "note"], text: str) -> None:
        self._bus.publish(Delta(run=job.run, effect=job.effect, kind=kind, text=text))

    # -- its tools -----------------------------------------------------------------------------

    async def _wanted(self, job: Job, tools: Tools, call: CallPart) -> WantedCall:
        """A call as the engine is to see it."""
        own = next((spec for spec in job.offers if spec.name == call.tool), None)
        if own is None:
            return await tools.resolve(call)
        try:
            value: JsonValue = msgspec.json.decode(call.args.strip() or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            problem = f"the arguments are no JSON: {error}"
            return WantedCall(id=call.id, tool=call.tool, arguments=call.args, problem=problem)
        unfit = self._schema_problem(own.schema, value)
        problem = f"the arguments do not fit: {unfit}" if unfit is not None else ""
        return WantedCall(id=call.id, tool=call.tool, arguments=value, problem=problem, paths=())

    async def _tool(self, job: Job, call: ToolCall) -> Answer:
        arguments: JsonValue = msgspec.json.decode(job.arguments)
        if call.tool == SEND.name:
            told = await _sent(job, arguments)
            job.activity.record(
                ActivityEntry(
                    kind="tool",
                    tool=call.tool,
                    ok=isinstance(told, Done),
                    arguments=job.arguments,
                    result=told.output,
                )
            )
            return told
        tools = self._tools_of(job)
        if job.again and not tools.repeatable(call.tool):
            return Failed(error=Failure(type="interrupted", detail=INTERRUPTED))
        self._tell(job, "tool", call.tool)
        key = f"{job.run}/{job.effect}"
        began = time.monotonic()
        end = await tools.run(call.tool, arguments, approved=job.approved, key=key)
        job.activity.record(_entry(call.tool, arguments, end, time.monotonic() - began))
        if end.error:
            return Failed(
                error=Failure(type="tool", detail=end.text[:400]), output=end.text, code=end.code
            )
        return Done(output=end.text, code=end.code)


def _entry(tool: str, arguments: JsonValue, end: ToolEnd, seconds: float) -> ActivityEntry:
    """A tool call as activity; a command that ended with another code than 0 has failed."""
    kind, target = tool_target(tool, arguments)
    return ActivityEntry(
        kind=kind,
        tool=tool,
        target=target,
        ok=not end.error and not end.code,
        code=end.code,
        ms=round(seconds * 1_000),
        arguments=msgspec.json.encode(arguments).decode(),
        result=end.text,
    )


_MANY = 1_000_000  # tokens


class _OverBudget(Exception):
    """A budget is exceeded while the model speaks."""

    def __init__(self, words: str, usage: Usage, text: str) -> None:
        super().__init__(words)
        self.words, self.usage, self.text = words, usage, text


class _Watch:
    """Watches one exchange against the budgets around it. Services report usage at the end of an
    attempt; until then the length of what the model has said is a lower bound.
    """

    def __init__(self, job: Job, request: ModelRequest, catalogue: ModelCatalogue | None) -> None:
        self._job = job
        self._pricing = request.pricing
        self._catalogue = catalogue
        self._model = ""
        self._before = Usage()  # of attempts that have failed
        self._text: list[str] = []
        self._chars = 0
        self._next_look = LOOK_EVERY_CHARS

    def take(self, event: ModelEvent) -> None:
        if self._job.meter is UNLIMITED:
            return
        match event:
            case AttemptStarted(model=model):
                self._model, self._chars, self._text = model, 0, []
                self._next_look = LOOK_EVERY_CHARS
                self._report(self._before)
            case AttemptFailed(attempt=attempt):
                self._before = self._before + usage_of((attempt,))
                self._look(self._before)
            case TextDelta(text=text):
                self._text.append(text)
                self._say(len(text))
            case ThoughtDelta(text=text) | CallDelta(args=text):
                self._say(len(text))
            case _:
                pass

    def _say(self, chars: int) -> None:
        self._chars += chars
        if self._chars >= self._next_look:
            self._next_look = self._chars + LOOK_EVERY_CHARS
            self._look(self._before + self._estimate(self._chars // MOST_CHARS_PER_TOKEN))

    def _estimate(self, tokens: int) -> Usage:
        usd: float | None = None
        if self._catalogue is not None:
            usd = self._catalogue.price(self._model, 0, tokens, self._pricing)
        return Usage(output_tokens=tokens, usd=usd or 0.0, unpriced=int(usd is None))

    def _report(self, usage: Usage) -> str | None:
        """Record the usage so far. What the attempt under way costs is not known before its end."""
        unknown = 0 if self._is_free else 1
        return self._job.meter.report(
            msgspec.structs.replace(usage, unpriced=usage.unpriced or unknown)
        )

    @property
    def _is_free(self) -> bool:
        """Whether the model costs nothing, such as one on the user's own machine."""
        if self._catalogue is None or not self._model:
            return False
        return self._catalogue.price(self._model, _MANY, _MANY, self._pricing) == 0

    def _look(self, usage: Usage) -> None:
        words = self._report(usage)
        if words is not None:
            raise _OverBudget(words, usage, "".join(self._text))


async def _sent(job: Job, arguments: JsonValue) -> Answer:
    if job.talk is None:
        return Failed(error=Failure(type="tool", detail="there is nobody to write to"))
    told = await job.talk.use(SEND.name, arguments)
    if told.ok:
        return Done(output=told.text)
    return Failed(error=Failure(type="tool", detail=told.text), output=told.text)


def _storable(message: AssistantMessage) -> AssistantMessage:
    """The message without halves of characters, which neither a log nor a wire can carry."""
    parts = tuple(
        msgspec.structs.replace(part, args=_clean(part.args))
        if isinstance(part, CallPart)
        else msgspec.structs.replace(part, text=_clean(part.text))
        for part in message.parts
    )
    return AssistantMessage(parts=parts)


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


def _full_name(end: Answered) -> str:
    """The model that answered, by its own name, as `PROVIDER/NAME`."""
    provider = end.attempts[-1].model.partition("/")[0] if end.attempts else ""
    return f"{provider}/{end.model}" if provider and end.model else end.model


def _handed_in(end: Answered) -> str | None:
    """The result as JSON text: by the tool, or else in the words."""
    call = next((call for call in end.message.calls if call.tool == SUBMIT), None)
    return call.args if call is not None else _written_result(end.message.text)


def _written_result(text: str) -> str | None:
    """The JSON that a text is, or else the last JSON object in it."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return last_json_object(text)
    return text


def _unanswered(end: Unanswered, spent: list[Usage] | None = None) -> Failed:
    usage = _sum([*(spent or ()), usage_of(end.attempts)])
    return Failed(error=failure_of(end.failure), usage=usage)


def _sum(spent: list[Usage]) -> Usage:
    return sum(spent, Usage())
