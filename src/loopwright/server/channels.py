"""Channels: the notifiers of the settings as receivers of what happened."""

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from loopwright.app.gate_links import GateLinks
from loopwright.app.notify_settings import Notifier
from loopwright.app.outgoing import Resolve, check_url, is_public
from loopwright.app.settings import Settings
from loopwright.errors import LoopwrightError
from loopwright.kernel.facts import GateOpened
from loopwright.ports import Card, Cards, Clock, EventLog
from loopwright.server.notifying import PREFIX, Running, command_body, run_command, slack_text
from loopwright.server.webhooks import Delivery, Hook, Send

SINCE = "notify-since"
WELL = 200


def idle_channels(settings: Settings) -> list[str]:
    """Notifiers that would tell nobody, in words; what takes a name server to know is not asked."""
    told = ((name, _trouble(one, settings.home)) for name, one in settings.notify.items())
    return [f"[notify.{name}] tells nobody: {why}" for name, why in told if why]


def _trouble(notifier: Notifier, home: Path) -> str:
    if notifier.command:
        program = notifier.command[0]
        found = shutil.which(str(home / program) if "/" in program else program)
        return "" if found else f"{program} is no program that can be started"
    address = notifier.address()
    if not address:
        return f"the variable {notifier.slack_env} is not set"
    host = urlsplit(address).hostname or ""
    near = host == "localhost" or (host[:1].isdigit() and not is_public(host))
    if near and not notifier.allow_private:
        return "its address is near; say allow_private = true if it is meant"
    return ""


class SettingsChannels:
    """The notifiers of a home."""

    def __init__(
        self, settings: Settings, *, log: EventLog, cards: Cards, clock: Clock, base: str
    ) -> None:
        self._notifiers = {f"{PREFIX}{name}": one for name, one in settings.notify.items()}
        self._log, self._home, self._base = log, settings.home, base.rstrip("/")
        self.links = GateLinks(cards, clock)
        self._running = Running()
        self._with_links = settings.four_eyes == "off"  # nobody knows who follows a link
        self._hooks = [_hook(name, one, cards, clock) for name, one in self._notifiers.items()]

    @property
    def hooks(self) -> list[Hook]:
        return self._hooks

    def links_of(
        self, hook: str, delivery: str, run: str, opened: GateOpened
    ) -> list[tuple[Card, int | None]]:
        if not self._has_link(hook):
            return []
        return [(self.links.card_for(delivery, run, opened, hook), None)]

    def send(self, hook: str, delivery: Delivery, send: Send, resolved: Resolve) -> int:
        notifier = self._notifiers[hook]
        message = msgspec.json.decode(delivery.body)
        link = None
        if message["type"] == "gate.opened" and self._has_link(hook):
            link = f"{self._base}/decide#{self.links.code_for(delivery.id)}"
        name = self._name(message["data"]["run"])
        if notifier.command:
            body = command_body(message, name, link)
            return WELL if run_command(notifier, body, self._home, self._running) else 0
        target = check_url(notifier.address(), resolved, private=notifier.allow_private)
        headers = {"content-type": "application/json"}
        return send(target, headers, slack_text(message, name, link))

    def end(self) -> None:
        self._running.end()

    def _has_link(self, hook: str) -> bool:
        notifier = self._notifiers.get(hook)
        return self._with_links and notifier is not None and notifier.links

    def _name(self, run: str) -> str:
        try:
            return self._log.row(run).headline.name
        except LoopwrightError:  # forgotten meanwhile
            return run


def _hook(name: str, notifier: Notifier, cards: Cards, clock: Clock) -> Hook:
    """A notifier is told what happens from the first time on that it stands in the settings."""
    card = cards.card(SINCE, name)
    since = int(card.body) if card is not None else clock.now_ms()
    if card is None:
        cards.change([(Card(kind=SINCE, key=name, body=str(since).encode()), None)])
    return Hook(id=name, url="", secret="", kinds=list(notifier.kinds), created_at=since)
