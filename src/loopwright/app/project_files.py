"""Whether a file of a project that decides what Loopwright does may be used: not if an agent may
have written it.
"""

import json
import os
from pathlib import Path

from platformdirs import user_data_path

from loopwright.programs.user_records import UserRecords

RECORDS = "records"


def records_folder() -> Path:
    """Where the records that all data directories of this user share are. No agent sees it."""
    return user_data_path("loopwright") / RECORDS


def user_records() -> UserRecords:
    return UserRecords(records_folder())


def untrusted_note(file: Path, contents: bytes | object, part: str = "") -> str | None:
    """Why a file of a project is ignored, in words; None if it may be used. What may be used is
    remembered: an agent that works in the folder later does not make it doubtful.
    """
    records, name, known = user_records(), _name(file, part), _bytes(contents)
    if records.is_known(name, known):
        return None
    workspace = records.find_agent_work(file)
    if workspace is None:
        records.remember(name, known)
        return None
    shown = f"{file} {part}".strip()
    return (
        f"{shown} is ignored: the file, its folder or a link to it was created or changed while an "
        f"agent worked in {workspace}; look at it, and accept it with "
        f"`loopwright config trust {file}`"
    )


def trust(file: Path, contents: bytes | object, part: str = "") -> None:
    """Accept a file with these contents."""
    user_records().remember(_name(file, part), _bytes(contents))


def _name(file: Path, part: str) -> str:
    # Links are not resolved: a file that was accepted elsewhere is not accepted through a link.
    return f"{os.path.abspath(file)} {part}".strip()


def _bytes(contents: bytes | object) -> bytes:
    if isinstance(contents, bytes):
        return contents
    return json.dumps(contents, sort_keys=True, default=str).encode()
