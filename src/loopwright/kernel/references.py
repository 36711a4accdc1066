"""References: fill templates, resolve references, and build the scope of an expression.

Templates are filled by structure: a value that was filled in is never scanned again. In an
expression `steps` contains every finished step that is visible, from the inside out; the other
names describe the iteration: its number from 0, its item, and its output.

A graph with `given` is a workflow of its own. Its steps see each other and the values that they
were given, but not the steps and loops around the graph; only the item of an enclosing list is
visible inside. Given values are resolved outside, where they were written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import msgspec

from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.kernel.frames import (
    Body,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    StepsBody,
)
from loopwright.kernel.signal import without_signal
from loopwright.kernel.state import KernelServices, State, enclosing_iteration, session_key
from loopwright.model.actions import CallAgent, Each, WorkflowInputs
from loopwright.model.checks import AllOf, AnyOf, Signal, leaves
from loopwright.model.policy import SameSession
from loopwright.model.record import (
    Blob,
    ItemsExpr,
    ItemsFrom,
    JsonValue,
    Lit,
    LiteralItems,
    Ref,
    Template,
    Text,
)

_COMBINED = (AnyOf, AllOf)


class CallPrompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that an agent receives for one call."""

    text: str = ""
    schema: dict[str, JsonValue] | None = None
    session: str | None = None
    session_used: Usage = NO_USAGE  # by the session, before this call
    files: tuple[str, ...] = ()  # of the workspace, to be shown below the text


NO_PROMPT = CallPrompt()


def iteration_in_scope(owner: Owner) -> IterationOwner | None:
    """The innermost iteration around a place that belongs to the same workflow."""
    place = owner
    while type(place) is not IterationOwner:
        if place.parent is None or _given(place.parent) is not None:
            return None
        place = place.parent.owner
    return place


def visible_graphs(owner: Owner, *, outside: bool = False) -> Iterator[StepsBody]:
    """The graphs that a place sees, from the inside out; `outside`: without its own."""
    place, body = owner, None if outside else owner.body
    while True:
        if isinstance(body, StepsBody):
            yield body
            if _given(body) is not None:
                return
        if place.parent is None:
            return
        body = place.parent
        place = body.owner


def find_workflow_input(
    owner: Owner, ref: Ref, *, outside: bool = False
) -> tuple[Owner, Template] | None:
    """What the workflow around a place was given for its message or for an input, and the place
    from around which that is seen; None where it is the run's own.
    """
    for graph in visible_graphs(owner, outside=outside):
        given = _given(graph)
        if given is None:
            continue
        if ref.of == "input" and ref.name in given.inputs:
            return graph.owner, given.inputs[ref.name]
        if ref.of == "message" and given.message:
            return graph.owner, given.message
        return find_workflow_input(graph.owner, ref, outside=True)
    return None


def _given(body: Body) -> WorkflowInputs | None:
    """What a graph was given that is a workflow of its own."""
    return body.index.action.given if type(body) is StepsBody else None


def hidden_word(owner: Owner) -> str | None:
    """The signal of an iteration to its loop only that all is done."""
    if type(owner) is not IterationOwner:
        return None
    until = owner.parent.action.until
    if type(until) is Signal:  # the usual case, without a walk
        return until.word if until.anywhere else None
    if type(until) not in _COMBINED:
        return None
    found = (leaf for leaf in leaves(until) if isinstance(leaf, Signal) and leaf.anywhere)
    return next((leaf.word for leaf in found), None)


SHOWN_CHARS = 80


def describe_value(value: JsonValue) -> str:
    """`a text: "no list today"`, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    shown = " ".join(msgspec.json.encode(value).decode().split())
    if len(shown) > SHOWN_CHARS:
        shown = f"{shown[: SHOWN_CHARS - 1]}…"
    kinds: dict[type, str] = {str: "a text", dict: "an object", list: "a list"}
    return f"{kinds.get(type(value), 'a number')}: {shown}"


def fill(
    state: State,
    owner: Owner,
    template: Template,
    services: KernelServices,
    *,
    outside: bool = False,
) -> str:
    """A template as text; `outside`: as it is seen from around the place."""
    return "".join(
        part.text
        if isinstance(part, Lit)
        else _filled(state, owner, part, services, outside=outside)
        for part in template
    )


def _filled(
    state: State, owner: Owner, ref: Ref, services: KernelServices, *, outside: bool
) -> str:
    if ref.if_skipped is not None and not _has_run(owner, ref.name or "", outside=outside):
        return ref.if_skipped
    value = resolve(state, owner, ref, services, outside=outside)
    if not ref.json:
        return _as_text(value, services)
    plain = services.read(value) if isinstance(value, Blob) else value
    return msgspec.json.encode(plain).decode()


def request_text(state: State, owner: Owner, template: Template, services: KernelServices) -> str:
    """What is asked at a place: its own prompt, else the run's message, else the plan's."""
    if template:
        return fill(state, owner, template, services)
    if state.plan_index.has_given:
        told_so = message_for(state, owner, services)
        if told_so is not None:
            return told_so
    message = services.read(state.started.message) if state.started else ""
    return message or fill(state, owner, state.plan.message, services)


def message_for(state: State, owner: Owner, services: KernelServices) -> str | None:
    """What the workflow around a place is asked, unless that is the run itself."""
    given = (
        find_workflow_input(owner, Ref(of="message"))
        if state.started and state.plan_index.has_given
        else None
    )
    return fill(state, *given, services, outside=True) if given is not None else None


def _as_text(value: JsonValue | Blob, services: KernelServices) -> str:
    if isinstance(value, Blob | str):
        return services.read(value)
    return "" if value is None else msgspec.json.encode(value).decode()


def resolve(
    state: State, owner: Owner, ref: Ref, services: KernelServices, *, outside: bool = False
) -> JsonValue | Blob:
    """What a reference points at from a place; None when there is nothing there."""
    started = state.started
    match ref.of:
        case "message" | "input":
            return _resolve(state, owner, ref, services, outside=outside)
        case "run":
            return state.run
        case "setting":
            return state.plan.settings.get(ref.name or "", "")
        case "rejection":
            return owner.body.rejection if isinstance(owner.body, LeafBody) else ""
        case "workspace":
            return started.workspace if started else ""
        case "output":
            steps = _steps_with(owner, ref.name or "", outside=outside)
            return (
                _shown(steps.owner, steps.results[ref.name or ""], ref, services) if steps else None
            )
        case "result":
            found = step_result(owner, ref.name or "", outside=outside)
            return _result_field(found, ref.field, services) if found else None
        case "item" | "index" | "iteration" | "max":
            inside = enclosing_iteration(owner)
        case _:
            inside = iteration_in_scope(owner)
    for _ in range(ref.up):
        inside = enclosing_iteration(inside.parent.owner) if inside is not None else None
    return _of_iteration(state, inside, ref, services) if inside is not None else None


def _resolve(
    state: State, owner: Owner, ref: Ref, services: KernelServices, *, outside: bool
) -> JsonValue | Blob:
    """The message or an input: of the workflow around a place, else of the run."""
    started = state.started
    given = (
        find_workflow_input(owner, ref, outside=outside)
        if started and state.plan_index.has_given
        else None
    )
    if given is not None:
        return fill(state, *given, services, outside=True)
    if ref.of == "message":
        message = _message(state, owner, services)
        value = _read_json(message, services) if ref.field else None
        # A message that is not an object has no fields: it is passed unchanged.
        return _field(value, ref.field) if isinstance(value, dict) else message
    return _field(started.inputs.get(ref.name or "") if started else None, ref.field)


def _message(state: State, owner: Owner, services: KernelServices) -> Text:
    """What was asked when the run started, else what the plan itself asks."""
    given = state.started.message if state.started else ""
    own = tuple(part for part in state.plan.message if not _is_message(part))
    return given or fill(state, owner, own, services)


def _is_message(part: Lit | Ref) -> bool:
    return isinstance(part, Ref) and part.of == "message"


def _of_iteration(
    state: State, inside: IterationOwner, ref: Ref, services: KernelServices
) -> JsonValue | Blob:
    repeat = inside.parent
    match ref.of:
        case "item" | "index":
            return _of_item(state, inside, ref, services)
        case "iteration":
            return inside.iteration
        case "max":
            return repeat.action.max
        case "previous":
            return repeat.progress.last.output if repeat.progress.last else None
        case "previous_output" | "previous_result":
            return _of_previous(inside, ref, services)
        case _:
            return _feedback(inside)


def _feedback(inside: IterationOwner) -> str:
    """The text of a person at the gate of the nearest loop with one."""
    place: IterationOwner | None = inside
    while place is not None and place.parent.action.gate is None:
        place = iteration_in_scope(place.parent.owner)
    return (place or inside).parent.progress.feedback


def _of_previous(inside: IterationOwner, ref: Ref, services: KernelServices) -> JsonValue | Blob:
    """The output of a step in the previous iteration; empty in the first iteration."""
    place = _iteration_with(inside, ref.name or "")
    found = place.parent.progress.last_steps.get(ref.name or "") if place is not None else None
    if place is None or found is None:
        return None
    if ref.of == "previous_output":
        return _shown(place, found, ref, services)
    return _result_field(found, ref.field, services)


def _iteration_with(inside: IterationOwner, step: str) -> IterationOwner | None:
    """The nearest enclosing iteration that has a step of this name."""
    place: IterationOwner | None = inside
    while place is not None:
        if isinstance(place.body, StepsBody) and step in place.body.index.at:
            break
        place = iteration_in_scope(place.parent.owner)
    return place


def _shown(owner: Owner, found: Result, ref: Ref, services: KernelServices) -> Text | None:
    """The output of a step at this path, without the signal for the enclosing loop. If it has a
    structured result and no text, or the reference prefers the result, that result as JSON.
    """
    if found.result is not None and (found.output == "" or ref.structured):
        return found.result if isinstance(found.result, Blob) else _as_text(found.result, services)
    word = hidden_word(owner)
    if word is None or found.output is None:
        return found.output
    return without_signal(services.read(found.output), word)


# -- values that are not there ---------------------------------------------------------------------


def missing_value(
    state: State,
    owner: Owner,
    template: Template,
    services: KernelServices,
    *,
    outside: bool = False,
) -> str | None:
    """Why a text cannot be filled, in words, where the plan does not take nothing for a value."""
    if state.plan.missing == "empty":
        return None
    refs = (part for part in template if isinstance(part, Ref))
    found = (_missing(state, owner, ref, services, outside=outside) for ref in refs)
    return next((why for why in found if why is not None), None)


def _missing(
    state: State, owner: Owner, ref: Ref, services: KernelServices, *, outside: bool
) -> str | None:
    match ref.of:
        case "setting":
            name = (ref.name or "").replace("_", " ")
            return None if state.plan.settings.get(ref.name or "") else f"no {name} is known"
        case "message" | "input":
            given = find_workflow_input(owner, ref, outside=outside)
            return missing_value(state, *given, services, outside=True) if given else None
        case "item" if ref.field:
            return _missing_in_item(state, owner, ref, services)
        case "result" | "previous_result":
            return _missing_in_step(owner, ref, services, outside=outside)
        case _:
            return None


def _missing_in_item(state: State, owner: Owner, ref: Ref, services: KernelServices) -> str | None:
    item = resolve(state, owner, Ref(of="item"), services)
    if not isinstance(item, dict):
        return f"the item has no field {ref.field}: it is not a JSON object"
    if ref.field not in item:
        return f"the item has no field {ref.field}; it has {', '.join(list(item)[:12])}"
    return None


def _missing_in_step(
    owner: Owner, ref: Ref, services: KernelServices, *, outside: bool
) -> str | None:
    if ref.of == "result":
        found = step_result(owner, ref.name or "", outside=outside)
    else:
        inside = iteration_in_scope(owner)
        place = _iteration_with(inside, ref.name or "") if inside is not None else None
        found = place.parent.progress.last_steps.get(ref.name or "") if place is not None else None
    if found is None or found.status == "skipped" or found.result is not None:
        return (
            None  # a step that has not run has no output; its schema says which fields are optional
        )
    value = _read_json(found.output, services)
    if not isinstance(value, dict):
        return f"{ref.name} has no field {ref.field}: its output is not a JSON object"
    if ref.field not in value:
        return f"{ref.name} has no field {ref.field}; it has {', '.join(list(value)[:12])}"
    return None


def _of_item(state: State, inside: IterationOwner, ref: Ref, services: KernelServices) -> JsonValue:
    """The item of the nearest pass over a list; a counted loop inside it does not hide it."""
    place: IterationOwner | None = inside
    while place is not None and place.parent.action.each is None:
        place = enclosing_iteration(place.parent.owner)
    if place is None or place.parent.action.each is None:
        return None
    if ref.of == "index":
        return place.number
    items = items_of(state, place.parent, place.parent.action.each, services)
    return _field(items[place.number], ref.field) if isinstance(items, list) else None


def items_of(
    state: State, body: RepeatBody, each: Each, services: KernelServices
) -> list[JsonValue] | Failure:
    """The list that a loop goes over, or why there is none. Found once for each frame: what it
    depends on has ended before the loop begins, so a resumed run finds the same list.
    """
    if body.items.values is not None:
        return body.items.values
    found = body.items.missing or _find_items(state, body.owner, each, services)
    if isinstance(found, Failure):
        body.items.missing = found
    else:
        body.items.values = found
    return found


def _find_items(
    state: State, owner: Owner, each: Each, services: KernelServices
) -> list[JsonValue] | Failure:
    match each.items:
        case LiteralItems(values=values):
            found: JsonValue | Blob = list(values)
        case ItemsFrom(ref=ref):
            found = _list_in(resolve(state, owner, ref, services), services)
            if found is None and ref.of == "result" and ref.field is None:
                ended = step_result(owner, ref.name or "")  # its output is not JSON
                found = services.read(ended.output) or None if ended is not None else None
        case ItemsExpr(expr=expr):
            value = services.evaluate(expr, scope_at(state, owner, services), wants="list")
            if value.problem:
                return Failure("not-a-list", value.problem)
            found = value.value
        case _:
            assert_never(each.items)
    if isinstance(found, Blob) or not isinstance(found, list):
        words = describe_value(services.read(found) if isinstance(found, Blob) else found)
        return Failure("not-a-list", f"the items must be a list, found {words}")
    if len(found) > each.max_items:
        return Failure(
            "too-many-items", f"{len(found)} items, at most {each.max_items} are allowed"
        )
    return found


def _list_in(found: JsonValue | Blob, services: KernelServices) -> JsonValue | Blob:
    """A text that is a list in JSON is taken for that list."""
    value = _read_json(found, services) if isinstance(found, Blob | str) else None
    return value if isinstance(value, list) else found


def step_result(owner: Owner, step: str, *, outside: bool = False) -> Result | None:
    """Result of a step that ended, looked for from the inside out."""
    steps = _steps_with(owner, step, outside=outside)
    return steps.results[step] if steps is not None else None


def _has_run(owner: Owner, step: str, *, outside: bool) -> bool:
    found = step_result(owner, step, outside=outside)
    return found is not None and found.status != "skipped"


def _steps_with(owner: Owner, step: str, *, outside: bool = False) -> StepsBody | None:
    """The nearest graph in which a step of this name has ended."""
    return next(
        (one for one in visible_graphs(owner, outside=outside) if step in one.results), None
    )


def _result_field(found: Result, dotted: str | None, services: KernelServices) -> JsonValue:
    """A field of a step's result; if it has none, a field of its output, if that is JSON."""
    text = found.output if found.result is None else found.result
    return _field(_read_json(text, services), dotted)


def _read_json(text: Text | None, services: KernelServices) -> JsonValue:
    try:
        value: JsonValue = msgspec.json.decode(services.read(text))
    except (msgspec.DecodeError, RecursionError):
        return None  # not JSON: there is nothing at this place
    return value


def _field(value: JsonValue, dotted: str | None) -> JsonValue:
    for name in (dotted or "").split(".") if dotted else ():
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and len(name) < 10:
            value = next(iter(value[int(name) :][:1]), None)
        else:
            return None
    return value


# -- what an expression sees -----------------------------------------------------------------------


@dataclass(slots=True)
class ExpressionScope:
    """Names for one evaluation."""

    owner: Owner
    services: KernelServices
    step_ids: frozenset[str]
    variables: Mapping[str, JsonValue]

    def step(self, name: str) -> dict[str, JsonValue] | None:
        """A step that has ended, as expressions see it."""
        found = step_result(self.owner, name)
        return None if found is None else _as_seen(found, self.services)


def scope_at(
    state: State, owner: Owner, services: KernelServices, value: Result | None = None
) -> ExpressionScope:
    """The names in scope at a path; `value` is the result of the iteration that is checked."""
    inside = iteration_in_scope(owner)
    last = inside.parent.progress.last if inside is not None else None
    about = value or last
    return ExpressionScope(
        owner=owner,
        services=services,
        step_ids=frozenset(_visible(owner)),
        variables={
            "iteration": inside.number if inside is not None else 0,
            "index": _plain(resolve(state, owner, Ref(of="index"), services)) or 0,
            "item": _plain(resolve(state, owner, Ref(of="item"), services)),
            "content": services.read(about.output) if about else "",
            "result": _object(about.result if about else None, services),
            "status": about.status if about else "",
        },
    )


def _visible(owner: Owner) -> list[str]:
    """Ids of all steps around a place, whether they have ended or not."""
    return [name for graph in visible_graphs(owner) for name in graph.index.at]


def _as_seen(found: Result, services: KernelServices) -> dict[str, JsonValue]:
    return {
        "content": services.read(found.output),
        "status": found.status,
        "result": _object(found.result, services),
    }


def _object(text: Text | None, services: KernelServices) -> JsonValue:
    if text is None:
        return {}
    value: JsonValue = msgspec.json.decode(services.read(text))
    return value


def _plain(value: JsonValue | Blob) -> JsonValue:
    return None if isinstance(value, Blob) else value


def thread_of(state: State, owner: Owner, call: CallAgent) -> tuple[IterationOwner, str] | None:
    """The iteration in which an agent continues its previous iteration, and the name of the
    thread; None if it starts again. Another backend of the agent cannot know the conversation,
    so it is part of the name.
    """
    inside = iteration_in_scope(owner)
    if inside is None:
        return None
    if call.session != "thread" and not isinstance(inside.parent.action.memory, SameSession):
        return None
    agent = state.plan.agents.get(call.agent)
    spec = (agent.spec or "") if agent is not None else ""
    return inside, session_key(owner, inside, spec)
