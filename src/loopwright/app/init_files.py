"""What `init` writes: a definition with comments, the answers of a scripted agent, the schema."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.dialects import dialect
from loopwright.app.import_check import ENDINGS
from loopwright.errors import Conflict, LoopwrightError

DEFINITION = "loop.yaml"
REPLIES = "replies.yaml"
SCHEMA = "loop.schema.json"

_PLAIN = re.compile(r"[\w./:-]+")  # needs no quotes in YAML
_DEFINITION_TEXT = """\
# yaml-language-server: $schema=./loop.schema.json
#
# A loop: one agent, the same goal, again and again until the checks pass.
# Run it:      loopwright run loop.yaml
# Check it:    loopwright validate loop.yaml

name: haiku

# What stands behind the agent. This one reads its answers from a file, so nothing has to be
# installed. A program of yours reads the prompt from stdin and answers on stdout:
#   agent: command:./my-agent
agent: script:replies.yaml

# What the agent is asked. A message on the command line takes its place:
#   loopwright run loop.yaml "Write about the sea"
goal: |
  Write a haiku about loops, three lines, with the word "again" in it.
  When you are content with it, put DONE alone on the last line.

repeat:
  # Never more passes than this. When they are used up, the run ends as exhausted (exit code 4).
  max: 5

  # The run is done when all of these hold in the same pass. Other checks: {contains: text},
  # {command: [pytest, -q]} (a program that succeeds), {judge: {prompt: Is it good?}} (an agent
  # says so), {person: true} (somebody approves).
  until:
    all:
      - signal: DONE
      - regex: '(?i)again'

  # What a pass learns from those before it: progress-log, previous-output, session or none.
  memory: progress-log

# Whatever is used up first ends the run.
budget:
  time: 10m
"""

_REPLIES_TEXT = """\
# The answers of a scripted agent, used one after the other. `loop.yaml` names this file.
replies:
  - text: |
      The wheel turns once more
      nothing learned and nothing lost
      it stops at the end
    usage: {input_tokens: 120, output_tokens: 30, usd: 0.0005}
  - text: |
      The wheel turns again
      what failed is written in chalk
      a small line is straight

      DONE
    usage: {input_tokens: 210, output_tokens: 34, usd: 0.0008}
"""


@dataclass(frozen=True, slots=True)
class Names:
    """What is written where. The answers are those of one definition, the schema fits all."""

    folder: Path
    definition: str = DEFINITION

    @property
    def replies(self) -> str:
        return REPLIES if self.definition == DEFINITION else f"{_stem(self.definition)}.{REPLIES}"

    def texts(self) -> dict[str, str]:
        """Each file and what it says, the definition first."""
        text = _DEFINITION_TEXT.replace(DEFINITION, shlex.quote(self.definition))
        agent = f"script:{self.replies}"
        return {
            self.definition: text.replace(
                f"script:{REPLIES}", agent if _PLAIN.fullmatch(agent) else json.dumps(agent)
            ),
            self.replies: _REPLIES_TEXT.replace(DEFINITION, self.definition),
            SCHEMA: json.dumps(dialect("native").json_schema(), indent=2) + "\n",
        }


def names_for(place: str) -> Names:
    """What a person means who names a place: a folder, or a definition by its ending."""
    path = Path(place)
    if not place.strip() or not place.isprintable():
        hint = "name a folder, or a file that ends in .yaml"
        raise LoopwrightError(f"{place!r} cannot be written", code="bad-name", hint=hint)
    if path.suffix.lower() not in ENDINGS or path.is_dir():
        return Names(path)
    if path.suffix.lower() == ".json":
        raise LoopwrightError(
            f"{place} cannot be written: JSON has no comments",
            code="bad-name",
            hint=f"name it {path.with_suffix('.yaml')}",
        )
    return Names(path.parent, path.name)


def write_files(names: Names, *, force: bool = False) -> list[Path]:
    """Write the files into a folder; nothing is overwritten unless that is asked for."""
    folder, texts = names.folder, names.texts()
    taken = [name for name, text in texts.items() if _is_taken(folder / name, text)]
    if taken and not force:
        raise Conflict(
            f"{', '.join(taken)} in {folder} would be overwritten",
            code="exists",
            hint="name another place, or give --force",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LoopwrightError(
            f"{folder} cannot be written: {(error.strerror or str(error)).lower()}",
            code="cannot-write",
            hint="name another folder",
        ) from error
    return [folder / name for name in texts]


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _is_taken(file: Path, text: str) -> bool:
    """Whether there is something that would be lost; the schema may be there from another time."""
    if file.is_symlink():
        return True
    try:
        return file.exists() and (file.name != SCHEMA or file.read_text(encoding="utf-8") != text)
    except (OSError, UnicodeDecodeError):
        return True
