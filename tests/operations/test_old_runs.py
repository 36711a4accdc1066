"""Runs of older versions: their listings are computed from their events, once."""

import asyncio
import sqlite3
from pathlib import Path

import msgspec
import pytest

from loopwright.errors import StorageError
from loopwright.kernel.events import AnyEvent, GateAnswered, GateOpened, RunStarted, Usage
from loopwright.kernel.fold import fold
from loopwright.model.actions import CallAgent, Decision, LoopGate, Repeat
from loopwright.model.plan import Plan, content_hash, encode_plan
from loopwright.operations.gates import gate_named
from loopwright.operations.run_lists import list_old_runs, listing_of, run_item
from loopwright.ports import Append, ClosedGate, RunRow, encode_figures
from loopwright.ports.headline import figures_of, gate_changes, headline_of, usage_rows
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from loopwright.views.formats import details_of
from tests.kernel.driving import Driver, Reply, by_iteration, plan_of

PLAN = plan_of(Repeat(body=CallAgent(agent="worker"), max=5, gate=LoopGate()))
DOWNGRADE = """
    DELETE FROM gate WHERE closed_at IS NOT NULL;
    DELETE FROM usage;
    DROP INDEX gate_open;
    CREATE INDEX gate_run ON gate (run);
    ALTER TABLE segment DROP COLUMN figures;
    ALTER TABLE run DROP COLUMN details;
    ALTER TABLE gate DROP COLUMN subject;
    ALTER TABLE gate DROP COLUMN closed_at;
    ALTER TABLE gate DROP COLUMN decision;
    ALTER TABLE gate DROP COLUMN decided_by;
    UPDATE run SET metered = 1;
    UPDATE meta SET value = 5 WHERE key = 'schema';
"""


def opened(folder: Path) -> SqliteLog:
    return open_sqlite_log(folder / "log.db", alive=lambda _: False, durability="normal")


def waiting(run: str, iterations: int) -> list[AnyEvent]:
    """A run that waits at the gate of that iteration; earlier ones were answered."""

    def people(gate: GateOpened) -> tuple[Decision, str] | None:
        return ("continue", "more") if (gate.iteration or 0) < iterations else None

    script = by_iteration(Reply("x", usage=Usage(10, 5, 3.0)))
    driver = Driver(PLAN, script=script, people=people).run()
    first = driver.events[0]
    assert isinstance(first, RunStarted)
    plan = content_hash(encode_plan(PLAN))
    start = msgspec.structs.replace(first, run=run, plan=plan)
    # The ids of gates are derived from the id of the run.
    return [start, *(_renamed(event, run) for event in driver.events[1:])]


def _renamed(event: AnyEvent, run: str) -> AnyEvent:
    if isinstance(event, GateOpened | GateAnswered):
        return msgspec.structs.replace(event, gate=f"{event.gate}{run[-1]}")
    return event


def append_of(plan: Plan, events: list[AnyEvent]) -> Append:
    state, text = fold(plan, events), encode_plan(plan)
    opened_gates, closed = gate_changes(state, events)
    return Append(
        run=state.run,
        expected=0,
        events=events,
        blobs={content_hash(text): text},
        headline=headline_of(state),
        figures=encode_figures(figures_of(state)),
        details=details_of(plan, state.started) if state.started else None,
        gates_opened=[gate for gate in opened_gates if gate.gate in state.gates],
        gates_closed=[gate for gate in closed if gate.gate not in state.gates],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory of the version before lists had rows, with two runs."""
    log = opened(tmp_path)
    for events in (waiting("run_a", 1), waiting("run_b", 3)):
        asyncio.run(log.append(append_of(PLAN, events)))
    rows = log.rows()
    log.close()
    with sqlite3.connect(tmp_path / "log.db") as db:
        db.executescript(DOWNGRADE)
    db.close()
    assert all(row.figures is not None for row in rows)
    return tmp_path


def shown(log: SqliteLog) -> list[tuple[object, ...]]:
    items = [run_item(log, row) for row in log.rows()]
    return [(item.run, item.iterations, item.max, item.gates, item.damaged) for item in items]


SHOWN = [("run_b", 3, 5, 1, None), ("run_a", 1, 5, 1, None)]


@pytest.mark.item("rec-27")
def test_old_runs_are_listed_and_stored_once(folder: Path) -> None:
    """The first list computes the rows; later ones read them, also of answered gates."""
    log = opened(folder)
    assert sorted(log.unlisted()) == ["run_a", "run_b"]
    assert list_old_runs(log) == []
    assert log.unlisted() == []
    assert shown(log) == SHOWN
    assert all(row.details is not None for row in log.rows())
    events = {run: [one.event for one in log.read(run)] for run in ("run_a", "run_b")}
    assert log.usage() == [row for run in events for row in usage_rows(run, events[run])]
    assert sum(row.calls for row in log.usage()) == 4
    [one] = log.gates("run_b")
    assert gate_named(log, one.gate) == one
    answered = [
        event.gate
        for numbered in log.read("run_b")
        if isinstance(event := numbered.event, GateAnswered)
    ]
    assert len(answered) == 2
    for name in answered:
        [gate] = log.find_gates(name, 2)
        assert isinstance(gate, ClosedGate)
        assert gate.decision == "continue"
    log.close()


def test_an_interrupted_migration_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is stored alone, so those that were done stay done."""
    log = opened(folder)
    first = log.unlisted()[0]
    monkeypatch.setattr(log, "unlisted", lambda: [first])
    list_old_runs(log)
    log.close()
    log = opened(folder)
    assert log.unlisted() == [run for run in ("run_a", "run_b") if run != first]
    assert shown(log) == SHOWN
    list_old_runs(log)
    assert shown(log) == SHOWN
    log.close()


def test_old_runs_are_listed_where_nothing_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without write access the rows are computed for each list."""

    def refuse(_place: object) -> sqlite3.Connection:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise error

    monkeypatch.setattr("loopwright.stores.sqlite.connection.DatabasePlace.open_writer", refuse)
    log = opened(folder)
    assert list_old_runs(log) == []
    assert shown(log) == SHOWN
    assert len(log.gates()) == 2
    log.close()


def test_a_damaged_old_run_is_left(folder: Path) -> None:
    """It is named, and listed as damaged; the others are stored."""
    with sqlite3.connect(folder / "log.db") as db:
        db.execute("UPDATE segment SET body = x'00' WHERE run = 1")
    db.close()
    log = opened(folder)
    damaged, whole = "run_a", "run_b"
    assert list_old_runs(log) == [damaged]
    assert log.unlisted() == [damaged]
    rows: dict[str, RunRow] = {row.run: row for row in log.rows()}
    assert run_item(log, rows[damaged]).damaged
    assert run_item(log, rows[whole]).damaged is None
    with pytest.raises(StorageError):
        listing_of(log, damaged)
    log.close()
