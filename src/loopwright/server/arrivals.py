"""Messages of incoming hooks become runs: in the order in which they came, so many at once."""

import asyncio
import contextlib
import logging
from dataclasses import replace

from loopwright.app.incoming import Arrival, Hooks, Incoming
from loopwright.app.preparing import Wish, prepare_file
from loopwright.app.rights import Rights
from loopwright.app.run_admission import acting_as
from loopwright.app.service import row_ended
from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError, VersionConflict
from loopwright.server.context import Context
from loopwright.server.enduring import Enduring
from loopwright.server.logs import NAME
from loopwright.server.rates import Rates
from loopwright.server.refusals import Refusal
from loopwright.server.texts import check_texts

_LOG = logging.getLogger(NAME)
QUEUE = 200  # messages of a hook that wait for their turn
PER_SECOND = 50  # for each hook
UNSIGNED_PER_SECOND = 50  # for each address
LOOK_S = 1.0
FORGET_EVERY = 600
AGAIN_MS = (1_000, 10_000, 60_000, 600_000)  # until a message that broke its start is tried again


class Arrivals:
    """What comes in by hooks, while the server lives."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.hooks = Hooks(context.access, context.definitions)
        self._rates = Rates(context.clock, PER_SECOND)
        self._strangers = Rates(context.clock, UNSIGNED_PER_SECOND)
        self._news = asyncio.Event()
        self._broken: dict[str, tuple[int, int]] = {}  # by run: how often, and when again

    def take(
        self, name: str, given: tuple[str, str, str], body: bytes, peer: str
    ) -> tuple[Arrival, bool]:
        """A message that came in, and whether it is new."""
        try:
            hook = self.hooks.checked(name, given, body)
        except LoopwrightError:
            self._strangers.count(peer)  # who guesses is told 429 sooner or later
            raise
        self._rates.count(hook.name)
        known = self.hooks.known(hook.name, given[0])
        if known is not None:
            return known, False
        if len(self.hooks.at("waiting", hook.name, QUEUE)) >= QUEUE:
            raise Refusal(
                429,
                "queue-full",
                f"{QUEUE} messages of this hook wait already",
                headers={"Retry-After": "30"},
            )
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise Refusal(400, "bad-json", "the body is no UTF-8") from error
        check_texts(text)
        try:
            arrival = self.hooks.take(hook, given[0], text)
        except VersionConflict:
            again = self.hooks.known(hook.name, given[0])
            assert again is not None, "it was there a moment ago"
            return again, False
        self._news.set()
        return arrival, True

    async def working(self) -> None:
        """Start what waits, for as long as the server lives."""
        rounds, work = 0, Enduring("starting what came in by hooks")
        while True:
            with work.round():
                for hook in self.hooks.all():
                    await self._work(hook)
                if rounds % FORGET_EVERY == 0:
                    self.hooks.forget_old()
            rounds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S)
            self._news.clear()

    async def _work(self, hook: Incoming) -> None:
        going = self.hooks.at("going", hook.name)
        ended = [one for one in going if self._has_ended(one.run)]
        for one in ended:
            self.hooks.move(one, "done")
        room = hook.at_once - (len(going) - len(ended))
        now = self._context.clock.now_ms()
        waiting = [one for one in self.hooks.at("waiting", hook.name) if self._is_due(one, now)]
        for one in waiting[: max(room, 0)]:
            try:
                await self._start(hook, one)
            except Conflict as conflict:
                if conflict.code == "key-taken":  # its turn comes when the other has ended
                    return
                self.hooks.move(one, "done", conflict.message)
            except StorageError:
                raise
            except LoopwrightError as error:
                _LOG.warning("hook %s: %s", hook.name, error)
                self.hooks.move(one, "done", _problem(error))
            except Exception as error:
                self._put_off(one, error, now)
            else:
                self._broken.pop(one.run, None)
                self.hooks.move(one, "going")

    def _is_due(self, arrival: Arrival, now: int) -> bool:
        return self._broken.get(arrival.run, (0, 0))[1] <= now

    def _put_off(self, arrival: Arrival, error: Exception, now: int) -> None:
        """A defect of ours is no fault of the message: it stays, and others go first."""
        tries = self._broken.get(arrival.run, (0, 0))[0]
        self._broken[arrival.run] = (tries + 1, now + AGAIN_MS[min(tries, len(AGAIN_MS) - 1)])
        _LOG.error("hook %s: %s is kept", arrival.hook, arrival.id, exc_info=error)
        if not tries:
            problem = f"{arrival.id} is tried again: unexpected {type(error).__name__}"
            self.hooks.move(arrival, "waiting", problem)

    def _has_ended(self, run: str) -> bool:
        try:
            return row_ended(self._context.here.log.row(run))
        except NotFound:
            return True

    async def _start(self, hook: Incoming, arrival: Arrival) -> None:
        """Start the run of a message, unless we did so just before a crash."""
        context = self._context
        with contextlib.suppress(NotFound):
            context.here.log.row(arrival.run)
            return
        stored = context.definitions.runnable(hook.definition)
        wish = Wish(
            message="\n\n".join(filter(None, [hook.message, self.hooks.words(arrival)])),
            workspace=str(context.serving.workspace),
            default_agent=context.settings.agent,
            models=context.settings.models,
            home=context.settings.home,
            agent_names=context.service.agent_names(),
            rights=Rights(attended=True),
            allow_unknown_cost=hook.allow_unknown_cost,
        )
        text = stored.text.encode(errors="surrogatepass")
        start, _ = prepare_file(stored.name, wish, data=text, dialect=stored.dialect)
        start = replace(start, by=f"hook:{hook.name}", run=arrival.run, author=stored.role)
        # The folder is that of the server: nobody has chosen it for this definition.
        start = replace(start, workspace_by=stored.role)
        with acting_as("admin"):  # who made the hook; the definition has an author of its own
            await context.service.start(start)


def _problem(error: LoopwrightError) -> str:
    """Why a message started nothing; a hook has an option of its own against an unknown cost."""
    if error.code != "unknown-cost":
        return error.message
    return f"{error.message} (add the hook again with --allow-unknown-cost, or {error.hint})"
