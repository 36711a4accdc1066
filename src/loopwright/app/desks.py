"""Desks: the trackers of a session, for an agent of one of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.skills import Skill, find_skills
from loopwright.app.views.rounds import rounds_of
from loopwright.kernel.calls import AgentCall, LookupCall, ModelCall, ToolCall
from loopwright.kernel.facts import RunStarted
from loopwright.model.plan import Agent, stored_content, stored_plan
from loopwright.model.record import Text
from loopwright.model.trackers import Item, Kind, Trackers
from loopwright.ports import Answer, Clock, Done, EventLog, Job
from loopwright.tools.desk import Desk

MEMORY = "memory:"
"""How scopes of memories begin; the workspace follows."""
MOST_RUNS = 100
"""Runs of a session whose rounds are shown, the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desks:
    """Makes desks; everything about trackers that the wiring has to know."""

    log: EventLog
    trackers: Trackers
    clock: Clock
    home: Path | None = None

    def of(self, job: Job) -> Desk:
        """The desk of the agent that a job is for."""
        agent = job.agent or Agent()
        call = job.call
        name = call.agent if isinstance(call, AgentCall | ModelCall | ToolCall) else ""
        wanted = agent.options.get("skills")

        def skills() -> dict[str, Skill]:
            known = find_skills(self.home, Path(job.workspace))
            if not isinstance(wanted, list):
                return known
            return {name: one for name, one in known.items() if name in wanted}

        return Desk(
            trackers=self.trackers,
            scope=job.scope or job.run,
            run=job.run,
            role=agent.role or name,
            now_ms=self.clock.now_ms,
            project=self._project(job.run),
            memory=f"{MEMORY}{job.workspace}",
            made=lambda kind: self.made(job.scope or job.run, kind, run=job.run),
            skills=skills,
        )

    def look(self, job: Job) -> Answer:
        """Whether an agent or a person has left an artifact in the scope of a job."""
        assert isinstance(job.call, LookupCall)
        since, scope = job.call.since, job.scope or job.run
        left = [one for one in self.trackers.all(scope, "artifact") if one.at >= since]
        return Done(
            code=0 if left else 1, output="\n".join(one.text("title") or one.id for one in left)
        )

    def _project(self, run: str) -> str:
        first = self.log.read(run, 0, 1)[0].fact
        return first.project if isinstance(first, RunStarted) else ""

    def made(self, scope: str, kind: Kind, *, run: str | None = None) -> Sequence[Item]:
        """What the engine has made in a scope, oldest first."""
        if kind not in ("artifact", "sprint"):
            return ()
        rows = self.log.rows(session=scope, limit=MOST_RUNS)
        runs = dict.fromkeys([*([run] if run else ()), *(row.run for row in rows)])
        found = [item for one in reversed(runs) for item in self._rounds(one, kind)]
        return sorted(found, key=lambda item: item.at)

    def _rounds(self, run: str, kind: Kind) -> list[Item]:
        facts = [one.fact for one in self.log.read(run)]
        first = facts[0]
        assert isinstance(first, RunStarted), "every run begins so"
        plan = stored_plan(self.log.blob, first.plan)
        return rounds_of(plan, facts, self._read).of(kind)

    def _read(self, text: Text | None) -> str:
        if text is None or isinstance(text, str):
            return text or ""
        return stored_content(self.log.blob, text.blob).decode()
