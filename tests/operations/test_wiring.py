"""Everything put together: real files, real programs, and more than one process."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from loopwright.engine.driver import POLL_MS
from loopwright.errors import Conflict
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    IterationStarted,
    RunFinished,
)
from loopwright.kernel.state import State
from loopwright.model.actions import CallAgent, Each, LoopGate, Repeat, Step, Wait
from loopwright.model.checks import Cap, Check, CommandCheck
from loopwright.model.plan import Agent, Plan, encode_plan
from loopwright.model.policy import PreviousOutput
from loopwright.model.record import ItemsFrom, Ref
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import row_ended
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import (
    Local,
    local,
    open_log,
    open_reader,
    sweep_leftovers,
    this_owner,
)
from loopwright.ports import Append, Headline, Owner

PROGRAM = Path(__file__).with_name("second_process.py")
PYTHON = f"{sys.executable} -I -S"
CALL = CallAgent(agent="worker")
_T = TypeVar("_T")


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


class Spawn(Protocol):
    """Starts another process with a plan."""

    def __call__(self, plan: Plan) -> subprocess.Popen[str]: ...


@pytest.fixture
def spawn(home: Settings, workspace: Path, tmp_path: Path) -> Iterator[Spawn]:
    started: list[subprocess.Popen[str]] = []

    def start(plan: Plan) -> subprocess.Popen[str]:
        file = tmp_path / "plan.json"
        file.write_bytes(encode_plan(plan))
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(home.home), str(workspace), str(file)],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def heard(process: subprocess.Popen[str], beginning: str = "") -> str:
    """The next line that begins so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return line.strip()
    raise AssertionError(f"ended before it said {beginning!r}")


def run(body: Callable[[], Coroutine[object, object, _T]]) -> _T:
    return asyncio.run(asyncio.wait_for(body(), 60))


def program(folder: Path, code: str) -> str:
    """The spec of an agent that runs this code."""
    file = folder / "agent.py"
    file.write_text(code, encoding="utf-8")
    return f"command:{PYTHON} {file}"


def plan(spec: str, *, most: int = 3, until: Check | None = None, **more: object) -> Plan:
    loop = Repeat(body=CALL, max=most, until=until or Cap(), **more)  # type: ignore[arg-type]
    step = Step(id="main", action=loop)
    return Plan(name="t", steps=(step,), agents={"worker": Agent(spec=spec)})


async def ended(here: Local, name: str) -> State:
    """The state of a run once it has ended, however often it rests before."""
    while not row_ended(here.log.row(name)):
        await here.driver.rest(name)
        await asyncio.sleep(0.01)
    return here.service.state(name)


async def finish(here: Local, what: Plan, workspace: Path) -> State:
    start = RunStart(plan=what, workspace=workspace, message="Do it.")
    return await ended(here, await here.service.start(start))


def events(here: Local, name: str) -> list[AnyEvent]:
    return [numbered.event for numbered in here.service.events(name)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# An agent that says the pid of its supervisor, which lives as long as any process of the agent, and
# stays for a minute the first time, and answers the second time.
SLOW_ONCE = """
import os, pathlib, time
mark = pathlib.Path("been-here")
first = not mark.exists()
mark.touch()
print(os.environ["LOOPWRIGHT_SUPERVISOR"].split(":")[0] if first else "done", flush=True)
if first: time.sleep(60)
"""


# -- one process -----------------------------------------------------------------------------------


def test_a_real_agent_is_driven_to_the_end(home: Settings, workspace: Path, tmp_path: Path) -> None:
    """Passes of a real program, checked by a real command, and heard while they happen."""
    spec = program(tmp_path, 'open("n", "a").write("x"); print("pass")')
    check = CommandCheck(argv=("grep", "-q", "xx", "n"))

    async def body() -> None:
        async with local(home) as here:
            said: list[str] = []
            here.bus.listen(lambda delta: said.append(delta.text))
            state = await finish(here, plan(spec, until=check), workspace)
            assert state.finished is not None
            assert (state.finished.outcome, state.finished.reason) == ("completed", "command")
            assert (workspace / "n").read_text() == "xx"
            assert "".join(said) == "pass\npass\n"

    run(body)


def test_large_and_broken_output_survives_the_disk(
    home: Settings, workspace: Path, tmp_path: Path
) -> None:
    """5 MB with bytes that are not text are stored once and read back whole by another process."""
    code = 'import os\nfor _ in range(5): os.write(1, b"y" * 2**20)\nos.write(1, b"\\xff!")'
    spec = program(tmp_path, code)

    async def body() -> str:
        async with local(home) as here:
            return (await finish(here, plan(spec, most=2), workspace)).run

    name = run(body)
    reader = open_reader(home)
    try:
        finished = reader.state(name).finished
        assert finished is not None
        assert reader.read_text(finished.output) == "y" * 5 * 2**20 + "�!"
        assert home.database.stat().st_size < 8 * 2**20, "the same text is stored once"
    finally:
        reader.log.close()


def test_the_next_iteration_is_shown_the_last_output(
    home: Settings, workspace: Path, tmp_path: Path
) -> None:
    """A prompt with memory reaches the program on stdin."""
    spec = program(tmp_path, 'import sys; print(f"<{sys.stdin.read()}>")')

    async def body() -> None:
        async with local(home) as here:
            what = plan(spec, most=2, memory=PreviousOutput())
            state = await finish(here, what, workspace)
            assert state.finished is not None
            output = here.service.read_text(state.finished.output)
            assert output.startswith("<Do it.\n\n## Output of iteration 1\n\n<Do it.>")

    run(body)


@pytest.mark.item("B9")
def test_a_check_that_cannot_be_asked_ends_the_loop_after_three(
    home: Settings, workspace: Path, tmp_path: Path
) -> None:
    """A broken check is never taken for not yet."""
    spec = program(tmp_path, 'print("x")')
    check = CommandCheck(argv=("no-such-check",))

    async def body() -> None:
        async with local(home) as here:
            state = await finish(here, plan(spec, most=50, until=check), workspace)
            assert state.finished is not None
            assert (state.finished.outcome, state.finished.reason) == ("failed", "check_broken")
            verdicts = [f for f in events(here, state.run) if isinstance(f, CheckVerdict)]
            assert [verdict.verdict for verdict in verdicts] == ["error"] * 3

    run(body)


@pytest.mark.item("B10")
def test_a_check_that_hangs_is_timed_out(home: Settings, workspace: Path, tmp_path: Path) -> None:
    """A check past its own limit has its verdict, and the loop goes on."""
    spec = program(tmp_path, 'print("x")')
    check = CommandCheck(argv=("sleep", "60"), timeout_ms=200)

    async def body() -> None:
        async with local(home) as here:
            state = await finish(here, plan(spec, most=2, until=check), workspace)
            verdicts = [f for f in events(here, state.run) if isinstance(f, CheckVerdict)]
            assert [verdict.verdict for verdict in verdicts] == ["timed_out"] * 2
            assert state.finished is not None
            assert state.finished.reason == "max_iterations"

    run(body)


@pytest.mark.item("D12")
def test_an_agent_that_deletes_its_workspace(
    home: Settings, workspace: Path, tmp_path: Path
) -> None:
    """The iteration after it fails with the reason; the run does not hang."""
    spec = program(tmp_path, 'import os; os.rmdir(os.getcwd()); print("gone")')

    async def body() -> None:
        async with local(home) as here:
            state = await finish(here, plan(spec, most=5), workspace)
            assert state.finished is not None
            assert state.finished.outcome == "failed"
            assert state.finished.error is not None
            assert state.finished.error.type == "workspace_gone"

    run(body)


@pytest.mark.item("A28")
@pytest.mark.parametrize(
    ("value", "kind"),
    [('"text"', "a text"), ("null", "nothing"), ('{"a": 1}', "an object")],
    ids=["text", "null", "object"],
)
def test_items_that_are_no_list_fail_the_step(
    home: Settings, workspace: Path, tmp_path: Path, value: str, kind: str
) -> None:
    """A list that is none fails its step with the type that was found; no item is started."""
    file = tmp_path / "replies.yaml"
    file.write_text(f"replies: [{{data: {{items: {value}}}}}]")
    items = ItemsFrom(ref=Ref(of="result", name="find", field="items"))
    steps = (
        Step(id="find", action=CALL),
        Step(id="each", action=Repeat(body=CALL, each=Each(items=items)), needs=("find",)),
    )
    what = Plan(name="t", steps=steps, agents={"worker": Agent(spec=f"script:{file}")})

    async def body() -> None:
        async with local(home) as here:
            state = await finish(here, what, workspace)
            result = state.root.body.results["each"]
            assert (result.status, result.reason) == ("failed", "not-a-list")
            assert result.error is not None
            assert kind in result.error.detail

    run(body)


def test_agents_share_one_script(home: Settings, workspace: Path, tmp_path: Path) -> None:
    """Two agents with the same script never use a reply twice, also after a restart."""
    file = tmp_path / "replies.yaml"
    file.write_text("replies: [{text: r0}, {text: r1}, {text: r2}, {text: r3}]")
    agents = {name: Agent(spec=f"script:{file}") for name in ("a", "b")}
    order = ("a", "b", "a", "b")
    steps = tuple(
        Step(
            id=f"s{n}",
            action=CallAgent(agent=name),
            needs=(f"s{n - 1}",) if n else (),
        )
        for n, name in enumerate(order)
    )
    what = Plan(name="t", steps=steps, agents=agents)

    async def body() -> None:
        async with local(home) as here:
            state = await finish(here, what, workspace)
            results = state.root.body.results
            assert [results[f"s{n}"].output for n in range(4)] == ["r0", "r1", "r2", "r3"]

    run(body)


def test_leaving_ends_the_processes_and_keeps_the_run(
    home: Settings, workspace: Path, tmp_path: Path
) -> None:
    """A driver that closes leaves no process, adds no event, and the next one goes on."""
    spec = program(tmp_path, SLOW_ONCE)

    async def leave() -> tuple[str, int]:
        async with local(home) as here:
            words: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            here.bus.listen(lambda delta: words.done() or words.set_result(delta.text))
            start = RunStart(plan=plan(spec, most=1), workspace=workspace, message="Do it.")
            name = await here.service.start(start)
            pid = int(await words)
            assert is_alive(pid)
        return name, pid

    name, pid = run(leave)
    assert not is_alive(pid)

    async def go_on() -> None:
        async with local(home) as here:
            row = here.log.row(name)
            assert (row.owner, row.headline.status) == (None, "running")
            assert here.service.recover() == [name]
            state = await ended(here, name)
            assert state.finished is not None
            assert state.finished.output == "done\n"

    run(go_on)


# -- two processes ---------------------------------------------------------------------------------


def test_a_second_driver_is_refused_and_a_reader_is_not(
    home: Settings, workspace: Path, tmp_path: Path, spawn: Spawn
) -> None:
    """While another process drives, taking the run is refused by its pid, looking is not."""
    other = spawn(plan(program(tmp_path, SLOW_ONCE)))
    name = heard(other, "run_")
    heard(other, "said")

    async def body() -> None:
        async with local(home) as here:
            with pytest.raises(Conflict, match=f"process {other.pid} ") as refused:
                await here.service.resume(name)
            assert refused.value.code == "already-driven"
            assert here.service.recover() == []
            assert here.service.state(name).run == name
            assert [row.run for row in here.service.rows(("running",))] == [name]

    run(body)
    assert other.poll() is None


@pytest.mark.item("rondoflow-28")
@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_decision_from_another_process_is_seen_within_a_second(
    home: Settings, tmp_path: Path, spawn: Spawn, decision: str
) -> None:
    """The owner of a waiting run goes on when somebody else has answered, for which it looks
    several times in a second.
    """
    assert 3 * POLL_MS < 1_000
    other = spawn(plan(program(tmp_path, 'print("x")'), gate=LoopGate()))
    name = heard(other, "run_")
    assert heard(other, "rests") == "rests waiting"
    reader = open_reader(home)

    async def body() -> None:
        await reader.answer(name, decision, by="ann")  # type: ignore[arg-type]
        expected = "completed" if decision == "approve" else "failed"
        await asyncio.to_thread(heard, other, f"rests {expected}")
        found = [numbered.event for numbered in reader.events(name)]
        (answered,) = [event for event in found if isinstance(event, GateAnswered)]
        (finished,) = [event for event in found if isinstance(event, RunFinished)]
        assert (answered.by, answered.at <= finished.at) == ("ann", True)

    try:
        run(body)
    finally:
        reader.log.close()


def test_a_stop_from_another_process_ends_the_agent(
    home: Settings, tmp_path: Path, spawn: Spawn
) -> None:
    """The process that drives ends the run and its program; both soon."""
    other = spawn(plan(program(tmp_path, SLOW_ONCE)))
    name = heard(other, "run_")
    pid = int(heard(other, "said").split()[1])
    reader = open_reader(home)

    async def body() -> None:
        assert await reader.stop(name, by="ann")
        await asyncio.to_thread(heard, other, "rests cancelled")
        assert await asyncio.to_thread(other.wait, 60) == 0

    try:
        run(body)
        assert not is_alive(pid)
        (failed,) = [n.event for n in reader.events(name) if isinstance(n.event, EffectFailed)]
        assert failed.error.type == "cancelled"
    finally:
        reader.log.close()


def test_a_pause_from_another_process_holds_the_next_iteration(
    home: Settings, tmp_path: Path, spawn: Spawn
) -> None:
    """The iteration under way ends, the next one begins after the resume."""
    go = tmp_path / "go"
    code = (
        "import pathlib, time\n"
        'print("up", flush=True)\n'
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)"
    )
    other = spawn(plan(program(tmp_path, code), most=2))
    name = heard(other, "run_")
    heard(other, "said")
    reader = open_reader(home)

    async def body() -> None:
        await reader.pause(name)
        go.touch()
        await asyncio.to_thread(heard, other, "rests paused")
        state = reader.state(name)
        assert (state.control.paused, len(state.pending)) == (True, 0)
        await reader.resume(name)
        await asyncio.to_thread(heard, other, "rests exhausted")

    try:
        run(body)
    finally:
        reader.log.close()


def test_runs_of_a_killed_process_are_taken_over(
    home: Settings, tmp_path: Path, spawn: Spawn
) -> None:
    """After kill -9 nothing of the old process lives on, and the run ends under the new one."""
    other = spawn(plan(program(tmp_path, SLOW_ONCE), most=1))
    name = heard(other, "run_")
    pid = int(heard(other, "said").split()[1])
    other.send_signal(signal.SIGKILL)
    other.wait()

    async def body() -> None:
        async with local(home) as here:
            assert here.service.recover() == [name]
            state = await ended(here, name)
            assert state.finished is not None
            assert state.finished.output == "done\n"
            requests = [f for f in events(here, name) if type(f).__name__ == "EffectRequested"]
            assert len(requests) == 1

    run(body)
    assert not is_alive(pid)


def await_timer(home: Settings, name: str) -> None:
    """Look, as another process would, until the run waits for a time."""
    service = open_reader(home)
    try:
        while service.log.row(name).headline.wake_at is None:
            time.sleep(0.01)
    finally:
        service.log.close()


@pytest.mark.item("inv-17")
def test_a_timer_of_a_killed_process_fires_in_the_next(
    home: Settings, workspace: Path, spawn: Spawn
) -> None:
    """A run parked on a timer is gone on with at its time, not before."""
    other = spawn(Plan(name="t", steps=(Step(id="nap", action=Wait(ms=1_500)),)))
    name = heard(other, "run_")
    await_timer(home, name)
    other.send_signal(signal.SIGKILL)
    other.wait()

    async def body() -> None:
        async with local(home) as here:
            due = here.log.row(name).headline.wake_at
            assert due is not None
            here.service.recover()
            state = await ended(here, name)
            assert state.finished is not None
            assert due <= state.finished.at < due + 5_000

    run(body)


# -- leftovers -------------------------------------------------------------------------------------


def dead_owner(token: str) -> Owner:
    """An owner that has lived: a process that has ended and was collected."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    mine = this_owner()
    return Owner(pid=gone.pid, start=1, boot=mine.boot, token=token)


@pytest.mark.item("inv-15")
def test_what_a_dead_driver_left_is_ended_at_the_next_start(home: Settings) -> None:
    """Processes marked by a dead owner are ended; those of a living one are spared."""
    living = this_owner()
    marked = {
        token: subprocess.Popen(
            ["sleep", "60"],
            env={"PATH": os.environ["PATH"], "LOOPWRIGHT_SWEEP": token},
            start_new_session=True,
        )
        for token in ("token-of-the-dead", living.token)
    }

    async def body() -> None:
        log = open_log(home)
        for name, owner in (("run_a", dead_owner("token-of-the-dead")), ("run_b", living)):
            first = Append(
                run=name,
                expected=0,
                events=[RunFinished(at=1, outcome="completed", reason="")],
                headline=Headline(name="t", status="running"),
                owner=owner,
            )
            await log.append(first)
        assert sweep_leftovers(log) == 1
        assert sweep_leftovers(log) == 0
        log.close()

    try:
        run(body)
        assert marked["token-of-the-dead"].wait(30) == -signal.SIGKILL
        assert marked[living.token].poll() is None
    finally:
        for process in marked.values():
            process.kill()
            process.wait()


def test_everything_is_closed_whatever_happens(home: Settings) -> None:
    """An error inside leaves no open log behind."""

    async def body() -> Local:
        with pytest.raises(RuntimeError, match="outside"):
            async with local(home) as here:
                raise RuntimeError("outside")
        return here

    here = run(body)
    with pytest.raises(Exception, match="closed"):
        here.log.rows()


def test_the_data_directory_is_private(home: Settings) -> None:
    """Whoever else uses the machine cannot look into the data directory."""
    open_log(home).close()
    assert home.home.stat().st_mode & 0o077 == 0


@pytest.mark.item("A27")
def test_too_many_items_fail_the_run_before_any_starts(home: Settings, workspace: Path) -> None:
    """A list of 100,000 is refused by its length; no item is begun and no agent called."""
    numbers = ItemsFrom(ref=Ref(of="input", name="numbers"))
    each = Step(id="each", action=Repeat(body=CALL, each=Each(items=numbers)))
    what = Plan(name="t", steps=(each,), agents={"worker": Agent(spec="command:cat")})

    async def body() -> None:
        async with local(home) as here:
            start = RunStart(plan=what, workspace=workspace, message="go")
            full = replace(start, inputs={"numbers": list(range(100_000))})
            name = await here.service.start(full)
            await here.driver.rest(name)
            state = here.service.state(name)
            assert state.finished is not None
            assert (state.finished.outcome, state.finished.reason) == ("failed", "too-many-items")
            kinds = [type(one.event) for one in here.service.events(name)]
            assert IterationStarted not in kinds
            assert EffectRequested not in kinds

    run(body)
