"""Checks of an iteration: which check is next, its result, and the combined decision.

The answer of a goal check is read strictly: its first line must be exactly ACHIEVED or
NOT_ACHIEVED, and the rest is the reason. Any other first line is not a verdict, so no goal is
reached by an imprecise answer.
"""

import re
from json import JSONDecodeError, JSONDecoder
from typing import Literal, assert_never

import msgspec

from loopwright.kernel.events import EffectDone, EffectFailed, Verdict
from loopwright.kernel.frames import GateState
from loopwright.kernel.reviews import ReviewResult, read_review
from loopwright.kernel.signal import has_signal, why_not_signalled
from loopwright.kernel.state import KernelServices
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    Leaf,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
    leaves,
)
from loopwright.model.policy import CheckOrder
from loopwright.model.record import JsonValue, Text

_MARKS = re.compile(r"[\s*_#`>\"'.!:]+")
_WORDS = {"achieved": True, "notachieved": False}


class GoalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a goal is reached, and why."""

    yes: bool
    why: str


def read_goal_verdict(text: str) -> GoalVerdict | None:
    """What the first line says, or None where it is not one of the two words."""
    lines = text.strip().splitlines()
    if not lines:
        return None
    finding = _WORDS.get(_MARKS.sub("", lines[0]).lower().replace("-", ""))
    if finding is None:
        return None
    why = "\n".join(lines[1:]).strip()
    return GoalVerdict(yes=finding, why=why or lines[0].strip())


EVIDENCE_CHARS = 300
# How much of a text full of false starts is searched, in characters: each start may be long.
EFFORT_PER_CHAR = 4
EFFORT_PER_TRY = 300
EFFORT_AT_LEAST = 5_000_000
REBASE_CHARS = 16_384
JUDGE_CHARS = 32_000
_OBJECT = re.compile(r'\{\s*["}]')
_FENCED = re.compile(r"```(?:json)?\s*```")  # a code block whose content was taken out
_JSON = JSONDecoder()


class DueCheck(msgspec.Struct, frozen=True):
    """This check has to decide before the result is known."""

    index: int
    leaf: Leaf


class ChecksDecision(msgspec.Struct, frozen=True):
    """The checks have decided; `reason` names the check that did."""

    verdict: Literal["pass", "fail", "rejected", "broken"]
    reason: str = ""


_NOT_YET = ChecksDecision("fail")


class CheckResult(msgspec.Struct, frozen=True):
    """What a check says, and what it looked at."""

    verdict: Verdict
    evidence: str = ""


def check_name(leaf: Leaf | type[Leaf]) -> str:
    """The name of a check's kind, as in events and messages."""
    return str(leaf.__struct_config__.tag)


def combine_verdicts(
    check: Check, verdicts: dict[int, Verdict], first: int = 0, *, order: CheckOrder = "all"
) -> DueCheck | ChecksDecision:
    """The result of the verdicts so far, or the check to run next."""
    if type(check) is Cap:
        return _NOT_YET
    if isinstance(check, AnyOf):
        return _weigh_any(check.parts, verdicts, first, order)
    if isinstance(check, AllOf):
        own = check.order if order == "all" else order
        return _weigh_all(check.parts, verdicts, first, own)
    return _weigh_leaf(check, verdicts, first)


def _weigh_leaf(leaf: Leaf, verdicts: dict[int, Verdict], index: int) -> DueCheck | ChecksDecision:
    verdict = verdicts.get(index)
    if verdict is None:
        return DueCheck(index, leaf)
    if verdict == "pass":
        approves = isinstance(leaf, PersonCheck | Approval)
        return ChecksDecision("pass", "approved" if approves else check_name(leaf))
    if verdict == "error" and _must_not_break(leaf):
        return ChecksDecision("broken")
    return ChecksDecision("rejected" if verdict == "rejected" else "fail")


def _must_not_break(leaf: Leaf) -> bool:
    """Whether a check that could not be asked ends the loop at once."""
    return isinstance(leaf, Expr | Judge) and leaf.on_error == "fail"


def _weigh_any(
    parts: tuple[Check, ...], verdicts: dict[int, Verdict], first: int, order: CheckOrder
) -> DueCheck | ChecksDecision:
    index = first
    for part in parts:
        finding = combine_verdicts(part, verdicts, index, order=order)
        if isinstance(finding, DueCheck) or finding.verdict != "fail":
            return finding
        index += len(leaves(part))
    return ChecksDecision("fail")


def _weigh_all(
    parts: tuple[Check, ...], verdicts: dict[int, Verdict], first: int, order: CheckOrder
) -> DueCheck | ChecksDecision:
    """The cheap checks are asked even after one has failed, so that the next iteration sees every
    failure at once. A judge or a person costs money or time and is not asked any more then.
    """
    index, failed, reason = first, False, ""
    for part in parts:
        finding = combine_verdicts(part, verdicts, index, order=order)
        if isinstance(finding, DueCheck):
            if not (failed and isinstance(finding.leaf, Judge | Goal | PersonCheck)):
                return finding
        elif finding.verdict in ("rejected", "broken"):
            return finding
        else:
            failed = failed or finding.verdict == "fail"
            if failed and order == "until_decided":
                return ChecksDecision("fail")
            reason = finding.reason or reason
        index += len(leaves(part))
    return ChecksDecision("fail") if failed else ChecksDecision("pass", reason)


def inspect(
    leaf: Leaf,
    services: KernelServices,
    *,
    output: Text | None,
    result: Text | None,
    instructions: str,
) -> CheckResult | None:
    """The result of a check that needs only the texts of the iteration; None for any other
    check.
    """
    match leaf:
        case Regex():
            return _search(leaf, output, services)
        case Contains():
            return _contains(leaf, services.read(output))
        case Signal():
            return _signal(leaf, services.read(output), instructions)
        case OutputSchema():
            return _fits(leaf, services, output, result)
        case ResultField():
            return _field_is_true(leaf, services, result)
        case Approval():
            finding = read_review(
                services.read(output), _value(services, result), instructions, words=leaf.words
            )
            return CheckResult("pass" if finding.approved else "fail", _review_words(finding))
        case ResultPath(path=path):
            value = _at(_answer(services, output, result), path)
            said_yes = value not in (None, False, 0, "")
            return CheckResult("pass", _shown(value)) if said_yes else CheckResult("fail")
        case Cap() | CommandCheck() | ScriptCheck() | Expr() | Judge() | Goal() | PersonCheck():
            return None
        case ToolResultCheck() | NoCalls() | SpendCheck():
            return None
        case _:
            assert_never(leaf)


def _search(leaf: Regex, output: Text | None, services: KernelServices) -> CheckResult | None:
    """What a pattern says that is searched in linear time; None for any other."""
    if leaf.invalid:
        return CheckResult("fail", "the pattern is invalid, so it never matches")
    if leaf.engine != "linear":
        return None
    found = services.matches(leaf.pattern, services.read(output), ignore_case=leaf.ignore_case)
    return CheckResult("fail") if found is None else CheckResult("pass", found[:EVIDENCE_CHARS])


def _signal(leaf: Signal, text: str, instructions: str) -> CheckResult:
    if not leaf.anywhere:
        return CheckResult("pass" if has_signal(text, leaf.word, instructions) else "fail")
    if not text.strip():
        return CheckResult("fail", "the answer is empty")
    problem = why_not_signalled(text, leaf.word, instructions)
    return CheckResult("pass") if problem is None else CheckResult("fail", problem)


def _field_is_true(leaf: ResultField, services: KernelServices, result: Text | None) -> CheckResult:
    """Exactly true: a text that says so, or a number, is not."""
    value = _value(services, result)
    found = value.get(leaf.field) if isinstance(value, dict) else None
    return CheckResult("pass" if found is True else "fail")


def _value(services: KernelServices, result: Text | None) -> JsonValue:
    value: JsonValue = msgspec.json.decode(services.read(result)) if result is not None else None
    return value


def _review_words(finding: ReviewResult) -> str:
    return "\n".join([finding.why, *(f"- {one}" for one in finding.findings)])


def _answer(services: KernelServices, output: Text | None, result: Text | None) -> JsonValue:
    """The value of an iteration: its result, else the JSON in its output, else its text."""
    if result is not None:
        return _value(services, result)
    words = services.read(output)
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


def _contains(leaf: Contains, text: str) -> CheckResult:
    if leaf.ignore_case:
        return CheckResult("pass" if leaf.text.lower() in text.lower() else "fail")
    return CheckResult("pass" if leaf.text in text else "fail")


def _fits(
    leaf: OutputSchema, services: KernelServices, output: Text | None, result: Text | None
) -> CheckResult:
    text = services.read(result) if result is not None else last_json_object(services.read(output))
    if text is None:
        return CheckResult("fail", "the output has no JSON object")
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return CheckResult("fail", f"the result is not JSON: {error}"[:EVIDENCE_CHARS])
    problem = services.schema_problem(leaf.schema, value)
    return CheckResult("pass") if problem is None else CheckResult("fail", problem[:EVIDENCE_CHARS])


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


def command_result(
    leaf: CommandCheck | ScriptCheck, answer: EffectDone | EffectFailed
) -> CheckResult:
    """What a program's end says: passed, not yet, out of time, or the check itself is broken."""
    if isinstance(answer, EffectDone):
        codes = leaf.done_codes if isinstance(leaf, CommandCheck) else (0,)
        if answer.code in codes:
            return CheckResult("pass")
        return CheckResult("error" if _could_not_run(leaf, answer.code) else "fail")
    broken = isinstance(leaf, ScriptCheck) and leaf.on_timeout == "error"
    if answer.error.type in ("wall_timeout", "idle_timeout") and not broken:
        return CheckResult("timed_out", answer.error.detail)
    return CheckResult("error", answer.error.detail)


def match_result(answer: EffectDone | EffectFailed, services: KernelServices) -> CheckResult:
    """What a search with the JavaScript engine says. One that took too long has not matched."""
    if isinstance(answer, EffectDone):
        found = services.read(answer.output)
        return (
            CheckResult("pass", found[:EVIDENCE_CHARS]) if answer.code == 0 else CheckResult("fail")
        )
    late = answer.error.type == "wall_timeout"
    return CheckResult("timed_out" if late else "error", answer.error.detail)


def _could_not_run(leaf: CommandCheck | ScriptCheck, code: int | None) -> bool:
    """Whether a program or shell says by its exit code that a program is missing or may not be
    executed: the check is broken then, and no iteration can repair it. In some scripts every exit
    code but 0 means "not yet"; older plans say so with `on_timeout` alone.
    """
    if isinstance(leaf, ScriptCheck) and (leaf.on_missing == "fail" or leaf.on_timeout == "error"):
        return False
    return code in (126, 127)


def goal_result(answer: EffectDone | EffectFailed, services: KernelServices) -> CheckResult:
    """What an evaluator says: by its structured answer, else by its first line, which must be
    exactly one of two words. Whatever else it says is an error, and no yes.
    """
    finding = read_goal_verdict(services.read(answer.output)) if is_unfit(answer) else None
    if finding is None:
        return judge_result(answer, services)
    return CheckResult("pass" if finding.yes else "fail", finding.why)


def is_unfit(answer: EffectDone | EffectFailed) -> bool:
    """Whether an answer came, but not in the form that was asked for."""
    return isinstance(answer, EffectFailed) and answer.error.type == "bad_result"


def judge_result(answer: EffectDone | EffectFailed, services: KernelServices) -> CheckResult:
    """What a judge's structured answer says; one that could not be had is an error, not a yes. Its
    words are its reason and the rest of its text, each once.
    """
    text = services.read(answer.output)
    if isinstance(answer, EffectFailed):
        words = text.strip()[:JUDGE_CHARS]
        return CheckResult(
            "error", f"{answer.error.detail}: {words}" if words else answer.error.detail
        )
    value: JsonValue = (
        msgspec.json.decode(services.read(answer.result)) if answer.result is not None else None
    )
    verdict = value if isinstance(value, dict) else {}
    reason = str(verdict.get("reason") or "").strip()
    content = _without_result(text, value)
    parts = [content] if reason in content else [reason, content]
    words = "\n\n".join(part for part in parts if part) or text
    return CheckResult("pass" if verdict.get("done") is True else "fail", words[:JUDGE_CHARS])


def _without_result(text: str, value: JsonValue) -> str:
    """The text of an answer without the JSON object that was read as its result."""
    found = last_json_object(text) if value is not None else None
    if found is None or msgspec.json.decode(found) != value:
        return text.strip()
    before, _, after = text.rpartition(found)
    return _FENCED.sub("", f"{before}{after}").strip()


def person_result(leaf: PersonCheck, gate: GateState) -> CheckResult:
    """A person's decision as a verdict."""
    match gate.decision:
        case "approve":
            return CheckResult("pass", gate.text)
        case "reject":
            return CheckResult("rejected", gate.text or leaf.rejected)
        case _:
            return CheckResult("fail", gate.text)
