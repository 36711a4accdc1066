"""Rules between the keys of one place: exclusions, requirements, keys without effect."""

from collections.abc import Iterator

from loopwright.dialects.native.checks import OPERATORS, CheckSpec, WhenSpec
from loopwright.dialects.native.outline import (
    BODY_KEYS,
    CALL_KEYS,
    CYCLE_KEYS,
    DEFAULTS,
    MAIN_KEYS,
    RUN_KEYS,
    SCRIPT_KEYS,
    STEPS_KEYS,
    BodyOutline,
    LoopOutline,
    Mapping,
    NativeOutline,
    Path,
    checks_of,
)
from loopwright.dialects.native.surface import ForEachSpec, RepeatSpec
from loopwright.dialects.native.templates import parse
from loopwright.syntax.document import Diagnostic, Document, misspelt
from loopwright.syntax.notations import USE_A_SCRIPT, operator
from loopwright.syntax.validation import keys_of

MAX_DEPTH = 3
MAX_ITEMS = 1_000

_CHECKS = (
    "signal",
    "regex",
    "contains",
    "command",
    "script",
    "expr",
    "judge",
    "goal",
    "result_field",
    "result_path",
    "schema",
    "tool",
    "no_calls",
    "spend",
    "person",
    "manual",
    "cap",
    "any",
    "all",
    "approval",
)
_CHECK_OPTIONS = {
    "ignore_case": ("regex", "contains"),
    "invalid": ("regex",),
    "engine": ("regex",),
    "timeout": ("command", "script"),
    "done_codes": ("command",),
    "interpreter": ("script",),
    "on_timeout": ("script",),
    "on_missing": ("script",),
    "anywhere": ("signal",),
    "env": ("script",),
    "on_error": ("expr",),
}
# The iterations over a list are independent of one another, so none can follow from the previous
# one.
_NOT_WITH_EACH = (
    "max",
    "until",
    "memory",
    "gate",
    "at_cap",
    "delay",
    "broken_after",
    "check_first",
    "on_deadline",
    "criteria",
    "checks",
)
_LOOP_KEYS, _EACH_KEYS = keys_of(RepeatSpec), keys_of(ForEachSpec)
_CHECK_KEYS = keys_of(CheckSpec)
_STEP_KINDS = ("repeat", "gate", "wait", "stop")
_STEP_KEYS = (
    "id",
    "needs",
    "join",
    "retry",
    "limits",
    "on_error",
    "on_blocked",
    "needs_artifact",
    "needs_output",
    "when",
    "when_error",
)
_OF_MEMORY = {
    "chars": ("progress-log", "stages"),
    "total": ("progress-log",),
    "by_step": ("previous-output",),
    "window": ("history",),
    "at": ("history",),
    "strategy": ("history",),
    "summaries": ("history",),
}
_OF_CYCLES = ("tool", "no_calls")
_INSIDE = {"steps": "name it in the steps inside", "cycle": "write it inside of cycle"}
_KINDS = {
    "call": CALL_KEYS,
    "run": RUN_KEYS,
    "script": SCRIPT_KEYS,
    "steps": STEPS_KEYS,
    "cycle": CYCLE_KEYS,
}


def structure(document: Document, made: NativeOutline) -> Iterator[Diagnostic]:
    """All that breaks a rule between keys."""
    for body in made.bodies:
        yield from _body(document, body)
        if "run" in body.keys:
            yield from _words(document, body.keys["run"], body.value["run"])
    for graph in made.graphs:
        for step in graph.steps:
            yield from _step(document, step.path, step.value)
    bodies = {(*body.path, "repeat"): body for body in made.bodies}
    looped = {loop.path for loop in made.loops}
    for path, body in bodies.items():
        if "cycle" in body.keys and path not in looped:
            message, hint = "a cycle is an iteration of a loop", "repeat: {max: 10, cycle: …}"
            yield _on_key(document, body.keys["cycle"], "unsupported-here", message, hint=hint)
    converted = "converted_from" in made.top
    for loop in made.loops:
        yield from _loop(document, loop, most=None if converted else MAX_DEPTH)
        yield from _conversation(document, loop, bodies[loop.path])
    for path, check in made.checks:
        yield from _check(document, path, check)
        yield from _words(document, (*path, "command"), check.get("command"))
    for path, condition in made.conditions:
        yield from _condition(document, path, condition)


# -- bodies and steps ------------------------------------------------------------------------------


def _body(document: Document, body: BodyOutline) -> Iterator[Diagnostic]:
    """One kind of body, and only options of that kind."""
    keys = dict(body.keys)
    if body.is_top:
        keys = {key: path for key, path in keys.items() if path[:-1] or key not in DEFAULTS}
    main = [key for key in MAIN_KEYS if key in keys]
    kinds = dict.fromkeys("call" if key in ("agent", "prompt") else key for key in main)
    if len(kinds) > 1:
        last = main[-1]
        message = f"{main[0]} and {last} exclude each other"
        hint = _INSIDE.get(last, "make two steps of them")
        yield _on_key(document, keys[last], "mutually-exclusive", message, hint=hint)
        return
    kind = next(iter(kinds), "call")
    fits = [key for key in _KINDS[kind] if keys.get(key) != ("given",)]  # a run is given its own
    for key in [key for key in BODY_KEYS if key in keys and key not in fits]:
        message = f"{key} has no use here"
        yield _on_key(document, keys[key], "unsupported-here", message, hint=_USE[key])
    yield from _values(document, body, kind)


def _values(document: Document, body: BodyOutline, kind: str) -> Iterator[Diagnostic]:
    """Values reach a script by its variables, and a program not at all."""
    script, env = body.value.get("script"), body.value.get("env")
    if kind == "script" and isinstance(script, str):
        yield from _pasted(document, body.keys["script"], script)
    for name, text in env.items() if kind == "run" and isinstance(env, dict) else ():
        if isinstance(text, str) and any(mark.ref for mark in parse(text)[1]):
            message = f"{name}cannot contain references here"
            hint = "use script: its env takes them"
            at = (*body.keys["env"], name)
            yield document.error("reference-in-command", message, at=at, hint=hint)


def _pasted(document: Document, path: Path, script: str) -> Iterator[Diagnostic]:
    marks = [mark for mark in parse(script)[1] if mark.ref]
    if marks:
        message = f"{marks[0].written}is not replaced: a script cannot contain references"
        hint = f'write env: {{NAME: "{marks[0].written}"}} and use $NAME'
        yield document.warning("reference-in-command", message, at=path, hint=hint)


_USE = {
    "schema": "it goes with agent or prompt",
    "session": "it goes with agent or prompt",
    "files": "it goes with agent or prompt",
    "show_needs": "it goes with agent or prompt",
    "on_idle": "it goes with agent or prompt",
    "on_empty": "it goes with agent or prompt",
    "interpreter": "it goes with script",
    "flags": "it goes with script",
    "by_stdin": "it goes with script",
    "timeout": "it goes with run or script; for the whole run there is budget: {time: …}, for "
    "other steps limits: {time: …}",
    "env": "it goes with run or script; for an agent write agents: {NAME: {env: …}}",
    "on_failure": "it goes with steps",
    "speaker": "it goes with steps",
    "returns": "it goes with steps",
    "given": "it goes with steps of a step or of a loop",
    "parallel": "it goes with steps; a list has for_each: {parallel: …}",
}


def _step(document: Document, path: Path, value: Mapping) -> Iterator[Diagnostic]:
    kinds = [key for key in _STEP_KINDS if key in value]
    body = [key for key in BODY_KEYS if key in value]
    if "when_error" in value and "when" not in value:
        yield _useless(document, (*path, "when_error"), ("when",))
    if not kinds and not set(MAIN_KEYS) & set(body):
        if set(value) <= {*_STEP_KEYS, *body}:
            words = "agent, prompt, run, script, cycle, repeat, steps, gate, wait or stop"
            message = f"a step needs {words}"
            yield document.error("missing-field", message, at=path)
        return
    alone = [key for key in kinds if key != "repeat"]
    others = [key for key in (*kinds, *body) if key not in alone[:1]]
    if alone and others:
        message = f"{alone[0]} and {others[0]} exclude each other"
        hint = "put gate inside repeat" if {alone[0], others[0]} == {"gate", "repeat"} else None
        place = (*path, others[0])
        yield _on_key(document, place, "mutually-exclusive", message, hint=hint)


def _words(document: Document, path: Path, command: object) -> Iterator[Diagnostic]:
    """Signs of a shell in a list of words are allowed, but rarely what was meant."""
    found = operator(command) if isinstance(command, list) else None
    if found:
        number, word = found
        message = f"{word} is given to the program as text: no shell is used"
        yield document.warning("shell-syntax", message, at=(*path, number), hint=USE_A_SCRIPT)


# -- loops -----------------------------------------------------------------------------------------


def _loop(document: Document, loop: LoopOutline, *, most: int | None) -> Iterator[Diagnostic]:
    if most is not None and loop.depth > most:
        message = f"loops are nested more than {most} deep"
        yield _on_key(document, loop.path, "too-nested", message)
    value = loop.value
    if "for_each" in value:
        yield from _each(document, loop)
    elif value.get("output") == "list":
        message = "output: list goes with for_each"
        yield document.error("unsupported-here", message, at=(*loop.path, "output"))
    elif (
        most is not None
        and "max" not in value
        and not misspelt(value, _LOOP_KEYS, "max", "for_each")
    ):
        message = "a loop needs max, the most iterations it may have"
        yield _on_key(document, loop.path, "cap-required", message, hint="max: 10")
    memory = value.get("memory")
    if isinstance(memory, dict):
        for key, kinds in _OF_MEMORY.items():
            if key in memory and memory.get("kind") not in kinds:
                owners = tuple(f"kind: {kind}" for kind in kinds)
                yield _useless(document, (*loop.path, "memory", key), owners)
    yield from _people(document, loop)


def _conversation(document: Document, loop: LoopOutline, body: BodyOutline) -> Iterator[Diagnostic]:
    """A conversation and checks on it require a cycle, and a cycle has no other kind of memory."""
    written, place = loop.value.get("memory"), (*loop.path, "memory")
    kind = written.get("kind") if isinstance(written, dict) else written
    if "cycle" in body.value:
        if kind in ("progress-log", "previous-output", "stages", "session"):
            hint = "a cycle continues the conversation: memory: history"
            message = f"{kind} has no use here"
            yield document.error("unsupported-here", message, at=place, hint=hint)
        return
    if kind == "history":
        message, hint = "history has no use here", "it goes with cycle"
        yield document.error("unsupported-here", message, at=place, hint=hint)
    for path, check in checks_of(loop.value.get("until"), (*loop.path, "until")):
        yield from (
            _useless(document, (*path, key), ("cycle",)) for key in _OF_CYCLES if key in check
        )


def _people(document: Document, loop: LoopOutline) -> Iterator[Diagnostic]:
    """Only one gate about an iteration."""
    questions = list(_question_paths(loop.value.get("until"), (*loop.path, "until")))
    if "gate" in loop.value and "for_each" not in loop.value:
        questions.append((*loop.path, "gate"))
    for place in questions[1:]:
        message = "a person is asked about an iteration once"
        yield _on_key(document, place, "mutually-exclusive", message, hint="keep one of them")


def _question_paths(check: object, path: Path) -> Iterator[Path]:
    if not isinstance(check, dict):
        return
    yield from ((*path, key) for key in ("person", "manual") if key in check)
    for key in ("any", "all"):
        parts = check.get(key)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from _question_paths(part, (*path, key, number))


def _each(document: Document, loop: LoopOutline) -> Iterator[Diagnostic]:
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
    given = [key for key in ("items", "from", "expr") if key in each]
    if len(given) > 1:
        message = f"{given[0]} and {given[1]} exclude each other"
        yield _on_key(document, (*path, given[1]), "mutually-exclusive", message)
    elif not given and set(each) <= _EACH_KEYS:
        yield document.error("missing-field", "for_each needs items, from or expr", at=path)
    items, most = each.get("items"), each.get("max_items", MAX_ITEMS)
    if isinstance(items, list) and isinstance(most, int) and len(items) > most:
        message = f"{len(items):,} items; at most {most:,} are allowed"
        hint = "raise max_items" if "max_items" not in each else None
        yield document.error("too-many-items", message, at=(*path, "items"), hint=hint)


# -- checks ----------------------------------------------------------------------------------------


def _check(document: Document, path: Path, check: Mapping) -> Iterator[Diagnostic]:
    kinds = [key for key in _CHECKS if key in check]
    if not kinds and set(check) <= _CHECK_KEYS:
        message = f"a check is one of {', '.join(_CHECKS)}"
        yield document.error("missing-field", message, at=path)
    if len(kinds) > 1:
        message = f"{kinds[0]} and {kinds[1]} are two checks"
        hint = f"write all: [{{{kinds[0]}: …}}, {{{kinds[1]}: …}}], or any:"
        place = (*path, kinds[1])
        yield _on_key(document, place, "mutually-exclusive", message, hint=hint)
    for option, owners in _CHECK_OPTIONS.items():
        if option in check and not set(owners) & set(check) and kinds:
            yield _useless(document, (*path, option), owners)
    judge = check.get("judge")
    if isinstance(judge, dict) and isinstance(judge.get("schema"), dict):
        yield from _judge(document, (*path, "judge", "schema"), judge["schema"])
    if isinstance(check.get("script"), str):
        yield from _pasted(document, (*path, "script"), str(check["script"]))


def _useless(document: Document, path: Path, owners: tuple[str, ...]) -> Diagnostic:
    message, hint = f"{path[-1]} has no use here", f"it goes with {' or '.join(owners)}"
    return _on_key(document, path, "unsupported-here", message, hint=hint)


def _judge(document: Document, path: Path, schema: Mapping) -> Iterator[Diagnostic]:
    """A judge that cannot say done would never end its loop."""
    properties, required = schema.get("properties"), schema.get("required")
    done = properties.get("done") if isinstance(properties, dict) else None
    is_flag = isinstance(done, dict) and done.get("type") == "boolean"
    if not is_flag or not isinstance(required, list) or "done" not in required:
        message = "the answer of a judge must have a boolean done"
        hint = "add properties: {done: {type: boolean}} and required: [done]"
        yield document.error("judge-schema", message, at=path, hint=hint)


# -- conditions ------------------------------------------------------------------------------------


def _condition(document: Document, path: Path, value: Mapping) -> Iterator[Diagnostic]:
    kinds = [key for key in ("expr", "value", "any", "all") if key in value]
    compared = [key for key in OPERATORS if key in value]
    if not kinds and set(value) <= set(WhenSpec.model_fields):
        message = "a condition is one of expr, value, any, all"
        yield document.error("missing-field", message, at=path)
    if len(kinds) > 1:
        message = f"{kinds[0]} and {kinds[1]} are two conditions"
        hint = f"write all: [{{{kinds[0]}: …}}, {{{kinds[1]}: …}}], or any:"
        place = (*path, kinds[1])
        yield _on_key(document, place, "mutually-exclusive", message, hint=hint)
    if "missing" in value and "expr" not in value and kinds:
        yield _useless(document, (*path, "missing"), ("expr",))
    if "value" not in value:
        yield from (_useless(document, (*path, key), ("value",)) for key in compared if kinds)
    elif not compared and set(value) <= set(WhenSpec.model_fields):
        message = f"value needs one of {', '.join(OPERATORS)}"
        yield document.error("missing-field", message, at=path)
    for key in compared[1:]:
        message = f"{compared[0]} and {key} are two comparisons"
        yield _on_key(document, (*path, key), "mutually-exclusive", message, hint="use all: […]")


def _on_key(
    document: Document, path: Path, code: str, message: str, *, hint: str | None = None
) -> Diagnostic:
    return document.error(code, message, at=path, on_key=True, hint=hint)
