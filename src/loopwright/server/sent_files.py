"""Files that came with a definition, by the paths that it names them by. Nothing of them is written
to a disk; still a path must be one that could be read below a folder.
"""

from collections.abc import Mapping

from loopwright.app.fetching import is_path
from loopwright.server.refusals import Refusal
from loopwright.server.texts import BAD
from loopwright.syntax.characters import check_text

LONGEST_PATH = 500
OUTSIDE = "outside-workspace"


def sent_files(files: Mapping[str, str]) -> dict[str, bytes]:
    """The files as they are read; refused where a path is none."""
    for path in files:
        _check(path)
    return {path: text.encode() for path, text in files.items()}


def _check(path: str) -> None:
    shown = f"files: {path[:80]!a}"
    hidden = "a line end or a tab" if "\n" in path or "\t" in path else check_text(path)
    if hidden:
        raise Refusal(422, BAD, f"{shown} holds {hidden}")
    if not is_path(path):
        hint = "name files as the definition does: prompts/review.md"
        raise Refusal(422, OUTSIDE, f"{shown} is no path below a folder", hint=hint)
    if len(path) > LONGEST_PATH:
        raise Refusal(422, OUTSIDE, f"{shown}: a path has at most {LONGEST_PATH} characters")
