"""Before a loop is started: whether somebody is there who would move it. Nothing is created where
nobody is, since such a loop would only seem to be under way.
"""

from collections.abc import Mapping
from pathlib import Path

from loopwright.app.pulse import STALE_MS
from loopwright.errors import Conflict
from loopwright.runtime.driver import LocalDriver


def check_worker(driver: LocalDriver, workspace: Path, now: int) -> None:
    """Refuse a start in this process unless its worker lives and the workspace is there."""
    if driver.is_closed:
        raise _refusal("the worker of this process has been closed")
    if now - driver.looked_at > STALE_MS:
        silent = (now - driver.looked_at) // 1_000
        raise _refusal(f"the worker of this process has not been heard for {silent} s")
    if not workspace.is_dir():
        raise _refusal(f"the workspace {workspace} is not there")


def check_health(told: object, url: str) -> None:
    """Refuse a start at a server whose health says that loops would not move. A server that does
    not tell is believed.
    """
    health = told if isinstance(told, Mapping) else {}
    if health.get("status", "ok") != "ok":
        raise _refusal(f"{url} says that it is {health['status']}")
    managers = health.get("managers")
    for name, one in managers.items() if isinstance(managers, Mapping) else ():
        if isinstance(one, Mapping) and one.get("ready") is False:
            last = one.get("last_tick_at") or "its start"
            raise _refusal(f"{url}: its {name} have not moved since {last}")


def _refusal(why: str) -> Conflict:
    return Conflict(
        f"nothing was started: {why}",
        code="no-worker",
        hint="start it again (`loopwright mcp`, `loopwright repl`, `loopwright serve`), then retry",
    )
