"""Programs that Loopwright itself starts outside of sandboxes: where they are found, and which
folders no agent may change, as what is in them runs with the rights of the person.
"""

import os
import shutil
import site
import sys
from functools import cache
from pathlib import Path

from loopwright.model.environment import SYSTEM_PATH

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_SYSTEM_PREFIXES = ("/usr", "/usr/local")


def find_own_program(name: str, path: str | None = None) -> str | None:
    """The file of a program. One in a folder of the system comes before others on the PATH, such as
    `~/.local/bin`, where an agent can put something of the same name.
    """
    found = shutil.which(name, path=path)
    if found is None or path is not None or sys.platform != "linux":
        return found
    return shutil.which(name, path=os.pathsep.join(SYSTEM_PATH)) or found


@cache
def own_program_folders() -> tuple[str, ...]:
    """The folders of Loopwright, of its Python, and of the programs it starts, as far as they are
    not folders of the system, which ordinary users cannot change.
    """
    found = [_PACKAGE, sys.prefix, sys.base_prefix]
    found += [
        os.path.dirname(file) for name in ("bwrap", "git") if (file := find_own_program(name))
    ]
    found = [one for one in found if os.path.isdir(one)]
    if site.ENABLE_USER_SITE:  # Python reads it at each start, so nobody may create it
        found.append(site.getusersitepackages())
    real = dict.fromkeys(map(os.path.realpath, found))
    return tuple(one for one in real if not _is_of_system(one))


def is_own_checkout(workspace: str) -> bool:
    """Whether a workspace is the checkout that this Loopwright runs from: an agent that works on
    Loopwright itself can change it.
    """
    real = os.path.realpath(workspace)
    inside = _PACKAGE.startswith(f"{real}{os.sep}")
    return inside and not {"site-packages", "dist-packages"} & set(Path(_PACKAGE).parts)


def _is_of_system(folder: str) -> bool:
    return folder in _SYSTEM_PREFIXES or folder in SYSTEM_PATH or folder == os.sep
