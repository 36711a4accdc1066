"""Which files of the package run for a loop: for the whole command, and for one more iteration.

    python scripts/loop_path.py            # the two counts
    python scripts/loop_path.py --files    # with the files, most calls first

A loop with two and one with three iterations run in this process, with an agent that does nothing.
A file counts for one more iteration if it has more calls in the longer loop.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "loopwright"
CHILD = "--count"


def calls_of_loop(iterations: int) -> Counter[str]:
    """Calls in each file of the package during `loopwright loop` with so many iterations."""
    with tempfile.TemporaryDirectory(prefix="loopwright-") as folder:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "LOOPWRIGHT_HOME": str(Path(folder) / "data"),
            "LANG": "C.UTF-8",
        }
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), CHILD, str(iterations)],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
    counted: Counter[str] = Counter()
    for line in done.stderr.splitlines():
        mark, _, rest = line.partition("\t")
        if mark == "calls":
            file, _, number = rest.partition("\t")
            counted[file] = int(number)
    return counted


def count_calls(iterations: int) -> None:
    """Run the loop here and print the calls in each file to stderr."""
    import threading  # noqa: PLC0415 - only the counted process needs them

    from loopwright.cli.main import main  # noqa: PLC0415 - the imports count too

    counted: Counter[CodeType] = Counter()

    def note(frame: object, event: str, _argument: object) -> None:
        if event == "call":
            counted[frame.f_code] += 1  # type: ignore[attr-defined]

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main(["loop", "x", "--agent", "command:true", "--max", str(iterations), "--quiet"])
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    files: Counter[str] = Counter()
    for code, number in counted.items():
        path = Path(code.co_filename)
        # Bodies of modules and classes run when they are imported, which is no step of the path.
        if SRC in path.parents and code.co_name != "<module>" and code.co_flags & 0x2:
            files[path.relative_to(SRC).as_posix()] += number
    for file, number in files.items():
        sys.stderr.write(f"calls\t{file}\t{number}\n")


def main() -> int:
    if sys.argv[1:2] == [CHILD]:
        count_calls(int(sys.argv[2]))
        return 0
    two, three = calls_of_loop(2), calls_of_loop(3)
    more = Counter({file: three[file] - two[file] for file in three if three[file] > two[file]})
    print(f"files run by one more iteration of a loop: {len(more)}")
    print(f"files run by the whole `loop` command: {len(two)}")
    if "--files" in sys.argv:
        for file, number in more.most_common():
            print(f"  {number:5} {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
