"""A real browser without a window, told what to do by the protocol of its own developer tools."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.real_clis.conftest import CLIS

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-port=0"),
)
SECONDS = 120.0


def browser_program() -> str:
    """The program; the test is skipped, by name, where there is none."""
    if not CLIS:
        pytest.skip("real programs are started by `make test-agents`")
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("no browser is installed; `apt-get install chromium` installs one")


class Page:
    """One tab."""

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self._line = line
        self._number = 0

    async def go(self, url: str) -> None:
        """Open an address and wait until it is there."""
        await self._call("Page.enable")
        told = await self._call("Page.navigate", url=url)
        if "loaderId" in told:  # else it is another place of the same page
            while (await self._next()).get("method") != "Page.loadEventFired":
                pass

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        how = {"awaitPromise": True, "returnByValue": True}
        told = await self._call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true."""
        look = f"const look = () => ({script}) ? done({script}) : setTimeout(look, 50); look();"
        return await self.run(f"new Promise((done) => {{ {look} }})")

    async def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        await self._line.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = await self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._line.receive_json(timeout=SECONDS)
        return message


@asynccontextmanager
async def browsing(address: str) -> AsyncIterator[Page]:
    """The tab of a browser that was started."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as line,
    ):
        yield Page(line)


@contextmanager
def browser(folder: Path) -> Iterator[str]:
    """A browser with a profile of its own, ended with everything that it started: the address of
    its tab.
    """
    program, profile = browser_program(), folder / "profile"
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
        start_new_session=True,
    )
    try:
        yield _tab(profile / "DevToolsActivePort", process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tab(told: Path, process: subprocess.Popen[bytes]) -> str:
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit and process.poll() is None:
        if told.exists() and (lines := told.read_text().splitlines()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as reply:
                pages = [one for one in json.load(reply) if one["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError("the browser did not start")
