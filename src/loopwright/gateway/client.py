"""The client: calls a model, retries, fails over, enforces the deadlines, and counts the cost.

`ModelSpeaker` is what the client library does for the gateway: one attempt at a time. It runs in a
task while `ModelAttempt` watches the deadlines. `after` decides from values alone what follows a
failed attempt. The client library is imported in a thread, when a model is first called; this
module must stay importable without it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import random
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from loopwright.gateway.models import (
    Catalogue,
    CompletedTurn,
    Delta,
    Endpoint,
    FailedTurn,
    ModelSpeaker,
    OnDelta,
    endpoint_of,
)
from loopwright.model.chat import (
    NOTHING_USED,
    AttemptFailed,
    AttemptStarted,
    CallDelta,
    CallLimits,
    ModelAnswer,
    ModelAttempt,
    ModelEvent,
    ModelFailure,
    ModelFailureKind,
    ModelRequest,
    ModelUsage,
    UnansweredRequest,
)
from loopwright.ports import Clock
from loopwright.prompts.conversation import call_ids, pair_calls, unique_ids

Dice: TypeAlias = Callable[[], float]
"""A random number from 0 up to 1."""

# Another attempt with the same model may succeed.
PASSING: tuple[ModelFailureKind, ...] = (
    "bad_answer",
    "first_token_timeout",
    "idle_timeout",
    "network",
    "overloaded",
    "rate_limited",
    "server",
)
# The same model will fail again, another one may succeed. A failure in neither list ends the
# exchange: a prompt that does not fit, an invalid request, refused content, no time left.
ELSEWHERE: tuple[ModelFailureKind, ...] = ("auth", "no_model", "no_price", "quota")


@dataclass(frozen=True, slots=True)
class RetryModel:
    """The same model again, after a pause."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class TryNextModel:
    """The next model of the list, at once."""


@dataclass(frozen=True, slots=True)
class EndExchange:
    """No further attempt."""


Move: TypeAlias = RetryModel | TryNextModel | EndExchange


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeProgress:
    """The position of an exchange: attempts with this model, models after it, and the time now."""

    tries: int
    models_left: int
    now_ms: int


def decide_next_move(
    failure: ModelFailure, standing: ExchangeProgress, limits: CallLimits, dice: Dice
) -> Move:
    """What to do after a failed attempt."""
    if failure.kind in PASSING and standing.tries < limits.tries:
        wait = _pause(failure, standing, limits, dice)
        if wait <= limits.longest_wait_ms:
            return RetryModel(wait)
    elif failure.kind not in PASSING + ELSEWHERE:
        return EndExchange()
    return TryNextModel() if standing.models_left else EndExchange()


def _pause(
    failure: ModelFailure, standing: ExchangeProgress, limits: CallLimits, dice: Dice
) -> int:
    """A delay that doubles with each attempt, half of it random, so that clients that failed
    together do not return together. A delay that the service states is used, and a small random
    part is added for the same reason.
    """
    full = min(limits.cap_ms, limits.base_ms * 2 ** min(standing.tries - 1, 20))
    if failure.retry_at_ms is None:
        return int(full / 2 + dice() * full / 2)
    return max(failure.retry_at_ms - standing.now_ms, 0) + int(dice() * limits.base_ms)


def most_useful_failure(failures: Sequence[ModelFailure]) -> ModelFailure:
    """The most useful of the last failures of all models: the one with the earliest time that a
    service stated, else the newest.
    """
    timed = [one for one in failures if one.retry_at_ms is not None]
    return min(timed, key=lambda one: one.retry_at_ms or 0) if timed else failures[-1]


LONGEST_ANSWER = 16_000_000  # characters; a model that never stops is ended before memory runs out

_WORDS: dict[ModelFailureKind, str] = {
    "first_token_timeout": "no output arrived within {first_token_ms} ms",
    "idle_timeout": "it fell silent for {idle_ms} ms",
    "wall_timeout": "it was not done within {total_ms} ms, all tries together",
    "bad_answer": "the answer did not end",
}


class TimedAttempt:
    """Deltas as they arrive, by iteration; afterwards `outcome` says how the attempt ended.

    The deadline for the first token starts with the attempt, the one for silence with each delta.
    `stop` ends the attempt from outside, with a reason; `close` ends it without one.
    """

    def __init__(
        self,
        speak: Callable[[OnDelta], Awaitable[CompletedTurn | FailedTurn]],
        clock: Clock,
        limits: CallLimits,
    ) -> None:
        self._speak = speak
        self._clock = clock
        self._limits = limits
        self._queue: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._stopped: ModelFailureKind | None = None
        self._size = 0
        self._outcome: CompletedTurn | FailedTurn | None = None
        self._error: Exception | None = None
        self._timer = self._arm(limits.first_token_ms, "first_token_timeout")
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def outcome(self) -> CompletedTurn | FailedTurn:
        """How it ended; valid when the iteration is over."""
        if self._outcome is None:
            raise self._error or RuntimeError("the attempt is still under way")
        return self._outcome

    def __aiter__(self) -> "TimedAttempt":
        return self

    async def __anext__(self) -> Delta:
        delta = await self._queue.get()
        if delta is None:
            raise StopAsyncIteration
        return delta

    def stop(self, why: ModelFailureKind) -> None:
        """End it, with a reason that becomes its outcome."""
        if self._stopped is None and self._outcome is None:
            self._stopped = why
            self._task.cancel()

    async def close(self) -> None:
        """End it if it is still running, and wait until its connection is closed."""
        self._timer()
        self._task.cancel()
        await asyncio.wait({self._task})

    def _arm(self, ms: int, why: ModelFailureKind) -> Callable[[], None]:
        return self._clock.call_after(ms, lambda: self.stop(why))

    def _on_delta(self, delta: Delta) -> None:
        self._timer()
        self._timer = self._arm(self._limits.idle_ms, "idle_timeout")
        self._queue.put_nowait(delta)
        self._size += len(delta.args if isinstance(delta, CallDelta) else delta.text)
        if self._size > LONGEST_ANSWER:
            self.stop("bad_answer")

    async def _run(self) -> None:
        try:
            self._outcome = await self._speak(self._on_delta)
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
            self._outcome = self._cut_short(self._stopped)
        except Exception as error:
            self._error = error  # a defect of ours: raised when the outcome is read
        finally:
            self._timer()
            self._queue.put_nowait(None)

    def _cut_short(self, why: ModelFailureKind) -> FailedTurn:
        limits = self._limits
        detail = _WORDS[why].format(
            first_token_ms=limits.first_token_ms, idle_ms=limits.idle_ms, total_ms=limits.total_ms
        )
        return FailedTurn(
            failure=ModelFailure(kind=why, detail=detail), usage=ModelUsage(measured=False)
        )


@dataclass(slots=True)
class Exchange:
    """The progress of one exchange."""

    request: ModelRequest
    began_ms: int
    model: int = 0  # index of the current model
    tries: int = 0  # of that model
    attempts: list[ModelAttempt] = field(default_factory=list)
    # the newest failure of each model
    failures: dict[str, ModelFailure] = field(default_factory=dict)
    trial: TimedAttempt | None = None
    late: bool = False
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spec(self) -> str:
        return self.request.models[self.model]

    def time_is_up(self) -> None:
        """The deadline for the whole exchange has passed."""
        self.late = True
        self.waiting.set()
        if self.trial is not None:
            self.trial.stop("wall_timeout")


class Gateway:
    """The port `ModelClient` over real services. Belongs to one event loop; close it with the loop.

    Keys are read from `env` when a model is called, and are not stored. Time and randomness are
    injected. `speaker` is for tests of this class alone; without it the library is imported.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        clock: Clock,
        dice: Dice = random,
        speaker: ModelSpeaker | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        self._env = env
        self._clock = clock
        self._dice = dice
        self._speaker = speaker
        self._catalogue = catalogue or Catalogue(env=env)
        self._loading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def load(self, models: Iterable[str]) -> None:
        """Import what these models need, seconds of CPU in a thread, in advance."""
        speaker = await self._library()
        for spec in models:
            to = endpoint_of(spec, self._env)
            if isinstance(to, Endpoint):
                await speaker.load(to)

    async def close(self) -> None:
        """Close every connection."""
        if self._speaker is not None:
            await self._speaker.close()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the models and yield events; see the port."""
        if not request.models:
            nobody = ModelFailure(kind="no_model", detail="no model was named")
            yield UnansweredRequest(failure=nobody, attempts=())
            return
        request = _sendable(request)
        exchange = Exchange(request, self._clock.now_ms())
        stop_timer = self._clock.call_after(request.limits.total_ms, exchange.time_is_up)
        try:
            async with aclosing(self._attempts(exchange)) as events:
                async for event in events:
                    yield event
        finally:
            stop_timer()
            if exchange.trial is not None:
                await exchange.trial.close()

    async def _attempts(self, exchange: Exchange) -> AsyncGenerator[ModelEvent, None]:
        while True:
            exchange.tries += 1
            number = len(exchange.attempts) + 1
            yield AttemptStarted(number=number, model=exchange.spec)
            began = self._clock.now_ms()
            trial = await self._start(exchange)
            if isinstance(trial, TimedAttempt):
                exchange.trial = trial
                async for delta in trial:
                    yield delta
                exchange.trial = None
                outcome = trial.outcome
            else:
                outcome = trial
            ms = self._clock.now_ms() - began
            if isinstance(outcome, CompletedTurn):
                yield self._answered(exchange, outcome, ms)
                return
            failed = self._failed(exchange, outcome, ms)
            yield failed
            if failed.wait_ms is None:
                yield self._unanswered(exchange)
                return
            await self.pause(exchange, failed.wait_ms)
            if exchange.late:
                yield self._unanswered(exchange)
                return

    async def _start(self, exchange: Exchange) -> TimedAttempt | FailedTurn:
        """Start an attempt, or return the reason why it cannot start."""
        request, spec = exchange.request, exchange.spec
        to = endpoint_of(spec, self._env)
        if isinstance(to, ModelFailure):
            return FailedTurn(failure=to, usage=NOTHING_USED)
        if not await self._affordable(spec, request):
            detail = (
                f"the price of {spec} is not known, and where money is limited such a model is not "
                "asked; say what it costs with options.unknown_price of the agent ({input_usd, "
                "output_usd} for a million tokens), or `allow`"
            )
            failure = ModelFailure(kind="no_price", model=spec, detail=detail)
            return FailedTurn(failure=failure, usage=NOTHING_USED)
        speaker = await self._library()
        if exchange.late:
            failure = ModelFailure(kind="wall_timeout", model=spec, detail="no time was left")
            return FailedTurn(failure=failure, usage=NOTHING_USED)
        return TimedAttempt(_line(speaker, to, request), self._clock, request.limits)

    async def _library(self) -> ModelSpeaker:
        """The speaker over the client library; importing it takes a second, so this happens in a
        thread.
        """
        async with self._loading:
            if self._speaker is None:
                self._speaker = await asyncio.to_thread(_library_speaker, self._clock)
        return self._speaker

    async def _affordable(self, spec: str, request: ModelRequest) -> bool:
        """Whether the policy for unknown prices allows a model."""
        if request.pricing.unknown != "deny":
            return True
        return await asyncio.to_thread(self._catalogue.knows, spec)

    def _answered(self, exchange: Exchange, spoken: CompletedTurn, ms: int) -> ModelAnswer:
        request = exchange.request
        usage = self._catalogue.priced(exchange.spec, spoken.usage, request.pricing)
        number = len(exchange.attempts) + 1
        exchange.attempts.append(
            ModelAttempt(number=number, model=exchange.spec, usage=usage, ms=ms)
        )
        return ModelAnswer(
            message=unique_ids(spoken.message, call_ids(request.messages)),
            finish=spoken.finish,
            model=spoken.model,
            attempts=tuple(exchange.attempts),
        )

    def _failed(self, exchange: Exchange, fallen: FailedTurn, ms: int) -> AttemptFailed:
        """Record a failed attempt and move to the next one, if there is one."""
        request, spec = exchange.request, exchange.spec
        failure = _named(fallen.failure, spec)
        usage = fallen.usage
        if usage != NOTHING_USED:
            usage = self._catalogue.priced(spec, usage, request.pricing)
        attempt = ModelAttempt(
            number=len(exchange.attempts) + 1, model=spec, usage=usage, ms=ms, failure=failure
        )
        exchange.attempts.append(attempt)
        exchange.failures[spec] = failure
        standing = ExchangeProgress(
            tries=exchange.tries,
            models_left=len(request.models) - exchange.model - 1,
            now_ms=self._clock.now_ms(),
        )
        match decide_next_move(failure, standing, request.limits, self._dice):
            case RetryModel(wait_ms=wait):
                return AttemptFailed(attempt=attempt, wait_ms=wait)
            case TryNextModel():
                exchange.model += 1
                exchange.tries = 0
                return AttemptFailed(attempt=attempt, wait_ms=0)
            case _:
                return AttemptFailed(attempt=attempt)

    def _unanswered(self, exchange: Exchange) -> UnansweredRequest:
        """The end without an answer. A time-out, or a failure that no other model can fix, is
        reported as it is; otherwise the most useful failure.
        """
        last = exchange.attempts[-1].failure
        assert last is not None  # reached only after failed attempts
        if exchange.late and last.kind != "wall_timeout":
            detail = f"the time was up while waiting for another try; before: {last.detail}"
            late = ModelFailure(
                kind="wall_timeout", model=last.model, detail=detail, retry_at_ms=last.retry_at_ms
            )
            return UnansweredRequest(failure=late, attempts=tuple(exchange.attempts))
        final = last.kind in ("bad_request", "overflow", "refused", "wall_timeout")
        failure = last if final else most_useful_failure(list(exchange.failures.values()))
        return UnansweredRequest(failure=failure, attempts=tuple(exchange.attempts))

    async def pause(self, exchange: Exchange, ms: int) -> None:
        """Wait between two attempts, on the clock, or until the deadline for the whole exchange."""
        if ms <= 0 or exchange.late:
            return
        exchange.waiting.clear()
        stop_timer = self._clock.call_after(ms, exchange.waiting.set)
        try:
            await exchange.waiting.wait()
        finally:
            stop_timer()


def _line(
    speaker: ModelSpeaker, to: Endpoint, request: ModelRequest
) -> Callable[[OnDelta], Awaitable[CompletedTurn | FailedTurn]]:
    """The parameters of an attempt."""
    return lambda on_delta: speaker.speak(to, request, on_delta)


def _sendable(request: ModelRequest) -> ModelRequest:
    """The request with a history that every protocol accepts."""
    return msgspec.structs.replace(request, messages=pair_calls(request.messages))


def _named(failure: ModelFailure, spec: str) -> ModelFailure:
    return failure if failure.model else msgspec.structs.replace(failure, model=spec)


def _library_speaker(clock: Clock) -> ModelSpeaker:
    """The speaker over the client library, which takes a second to import."""
    from loopwright.gateway.library.speaker import speaker  # noqa: PLC0415 - see above

    return speaker(clock)
