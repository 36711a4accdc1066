"""Notifiers: what happened, put for a channel that speaks Slack's format, or given to a command."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loopwright.app.notify_settings import Notifier

COMMAND_SECONDS = 15.0
PASSED = ("PATH", "HOME", "LANG", "TZ")
PREFIX = "notify:"

Message = Mapping[str, object]


def slack_text(message: Message, name: str, link: str | None) -> bytes:
    """A message as a channel takes it; nothing in it is markup."""
    data = message["data"]
    assert isinstance(data, dict)
    where = f"{name} ({data['run']})"
    if message["type"] == "gate.opened":
        text = f"{where} waits for a person at {data['path']}: `loopwright show {data['run']}`"
    else:
        ended = data.get("summary") or f"has ended: {data['outcome']} ({data['reason']})"
        text = f"{where} {ended}"
    told = _plain(text) + (f"\nDecide: {link}" if link else "")
    return msgspec.json.encode({"text": told})


def _plain(text: str) -> str:
    for sign, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, instead)
    return " ".join(text.split())


def command_body(message: Message, name: str, link: str | None) -> bytes:
    return msgspec.json.encode({**message, "name": name, "link": link}) + b"\n"


class Running:
    """The commands that run just now; when the server ends, they end with it."""

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
    """A program, and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def run_command(
    notifier: Notifier, body: bytes, home: Path, running: Running | None = None
) -> bool:
    """Start a command with a message on its stdin; whether it ended well, in time."""
    running = running or Running()
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
