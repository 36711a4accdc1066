"""Open the log of a data directory. It imports little, because commands that only list use it."""

from loopwright.agents.processes.process_marks import Presence
from loopwright.operations.accounts.callers import find_caller, mark_origin
from loopwright.operations.settings import Settings
from loopwright.operations.settings_files import refuse_remote, unusable, user_records
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log


def presence_of(settings: Settings) -> Presence:
    """Which owners of runs in this data directory are alive."""
    return Presence(settings.home / "owners")


def open_data_log(settings: Settings) -> SqliteLog:
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
    return log
