"""Record a run of Claude Code on the project of the demo, and draw it as docs/images/demo.svg.

Claude Code is the real program, from npm (`make test-agents` installs it; LOOPWRIGHT_TEST_CLIS
names its folder); a local server answers it with the turns of examples/wire.yml. The run happens in
a temporary folder on a pseudo-terminal of 104 columns and 30 rows. What it writes is followed
as a terminal would, and each new screen becomes a frame of the picture. A viewer that does not move
pictures shows the last frame.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from loopwright.testing.wires import WireServer, read_script

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "examples" / "demo"
PICTURE = ROOT / "docs" / "images" / "demo.svg"
COLUMNS, ROWS = 104, 30
CLIS = os.environ.get("LOOPWRIGHT_TEST_CLIS", str(ROOT / ".cache/agents/node_modules/.bin"))
COMMAND = [
    "loopwright",
    "loop",
    "Make the tests pass",
    "--agent",
    "claude",
    "--until-command",
    "pytest -q",
    "--budget",
    "usd=5",
]
TYPED = (
    '$ loopwright loop "Make the tests pass" --agent claude --until-command "pytest -q" '
    "--budget usd=5"
)
QUIET_S = 0.12
FIRST_FRAME_S, LAST_FRAME_S = 1.0, 6.0
MOST_FRAMES = 24

# -- the terminal ----------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"\x1b\[(?P<args>[0-9;?]*)(?P<final>[A-Za-z])|(?P<line>\n)|(?P<home>\r)|(?P<text>[^\x1b\r\n]+)|."
)


@dataclass
class Screen:
    """The lines of a terminal, as far as the live view uses one: up, erase, write."""

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    at_start: bool = True
    style: str = ""

    def feed(self, data: str) -> None:
        for token in _TOKEN.finditer(data):
            if token["line"]:
                self.row += 1
                self.at_start = True
                if self.row == len(self.lines):
                    self.lines.append("")
            elif token["home"]:
                self.at_start = True
            elif token["text"] is not None:
                self._write(token["text"])
            elif token["final"]:
                self._control(token["final"], token["args"])

    def _write(self, text: str) -> None:
        before = "" if self.at_start else self.lines[self.row]
        self.lines[self.row] = before + self.style + text
        self.at_start = False

    def _control(self, final: str, args: str) -> None:
        if final == "m":
            self.style = "" if args in ("", "0") else f"\x1b[{args}m"
            if not self.at_start:
                self.lines[self.row] += f"\x1b[{args or 0}m"
        elif final == "A":
            self.row = max(0, self.row - int(args or 1))
        elif final == "K":
            self.lines[self.row] = ""
            self.at_start = True

    def shown(self) -> tuple[str, ...]:
        """What can be seen now."""
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return tuple(lines[-ROWS:])


# -- the recording ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A screen and how long it is to be seen."""

    lines: tuple[str, ...]
    seconds: float


def record(folder: Path) -> list[Frame]:
    """Run the demo in a folder and watch it."""
    shutil.copytree(DEMO / "project", folder / "project")
    (folder / "project" / ".gitignore").write_text("__pycache__\n.pytest_cache\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with WireServer(read_script(ROOT / "examples" / "wire.yml")) as model:
        child = subprocess.Popen(
            COMMAND,
            cwd=folder / "project",
            env=_environment(folder, model.url),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        frames = _watch(ours, Screen(lines=[TYPED, ""], row=1))
        code = child.wait()
    if code != 0:
        raise SystemExit(f"the run ended with code {code}")
    return frames


def _environment(folder: Path, model: str) -> dict[str, str]:
    programs = (str(Path(sys.executable).parent), CLIS, os.environ["PATH"])
    return {
        "PATH": os.pathsep.join(programs),
        "HOME": str(folder),
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": "any",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "LOOPWRIGHT_HOME": str(folder / "data"),
        "USER": "you",
    }


def _watch(terminal: int, screen: Screen) -> list[Frame]:
    frames: list[Frame] = []
    since, seen, rest = time.monotonic(), screen.shown(), b""
    while True:
        data = _read(terminal)
        now = time.monotonic()
        if screen.shown() != seen and not (data and now - since < QUIET_S):
            frames.append(Frame(seen, now - since))
            since, seen = now, screen.shown()
        if data is None:
            os.close(terminal)
            return [*frames, Frame(screen.shown(), LAST_FRAME_S)]
        rest += data
        text = rest.decode("utf-8", "ignore")
        whole, mark, tail = text.rpartition("\x1b")
        # A sequence may be cut in two by a read; its beginning waits for the rest.
        if mark and not re.match(r"\[[0-9;?]*[A-Za-z]", tail):
            screen.feed(whole)
            rest = (mark + tail).encode()
        else:
            screen.feed(text)
            rest = b""


def _read(terminal: int) -> bytes | None:
    """What the terminal got; nothing after a quiet moment, None at the end."""
    ready, _, _ = select.select([terminal], [], [], QUIET_S)
    if not ready:
        return b""
    try:
        return os.read(terminal, 65_536) or None
    except OSError:
        return None


def thinned(frames: list[Frame]) -> list[Frame]:
    """Not more frames than a picture should have: short ones are left out first."""
    kept = list(frames)
    while len(kept) > MOST_FRAMES:
        number = min(range(1, len(kept) - 1), key=lambda n: kept[n].seconds)
        gone = kept.pop(number)
        before = kept[number - 1]
        kept[number - 1] = Frame(before.lines, before.seconds + gone.seconds)
    kept[0] = Frame(kept[0].lines, FIRST_FRAME_S)
    return kept


# -- the picture -----------------------------------------------------------------------------------

THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
)
CELL_W, CELL_H, PAD, BAR = 12.2, 24.4, 16, 36
_PARTS = "{styles}\x00{backgrounds}\x00{matrix}"


def drawn(frames: list[Frame]) -> str:
    """All frames in one picture, each seen in its time."""
    rows = max(len(frame.lines) for frame in frames) + 1
    width, height = COLUMNS * CELL_W + 2 * PAD, rows * CELL_H + BAR + 2 * PAD
    total = sum(frame.seconds for frame in frames)
    styles, groups, begin = [], [], 0.0
    for number, frame in enumerate(frames):
        css, body = _frame(frame, number, rows)
        last = number == len(frames) - 1
        shown_from, shown_to = 100 * begin / total, 100 * (begin + frame.seconds) / total
        styles += [css, _timing(number, shown_from, shown_to, total, last=last)]
        groups.append(f'<g class="frame f{number}">{body}</g>')
        begin += frame.seconds
    return _SVG.format(
        width=f"{width:g}",
        height=f"{height:g}",
        styles="\n".join(styles),
        left=PAD,
        top=BAR + PAD / 2,
        frames="\n".join(groups),
    )


def _frame(frame: Frame, number: int, rows: int) -> tuple[str, str]:
    console = Console(
        record=True,
        width=COLUMNS,
        file=open(os.devnull, "w"),  # noqa: SIM115 - lives as long as the console
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for line in (*frame.lines, *[""] * (rows - len(frame.lines))):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop", soft_wrap=True)
    made = console.export_svg(theme=THEME, code_format=_PARTS, unique_id=f"f{number}")
    css, backgrounds, matrix = made.split("\x00")
    # Lines are not clipped: they were cut to the terminal's width already.
    return css, backgrounds + re.sub(r' clip-path="[^"]*"', "", matrix)


def _timing(number: int, begin: float, end: float, total: float, *, last: bool) -> str:
    base = "visible" if last else "hidden"
    stops = f"0%{{visibility:{'visible' if begin == 0 else 'hidden'}}}"
    stops += f"{begin:.3f}%{{visibility:visible}}{end:.3f}%,100%{{visibility:hidden}}"
    if last:
        stops = f"0%{{visibility:hidden}}{begin:.3f}%,100%{{visibility:visible}}"
    return (
        f".f{number}{{visibility:{base}}}@keyframes k{number}{{{stops}}}"
        f"@media(prefers-reduced-motion:no-preference)"
        f"{{.f{number}{{animation:k{number} {total:.2f}s step-end infinite}}}}"
    )


_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
  aria-label="A loop repairs a project in three iterations; its tests decide when it is done.">
<style>
text{{font:20px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
white-space:pre}}
{styles}
</style>
<rect width="{width}" height="{height}" rx="10" fill="#161b22" stroke="#30363d"/>
<g fill="#484f58"><circle cx="22" cy="20" r="6"/><circle cx="42" cy="20" r="6"/>
<circle cx="62" cy="20" r="6"/></g>
<g transform="translate({left} {top})">
{frames}
</g>
</svg>
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="loopwright-") as folder:
        frames = thinned(record(Path(folder)))
        picture = drawn(frames)
        if folder in picture or str(Path.home()) in picture or str(ROOT) in picture:
            raise SystemExit("a path of this machine is in the picture: nothing was written")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(frames)} frames, {len(picture) // 1024} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
