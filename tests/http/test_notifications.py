"""Notifications: kept, listed, read, and told to whoever was away; nothing twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.http.context import RequestLimits
from loopwright.http.operation_routes import app_of
from loopwright.operations.backup import prune
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.notifications import (
    KEPT_MS,
    SEEN,
    Notices,
    StoredNotification,
    notice_id,
)
from loopwright.operations.wiring import open_log
from loopwright.workers.notifications import NotificationWatcher
from tests.http.served import Served, served, wait_for
from tests.http.talking import tab, talk
from tests.http.test_loops import start, until

BASE = "/api/v1/notifications"
LIMITS = RequestLimits(requests_per_second=10_000)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that does not count how quick these tests are."""
    with served(tmp_path_factory.mktemp("served"), limits=LIMITS) as one:
        yield one


def about(server: Served, run: str, more: str = "") -> list[Any]:
    """What is kept of a run, newest first."""
    found = server("GET", f"{BASE}?run={run}&limit=200{more}").json["notifications"]
    assert isinstance(found, list)
    return found


def when(server: Served, run: str, kind: str, token: str | None = None) -> list[Any]:
    """The notices of a run once there is one of a kind."""
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = about(server, run)
        return kind in [one["kind"] for one in found]

    wait_for(is_there, lambda: found)
    return found


@pytest.mark.item("coqui-60", "coqui-34")
def test_one_for_each_stage_and_one_for_the_end(shared: Served) -> None:
    """In the session of the loop; looking again and again adds nothing."""
    session = shared("POST", "/api/v1/sessions", {}).json["id"]
    loop = start(shared, "Rejected", "Rejected", session_id=session, max_iterations=2)["loop"]["id"]
    until(shared, loop, "completed")
    found = when(shared, loop, "loop.completed")
    assert [one["kind"] for one in found] == ["loop.completed", *["loop.stage_completed"] * 6]
    assert {one["session"] for one in found} == {session}
    assert "limit" in found[0]["title"]
    places = [(one["data"]["iteration"], one["data"]["stage_index"]) for one in found[:0:-1]]
    assert places == [(n, stage) for n in (1, 2) for stage in range(3)]
    for _ in range(3):
        shared.call(
            lambda: (
                shared.context.part(app_of)
                .part(NotificationWatcher)
                .notices.notice([loop], lambda *_: [])
            )
        )
    assert about(shared, loop) == found
    assert about(shared, loop, f"&session={session}") == found
    assert about(shared, loop, "&session=other") == []


@pytest.mark.item("coqui-60")
def test_failures_are_reported_once(shared: Served) -> None:
    """One for the stage that failed, one for the loop."""
    loop = start(shared, "fail:no space left")["loop"]["id"]
    until(shared, loop, "failed")
    found = when(shared, loop, "loop.failed")
    assert [one["kind"] for one in found[:2]] == ["loop.failed", "loop.stage_failed"]
    assert [one["level"] for one in found[:2]] == ["error", "error"]
    assert "no space left" in found[1]["title"]


@pytest.mark.item("rondoflow-44")
def test_loops_of_assistants(shared: Served) -> None:
    """Every iteration is told, and a review with what can be done; who was there hears nothing
    again.
    """
    criteria = {"type": "manual", "value": ""}
    settings = {"loopEnabled": True, "loopCriteria": criteria, "agent": shared.script("A line.")}
    made = shared("POST", "/api/agents", {"name": "writer", **settings}).json["data"]["id"]
    place = f"/api/agents/{made}/loop"

    async def there() -> str:
        async with tab(shared) as one:
            shared("POST", f"{place}/start", {"message": "Write."})
            review = await one.first("notification", level="action_required", agentId=made)
            run = str(review["run"])
            kept = [data for data in when(shared, run, "loop.manual_approval_required")]
            assert [(data["kind"], data["level"]) for data in kept] == [
                ("loop.manual_approval_required", "action_required"),
                ("loop.progress", "info"),
            ]
            assert kept[0]["actions"] == ["approve", "reject"]
            assert [data["waiting"] for data in kept] == [True, False]
            assert kept[0]["data"]["id"] == review["id"]
            return run

    async def back(run: str) -> None:
        shared("POST", f"{place}/approve", {"loopId": pending(), "approved": True})
        when(shared, run, "loop.completed")
        assert about(shared, run, "&waiting=true") == []
        async with tab(shared) as one:
            end = await one.first("notification", kind="loop.completed", run=run)
            assert end["finalOutput"] == "A line."
            await one.say("unsubscribe", {"run": "x"})
            assert [data["kind"] for data in one.all("notification") if data["run"] == run] == [
                "loop.completed"
            ]

    def pending() -> str:
        return str(shared("GET", f"{place}/status").json["data"]["pending"]["loopId"])

    async def whole() -> None:
        await back(await there())

    talk(whole())


def test_levels_and_actions(shared: Served) -> None:
    """What waits for a person says what can be done, for as long as it waits; the end is
    information.
    """
    run, gate = shared.gated()
    found = when(shared, run, "gate.opened")[0]
    assert (found["level"], found["data"]["gate"]) == ("action_required", gate)
    assert {"approve", "reject"} <= set(found["actions"])
    assert about(shared, run, "&waiting=true") == [found]
    shared("POST", f"/api/v1/gates/{gate}/approve", {})
    end, answered = when(shared, run, "run.completed")
    assert (end["level"], end["actions"]) == ("info", [])
    assert answered == {**found, "waiting": False}
    assert about(shared, run, "&waiting=true") == []


def test_reading(shared: Served) -> None:
    """What one person has read another has not; old ones are read with newer ones."""
    loop = start(shared, "APPROVED")["loop"]["id"]
    until(shared, loop, "completed")
    found = when(shared, loop, "loop.completed")
    newest, last = found[0]["id"], found[-1]["id"]
    assert shared("POST", f"{BASE}/{last}/read", {}).json == {"read": 1}
    assert shared("POST", f"{BASE}/{last}/read", {}).json == {"read": 0}
    assert last not in [one["id"] for one in about(shared, loop, "&unread=true")]
    other = shared.made("viewer")
    seen = shared("GET", f"{BASE}?run={loop}&unread=true", token=other).json["notifications"]
    assert [one["id"] for one in seen] == [one["id"] for one in found]
    assert shared("POST", f"{BASE}/read", {"ids": [last, newest]}).json == {"read": 1}
    assert shared("POST", f"{BASE}/read", {"up_to": newest}, token=other).json["read"] >= 4
    assert shared("GET", f"{BASE}?unread=true", token=other).json["notifications"] == []
    for body in ({}, {"ids": [last], "up_to": last}):
        assert shared("POST", f"{BASE}/read", body).status == 422
    assert shared("POST", f"{BASE}/none/read", {}).status == 404


def test_pages(shared: Served) -> None:
    """A list goes on where it ended, newest first."""
    loop = start(shared, "APPROVED")["loop"]["id"]
    until(shared, loop, "completed")
    when(shared, loop, "loop.completed")
    everything = [one["id"] for one in shared("GET", f"{BASE}?limit=200").json["notifications"]]
    assert everything == sorted(everything)
    seen, cursor = [], ""
    while cursor is not None:
        page = shared("GET", f"{BASE}?limit=2{f'&cursor={cursor}' if cursor else ''}").json
        seen += [one["id"] for one in page["notifications"]]
        cursor = page["next"]
    assert seen == everything
    assert shared("GET", f"{BASE}?level=error&mine=true").status == 200
    assert shared("GET", f"{BASE}?level=loud").status == 422
    assert shared("GET", f"{BASE}?cursor=x").status == 400


def test_everyone_who_is_there_is_reported(shared: Served) -> None:
    """Over sockets, as it happens, once."""

    async def go() -> None:
        async with tab(shared) as one:
            loop = start(shared, "APPROVED")["loop"]["id"]
            await one.first("notification", kind="loop.completed", run=loop)
            told = [data["kind"] for data in one.all("notification") if data["run"] == loop]
            assert told == [*["loop.stage_completed"] * 3, "loop.completed"]

    talk(go())


@pytest.mark.item("coqui-60")
def test_everyone_who_was_away_is_reported_at_return(tmp_path: Path) -> None:
    """Also after a restart of the server, oldest first, and once; what was decided is no news."""

    async def back(server: Served, *runs: str) -> list[Any]:
        async with tab(server) as one:
            for run in runs:
                await one.first("notification", run=run)
            await one.say("unsubscribe", {"run": "x"})  # answered behind what came before
            return list(one.all("notification"))

    async def twice(server: Served, *runs: str) -> None:
        told = await back(server, *runs)
        kinds = [(one["run"], one["kind"]) for one in told]
        assert kinds[:4] == [*[(loop, "loop.stage_completed")] * 3, (loop, "loop.completed")]
        assert (waiting, "gate.opened") in kinds
        assert (decided, "gate.opened") not in kinds
        assert (decided, "run.completed") in kinds
        assert [one["notification"] for one in await back(server)] == []

    with served(tmp_path, limits=LIMITS) as first:
        token = first.token
        loop = start(first, "APPROVED")["loop"]["id"]
        until(first, loop, "completed")
        waiting, _ = first.gated()
        decided, gate = first.gated()
        when(first, decided, "gate.opened")
        first("POST", f"/api/v1/gates/{gate}/approve", {})
        before = [*when(first, loop, "loop.completed"), *when(first, decided, "run.completed")]
    with served(tmp_path, limits=LIMITS) as second:
        second.token = token
        after = [*about(second, loop), *about(second, decided)]
        assert json.dumps(after) == json.dumps(before)
        talk(twice(second, loop, waiting, decided))


class Still:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_ms(self) -> int:
        return self.now


def test_a_crash_between_two_looks_repeats_and_loses_nothing(tmp_path: Path) -> None:
    """The number and the notices are written together: whoever comes after looks from there."""
    log, clock = open_log(Settings(home=tmp_path / "home")), Still()

    def made(run: str, *seqs: int) -> list[StoredNotification]:
        return [
            StoredNotification(
                id=notice_id(run, clock.now, seq),
                kind="run.completed",
                level="info",
                title="t",
                run=run,
                seq=seq,
                at=clock.now,
                to="ann",
            )
            for seq in seqs
        ]

    asked: list[int] = []

    def tell(run: str, after: int) -> list[StoredNotification]:
        asked.append(after)
        return made(run, *[seq for seq in (3, 7) if seq > after])

    first = Notices(log, log, clock)  # type: ignore[arg-type]
    first.moved()
    assert len(first.notice(["run_a"], tell)) == 2
    second = Notices(log, log, clock)  # type: ignore[arg-type]
    second.moved()
    assert second.notice(["run_a"], tell) == []
    assert asked == [0, 7]
    assert [one.seq for one in second.page("", 10, lambda _: True)] == [7, 3]
    clock.now += KEPT_MS + 1
    assert second.forget_old() == 2
    assert second.page("", 10, lambda _: True) == []
    log.close()


def test_they_go_with_their_run(shared: Served) -> None:
    """A loop that is deleted takes its notifications with it, and those alone; so does `prune`."""
    kept = start(shared, "APPROVED")["loop"]["id"]
    gone = start(shared, "APPROVED")["loop"]["id"]
    pruned = start(shared, "APPROVED")["loop"]["id"]
    for loop in (kept, gone, pruned):
        until(shared, loop, "completed")
        when(shared, loop, "loop.completed")
    assert shared("DELETE", f"/api/v1/loops/{gone}").status == 200
    assert about(shared, gone) == []
    forgotten = shared.call(
        lambda: prune(shared.context.service, shared.context.settings, [pruned], by="me")
    )
    assert forgotten.runs == (pruned,)
    assert about(shared, pruned) == []
    records = shared.call(lambda: shared.context.records.records(SEEN))
    assert {record.key for record in records} & {kept, gone, pruned} == {kept}
    assert "loop.completed" in [one["kind"] for one in about(shared, kept)]
