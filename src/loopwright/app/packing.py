"""Definitions on their way to a server elsewhere, with the files that they name.

Here they are looked for beside the definition, as always; there those that came with it count, and
no others, so that both read the same.
"""

from pathlib import Path

from loopwright.app.dialects import named_files, parse_definition
from loopwright.errors import LoopwrightError

MOST_FILES = 200
MOST_BYTES = 1_000_000
_HERE = "start it on that machine"


def packed(
    definition: bytes, *, file: str, dialect: str | None, folder: Path
) -> dict[str, str] | None:
    """The files that a definition names; None where it names none. One that cannot be read is told
    as it is told here, unless it is needed nowhere.
    """
    named = named_files(definition, file=file, force=dialect, folder=folder)
    if not named:
        return None
    found = {path: data for path, data in named.items() if isinstance(data, bytes)}
    if len(found) < len(named):
        parse_definition(definition, file=file, force=dialect, files=folder)
    size = sum(map(len, found.values()))
    if len(found) > MOST_FILES or size > MOST_BYTES:
        raise LoopwrightError(
            f"{file} names {len(found)} files with {size:,} bytes: at most {MOST_FILES} with "
            f"{MOST_BYTES:,} are sent",
            code="too-large",
            hint=_HERE,
        )
    return {path: _text(path, data) for path, data in found.items()}


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise LoopwrightError(
            f"{path} is not UTF-8 at byte offset {error.start}", code="encoding", hint=_HERE
        ) from error
