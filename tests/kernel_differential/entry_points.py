"""What the rest of the source imports from the kernel, read from the source.

`python -m tests.kernel_differential.entry_points` prints it: the functions, classes and values of
each module of the kernel, and which parts of the source use them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

import loopwright

SOURCE = Path(loopwright.__file__).parent
KERNEL = "loopwright.kernel"

MODULES: dict[str, tuple[str, ...]] = {
    "addresses": (
        "directory",
        "locate",
        "reachable",
        "resolve_address",
    ),
    "bodies.conversation": (
        "rejected",
        "turned_away",
    ),
    "bodies.history": (
        "is_first_turn",
        "middle_of",
    ),
    "bodies.repeat": (
        "is_at_cap",
        "learning_of",
    ),
    "checks": (
        "inspect",
        "last_json_object",
    ),
    "coordination": (
        "caller_of",
        "tools_of",
        "use",
    ),
    "decide": ("settle",),
    "effects": (
        "after_failure",
        "vanished",
    ),
    "event_parts": (
        "is_secret_name",
        "mask",
        "mask_text",
        "mask_tokens",
    ),
    "events": (
        "decode_events",
        "encode_events",
    ),
    "fold": (
        "apply",
        "fold",
    ),
    "gates": (
        "ends_by_itself",
        "tool_gate",
    ),
    "iteration": ("requests_of",),
    "limits": (
        "exceeded",
        "has_usd_limit",
        "remaining",
        "used_up",
    ),
    "references": (
        "fill",
        "hidden_word",
        "iteration_in_scope",
        "message_for",
        "missing_value",
        "request_text",
        "step_result",
        "thread_of",
    ),
    "reopened_runs": (
        "at_cap",
        "copied",
        "end_of",
        "loops_that_failed_at_cap",
        "places",
        "stopped_half_way",
        "unfinished_places",
    ),
    "signal": (
        "hidden_tags",
        "without_signal",
    ),
    "snapshots": (
        "has_unrecorded",
        "is_last_under_way",
        "name_files",
        "violation",
    ),
    "state": (
        "cap",
        "chain",
        "conversation",
        "enclosing_iteration",
        "enclosing_step",
        "iterations_made",
        "limits_of",
        "release_frames",
    ),
}
"""Every function of the kernel that the rest of the source imports, by module.

Besides it imports classes and constants: `python -m tests.kernel_differential.entry_points`.
"""
MOVED: dict[str, str] = {}
"""Functions that the current kernel has in another module than listed above, with that module."""
EARLIER_NAMES = {
    "decode_events": "decode_facts",
    "enclosing_iteration": "enclosing_pass",
    "encode_events": "encode_facts",
    "iteration_in_scope": "pass_in_scope",
    "iterations_made": "passes_made",
}
"""Functions of the current kernel, with the names that older kernels have for them."""
NOT_CALLED = {"release_frames": "it frees memory of a run that is left, and decides nothing"}
"""Functions that no test here calls, with the reason."""


def module_of(function: str, package: str) -> str:
    """The module of a function; a frozen kernel has it where it was."""
    if package == KERNEL and function in MOVED:
        return MOVED[function]
    listed = next(module for module, names in MODULES.items() if function in names)
    if package == KERNEL or _defines(f"{package}.{listed}", name_of(function, package)):
        return listed
    return _module_that_defines(name_of(function, package), package)


def name_of(function: str, package: str) -> str:
    """The name of a function in a kernel; an older one may have another name for it."""
    earlier = EARLIER_NAMES.get(function)
    if package == KERNEL or earlier is None:
        return function
    try:
        _module_that_defines(function, package)
    except LookupError:
        return earlier
    return function


def _defines(module: str, function: str) -> bool:
    if find_spec(module) is None:
        return False
    found = getattr(import_module(module), function, None)
    return found is not None and found.__module__ == module


def _module_that_defines(function: str, package: str) -> str:
    """Where an older kernel has a function that was moved since."""
    kernel = import_module(package)
    for one in walk_packages(kernel.__path__, f"{package}."):
        if _defines(one.name, function):
            return one.name.removeprefix(f"{package}.")
    raise LookupError(f"{package} has no function {function}")


@dataclass
class EntryPoint:
    """A name that is imported from a module of the kernel."""

    module: str
    name: str
    users: set[str] = field(default_factory=set)

    @property
    def kind(self) -> str:
        found = getattr(import_module(f"{KERNEL}.{self.module}"), self.name)
        if inspect.isclass(found):
            return "class"
        return "function" if inspect.isroutine(found) or hasattr(found, "cache_info") else "value"


def entry_points() -> list[EntryPoint]:
    """Every name of the kernel that a file outside of it imports, with the folders of the files."""
    found: dict[tuple[str, str], EntryPoint] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE)
        text = file.read_text(encoding="utf-8")
        if place.parts[0] == "kernel" or KERNEL not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(KERNEL):
                module = (node.module or "").removeprefix(KERNEL).lstrip(".")
                for one in node.names:
                    point = found.setdefault((module, one.name), EntryPoint(module, one.name))
                    point.users.add(place.parts[0])
    return [found[key] for key in sorted(found)]


def imported_functions() -> set[tuple[str, str]]:
    """The functions that are imported from the current kernel, with their modules."""
    return {(one.module, one.name) for one in entry_points() if one.kind == "function"}


def called_functions() -> set[str]:
    """The functions that the files of this folder call by name."""
    called: set[str] = set()
    for name in ("harness.py", "probes.py"):
        tree = ast.parse((Path(__file__).parent / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Name(id="part" | "call") | ast.Attribute(attr="function"),
                    args=[ast.Constant(value=str(function))],
                ):
                    called.add(function)
    return called


def main() -> None:
    by_module: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in entry_points():
        by_module[point.module].append(point)
    for module, points in by_module.items():
        sys.stdout.write(f"{module}\n")
        for point in points:
            users = ", ".join(sorted(point.users))
            sys.stdout.write(f"    {point.kind:8} {point.name}: {users}\n")


if __name__ == "__main__":
    main()
