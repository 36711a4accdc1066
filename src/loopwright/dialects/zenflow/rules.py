"""Rules between the keys of one place: conflicts, required keys, and keys without an effect."""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple, cast

from loopwright.dialects.zenflow.outline import (
    MAX_LOOPS,
    LoopEntry,
    Path,
    StepEntry,
    ZenflowOutline,
    is_reference,
)
from loopwright.dialects.zenflow.surface import (
    ID_HINT,
    MAX_TEXT,
    NOT_ISOLATED,
    PER_STEP,
    STRICT_ID,
    WORKTREES,
    LoopSpec,
    ZenflowWorkflow,
    milliseconds,
)
from loopwright.model.record import JsonValue
from loopwright.syntax.document import Diagnostic, Document, check_text, clip, mapping, misspelt
from loopwright.syntax.validation import keys_of

MAX_STEPS = 100
MAX_ITEMS = 1_000


class KeyConflict(NamedTuple):
    """What is wrong when two keys meet."""

    code: str
    key: str


_INCLUDE_HAS = (
    KeyConflict("include-has-agent", "agent"),
    KeyConflict("include-has-instructions", "instructions"),
    KeyConflict("include-has-loop", "loop"),
    KeyConflict("include-has-condition", "condition"),
    KeyConflict("include-has-context-files", "contextFiles"),
    KeyConflict("include-has-model", "model"),
)
_FOREACH_WITH = (
    KeyConflict("foreach-with-max-iterations", "maxIterations"),
    KeyConflict("foreach-with-until", "until"),
    KeyConflict("foreach-with-until-agent", "untilAgent"),
    KeyConflict("foreach-with-delay", "delay"),
    KeyConflict("foreach-with-on-exhausted", "onExhausted"),
)
_FLOW_KEYS = keys_of(ZenflowWorkflow)
_LOOP_KEYS = keys_of(LoopSpec)
_OF_THE_BODY = ("agent", "instructions", "model", "contextFiles")
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")


def structure(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """All that breaks a rule between keys."""
    yield from _root(document, tree)
    yield from _isolation(document, tree)
    yield from _variables(document, tree)
    for step in tree.graphs[0].steps:
        yield from _top_step(document, step)
    for step in tree.steps:
        if step.has("include"):
            yield from _include(document, step)
    for loop in tree.loops:
        yield from _loop(document, loop)


# -- the workflow ----------------------------------------------------------------------------------


def _root(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    name, steps = tree.top.get("name"), tree.top.get("steps")
    is_blank = isinstance(name, str) and not name.strip()
    if is_blank or (name is None and not misspelt(tree.top, _FLOW_KEYS, "name")):
        message = "a workflow needs a name"
        yield document.error("missing-name", message, at=("name",), hint="name: my-workflow")
    elif isinstance(name, str) and not check_text(name) and len(_scripts(name)) > 1:
        message = f"the name mixes letters that look alike: {' and '.join(_scripts(name))}"
        yield document.warning("mixed-script", message, at=("name",))
    if steps is None and not misspelt(tree.top, _FLOW_KEYS, "steps"):
        hint = "steps: [{id: first, instructions: …}]"
        yield document.error("missing-steps", "a workflow needs steps", hint=hint)
    elif steps == []:
        yield document.error("empty-steps", "there is no step in it", at=("steps",))
    elif isinstance(steps, list) and len(steps) > MAX_STEPS:
        message = f"{len(steps)} steps; at most {MAX_STEPS} are allowed"
        hint = "put some of them into a workflow of their own and include it"
        yield document.error("too-many-steps", message, at=("steps",), hint=hint)


def _variables(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """Texts that use an environment variable; its value could be a secret."""
    texts: list[tuple[Path, object]] = [
        *(
            (("agents", name, "prompt"), mapping(one).get("prompt"))
            for name, one in tree.agents.items()
        ),
        *(((*step.path, "instructions"), step.value.get("instructions")) for step in tree.steps),
    ]
    for place, text in texts:
        found = _VARIABLE.search(text) if isinstance(text, str) else None
        if found is not None:
            message = f"{found[0][:60]} stays as it is: prompts get no values of the environment"
            hint = "write the value, or give it in the message after the file"
            yield document.warning("unset-variable", message, at=place, hint=hint)


def _isolation(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """Report the isolation of the run, if it differs from the requested one."""
    options = tree.top.get("options")
    wanted = options.get("isolation") if isinstance(options, dict) else None
    if not isinstance(wanted, str) or wanted in (*NOT_ISOLATED, *WORKTREES):
        return
    if wanted == PER_STEP:
        message = "all steps of the run share one Git worktree, so that later steps see the files"
        hint = "the user's own files stay as they are; `loopwright apply RUN` merges the result"
    else:
        message = f"isolation {clip(wanted)!r} is not known: the run works in a Git worktree"
        hint = "known are worktree, worktree-per-step and none; --sandbox confines the agents"
    yield document.warning("isolation", message, at=("options", "isolation"), hint=hint)


def _scripts(name: str) -> list[str]:
    """The alphabets of a name whose letters are easily taken for one another."""
    found = {unicodedata.name(char, "").partition(" ")[0] for char in name if char.isalpha()}
    return [script.capitalize() for script in _SCRIPTS if script in found]


# -- steps -----------------------------------------------------------------------------------------


def _top_step(document: Document, step: StepEntry) -> Iterator[Diagnostic]:
    """Outside of loops ids are lower case and texts are short."""
    if step.id and step.id.isascii() and not STRICT_ID.fullmatch(step.id):
        lower = step.id.lower()
        if STRICT_ID.fullmatch(lower):
            message = f'"{step.id}" must be in lower case here'
            place = (*step.path, "id")
            yield document.error("bad-id", message, at=place, hint=f"{ID_HINT}: {lower}")
    text = step.value.get("instructions")
    if isinstance(text, str) and len(text) > MAX_TEXT and not is_reference(text):
        message = f"instructions must be text of at most {MAX_TEXT:,} characters, not {len(text):,}"
        hint = "put them into a file and write instructions: '@prompts/NAME.md'"
        yield document.error("out-of-range", message, at=(*step.path, "instructions"), hint=hint)


def _include(document: Document, step: StepEntry) -> Iterator[Diagnostic]:
    for code, key in _INCLUDE_HAS:
        if step.has(key):
            message = f"include and {key} exclude each other"
            hint = "say it inside the workflow that is included"
            at = (*step.path, key)
            yield document.error(code, message, at=at, on_key=True, hint=hint)


# -- loops -----------------------------------------------------------------------------------------


def _loop(document: Document, loop: LoopEntry) -> Iterator[Diagnostic]:
    if loop.depth > MAX_LOOPS:
        message = f"loops are nested more than {MAX_LOOPS} deep"
        yield document.error("too-nested", message, at=loop.path, on_key=True)
    if loop.value.get("steps") == []:
        message = "a loop has at least one step"
        hint = "leave steps out to repeat the step itself"
        yield document.error("empty-steps", message, at=(*loop.path, "steps"), hint=hint)
    if loop.has("forEach"):
        yield from _each(document, loop)
    else:
        yield from _repeat(document, loop)
    if loop.graph is not None and loop.graph.steps:
        for key in _OF_THE_BODY:
            if loop.step.has(key):
                message = f"{key} has no effect: the loop has steps of its own"
                yield document.warning("ignored-field", message, at=(*loop.step.path, key))


def _each(document: Document, loop: LoopEntry) -> Iterator[Diagnostic]:
    for code, key in _FOREACH_WITH:
        if not loop.has(key) or (key == "delay" and milliseconds(loop.value[key]) == 0):
            continue
        message = f"forEach and {key} exclude each other"
        hint = "the list says how many iterations there are; to repeat for each item, loop inside"
        at = (*loop.path, key)
        yield document.error(code, message, at=at, on_key=True, hint=hint)
    items = loop.value["forEach"]
    if items == []:
        message = "there is nothing to go over"
        yield document.error("foreach-empty-array", message, at=(*loop.path, "forEach"))
    elif isinstance(items, list) and len(items) > MAX_ITEMS:
        message = f"{len(items):,} items; at most {MAX_ITEMS:,} are allowed"
        yield document.error("too-many-items", message, at=(*loop.path, "forEach"))


def _repeat(document: Document, loop: LoopEntry) -> Iterator[Diagnostic]:
    if not loop.has("maxIterations") and not misspelt(
        loop.value, _LOOP_KEYS, "maxIterations", "forEach"
    ):
        message = "a loop needs maxIterations, the most iterations it may have, or forEach"
        yield document.error(
            "loop-missing-max-iterations",
            message,
            at=loop.path,
            on_key=True,
            hint="maxIterations: 10",
        )
    for key in ("maxConcurrency", "onItemFailure"):
        if loop.has(key):
            message = f"{key} has no effect: without forEach iterations run one after another"
            yield document.warning("ignored-field", message, at=(*loop.path, key))
    if loop.has("onExhausted") and not (loop.has("until") or loop.has("untilAgent")):
        message = "onExhausted has no effect: without until or untilAgent all iterations run"
        yield document.warning("ignored-field", message, at=(*loop.path, "onExhausted"))


_EXAMPLE: JsonValue = {
    "name": "refine",
    "agents": {
        "writer": {"description": "Writes the text."},
        "judge": {
            "description": "Says whether the text is good.",
            "resultSchema": {
                "type": "object",
                "required": ["done"],
                "properties": {"done": {"type": "boolean"}},
            },
        },
    },
    "steps": [
        {
            "id": "draft",
            "agent": "writer",
            "instructions": "Improve the text.",
            "loop": {"maxIterations": 5, "untilAgent": "judge"},
        }
    ],
}


def json_schema() -> dict[str, JsonValue]:
    """Draft 7, which every editor knows."""
    template = "#/definitions/{model}"
    made = cast("dict[str, JsonValue]", ZenflowWorkflow.model_json_schema(ref_template=template))
    definitions = cast("dict[str, dict[str, JsonValue]]", made.pop("$defs", {}))
    loop = definitions["LoopSpec"]
    loop["anyOf"] = [{"required": ["maxIterations"]}, {"required": ["forEach"]}]
    properties = cast("dict[str, dict[str, JsonValue]]", made["properties"])
    # Not stated by the surface, because each missing key has its own code.
    properties["name"] |= {"minLength": 1}
    properties["steps"] = {
        "type": "array",
        "items": {"$ref": "#/definitions/StepSpec"},
        "minItems": 1,
        "maxItems": MAX_STEPS,
        "description": "The steps.",
    }
    head: dict[str, JsonValue] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ZenFlow workflow",
        "required": ["name", "steps"],
    }
    return {**made, **head, "examples": [_EXAMPLE], "definitions": cast("JsonValue", definitions)}
