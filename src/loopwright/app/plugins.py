"""Plugins: agents that other distributions bring, by entry points of the group `loopwright.agents`.

An entry point names an object with `API = 1`, `ARGV` (the program and its arguments) and maybe
`SPEAKS` (`text`, `jsonl` or `acp`). `plugin:NAME` is the agent then. What a plugin says is put into
the run when it is started, so that a run goes on without it. One that cannot be loaded is off,
with the reason, and keeps nobody else from working.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from loopwright.errors import LoopwrightError

GROUP = "loopwright.agents"
API = 1
PREFIX = "plugin:"
_KINDS = {"text": "command", "jsonl": "jsonl", "acp": "acp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """An agent of another distribution, or why there is none of this name."""

    name: str
    origin: str
    spec: str = ""
    problem: str = ""


def plugins() -> list[Plugin]:
    """Every plugin that is installed, each looked at by itself."""
    return list(_all())


def plugin_spec(text: str) -> str:
    """The spec that `plugin:NAME ARG…` stands for."""
    name, _, rest = text.removeprefix(PREFIX).strip().partition(" ")
    known = _points()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        there = ", ".join(sorted(known)) or "none is installed"
        hint = f"did you mean {near[0]}?" if near else f"there are: {there}"
        raise LoopwrightError(f"no plugin {name!r}", code="no-plugin", hint=hint)
    found = _loaded(known[name])
    if found.problem:
        raise LoopwrightError(
            f"plugin {name!r} is off: {found.problem}",
            code="plugin-off",
            hint=f"mend or remove {found.origin}; `loopwright doctor` looks at all of them",
        )
    return f"{found.spec} {rest}".strip()


def _all() -> Iterator[Plugin]:
    for _, point in sorted(_points().items()):
        yield _loaded(point)


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _loaded(point: EntryPoint) -> Plugin:
    origin = point.dist.name if point.dist is not None else point.value
    try:
        spec = _spec_of(point.load())
    except (Exception, SystemExit) as error:  # whatever it does, it is the plugin alone that is off
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        return Plugin(name=point.name, origin=origin, problem=why[:300])
    return Plugin(name=point.name, origin=origin, spec=spec)


def _spec_of(found: object) -> str:
    api = getattr(found, "API", None)
    if api != API:
        raise LoopwrightError(f"it is made for API {api!r}, and this version has API {API}")
    argv = getattr(found, "ARGV", None)
    if not isinstance(argv, list | tuple) or not argv or not all(map(_is_word, argv)):
        raise LoopwrightError("its ARGV is no list of texts")
    speaks = getattr(found, "SPEAKS", "text")
    if speaks not in _KINDS:
        raise LoopwrightError(f"it speaks {speaks!r}, and not one of {', '.join(_KINDS)}")
    return f"{_KINDS[speaks]}:{shlex.join(argv)}"


def _is_word(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value and bool(value)
