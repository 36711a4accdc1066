"""Start the runs of messages that came in by webhooks, in order and with limited concurrency."""

import asyncio
import contextlib
import logging

from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError
from loopwright.operations.runs import row_ended
from loopwright.operations.use_cases.operation import App
from loopwright.operations.use_cases.webhooks import IncomingMessages, start_message
from loopwright.operations.webhooks.incoming_hooks import Arrival, Incoming
from loopwright.workers.background_tasks import NAME, BackgroundTask

_LOG = logging.getLogger(NAME)
LOOK_S = 1.0
FORGET_EVERY = 600
AGAIN_MS = (1_000, 10_000, 60_000, 600_000)  # until a message that broke its start is tried again


class MessageStarter:
    """Starts runs of the messages that wait, as long as the server lives."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._messages = app.part(IncomingMessages)
        self.hooks = self._messages.hooks
        self._broken: dict[str, tuple[int, int]] = {}  # by run: how often, and when again

    async def working(self) -> None:
        """Start what waits, as long as the server lives."""
        rounds, work = 0, BackgroundTask("starting what came in by hooks")
        while True:
            with work.round():
                for hook in self.hooks.all():
                    await self._work(hook)
                if rounds % FORGET_EVERY == 0:
                    self.hooks.forget_old()
            rounds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._messages.added.wait(), LOOK_S)
            self._messages.added.clear()

    async def _work(self, hook: Incoming) -> None:
        going = self.hooks.at("going", hook.name)
        ended = [one for one in going if self._has_ended(one.run)]
        for one in ended:
            self.hooks.move(one, "done")
        room = hook.at_once - (len(going) - len(ended))
        now = self._app.service.clock.now_ms()
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
        """A defect of the server is not a fault of the message: keep it, and start others."""
        tries = self._broken.get(arrival.run, (0, 0))[0]
        self._broken[arrival.run] = (tries + 1, now + AGAIN_MS[min(tries, len(AGAIN_MS) - 1)])
        _LOG.error("hook %s: %s is kept", arrival.hook, arrival.id, exc_info=error)
        if not tries:
            problem = f"{arrival.id} is tried again: unexpected {type(error).__name__}"
            self.hooks.move(arrival, "waiting", problem)

    def _has_ended(self, run: str) -> bool:
        try:
            return row_ended(self._app.service.log.row(run))
        except NotFound:
            return True

    async def _start(self, hook: Incoming, arrival: Arrival) -> None:
        """Start the run of a message, unless it was started just before a crash."""
        with contextlib.suppress(NotFound):
            self._app.service.log.row(arrival.run)
            return
        await start_message(self._app, hook, arrival)


def _problem(error: LoopwrightError) -> str:
    """Why a message started nothing; a hook has an option of its own against an unknown cost."""
    if error.code != "unknown-cost":
        return error.message
    return f"{error.message} (add the hook again with --allow-unknown-cost, or {error.hint})"
