"""Symbols of statuses, and usage and cost as every interface shows them.

An unknown cost is shown as unknown, never as zero. This module imports almost nothing, so that
commands start fast; the kernel is imported for type checking only.

A text that a person decides about is shown with nothing hidden in it: every sign can be seen,
and long blank stretches are counted.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from loopwright.kernel.event_parts import mask_text
from loopwright.model.ids import MAIN
from loopwright.model.patterns import LazyPattern
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import JsonValue
from loopwright.ports import RunDetails

if TYPE_CHECKING:
    from loopwright.kernel.events import RunStarted, Usage
    from loopwright.ports import ListedFigures

SIGNS = {
    "running": "▶",
    "waiting": "?",
    "paused": "‖",
    "completed": "✓",
    "exhausted": "■",
    "failed": "✗",
    "cancelled": "■",
}
PROTECT = "protect"  # the name of the check that protected files are unchanged
PERSON = "person"  # the name of the check that a person decides
_PERSON = {"pass": "approved", "fail": "sent back"}
VERDICTS = {"pass": "passed", "fail": "failed", "timed_out": "timed out", "error": "could not run"}
_ASCII = str.maketrans({"·": "|", "\N{MINUS SIGN}": "-", "…": "...", "→": "->"})


def without_signs(line: str) -> str:
    """A final line for a terminal that cannot show signs beyond ASCII."""
    sign, _, text = line.partition(" ")
    return (text if sign in SIGNS.values() else line).translate(_ASCII)


def protect_words(verdict: str, evidence: str) -> str:
    """The check of protected files: its evidence is a sentence that names them."""
    return evidence or f"protected files {'unchanged' if verdict == 'pass' else 'changed'}"


def shown_evidence(label: str, evidence: str) -> str:
    """The text below a check: empty if its verdict contains it already."""
    return "" if label == PROTECT else evidence


def evidence_below(label: str, evidence: str) -> str:
    """The same below a line of `labelled`."""
    return "" if label == PERSON else shown_evidence(label, evidence)


def person_words(verdict: str, by: str = "") -> str:
    """What a person decided about an iteration."""
    return f"{_PERSON.get(verdict, 'rejected')} by {by or 'a person'}"


def labelled(label: str, verdict: str, evidence: str = "", by: str = "") -> str:
    """A check as views store it, with its verdict: `pytest -q failed`. A person's text is in its
    line.
    """
    if label == PROTECT:
        return protect_words(verdict, evidence)
    if label == PERSON:
        return f"{person_words(verdict, by)}{f': {evidence}' if evidence else ''}"
    return f"{label.removeprefix('command: ')} {VERDICTS.get(verdict, verdict)}"


_PART = LazyPattern(r"(?P<id>[^\[\]~]*)(?:~\d+)?(?P<items>(?:\[\d+\])*)")


def place_words(path: str) -> str:
    """`dev.0.review` is `step dev, iteration 1, step review`. The only step of a definition that is
    one action is not named; the path of the run itself, or of that step, gives no words.
    """
    words: list[str] = []
    for number, part in enumerate(path.split(".") if path else ()):
        found = _PART.fullmatch(part)
        if found is None:
            return path
        name, items = found["id"], found["items"]
        if name.isdecimal():
            words.append(f"iteration {int(name) + 1}")
        elif name == "-1":
            words.append("before iteration 1")
        elif name and (name != MAIN or number):
            words.append(f"step {name}")
        words += [f"item {int(one) + 1}" for one in re.findall(r"\d+", items)]
    return ", ".join(words)


UNKNOWN = "unknown"
NOTHING = "–"  # nothing was called, so nothing can have been spent


def known_usd(usd: float, unpriced: int) -> float | None:
    """The cost in USD; None when nothing of it is known."""
    return None if unpriced and not usd else round(usd, 9)


def cost_text(usd: float, unpriced: int) -> str:
    """The cost as text: `$0.89`, `unknown`, or `$0.40 + unknown (2 calls)`."""
    if not unpriced:
        return money(usd)
    calls = f"{unpriced} call{'s' if unpriced > 1 else ''}"
    return f"{money(usd)} + {UNKNOWN} ({calls})" if usd else UNKNOWN


def money(usd: float) -> str:
    """USD in cents; an amount below one cent has more digits."""
    return f"${usd:.2f}" if usd >= 0.01 or usd == 0 else f"${usd:.4f}"


class UsageAmounts(msgspec.Struct):
    """What was spent."""

    input_tokens: int
    output_tokens: int
    usd: float | None  # null: nothing of the cost is known
    unpriced_calls: int
    cost: str  # `$0.89`, `unknown`, `$0.40 + unknown (2 calls)`, or `–` before the first call

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def usage_amounts(usage: "Usage", *, called: bool = True) -> UsageAmounts:
    """Usage as one object. `usd` is null if the cost is unknown; with unpriced calls it is the
    known part. Without any call, the cost as text is a dash.
    """
    return UsageAmounts(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        usd=known_usd(usage.usd, usage.unpriced),
        unpriced_calls=usage.unpriced,
        cost=cost_text(usage.usd, usage.unpriced) if called else NOTHING,
    )


def figures_amounts(figures: "ListedFigures") -> UsageAmounts:
    """The usage of a run, as one object."""
    usd, unpriced = figures.usd, figures.unpriced
    return UsageAmounts(
        input_tokens=figures.input_tokens,
        output_tokens=figures.output_tokens,
        usd=known_usd(usd, unpriced),
        unpriced_calls=unpriced,
        cost=cost_text(usd, unpriced) if figures.is_called else NOTHING,
    )


# Characters that change the text direction, so that a person would decide about another text.
DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))
MANY_BLANKS = 20
MANY_LINES = 10
_LINE_ENDS = LazyPattern(r"\r\n?|[\v\f\x85\u2028\u2029]")
_ESCAPES = frozenset("\x1b\x90\x98\x9b\x9d\x9e\x9f")
_BLANKS = LazyPattern(rf"[^\S\n]{{{MANY_BLANKS},}}")
_EMPTY = LazyPattern(rf"(?:[^\S\n]*\n){{{MANY_LINES},}}")


def reveal(text: str) -> list[str]:
    """Every line of a text, complete; invisible characters are written as their codes."""
    plain = _LINE_ENDS.sub("\n", text)
    counted = _EMPTY.sub(lambda found: f"\n[{found[0].count(chr(10))} line ends]\n", plain)
    counted = _BLANKS.sub(lambda found: f"[{len(found[0])} blanks]", counted)
    return ["".join(map(seen, line)) for line in counted.split("\n")]


def marks(text: str) -> list[str]:
    """Characters in a text that could hide something from a reader."""
    plain = _LINE_ENDS.sub("\n", text)
    signs = set(plain)
    found = []
    if signs & DIRECTION:
        found.append("signs that turn the direction of the text around")
    if signs & _ESCAPES:
        found.append("escape sequences for a terminal")
    if any(_is_hidden(one) for one in signs - DIRECTION - _ESCAPES):
        found.append("signs that cannot be seen")
    if _BLANKS.search(plain) or _EMPTY.search(plain):
        found.append("a long row of blanks or empty lines")
    return found


def exposed_value(value: JsonValue, name: str = "") -> list[str]:
    """A value of JSON line by line; every text of it complete, the arguments of a command one by
    one.
    """
    if isinstance(value, dict):
        return [
            line for key, one in value.items() for line in exposed_value(one, _joined(name, key))
        ]
    if isinstance(value, list):
        numbered = enumerate(value)
        return [line for key, one in numbered for line in exposed_value(one, f"{name}[{key}]")]
    first, *more = reveal(value if isinstance(value, str) else json.dumps(value))
    return [f"{name}: {first}", *(f"  {line}" for line in more)]


def value_marks(value: JsonValue) -> list[str]:
    """The same for everything in a value."""
    if isinstance(value, str):
        return marks(value)
    inside: list[JsonValue] = []
    if isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, list):
        inside = value
    return list(dict.fromkeys(mark for one in inside for mark in value_marks(one)))


class Exposure(NamedTuple):
    """What a question could hide, and every line of it; None for one that hides nothing."""

    marks: list[str] | None = None
    shown: list[str] | None = None


def exposure(message: str, call: tuple[str, JsonValue] | None = None) -> Exposure:
    """What a question could hide; `call` is the tool that it is about, with its arguments."""
    found = value_marks([message, *(call or ())])
    if not found:
        return Exposure()
    lines = reveal(message)
    if call is not None:
        tool, arguments = call
        lines = [*lines, *exposed_value(tool, "tool"), *exposed_value(arguments, "arguments")]
    return Exposure(found, lines)


def seen(char: str) -> str:
    """A character, or its code if it cannot be seen."""
    if char == "\t":
        return "    "
    number = ord(char)
    if not _is_hidden(char):
        return char
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _is_hidden(char: str) -> bool:
    if char in "\n\t" or (char.isascii() and char.isprintable()):
        return False
    return char in SELECTORS or unicodedata.category(char) in ("Cc", "Cs", "Cf", "Cn", "Co")


def _joined(name: str, key: str) -> str:
    label = "".join(map(seen, key))
    return f"{name}.{label}" if name else label


LOOP_AGENTS = ("worker", "judge")
"""The names that `loop` gives to its agents, whatever they are."""
SPEC_KINDS = ("acp", "command", "jsonl", "model", "plugin", "script")
"""The names of agents that are given by their spec alone."""
_MOST_CHARS = 60
_NUMBER = LazyPattern(r"-[0-9]+\Z")


def agent_title(name: str, agents: Mapping[str, Agent]) -> str:
    """The name of an agent; for an agent that a definition gives by its spec alone, the spec
    without secrets. Such an agent is named after its kind.
    """
    spec = _spec(name, agents)
    if not _is_named_after(name, spec):
        return name
    shown = mask_text(spec)
    return shown if len(shown) <= _MOST_CHARS else f"{shown[: _MOST_CHARS - 1]}…"


def titles_among_runs(plan: Plan) -> dict[str, str]:
    """The titles of agents in a list of several runs, where names that `loop` generates carry no
    information. Agents whose title is their name are left out.
    """
    titles = {name: _title_among_runs(name, plan) for name in plan.agents}
    return {name: title for name, title in titles.items() if title != name}


def _title_among_runs(name: str, plan: Plan) -> str:
    """Specs are complete, so that those with the same beginning are distinguished."""
    spec = _spec(name, plan.agents)
    is_loop = plan.dialect == "native" and {"worker"} <= {*plan.agents} <= {*LOOP_AGENTS}
    return mask_text(spec) if spec and (is_loop or _is_named_after(name, spec)) else name


def _spec(name: str, agents: Mapping[str, Agent]) -> str:
    agent = agents.get(name)
    return " ".join((agent.spec or "").split()) if agent is not None else ""


def _is_named_after(name: str, spec: str) -> bool:
    return is_kind(name) and spec.startswith(f"{_NUMBER.sub('', name)}:")


def is_kind(name: str) -> bool:
    """Whether a name only says what kind of agent it is: the second of a kind is `command-2`."""
    return _NUMBER.sub("", name) in SPEC_KINDS


def quoted_agent(name: str, agents: Mapping[str, Agent], *, with_spec: bool = False) -> str:
    """An agent in a message: by its name, which its spec may follow, or by its spec."""
    title = agent_title(name, agents)
    if title != name:
        return f"agent `{title}`"
    agent = agents.get(name)
    spec = mask_text(agent.spec or "") if agent is not None and with_spec else ""
    return f"agent {name!r} ({spec})" if spec else f"agent {name!r}"


def details_of(plan: "Plan", first: "RunStarted") -> RunDetails:
    """What lists show of a run that never changes."""
    return RunDetails(worktree=first.worktree, titles=titles_among_runs(plan))
