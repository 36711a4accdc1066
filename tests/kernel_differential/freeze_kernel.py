"""Make a frozen copy of the kernel that can be imported beside the kernel of the product.

`python -m tests.kernel_differential.freeze_kernel` copies `src/loopwright/kernel` to
`tests/kernel_differential/old_kernel`; from then on the tests of this folder compare the two. The
imports of the copy are those of its own modules. It comes with a copy of
`tests/support/laws/state_picture.py`, which looks into the records of a kernel. What both kernels
share is `loopwright.model`: a change of that package changes both.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
from importlib import import_module
from pathlib import Path

from tests.kernel_differential.harness import CURRENT, FROZEN, PICTURE_MODULE

FOLDER = Path(__file__).parent / "old_kernel"


def freeze(target: Path, package: str = FROZEN, source: str = CURRENT) -> None:
    """Copy the kernel `source` to a folder, which is imported by the name `package`."""
    if target.exists():
        raise FileExistsError(f"{target} exists: remove it, or name another folder")
    kernel = Path(str(import_module(source).__file__)).parent
    files = {file.relative_to(kernel): file for file in sorted(kernel.rglob("*.py"))}
    if source == CURRENT:
        drawing = import_module("tests.support.laws.state_picture").__file__
        files[Path(f"{PICTURE_MODULE}.py")] = Path(str(drawing))
    for place, file in files.items():
        text = renamed(file.read_text(encoding="utf-8"), source, package)
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")


def freeze_tree(tree: Path, target: Path, package: str) -> None:
    """Copy the kernel of another working tree, with the packages below it, to a folder that is
    imported by the name `package`.
    """
    source = tree / "src" / "loopwright"
    files = [source / "__init__.py", source / "errors.py"]
    for folder in ("kernel", "model"):
        files += sorted((source / folder).rglob("*.py"))
    for file in files:
        text = "" if file.parent == source and file.name == "__init__.py" else file.read_text()
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(renamed(text, "loopwright", package), encoding="utf-8")


def renamed(text: str, old: str, new: str) -> str:
    """A module whose imports of one package, and of what is in it, are those of another."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and _is_inside(node.module, old):
            at = node.lineno - 1
            lines[at] = lines[at].replace(f"from {old}", f"from {new}", 1)
        elif isinstance(node, ast.Import) and any(_is_inside(one.name, old) for one in node.names):
            raise ValueError(f"line {node.lineno}: write `from {old}.x import y`")
    return "".join(lines)


def _is_inside(module: str | None, package: str) -> bool:
    return module == package or (module or "").startswith(f"{package}.")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replace", action="store_true", help="remove the copy that is there")
    if parser.parse_args(arguments).replace:
        shutil.rmtree(FOLDER, ignore_errors=True)
    freeze(FOLDER)
    sys.stdout.write(f"{len(list(FOLDER.rglob('*.py')))} modules in {FOLDER}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
