"""Stored definitions with versions and approval, and promotion of definitions.

A foreign definition that would start programs is held until an admin has approved
exactly that text.

A definition names its evaluation suites and the least score of each. It is promoted when each
suite reaches this score with each model it is to be used with. One without suites is refused.
The record belongs to the exact text: a changed file has to be promoted again.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loopwright.errors import (
    Conflict,
    DefinitionError,
    LoopwrightError,
    NotAllowed,
    NotFound,
    VersionConflict,
)
from loopwright.model.plan import Plan, content_hash
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import Access, Role, acting_role, current_user
from loopwright.operations.agents.programs import programs_named
from loopwright.operations.api_types import DefinitionItem
from loopwright.operations.dialects import (
    MAX_BYTES,
    ParsedDefinition,
    names_files,
    parse_definition,
    read_definition,
)
from loopwright.operations.evaluations import Cases, ScoredRun, prepare_cases, run_case
from loopwright.operations.run_request import Admission, StartRun
from loopwright.operations.run_start import DefinitionSource, StartPlace
from loopwright.operations.wiring import Local
from loopwright.ports import AuditRow, RecordStore, StoredRecord
from loopwright.syntax.document import Diagnostic
from loopwright.views.event_records import timestamp

KIND = "definition"
_ALONE = "it names other files, and only the text of a definition is stored"
_WITH_FILES = (
    "write what they say into the definition, or leave it unstored: "
    "`loopwright run FILE --server URL` sends its files"
)
_MISSING_FILE = ("missing-file", "unknown-command", "unknown-script", "unknown-workflow")
"""The codes of warnings about a file that is not there."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A definition as it is kept."""

    name: str
    text: str
    dialect: str
    digest: str
    enabled: bool = True
    programs: list[str] = []
    by: str = ""
    role: Role = "editor"  # of who wrote it, or approved exactly this text
    changed_at: int = 0
    version: int = 0  # of the record; it is not part of what is kept

    def source(self) -> DefinitionSource:
        """The definition of a run of it."""
        text = self.text.encode(errors="surrogatepass")
        return DefinitionSource(file=self.name, data=text, dialect=self.dialect, author=self.role)


class Definitions:
    """The stored definitions of a data directory."""

    def __init__(
        self, records: RecordStore, access: Access, admission: Admission | None = None
    ) -> None:
        self._records = records
        self._access = access
        self._admission = admission  # None: by the owner of the data directory, on this machine

    def all(self) -> list[Stored]:
        return [_stored(record) for record in self._records.records(KIND)]

    def get(self, name: str) -> Stored:
        record = self._records.record(KIND, name)
        if record is None:
            raise NotFound(
                f"no stored definition {name[:80]!a}",
                hint="`loopwright stored ls` lists all, `loopwright stored put NAME FILE` adds one",
            )
        return _stored(record)

    def runnable(self, name: str) -> Stored:
        """One that may be started."""
        stored = self.get(name)
        if not stored.enabled:
            raise NotAllowed(
                f"{name} was imported and starts programs: it needs admin approval of "
                f"digest {stored.digest}",
                code="needs-approval",
                hint=f"`loopwright stored approve {name} {stored.digest}`, after a look at it: "
                f"`loopwright stored show {name} --source`",
            )
        return stored

    def check_promoted(self, definition: ParsedDefinition, *, is_stored: bool) -> None:
        """Refuse a definition that was not promoted as it is now."""
        check_promoted(self._records, definition, is_stored=is_stored)

    def save(
        self, name: str, text: str, *, by: str, dialect: str | None, expected: int | None
    ) -> Stored:
        """Store a definition that was written here; `expected` is the version that the author
        read.
        """
        parsed = self._parsed(name, text, dialect)
        if self._admission is not None:
            self._admission.check_text(parsed.plan, by=by, what=f"definition {name}")
        stored = self._new(parsed, text, by, foreign=False)
        self._write(stored, expected, by=by, action="definition.saved")
        return self.get(name)

    def store_foreign(self, name: str, text: str, *, by: str, dialect: str | None) -> Stored:
        """Store a foreign definition; one that starts programs is held for approval."""
        stored = self._new(self._parsed(name, text, dialect), text, by, foreign=True)
        self._write(stored, 0, by=by, action="definition.imported")
        return self.get(name)

    def approve(self, name: str, digest: str, *, by: str) -> Stored:
        """Let exactly this text be started."""
        stored = self.get(name)
        if stored.digest != digest:
            raise Conflict(
                f"{name} has digest {stored.digest}, not {digest[:80]}", code="changed-since-shown"
            )
        if not stored.enabled or stored.role != "admin":
            stored = msgspec.structs.replace(stored, enabled=True, role="admin")
            self._write(stored, stored.version, by=by, action="definition.approved")
        return self.get(name)

    def remove(self, name: str, *, by: str) -> None:
        self.get(name)
        row = self._access.row(by, "definition.removed", name)
        self._records.change(drops=[(KIND, name)], audit=[row])

    def _parsed(self, name: str, text: str, dialect: str | None) -> ParsedDefinition:
        if _NAME.fullmatch(name) is None:
            raise LoopwrightError(
                f"{name[:80]!a} cannot be the name of a definition",
                code="bad-definition-name",
                hint="use a-z, 0-9, dots, dashes and underscores, at most 100 of them",
            )
        data = text.encode(errors="surrogatepass")[: MAX_BYTES + 1]
        alone = Diagnostic(name, 1, 1, "names-files", _ALONE, hint=_WITH_FILES)
        try:
            parsed = parse_definition(data, file=name, force=dialect)
        except DefinitionError as error:
            if not names_files(data, file=name, force=dialect):
                raise
            # Otherwise they would be reported as missing, although they may be beside it.
            raise DefinitionError(error.message, problems=[alone, *error.problems]) from error
        # A definition may load without a file that it names. Stored, it would lose that file.
        missing = [one for one in parsed.warnings if one.code in _MISSING_FILE]
        if missing:
            raise DefinitionError(f"{name}: {_ALONE}", problems=[alone, *missing])
        return parsed

    def _new(self, parsed: ParsedDefinition, text: str, by: str, *, foreign: bool) -> Stored:
        programs = programs_named(parsed.plan)
        return Stored(
            name=parsed.file,
            text=text,
            dialect=parsed.dialect,
            digest=parsed.digest,
            enabled=not (foreign and programs),
            programs=programs,
            by=by,
            role="admin" if self._admission is None else acting_role(),
            changed_at=self._access.clock.now_ms(),
        )

    def _write(self, stored: Stored, expected: int | None, *, by: str, action: str) -> None:
        body = msgspec.json.encode(msgspec.structs.replace(stored, version=0))
        record = StoredRecord(kind=KIND, key=stored.name, body=body)
        row = self._access.row(by, action, stored.name, stored.digest)
        try:
            self._records.change([(record, expected)], audit=[row])
        except VersionConflict as conflict:
            code, what = "changed-meanwhile", "was changed meanwhile"
            if expected == 0:
                code, what = "name-taken", "is stored already"
            raise Conflict(f"{stored.name} {what}", code=code) from conflict


def _stored(record: StoredRecord) -> Stored:
    kept = msgspec.json.decode(record.body, type=Stored)
    return msgspec.structs.replace(kept, version=record.version)


def stored_item(stored: Stored, *, text: bool = True) -> DefinitionItem:
    """A stored definition as one object, with its text or without."""
    why = None if stored.enabled else f"needs admin approval of digest {stored.digest}"
    return DefinitionItem(
        name=stored.name,
        dialect=stored.dialect,
        digest=stored.digest,
        enabled=stored.enabled,
        detail=why,
        programs=list(stored.programs),
        by=stored.by,
        changed_at=timestamp(stored.changed_at),
        version=stored.version,
        text=stored.text if text else None,
    )


PROMOTION = "promotion"
FOLDER = "evals"
ENDINGS = (".yaml", ".yml", ".json")
OWN = ""  # the models that the definition itself names


class RequiredSuite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite that has to be passed."""

    suite: str
    min_score: float


class PromotionGate(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be shown before a definition is promoted."""

    required_suites: tuple[RequiredSuite, ...] = ()
    must_pass_before_promote: bool = True


class SuiteResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one suite with one model."""

    suite: str
    model: str
    score: float
    least: float
    runs: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.score >= self.least

    @property
    def label(self) -> str:
        """Which suite, and with which model."""
        return f"{self.suite} with {self.model}" if self.model else self.suite


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a definition that was promoted."""

    digest: str
    name: str
    at: int
    by: str
    results: tuple[SuiteResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionTrial:
    """A definition with everything that it has to pass; nothing has been started yet."""

    definition: ParsedDefinition
    gate: PromotionGate
    suites: Sequence[tuple[RequiredSuite, str, Cases]]  # with the model of each

    @property
    def cases(self) -> int:
        return sum(len(cases.evaluation.cases) for _, _, cases in self.suites)


def gate_of(plan: Plan) -> PromotionGate:
    """What the agents of a plan ask for, together."""
    gates = [
        msgspec.convert(agent.options["eval_gate"], PromotionGate)
        for agent in plan.agents.values()
        if agent.options.get("eval_gate") is not None
    ]
    suites: dict[str, RequiredSuite] = {}
    for one in (suite for gate in gates for suite in gate.required_suites):
        known = suites.get(one.suite)
        suites[one.suite] = one if known is None or one.min_score > known.min_score else known
    must = any(gate.must_pass_before_promote for gate in gates) if gates else True
    return PromotionGate(required_suites=tuple(suites.values()), must_pass_before_promote=must)


def prepare_trial(
    place: StartPlace,
    request: StartRun,
    file: Path,
    *,
    models: Sequence[str],
    folder: Path | None,
    judge: str | None,
) -> PromotionTrial:
    """Read a definition and its suites; all problems are reported before anything is spent."""
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
            one = msgspec.structs.replace(request, agent=model, agents={}) if model else request
            cases = prepare_cases(place, one, found, judge)
            _check_same(file, cases, found)
            suites.append((suite, model, cases))
    return PromotionTrial(definition=definition, gate=gate, suites=suites)


async def try_out(here: Local, trial: PromotionTrial) -> AsyncIterator[ScoredRun | SuiteResult]:
    """Run every case: yield each one when it is done, and after each suite its result."""
    for suite, model, cases in trial.suites:
        found: list[ScoredRun] = []
        for name, case in cases.evaluation.numbered():
            one = await run_case(here, cases, name, case)
            found.append(one)
            yield one
        yield SuiteResult(
            suite=suite.suite,
            model=model,
            score=sum(one.passed for one in found) / len(found),
            least=suite.min_score,
            runs=tuple(one.run for one in found if one.run),
        )


def promote(
    records: RecordStore, trial: PromotionTrial, results: Sequence[SuiteResult], *, now_ms: int
) -> Promotion:
    """Record that a definition is promoted; NotAllowed when a suite did not reach its score."""
    below = [one for one in results if not one.passed]
    if len(results) < len(trial.suites) or (below and trial.gate.must_pass_before_promote):
        labels = ", ".join(f"{one.label} {one.score:.2f} of {one.least:.2f}" for one in below)
        raise NotAllowed(
            f"not promoted: {labels or 'not every suite was run'}",
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
    record = StoredRecord(kind=PROMOTION, key=made.digest, body=msgspec.json.encode(made))
    scores = ", ".join(f"{one.suite} {one.score:.2f}" for one in results)
    row = AuditRow(
        at=now_ms,
        who=made.by,
        via="cli",
        action="definition.promoted",
        subject=made.digest,
        detail=scores[:200],
    )
    records.change(puts=[(record, None)], audit=[row])
    return made


def promotions(records: RecordStore) -> list[Promotion]:
    """Everything that was promoted, newest first."""
    found = [msgspec.json.decode(one.body, type=Promotion) for one in records.records(PROMOTION)]
    return sorted(found, key=lambda one: -one.at)


def check_promoted(records: RecordStore, definition: ParsedDefinition, *, is_stored: bool) -> None:
    """Refuse a definition whose very text was not promoted here. Only files can be tried, so for
    one that is stored the file has to be found that it came from.
    """
    if records.record(PROMOTION, digest_of(definition)) is None:
        file = "FILE" if is_stored else definition.file
        raise NotAllowed(
            f"{definition.file} was not promoted as it is now",
            code="not-promoted",
            hint=f"`loopwright promote {file}` tries it; a changed file is a new one",
        )


def digest_of(definition: ParsedDefinition) -> str:
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
    labels = msgspec.to_builtins(one)
    assert isinstance(labels, dict)
    return labels


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
