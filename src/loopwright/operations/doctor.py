"""The doctor: problems that could keep runs from working here, each with reason and remedy."""

import os
import shlex
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal, TypeAlias

from loopwright import host
from loopwright.agents.processes.process_marks import list_left
from loopwright.agents.processes.supervise import read_entry
from loopwright.agents.sandbox import bubblewrap
from loopwright.engine.services import wall_ms
from loopwright.errors import LoopwrightError
from loopwright.model.sandbox import LEVEL_SAYS, SANDBOX_LEVELS
from loopwright.operations.agents.programs import look as find_clis
from loopwright.operations.agents.programs import plugins
from loopwright.operations.backup import check_files, check_runs
from loopwright.operations.data_directory import lock_holder, open_log
from loopwright.operations.preflight import (
    CLOCK_FIX,
    clock_problem,
)
from loopwright.operations.run_lists import is_left_behind, limit_text, limits_used
from loopwright.operations.settings import ResolvedSettings, SettingsSources
from loopwright.operations.settings_files import LOCAL, REMOTE, disk_kind, nearest, owned_by
from loopwright.ports import OPEN_STATUSES
from loopwright.stores.sqlite.connection import LOOK_CLOSER, heads_beside
from loopwright.stores.sqlite.log import SqliteLog

State: TypeAlias = Literal["ok", "none", "warn", "fail"]
"""`none`: something that is not here, and is needed only by those who want it."""

PROBLEMS: tuple[State, ...] = ("warn", "fail")

MIN_PYTHON = (3, 11)
MIN_SQLITE = (3, 37, 0)
NEW_SECONDS = 60
MOST_PROBLEMS = 20
TAMPERED = "keep a copy of the data directory; put back a backup to get the data back"
LITTLE_SPACE = 1 << 30
NO_SPACE = 64 << 20
# The product did not exist before this, so a clock that says so is wrong.
EARLIEST = 1_735_689_600


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check."""

    name: str
    state: State
    why: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"check": self.name, "state": self.state, "why": self.why, "fix": self.fix}


@dataclass(slots=True)
class DoctorSubject:
    """What is examined."""

    resolved: ResolvedSettings
    deep: bool = False
    heads: Path | None = None  # an exported list of heads to compare with
    log: SqliteLog | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        return self.resolved.settings.home


Look: TypeAlias = Callable[[DoctorSubject], Iterator[DoctorFinding]]


def examine(
    resolved: ResolvedSettings, *, deep: bool = False, heads: Path | None = None
) -> list[DoctorFinding]:
    """Check everything; what cannot be checked is a finding too."""
    patient = DoctorSubject(resolved, deep, heads)
    findings: list[DoctorFinding] = []
    try:
        for look in LOOKS:
            findings += _looked(look, patient)
    finally:
        if patient.log is not None:
            patient.log.close()
    return findings


def _looked(look: Look, patient: DoctorSubject) -> list[DoctorFinding]:
    try:
        return list(look(patient))
    except Exception as error:  # a defect of one look must not hide the others
        name = look.__name__.lstrip("_").replace("_", " ")
        return [DoctorFinding(name, "fail", f"{type(error).__name__}: {error}", "tell us about it")]


# -- the machine ----------------------------------------------------------------------------------


def _python(_: DoctorSubject) -> Iterator[DoctorFinding]:
    found = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= MIN_PYTHON
    yield DoctorFinding(
        "python", "ok" if good else "fail", found, "" if good else "use 3.11 or newer"
    )


def _sqlite(_: DoctorSubject) -> Iterator[DoctorFinding]:
    good = sqlite3.sqlite_version_info >= MIN_SQLITE
    fix = "" if good else "use a Python with SQLite 3.37 or newer"
    yield DoctorFinding("sqlite", "ok" if good else "fail", sqlite3.sqlite_version, fix)


def _re2(_: DoctorSubject) -> Iterator[DoctorFinding]:
    try:
        found = bool(import_module("re2").search("a+", "caat"))
    except ImportError as error:
        yield DoctorFinding("re2", "fail", str(error), "pip install google-re2")
        return
    yield DoctorFinding("re2", "ok" if found else "fail", "patterns are matched in linear time")


def _regress(_: DoctorSubject) -> Iterator[DoctorFinding]:
    try:
        found = import_module("regress").Regex("(?<=c)a").find("caat") is not None
    except ImportError as error:
        yield DoctorFinding("regress", "fail", str(error), "pip install regress")
        return
    yield DoctorFinding(
        "regress", "ok" if found else "fail", "patterns of JavaScript have a time limit"
    )


def _libyaml(_: DoctorSubject) -> Iterator[DoctorFinding]:
    if getattr(import_module("yaml"), "__with_libyaml__", False):
        yield DoctorFinding("libyaml", "ok", "YAML is read by libyaml")
    else:
        yield DoctorFinding(
            "libyaml", "warn", "missing: large files are read slowly", "reinstall pyyaml"
        )


def _git(_: DoctorSubject) -> Iterator[DoctorFinding]:
    found = shutil.which("git")
    fix = "" if found else "install git; only what looks at changes needs it"
    yield DoctorFinding("git", "ok" if found else "warn", found or "not on PATH", fix)


def _system(_: DoctorSubject) -> Iterator[DoctorFinding]:
    """What is not available on a system other than Linux."""
    for missing in host.missing_features():
        yield DoctorFinding(missing.name, "warn", missing.effect, host.NEEDS_LINUX)


def _sandbox(_: DoctorSubject) -> Iterator[DoctorFinding]:
    """What is enforced here for this user; every level is tried."""
    if not host.is_linux():
        return
    problem = bubblewrap.works()
    if problem is not None:
        fix = f"{bubblewrap.remedy()}; until then `guard` runs as `off`, and stricter levels refuse"
        yield DoctorFinding("sandbox", "warn", f"agents run without a sandbox: {problem}", fix)
        return
    for level in SANDBOX_LEVELS[1:]:
        why = bubblewrap.try_level(level)
        state: State = "ok" if why is None else "fail"
        who = "root" if os.geteuid() == 0 else "this user"
        says = f"enforced for {who}: {LEVEL_SAYS[level]}" if why is None else why
        yield DoctorFinding(
            f"sandbox {level}", state, says, "" if why is None else bubblewrap.remedy()
        )


def _agents(_: DoctorSubject) -> Iterator[DoctorFinding]:
    for found in find_clis():
        yield DoctorFinding(f"agent {found.cli.name}", found.state, found.why, found.fix)


def _plugins(_: DoctorSubject) -> Iterator[DoctorFinding]:
    for one in plugins():
        name = f"plugin {one.name}"
        if one.problem:
            yield DoctorFinding(name, "warn", f"off: {one.problem}", f"fix or remove {one.origin}")
        else:
            yield DoctorFinding(name, "ok", f"{one.spec} ({one.origin})")


# -- the machine ---------------------------------------------------------------------------------


def _proc(_: DoctorSubject) -> Iterator[DoctorFinding]:
    if not host.is_linux():
        return
    if read_entry(os.getpid()) is not None:
        yield DoctorFinding("proc", "ok", "/proc can be read")
    else:
        yield DoctorFinding(
            "proc",
            "warn",
            "/proc cannot be read, or shows other processes than these: what a dead driver left is "
            "not found",
            "mount /proc, or see to leftovers yourself",
        )


def _orphans(_: DoctorSubject) -> Iterator[DoctorFinding]:
    if not host.is_linux():
        return
    if host.can_adopt_orphans():
        yield DoctorFinding(
            "orphans", "ok", "processes that agents leave behind can be adopted and ended"
        )
    else:
        yield DoctorFinding(
            "orphans",
            "warn",
            "this system cannot adopt orphans: a process that detaches itself may survive",
            "run on Linux for the full promise",
        )


def _clock(_: DoctorSubject) -> Iterator[DoctorFinding]:
    good = time.time() > EARLIEST
    fix = "" if good else "set the clock: time limits and ages depend on it"
    shown = time.strftime("%Y-%m-%d %H:%M:%S %z")
    yield DoctorFinding("clock", "ok" if good else "fail", shown, fix)


# -- settings ------------------------------------------------------------------------------------


def _config(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    files = patient.resolved.files
    why = (
        ", ".join(map(str, files))
        if files
        else f"none; yours would be {SettingsSources().user_file}"
    )
    yield DoctorFinding("config", "ok", why)


def _variables(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    warnings = patient.resolved.warnings
    if warnings:
        yield DoctorFinding("environment", "warn", "; ".join(warnings), "rename or unset it")
    else:
        yield DoctorFinding("environment", "ok", "every LOOPWRIGHT_ variable means something")


def _durability(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    if patient.resolved.settings.durability == "full":
        yield DoctorFinding("durability", "ok", "full: what is recorded survives a loss of power")
    else:
        yield DoctorFinding(
            "durability",
            "warn",
            "normal: the last moments before a loss of power may be missing",
            "set durability to full",
        )


# -- the data directory --------------------------------------------------------------------------


def _home(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    place, owner = nearest(patient.home), owned_by(patient.home)
    good = place.is_dir() and os.access(place, os.W_OK)
    fix = "" if good else "give --data-dir or LOOPWRIGHT_HOME a folder that you may write"
    if owner and patient.home.exists():
        why = f"{patient.home} belongs to {owner}"
        fix = fix or f"work as {owner}: files that you make there may be closed to them"
        yield DoctorFinding("home", "warn" if good else "fail", why, fix)
        return
    yield DoctorFinding("home", "ok" if good else "fail", str(patient.home), fix)


def _disk(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    kind = disk_kind(patient.home)
    if kind in REMOTE:
        why = f"{kind}: a disk of another machine, where locks do not hold"
        yield DoctorFinding("disk", "fail", why, LOCAL)
    else:
        yield DoctorFinding("disk", "ok", kind or "local, as far as the system says")


def _space(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    free = shutil.disk_usage(nearest(patient.home)).free
    state: State = "fail" if free < NO_SPACE else "warn" if free < LITTLE_SPACE else "ok"
    fix = "" if state == "ok" else "free some space: a full disk pauses every run"
    yield DoctorFinding("disk space", state, f"{free / (1 << 30):.1f} GiB free", fix)


def _database(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    settings = patient.resolved.settings
    if not settings.database.exists() and not heads_beside(settings.database).exists():
        yield DoctorFinding("database", "ok", "not there yet: the first run makes it")
        return
    try:
        patient.log = open_log(settings)
    except LoopwrightError as error:
        fix = (error.hint or "").removeprefix(f"{LOOK_CLOSER}; ")
        yield DoctorFinding("database", "fail", error.message, fix)
        return
    yield DoctorFinding("database", "ok", f"{settings.database} opens")
    yield from _database_file(settings.database)


def _database_file(file: Path) -> Iterator[DoctorFinding]:
    try:
        schema, mode = _read_file(file, "mode=ro")
    except sqlite3.OperationalError:  # in a folder that may not be written: the file alone will do
        schema, mode = _read_file(file, "immutable=1")
    yield DoctorFinding("schema", "ok", f"version {schema}, which this program writes")
    good = mode == "wal"
    fix = "" if good else "move the data directory to a local disk: WAL needs shared memory"
    yield DoctorFinding("journal", "ok" if good else "fail", f"mode {mode}", fix)


def _read_file(file: Path, query: str) -> tuple[str, str]:
    """Version of the tables, and how the file is written."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?{query}", uri=True)) as db:
        [[schema]] = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall()
        [[mode]] = db.execute("PRAGMA journal_mode").fetchall()
    return str(schema), str(mode)


def _heads(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    """Whether the newest events that were recorded are still there."""
    if patient.log is None:
        return
    # The deep look names the problems of single runs itself.
    found = patient.log.head_problems(patient.heads, deep=patient.deep)
    for text in found[:MOST_PROBLEMS]:
        yield DoctorFinding("recorded heads", "fail", text, TAMPERED)
    if len(found) > MOST_PROBLEMS:
        why = f"{len(found) - MOST_PROBLEMS} more problems of this kind"
        yield DoctorFinding("recorded heads", "fail", why, TAMPERED)
    if not found:
        file = patient.heads or f"{patient.resolved.settings.database.name}-heads"
        yield DoctorFinding("recorded heads", "ok", f"every run is as {file} says")


def _times(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    if patient.log is None:
        return
    problem = clock_problem(patient.log, wall_ms())
    if problem:
        yield DoctorFinding("recorded times", "warn", problem, CLOCK_FIX)
    else:
        yield DoctorFinding("recorded times", "ok", "the clock fits what was recorded")


def _server(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    held = lock_holder(patient.home)
    if held is None:
        yield DoctorFinding(
            "server", "ok", "none for this data directory; commands drive themselves"
        )
    elif not held.pid:
        yield DoctorFinding("server", "ok", "one is just starting")
    else:
        drives = "drives runs of commands" if held.has_line else "takes nothing from commands"
        yield DoctorFinding("server", "ok", f"process {held.pid} at {held.url} {drives}")


def _left_behind(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    if patient.log is None:
        return
    rows = [
        row for row in patient.log.rows(statuses=("running",)) if is_left_behind(patient.log, row)
    ]
    if rows:
        why = f"{len(rows)} run{'s' if len(rows) > 1 else ''} that no process drives"
        yield DoctorFinding(
            "left behind", "warn", why, "continue them with `loopwright resume all`"
        )
    else:
        yield DoctorFinding("left behind", "ok", "no run is left behind")


def _worktrees(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    """Worktrees whose run does not exist: a process ended between the two."""
    folder = patient.resolved.settings.worktrees
    if patient.log is None or not folder.is_dir():
        return
    orphans = [one for one in sorted(folder.iterdir()) if _is_orphan(patient.log, one)]
    for one in orphans:
        yield DoctorFinding("worktree", "warn", f"{one} belongs to no run", _removal(one))
    if not orphans:
        yield DoctorFinding("worktrees", "ok", "each one belongs to a run")


def _is_orphan(log: SqliteLog, folder: Path) -> bool:
    """One that was just made may get its run in a moment."""
    if not folder.is_dir() or time.time() - folder.stat().st_mtime < NEW_SECONDS:
        return False
    return not log.rows(prefix=folder.name, limit=1)


def _removal(folder: Path) -> str:
    """The commands that remove a worktree and its branch from its repository."""
    link = folder / ".git"
    text = link.read_text(encoding="utf-8").strip() if link.is_file() else ""
    common = Path(text.removeprefix("gitdir: ")).parent.parent
    if not text.startswith("gitdir: ") or not common.is_dir():
        return f"rm -r {shlex.quote(str(folder))}"
    git = f"git --git-dir={shlex.quote(str(common))}"
    remove = f"{git} worktree remove --force {shlex.quote(str(folder))}"
    return f"{remove} && {git} branch -D loopwright/{folder.name}"


def _spending(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    budget = patient.resolved.settings.budget
    if patient.log is None or not budget.has_limits:
        return
    used = limits_used(patient.log, budget, wall_ms())
    reached = budget.hard_stop and any(one.used >= one.of for one in used)
    why = "; ".join(limit_text(one) for one in used)
    fix = "raise it in the settings ([budget]), or wait for the next day (UTC)" if reached else ""
    yield DoctorFinding("budget", "warn" if reached else "ok", why, fix)


def _leftovers(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    if patient.log is None:
        return
    rows = patient.log.rows(statuses=OPEN_STATUSES)
    dead = {row.owner.token for row in rows if row.owner and not patient.log.alive(row.owner)}
    found = list_left(dead)
    if found:
        why = f"processes of dead drivers still run: {', '.join(map(str, found))}"
        yield DoctorFinding("leftovers", "warn", why, "`loopwright resume all` ends them first")
    else:
        yield DoctorFinding("leftovers", "ok", "no process of a dead driver is left")


def _waiting(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    if patient.log is None:
        return
    count = len(patient.log.gates())
    why = f"{count} decision{'s' if count != 1 else ''} wait for a person"
    yield DoctorFinding("inbox", "ok", why if count else "nothing waits for a person")


def _invariants(patient: DoctorSubject) -> Iterator[DoctorFinding]:
    if patient.log is None or not patient.deep:
        return
    found = [f"the file: {problem}" for problem in patient.log.check()]
    found += check_runs(patient.log)
    found += check_files(patient.log, patient.home)
    for text in found[:MOST_PROBLEMS]:
        yield DoctorFinding("invariants", "fail", text, TAMPERED)
    if len(found) > MOST_PROBLEMS:
        why = f"{len(found) - MOST_PROBLEMS} more problems of this kind"
        yield DoctorFinding("invariants", "fail", why, TAMPERED)
    if not found:
        count = len(patient.log.rows())
        why = f"{count} runs: events, contents, rows, gates, usage, files and snapshots are whole"
        yield DoctorFinding("invariants", "ok", why)


LOOKS: tuple[Look, ...] = (
    _python,
    _sqlite,
    _re2,
    _regress,
    _libyaml,
    _git,
    _system,
    _sandbox,
    _agents,
    _plugins,
    _proc,
    _orphans,
    _clock,
    _config,
    _variables,
    _durability,
    _home,
    _disk,
    _space,
    _database,
    _heads,
    _times,
    _server,
    _left_behind,
    _worktrees,
    _spending,
    _leftovers,
    _waiting,
    _invariants,
)
