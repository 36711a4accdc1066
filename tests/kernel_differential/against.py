"""Compare the events of the kernel with those of another working tree, in histories by chance.

    git worktree add ../old COMMIT
    python -m tests.kernel_differential.against ../old --histories 100000

The other kernel and its `model` package are copied under another name, so nothing is shared. In
each history both kernels are given the same answers, decisions, crashes and forks; the events that
they decide are compared byte for byte after every move, and after the log was cut anywhere. It
prints the first differences and how many histories differ, and ends with code 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kernel_differential.freeze_kernel import freeze_tree
from tests.kernel_differential.harness import current_kernel, load_kernel
from tests.kernel_differential.histories import differences

SHOWN = 3
PORTION = 1_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path, help="the working tree with the other kernel")
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="loopwright-") as folder:
        package = Path(folder).name.replace("-", "_")
        freeze_tree(options.tree, Path(folder) / package, package)
        sys.path.insert(0, folder)
        return compare_all(options.first, options.histories, f"{package}.kernel")


def compare_all(first: int, histories: int, package: str) -> int:
    """Compare so many histories, and print what was found."""
    kernel, other, found = current_kernel(), load_kernel(package), 0
    for start in range(first, first + histories, PORTION):
        numbers = range(start, min(start + PORTION, first + histories))
        for difference in differences(numbers, kernel, other):
            found += 1
            if found <= SHOWN:
                sys.stdout.write(f"{difference.report()}\n\n")
        sys.stdout.write(f"{numbers.stop - first} histories, {found} with a difference\n")
        sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
