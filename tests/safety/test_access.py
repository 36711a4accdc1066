"""The access matrix: what each level lets an agent do, found out by trying it."""

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopwright.agents.processes.process import ProgramStart
from loopwright.agents.sandbox import bubblewrap, mounts
from loopwright.errors import LoopwrightError
from loopwright.model.access import LEVELS
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Access, Agent, Plan
from loopwright.model.record import JsonValue
from loopwright.model.trackers import Item, TrackerChange, Values
from loopwright.operations.agents.backends import bind_agents
from loopwright.operations.agents.tool_grants import SkillFile, grant_of
from loopwright.operations.agents.tools import open_workshop
from loopwright.ports import EffectFailure, EffectSuccess
from loopwright.tools.builtin import WebPage
from loopwright.tools.results import FolderResultStore
from loopwright.tools.toolbox import NATIVE
from loopwright.tools.tracker_scope import TrackerScope
from tests.agents.calls import Stage, job
from tests.safety.trying_cli import OUTSIDE, install
from tests.support.memory_trackers import MemoryTrackers
from tests.tools.boxes import Room, environment, furnish

every_level = pytest.mark.parametrize("level", LEVELS)
needs_sandbox = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)

FULL, SHELL, READ, LEAST = "full", "readonly-shell", "readonly", "minimal"
READING = (FULL, SHELL, READ)

# -- chat models -----------------------------------------------------------------------------------

CALLS: dict[str, tuple[dict[str, JsonValue], tuple[str, ...]]] = {
    "fs.read": ({"path": "README.md"}, READING),
    "fs.list": ({"path": "."}, READING),
    "fs.search": ({"pattern": "hello"}, READING),
    "fs.write": ({"path": "new.txt", "content": "x"}, (FULL,)),
    "fs.edit": ({"path": "README.md", "old": "hello", "new": "bye"}, (FULL,)),
    "fs.mkdir": ({"path": "made"}, ()),  # given only by name
    "shell.exec": ({"argv": ["grep", "hello", "README.md"]}, (FULL, SHELL)),
    "web.fetch": ({"url": "https://a.example/"}, (FULL,)),
}
"""By tool: a call that works where it is allowed, and the levels where it is."""


ANY = LEVELS
MADE = "0123456789abcdef0123456789abcdef"  # of everything that is there before
TOOLKIT_CALLS: dict[str, tuple[dict[str, JsonValue], tuple[str, ...]]] = {
    "artifact.list": ({}, ANY),
    "artifact.read": ({"id": MADE}, ANY),
    "artifact.create": ({"type": "plan", "title": "t", "content": "c"}, ANY),
    "artifact.update": ({"id": MADE, "content": "c"}, ANY),
    "artifact.delete": ({"id": MADE}, (FULL,)),
    "todo.list": ({}, ANY),
    "todo.add": ({"todos": [{"title": "t"}]}, ANY),
    "todo.update": ({"id": MADE, "status": "in_progress"}, ANY),
    "todo.complete": ({"id": MADE}, (FULL,)),
    "todo.delete": ({"id": MADE}, (FULL,)),
    "sprint.list": ({}, ANY),
    "sprint.create": ({"title": "t"}, ANY),
    "sprint.move": ({"id": MADE, "status": "in_progress"}, ANY),
    "project.list": ({}, ANY),
    "skill.list": ({}, READING),
    "skill.read": ({"name": "knitting"}, READING),
    "memory.search": ({}, (FULL,)),
    "memory.save": ({"text": "t"}, (FULL,)),
    "memory.delete": ({"id": MADE}, (FULL,)),
}
"""The same for the trackers. Whoever has no level has none of them."""


def tracker_scope() -> TrackerScope:
    """A desk with one thing of each kind on it."""

    def fill(book: TrackerChange) -> str:
        for kind in ("artifact", "todo", "sprint"):
            values: Values = {"title": "made", "status": "planned", "type": "plan", "content": "c"}
            book.put(Item(scope="s", kind=kind, id=MADE, values=values))
        book.put(Item(scope="memory:w", kind="memory", id=MADE, values={"text": "made"}))
        return ""

    trackers = MemoryTrackers()
    trackers.change("first", fill)
    skill = SkillFile("knitting", "How to knit.", "Two left, two right.")
    return TrackerScope(
        trackers=trackers,
        scope="s",
        memory="memory:w",
        run="run_1",
        role="tester",
        now_ms=lambda: 1,
        skills=lambda: {"knitting": skill},
    )


class OnePage:
    """A web with one page."""

    async def get(self, url: str, seconds: float) -> WebPage:
        return WebPage(url, 200, "text/plain", b"hello", truncated=False)


@dataclass
class Model:
    """A chat model in a workspace, at a level."""

    folder: Path
    level: Access

    def does(self, tool: str, arguments: JsonValue) -> bool:
        """Whether the tool is offered and does what it is told. Refused is refused everywhere: in
        the offer, when a name is looked up, and when it is run all the same.
        """

        async def work() -> bool:
            async with open_workshop(environment(), "token-of-a-test") as workshop:
                workshop._web = OnePage()
                room = Room(self.folder, workshop)
                grant = grant_of(Agent(spec="model:a/b", access=self.level), {})
                shelf = FolderResultStore(self.folder / "shelf")
                box = room.workshop.toolbox(str(room.work), grant, shelf, tracker_scope())
                offered = tool in {one.name for one in (await box.specs()).tools}
                end = await box.run(tool, arguments, approved=True, key="k")
                if not offered:
                    assert end.error, f"{tool} ran though it was not offered"
                return offered and not end.error and end.code in (None, 0)

        return asyncio.run(work())


def test_every_built_in_tool_is_in_the_table() -> None:
    """A new tool has to say at which levels it is there."""
    assert set(NATIVE) == {*CALLS, *TOOLKIT_CALLS}


@pytest.mark.item("coqui-26")
@every_level
@pytest.mark.parametrize("tool", CALLS)
def test_a_chat_model_has_the_tools_of_its_level(tmp_path: Path, level: Access, tool: str) -> None:
    """Each tool works at the levels that have it, and at no other."""
    if tool == "shell.exec" and level == FULL and bubblewrap.works() is not None:
        pytest.skip("at full, programs that nobody listed are started behind bubblewrap alone")
    furnish(tmp_path)
    arguments, levels = CALLS[tool]
    assert Model(tmp_path, level).does(tool, arguments) is (level in levels)


@pytest.mark.item("coqui-26", "coqui-27")
@every_level
@pytest.mark.parametrize("tool", TOOLKIT_CALLS)
def test_a_chat_model_has_the_trackers_of_its_level(
    tmp_path: Path, level: Access, tool: str
) -> None:
    """Reading and adding everywhere; ending things for others at full; skills not at minimal."""
    furnish(tmp_path)
    arguments, levels = TOOLKIT_CALLS[tool]
    assert Model(tmp_path, level).does(tool, arguments) is (level in levels)


def test_without_a_level_there_are_no_trackers() -> None:
    """An agent that nobody gave a role or a level has what it always had."""
    native = grant_of(Agent(spec="model:a/b"), {}).native
    assert not set(native) & set(TOOLKIT_CALLS)


@pytest.mark.item("coqui-27")
def test_no_tool_starts_loops_or_anything_in_the_background() -> None:
    """There is none that could be granted: it is not a question of configuration."""
    words = ("loop", "background", "schedule", "webhook", "cron", "task")
    assert not [name for name in NATIVE if any(word in name for word in words)]


COMMANDS = [
    *((["grep", "-rn", "hello", "."], (FULL, SHELL)), (["cat", "README.md"], (FULL, SHELL))),
    *((["ls", "-l"], (FULL, SHELL)), (["wc", "README.md"], (FULL, SHELL))),
    *((["head", "-1", "README.md"], (FULL, SHELL)), (["tail", "-1", "README.md"], (FULL, SHELL))),
    *((["uniq", "README.md"], (FULL, SHELL)), (["diff", "README.md", "README.md"], (FULL, SHELL))),
    (["uniq", "README.md", "out.txt"], (FULL,)),
    (["touch", "made.txt"], (FULL,)),
    (["python3", "-c", "open('made.txt','w')"], (FULL,)),
    (["find", ".", "-delete"], (FULL,)),
    (["sed", "-i", "s/hello/x/", "README.md"], (FULL,)),
    (["sort", "-o", "made.txt", "README.md"], (FULL,)),
    (["awk", "BEGIN{system(\"touch made.txt\")}"], (FULL,)),
    (["grep", "-R", "hello", "."], (FULL,)),
    (["diff", "-r", "src", "."], ()),
    (["diff", "--paginate", "README.md", "README.md"], (FULL,)),
    (["cat", "../neighbour/secret.txt"], ()),
    (["sh", "-c", "echo x > made.txt"], (FULL,)),
    (["env", "touch", "made.txt"], (FULL,)),
    (["sudo", "true"], ()),
]  # fmt: skip


@pytest.mark.item("coqui-26")
@needs_sandbox
@every_level
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda case: " ".join(case[0]))
def test_commands_of_a_chat_model(
    tmp_path: Path, level: Access, argv: tuple[list[str], tuple[str, ...]]
) -> None:
    """Commands that read are there for `readonly-shell`; what writes is not, in whatever guise."""
    work = furnish(tmp_path)
    before = sorted(str(one) for one in work.rglob("*"))
    words, levels = argv
    assert Model(tmp_path, level).does("shell.exec", {"argv": list(words)}) is (level in levels)
    if level != FULL:
        assert sorted(str(one) for one in work.rglob("*")) == before


@pytest.mark.item("coqui-26")
@needs_sandbox
def test_programs_of_a_full_model_write_in_the_workspace_alone(tmp_path: Path) -> None:
    """`full` starts any program, behind a wall: what it writes outside is refused by the system."""
    furnish(tmp_path)
    target = Path.home() / "loopwright-was-here.txt"
    code = f"open({str(target)!r}, 'w')"
    model = Model(tmp_path, "full")
    assert not model.does("shell.exec", {"argv": ["python3", "-c", code]})
    assert not target.exists()
    assert model.does("shell.exec", {"argv": ["python3", "-c", "open('here.txt', 'w')"]})
    assert (tmp_path / "work" / "here.txt").exists()


@pytest.mark.item("coqui-26")
@needs_sandbox
def test_nobody_changes_the_sandbox(tmp_path: Path) -> None:
    """What is started behind the wall has no capability left, also where root has started it: with
    one it could be mounted away.
    """
    furnish(tmp_path)
    powers = (
        "[one.split()[1] for one in open('/proc/self/status') if one[:6] in ('CapEff', 'CapPrm')]"
    )
    code = f"import sys; sys.exit(any(int(one, 16) for one in {powers}))"
    assert Model(tmp_path, "full").does("shell.exec", {"argv": ["python3", "-c", code]})


@pytest.mark.item("coqui-26")
def test_without_a_sandbox_the_rules_hold_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bubblewrap is missing, `readonly-shell` reads and `full` starts nothing unlisted."""
    for module in ("tool_grants", "tools"):
        monkeypatch.setattr(f"loopwright.operations.agents.{module}.works", lambda: "not here")
    work = furnish(tmp_path)
    reader, writer = Model(tmp_path, "readonly-shell"), Model(tmp_path, "full")
    assert reader.does("shell.exec", {"argv": ["cat", "README.md"]})
    assert not reader.does("shell.exec", {"argv": ["uniq", "README.md", "out.txt"]})
    assert not writer.does("shell.exec", {"argv": ["touch", "made.txt"]})
    assert not (work / "out.txt").exists()


# -- programs --------------------------------------------------------------------------------------

ATTEMPTS: dict[str, tuple[str, ...]] = {
    "read": READING,
    "list": READING,
    "write": (FULL,),
    "overwrite": (FULL,),
    "delete": (FULL,),
    "chmod": (FULL,),
    "neighbour": (FULL,),
    "scratch": (LEAST, READ, SHELL),
    "grep": (FULL, SHELL),
    "cat": (FULL, SHELL),
    "shell writes": (FULL,),
    "touch": (FULL,),
    "python": (FULL,),
    "by its place": (FULL,),
    "own settings": LEVELS,
}
"""What the program tries, and the levels at which it may come off."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A home with a neighbour's file, and a workspace beside it."""
    (tmp_path / "home" / "secret").mkdir(parents=True)
    (tmp_path / "home" / "secret" / "file.txt").write_text("secret")
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "notes.txt").write_text("hello\n")
    (tmp_path / "ws" / "old.txt").write_text("old\n")
    return tmp_path


def tried(place: Path, spec: str, level: Access) -> dict[str, bool]:
    """What came of the attempts of a program behind this spec."""
    neighbour = place / "home" / "secret" / "file.txt"
    install(place / "bin", "claude", neighbour)
    base = {"PATH": f"{place / 'bin'}:/usr/bin:/bin", "HOME": str(place / "home")}
    agent = Agent(spec=spec.format(bin=place / "bin"), access=level)
    answer = Stage(base).perform(job(place / "ws", agent=agent))
    assert isinstance(answer, EffectSuccess), answer
    said = json.loads(answer.output)
    came = json.loads(said["result"]) if "result" in said else said
    return {name: bool(worked) for name, worked in came.items()}


@pytest.mark.item("coqui-26")
@needs_sandbox
@every_level
@pytest.mark.parametrize("spec", ["claude", "command:{bin}/claude"], ids=["cli", "program"])
def test_a_program_comes_as_far_as_its_level(place: Path, spec: str, level: Access) -> None:
    """A program that obeys no flag reads, writes and runs what the sandbox lets it."""
    came = tried(place, spec, level)
    assert not OUTSIDE.exists()  # below full it could be written, in memory
    wanted = {name: level in levels for name, levels in ATTEMPTS.items()}
    if spec != "claude":
        wanted.pop("own settings"), came.pop("own settings")
    assert came == wanted
    if level != FULL:
        assert sorted(one.name for one in (place / "ws").iterdir()) == ["notes.txt", "old.txt"]
        assert (place / "ws" / "notes.txt").read_text() == "hello\n"


@pytest.mark.item("coqui-26")
@needs_sandbox
def test_codex_is_held_to_reading_commands_by_the_sandbox(place: Path) -> None:
    """A program without a word for a level is held to it all the same."""
    neighbour = place / "home" / "secret" / "file.txt"
    install(place / "bin", "agent", neighbour)
    confinement = bubblewrap.confinement_of(Agent(access="readonly-shell"), "guard")
    program = ProgramStart(
        argv=("agent",),
        cwd=str(place / "ws"),
        env={"PATH": f"{place / 'bin'}:/usr/bin:/bin", "HOME": str(place / "home")},
    )
    end = asyncio.run(bubblewrap.Sandbox().run(program, confinement))
    came = json.loads(json.loads(end.stdout)["result"])
    assert came["grep"]
    assert not came["write"]
    assert not came["python"]


@pytest.mark.item("coqui-26")
@needs_sandbox
def test_an_interpreter_behind_links_in_a_place_that_is_not_hidden(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a project folder of its own below the root: where nothing is hidden, nothing is put."""
    monkeypatch.setattr(mounts, "PRIVATE", ("/home", "/root"))  # this test's folders are seen
    (place / "env" / "bin").mkdir(parents=True)
    (place / "env" / "bin" / "python").symlink_to(sys.executable)
    agent = place / "agent"
    agent.write_text(f"#!{place / 'env' / 'bin' / 'python'} -IS\nprint('started')\n")
    agent.chmod(0o755)
    confinement = bubblewrap.confinement_of(Agent(access="readonly"), "guard")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(place / "home")}
    program = ProgramStart(argv=(str(agent),), cwd=str(place / "ws"), env=env)
    end = asyncio.run(bubblewrap.Sandbox().run(program, confinement))
    assert end.stdout == b"started\n", end


REFUSED_WITHOUT = [
    *(("command:./agent", level) for level in ("readonly-shell", "readonly", "minimal")),
    *(("jsonl:./agent", level) for level in ("readonly-shell", "readonly", "minimal")),
    *(("acp:./agent", level) for level in ("readonly-shell", "readonly", "minimal")),
    *(("codex", level) for level in ("readonly-shell", "readonly", "minimal")),
    ("gemini", "minimal"),
]


@pytest.mark.item("coqui-26")
@pytest.mark.parametrize(("spec", "level"), REFUSED_WITHOUT)
def test_a_level_that_cannot_be_kept_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, spec: str, level: Access
) -> None:
    """Without bubblewrap, what only it could hold is refused before the start, and at the call."""
    monkeypatch.setattr(bubblewrap, "works", lambda: "bwrap is not there")
    agent = Agent(spec=spec, access=level)
    with pytest.raises(LoopwrightError, match="held to"):
        bind(agent, place)
    answer = Stage({"PATH": "/usr/bin:/bin"}).perform(job(place / "ws", agent=agent))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "bad_input"


@pytest.mark.parametrize("spec", ["claude", "opencode", "model:ollama/tiny", "script:answers.yaml"])
@every_level
def test_words_of_the_agent_itself_are_enough(
    place: Path, monkeypatch: pytest.MonkeyPatch, spec: str, level: Access
) -> None:
    """What can be held without bubblewrap is not refused for want of it."""
    monkeypatch.setattr(bubblewrap, "works", lambda: "bwrap is not there")
    (place / "answers.yaml").write_text("replies: []")
    assert bind(Agent(spec=spec, access=level), place).access == level


def test_codex_at_readonly_is_refused_even_with_a_sandbox(place: Path) -> None:
    """It reads by running commands, and `readonly` runs none."""
    with pytest.raises(LoopwrightError, match="codex reads files by running commands"):
        bind(Agent(spec="codex", access="readonly"), place)


def bind(agent: Agent, place: Path) -> Agent:
    """The agent, bound as when a run starts."""
    call = Step(id="main", action=CallAgent(agent="worker"))
    plan = Plan(name="p", steps=(call,), agents={"worker": agent})
    bound = bind_agents(plan, default=None, named={}, base=place, cwd=place)
    return bound.agents["worker"]
