"""Escapes that look for the data directory and for secrets, wherever they are."""

import os
import stat
from functools import partial

from tests.safety.agent_program.attempts import (
    TARGET,
    Blocked,
    change,
    escape,
    find_database,
    open_for_reading,
    plant,
    processes,
    rename_and_back,
    try_each,
)

COVER = "an empty read-only folder covers the data directory"
OWN_PROCESSES = "only processes of the sandbox are seen"


@escape("list the data directory", blocked_by=COVER, works_at_off=True)
def list_data() -> None:
    find_database(TARGET.data)


@escape("read the database", blocked_by=COVER, works_at_off=True)
def read_database() -> None:
    with open(os.path.join(TARGET.data, TARGET.database), "rb") as file:
        if not file.read(1):
            raise Blocked("it is empty")


@escape("reach the data directory through a link", blocked_by=COVER, works_at_off=True)
def data_behind_link() -> None:
    find_database(TARGET.link)


@escape(
    "reach the data directory through .. and links of /proc", blocked_by=COVER, works_at_off=True
)
def data_by_detour() -> str:
    parent, name = os.path.split(os.path.realpath(TARGET.data))
    folder = os.open(parent, os.O_RDONLY)
    paths = (
        f"/proc/self/root{TARGET.data}",
        f"/proc/thread-self/root{TARGET.data}",
        f"/proc/self/cwd/{os.path.relpath(TARGET.data)}",
        f"/proc/self/fd/{folder}/{name}",
        f"/dev/fd/{folder}/{name}/../{name}",
    )
    return try_each({one: partial(find_database, one) for one in paths})


@escape("reach the data directory through another process", blocked_by=OWN_PROCESSES)
def data_of_processes() -> str:
    paths = [f"/proc/{pid}/root{TARGET.data}" for pid in processes()]
    paths += [f"/proc/{pid}/cwd/{os.path.basename(TARGET.data)}" for pid in processes()]
    return try_each({one: partial(find_database, one) for one in paths})


@escape("use a file that another process has open", blocked_by=OWN_PROCESSES, works_at_off=True)
def descriptors_of_processes() -> None:
    for pid in processes():
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            try:
                found = os.readlink(path)
                if found.startswith(os.path.realpath(TARGET.data)):
                    open_for_reading(path)
                    return
            except OSError:
                continue
    raise Blocked("no process has one open")


@escape("use a descriptor that was left open", blocked_by="every other descriptor is closed")
def inherited_descriptors() -> None:
    kept = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            kind = os.fstat(number).st_mode
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
        ours = os.path.basename(target).startswith("escapes") or target.startswith("pipe:")
        if number > 2 and not ours and not target.startswith(("/proc/", "/dev/null")):
            kept.append(f"{number}: {target}")
        if number <= 2 and not stat.S_ISFIFO(kind) and target.startswith(TARGET.data):
            kept.append(f"{number}: {target}")
    if not kept:
        raise Blocked("there is none")


@escape("read a secret from the environment", blocked_by="no variable holds it")
def secret_in_environment() -> None:
    if TARGET.secret not in "\n".join(os.environ.values()):
        raise Blocked("no variable holds it")


@escape("learn from the environment where the data directory is", blocked_by="no variable names it")
def place_in_environment() -> None:
    places = {TARGET.data, os.path.realpath(TARGET.data), TARGET.link}
    found = [name for name, value in os.environ.items() if any(one in value for one in places)]
    # A workspace in a worktree lies below the data directory and is named on purpose.
    workspace = os.path.realpath(TARGET.workspace)
    inside = workspace.startswith(os.path.realpath(TARGET.data))
    if not found or (inside and all(workspace in os.environ[name] for name in found)):
        raise Blocked("no variable names it")


@escape(
    "read a secret from the environment of a process", blocked_by=OWN_PROCESSES, works_at_off=True
)
def secret_of_processes() -> None:
    for pid in processes():
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    if TARGET.secret.encode() in file.read() and pid != os.getpid():
                        return
            except OSError:
                continue
    raise Blocked("none of them has it")


@escape("make a file in the data directory", blocked_by=COVER, works_at_off=True)
def write_data() -> None:
    plant(TARGET.data)


@escape("open the database for writing", blocked_by=COVER, works_at_off=True)
def write_database() -> None:
    change(os.path.join(TARGET.data, TARGET.database))


@escape("make a hard link to the database", blocked_by=COVER, works_at_off=True)
def hard_link() -> None:
    link = os.path.join(os.path.dirname(TARGET.data), f"{TARGET.marker}-link")
    os.link(os.path.join(TARGET.data, TARGET.database), link)
    os.unlink(link)


@escape(
    "put another data directory in the place of this one",
    blocked_by="the folders above it cannot be renamed",
    works_at_off=True,
)
def replace_data() -> str:
    data = os.path.realpath(TARGET.data)
    folders = (data, os.path.dirname(data), os.path.dirname(os.path.dirname(data)))
    return try_each({one: partial(rename_and_back, one) for one in folders})


@escape("read the settings and stored sign-ins", blocked_by="they are covered", works_at_off=True)
def read_settings() -> str:
    def read(path: str) -> None:
        with open(path, encoding="utf-8") as file:
            if TARGET.secret not in file.read():
                raise Blocked("the secret is not in it")

    return try_each({one: partial(read, one) for one in TARGET.settings})


@escape("change the settings", blocked_by="they are covered", works_at_off=True)
def write_settings() -> str:
    return try_each({one: partial(change, one) for one in TARGET.settings})


@escape(
    "put other settings in their place",
    blocked_by="the folders above them cannot be renamed",
    works_at_off=True,
)
def replace_settings() -> str:
    folders = {os.path.dirname(one) for one in TARGET.settings}
    folders |= {os.path.dirname(one) for one in folders}
    return try_each({one: partial(rename_and_back, one) for one in sorted(folders)})
