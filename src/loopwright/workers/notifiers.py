"""Notifiers of the settings (Slack format, commands, webhooks), and links that answer one gate.

A link is for a person without an account: a 256-bit code, stored as a hash, valid for a day and
for one answer. Opening the link decides nothing, because programs open links too.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotAllowed, NotFound, VersionConflict
from loopwright.kernel.events import GateOpened
from loopwright.model.actions import Decision
from loopwright.operations.outgoing_requests import Resolve, check_url, is_public
from loopwright.operations.settings import Settings
from loopwright.operations.settings_files import Notifier
from loopwright.operations.use_cases.gates import ANSWERS, AnswerGate
from loopwright.operations.use_cases.operation import App, Caller
from loopwright.operations.webhooks import Delivery, Hook, Send
from loopwright.ports import Clock, EventLog, RecordStore, StoredRecord

COMMAND_SECONDS = 15.0
PASSED = ("PATH", "HOME", "LANG", "TZ")
PREFIX = "notify:"

Message = Mapping[str, object]


def slack_text(message: Message, name: str, link: str | None) -> bytes:
    """A message in the format of a channel; nothing in it is markup."""
    data = message["data"]
    assert isinstance(data, dict)
    where = f"{name} ({data['run']})"
    if message["type"] == "gate.opened":
        text = f"{where} waits for a person at {data['path']}: `loopwright show {data['run']}`"
    else:
        ended = data.get("summary") or f"has ended: {data['outcome']} ({data['reason']})"
        text = f"{where} {ended}"
    body = _plain(text) + (f"\nDecide: {link}" if link else "")
    return msgspec.json.encode({"text": body})


def _plain(text: str) -> str:
    for sign, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, instead)
    return " ".join(text.split())


def command_body(message: Message, name: str, link: str | None) -> bytes:
    return msgspec.json.encode({**message, "name": name, "link": link}) + b"\n"


class RunningCommands:
    """The running commands; when the server ends, they are ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._over = False

    def add(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            if self._over:
                _kill(group)

    def remove(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)

    def end(self) -> None:
        with self._lock:
            self._over = True
            for group in self._groups:
                _kill(group)


def _kill(group: int) -> None:
    """A program with all its descendants."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def run_command(
    notifier: Notifier, body: bytes, home: Path, running: RunningCommands | None = None
) -> bool:
    """Start a command with a message on its stdin; returns whether it succeeded in time."""
    running = running or RunningCommands()
    env = {name: os.environ[name] for name in PASSED if name in os.environ}
    try:
        process = subprocess.Popen(
            list(notifier.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=home,
            env=env,
            start_new_session=True,
        )
    except OSError:
        return False
    running.add(process.pid)
    try:
        process.communicate(body, timeout=COMMAND_SECONDS)
        return process.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        running.remove(process.pid)
        _kill(process.pid)
        process.wait()


LINK = "gate-link"
SECRET = ("secret", "gate-links")
LIFE_MS = 86_400_000
KEEP_MS = 7 * 86_400_000  # how long an expired link says that it has expired


class GateLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link as it is stored."""

    gate: str
    run: str
    digest: str
    sent_to: str
    expires_at: int
    used_at: int | None = None


class LinkOver(LoopwrightError):
    """The link has expired."""

    code = "link-expired"


class GateLinks:
    """The links of a data directory."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock

    def code_for(self, delivery: str) -> str:
        """The code of the link in a message: computed each time the message is sent, so that it is
        not stored.
        """
        digest = hmac.new(self._secret(), delivery.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def record_for(self, delivery: str, run: str, opened: GateOpened, sent_to: str) -> StoredRecord:
        """A new link, to be stored together with its message."""
        until = self._clock.now_ms() + LIFE_MS
        link = GateLink(
            gate=opened.gate, run=run, digest=opened.digest, sent_to=sent_to, expires_at=until
        )
        key = _hashed(self.code_for(delivery))
        return StoredRecord(kind=LINK, key=key, body=msgspec.json.encode(link), due=until + KEEP_MS)

    def look(self, code: str) -> GateLink:
        """A valid link; Conflict if it was used, LinkOver if it has expired."""
        record = self._records.record(LINK, _hashed(code))
        if record is None:
            raise NotFound("there is no such link", hint="`loopwright inbox` lists what waits")
        link = msgspec.json.decode(record.body, type=GateLink)
        if link.used_at is not None:
            raise Conflict("this link was used already", code="link-used")
        if link.expires_at <= self._clock.now_ms():
            raise LinkOver("this link is too old", hint="`loopwright inbox` lists what waits")
        return link

    async def answer(self, app: App, code: str, decision: Decision, text: str) -> str:
        """Answer the gate of a link; returns the run. The gate accepts one answer, so the link does
        too.
        """
        link = self.look(code)
        if app.service.four_eyes and decision == "approve":  # it was sent before the gate opened
            raise NotAllowed(
                "a link does not say who follows it, and another person has to approve",
                code="self-approval",
                hint="sign in; the setting is four_eyes",
            )
        caller = Caller(name=f"link:{link.sent_to}", role="editor", interface="link")
        request = AnswerGate(gate=link.gate, text=text, digest=link.digest)
        run = (await ANSWERS[decision](app, caller, request)).run
        used = msgspec.structs.replace(link, used_at=self._clock.now_ms())
        due = link.expires_at + KEEP_MS
        record = StoredRecord(kind=LINK, key=_hashed(code), body=msgspec.json.encode(used), due=due)
        self._records.change([(record, None)])
        return run

    def forget_old(self) -> None:
        due = self._records.records(LINK, due_by=self._clock.now_ms(), limit=1_000)
        if due:
            self._records.change(drops=[(LINK, record.key) for record in due])

    def _secret(self) -> bytes:
        kind, key = SECRET
        if self._records.record(kind, key) is None:
            made = StoredRecord(kind=kind, key=key, body=secrets.token_bytes(32))
            with contextlib.suppress(VersionConflict):  # another process may be faster
                self._records.change([(made, 0)])
        record = self._records.record(kind, key)
        assert record is not None, "it was just made"
        return record.body


def _hashed(code: str) -> str:
    return hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()


SINCE = "notify-since"
WELL = 200


def idle_channels(settings: Settings) -> list[str]:
    """Notifiers that would not work, as messages; addresses that need a name server are not
    checked.
    """
    body = ((name, _trouble(one, settings.home)) for name, one in settings.notify.items())
    return [f"[notify.{name}] notifies no one: {why}" for name, why in body if why]


def _trouble(notifier: Notifier, home: Path) -> str:
    if notifier.command:
        program = notifier.command[0]
        found = shutil.which(str(home / program) if "/" in program else program)
        return "" if found else f"{program} is not a program that can be started"
    address = notifier.address()
    if not address:
        return f"the variable {notifier.slack_env} is not set"
    host = urlsplit(address).hostname or ""
    near = host == "localhost" or (host[:1].isdigit() and not is_public(host))
    if near and not notifier.allow_private:
        return "its address is near; say allow_private = true if it is meant"
    return ""


class SettingsChannels:
    """The notifiers of a data directory."""

    def __init__(
        self, settings: Settings, *, log: EventLog, records: RecordStore, clock: Clock, base: str
    ) -> None:
        self._notifiers = {f"{PREFIX}{name}": one for name, one in settings.notify.items()}
        self._log, self._home, self._base = log, settings.home, base.rstrip("/")
        self.links = GateLinks(records, clock)
        self._running = RunningCommands()
        self._with_links = settings.four_eyes == "off"  # the person who follows a link is unknown
        self._hooks = [_hook(name, one, records, clock) for name, one in self._notifiers.items()]

    @property
    def hooks(self) -> list[Hook]:
        return self._hooks

    def links_of(
        self, hook: str, delivery: str, run: str, opened: GateOpened
    ) -> list[tuple[StoredRecord, int | None]]:
        if not self._has_link(hook):
            return []
        return [(self.links.record_for(delivery, run, opened, hook), None)]

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
        except LoopwrightError:  # deleted in the meantime
            return run


def _hook(name: str, notifier: Notifier, records: RecordStore, clock: Clock) -> Hook:
    """A notifier receives events from its first start in the settings on."""
    record = records.record(SINCE, name)
    since = int(record.body) if record is not None else clock.now_ms()
    if record is None:
        records.change([(StoredRecord(kind=SINCE, key=name, body=str(since).encode()), None)])
    return Hook(id=name, url="", secret="", kinds=list(notifier.kinds), created_at=since)
