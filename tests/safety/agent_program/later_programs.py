"""Escapes that leave something behind which is started outside the sandbox later, by Loopwright
itself or by the machine. What a person starts from files of their own is not among them: see
docs/security.md.
"""

import os
from functools import partial

from tests.safety.agent_program.attempts import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    TARGET,
    Blocked,
    can_rename,
    change,
    escape,
    open_for_writing,
    plant,
    require_outside,
    try_each,
)

READ_ONLY = "Loopwright's own program, its Python, bwrap and git are read-only"
SYSTEM = "folders of the system are read-only"


def existing_file(folder: str) -> str:
    """A file of a folder that belongs to a program."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            return path
    raise Blocked("the folder is empty")


@escape("add a module to the Python that runs Loopwright", blocked_by=READ_ONLY)
def plant_module() -> str:
    return try_each({one: partial(plant, one) for one in TARGET.program_folders})


@escape("change a file of the program that starts agents", blocked_by=READ_ONLY)
def change_program() -> str:
    def change_file(folder: str) -> None:
        require_outside(folder)
        open_for_writing(existing_file(folder))

    return try_each({one: partial(change_file, one) for one in TARGET.program_folders})


@escape("put another program in the place of Loopwright's", blocked_by=READ_ONLY)
def replace_program() -> str:
    folders = [*TARGET.program_folders, *map(os.path.dirname, TARGET.program_folders)]
    return try_each({one: partial(can_rename, one) for one in folders if one != os.sep})


@escape("add a job for cron or at", blocked_by=SYSTEM)
def scheduled_jobs() -> str:
    return plant_in_any("cron", "/at")


@escape("add a service of the system", blocked_by=SYSTEM)
def services() -> str:
    return plant_in_any("systemd", "init.d", "profile.d", "rules.d")


@escape("load a library into every later program", blocked_by=SYSTEM)
def preload() -> str:
    return plant_in_any("/ld.so", "/lib")


@escape("make an account of the system", blocked_by=SYSTEM)
def accounts() -> str:
    return try_each({one: partial(change, one) for one in SYSTEM_FILES})


@escape("put a program before others on the PATH of the system", blocked_by=SYSTEM)
def system_path() -> str:
    return plant_in_any("bin")


@escape("put a folder in the place of the link /bin or /lib", blocked_by=SYSTEM)
def links_at_the_top() -> str:
    return try_each({os.sep: partial(plant, os.sep)})


@escape("leave settings for modprobe, which the kernel starts", blocked_by=SYSTEM)
def settings_of_modprobe() -> str:
    return try_each({"/run": partial(plant, "/run")})


@escape("leave a script for the package manager or the next boot", blocked_by=SYSTEM)
def scripts_of_packages() -> str:
    return plant_in_any("/var/lib/")


def plant_in_any(*words: str) -> str:
    """Make a file in one of the folders of the system whose paths contain a word."""
    folders = [one for one in SYSTEM_FOLDERS if any(word in one for word in words)]
    return try_each({one: partial(plant, one) for one in folders})
