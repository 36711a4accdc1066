"""The outline of a definition as it was written: its bodies, loops, graphs, checks and texts.

Made from the raw value before it is validated, so that rules between several values are checked
in the same report as the values themselves. Values of the wrong type are omitted here and left
to `surface.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from loopwright.syntax.document import Document, mapping
from loopwright.syntax.step_references import Wants, needs_of

Path: TypeAlias = tuple[str | int, ...]
Mapping: TypeAlias = dict[str, object]

CALL_KEYS = (
    "agent",
    "prompt",
    "schema",
    "session",
    "files",
    "show_needs",
    "on_idle",
    "on_empty",
)
RUN_KEYS = ("run", "timeout", "env")
SCRIPT_KEYS = ("script", "interpreter", "flags", "by_stdin", "timeout", "env")
STEPS_KEYS = ("steps", "on_failure", "parallel", "speaker", "returns", "given")
CYCLE_KEYS = ("cycle",)
BODY_KEYS = tuple(dict.fromkeys((*CALL_KEYS, *RUN_KEYS, *SCRIPT_KEYS, *STEPS_KEYS, *CYCLE_KEYS)))
MAIN_KEYS = ("agent", "prompt", "run", "script", "steps", "cycle")
# At the top these are about all that is inside.
DEFAULTS = ("agent", "prompt", "on_failure", "parallel", "speaker", "returns")


@dataclass(slots=True, eq=False)
class StepOutline:
    """One step of a graph."""

    path: Path
    value: Mapping
    id: str
    needs: list[str]
    before: set[str] | None = None  # all steps before it, computed on first use


@dataclass(slots=True, eq=False)
class GraphOutline:
    """A list of steps."""

    path: Path
    steps: list[StepOutline] = field(default_factory=list)
    by_id: dict[str, StepOutline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReferenceScope:
    """What a place can use: the loops around it, and the graphs with the step it is in.

    A step of None is a place after all steps of that graph, such as the check of a loop. `passed`
    is the graph that the innermost loop repeats, if it repeats one. Inside steps that are a
    separate workflow, `inputs` are its own inputs, and `has_item` is whether it runs for the items
    of a list.
    """

    loops: tuple[Literal["count", "each"], ...] = ()
    graphs: tuple[tuple[GraphOutline, StepOutline | None], ...] = ()
    passed: GraphOutline | None = None
    is_goal: bool = False
    is_rejected: bool = False
    inputs: tuple[str, ...] = ()
    has_item: bool = False


@dataclass(slots=True, eq=False)
class BodyOutline:
    """The body at a place. `keys` has the position and the value of each key."""

    path: Path
    keys: dict[str, Path]
    value: Mapping
    scope: ReferenceScope
    is_top: bool = False


@dataclass(slots=True, eq=False)
class LoopOutline:
    """A loop; `depth` counts from 1."""

    path: Path
    value: Mapping
    outside: ReferenceScope
    depth: int


class ExpressionOutline(NamedTuple):
    """An expression, and what it must give."""

    path: Path
    text: str
    wants: Wants
    scope: ReferenceScope


class CallOutline(NamedTuple):
    """A place other than a body that calls an agent: a judge, rework, the coordinator."""

    path: Path
    value: Mapping


@dataclass(slots=True, eq=False)
class NativeOutline:
    """All of it, flat."""

    top: Mapping
    bodies: list[BodyOutline] = field(default_factory=list)
    loops: list[LoopOutline] = field(default_factory=list)
    graphs: list[GraphOutline] = field(default_factory=list)
    checks: list[tuple[Path, Mapping]] = field(default_factory=list)
    conditions: list[tuple[Path, Mapping]] = field(default_factory=list)
    texts: list[tuple[Path, str, ReferenceScope]] = field(default_factory=list)
    expressions: list[ExpressionOutline] = field(default_factory=list)
    values: list[tuple[Path, str, ReferenceScope]] = field(default_factory=list)
    calls: list[CallOutline] = field(default_factory=list)


def outline(document: Document) -> NativeOutline:
    """The outline of a document, as far as it has the right types."""
    top = mapping(document.value)
    made = NativeOutline(top)
    scope = _container(made, top, (), ReferenceScope())
    _text(made, top, "goal", (), ReferenceScope(loops=scope.loops, is_goal=True))
    _call(made, top, "coordinator", (), ReferenceScope())
    return made


def _container(
    made: NativeOutline, value: Mapping, path: Path, scope: ReferenceScope
) -> ReferenceScope:
    """The top or a step: a body, perhaps inside a loop. Returns the scope of the body."""
    keys = {key: (*path, key) for key in BODY_KEYS if key in value}
    merged: Mapping = {key: value[key] for key in keys}
    inside = scope
    repeat = value.get("repeat")
    if isinstance(repeat, dict):
        below = (*path, "repeat")
        keys |= {key: (*below, key) for key in BODY_KEYS if key in repeat}
        merged |= {key: repeat[key] for key in BODY_KEYS if key in repeat}
        inside = _loop(made, repeat, below, scope)
    body = BodyOutline(path, keys, merged, inside, is_top=not path)
    made.bodies.append(body)
    graph = _graph(made, body, is_repeated=inside is not scope)
    if isinstance(repeat, dict):
        _after_iteration(made, repeat, (*path, "repeat"), inside, graph)
    if "prompt" in keys:
        _text(made, merged, "prompt", keys["prompt"][:-1], inside)
    if "cycle" in keys:
        _call(made, merged, "cycle", keys["cycle"][:-1], inside)
    if "script" in keys and "env" in keys:
        _texts(made, merged["env"], keys["env"], inside)
    return inside


def _loop(
    made: NativeOutline, repeat: Mapping, path: Path, scope: ReferenceScope
) -> ReferenceScope:
    """Note a loop. Returns the scope of its body."""
    kind: Literal["count", "each"] = "each" if "for_each" in repeat else "count"
    inside = replace(scope, loops=(*scope.loops, kind), passed=None)
    made.loops.append(LoopOutline(path, repeat, scope, len(inside.loops)))
    each = repeat.get("for_each")
    _expression(made, mapping(each), (*path, "for_each"), scope, wants="list")
    return inside


def _graph(made: NativeOutline, body: BodyOutline, *, is_repeated: bool) -> GraphOutline | None:
    steps = body.value.get("steps")
    if not isinstance(steps, list):
        return None
    graph = GraphOutline(body.keys["steps"])
    made.graphs.append(graph)
    for number, value in enumerate(steps):
        if not isinstance(value, dict):
            continue
        name = value.get("id")
        step_id = name if isinstance(name, str) else ""
        step = StepOutline((*graph.path, number), value, step_id, needs_of(value, "needs"))
        graph.steps.append(step)
        if step_id:
            graph.by_id.setdefault(step_id, step)
    around = _sealed(made, body)
    passed = graph if is_repeated and around is body.scope else around.passed
    for step in graph.steps:
        _step(made, step, replace(around, graphs=(*around.graphs, (graph, step)), passed=passed))
    return graph


def _sealed(made: NativeOutline, body: BodyOutline) -> ReferenceScope:
    """What the steps of a body can use of their surroundings."""
    given = body.value.get("given")
    if not isinstance(given, dict):
        return body.scope
    scope, path = body.scope, body.keys["given"]
    _text(made, given, "message", path, scope)
    _texts(made, given.get("inputs"), (*path, "inputs"), scope)
    return ReferenceScope(
        inputs=(*scope.inputs, *mapping(given.get("inputs"))),
        has_item=scope.has_item or "each" in scope.loops,
    )


def _step(made: NativeOutline, step: StepOutline, scope: ReferenceScope) -> None:
    inside = _container(made, step.value, step.path, scope)
    _condition(made, step.value.get("when"), (*step.path, "when"), scope)
    if "repeat" not in step.value:
        gate, place = mapping(step.value.get("gate")), (*step.path, "gate")
        gated = replace(inside, is_rejected="on_reject" in gate)
        _text(made, gate, "message", place, gated)
        _call(made, gate, "on_reject", place, gated)
    _text(made, step.value, "stop", step.path, inside)


def _condition(made: NativeOutline, value: object, path: Path, scope: ReferenceScope) -> None:
    if isinstance(value, str):
        made.expressions.append(ExpressionOutline(path, value, "bool", scope))
    if not isinstance(value, dict):
        return
    made.conditions.append((path, value))
    _expression(made, value, path, scope, wants="bool")
    compared = value.get("value")
    if isinstance(compared, str):
        made.values.append(((*path, "value"), compared, scope))
    for key in ("any", "all"):
        parts = value.get(key)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            _condition(made, part, (*path, key, number), scope)


def _after_iteration(
    made: NativeOutline,
    repeat: Mapping,
    path: Path,
    inside: ReferenceScope,
    graph: GraphOutline | None,
) -> None:
    """What is evaluated after the body of an iteration: the gate and the check."""
    graphs = (*inside.graphs, (graph, None)) if graph else inside.graphs
    scope = replace(inside, graphs=graphs, passed=graph)
    _text(made, mapping(repeat.get("gate")), "message", (*path, "gate"), scope)
    for place, check in checks_of(repeat.get("until"), (*path, "until")):
        made.checks.append((place, check))
        for key in ("person", "manual"):
            _text(made, mapping(check.get(key)), "message", (*place, key), scope)
        for key in ("judge", "goal"):
            _call(made, check, key, place, scope)
        _text(made, mapping(check.get("approval")), "criteria", (*place, "approval"), scope)
        _expression(made, check, place, scope, wants="bool")
        if "script" in check:
            _texts(made, check.get("env"), (*place, "env"), scope)


def checks_of(check: object, path: Path) -> Iterator[tuple[Path, Mapping]]:
    """A check and all that it is made of."""
    if not isinstance(check, dict):
        return
    yield path, check
    for key in ("any", "all"):
        parts = check.get(key)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from checks_of(part, (*path, key, number))


def _call(made: NativeOutline, value: Mapping, key: str, path: Path, scope: ReferenceScope) -> None:
    called = value.get(key)
    if isinstance(called, dict):
        made.calls.append(CallOutline((*path, key), called))
        _text(made, called, "prompt", (*path, key), scope)


def _expression(
    made: NativeOutline, value: Mapping, path: Path, scope: ReferenceScope, *, wants: Wants
) -> None:
    text = value.get("expr")
    if isinstance(text, str):
        made.expressions.append(ExpressionOutline((*path, "expr"), text, wants, scope))


def _texts(made: NativeOutline, values: object, path: Path, scope: ReferenceScope) -> None:
    for key in mapping(values):
        _text(made, mapping(values), key, path, scope)


def _text(made: NativeOutline, value: Mapping, key: str, path: Path, scope: ReferenceScope) -> None:
    text = value.get(key)
    if isinstance(text, str):
        made.texts.append(((*path, key), text, scope))
