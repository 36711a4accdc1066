"""Opening the log: for whoever looks, and for whoever drives."""

import os
import re
import secrets

from loopwright.app.cost_limits import CostRules
from loopwright.app.git_confinement import confine_git
from loopwright.app.inside_run import AgentRights, find_caller, is_private, mark_origin
from loopwright.app.places import refuse_remote, unusable
from loopwright.app.prices import PriceBook
from loopwright.app.project_files import user_records
from loopwright.app.run_variables import RunVariables
from loopwright.app.sandbox_rules import keep_files_private, rules_of
from loopwright.app.service import Service
from loopwright.app.settings import Settings
from loopwright.ports import Owner
from loopwright.programs.presence import Presence, owner_mark
from loopwright.runtime.clock import SystemClock
from loopwright.runtime.driver import LocalDriver
from loopwright.stores.opening import open_sqlite_log
from loopwright.stores.sqlite import SqliteLog
from loopwright.stores.trackers import SqliteTrackers
from loopwright.workspaces.worktrees import GitWorktrees

SERVED = "http"
"""How a server says that it drives runs, for other people."""
HANDED = "LOOPWRIGHT_HANDED_OWNER"
"""Where a process finds the token of the one that hands its run over to it."""
TOKEN_BYTES = 8
_TOKEN = re.compile(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


def this_owner() -> Owner:
    """This process as the owner of runs."""
    handed = os.environ.pop(HANDED, "")  # also the name of a file, so nothing else is taken for one
    return owner_mark(handed if _TOKEN.fullmatch(handed) else secrets.token_hex(TOKEN_BYTES))


def presence_of(settings: Settings) -> Presence:
    """Which owners of this home live."""
    return Presence(settings.home / "owners")


def open_log(settings: Settings) -> SqliteLog:
    """The log in the data directory, which is made when it is not there."""
    refuse_remote(settings.home)
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise unusable(settings.home, error) from error
    alive, is_new = presence_of(settings).alive, not settings.database.exists()
    log = open_sqlite_log(settings.database, alive=alive, durability=settings.durability)
    if is_new and (inside := find_caller()) is not None:
        mark_origin(log, inside)
    user_records().add_data_directory(settings.home)
    keep_files_private(settings)
    return log


def restrict(service: Service, log: SqliteLog) -> Service:
    """Take the rights of a person from a service that a program of a run has opened. In a data
    directory of its own the program keeps them.
    """
    inside = find_caller()
    service.inside = inside
    if inside is not None and not is_private(log, inside):
        service.rights = AgentRights(
            inside=inside, log=log, cards=log, clock=service.clock, via=service.via
        )
    return service


def open_service(
    settings: Settings,
    log: SqliteLog,
    driver: LocalDriver | None = None,
    *,
    via: str = "cli",
    book: PriceBook | None = None,
) -> Service:
    """The use cases, as the settings want them. Each service is made here, also one that does not
    drive: it may start or resume a run that another process drives.
    """
    service = Service(
        log,
        driver.clock if driver is not None else SystemClock(),
        driver,
        rules_of(settings, served=via == SERVED),
        via=via,
        four_eyes=settings.four_eyes == "on",
    )
    service.artifacts = settings.artifacts
    service.costs = CostRules(book=book or PriceBook(settings.prices), purse=settings.budget)
    service.takes_snapshots = settings.snapshots == "on"
    service.trackers = SqliteTrackers(log)
    service.worktrees = GitWorktrees(settings.worktrees, confine_git(settings))
    service.variables = RunVariables(settings.home)
    return restrict(service, log)


def open_reader(settings: Settings) -> Service:
    """A service that does not drive."""
    return open_service(settings, open_log(settings))
