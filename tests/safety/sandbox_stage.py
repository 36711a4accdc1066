"""A machine with something to protect, and runs of every kind of agent on it.

Started as a program under some identity (see `identities`): it makes the data directory, settings,
sockets and shared memory that an agent is after, runs one agent after the other in one process that
drives runs, and prints what each of them found as JSON.
"""

import asyncio
import base64
import ctypes
import json
import os
import py_compile
import shutil
import socket
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import loopwright
from loopwright.kernel.events import EffectDone, EffectFailed, EffectRequested
from loopwright.model.actions import CallAgent, Repeat, RunScript, Step
from loopwright.model.checks import CommandCheck
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import literal
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest, WireServer
from tests.safety.agent_program.__main__ import VARIABLE
from tests.safety.agent_program.attempts import SYSTEM_FILES, SYSTEM_FOLDERS, Target
from tests.safety.agent_program.cells import CONFIGURATION, OTHER_CONFIGURATION
from tests.safety.identities import folder_of, run_as

CLIS = ("claude", "codex", "gemini", "opencode")
KINDS = ("command", "jsonl", *CLIS, "acp", "check", "bash", "tool")
PLACES = ("beside", "inside", "around")
"""Where the data directory is, seen from the workspace."""
SECRET = "secret-5f2d81c0a9"
PROGRAM = "trial-program"
HOOKS = (".git/hooks/pre-commit", ".git/objects/x", ".git/refs/x")
SOURCES = Path(__file__).with_name("agent_program")
_IPC_PRIVATE, _IPC_RMID = 0, 0


@dataclass(frozen=True)
class Stage:
    """The folders of a test."""

    top: Path
    place: str = "beside"

    @property
    def work(self) -> Path:
        around = self.place == "around"
        return self.data / "worktrees" / "run_1" if around else self.top / "project" / "work"

    @property
    def data(self) -> Path:
        inside = self.top / "project" / "work" / ".data"
        return inside if self.place == "inside" else self.top / "share" / "loopwright" / "data"

    @property
    def home(self) -> Path:
        return self.top / "home"

    @property
    def bin(self) -> Path:
        return self.top / "bin"

    @property
    def settings(self) -> Path:
        return self.home / ".config" / "loopwright"

    @property
    def neighbour(self) -> Path:
        """A file of the person that has nothing to do with the run."""
        return self.home / "documents" / "letter.txt"

    def build(self) -> None:
        """Make everything that an agent is after."""
        for folder in (self.work, self.data, self.home, self.bin, self.settings):
            folder.mkdir(parents=True, exist_ok=True)
        for name in (*CONFIGURATION.values(), OTHER_CONFIGURATION):
            (self.home / name).mkdir(parents=True)
        self.neighbour.parent.mkdir(parents=True)
        self.neighbour.write_text("a letter")
        (self.top / "link").symlink_to(self.data)
        (self.data / "secret.txt").write_text(SECRET)
        (self.work / "notes.txt").write_text("hello\n")
        for name in ("loopwright.toml", ".loopwright/role.yaml", ".git/config", *HOOKS):
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_text("")
        for name in ("config.toml", "sign-ins.json"):
            (self.settings / name).write_text(f"# {SECRET}\n")
        program = pack_program(self.bin / PROGRAM)
        for name in (*CLIS, "jsonl", "acp"):  # it speaks as what it is called
            shutil.copy2(program, self.bin / name)
        pack_program(self.work / PROGRAM, system_python() or sys.executable)


def pack_program(file: Path, python: str = sys.executable) -> Path:
    """The program of the agent as one executable file, so that a level can show it alone."""
    with file.open("wb") as stream:
        stream.write(f"#!{python} -IS\n".encode())
        with zipfile.ZipFile(stream, "w") as archive:
            for folder in ("tests", "tests/safety", "tests/safety/agent_program"):
                archive.writestr(f"{folder}/__init__.py", "")
            for source in sorted(SOURCES.glob("*.py")):
                name = f"tests/safety/agent_program/{source.name}"
                archive.write(source, name)
                if python == sys.executable:
                    compiled = file.with_suffix(".pyc")
                    py_compile.compile(str(source), cfile=str(compiled), doraise=True)
                    archive.write(compiled, f"{name}c")
                    compiled.unlink()
            start = "from tests.safety.agent_program.__main__ import main\nmain()\n"
            archive.writestr("__main__.py", start)
    file.chmod(0o755)
    return file


@cache
def system_python() -> str | None:
    """A Python of the system, which is there at every level where programs of the system are."""
    for file in ("/usr/bin/python3", "/usr/local/bin/python3"):
        asked = [file, "-ISc", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if os.path.exists(file) and subprocess.run(asked, check=False).returncode == 0:
            return file
    return None


# -- what the driver has beside its files ----------------------------------------------------------


@contextmanager
def shared_things(stage: Stage) -> Iterator[Target]:
    """Open sockets and shared memory as long as runs are driven, and say where all of it is."""
    with ExitStack() as opened:
        own = str(stage.data / "loopwright.sock")
        opened.enter_context(listening(Path(own)))
        sockets = [
            one for one in control_sockets(stage.home) if opened.enter_context(listening(one))
        ]
        memory = Path(f"/dev/shm/loopwright-test-{os.getpid()}")
        memory.write_text(SECRET)
        opened.callback(memory.unlink)
        libc = ctypes.CDLL(None, use_errno=True)
        segment = libc.shmget(_IPC_PRIVATE, 4096, 0o1600)
        opened.callback(libc.shmctl, segment, _IPC_RMID, None)
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        name = opened.enter_context(socket.socket(socket.AF_UNIX))
        name.bind(f"\0loopwright-test-{os.getpid()}")
        name.listen()
        target = Target(
            port=server.getsockname()[1],
            abstract=f"loopwright-test-{os.getpid()}",
            folders={
                "workspace": str(stage.work),
                "home": str(stage.home),
                "data": str(stage.data),
                "settings": str(stage.settings),
            },
            data=str(stage.data),
            link=str(stage.top / "link"),
            secret=SECRET,
            socket=own,
            driver=os.getpid(),
            workspace=str(stage.work),
            segment=segment,
            shared_memory=str(memory),
            program_folders=program_folders(),
            control_sockets=[str(one) for one in sockets],
            settings=[str(stage.settings / name) for name in ("config.toml", "sign-ins.json")],
        )
        target.outside = {one: identify(one) for one in watched(target) if os.path.exists(one)}
        yield target


def program_folders() -> list[str]:
    """Folders of the programs that Loopwright itself starts outside of sandboxes."""
    files = [shutil.which(name) for name in ("bwrap", "git")]
    folders = [os.path.dirname(os.path.realpath(file)) for file in files if file]
    package = os.path.dirname(loopwright.__file__)
    python = [os.path.realpath(sys.executable), sys.executable]
    folders += [package, os.path.join(package, "programs"), *map(os.path.dirname, python)]
    folders += [sysconfig.get_path(name) for name in ("stdlib", "purelib")]
    return list(dict.fromkeys(folders))


def watched(target: Target) -> Iterator[str]:
    """Every file and folder of which an agent may not have the one that is outside."""
    yield from (*SYSTEM_FILES, *SYSTEM_FOLDERS, *target.program_folders)
    yield from map(os.path.dirname, target.program_folders)
    own = ("documents", *CONFIGURATION.values(), OTHER_CONFIGURATION)
    yield from ("/tmp", target.workspace, *(f"{target.folders['home']}/{name}" for name in own))
    data = Path(os.path.realpath(target.data))
    yield from map(str, (data, *data.parents[:2], data / "loopwright.db"))
    for path in map(Path, target.settings):
        yield from map(str, (path, *path.parents[:2]))


def identify(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino]


def control_sockets(home: Path) -> Iterator[Path]:
    """Where programs listen that start programs for whoever asks."""
    user, mark = os.getuid(), f"lw-test-{os.getpid()}"
    yield Path(f"/tmp/tmux-{user}/{mark}")
    yield Path(f"/tmp/ssh-{mark}/agent.1")
    yield Path(f"/tmp/vscode-ipc-{mark}.sock")
    yield Path(f"/tmp/.X11-unix/X-{mark}")
    yield Path(f"/run/user/{user}/podman/{mark}.sock")
    yield Path(f"/run/user/{user}/gnupg/S.gpg-{mark}")
    yield Path(f"/tmp/zellij-{user}/{mark}")
    own = (".docker/run/docker.sock", ".docker/desktop/docker.sock", ".colima/default/docker.sock")
    own += (".rd/docker.sock", ".pm2/rpc.sock", ".local/state/watchman/a-state/sock")
    own += (".local/share/wezterm/gui-sock-1", ".screen/1.tty", ".gnupg/S.gpg-agent.extra")
    for name in (*own, ".ssh/agent/s.1", ".lima/default/sock/docker.sock"):
        yield home / name


@contextmanager
def listening(path: Path) -> Iterator[bool]:
    """Listen on a Unix socket; false where that cannot be done, as its folder is another user's."""
    with ExitStack() as opened:
        try:
            listen(path, opened)
        except OSError:
            opened.close()
            yield False
            return
        yield True


def listen(path: Path, opened: ExitStack) -> None:
    """Make a Unix socket and its folders, and remove them at the end."""

    def remove(what: Callable[[], None]) -> None:
        with suppress(OSError):
            what()

    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir()
            opened.callback(remove, folder.rmdir)
            folder.chmod(0o1777 if folder.name.startswith(".") else 0o700)
    server = opened.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(path))
    opened.callback(remove, path.unlink)
    server.listen()


# -- runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """One run: which kind of agent, at which level, and what it is to do."""

    kind: str  # `direct`: not by Loopwright at all
    level: SandboxLevel
    task: str
    names: list[str] = field(default_factory=list)  # of escapes or cells; none are all escapes
    inside: bool = False  # the program is in the workspace

    def text(self, target: Target) -> str:
        """What the program is told."""
        told = {"task": self.task, "names": self.names, "target": asdict(target)}
        return base64.urlsafe_b64encode(json.dumps(told).encode()).decode()


def plan_of(order: Order, stage: Stage, target: Target) -> Plan:
    """A plan that starts the program as that kind of agent."""
    told = order.text(target)
    name = order.kind if order.kind in ("jsonl", "acp") else PROGRAM
    program = f"./{PROGRAM}" if order.inside else str(stage.bin / name)
    agents: dict[str, Agent] = {}
    call = CallAgent(agent="worker", prompt=literal("Go on."))
    action: CallAgent | Repeat | RunScript = call
    match order.kind:
        case "check":
            agents["worker"] = Agent(spec="command:true")
            action = Repeat(body=call, max=1, until=CommandCheck(argv=(program, told)))
        case "bash":
            action = RunScript(text=f"'{program}' '{told}'")
        case "tool":
            agents["worker"] = Agent(
                spec="model:local/tiny",
                tools=("shell.exec",),
                options={"commands": {"allow": [program]}},
            )
        case kind if kind in CLIS:
            agents["worker"] = Agent(spec=kind, env={VARIABLE: told})
        case kind:
            agents["worker"] = Agent(spec=f"{kind}:{program}", env={VARIABLE: told})
    return Plan(name="trial", steps=(Step(id="work", action=action),), agents=agents)


def find_answer(here: Local, run: str, kind: str) -> dict[str, object]:
    """What the program printed, or why it was not started."""
    events = [numbered.event for numbered in here.service.events(run)]
    calls = {one.effect: one.call for one in events if isinstance(one, EffectRequested)}
    wanted = {"check": "CommandCall", "bash": "CommandCall", "tool": "ToolCall"}
    for event in events:
        if not isinstance(event, EffectDone | EffectFailed):
            continue
        if type(calls.get(event.effect)).__name__ != wanted.get(kind, "AgentCall"):
            continue
        text = here.service.read_text(event.output)
        begin, end = text.find("{"), text.rfind("}") + 1
        with suppress(ValueError):
            found = json.loads(text[begin:end])
            return {"found": json.loads(found["stdout"]) if "stdout" in found else found}
        return {
            "error": event.error.detail if isinstance(event, EffectFailed) else text or event.note
        }
    return {"error": f"no answer: {events[-1]}"}


def perform_directly(order: Order, stage: Stage, target: Target) -> dict[str, object]:
    """What the program can do without Loopwright."""
    argv = [str(stage.bin / PROGRAM), order.text(target)]
    done = subprocess.run(argv, cwd=stage.work, capture_output=True, check=True)
    return {"found": json.loads(done.stdout)}


async def perform(here: Local, order: Order, stage: Stage, target: Target) -> dict[str, object]:
    """Run one order to its end."""
    if order.kind == "direct":
        return perform_directly(order, stage, target)
    plan = plan_of(order, stage, target)
    start = RunStart(plan=plan, workspace=stage.work, message="Go on.", sandbox=order.level)
    run = await here.service.start(start)
    await here.driver.rest(run)
    return find_answer(here, run, order.kind)


def model_of(orders: list[Order], stage: Stage, target: Target) -> "ObedientModel":
    return ObedientModel([one for one in orders if one.kind == "tool"], stage, target)


class ObedientModel:
    """A model that starts the program by the tool for commands, once for each order."""

    def __init__(self, orders: list[Order], stage: Stage, target: Target) -> None:
        self._argv = [[str(stage.bin / PROGRAM), one.text(target)] for one in orders]

    def __call__(self, request: WireRequest) -> ScriptedTurn:
        if b'"role":"tool"' in request.raw.replace(b" ", b"") or not self._argv:
            return ScriptedTurn(text="Done.")
        return ScriptedTurn(
            text="", calls=(ScriptedCall(name="shell_exec", args={"argv": self._argv.pop(0)}),)
        )


async def perform_all(orders: list[Order], stage: Stage) -> list[dict[str, object]]:
    """Run all orders in one process."""
    settings = Settings(home=stage.data, durability="normal")
    async with local(settings) as here:
        with shared_things(stage) as target:
            model = model_of(orders, stage, target)
            with WireServer(None, choose=model) as wires:
                os.environ["LOOPWRIGHT_MODEL_BASE_URL"] = f"{wires.url}/v1"
                return [await perform(here, one, stage, target) for one in orders]


def environment(stage: Stage) -> Mapping[str, str]:
    """Variables of the process that drives runs: secrets, and where the data directory is."""
    return {
        "PATH": f"{stage.bin}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(stage.home),
        "LANG": "C.UTF-8",
        "LOOPWRIGHT_HOME": str(stage.data),
        "LOOPWRIGHT_TOKEN": SECRET,
        "LOOPWRIGHT_MODEL_API_KEY": SECRET,
        "GITHUB_TOKEN": SECRET,
    }


def perform_as(identity: str, orders: list[Order], place: str = "beside") -> list[dict[str, Any]]:
    """The answers to orders, from a process of some identity on a stage of its own."""
    with folder_of(identity) as top:
        asked = {"top": str(top), "place": place, "orders": [asdict(one) for one in orders]}
        done = run_as(
            identity,
            ["-m", "tests.safety.sandbox_stage"],
            env=environment(Stage(top, place)),
            text=json.dumps(asked),
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def main() -> None:
    """Read the folder, the place and the orders; print the answers."""
    asked = json.loads(sys.stdin.read())
    stage = Stage(Path(asked["top"]), asked["place"])
    stage.build()
    answers = asyncio.run(perform_all([Order(**one) for one in asked["orders"]], stage))
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
