"""Lowering of an assistant to a plan: one step, a loop around one call of the assistant.

The regular expressions of this dialect are those of JavaScript, searched without regard to
case. They are rewritten for the linear-time engine where the two syntaxes differ (`\u0041`,
`[^]`, needless escapes). A pattern that the linear-time engine does not support runs unchanged
in the JavaScript engine. A pattern that JavaScript itself rejects never matches.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from loopwright.dialects.rondoflow.surface import (
    CHOICE,
    EXPORTED,
    PERSONA,
    POLICY_BUDGET,
    UNAPPLIED,
    Assistant,
    AssistantPlace,
    Criteria,
    Files,
    LoopBudget,
    Path,
    RondoflowFileRequest,
    assistants_of,
    choose_assistant,
    is_budget,
    policy_budgets,
    wants_persona,
    with_decoded_criteria,
)
from loopwright.model.actions import CallAgent, Repeat, Step
from loopwright.model.checks import Cap, Check, CommandCheck, PersonCheck, Regex
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Input, Plan
from loopwright.model.policy import NO_LIMITS, Limits, ProgressLog, Retry
from loopwright.model.record import JsonValue
from loopwright.syntax.document import Diagnostic, Document, check_text, suggest
from loopwright.syntax.patterns import Engine, engine_fault, javascript_problem
from loopwright.syntax.validation import keys_of, validate

_TOKEN = re.compile(
    r"""
      \\u(?P<unit>[0-9a-fA-F]{4})
    | \\x(?P<byte>[0-9a-fA-F]{2})
    | \\c(?P<control>[A-Za-z])
    | \\(?P<reference>[1-9]|k<|B)
    | \\(?P<escape>.)
    | (?P<nothing>\[\]) | (?P<anything>\[\^\])
    | (?P<open>\[\^?) | (?P<close>\])
    | \((?P<look>\?<?[=!])
    | \{(?P<many>\d{4,}|\d+,\d{4,})
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Letters with a meaning after a backslash; any other is a literal letter.
_MEANINGFUL = frozenset("dDwWsSbfnrtv0")
# White space of JavaScript beyond that of the linear engine: models write such blanks.
_BLANKS = r"\s\x0b\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"


class Pattern(NamedTuple):
    """What became of a pattern: the text for its engine, what to warn of (`code`), and whether it
    never matches or cannot be run at all.
    """

    text: str
    engine: Engine = "linear"
    code: str | None = None
    says: str = ""
    never: bool = False
    refused: bool = False


def translate(pattern: str) -> Pattern:
    """The pattern for the engine that runs it."""
    problem = javascript_problem(pattern)
    if problem is not None:
        deep = "nested" in problem
        code = "regex-too-big" if deep else "bad-regex"
        return Pattern(pattern, code=code, says=problem, never=not deep, refused=deep)
    if _backtracks(pattern):
        return Pattern(pattern, "javascript")
    text = _rewritten(pattern)
    fault = engine_fault(text, ignore_case=True)
    if fault is None:
        return Pattern(text)
    if fault.code == "matches-everything":
        return Pattern(pattern, "javascript", fault.code, fault.message)
    return Pattern(pattern, "javascript")


def _backtracks(pattern: str) -> bool:
    """Whether a pattern looks around, refers back to a group, or repeats a thousand times; `\\B` of
    RE2 also matches inside of a character.
    """
    inside = False
    for token in _TOKEN.finditer(pattern):
        was_inside, inside = inside, _inside_after(token, inside=inside)
        if not was_inside and (token["look"] or token["reference"] or token["many"]):
            return True
    return False


def _inside_after(token: "re.Match[str]", *, inside: bool) -> bool:
    """Whether a class is open after a token; inside one, [ is a plain character."""
    if inside:
        return not (token["close"] or token["nothing"])
    return bool(token["open"])


def _rewritten(pattern: str) -> str:
    text, inside = "", False
    for token in _TOKEN.finditer(pattern):
        text += _spelled(token, inside=inside)
        inside = _inside_after(token, inside=inside)
    return text


def _spelled(token: "re.Match[str]", *, inside: bool) -> str:
    """One token the way the linear engine spells it."""
    if token["unit"]:
        return f"\\x{{{token['unit']}}}"
    if token["control"]:
        return f"\\x{ord(token['control'].upper()) - 64:02x}"
    if token["escape"]:
        return _escape(token["escape"], inside=inside)
    if inside and (token["open"] or token["nothing"] or token["anything"]):
        return "\\" + token[0]
    if token["nothing"]:
        return r"[^\s\S]"
    return r"[\s\S]" if token["anything"] else token[0]


def _escape(letter: str, *, inside: bool) -> str:
    if letter == "b" and inside:
        return "\\x08"
    if letter == "s":
        return _BLANKS if inside else f"[{_BLANKS}]"
    if letter == "S" and not inside:
        return f"[^{_BLANKS}]"
    if letter.isalpha() and letter not in _MEANINGFUL:
        return letter
    return f"\\{letter}"


NAME = "rondoflow"
AGENT = "assistant"
REJECTED = "Manual approval was rejected by user"
TEST_TIMEOUT_MS = 60_000
IDLE_MS = 300_000
LEARNING_CHARS = 300
PATTERN = "pattern"
"""The setting of a plan with the pattern as it was written, if the engine spells it otherwise."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_KNOWN = tuple(keys_of(Assistant))
_LOOP_KEYS = ("loopEnabled", "loopCriteria", "maxIterations", "loopBudget", "budget")
# Characters that a shell would interpret; a program receives them unchanged.
_SHELL_SIGNS = re.compile(r"&&|\|\||[|;<>`]|\$[A-Za-z({]|[\"']|(?:^|\s)&(?:\s|$)")


def requested_files(document: Document, files: Files) -> list[RondoflowFileRequest]:
    """The file with the persona of an assistant that comes from a catalog."""
    return (
        [RondoflowFileRequest(PERSONA)]
        if wants_persona(document.value) and PERSONA not in files
        else []
    )


def assistant_id(value: JsonValue, given: Mapping[str, JsonValue]) -> str | None:
    """The id of the assistant that runs."""
    places = assistants_of(value)
    if places is None:
        places = [AssistantPlace((), value)] if isinstance(value, dict) else []
    place = choose_assistant(places, given.get(CHOICE))
    return place.id if place is not None else None


def lower(
    document: Document, files: Files = _NOTHING, given: Mapping[str, JsonValue] = _NOTHING
) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan of the assistant that runs, or all that is wrong; a plan may come with warnings."""
    document = replace(document, value=with_decoded_criteria(document.value))
    places = assistants_of(document.value)
    if places is None:
        if not isinstance(document.value, dict):
            return None, validate(Assistant, document)[1]
        places = [AssistantPlace((), document.value)]
    if not places:
        return None, [document.error("no-assistant", "there is no assistant in this file")]
    place = choose_assistant(places, given.get(CHOICE))
    if place is None and CHOICE in given:
        return None, [_unknown_choice(document, places, given[CHOICE])]
    is_open = place is None
    if place is None:
        place = next((one for one in places if one.loops), places[0])
    problems = [_several(document, places)] if is_open else []
    assistant, found = _checked(document, place, alone=len(places) == 1)
    problems += found
    problems.sort(key=lambda one: (one.line, one.column))
    if assistant is None or any(one.severity == "error" for one in problems):
        return None, problems
    persona = files.get(PERSONA)
    system = persona.decode(errors="replace") if isinstance(persona, bytes) else ""
    inputs = _choice(places, place, is_open=is_open)
    return _plan(assistant, system, inputs, _budget(assistant, place)), problems


def _budget(assistant: Assistant, place: AssistantPlace) -> float | None:
    """USD that one iteration may cost: the smallest of all limits, as policies only tighten."""
    allowed = [one for _, one in policy_budgets(place.value) if is_budget(one)]
    known = [*allowed, *([assistant.budget] if assistant.budget is not None else [])]
    return min(known, default=None)


def _choice(
    places: list[AssistantPlace], place: AssistantPlace, *, is_open: bool
) -> dict[str, Input]:
    if len(places) == 1:
        return {}
    names = ", ".join(one.name for one in places)
    default = None if is_open else place.name
    return {CHOICE: Input(description=f"One of: {names}", required=is_open, default=default)}


def _several(document: Document, places: list[AssistantPlace]) -> Diagnostic:
    looping = [one for one in places if one.loops] or places
    names = ", ".join(one.name for one in looping)
    hint = f"set the input {CHOICE} to the name or the id of one: {names}"
    message = f"the file has {len(looping)} assistants that can loop"
    if not any(one.loops for one in places):
        message = f"looping is off for all {len(places)} assistants of the file"
    return document.warning("several-assistants", message, at=places[0].path, hint=hint)


def _unknown_choice(
    document: Document, places: list[AssistantPlace], wanted: JsonValue
) -> Diagnostic:
    near = suggest(str(wanted), [one.name for one in places])
    names = ", ".join(one.name for one in places)
    same = [one for one in places if one.name == wanted]
    message = f"no assistant {wanted!r} in this file"
    if len(same) > 1:
        message = f"{len(same)} assistants of this file have the name {wanted!r}"
        near, names = None, ", ".join(one.id or one.name for one in same)
    hint = f"did you mean {near}?" if near else f"there are: {names}"
    return document.error("no-assistant", message, hint=hint)


def _checked(
    document: Document, place: AssistantPlace, *, alone: bool
) -> tuple[Assistant | None, list[Diagnostic]]:
    """The assistant at a place, with all its problems."""
    assistant, problems = validate(Assistant, document, root=place.path)
    problems += _rules(document, place)
    problems += _fields(document, place)
    problems += _criterion(document, place)
    if not alone:
        of = f"assistant {place.name!r}: " if place.name else f"assistant {place.path[-1]}: "
        problems = [replace(one, message=of + one.message) for one in problems]
    return assistant, problems


def _rules(document: Document, place: AssistantPlace) -> Iterator[Diagnostic]:
    """What concerns several keys, or must be visible."""
    value = place.value
    if value.get("loopEnabled") in (None, False):
        message = "looping is off for this assistant, so no loop can be started"
        hint = "set loopEnabled: true, or give the number of iterations at the start"
        yield document.warning("loop-disabled", message, at=(*place.path, "loopEnabled"), hint=hint)
    for one, other in (("persona", "systemPrompt"), ("tools", "allowedTools")):
        if value.get(one) is not None and value.get(other) is not None:
            message = f"{one} and {other} exclude each other"
            at = (*place.path, other)
            yield document.error("mutually-exclusive", message, at=at, on_key=True)
    for path, budget in policy_budgets(value):
        if not is_budget(budget):
            message = f"maxBudgetUsd must be a number of USD above 0, not {str(budget)[:40]!r}"
            yield document.error("out-of-range", message, at=(*place.path, *path))
    texts: list[tuple[Path, object]] = [((key,), value.get(key)) for key in ("name", "model")]
    for key in ("tools", "allowedTools"):
        names = value.get(key)
        texts += [((key, n), one) for n, one in enumerate(names if isinstance(names, list) else ())]
    for path, text in texts:
        problem = check_text(text) if isinstance(text, str) else None
        if problem:
            yield document.error("hidden-character", problem, at=(*place.path, *path))


def _fields(document: Document, place: AssistantPlace) -> Iterator[Diagnostic]:
    """Fields without effect: one warning for all, and one for each that would have changed the
    assistant's behaviour. A misspelt loop setting is an error.
    """
    unknown = [key for key in place.value if key not in _KNOWN]
    for key in unknown:
        near = suggest(key, _LOOP_KEYS) if key not in EXPORTED else None
        if near is not None:
            at, hint = (*place.path, key), f"did you mean {near}?"
            yield document.error(
                "unknown-field", f"unknown field {key}", at=at, on_key=True, hint=hint
            )
    effects = [key for key in unknown if key in UNAPPLIED and _is_unapplied(key, place.value[key])]
    if effects:
        message = f"{', '.join(effects)}: not applied to the loop"
        hint = "the agent that runs the assistant has its own tools, skills and settings"
        yield document.warning(
            "field-not-applied", message, at=(*place.path, effects[0]), hint=hint
        )
    others = [key for key in unknown if key not in effects and suggest(key, _LOOP_KEYS) is None]
    strange = [key for key in others if key not in EXPORTED and key not in UNAPPLIED]
    if strange:
        message = f"{', '.join(strange)}: no such field of an assistant; it has no effect"
        yield document.warning("ignored-field", message, at=(*place.path, strange[0]))
    others = [key for key in others if key != "policies"]  # its budget counts
    kept = [key for key in others if key not in strange and _matters(key, place.value[key])]
    if kept:
        message = f"{', '.join(kept)}: no effect on the loop"
        yield document.warning("ignored-field", message, at=(*place.path, kept[0]))


def _is_unapplied(key: str, value: object) -> bool:
    """Whether a field says something that is not done. Of a policy, the budget is."""
    if key == "policies" and isinstance(value, list):
        return any(_has_other_rules(one) for one in value)
    return _matters(key, value)


def _has_other_rules(policy: object) -> bool:
    rules = policy.get("rules") if isinstance(policy, dict) else None
    if not isinstance(rules, dict):
        return True
    return any(key != POLICY_BUDGET and _matters(key, one) for key, one in rules.items())


def _matters(key: str, value: object) -> bool:
    """Whether a field says anything: defaults of an export do not."""
    if key == "provider":
        return value not in (None, "claude-code")
    return value not in (None, False, "", [], {}, 0)


def _criterion(document: Document, place: AssistantPlace) -> Iterator[Diagnostic]:
    criteria = place.value.get("loopCriteria")
    if not isinstance(criteria, dict):
        return
    more = [key for key in criteria if key not in ("type", "value")]
    if more:
        message = f"{', '.join(more)}: no effect on the criterion"
        yield document.warning("ignored-field", message, at=(*place.path, "loopCriteria", more[0]))
    value = criteria.get("value")
    if isinstance(value, str):
        at = (*place.path, "loopCriteria", "value")
        if criteria.get("type") == "regex" and len(value) <= 500:
            yield from _pattern(document, at, value)
        elif criteria.get("type") == "test_pass":
            yield from _command(document, at, value)


def _pattern(document: Document, at: Path, value: str) -> Iterator[Diagnostic]:
    found = translate(value)
    if found.refused:
        hint = "use test_pass with a script"
        yield document.error(found.code or "bad-regex", found.says, at=at, hint=hint)
    elif found.never:
        hint = "the loop will run to its last iteration"
        message = f"the pattern is invalid and never matches: {found.says}"
        yield document.warning("bad-regex", message, at=at, hint=hint)
    elif found.code:
        hint = "the loop will end after its first iteration"
        yield document.warning(found.code, found.says, at=at, hint=hint)


def _command(document: Document, at: Path, value: str) -> Iterator[Diagnostic]:
    sign = _SHELL_SIGNS.search(value)
    if sign:
        message = (
            f"{sign[0].strip()} is passed on as it is written: the command runs without a shell"
        )
        hint = "if a shell is needed, put the command into a script file and name that file here"
        yield document.warning("shell-syntax", message, at=at, hint=hint)


def _plan(
    assistant: Assistant, persona: str, inputs: dict[str, Input], budget: float | None
) -> Plan:
    criteria = assistant.loop_criteria
    until = _check(criteria)
    settings: dict[str, str] = {}
    if isinstance(until, Regex) and criteria and criteria.value not in (None, until.pattern):
        settings[PATTERN] = criteria.value or ""
    agent = Agent(
        system=assistant.persona or assistant.system_prompt or persona,
        model=assistant.model,
        tools=_tools(assistant),
        permission="bypassPermissions",
        max_usd=budget,
        idle_ms=IDLE_MS,
    )
    loop = Repeat(
        body=CallAgent(agent=AGENT),
        max=assistant.max_iterations,
        until=until,
        memory=ProgressLog(chars=LEARNING_CHARS),
        at_cap="complete",
        output="learning",
        broken_after=1,  # a test that cannot be started says nothing about the work
    )
    return Plan(
        name=assistant.name,
        steps=(Step(id=MAIN, action=loop, retry=Retry(attempts=3)),),
        agents={AGENT: agent},
        inputs=inputs,
        description=assistant.description or "",
        limits=_limits(assistant.loop_budget),
        settings=settings,
        dialect=NAME,
    )


def _tools(assistant: Assistant) -> tuple[str, ...] | None:
    """The only tools; None is all that the agent has."""
    if assistant.tools is not None:
        return tuple(assistant.tools)
    allowed = assistant.allowed_tools or ["*"]
    return None if "*" in allowed else tuple(allowed)


def _check(criteria: Criteria | None) -> Check:
    match criteria:
        case Criteria(type="regex", value=str(value)):
            found = translate(value)
            return Regex(
                pattern=found.text, ignore_case=True, engine=found.engine, invalid=found.never
            )
        case Criteria(type="test_pass", value=str(value)):
            return CommandCheck(argv=tuple(value.split()), timeout_ms=TEST_TIMEOUT_MS)
        case Criteria(type="manual"):
            return PersonCheck(answers=("approve", "reject", "continue"), rejected=REJECTED)
        case _:
            return Cap()


def _limits(budget: LoopBudget | None) -> Limits:
    if budget is None:
        return NO_LIMITS
    wall_ms = budget.minutes * 60_000 if budget.minutes else None
    return Limits(usd=budget.usd, tokens=budget.tokens, wall_ms=wall_ms)
