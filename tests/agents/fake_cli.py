"""A coding CLI that plays a recorded stream: looks like one to whoever starts it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loopwright.model.record import JsonValue
from tests.agents.clis.events import Event, lines

PLAY = """\
#!{python} -IS
import json, os, pathlib, subprocess, sys, time
folder = pathlib.Path({folder!r})
number = len(list(folder.glob("call-*.json"))) + 1
argv = [sys.argv[0], *sys.argv[1:]]
files = {{word: pathlib.Path(word).read_text() for word in argv if word.endswith(".txt")
         and pathlib.Path(word).is_file()}}
part = folder / f"call-{{number}}.part"
part.write_text(json.dumps({{
    "argv": argv, "env": dict(os.environ), "cwd": os.getcwd(),
    "stdin": sys.stdin.readline() if "--input-format" in argv else sys.stdin.read(),
    "files": files}}))
part.rename(part.with_suffix(".json"))
turns = json.loads((folder / "turns.json").read_text())
turn = turns[min(number, len(turns)) - 1]
sys.stdout.write(turn["out"]); sys.stdout.flush()
sys.stderr.write(turn["err"]); sys.stderr.flush()
time.sleep(turn["linger"])
sys.exit(turn["code"])
"""


@dataclass
class FakeCli:
    """Programs with the names of the real ones, in a folder for PATH."""

    folder: Path
    turns: list[dict[str, JsonValue]] = field(default_factory=list)

    def install(self, *names: str) -> "FakeCli":
        programs = self.folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name in names:
            file = programs / name
            text = PLAY.format(python=sys.executable, folder=str(self.folder))
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755)
        return self

    def says(
        self, events: Sequence[Event], *, code: int = 0, err: str = "", linger: float = 0
    ) -> "FakeCli":
        """What the next call prints; the last one is repeated."""
        out = lines(events).decode()
        self.turns.append({"out": out, "err": err, "code": code, "linger": linger})
        (self.folder / "turns.json").write_text(json.dumps(self.turns), encoding="utf-8")
        return self

    @property
    def path(self) -> str:
        return f"{self.folder / 'bin'}:/usr/bin:/bin"

    @property
    def calls(self) -> list[dict[str, JsonValue]]:
        """What each call was given."""
        files = sorted(self.folder.glob("call-*.json"), key=lambda one: int(one.stem[5:]))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]
