"""The client: asks a model, tries again, fails over, keeps the deadlines, and counts the cost."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import import_module
from random import random
from types import TracebackType
from typing import Self, cast

import msgspec

from loopwright.agents.pairing import call_ids, paired, unique_ids
from loopwright.gateway.catalogue import Catalogue
from loopwright.gateway.moves import Again, Dice, Next, Standing, after, worth_telling
from loopwright.gateway.speaking import Fallen, Said, Speaker, Spoken
from loopwright.gateway.specs import Endpoint, endpoint_of
from loopwright.gateway.trial import Trial
from loopwright.model.exchange import (
    NOTHING_USED,
    Answered,
    Attempt,
    AttemptFailed,
    AttemptStarted,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    Unanswered,
)
from loopwright.ports import Clock

LIBRARY = "loopwright.gateway.library"


@dataclass(slots=True)
class Exchange:
    """How far one exchange has come."""

    request: ModelRequest
    began_ms: int
    model: int = 0  # index of the model that is asked
    tries: int = 0  # of that model
    attempts: list[Attempt] = field(default_factory=list)
    failures: dict[str, ModelFailure] = field(default_factory=dict)  # the newest of each model
    trial: Trial | None = None
    late: bool = False
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spec(self) -> str:
        return self.request.models[self.model]

    def time_is_up(self) -> None:
        """The deadline for everything has passed."""
        self.late = True
        self.waiting.set()
        if self.trial is not None:
            self.trial.stop("wall_timeout")


class Gateway:
    """The port `ModelClient` over real services. Belongs to one event loop; close it with it.

    Keys are read from `env` when a model is asked, and are kept nowhere else. Time and chance are
    passed in. `speaker` is for tests of this class alone; without it the library is loaded.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        clock: Clock,
        dice: Dice = random,
        speaker: Speaker | None = None,
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
        """Load what these models need, seconds of CPU in a thread, before they are needed."""
        speaker = await self._library()
        for spec in models:
            to = endpoint_of(spec, self._env)
            if isinstance(to, Endpoint):
                await speaker.load(to)

    async def close(self) -> None:
        """Give back every connection."""
        if self._speaker is not None:
            await self._speaker.close()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask, and tell what happens; see the port."""
        if not request.models:
            nobody = ModelFailure(kind="no_model", detail="no model was named")
            yield Unanswered(failure=nobody, attempts=())
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
            if isinstance(trial, Trial):
                exchange.trial = trial
                async for delta in trial:
                    yield delta
                exchange.trial = None
                outcome = trial.outcome
            else:
                outcome = trial
            ms = self._clock.now_ms() - began
            if isinstance(outcome, Spoken):
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

    async def _start(self, exchange: Exchange) -> Trial | Fallen:
        """Begin an attempt, or say why it cannot begin."""
        request, spec = exchange.request, exchange.spec
        to = endpoint_of(spec, self._env)
        if isinstance(to, ModelFailure):
            return Fallen(failure=to, usage=NOTHING_USED)
        if not await self._affordable(spec, request):
            detail = (
                f"the price of {spec} is not known, and where money is limited such a model is not "
                "asked; say what it costs with options.unknown_price of the agent ({input_usd, "
                "output_usd} for a million tokens), or `allow`"
            )
            failure = ModelFailure(kind="no_price", model=spec, detail=detail)
            return Fallen(failure=failure, usage=NOTHING_USED)
        speaker = await self._library()
        if exchange.late:
            failure = ModelFailure(kind="wall_timeout", model=spec, detail="no time was left")
            return Fallen(failure=failure, usage=NOTHING_USED)
        return Trial(_line(speaker, to, request), self._clock, request.limits)

    async def _library(self) -> Speaker:
        """The speaker over the client library; importing it takes a second, so a thread does."""
        async with self._loading:
            if self._speaker is None:
                made = await asyncio.to_thread(lambda: import_module(LIBRARY).speaker(self._clock))
                self._speaker = cast(Speaker, made)
        return self._speaker

    async def _affordable(self, spec: str, request: ModelRequest) -> bool:
        """Whether the policy for unknown prices lets a model be asked."""
        if request.pricing.unknown != "deny":
            return True
        return await asyncio.to_thread(self._catalogue.knows, spec)

    def _answered(self, exchange: Exchange, spoken: Spoken, ms: int) -> Answered:
        request = exchange.request
        usage = self._catalogue.priced(exchange.spec, spoken.usage, request.pricing)
        number = len(exchange.attempts) + 1
        exchange.attempts.append(Attempt(number=number, model=exchange.spec, usage=usage, ms=ms))
        return Answered(
            message=unique_ids(spoken.message, call_ids(request.messages)),
            finish=spoken.finish,
            model=spoken.model,
            attempts=tuple(exchange.attempts),
        )

    def _failed(self, exchange: Exchange, fallen: Fallen, ms: int) -> AttemptFailed:
        """Note a failed attempt and move to the next one, if there is to be one."""
        request, spec = exchange.request, exchange.spec
        failure = _named(fallen.failure, spec)
        usage = fallen.usage
        if usage != NOTHING_USED:
            usage = self._catalogue.priced(spec, usage, request.pricing)
        attempt = Attempt(
            number=len(exchange.attempts) + 1, model=spec, usage=usage, ms=ms, failure=failure
        )
        exchange.attempts.append(attempt)
        exchange.failures[spec] = failure
        standing = Standing(
            tries=exchange.tries,
            models_left=len(request.models) - exchange.model - 1,
            now_ms=self._clock.now_ms(),
        )
        match after(failure, standing, request.limits, self._dice):
            case Again(wait_ms=wait):
                return AttemptFailed(attempt=attempt, wait_ms=wait)
            case Next():
                exchange.model += 1
                exchange.tries = 0
                return AttemptFailed(attempt=attempt, wait_ms=0)
            case _:
                return AttemptFailed(attempt=attempt)

    def _unanswered(self, exchange: Exchange) -> Unanswered:
        """The end without an answer. Time that ran out, or a failure that no other model can
        mend, is told as it is; else the failure that says most.
        """
        last = exchange.attempts[-1].failure
        assert last is not None  # only failed attempts lead here
        if exchange.late and last.kind != "wall_timeout":
            detail = f"the time was up while waiting for another try; before: {last.detail}"
            late = ModelFailure(
                kind="wall_timeout", model=last.model, detail=detail, retry_at_ms=last.retry_at_ms
            )
            return Unanswered(failure=late, attempts=tuple(exchange.attempts))
        final = last.kind in ("bad_request", "overflow", "refused", "wall_timeout")
        failure = last if final else worth_telling(list(exchange.failures.values()))
        return Unanswered(failure=failure, attempts=tuple(exchange.attempts))

    async def pause(self, exchange: Exchange, ms: int) -> None:
        """Wait between two tries, on the clock, or until the deadline for everything."""
        if ms <= 0 or exchange.late:
            return
        exchange.waiting.clear()
        stop_timer = self._clock.call_after(ms, exchange.waiting.set)
        try:
            await exchange.waiting.wait()
        finally:
            stop_timer()


def _line(
    speaker: Speaker, to: Endpoint, request: ModelRequest
) -> Callable[[Said], Awaitable[Spoken | Fallen]]:
    """What a trial is to do."""
    return lambda said: speaker.speak(to, request, said)


def _sendable(request: ModelRequest) -> ModelRequest:
    """The request with a history that every wire accepts."""
    return msgspec.structs.replace(request, messages=paired(request.messages))


def _named(failure: ModelFailure, spec: str) -> ModelFailure:
    return failure if failure.model else msgspec.structs.replace(failure, model=spec)
