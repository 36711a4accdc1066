"""Metrics of a run: time, calls, tokens and cost of iterations, steps and agents, and findings.

Everything here is read off the facts, so it is the same for a run under way, one that ended, and
one that another process drives. Places are counted where they stand: what an inner loop spends is
spent by every round around it too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median

import msgspec

from loopwright.app.views.findings import RoundOfFindings, Trend, compared, trend
from loopwright.app.views.summary import ReadText
from loopwright.app.views.usage import known_usd
from loopwright.kernel.calls import CALLED, AgentCall, AnyCall, CommandCall, ModelCall, ToolCall
from loopwright.kernel.facts import (
    AnyFact,
    CheckVerdict,
    EffectDone,
    EffectFailed,
    EffectRequested,
    IterationFinished,
    IterationStarted,
)
from loopwright.model.ids import last_id, logical_path, parent_path, pass_number
from loopwright.model.record import JsonValue, Text
from loopwright.ports import RunReader

COMMANDS = "checks and commands"
_WHOLE_RUN = "run"
"""The name of what belongs to no step."""
_COUNTED = (*CALLED, CommandCall, ToolCall)


@dataclass(slots=True)
class Spent:
    """What calls took and cost. `calls` are calls of agents, as `spend` counts them."""

    calls: int = 0
    commands: int = 0
    tools: int = 0
    failed: int = 0
    ms: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced_calls: int = 0

    def add(self, call: AnyCall, answer: EffectDone | EffectFailed, ms: int) -> None:
        self.calls += isinstance(call, CALLED)
        self.commands += isinstance(call, CommandCall)
        self.tools += isinstance(call, ToolCall)
        self.failed += isinstance(answer, EffectFailed)
        self.ms += ms
        if (usage := answer.usage) is not None:
            self.input_tokens += usage.input_tokens
            self.output_tokens += usage.output_tokens
            self.usd += usage.usd
            self.unpriced_calls += usage.unpriced


def spent_item(spent: Spent) -> dict[str, JsonValue]:
    """What calls took and cost, as one object. `usd` is null when nothing of it is known."""
    return {**asdict(spent), "usd": known_usd(spent.usd, spent.unpriced_calls)}


@dataclass(slots=True)
class Round:
    """One iteration of a loop."""

    path: str
    loop: str
    number: int
    began_at: int
    ms: int = 0
    status: str = "running"
    done: bool = False
    verdicts: dict[str, str] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    findings: list[JsonValue] | None = None
    compared: RoundOfFindings | None = None


@dataclass(slots=True)
class Part:
    """A stage or a role: all its calls of all rounds."""

    name: str
    spent: Spent = field(default_factory=Spent)
    each_ms: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Metrics:
    """The figures of one run."""

    rounds: list[Round]
    stages: list[Part]
    roles: list[Part]
    total: Spent
    trends: dict[str, Trend]  # by loop

    def as_dict(self) -> dict[str, JsonValue]:
        return {
            "rounds": [_round(one) for one in self.rounds],
            "stages": [_part(one) for one in self.stages],
            "roles": [_part(one) for one in self.roles],
            "total": spent_item(self.total),
            "trends": dict(self.trends),
        }


def metrics_of(facts: Iterable[AnyFact], read: ReadText) -> Metrics:
    """The figures of the run that these facts tell."""
    counting = Counting(read)
    for fact in facts:
        counting.take(fact)
    return counting.told()


def run_metrics(service: RunReader, run: str) -> Metrics:
    """The figures of a run in the log here."""
    return metrics_of((one.fact for one in service.facts(run)), service.read_text)


def metrics_from(told: Mapping[str, JsonValue]) -> Metrics:
    """Figures that were written as JSON, here or by a server; what a later version has besides is
    left out.
    """
    return Metrics(
        rounds=[_round_from(one) for one in _dicts(told["rounds"])],
        stages=[_part_from(one) for one in _dicts(told["stages"])],
        roles=[_part_from(one) for one in _dicts(told["roles"])],
        total=_spent_from(msgspec.convert(told["total"], dict[str, JsonValue])),
        trends=msgspec.convert(told["trends"], dict[str, Trend]),
    )


class Counting:
    """The figures of one run, fact by fact."""

    def __init__(self, read: ReadText) -> None:
        self._read = read
        self._rounds: dict[str, Round] = {}
        self._asked: dict[str, EffectRequested] = {}
        self._stages: dict[str, Part] = {}
        self._roles: dict[str, Part] = {}
        self._total = Spent()

    def take(self, fact: AnyFact) -> None:
        match fact:
            case IterationStarted(path=path, resumed=True) if path in self._rounds:
                pass  # it continues, and its time counts on
            case IterationStarted(path=path):
                loop = parent_path(path)
                number = pass_number(path) + 1
                self._rounds[path] = Round(path, loop, number, began_at=fact.at)
            case IterationFinished(path=path) if path in self._rounds:
                seen = self._rounds[path]
                seen.ms, seen.status, seen.done = fact.ms, fact.status, fact.done
                self._found(seen, fact.result)
            case CheckVerdict(path=path) if path in self._rounds:
                self._rounds[path].verdicts[f"{fact.index}:{fact.check}"] = fact.verdict
            case EffectRequested():
                self._asked[fact.effect] = fact
            case EffectDone() | EffectFailed():
                self._answered(fact)
            case _:
                pass

    def told(self) -> Metrics:
        rounds = list(self._rounds.values())
        loops = dict.fromkeys(one.loop for one in rounds)
        trends: dict[str, Trend] = {}
        for loop in loops:
            own = [one for one in rounds if one.loop == loop]
            for one, found in zip(own, compared(one.findings for one in own), strict=True):
                one.compared = found
            if leads := trend(one.compared for one in own):
                trends[loop] = leads
        stages, roles = list(self._stages.values()), list(self._roles.values())
        return Metrics(rounds, stages, roles, self._total, trends)

    def _answered(self, fact: EffectDone | EffectFailed) -> None:
        asked = self._asked.pop(fact.effect, None)
        if asked is None or not isinstance(asked.call, _COUNTED):
            return  # also a snapshot, which neither an agent nor a program makes
        ms = max(0, fact.at - asked.at)
        self._total.add(asked.call, fact, ms)
        for part in (self._stage(asked), self._role(asked.call)):
            part.spent.add(asked.call, fact, ms)
            part.each_ms.append(ms)
        place = fact.path
        while place:
            if (around := self._rounds.get(place)) is not None:
                around.spent.add(asked.call, fact, ms)
                if isinstance(fact, EffectDone):
                    self._found(around, fact.result)
            place = parent_path(place)

    def _found(self, around: Round, result: Text | None) -> None:
        """The newest list of findings of a round is the one that counts."""
        if result is None:
            return
        value = msgspec.json.decode(self._read(result))
        findings = value.get("findings") if isinstance(value, dict) else None
        if isinstance(findings, list):
            around.findings = findings

    def _stage(self, asked: EffectRequested) -> Part:
        name = logical_path(asked.path) or last_id(asked.path) or _WHOLE_RUN
        if isinstance(asked.call, AgentCall) and asked.call.role != "worker":
            name = f"{name} ({asked.call.role})"
        return self._stages.setdefault(name, Part(name))

    def _role(self, call: AnyCall) -> Part:
        name = call.agent if isinstance(call, AgentCall | ModelCall | ToolCall) else COMMANDS
        return self._roles.setdefault(name, Part(name))


def _round(one: Round) -> dict[str, JsonValue]:
    told = asdict(one)
    told["verdicts"] = [
        {"check": name.partition(":")[2], "verdict": said} for name, said in one.verdicts.items()
    ]
    told["findings"] = one.findings
    told["spent"] = spent_item(one.spent)
    return told


def _round_from(told: Mapping[str, JsonValue]) -> Round:
    said = _dicts(told["verdicts"])
    verdicts = {f"{n}:{one['check']}": one["verdict"] for n, one in enumerate(said)}
    spent = _spent_from(msgspec.convert(told["spent"], dict[str, JsonValue]))
    return msgspec.convert({**told, "verdicts": verdicts, "spent": asdict(spent)}, Round)


def _part_from(told: Mapping[str, JsonValue]) -> Part:
    return Part(str(told["name"]), _spent_from(told))


def _spent_from(told: Mapping[str, JsonValue]) -> Spent:
    return msgspec.convert({**told, "usd": told["usd"] or 0.0}, Spent)


def _dicts(value: JsonValue) -> list[dict[str, JsonValue]]:
    return msgspec.convert(value, list[dict[str, JsonValue]])


def _part(one: Part) -> dict[str, JsonValue]:
    times = one.each_ms or [0]
    return {
        "name": one.name,
        **spent_item(one.spent),
        "median_ms": int(median(times)),
        "longest_ms": max(times),
    }
