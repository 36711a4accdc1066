"""Console sessions as a page shows them, run in a shell and compared with what is shown.

The comparison is loose: shown lines must appear in this order, others may stand between them. `…`
stands for anything. Ids of runs and gates are learned from the output and used in later commands,
so a page may show the ids of the day it was written. Times and sizes may differ.
"""

import os
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import Block
from tests.person import ME

SECONDS = 60.0
_END = "__the_command_has_ended__"
_PERSON = re.compile(rf"\bby {re.escape(ME)}\b")
_ID = re.compile(r"run_[0-9a-hjkmnp-tv-z]{26}|gate_[0-9a-f]{20}")
_AMOUNT = r"[\d.]+ ?(?:ms|s|m|kB|MB)\b"
_TIME = r"\d{4}-\d\d-\d\dT[\d:.]+Z"
_LOOSE = re.compile(
    rf"(?P<id>{_ID.pattern})|(?P<time>{_TIME})|(?P<amount>{_AMOUNT})|(?P<any>…)|(?P<blank>\s+)"
)


@dataclass(frozen=True)
class Command:
    """A command as it is typed, and what is shown below it."""

    typed: str
    shown: tuple[str, ...]


def commands(block: Block) -> list[Command]:
    """The commands of a block: after `$ ` in a console, each line in sh."""
    if block.language == "sh":
        return [Command(block.text, ())]
    made: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            made.append((line[2:], []))
        elif line.startswith("> ") and made and not made[-1][1]:
            made[-1] = (f"{made[-1][0]}\n{line[2:]}", [])
        else:
            assert made, f"{block.place}: output before the first command"
            made[-1][1].append(line)
    return [Command(typed, tuple(shown)) for typed, shown in made]


@dataclass
class Terminal:
    """A shell in a folder of its own, with nothing of the person who runs the tests."""

    folder: Path
    known: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> "Terminal":
        home = self.folder / ".home"
        home.mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self.folder,
            env={
                "PATH": path,
                "HOME": str(home),
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                "COLUMNS": "100",
                "PYTHONDONTWRITEBYTECODE": "1",
                "LOOPWRIGHT_SNAPSHOTS": "off",  # pages that are about them switch them on
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.kill()
        self._shell.communicate()

    def run(self, typed: str) -> tuple[int, str]:
        """Type a command; its exit code, and what it printed."""
        for written, actual in self.known.items():
            typed = typed.replace(written, actual)
        # The code is given back, so that `echo $?` may be the next command.
        script = (
            f"{{\n{typed}\n}} </dev/null\n__code=$?; echo; echo {_END} $__code; (exit $__code)\n"
        )
        assert self._shell.stdin is not None
        self._shell.stdin.write(script.encode())
        self._shell.stdin.flush()
        return self._output(typed)

    def _output(self, typed: str) -> tuple[int, str]:
        assert self._shell.stdout is not None
        out, deadline = b"", time.monotonic() + SECONDS
        while True:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._shell.stdout], [], [], max(left, 0))
            piece = os.read(self._shell.stdout.fileno(), 65_536) if ready else b""
            assert piece, f"no end of: {typed}\n{out.decode(errors='replace')}"
            out += piece
            found = re.search(rb"\n%s (\d+)\n" % _END.encode(), out)
            if found:
                printed = out[: found.start()].decode(errors="replace")
                return int(found[1]), _PERSON.sub("by you", printed)

    def compare(self, shown: tuple[str, ...], output: str) -> str | None:
        """The first shown line that does not appear, or None; ids are learned on the way."""
        lines = iter(output.splitlines())
        for expected in (line.rstrip() for line in shown):
            if expected in ("", "…"):
                continue
            pattern = re.compile(self._pattern(expected))
            found = next((m for line in lines if (m := pattern.fullmatch(line.rstrip()))), None)
            if found is None:
                return expected
            self.known |= dict(zip(_ID.findall(expected), found.groups(), strict=False))
        return None

    def _pattern(self, expected: str) -> str:
        parts, at = [], 0
        for loose in _LOOSE.finditer(expected):
            parts.append(re.escape(expected[at : loose.start()]))
            parts.append(self._part(loose))
            at = loose.end()
        return "".join([*parts, re.escape(expected[at:])])

    def _part(self, loose: re.Match[str]) -> str:
        if loose["id"]:
            known = self.known.get(loose["id"])
            return f"({re.escape(known)})" if known else f"({loose['id'].split('_')[0]}_[0-9a-z]+)"
        words = {"time": _TIME, "amount": _AMOUNT, "any": ".*", "blank": r"\s+"}
        return next(pattern for name, pattern in words.items() if loose[name])
