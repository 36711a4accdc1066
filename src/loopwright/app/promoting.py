"""Promotion: a definition that has shown what it can, and the record of it.

A definition names the suites that it has to pass and the least score of each. It is promoted when
every suite reaches that with every model that it shall be used with. What has no suites is refused,
since nothing was shown. The record belongs to the very text that was tried: a changed file is
another one.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loopwright.app.dialects import Definition, read_definition
from loopwright.app.evaluating import Cases, Evaluated, prepare_cases, run_case
from loopwright.app.preparing import Wish
from loopwright.app.service import current_user
from loopwright.app.wiring import Local
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.plan import Plan, content_hash
from loopwright.model.record import JsonValue
from loopwright.ports import AuditRow, Card, Cards

PROMOTION = "promotion"
FOLDER = "evals"
ENDINGS = (".yaml", ".yml", ".json")
OWN = ""  # the models that the definition itself names


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite that has to be passed."""

    suite: str
    min_score: float


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be shown before a definition is promoted."""

    required_suites: tuple[Suite, ...] = ()
    must_pass_before_promote: bool = True


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one suite came to with one model."""

    suite: str
    model: str
    score: float
    least: float
    runs: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.score >= self.least

    @property
    def told(self) -> str:
        """Which suite, and with which model."""
        return f"{self.suite} with {self.model}" if self.model else self.suite


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a definition that was promoted."""

    digest: str
    name: str
    at: int
    by: str
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A definition with everything that it has to pass; nothing has been started yet."""

    definition: Definition
    gate: Gate
    suites: Sequence[tuple[Suite, str, Cases]]  # with the model of each

    @property
    def cases(self) -> int:
        return sum(len(cases.evaluation.cases) for _, _, cases in self.suites)


def gate_of(plan: Plan) -> Gate:
    """What the agents of a plan ask for, together."""
    gates = [
        msgspec.convert(agent.options["eval_gate"], Gate)
        for agent in plan.agents.values()
        if agent.options.get("eval_gate") is not None
    ]
    suites: dict[str, Suite] = {}
    for one in (suite for gate in gates for suite in gate.required_suites):
        known = suites.get(one.suite)
        suites[one.suite] = one if known is None or one.min_score > known.min_score else known
    must = any(gate.must_pass_before_promote for gate in gates) if gates else True
    return Gate(required_suites=tuple(suites.values()), must_pass_before_promote=must)


def prepare_trial(
    file: Path, wish: Wish, *, models: Sequence[str], folder: Path | None, judge: str | None
) -> Trial:
    """Read a definition and its suites; all that can be wrong is told before anything is spent."""
    definition = read_definition(file)
    gate = gate_of(definition.plan)
    if not gate.required_suites:
        raise NotAllowed(
            f"{file} names no suites, so nothing was shown and it is not promoted",
            code="no-suites",
            hint="name them in it: eval_gate.required_suites, each with a suite and a min_score",
        )
    suites = []
    for suite in gate.required_suites:
        found = _suite_file(file, folder, suite.suite)
        for model in models or (OWN,):
            agents = (model,) if model else wish.agents
            cases = prepare_cases(found, replace(wish, agents=agents), judge)
            _check_same(file, cases, found)
            suites.append((suite, model, cases))
    return Trial(definition=definition, gate=gate, suites=suites)


async def try_out(here: Local, trial: Trial) -> AsyncIterator[Evaluated | Result]:
    """Run every case: each as it is done, and after each suite what it came to."""
    for suite, model, cases in trial.suites:
        found: list[Evaluated] = []
        for name, case in cases.evaluation.numbered():
            one = await run_case(here, cases, name, case)
            found.append(one)
            yield one
        yield Result(
            suite=suite.suite,
            model=model,
            score=sum(one.passed for one in found) / len(found),
            least=suite.min_score,
            runs=tuple(one.run for one in found if one.run),
        )


def promote(cards: Cards, trial: Trial, results: Sequence[Result], *, now_ms: int) -> Promotion:
    """Record that a definition is promoted; NotAllowed when a suite did not reach its score."""
    below = [one for one in results if not one.passed]
    if len(results) < len(trial.suites) or (below and trial.gate.must_pass_before_promote):
        told = ", ".join(f"{one.told} {one.score:.2f} of {one.least:.2f}" for one in below)
        raise NotAllowed(
            f"not promoted: {told or 'not every suite was run'}",
            code="below-threshold",
            hint="`loopwright eval` and `loopwright show` tell what failed",
        )
    made = Promotion(
        digest=digest_of(trial.definition),
        name=trial.definition.plan.name,
        at=now_ms,
        by=current_user(),
        results=tuple(results),
    )
    card = Card(kind=PROMOTION, key=made.digest, body=msgspec.json.encode(made))
    scores = ", ".join(f"{one.suite} {one.score:.2f}" for one in results)
    row = AuditRow(
        at=now_ms,
        who=made.by,
        via="cli",
        action="definition.promoted",
        subject=made.digest,
        detail=scores[:200],
    )
    cards.change(puts=[(card, None)], audit=[row])
    return made


def promotions(cards: Cards) -> list[Promotion]:
    """Everything that was promoted, newest first."""
    found = [msgspec.json.decode(one.body, type=Promotion) for one in cards.cards(PROMOTION)]
    return sorted(found, key=lambda one: -one.at)


def check_promoted(cards: Cards, definition: Definition, *, is_stored: bool) -> None:
    """Refuse a definition whose very text was not promoted here. Only files can be tried, so for
    one that is stored the file has to be found that it came from.
    """
    if cards.card(PROMOTION, digest_of(definition)) is None:
        file = "FILE" if is_stored else definition.file
        raise NotAllowed(
            f"{definition.file} was not promoted as it is now",
            code="not-promoted",
            hint=f"`loopwright promote {file}` tries it; a changed file is a new one",
        )


def digest_of(definition: Definition) -> str:
    """Identify a definition, with all the files that it consists of. Every field of the plan
    counts, also one that has its default value; names of classes do not.
    """
    return content_hash(msgspec.json.encode(_plain(definition.plan), order="deterministic"))


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        fields = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        return [value.__struct_config__.tag, fields]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return sorted(value) if isinstance(value, frozenset) else value


def promotion_as_dict(one: Promotion) -> dict[str, JsonValue]:
    told = msgspec.to_builtins(one)
    assert isinstance(told, dict)
    return told


def _suite_file(file: Path, folder: Path | None, name: str) -> Path:
    places = [folder] if folder is not None else [file.parent / FOLDER, file.parent]
    for place in places:
        for ending in ENDINGS:
            if (found := place / f"{name}{ending}").is_file():
                return found
    looked = " and ".join(str(place) for place in places)
    raise LoopwrightError(
        f"there is no suite {name!r} in {looked}",
        code="no-suite",
        hint=f"write {name}.yaml with `definition:` and `cases:` there, or name --suites DIR",
    )


def _check_same(file: Path, cases: Cases, suite: Path) -> None:
    if not cases.definition.is_file() or not cases.definition.samefile(file):
        raise LoopwrightError(
            f"{suite} tries {cases.definition}, not {file}",
            code="other-definition",
            hint=f"write `definition: {file.name}` relative to the suite, or name another suite",
        )
