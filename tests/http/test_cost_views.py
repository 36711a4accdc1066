"""The cost of a run in every view: how the run stands, how its cost is known, where it is shown.

The events are made by the kernel and written to the log of a server; nothing is called.
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from loopwright.cli.main import main
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    EffectActivity,
    EffectRequested,
    RunStarted,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.model.actions import AskPerson, CallAgent, Decision, Repeat, Step
from loopwright.model.plan import Agent, Plan, content_hash, encode_plan
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.ports import Append, Owner
from loopwright.ports.headline import headline_of, usage_rows
from loopwright.views.event_records import sortable_id
from loopwright.views.summary import final_line
from tests.http.served import SECONDS, Served, served
from tests.kernel.driving import Driver, Fail, Reply, ScriptedAnswer

DEAD = Owner(pid=2**22 + 1, start=1, boot="gone", token="gone")
pytestmark = pytest.mark.item("rec-23")


@dataclass(frozen=True)
class Cost:
    """An agent, what a call of it reports at last and while it runs, and how that is shown."""

    spec: str
    usage: Usage | None
    live: Usage | None
    shown: str
    live_shown: str


UNKNOWN = Usage(unpriced=1)
COSTS = {
    "reported": Cost("claude", Usage(9, 1, 0.25), Usage(9, 1, 0.25), "$0.25", "$0.25"),
    "priced": Cost("codex:-m x", Usage(9, 1, 0.5), UNKNOWN, "$0.50", "unknown"),
    "unknown": Cost("command:x", UNKNOWN, UNKNOWN, "unknown", "unknown"),
    "not recorded yet": Cost("jsonl:x", UNKNOWN, None, "unknown", "unknown"),
    "local": Cost("model:ollama/x", Usage(9, 1), Usage(9, 1), "$0.00", "$0.00"),
    "nothing called": Cost("", None, None, "–", "–"),
}
STANDINGS = ("running", "stopped", "completed", "failed", "killed")


def plan_of(cost: Cost) -> Plan:
    if not cost.spec:
        return Plan(name="p", steps=(Step(id="main", action=AskPerson()),))
    loop = Repeat(body=CallAgent(agent="worker"), max=1)
    agents = {"worker": Agent(spec=cost.spec)}
    return Plan(name="p", steps=(Step(id="main", action=loop),), agents=agents)


def events_of(cost: Cost, standing: str) -> list[AnyEvent]:
    """A run that stands so."""
    answer: ScriptedAnswer = Reply("ok", usage=cost.usage)
    if standing == "failed":
        answer = Fail(usage=cost.usage)
    if standing in ("completed", "failed"):
        decision: Decision = "approve" if standing == "completed" else "reject"
        return (
            Driver(plan_of(cost), script=lambda _: answer, people=lambda _: (decision, ""))
            .run()
            .events
        )
    driver = Driver(plan_of(cost), script=lambda _: None, people=lambda _: None).run()
    asked = [one for one in driver.events if isinstance(one, EffectRequested)]
    for one in asked if cost.live is not None else ():
        usage = EffectActivity(at=driver.clock, path=one.path, effect=one.effect, usage=cost.live)
        driver.append(usage)
    if standing == "stopped":
        driver.append(CancelRequested(at=driver.clock, reason="stopped"))
        driver.run()
    return driver.events


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as one:
        yield one


def write(server: Served, cost: Cost, standing: str) -> str:
    """Write such a run into the log of the server; its id."""
    plan, run = plan_of(cost), f"run_{sortable_id(1_000)}"
    stored = encode_plan(plan)
    begun, *others = events_of(cost, standing)
    assert isinstance(begun, RunStarted)
    first = msgspec.structs.replace(
        begun, run=run, plan=content_hash(stored), workspace=str(server.folder)
    )
    events = [first, *others]
    log, head = server.context.here.log, headline_of(fold(plan, events))
    append = Append(
        run=run,
        expected=0,
        events=events,
        blobs={content_hash(stored): stored},
        headline=dataclasses.replace(head, name=run),
        owner=DEAD if standing == "killed" else server.context.here.driver.first_owner,
        usage=usage_rows(run, events),
    )
    asyncio.run_coroutine_threadsafe(log.append(append), server.loop).result(SECONDS)
    return run


# -- views -----------------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*args])
    return capsys.readouterr().out


def by_show(server: Served, run: str, capsys: pytest.CaptureFixture[str]) -> str:
    [line] = [one for one in told(capsys, "show", run).splitlines() if one.startswith("spent")]
    return line.removeprefix("spent").strip().partition(",")[0]


def by_ls(server: Served, run: str, capsys: pytest.CaptureFixture[str]) -> str:
    head, *lines = told(capsys, "ls", "--all").splitlines()
    [line] = [one for one in lines if run in one]
    return line[head.index("SPENT") :].partition("  ")[0]


def by_spend(server: Served, run: str, capsys: pytest.CaptureFixture[str]) -> str:
    lines = told(capsys, "spend", "--by", "definition").splitlines()
    found = [one.partition(" ")[0] for one in lines if run in one]
    return found[0] if found else "–"


def by_final_line(server: Served, run: str, capsys: pytest.CaptureFixture[str]) -> str:
    line = final_line(server.context.service.state(run))
    found = [one for one in line.split(" · ") if one.startswith("$") or "cost" in one]
    return found[0].removeprefix("cost ") if found else "–"


def by_http(server: Served, run: str, capsys: pytest.CaptureFixture[str]) -> str:
    usage: dict[str, Any] = server("GET", f"/api/v1/runs/{run}").json["usage"]
    assert (usage["usd"] is None) is (usage["cost"] == "unknown")
    [listed] = [
        one for one in server("GET", "/api/v1/runs?limit=200").json["runs"] if one["run"] == run
    ]
    assert listed["usage"] == usage
    return str(usage["cost"])


def by_mcp(server: Served, run: str, capsys: pytest.CaptureFixture[str]) -> str:
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, by="mcp")
    work = LoopTools(loops=loops).answer("loop_status", {"id": run})
    outcome = asyncio.run_coroutine_threadsafe(work, server.loop).result(SECONDS)
    assert not outcome.error, outcome.text
    return str(json.loads(outcome.text)["usage"]["cost"])


VIEWS: dict[str, Callable[..., str]] = {
    "show": by_show,
    "ls": by_ls,
    "spend": by_spend,
    "final line": by_final_line,
    "http": by_http,
    "mcp": by_mcp,
}


@pytest.mark.parametrize("standing", STANDINGS)
@pytest.mark.parametrize("how", COSTS)
def test_cost_in_every_view(
    server: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
    standing: str,
) -> None:
    """An unknown cost is `unknown`, a call that cost nothing `$0.00`, and no call a dash."""
    monkeypatch.setenv("LOOPWRIGHT_HOME", str(server.context.settings.home))
    monkeypatch.chdir(server.folder)
    cost = COSTS[how]
    run = write(server, cost, standing)
    shown = cost.shown if standing in ("completed", "failed") else cost.live_shown
    found = {name: view(server, run, capsys) for name, view in VIEWS.items()}
    if how == "not recorded yet" and standing in ("running", "killed"):
        assert found.pop("spend") == "–"  # the table is written with the events
    assert found == dict.fromkeys(found, shown)
