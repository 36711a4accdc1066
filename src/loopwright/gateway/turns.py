"""Turns: call a chat model for the next step of a conversation, and run the tools that it requests.

A job becomes a request to a model, and an exchange becomes an answer that the engine understands;
the engine decides what follows from a turn. A tool call whose end was not recorded is repeated only
if that is harmless.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Literal, TypeAlias, assert_never

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.kernel.bodies.conversation import SUBMIT
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.event_parts import (
    AgentCall,
    CommandCall,
    Failure,
    LookupCall,
    MatchCall,
    ModelCall,
    SleepCall,
    SnapshotCall,
    ToolCall,
)
from loopwright.kernel.events import Usage
from loopwright.model.access import tool_target
from loopwright.model.chat import (
    AssistantMessage,
    AttemptFailed,
    AttemptStarted,
    CallDelta,
    CallLimits,
    CallPart,
    ChatTool,
    DecodingOptions,
    ModelAnswer,
    ModelAttempt,
    ModelEnd,
    ModelEvent,
    ModelFailure,
    ModelFailureKind,
    ModelRequest,
    ModelTurn,
    PricePolicy,
    Pricing,
    RequestedCall,
    TextDelta,
    ThoughtDelta,
    UnansweredRequest,
    UserMessage,
    encode_turn,
    total_usage,
)
from loopwright.model.plan import CHAT, Agent
from loopwright.model.policy import FailureKind
from loopwright.model.record import JsonValue
from loopwright.ports import (
    UNLIMITED,
    ActivityEntry,
    AgentTools,
    Answer,
    Bus,
    Delta,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    ModelCatalogue,
    ModelClient,
    ToolEnd,
)
from loopwright.prompts.conversation import HAND_IN, SEND, submit_tool

DEFAULT_WALL_MS = 900_000
MOST_TOKENS = 1_000_000_000_000  # larger counts are impossible

_POLICIES: dict[str, PricePolicy] = {"allow": "allow", "deny": "deny"}
_KINDS: dict[ModelFailureKind, FailureKind] = {
    "auth": "not_signed_in",
    "bad_answer": "overloaded",
    "bad_request": "bad_input",
    "first_token_timeout": "idle_timeout",
    "idle_timeout": "idle_timeout",
    "network": "overloaded",
    "no_model": "not_found",
    "no_price": "budget_limit",
    "overflow": "overflow",
    "overloaded": "overloaded",
    "quota": "budget_limit",
    "rate_limited": "rate_limited",
    "refused": "agent",
    "server": "overloaded",
    "wall_timeout": "wall_timeout",
}


def models_of(agent: Agent) -> tuple[str, ...]:
    """The models of an agent, in the order in which they are tried."""
    named = (agent.spec or "").removeprefix(CHAT)
    return tuple(name.strip() for name in named.split(",") if name.strip())


def request_of(job: EffectJob, tools: tuple[ChatTool, ...]) -> ModelRequest:
    """The request to the model for a job."""
    agent = job.agent or Agent()
    idle = job.limits.idle_ms or CallLimits().idle_ms
    return ModelRequest(
        models=models_of(agent),
        messages=job.chat.messages,
        system=agent.system if job.chat.system is None else job.chat.system,
        tools=tools,
        decoding=DecodingOptions(
            temperature=agent.temperature,
            top_p=_share(agent.options.get("top_p")),
            max_output_tokens=_whole(agent.options.get("max_output_tokens")),
            seed=_whole(agent.options.get("seed")),
        ),
        limits=CallLimits(
            first_token_ms=idle, idle_ms=idle, total_ms=job.limits.wall_ms or DEFAULT_WALL_MS
        ),
        pricing=pricing_of(agent.options, budgeted=job.limits.budgeted and job.limits.covered),
        key=f"{job.run}/{job.effect}",
    )


def _share(value: JsonValue) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= 1 else None


def _whole(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def pricing_of(options: Mapping[str, JsonValue], *, budgeted: bool) -> Pricing:
    """The policy for an unknown price. If money is limited and no policy is set, such a model is
    not called: a limit that cannot count is not a limit.
    """
    text = options.get("unknown_price")
    default: PricePolicy = "deny" if budgeted else "allow"
    if isinstance(text, dict):
        return Pricing(
            unknown="assume",
            input_usd=_number(text.get("input_usd")),
            output_usd=_number(text.get("output_usd")),
        )
    return Pricing(unknown=_POLICIES.get(text, default) if isinstance(text, str) else default)


def _number(value: JsonValue) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def is_measured(attempts: tuple[ModelAttempt, ...]) -> bool:
    """Whether the service reported the usage of every attempt in possible numbers."""
    return all(one.usage.measured and _is_count(one.usage.output_tokens) for one in attempts)


def _is_count(tokens: int) -> bool:
    return 0 <= tokens < MOST_TOKENS


def usage_of(attempts: tuple[ModelAttempt, ...]) -> Usage:
    """The usage of all attempts; an unknown price is counted as unknown, never as zero."""
    whole = total_usage(attempts)
    return Usage(
        input_tokens=min(max(whole.input_tokens, 0), MOST_TOKENS),
        output_tokens=min(max(whole.output_tokens, 0), MOST_TOKENS),
        usd=round(max(sum(one.usage.usd or 0.0 for one in attempts), 0.0), 9),
        unpriced=sum(one.usage.usd is None for one in attempts),
        cache_read_tokens=min(max(whole.cache_read_tokens, 0), MOST_TOKENS),
        cache_write_tokens=min(max(whole.cache_write_tokens, 0), MOST_TOKENS),
    )


def failure_of(failure: ModelFailure) -> Failure:
    """Why there is no turn, as a failure of the engine."""
    kind = _KINDS[failure.kind]
    until = failure.retry_at_ms if kind == "rate_limited" else None
    model = f"{failure.model}: " if failure.model and failure.model not in failure.detail else ""
    return Failure(type=kind, detail=f"{model}{failure.detail or failure.kind}", resets_at=until)


ToolsOf: TypeAlias = Callable[[EffectJob], AgentTools]
SchemaProblem: TypeAlias = Callable[[dict[str, JsonValue], JsonValue], str | None]

INTERRUPTED = (
    "the call was interrupted, and it is not known whether it had an effect; look before you do it "
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


class ModelTurns:
    """A performer of everything that agents do that are chat models."""

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

    async def perform(self, job: EffectJob) -> Answer:
        try:
            match job.call:
                case ModelCall(role="summary"):
                    return await self._summary(job)
                case ModelCall():
                    return await self._turn(job)
                case ToolCall() as call:
                    return await self._tool(job, call)
                case (
                    AgentCall()
                    | CommandCall()
                    | SleepCall()
                    | LookupCall()
                    | MatchCall()
                    | SnapshotCall()
                ):
                    return await self._answer(job)
                case _:
                    assert_never(job.call)
        except _OverBudget as over:
            failure = Failure(type="budget_limit", detail=over.words, outer=True)
            return EffectFailure(error=failure, output=over.text, usage=over.usage)
        except LoopwrightError as error:  # of the tools granted to the agent
            words = f"{error.message}; {error.hint}" if error.hint else error.message
            return EffectFailure(error=Failure(type="not_found", detail=words))

    # -- the model -----------------------------------------------------------------------------

    async def _turn(self, job: EffectJob) -> Answer:
        """The next turn of a conversation."""
        tools = self._tools_of(job)
        offered: tuple[ChatTool, ...] = ()
        if not job.chat.forced:
            offer = await tools.specs()
            if offer.problems:  # continuing without the author's prices would give wrong results
                return EffectFailure(
                    error=Failure(type="not_found", detail="; ".join(offer.problems))
                )
            offered = offer.tools
        end = await self._ask(job, request_of(job, (*offered, *job.chat.offers)))
        if isinstance(end, UnansweredRequest):
            return _unanswered(end)
        usage = usage_of(end.attempts)
        # A model on this machine costs nothing, so that a limit in money needs no count of tokens.
        is_limited = job.limits.counted or (job.limits.budgeted and usage.unpriced)
        if is_limited and not is_measured(end.attempts):
            return EffectFailure(
                error=Failure(type="budget_limit", detail=UNMEASURED),
                output=end.message.text,
                usage=usage,
            )
        calls = [await self._wanted(job, tools, call) for call in end.message.calls]
        if calls and end.finish == "length":
            calls[-1] = msgspec.structs.replace(calls[-1], problem=CUT_OFF)
        form = next((spec.schema for spec in job.chat.offers if spec.name == SUBMIT), None)
        if not calls and form is not None:
            written = _written_result(end.message.text)
            problem = self._unfit(form, written)
            if problem is not None or written is None:
                failure = Failure(type="bad_result", detail=problem or NOT_HANDED_IN)
                return EffectFailure(error=failure, output=end.message.text, usage=usage)
            # No id: the model made no call, so the conversation has no result for one.
            calls.append(RequestedCall(id="", tool=SUBMIT, arguments=msgspec.json.decode(written)))
        turn = ModelTurn(
            message=end.message,
            calls=tuple(calls),
            finish=end.finish,
            model=_full_name(end),
            task=job.chat.task,
        )
        return EffectSuccess(output=end.message.text, result=encode_turn(turn), usage=usage)

    async def _summary(self, job: EffectJob) -> Answer:
        end = await self._ask(job, request_of(job, ()))
        if isinstance(end, UnansweredRequest):
            return _unanswered(end)
        return EffectSuccess(output=end.message.text, usage=usage_of(end.attempts))

    async def _answer(self, job: EffectJob) -> Answer:
        """A single answer: of a judge, a coordinator, or an agent that changes a rejected
        result.
        """
        assert isinstance(job.call, AgentCall)
        job.chat = msgspec.structs.replace(job.chat, messages=(UserMessage(text=job.prompt.text),))
        spent: list[Usage] = []
        tools = (submit_tool(job.prompt.schema),) if job.prompt.schema is not None else ()
        text = ""
        for attempt in range(2):
            end = await self._ask(job, request_of(job, tools))
            if isinstance(end, UnansweredRequest):
                return _unanswered(end, spent)
            spent.append(usage_of(end.attempts))
            text, result = end.message.text, _handed_in(end)
            if job.prompt.schema is None:
                return EffectSuccess(output=text, usage=_sum(spent))
            problem = self._unfit(job.prompt.schema, result)
            if problem is None:
                return EffectSuccess(output=text, result=result, usage=_sum(spent))
            if attempt == 0:
                reply = f"{problem}\n\n{HAND_IN}"
                messages = (*job.chat.messages, UserMessage(text=reply))
                job.chat = msgspec.structs.replace(job.chat, messages=messages)
        return EffectFailure(
            error=Failure(type="bad_result", detail=problem or NOT_HANDED_IN),
            output=text,
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

    async def _ask(self, job: EffectJob, request: ModelRequest) -> ModelEnd:
        watch = _Watch(job, request, self._catalogue)
        async with aclosing(self._client.stream(request)) as events:
            async for event in events:
                watch.take(event)
                match event:
                    case TextDelta(text=text):
                        self._publish(job, "text", _clean(text))
                    case CallDelta(tool=tool) if tool:
                        self._publish(job, "tool", tool)
                    case AttemptFailed(attempt=attempt, wait_ms=wait) if wait is not None:
                        failure = attempt.failure
                        words = failure.detail if failure is not None else ""
                        self._publish(job, "note", f"{attempt.model}: {words}; trying again")
                    case ModelAnswer():
                        return msgspec.structs.replace(event, message=_storable(event.message))
                    case UnansweredRequest():
                        return event
                    case AttemptStarted() | AttemptFailed() | ThoughtDelta() | CallDelta():
                        pass
                    case _:
                        assert_never(event)
        raise AssertionError("an exchange ends with an answer or a failure")

    def _publish(self, job: EffectJob, kind: Literal["text", "tool", "note"], text: str) -> None:
        self._bus.publish(Delta(run=job.run, effect=job.effect, kind=kind, text=text))

    # -- its tools -----------------------------------------------------------------------------

    async def _wanted(self, job: EffectJob, tools: AgentTools, call: CallPart) -> RequestedCall:
        """A call as the engine sees it."""
        own = next((spec for spec in job.chat.offers if spec.name == call.tool), None)
        if own is None:
            return await tools.resolve(call)
        try:
            value: JsonValue = msgspec.json.decode(call.args.strip() or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            problem = f"the arguments are not JSON: {error}"
            return RequestedCall(id=call.id, tool=call.tool, arguments=call.args, problem=problem)
        unfit = self._schema_problem(own.schema, value)
        problem = f"the arguments do not fit: {unfit}" if unfit is not None else ""
        return RequestedCall(id=call.id, tool=call.tool, arguments=value, problem=problem, paths=())

    async def _tool(self, job: EffectJob, call: ToolCall) -> Answer:
        arguments: JsonValue = msgspec.json.decode(job.chat.arguments)
        if call.tool == SEND.name:
            reply = await _sent(job, arguments)
            job.activity.record(
                ActivityEntry(
                    kind="tool",
                    tool=call.tool,
                    ok=isinstance(reply, EffectSuccess),
                    arguments=job.chat.arguments,
                    result=reply.output,
                )
            )
            return reply
        tools = self._tools_of(job)
        if job.again and not tools.repeatable(call.tool):
            return EffectFailure(error=Failure(type="interrupted", detail=INTERRUPTED))
        self._publish(job, "tool", call.tool)
        key = f"{job.run}/{job.effect}"
        began = time.monotonic()
        end = await tools.run(call.tool, arguments, approved=job.chat.approved, key=key)
        job.activity.record(_entry(call.tool, arguments, end, time.monotonic() - began))
        if end.error:
            return EffectFailure(
                error=Failure(type="tool", detail=end.text[:400]), output=end.text, code=end.code
            )
        return EffectSuccess(output=end.text, code=end.code)


def _entry(tool: str, arguments: JsonValue, end: ToolEnd, seconds: float) -> ActivityEntry:
    """A tool call as activity; a command with an exit code other than 0 has failed."""
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
    """A budget is exceeded while the model is answering."""

    def __init__(self, words: str, usage: Usage, text: str) -> None:
        super().__init__(words)
        self.words, self.usage, self.text = words, usage, text


class _Watch:
    """Watches one exchange against the budgets around it. Services report usage at the end of an
    attempt; until then the length of the output is a lower bound.
    """

    def __init__(
        self, job: EffectJob, request: ModelRequest, catalogue: ModelCatalogue | None
    ) -> None:
        self._job = job
        self._pricing = request.pricing
        self._catalogue = catalogue
        self._model = ""
        self._before = Usage()  # of failed attempts
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
                self._publish_text(len(text))
            case ThoughtDelta(text=text) | CallDelta(args=text):
                self._publish_text(len(text))
            case ModelAnswer() | UnansweredRequest():
                pass
            case _:
                assert_never(event)

    def _publish_text(self, chars: int) -> None:
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
        """Record the usage so far. The cost of the current attempt is not known before its end."""
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


async def _sent(job: EffectJob, arguments: JsonValue) -> Answer:
    if job.talk is None:
        return EffectFailure(
            error=Failure(type="tool", detail="there is no recipient for messages")
        )
    reply = await job.talk.use(SEND.name, arguments)
    if reply.ok:
        return EffectSuccess(output=reply.text)
    return EffectFailure(error=Failure(type="tool", detail=reply.text), output=reply.text)


def _storable(message: AssistantMessage) -> AssistantMessage:
    """The message without unpaired surrogates, which neither a log nor a protocol can carry."""
    parts = tuple(
        msgspec.structs.replace(part, args=_clean(part.args))
        if isinstance(part, CallPart)
        else msgspec.structs.replace(part, text=_clean(part.text))
        for part in message.parts
    )
    return AssistantMessage(parts=parts)


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


def _full_name(end: ModelAnswer) -> str:
    """The model that answered, by its own name, as `PROVIDER/NAME`."""
    provider = end.attempts[-1].model.partition("/")[0] if end.attempts else ""
    return f"{provider}/{end.model}" if provider and end.model else end.model


def _handed_in(end: ModelAnswer) -> str | None:
    """The result as JSON text: submitted with the tool, or else in the text."""
    call = next((call for call in end.message.calls if call.tool == SUBMIT), None)
    return call.args if call is not None else _written_result(end.message.text)


def _written_result(text: str) -> str | None:
    """A text as JSON, or else the last JSON object in it."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return last_json_object(text)
    return text


def _unanswered(end: UnansweredRequest, spent: list[Usage] | None = None) -> EffectFailure:
    usage = _sum([*(spent or ()), usage_of(end.attempts)])
    return EffectFailure(error=failure_of(end.failure), usage=usage)


def _sum(spent: list[Usage]) -> Usage:
    return sum(spent, Usage())
