"""Names that must exist: steps that are needed, agents that are called."""

from collections.abc import Iterator

from loopwright.dialects.native.checks import GoalSpec, JudgeSpec
from loopwright.dialects.native.hints import model_hint
from loopwright.dialects.native.outline import BodyAt, Outline, Path, StepAt
from loopwright.dialects.native.specs import (
    GOVERNING_KEYS,
    PROGRAMS,
    governs,
    is_chat,
    is_spec,
    spec_fault,
)
from loopwright.dialects.native.surface import CycleSpec, Definition, RepeatSpec, StepSpec
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.fields import keys_of
from loopwright.syntax.graphs import Wording, graph_problems, known_names, near_or_known
from loopwright.syntax.words import did_you_mean, misspelt

# -- steps -----------------------------------------------------------------------------------------


_BODY_KEYS = keys_of(RepeatSpec) | keys_of(StepSpec) | keys_of(Definition)
_JUDGE_KEYS = keys_of(JudgeSpec) | keys_of(GoalSpec) | keys_of(CycleSpec)
_OTHERS = {"run", "script", "steps", "cycle"}
_CHAT = "use model:PROVIDER/NAME"
_WORDS = Wording("needs", twice="bad-id", unknown="unknown-step", edges="needs")


def graphs(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Ids that are used twice, needs that are unknown, steps that wait for one another."""
    for graph in made.graphs:
        yield from graph_problems(document, graph.steps, _WORDS, advice=_advice)


def _advice(_: StepAt, need: str, others: list[str]) -> str | None:
    return near_or_known(need, others)


# -- agents ----------------------------------------------------------------------------------------


def agents(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Agents that nobody has defined, or that cannot be what they should be."""
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


def _chats(document: Document, made: Outline, defined: dict[str, object]) -> Iterator[Diagnostic]:
    """Only a chat model can be asked turn by turn."""
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


def _is_call(body: BodyAt, made: Outline) -> bool:
    """Whether a body is a call of nobody: no program, no steps, no gate or the like."""
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
