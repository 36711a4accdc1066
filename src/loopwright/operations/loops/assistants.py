"""Assistants: workers with settings of a loop, kept beside the runs. Each has at most one loop
active, whichever interface started it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import msgspec

from loopwright.errors import Conflict, DefinitionError, LoopwrightError, NotFound, VersionConflict
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import Role, acting_role, least
from loopwright.operations.agents.backends import bind_agents
from loopwright.operations.dialects import (
    ASSISTANTS,
    ParsedDefinition,
    assistant_key,
    parse_definition,
)
from loopwright.operations.preflight import missing_programs
from loopwright.operations.run_groups import Beside, OnDisconnect, alone
from loopwright.operations.run_start import (
    DefinitionSource,
    StartPlace,
    launch_run,
    prepare_start,
    start_request,
)
from loopwright.operations.runs import Service, row_ended
from loopwright.operations.settings import Settings
from loopwright.ports import OPEN_STATUSES, AuditRow, RecordStore, RunRow, StoredRecord
from loopwright.syntax.document import Diagnostic
from loopwright.views.event_records import sortable_id

KIND = "assistant"
REQUEST = "(assistant)"
TRIES = 50
MOST = 10_000
DEFAULTS: Mapping[str, JsonValue] = {
    "loopEnabled": False,
    "loopCriteria": None,
    "maxIterations": 10,
}


class StoredAssistant(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant as it is kept: its document, and what is ours beside it."""

    id: str
    document: dict[str, JsonValue]
    agent: str | None = None  # its backend; None: the one in the settings
    workspace: str | None = None  # None: the one of the server
    parting: OnDisconnect | None = None
    role: Role = "editor"  # the least role of those who have written it
    created_at: int = 0
    updated_at: int = 0

    @property
    def loops(self) -> bool:
        return self.document.get("loopEnabled") is True


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantEdit:
    """What shall be different; a key that is not there stays as it is."""

    document: Mapping[str, JsonValue]
    ours: Mapping[str, str | None]  # agent, workspace, parting


class Assistants:
    """The assistants of a data directory, and their loops."""

    def __init__(
        self, service: Service, records: RecordStore, settings: Settings, workspace: Path
    ) -> None:
        self._service = service
        self._records = records
        self._workspace = workspace
        self._settings = settings

    # -- keeping -------------------------------------------------------------------------------

    def all(self) -> list[StoredAssistant]:
        return [_decoded(record) for record in self._records.records(KIND)]

    def get(self, agent_id: str) -> StoredAssistant:
        return self._found(agent_id)[0]

    def create(self, edit: AssistantEdit, *, by: str) -> StoredAssistant:
        now = self._service.clock.now_ms()
        if len(self._records.records(KIND, limit=MOST)) >= MOST:
            raise Conflict(f"there are {MOST:,} assistants already", code="too-many")
        begun = StoredAssistant(
            id=f"agent_{sortable_id(now)}",
            document=dict(DEFAULTS),
            role=acting_role(),
            created_at=now,
        )
        made = _edited(begun, edit, now)
        self._check(made, self.definition(made), by=by)
        self._write(made, 0, by=by, action="assistant.created")
        return made

    async def change(self, agent_id: str, edit: AssistantEdit, *, by: str) -> StoredAssistant:
        """Edit an assistant. A loop under way sees another persona, model or tools with its next
        pass; what decides when it ends stays as it was.
        """
        for _ in range(TRIES):
            known, version = self._found(agent_id)
            changed = _edited(known, _switched(edit), self._service.clock.now_ms())
            changed = msgspec.structs.replace(changed, role=least(known.role, acting_role()))
            definition = self.definition(changed)
            self._check(changed, definition, by=by)
            try:
                self._write(changed, version, by=by, action="assistant.changed")
            except VersionConflict:
                continue
            await self._send_to_loop(changed, definition, by=by)
            return changed
        raise Conflict("the assistant changes too fast; try again", code="busy")

    def delete(self, agent_id: str, *, by: str) -> None:
        self._found(agent_id)
        if (row := self.active(agent_id)) is not None:
            raise Conflict(
                f"the assistant has a loop under way ({row.run})",
                code="already-running",
                hint="stop it first",
            )
        self._records.change(drops=[(KIND, agent_id)], audit=[self._row(by, "deleted", agent_id)])

    def _found(self, agent_id: str) -> tuple[StoredAssistant, int]:
        record = self._records.record(KIND, agent_id)
        if record is None:
            raise NotFound(f"no assistant {agent_id[:80]!a}", code="no-assistant")
        return _decoded(record), record.version

    def _write(self, assistant: StoredAssistant, version: int, *, by: str, action: str) -> None:
        record = StoredRecord(kind=KIND, key=assistant.id, body=msgspec.json.encode(assistant))
        row = self._row(by, action.partition(".")[2], assistant.id)
        self._records.change([(record, version)], audit=[row])

    def _row(self, by: str, what: str, agent_id: str) -> AuditRow:
        return AuditRow(
            at=self._service.clock.now_ms(),
            who=by,
            action=f"assistant.{what}",
            subject=agent_id,
            via=self._service.via,
        )

    def definition(self, assistant: StoredAssistant) -> ParsedDefinition:
        """Its definition; problems are reported now, not when a loop is started."""
        document = {**assistant.document, "loopEnabled": True}
        try:
            return parse_definition(msgspec.json.encode(document), file=REQUEST, force=ASSISTANTS)
        except DefinitionError as error:
            raise _unfit(error) from error

    def warnings(self, assistant: StoredAssistant) -> list[Diagnostic]:
        """What is doubtful about an assistant: fields without effect, a pattern that never
        matches, and programs that are missing where its loop would start.
        """
        definition = self.definition(assistant)
        found = [one for one in definition.warnings if isinstance(one, Diagnostic)]
        folder = Path(assistant.workspace or self._workspace)
        for problem in missing_programs(definition.plan, folder):
            found.append(Diagnostic(REQUEST, 1, 1, "no-program", problem, severity="warning"))
        return found

    def _check(self, assistant: StoredAssistant, definition: ParsedDefinition, *, by: str) -> None:
        """Refuse an assistant whose agent or folder its authors could not use."""
        if self._service.admission is None:
            return
        if assistant.workspace:
            self._check_workspace(assistant, by=by)
        plan = definition.plan
        if assistant.agent:
            agents = {
                name: msgspec.structs.replace(agent, spec=assistant.agent)
                for name, agent in plan.agents.items()
            }
            plan = msgspec.structs.replace(plan, agents=agents)
        self._service.admission.check_text(plan, by=by, what=f"assistant {assistant.id}")

    def _check_workspace(self, assistant: StoredAssistant, *, by: str) -> None:
        """The authors of an assistant chose its folder, not the person who starts it."""
        admission = self._service.admission
        if admission is not None:
            folder = Path(assistant.workspace or self._workspace)
            admission.check_workspace(folder, by=by, role=assistant.role)

    async def _send_to_loop(
        self, assistant: StoredAssistant, definition: ParsedDefinition, *, by: str
    ) -> None:
        row = self.active(assistant.id)
        if row is None:
            return
        known, here = self._service.state(row.run).plan.agents, Path.cwd()
        for name in definition.plan.agents.keys() & known.keys():
            spec = known[name].spec
            bound = bind_agents(definition.plan, default=spec, named={}, base=here, cwd=here)
            if bound.agents[name] != known[name]:
                await self._service.change_agent(row.run, name, bound.agents[name], by=by)

    # -- looping -------------------------------------------------------------------------------

    def active(self, agent_id: str) -> RunRow | None:
        """The active loop of an assistant, no matter who started it."""
        log = self._service.log
        found = log.rows(statuses=OPEN_STATUSES, key=assistant_key(agent_id), limit=1)
        if found:
            return found[0]
        run = self._run(agent_id)
        return None if run is None or row_ended(run) else run

    def newest(self, agent_id: str) -> RunRow | None:
        """Its loop, or the last one it had."""
        found = self._service.log.rows(key=assistant_key(agent_id), limit=1)
        return found[0] if found else self._run(agent_id)

    def _run(self, name: str) -> RunRow | None:
        """A loop that is of no assistant goes by its own id."""
        try:
            return self._service.log.row(name)
        except NotFound:
            return None

    async def start(
        self,
        agent_id: str,
        message: str,
        *,
        by: str,
        beside: Beside = alone,
        allow_unknown_cost: bool = False,
    ) -> str:
        """Start the loop of an assistant; the run. `beside` is what is kept with it."""
        assistant = self.get(agent_id)
        if not assistant.loops:
            raise LoopwrightError(
                "Loop is not enabled for this agent",
                code="loop-disabled",
                hint="set loopEnabled to true first",
            )
        self._check_workspace(assistant, by=by)  # before anything in it is read
        request = start_request(
            {
                "message": message,
                "agents": [assistant.agent] if assistant.agent else [],
                "workspace": assistant.workspace,
                "allow_unknown_cost": allow_unknown_cost,
            }
        )
        place = StartPlace(
            settings=self._settings,
            workspace=self._workspace,
            agent_names=self._service.agent_names(),
            can_ask=True,
        )
        data = msgspec.json.encode({**assistant.document, "id": agent_id})
        source = DefinitionSource(
            file=REQUEST, data=data, dialect=ASSISTANTS, author=assistant.role
        )
        try:
            start, _ = prepare_start(place, request, source)
        except DefinitionError as error:
            raise _unfit(error) from error
        chosen = frozenset(start.plan.agents) if assistant.agent else start.from_text
        start = replace(start, by=by, beside=beside, from_text=chosen)
        title = f"assistant {assistant.document.get('name', agent_id)!r}"
        start = replace(start, workspace_by=assistant.role, file=title)
        try:
            return await launch_run(self._service, start)
        except Conflict as conflict:
            if conflict.code != "key-taken":
                raise
            row = self.active(agent_id)
            raise Conflict(
                "A loop is already running for this agent",
                code="already-running",
                hint=None if row is None else f"it is {row.run}",
            ) from conflict

    def open_run(self, agent_id: str) -> str:
        """The run of its loop; the same error whether it never had one or has ended."""
        row = self.active(agent_id)
        if row is None:
            raise no_loop()
        return row.run

    def open_review(self, agent_id: str, loop_id: str) -> str:
        """The gate of a review that its loop waits for."""
        run = self.open_run(agent_id)
        if loop_id not in {gate.gate for gate in self._service.log.gates(run)}:
            raise NotFound(f"no review {loop_id[:80]!a} is pending", code="no-review")
        return loop_id


def no_loop() -> LoopwrightError:
    return LoopwrightError("No active loop for this agent", code="no-loop")


def _decoded(record: StoredRecord) -> StoredAssistant:
    return msgspec.json.decode(record.body, type=StoredAssistant)


def _edited(known: StoredAssistant, edit: AssistantEdit, now: int) -> StoredAssistant:
    ours: dict[str, str | None] = {**edit.ours}
    parting = ours.pop("parting", known.parting)
    document = {**known.document, **edit.document}
    kept = {name: one for name, one in document.items() if one is not None or name in DEFAULTS}
    return msgspec.structs.replace(
        known,
        document=kept,
        parting=msgspec.convert(parting, OnDisconnect | None),
        updated_at=now,
        **ours,
    )


def _switched(edit: AssistantEdit) -> AssistantEdit:
    """An edit that switches looping off clears the criterion, too."""
    if edit.document.get("loopEnabled") is not False:
        return edit
    return replace(edit, document={**edit.document, "loopCriteria": None})


def decoded_criteria(document: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The same settings, with a criterion that is a JSON text decoded."""
    from loopwright.dialects.rondoflow.surface import (  # noqa: PLC0415 - help stays quick
        with_decoded_criteria,
    )

    return cast("dict[str, JsonValue]", with_decoded_criteria(document))


def _unfit(error: DefinitionError) -> LoopwrightError:
    """Everything that is wrong with an assistant, in one line: the line numbers of a request mean
    nothing to its sender.
    """
    known = [one for one in error.problems if isinstance(one, Diagnostic)]
    found = [one for one in known if one.severity == "error"]
    if not found:
        return LoopwrightError(error.message, code=error.code, hint=error.hint)
    problems = "; ".join(one.message for one in found)
    return LoopwrightError(problems, code=found[0].code, hint=found[0].hint)
