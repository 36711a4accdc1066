"""Rules between the keys of one place: what excludes what, what is needed, what has no use."""

from collections.abc import Iterator

from loopwright.dialects.native.outline import (
    CALL_KEYS,
    DEFAULTS,
    RUN_KEYS,
    STEPS_KEYS,
    BodyAt,
    LoopAt,
    Mapping,
    Outline,
    Path,
)
from loopwright.dialects.native.surface import CheckSpec
from loopwright.syntax import Diagnostic, Document

MAX_DEPTH = 3
MAX_ITEMS = 1_000

_CHECKS = (
    "signal",
    "regex",
    "contains",
    "command",
    "schema",
    "person",
    "manual",
    "cap",
    "any",
    "all",
)
_LATER_CHECKS = ("judge", "goal", "expr", "script", "approval", "tool")
_CHECK_OPTIONS = {
    "ignore_case": ("regex", "contains"),
    "invalid": ("regex",),
    "timeout": ("command",),
    "done_codes": ("command",),
}
# The passes over a list are independent of one another, so nothing can follow from the one before.
_NOT_WITH_EACH = (
    "max",
    "until",
    "memory",
    "gate",
    "at_cap",
    "delay",
    "broken_after",
    "check_first",
)
_STEP_KINDS = ("repeat", "gate", "wait", "stop")


def structure(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """All that breaks a rule between keys."""
    for body in made.bodies:
        yield from _body(document, body)
    for graph in made.graphs:
        for step in graph.steps:
            yield from _step(document, step.path, step.value)
    for loop in made.loops:
        yield from _loop(document, loop)
    for path, check in made.checks:
        yield from _check(document, path, check)


# -- bodies and steps ------------------------------------------------------------------------------


def _body(document: Document, body: BodyAt) -> Iterator[Diagnostic]:
    """One kind of body, and only options of that kind."""
    groups = {"call": CALL_KEYS, "run": RUN_KEYS, "steps": STEPS_KEYS}
    keys = dict(body.keys)
    if body.is_top:
        keys = {key: path for key, path in keys.items() if path[:-1] or key not in DEFAULTS}
    main = [key for key in ("agent", "prompt", "run", "steps") if key in keys]
    kinds = dict.fromkeys("call" if key in ("agent", "prompt") else key for key in main)
    if len(kinds) > 1:
        last = main[-1]
        message = f"{main[0]} and {last} exclude each other"
        hint = "name it in the steps inside" if last == "steps" else "make two steps of them"
        yield _on_key(document, keys[last], "mutually-exclusive", message, hint=hint)
        return
    kind = next(iter(kinds), "call")
    for key in [key for name in groups if name != kind for key in groups[name] if key in keys]:
        message = f"{key} has no use here"
        yield _on_key(document, keys[key], "unsupported-here", message, hint=_USE[key])


_USE = {
    "schema": "it goes with agent or prompt",
    "session": "it goes with agent or prompt",
    "files": "it goes with agent or prompt",
    "timeout": "it goes with run; for other steps there is limits: {time: …}",
    "env": "it goes with run; for an agent it stands in agents: {NAME: {env: …}}",
    "on_failure": "it goes with steps",
}


def _step(document: Document, path: Path, value: Mapping) -> Iterator[Diagnostic]:
    kinds = [key for key in _STEP_KINDS if key in value]
    body = [key for key in (*CALL_KEYS, *RUN_KEYS, *STEPS_KEYS) if key in value]
    if not kinds and not {"agent", "prompt", "run", "steps"} & set(body):
        unknown = set(value) - {"id", "needs", "join", "retry", "limits", "on_error", *body}
        if not unknown:
            message = "a step needs agent, prompt, run, repeat, steps, gate, wait or stop"
            yield document.error("missing-field", message, at=path)
        return
    alone = [key for key in kinds if key != "repeat"]
    others = [key for key in (*kinds, *body) if key not in alone[:1]]
    if alone and others:
        message = f"{alone[0]} and {others[0]} exclude each other"
        hint = "put gate inside repeat" if {alone[0], others[0]} == {"gate", "repeat"} else None
        place = (*path, others[0])
        yield _on_key(document, place, "mutually-exclusive", message, hint=hint)


# -- loops -----------------------------------------------------------------------------------------


def _loop(document: Document, loop: LoopAt) -> Iterator[Diagnostic]:
    if loop.depth > MAX_DEPTH:
        message = f"loops are nested more than {MAX_DEPTH} deep"
        yield _on_key(document, loop.path, "too-nested", message)
    value = loop.value
    if "for_each" in value:
        yield from _each(document, loop)
    elif "max" not in value:
        message = "a loop needs max, the most passes it may make"
        yield _on_key(document, loop.path, "cap-required", message, hint="max: 10")
    memory = value.get("memory")
    if isinstance(memory, dict) and "chars" in memory and memory.get("kind") != "progress-log":
        place = (*loop.path, "memory", "chars")
        message = "chars has no use here"
        hint = "it goes with kind: progress-log"
        yield _on_key(document, place, "unsupported-here", message, hint=hint)
    yield from _people(document, loop)


def _people(document: Document, loop: LoopAt) -> Iterator[Diagnostic]:
    """A person is asked about a pass once."""
    asked = list(_asked(loop.value.get("until"), (*loop.path, "until")))
    if "gate" in loop.value and "for_each" not in loop.value:
        asked.append((*loop.path, "gate"))
    for place in asked[1:]:
        message = "a person is asked about a pass once"
        yield _on_key(document, place, "mutually-exclusive", message, hint="keep one of them")


def _asked(check: object, path: Path) -> Iterator[Path]:
    if not isinstance(check, dict):
        return
    yield from ((*path, key) for key in ("person", "manual") if key in check)
    for key in ("any", "all"):
        parts = check.get(key)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from _asked(part, (*path, key, number))


def _each(document: Document, loop: LoopAt) -> Iterator[Diagnostic]:
    value, path = loop.value, loop.path
    excluded = [(*path, key) for key in _NOT_WITH_EACH if key in value]
    limits = value.get("limits")
    if isinstance(limits, dict) and "identical" in limits:
        excluded.append((*path, "limits", "identical"))
    if value.get("output") in ("learning", "result"):
        excluded.append((*path, "output"))
    for place in excluded:
        message = f"for_each and {place[-1]} exclude each other"
        hint = "for a loop around each item, put a repeat inside a step"
        yield _on_key(document, place, "mutually-exclusive", message, hint=hint)
    each = value["for_each"]
    if isinstance(each, dict):
        yield from _items(document, each, (*path, "for_each"))


def _items(document: Document, each: Mapping, path: Path) -> Iterator[Diagnostic]:
    if "items" in each and "from" in each:
        message = "items and from exclude each other"
        yield _on_key(document, (*path, "from"), "mutually-exclusive", message)
    elif "items" not in each and "from" not in each and "expr" not in each:
        yield document.error("missing-field", "for_each needs items or from", at=path)
    items, most = each.get("items"), each.get("max_items", MAX_ITEMS)
    if isinstance(items, list) and isinstance(most, int) and len(items) > most:
        message = f"{len(items):,} items; at most {most:,} are allowed"
        hint = "raise max_items" if "max_items" not in each else None
        yield document.error("too-many-items", message, at=(*path, "items"), hint=hint)


# -- checks ----------------------------------------------------------------------------------------


def _check(document: Document, path: Path, check: Mapping) -> Iterator[Diagnostic]:
    kinds = [key for key in (*_CHECKS, *_LATER_CHECKS) if key in check]
    if not kinds and set(check) <= _KNOWN:
        message = f"a check is one of {', '.join(_CHECKS)}"
        yield document.error("missing-field", message, at=path)
    if len(kinds) > 1:
        message = f"{kinds[0]} and {kinds[1]} are two checks"
        hint = f"write all: [{{{kinds[0]}: …}}, {{{kinds[1]}: …}}], or any:"
        place = (*path, kinds[1])
        yield _on_key(document, place, "mutually-exclusive", message, hint=hint)
    for option, owners in _CHECK_OPTIONS.items():
        if option in check and not set(owners) & set(check) and kinds:
            message = f"{option} has no use here"
            hint = f"it goes with {' or '.join(owners)}"
            yield _on_key(document, (*path, option), "unsupported-here", message, hint=hint)


_KNOWN = {field.alias or name for name, field in CheckSpec.model_fields.items()}


def _on_key(
    document: Document, path: Path, code: str, message: str, *, hint: str | None = None
) -> Diagnostic:
    return document.error(code, message, at=path, on_key=True, hint=hint)
