"""Asking checks: which one is next, what a cheap one says, and what all of them come to."""

import re
from json import JSONDecodeError, JSONDecoder
from typing import Literal

import msgspec

from loopwright.kernel.facts import EffectDone, EffectFailed, Verdict
from loopwright.kernel.frames import GateState
from loopwright.kernel.goals import achieved
from loopwright.kernel.reviews import Review, review
from loopwright.kernel.signal import signalled, why_not_signalled
from loopwright.kernel.state import Senses
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    Command,
    Contains,
    Expr,
    Goal,
    Judge,
    Leaf,
    OutputSchema,
    Person,
    Regex,
    ResultField,
    ResultPath,
    Script,
    Signal,
    leaves,
)
from loopwright.model.policy import CheckOrder
from loopwright.model.record import JsonValue, Text

EVIDENCE_CHARS = 300
# How much a text full of false starts is looked at, in characters: each start may be a long way.
EFFORT_PER_CHAR = 4
EFFORT_PER_TRY = 300
EFFORT_AT_LEAST = 5_000_000
REBASE_CHARS = 16_384
JUDGE_CHARS = 32_000
_OBJECT = re.compile(r'\{\s*["}]')
_FENCED = re.compile(r"```(?:json)?\s*```")  # a code block whose content was taken out
_JSON = JSONDecoder()


class Ask(msgspec.Struct, frozen=True):
    """This check has to speak before more can be said."""

    index: int
    leaf: Leaf


class Settled(msgspec.Struct, frozen=True):
    """The checks have come to a decision; `reason` names the one that made it."""

    verdict: Literal["pass", "fail", "rejected", "broken"]
    reason: str = ""


_NOT_YET = Settled("fail")


class Said(msgspec.Struct, frozen=True):
    """What a check says, and what it looked at."""

    verdict: Verdict
    evidence: str = ""


def check_name(leaf: Leaf | type[Leaf]) -> str:
    """The name of a check's kind, as facts and people see it."""
    return str(leaf.__struct_config__.tag)


def weigh(
    check: Check, verdicts: dict[int, Verdict], first: int = 0, *, order: CheckOrder = "all"
) -> Ask | Settled:
    """What the verdicts so far come to, or the check to ask next."""
    if type(check) is Cap:
        return _NOT_YET
    match check:
        case AnyOf(parts=parts):
            return _weigh_any(parts, verdicts, first, order)
        case AllOf(parts=parts, order=own):
            return _weigh_all(parts, verdicts, first, own if order == "all" else order)
        case _:
            return _weigh_leaf(check, verdicts, first)


def _weigh_leaf(leaf: Leaf, verdicts: dict[int, Verdict], index: int) -> Ask | Settled:
    verdict = verdicts.get(index)
    if verdict is None:
        return Ask(index, leaf)
    if verdict == "pass":
        approves = isinstance(leaf, Person | Approval)
        return Settled("pass", "approved" if approves else check_name(leaf))
    if verdict == "error" and _must_not_break(leaf):
        return Settled("broken")
    return Settled("rejected" if verdict == "rejected" else "fail")


def _must_not_break(leaf: Leaf) -> bool:
    """Whether a check that could not be asked ends the loop at once."""
    return isinstance(leaf, Expr | Judge) and leaf.on_error == "fail"


def _weigh_any(
    parts: tuple[Check, ...], verdicts: dict[int, Verdict], first: int, order: CheckOrder
) -> Ask | Settled:
    index = first
    for part in parts:
        said = weigh(part, verdicts, index, order=order)
        if isinstance(said, Ask) or said.verdict != "fail":
            return said
        index += len(leaves(part))
    return Settled("fail")


def _weigh_all(
    parts: tuple[Check, ...], verdicts: dict[int, Verdict], first: int, order: CheckOrder
) -> Ask | Settled:
    """The cheap checks are asked even after one has failed, so that the next iteration sees every
    failure at once. A judge or a person costs money or time and is not asked any more then.
    """
    index, failed, reason = first, False, ""
    for part in parts:
        said = weigh(part, verdicts, index, order=order)
        if isinstance(said, Ask):
            if not (failed and isinstance(said.leaf, Judge | Goal | Person)):
                return said
        elif said.verdict in ("rejected", "broken"):
            return said
        else:
            failed = failed or said.verdict == "fail"
            if failed and order == "until_decided":
                return Settled("fail")
            reason = said.reason or reason
        index += len(leaves(part))
    return Settled("fail") if failed else Settled("pass", reason)


def inspect(
    leaf: Leaf, senses: Senses, *, output: Text | None, result: Text | None, instructions: str
) -> Said | None:
    """What a check that needs nothing but the pass's own texts says; None for any other check."""
    match leaf:
        case Regex(invalid=True):
            return Said("fail", "the pattern is invalid, so it never matches")
        case Regex(engine="linear"):
            found = senses.matches(leaf.pattern, senses.read(output), ignore_case=leaf.ignore_case)
            return Said("fail") if found is None else Said("pass", found[:EVIDENCE_CHARS])
        case Contains():
            return _contains(leaf, senses.read(output))
        case Signal():
            return _signal(leaf, senses.read(output), instructions)
        case OutputSchema():
            return _fits(leaf, senses, output, result)
        case ResultField():
            return _field_is_true(leaf, senses, result)
        case Approval():
            said = review(
                senses.read(output), _value(senses, result), instructions, words=leaf.words
            )
            return Said("pass" if said.approved else "fail", _review_words(said))
        case ResultPath(path=path):
            value = _at(_answer(senses, output, result), path)
            said_yes = value not in (None, False, 0, "")
            return Said("pass", _shown(value)) if said_yes else Said("fail")
        case _:
            return None


def _signal(leaf: Signal, text: str, instructions: str) -> Said:
    if not leaf.anywhere:
        return Said("pass" if signalled(text, leaf.word, instructions) else "fail")
    if not text.strip():
        return Said("fail", "the answer is empty")
    problem = why_not_signalled(text, leaf.word, instructions)
    return Said("pass") if problem is None else Said("fail", problem)


def _field_is_true(leaf: ResultField, senses: Senses, result: Text | None) -> Said:
    """Exactly true: a text that says so, or a number, is not."""
    value = _value(senses, result)
    found = value.get(leaf.field) if isinstance(value, dict) else None
    return Said("pass" if found is True else "fail")


def _value(senses: Senses, result: Text | None) -> JsonValue:
    value: JsonValue = msgspec.json.decode(senses.read(result)) if result is not None else None
    return value


def _review_words(said: Review) -> str:
    return "\n".join([said.why, *(f"- {one}" for one in said.findings)])


def _answer(senses: Senses, output: Text | None, result: Text | None) -> JsonValue:
    """What a pass came to as a value: its result, else the JSON that it said, else its words."""
    if result is not None:
        return _value(senses, result)
    words = senses.read(output)
    for text in (words, last_json_object(words)):
        try:
            value: JsonValue = msgspec.json.decode(text or "")
        except (msgspec.DecodeError, RecursionError):
            continue
        return value
    return words


def _at(value: JsonValue, path: tuple[str | int, ...]) -> JsonValue:
    for part in path:
        if isinstance(value, dict) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def _shown(value: JsonValue) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:EVIDENCE_CHARS]


def _contains(leaf: Contains, text: str) -> Said:
    if leaf.ignore_case:
        return Said("pass" if leaf.text.lower() in text.lower() else "fail")
    return Said("pass" if leaf.text in text else "fail")


def _fits(leaf: OutputSchema, senses: Senses, output: Text | None, result: Text | None) -> Said:
    text = senses.read(result) if result is not None else last_json_object(senses.read(output))
    if text is None:
        return Said("fail", "the output has no JSON object")
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return Said("fail", f"the result is not JSON: {error}"[:EVIDENCE_CHARS])
    problem = senses.schema_problem(leaf.schema, value)
    return Said("pass") if problem is None else Said("fail", problem[:EVIDENCE_CHARS])


def last_json_object(text: str) -> str | None:
    """The last complete JSON object of a text, as text; inside prose or a code fence too."""
    found: str | None = None
    effort = EFFORT_PER_CHAR * len(text) + EFFORT_AT_LEAST
    at = 0
    while effort > 0 and (opening := _OBJECT.search(text, at)) is not None:
        start = opening.start()
        if start > REBASE_CHARS:  # an error costs time in its distance from the beginning
            text, start = text[start:], 0
            effort -= len(text) // REBASE_CHARS
        try:
            _, end = _JSON.raw_decode(text, start)
        except JSONDecodeError as error:
            effort -= error.pos - start + EFFORT_PER_TRY
            at = start + 1
        except RecursionError:
            effort -= len(text) - start
            at = start + 1
        else:
            found = text[start:end]
            at = end
    return found


def command_said(leaf: Command | Script, answer: EffectDone | EffectFailed) -> Said:
    """What a program's end says: passed, not yet, out of time, or the check itself is broken."""
    if isinstance(answer, EffectDone):
        codes = leaf.done_codes if isinstance(leaf, Command) else (0,)
        if answer.code in codes:
            return Said("pass")
        return Said("error" if _could_not_run(leaf, answer.code) else "fail")
    broken = isinstance(leaf, Script) and leaf.on_timeout == "error"
    if answer.error.type in ("wall_timeout", "idle_timeout") and not broken:
        return Said("timed_out", answer.error.detail)
    return Said("error", answer.error.detail)


def match_said(answer: EffectDone | EffectFailed, senses: Senses) -> Said:
    """What a search with the JavaScript engine says. One that took too long has not matched."""
    if isinstance(answer, EffectDone):
        found = senses.read(answer.output)
        return Said("pass", found[:EVIDENCE_CHARS]) if answer.code == 0 else Said("fail")
    late = answer.error.type == "wall_timeout"
    return Said("timed_out" if late else "error", answer.error.detail)


def _could_not_run(leaf: Command | Script, code: int | None) -> bool:
    """Whether a program or shell says by its exit code that a program is missing or may not be
    executed: the check is broken then, and no iteration can repair it. In some scripts every exit
    code but 0 means "not yet"; older plans say so with `on_timeout` alone.
    """
    if isinstance(leaf, Script) and (leaf.on_missing == "fail" or leaf.on_timeout == "error"):
        return False
    return code in (126, 127)


def goal_said(answer: EffectDone | EffectFailed, senses: Senses) -> Said:
    """What an evaluator says: by its structured answer, else by its first line, which must be
    exactly one of two words. Whatever else it says is an error, and no yes.
    """
    said = achieved(senses.read(answer.output)) if is_unfit(answer) else None
    if said is None:
        return judge_said(answer, senses)
    return Said("pass" if said.yes else "fail", said.why)


def is_unfit(answer: EffectDone | EffectFailed) -> bool:
    """Whether an answer came, but not in the form that was asked for."""
    return isinstance(answer, EffectFailed) and answer.error.type == "bad_result"


def judge_said(answer: EffectDone | EffectFailed, senses: Senses) -> Said:
    """What a judge's structured answer says; one that could not be had is an error, not a yes. Its
    words are its reason and the rest of its text, each once.
    """
    text = senses.read(answer.output)
    if isinstance(answer, EffectFailed):
        words = text.strip()[:JUDGE_CHARS]
        return Said("error", f"{answer.error.detail}: {words}" if words else answer.error.detail)
    value: JsonValue = (
        msgspec.json.decode(senses.read(answer.result)) if answer.result is not None else None
    )
    verdict = value if isinstance(value, dict) else {}
    reason = str(verdict.get("reason") or "").strip()
    content = _without_result(text, value)
    parts = [content] if reason in content else [reason, content]
    words = "\n\n".join(part for part in parts if part) or text
    return Said("pass" if verdict.get("done") is True else "fail", words[:JUDGE_CHARS])


def _without_result(text: str, value: JsonValue) -> str:
    """The text of an answer without the JSON object that was read as its result."""
    found = last_json_object(text) if value is not None else None
    if found is None or msgspec.json.decode(found) != value:
        return text.strip()
    before, _, after = text.rpartition(found)
    return _FENCED.sub("", f"{before}{after}").strip()


def person_said(leaf: Person, gate: GateState) -> Said:
    """A person's decision as a verdict."""
    match gate.decision:
        case "approve":
            return Said("pass", gate.text)
        case "reject":
            return Said("rejected", gate.text or leaf.rejected)
        case _:
            return Said("fail", gate.text)
