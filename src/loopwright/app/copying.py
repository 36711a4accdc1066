"""A copy of a home while it is in use: the log as a file, and the files that people gave beside it.

Files are copied before the log and, as far as the copy of the log names others, after it; so each
file that the copy names was there, unless somebody took it away at that very moment. Then the copy
is begun anew.
"""

import shutil
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.places import unusable
from loopwright.app.settings import Settings
from loopwright.app.uploads import FOLDER, digests
from loopwright.errors import StorageError
from loopwright.ports import Liveness
from loopwright.stores.opening import open_sqlite_log
from loopwright.stores.place import Options
from loopwright.stores.sqlite import SqliteLog
from loopwright.stores.trackers import SqliteTrackers

TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What is in a copy."""

    folder: Path | None  # with files that were given; None where there are none
    files: int
    missing: int  # named by the log, and not there


def copy_home(settings: Settings, log: SqliteLog, file: Path) -> Copied:
    """Copy the log into a new file, and what was given into a new folder beside it."""
    folder = file.with_name(f"{file.name}.{FOLDER}")
    if folder.exists():
        raise StorageError(f"{folder} exists", code="exists", hint="name a new file for the backup")
    missing: set[str] = set()
    made = False
    try:
        for _ in range(TRIES):
            folder.mkdir(mode=0o700, exist_ok=True)
            _fetch(settings.home / FOLDER, folder, digests(SqliteTrackers(log)))
            if made:
                file.unlink()
            log.backup(file)
            made = True
            missing = _complete(settings.home / FOLDER, file, folder, log.alive)
            if not missing:
                break
    except BaseException as error:
        if made:
            file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise unusable(file.parent, error) from error
        raise
    with suppress(OSError):  # nothing was given
        folder.rmdir()
    files = sum(1 for _ in folder.glob("??/*"))
    return Copied(folder=folder if files else None, files=files, missing=len(missing))


def _complete(source: Path, file: Path, folder: Path, alive: Liveness) -> set[str]:
    """Let the folder have what the copy of the log names, and no more; what is not there."""
    with closing(open_sqlite_log(file, alive=alive, options=Options(heads=False))) as copy:
        named = digests(SqliteTrackers(copy))
    _fetch(source, folder, named)
    there = {place.name: place for place in folder.glob("??/*")}
    for digest in there.keys() - named:  # taken away before the log was copied
        there[digest].unlink()
    for part in folder.iterdir():
        with suppress(OSError):
            part.rmdir()
    return named - there.keys()


def _fetch(source: Path, folder: Path, wanted: set[str]) -> None:
    for digest in sorted(wanted):
        place = folder / digest[:2] / digest
        if place.exists():
            continue
        place.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with (source / digest[:2] / digest).open("rb") as given:
                place.touch(0o600)
                with place.open("wb") as taken:
                    shutil.copyfileobj(given, taken)
        except FileNotFoundError:  # somebody has just taken it away
            continue
