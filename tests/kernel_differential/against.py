"""Compare the events of the kernel with those of other working trees, in histories by chance.

    git worktree add ../old COMMIT
    python -m tests.kernel_differential.against ../old --histories 100000

Each other kernel and its `model` package are copied under another name, so nothing is shared. In
each history all kernels are given the same answers, decisions, crashes and forks; the events that
they decide are compared byte for byte after every move, and after the log was cut anywhere. It
prints the first differences and how many histories differ, and ends with code 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.kernel_differential.freeze_kernel import freeze_tree
from tests.kernel_differential.harness import Kernel, current_kernel, load_kernel
from tests.kernel_differential.histories import difference_in, numbered

SHOWN = 3
PORTION = 1_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", type=Path, nargs="+", help="working trees with another kernel")
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="loopwright-") as folder:
        names = [f"{Path(folder).name}_{number}" for number in range(len(options.trees))]
        packages = [name.replace("-", "_") for name in names]
        for tree, package in zip(options.trees, packages, strict=True):
            freeze_tree(tree, Path(folder) / package, package)
        sys.path.insert(0, folder)
        kernels = [load_kernel(f"{package}.kernel") for package in packages]
        return compare_all(options.first, options.histories, kernels)


def compare_all(first: int, histories: int, others: list[Kernel]) -> int:
    """Compare so many histories, and print what was found."""
    kernel, found, unmade = current_kernel(), 0, 0
    for number in range(first, first + histories):
        try:
            made = numbered(number, kernel)
        except AssertionError as error:  # the kernel itself raised: a defect, whoever else has it
            sys.stdout.write(f"{error}\n")
            made, unmade = [], unmade + 1
        for history, other in product(made, others):
            difference = difference_in(history, kernel, other)
            if difference is not None:
                found += 1
                sys.stdout.write(f"{difference.report()}\n\n" if found <= SHOWN else "")
        done = number + 1 - first
        if done % PORTION == 0 or done == histories:
            sys.stdout.write(f"{done - unmade} histories, {found} with a difference\n")
            sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
