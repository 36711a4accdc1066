"""References of a definition: steps and agents that must exist, and values that texts read.

Each reference and each expression must have a value at its place. Agent specs (`claude`,
`command:…`) are checked by their words and prefixes. A template cannot read secrets, because
every text becomes part of a prompt.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from loopwright.dialects.native.checks import GoalSpec, JudgeSpec
from loopwright.dialects.native.fields import model_hint
from loopwright.dialects.native.outline import (
    BodyOutline,
    NativeOutline,
    Path,
    ReferenceScope,
    StepOutline,
)
from loopwright.dialects.native.surface import CycleSpec, NativeDefinition, RepeatSpec, StepSpec
from loopwright.dialects.native.templates import explain, parse, parse_ref, write_ref
from loopwright.model.plan import CHAT
from loopwright.model.record import Ref
from loopwright.syntax.document import Diagnostic, Document, Position, did_you_mean, misspelt
from loopwright.syntax.notations import split_command
from loopwright.syntax.step_references import (
    Expression,
    GraphWording,
    ended_before,
    expression_problems,
    graph_problems,
    known_names,
    near_or_known,
)
from loopwright.syntax.validation import keys_of

_SECRET = re.compile(r"\{\{\s*(?:env|environment|secret|secrets)\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def secret_named(written: str) -> str | None:
    """The name of the variable or secret that a reference asks for, if it asks for one."""
    found = _SECRET.fullmatch(written)
    return found[1] if found else None


PROGRAMS = ("claude", "codex", "gemini", "opencode")
PREFIXES = ("acp", "command", "jsonl", "model", "plugin", "script")

# Plain programs: a list of tools, a number of turns or a price cannot be enforced.
_UNGOVERNED = ("command", "jsonl", "plugin", "script")
GOVERNING_KEYS = (
    *("tools", "deny_tools", "loops", "permission", "max_turns", "max_usd", "temperature"),
)


class SpecFault(NamedTuple):
    """Why something cannot be the backend of an agent."""

    code: str
    message: str
    hint: str | None = None


def is_spec(text: str) -> bool:
    """Whether a text has the form of a spec, as opposed to the name of an agent."""
    return text in PROGRAMS or (text.partition(":")[0] in PREFIXES and ":" in text)


def spec_fault(text: str) -> SpecFault | None:
    """The problem of a text in the form of a spec."""
    prefix, colon, rest = text.partition(":")
    if not colon:
        return None
    if not rest.strip():
        return SpecFault("bad-agent", f"{prefix}: needs something behind the colon")
    if prefix in ("acp", "command", "jsonl", "plugin"):
        words = split_command(rest)
        if not isinstance(words, list):
            return SpecFault(words.code, words.message, words.hint)
    if prefix == "model" and "/" not in rest:
        return SpecFault("bad-agent", "a model is written model:PROVIDER/NAME")
    return None


def governs(spec: str) -> bool:
    """Whether the backend of an agent can enforce rules about tools and turns."""
    return spec.partition(":")[0] not in _UNGOVERNED


def is_chat(spec: str) -> bool:
    """Whether it is a chat model, whose turns and tools the engine has in its own hands."""
    return spec.startswith(CHAT)


def name_for(spec: str) -> str:
    """A name for an agent that is given by its spec alone."""
    return spec.partition(":")[0]


# -- steps -----------------------------------------------------------------------------------------


_BODY_KEYS = keys_of(RepeatSpec) | keys_of(StepSpec) | keys_of(NativeDefinition)
_JUDGE_KEYS = keys_of(JudgeSpec) | keys_of(GoalSpec) | keys_of(CycleSpec)
_OTHERS = {"run", "script", "steps", "cycle"}
_CHAT = "use model:PROVIDER/NAME"
_WORDS = GraphWording("needs", twice="bad-id", unknown="unknown-step", edges="needs")


def graphs(document: Document, made: NativeOutline) -> Iterator[Diagnostic]:
    """Ids that are used twice, needs that are unknown, steps that wait for one another."""
    for graph in made.graphs:
        yield from graph_problems(document, graph.steps, _WORDS, advice=_advice)


def _advice(_: StepOutline, need: str, others: list[str]) -> str | None:
    return near_or_known(need, others)


# -- agents ----------------------------------------------------------------------------------------


def agents(document: Document, made: NativeOutline) -> Iterator[Diagnostic]:
    """Agents without a definition, or with an unsuitable one."""
    written = made.top.get("agents")
    defined = written if isinstance(written, dict) else {}
    for name, entry in defined.items():
        if isinstance(entry, dict):
            yield from _defined(document, entry, ("agents", name))
    default = made.top.get("agent")
    if isinstance(default, str):
        yield from _named(document, default, ("agent",), list(defined))
    is_open = default is None and len(defined) > 1
    for body in made.bodies:
        name, place = body.value.get("agent"), body.keys.get("agent", ())
        if isinstance(name, str) and place != ("agent",):
            yield from _named(document, name, place, list(defined))
        if is_open and _is_call(body, made):
            yield _which(document, body.path, list(defined))
    for path, value in made.calls:
        name = value.get("agent")
        if isinstance(name, str):
            yield from _named(document, name, (*path, "agent"), list(defined))
        elif is_open and "agent" not in value and not misspelt(value, _JUDGE_KEYS, "agent"):
            yield _which(document, path, list(defined))
    yield from _chats(document, made, defined)


def _chats(
    document: Document, made: NativeOutline, defined: dict[str, object]
) -> Iterator[Diagnostic]:
    """Only a chat model can be called turn by turn."""
    usual = made.top.get("agent", next(iter(defined), None))
    for path, value in made.calls:
        name = value.get("agent", usual)
        entry = defined.get(str(name))
        spec = entry.get("use") if isinstance(entry, dict) else name
        if path[-1] != "cycle" or not isinstance(spec, str) or not is_spec(spec) or is_chat(spec):
            continue
        message = f"a cycle is a turn of a chat model, which {spec[:60]} is not"
        yield document.error("unsupported-here", message, at=path, on_key=True, hint=_CHAT)


def _which(document: Document, path: Path, defined: list[str]) -> Diagnostic:
    message = f"agent is required here: {' or '.join(defined)}"
    return document.error("missing-field", message, at=path)


def _is_call(body: BodyOutline, made: NativeOutline) -> bool:
    """Whether a body does nothing: no agent, no program, no steps, no gate."""
    if "agent" in body.value or _OTHERS & set(body.value):
        return False
    steps = {step.path: step.value for graph in made.graphs for step in graph.steps}
    written = steps.get(body.path, made.top)
    repeat = written.get("repeat")
    keys = [*written, *(repeat if isinstance(repeat, dict) else ())]
    if misspelt(keys, _BODY_KEYS, "agent"):
        return False
    return body.path not in steps or bool({"prompt", "repeat"} & set(written))


def _named(document: Document, name: str, path: Path, defined: list[str]) -> Iterator[Diagnostic]:
    if name in defined:
        return
    if is_spec(name):
        yield from _spec(document, name, path)
        return
    hint = model_hint(name) or did_you_mean(name, [*defined, *PROGRAMS])
    hint = hint or known_names(defined) or f"known: {', '.join(PROGRAMS)}, command:CMD, jsonl:CMD"
    message = f"no agent is called {name[:60]}"
    yield document.error("unknown-agent", message, at=path, hint=hint)


def _defined(document: Document, entry: dict[str, object], path: Path) -> Iterator[Diagnostic]:
    spec = entry.get("use")
    if not isinstance(spec, str) or not spec:
        return
    place = (*path, "use")
    if not is_spec(spec):
        hint = model_hint(spec) or did_you_mean(spec, PROGRAMS)
        hint = (
            hint
            or f"known: {', '.join(PROGRAMS)}, acp:, command:, jsonl:, model:, plugin:, script:"
        )
        message = f"nothing is known that is called {spec[:60]}"
        yield document.error("unknown-agent", message, at=place, hint=hint)
        return
    yield from _spec(document, spec, place)
    if entry.get("approvals") and not is_chat(spec):
        message, hint = "approvals are asked for by a chat model only", _CHAT
        at = (*path, "approvals")
        yield document.error("unsupported-here", message, at=at, on_key=True, hint=hint)
    if not governs(spec):
        for key in (key for key in GOVERNING_KEYS if key in entry):
            message = f"{key} cannot be enforced on a plain program"
            hint = "remove it, or use an agent that obeys it, such as claude"
            at = (*path, key)
            yield document.error("unsupported-here", message, at=at, on_key=True, hint=hint)


def _spec(document: Document, spec: str, path: Path) -> Iterator[Diagnostic]:
    problem = spec_fault(spec)
    if problem:
        yield document.error(problem.code, problem.message, at=path, hint=problem.hint)


_DOUBT = "unordered-reference"
_EMPTY = "empty-reference"
_WARNINGS = (_DOUBT, _EMPTY)


class _Found(NamedTuple):
    """What is wrong with a reference."""

    code: str
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class _Given:
    """Names that a definition gives to values, and whether it was converted: another system may
    take what has no value as empty.
    """

    inputs: list[str]
    settings: list[str]
    converted: bool


def references(document: Document, made: NativeOutline) -> Iterator[Diagnostic]:
    """References that lead nowhere, or perhaps too early."""
    top = made.top
    given = _Given(_keys(top.get("inputs")), _keys(top.get("settings")), "converted_from" in top)
    for path, text, scope in made.texts:
        doubted: set[str] = set()
        for mark in parse(text)[1]:
            found = _unread(mark.written) if mark.ref is None else _read(mark.ref, scope, given)
            if found is None or mark.written in doubted:
                continue
            if found.code in _WARNINGS:
                doubted.add(mark.written)
            nth = text.count(mark.written, 0, mark.at)
            yield _diagnostic(document, found, _within(document, path, mark.written, nth=nth))
    for path, text, scope in made.values:
        found = _value(text, scope, given)
        if found:
            yield _diagnostic(document, found, document.at(path))
    for loop in made.loops:
        each = loop.value.get("for_each")
        source = each.get("from") if isinstance(each, dict) else None
        found = _list(source, loop.outside, given) if isinstance(source, str) else None
        if found:
            place = document.at((*loop.path, "for_each", "from"))
            yield _diagnostic(document, found, place)


def expressions(document: Document, made: NativeOutline) -> Iterator[Diagnostic]:
    """Expressions that cannot be parsed, or that use unknown names."""
    for path, text, wants, scope in made.expressions:
        if text.strip():
            seen, there = _seen_from(scope)
            one = Expression(path=path, text=text, wants=wants, ids=seen, late=there)
            yield from expression_problems(document, one)


def _seen_from(scope: ReferenceScope) -> tuple[frozenset[str], frozenset[str]]:
    """The steps that have ended when an expression is evaluated, and all existing ones."""
    seen: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()
    for graph, step in scope.graphs:
        if step is None:
            seen = seen.union(graph.by_id)
            continue
        seen |= ended_before(step, graph.by_id)
        there = there.union(name for name in graph.by_id if name != step.id)
    return seen, there


def _keys(value: object) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _value(text: str, scope: ReferenceScope, given: _Given) -> _Found | None:
    ref = parse_ref(text)
    if ref is not None:
        return _read(ref, scope, given)
    problem, hint = explain("{{" + text + "}}")
    return _Found("unknown-reference", problem, hint.partition("; for literal")[0])


def _list(source: str, scope: ReferenceScope, given: _Given) -> _Found | None:
    ref = parse_ref(source)
    if ref is not None and ref.of in ("result", "input", "item", "message", "previous_result"):
        return _read(ref, scope, given)
    hint = "write steps.ID.result.FIELD or input.NAME, or use expr"
    code = "unknown-reference" if ref is None else "not-a-list"
    return _Found(code, f"{source[:60]} is not a list", hint)


def _unread(written: str) -> _Found:
    secret = secret_named(written)
    if secret is not None:
        message = f"{secret} would be sent to a model and kept in the log"
        hint = f"hand it to the agent's program by its name: pass_env: [{secret}]"
        return _Found("secret-in-prompt", message, hint)
    problem, hint = explain(written)
    code = "bad-template" if written == "{{" else "unknown-reference"
    return _Found(code, problem, hint)


def _read(ref: Ref, scope: ReferenceScope, given: _Given) -> _Found | None:
    match ref.of:
        case "output" | "result":
            return _of_step(ref, scope)
        case "previous_output" | "previous_result":
            found = _of_step_before(ref, scope)
        case "input":
            return _known(ref, [*given.inputs, *scope.inputs], "define it under inputs:")
        case "setting":
            return _known(ref, given.settings, "define it under settings:")
        case "rejection" if not scope.is_rejected:
            hint = "it has a value in a gate with on_reject"
            return _Found(_EMPTY, "rejection is empty here", hint)
        case _:
            found = _of_iteration(ref, scope)
    return found._replace(code=_EMPTY) if found and given.converted else found


def _known(ref: Ref, names: list[str], otherwise: str) -> _Found | None:
    if ref.name in names:
        return None
    hint = near_or_known(ref.name or "", names) or otherwise
    return _Found("unknown-reference", f"no {ref.of} is called {ref.name}", hint)


def _of_iteration(ref: Ref, scope: ReferenceScope) -> _Found | None:
    hint = _without_value(ref, scope)
    name = "outer." * ref.up + ref.of
    return _Found("unknown-reference", f"{name} has no value here", hint) if hint else None


def _without_value(ref: Ref, scope: ReferenceScope) -> str | None:
    """Why a reference to the run or its iteration has no value, or None."""
    inner = scope.loops[-1 - ref.up] if ref.up < len(scope.loops) else None
    match ref.of:
        case "message":
            return "the goal is the message" if scope.is_goal else None
        case "run" | "workspace" | "rejection":
            return None
        case "item":
            listed = scope.has_item or "each" in scope.loops
            return None if listed else "no loop around it is a for_each"
        case "index" | "iteration":
            around = f"there is no {'outer ' * bool(ref.up)}loop around it"
            return None if inner or scope.has_item else around
        case _:
            return (
                None
                if inner == "count"
                else "there is no loop whose iterations run one after another"
            )


def _of_step_before(ref: Ref, scope: ReferenceScope) -> _Found | None:
    """A step in the previous iteration is a step of the innermost loop."""
    hint = _without_value(Ref(of="previous"), scope)
    if hint:
        return _Found("unknown-reference", f"{write_ref(ref)} has no value here", hint)
    names = list(scope.passed.by_id) if scope.passed else []
    if ref.name in names:
        return None
    hint = near_or_known(ref.name or "", names) or "write previous"
    return _Found("unknown-reference", f"no step of this loop is called {ref.name}", hint)


def _of_step(ref: Ref, scope: ReferenceScope) -> _Found | None:
    for graph, step in reversed(scope.graphs):
        if ref.name not in graph.by_id:
            continue
        if step is None or ref.name in ended_before(step, graph.by_id):
            return None
        if ref.name == step.id:
            message = f"{ref.name} cannot read its own {ref.of}"
            return _Found("unknown-reference", message, "previous is the previous iteration")
        message = f"{write_ref(ref)} may be read before {ref.name} has ended"
        return _Found(_DOUBT, message, f"add needs: [{ref.name}]")
    seen = [
        name
        for graph, step in scope.graphs
        for name in graph.by_id
        if step is None or step.id != name
    ]
    hint = near_or_known(ref.name or "", seen)
    message = f"no step here is called {ref.name}"
    return _Found("unknown-reference", message, hint or "there are no other steps here")


def _diagnostic(document: Document, found: _Found, place: Position) -> Diagnostic:
    return Diagnostic(
        document.file,
        place.line,
        place.column,
        found.code,
        found.message,
        found.hint,
        "warning" if found.code in _WARNINGS else "error",
    )


def _within(document: Document, path: Path, written: str, *, nth: int) -> Position:
    """The position of a reference, if the file contains its text unchanged."""
    node, _ = document._walk(path)
    source, at = document._source, node.offset - 1
    for _ in range(nth + 1):
        at = source.text.find(written, at + 1)
        if at < 0:
            return document.at(path)
    return source.position(at)
