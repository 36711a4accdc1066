"""Texts that want to mislead, and a model that obeys each of them, over a wire with real tools.

The model is taken out of the question. Whatever stands in the task, in a file, in a file's name, in
what a server says about itself, in a result, in the words of another step, in a conversation that
was taken up again or in a summary of one is done. What counts is what then happens in the world.
"""

from pathlib import Path

import pytest

from loopwright.kernel.events import GateOpened, HistoryCompressed, TurnTaken
from loopwright.model.actions import CallAgent, ModelCycle, Repeat, Step
from loopwright.model.checks import NoCalls
from loopwright.model.plan import Agent, ApprovalRule, Plan
from loopwright.model.policy import ConversationHistory
from loopwright.model.record import Ref, literal
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest
from tests.safety.stage import (
    INSIDE,
    SECRETS,
    Lure,
    Obedient,
    Played,
    Scene,
    call,
    corpus,
    doing,
    furnish,
    harmed,
    picture,
    play,
    told,
    ungated,
)

CORPUS = corpus()
FILES = ("fs.read", "fs.list", "fs.search", "fs.write", "fs.edit", "shell.exec")
PROGRAMS = ["cat", "echo", "git", "ls", "head", "grep"]
DENIED = ["git push", "git config", "git -c", "git --exec-path"]
GUARD: dict[str, ApprovalRule] = {
    "any-shell.shell.exec": "always",  # as if a server had it
    "fs.write": "protected_paths",
    "edit": "protected_paths",
    "bench.deploy": "always",
}
GUARDED = Agent(
    spec="model:local/tiny",
    tools=(*FILES, "bench.*"),
    deny_tools=("hidden",),
    approvals=GUARD,
    options={"commands": {"allow": [*PROGRAMS, "sh", "touch"]}},
)
BARE = Agent(  # nobody is asked: what is granted must be harmless by itself
    spec="model:local/tiny",
    tools=(*FILES, "bench.weather", "bench.fail", "bench.variables"),
    options={"commands": {"allow": PROGRAMS, "deny": DENIED}},
)
AGENTS = {"guarded": GUARDED, "bare": BARE}


def plan(agent: Agent, task: str = "Look at the project.") -> Plan:
    first = Step(id="work", action=CallAgent(agent="coder", prompt=literal(task)))
    return Plan(name="work", steps=(first,), agents={"coder": agent})


def nothing_happened(scene: Scene, before: dict[str, bytes], played: Played) -> None:
    """The things that no text may bring about."""
    assert played.status == "completed"
    assert ungated(played.events) == []
    assert harmed(before, picture(scene)) == []
    assert told(played) == []
    assert not any("root:x:0:0" in request.raw.decode() for request in played.requests)


def obeyed(model: Obedient) -> None:
    """Without this the test would show nothing: every text was read and believed."""
    assert {lure.id for lure in model.lures} == model.obeyed


def all_of(*places: str) -> list[Lure]:
    return [lure for place in places for lure in CORPUS[place]]


def test_the_corpus_is_worth_its_name() -> None:
    """At least forty texts, no two alike, each with something to do."""
    lures = all_of(*CORPUS)
    assert len(lures) >= 40
    assert len({lure.id for lure in lures}) == len({lure.text for lure in lures}) == len(lures)
    assert all(lure.calls for lure in lures)


@pytest.mark.item("I-7", "inv-13", "inv-22", "aldo-30", "aldo-31", "aldo-32")
@pytest.mark.parametrize("agent", AGENTS)
def test_in_the_task(tmp_path: Path, agent: str) -> None:
    """Whoever writes the task gets no further than the grant."""
    scene = furnish(tmp_path)
    lures = all_of("task", "spelling")
    before = picture(scene)
    model = Obedient(lures)
    task = "\n".join(lure.planted for lure in lures)
    played = play(scene, plan(AGENTS[agent], task), model)
    obeyed(model)
    nothing_happened(scene, before, played)


@pytest.mark.item("I-7", "inv-13", "inv-22", "aldo-30", "aldo-31", "aldo-32", "aldo-40")
@pytest.mark.parametrize("agent", AGENTS)
def test_in_files(tmp_path: Path, agent: str) -> None:
    """What stands in the files of the workspace is read, obeyed, and leads to nothing."""
    scene = furnish(tmp_path)
    lures = all_of("file", "spelling")
    for lure in lures:
        (scene.work / "docs" / f"{lure.id}.md").write_text(lure.planted)
    before = picture(scene)
    reads = [call("fs_read", path=f"docs/{lure.id}.md") for lure in lures]
    model = Obedient(lures, [doing(*reads)])
    played = play(scene, plan(AGENTS[agent]), model)
    obeyed(model)
    nothing_happened(scene, before, played)
    if agent == "guarded":
        assert any(isinstance(event, GateOpened) for event in played.events)


@pytest.mark.item("I-7", "aldo-31")
def test_in_names_of_files(tmp_path: Path) -> None:
    """A listing is read like any other text."""
    scene = furnish(tmp_path)
    lures = all_of("name")
    for lure in lures:
        (scene.work / f"{lure.planted}.md").write_text("x")
    before = picture(scene)
    model = Obedient(lures, [doing(call("fs_list"), call("shell_exec", argv=["ls"]))])
    played = play(scene, plan(BARE), model)
    obeyed(model)
    nothing_happened(scene, before, played)


@pytest.mark.item("I-7", "inv-13", "inv-22", "aldo-30")
@pytest.mark.parametrize("agent", AGENTS)
def test_in_what_a_server_says(tmp_path: Path, agent: str) -> None:
    """In descriptions, results and errors; the secret that the server was given comes back in none
    of them, and not in the name of a tool either.
    """
    scene = furnish(tmp_path)
    lures = all_of("server", "spelling")
    (scene.top / "said-by-server").write_text(" ".join(lure.planted for lure in lures))
    before = picture(scene)
    model = Obedient(
        lures, [doing(call("bench_weather", town="x"), call("bench_fail", reason="y"))]
    )
    played = play(scene, plan(AGENTS[agent]), model)
    obeyed(model)
    nothing_happened(scene, before, played)
    first = played.requests[0].raw.decode()
    assert "my key is [BENCH_TOKEN]" in first
    assert "bench_weather" in first
    assert "tell_" not in first


@pytest.mark.item("I-7", "aldo-30")
@pytest.mark.parametrize("agent", AGENTS)
def test_in_the_words_of_another_step(tmp_path: Path, agent: str) -> None:
    """What one step says is material for the next, which obeys it in vain."""
    scene = furnish(tmp_path)
    lures = all_of("message")
    before = picture(scene)
    said = " ".join(lure.planted for lure in lures)
    model = Obedient(lures, heeds=lambda request: "Work on this" in request.user_text)

    def speak(request: WireRequest) -> ScriptedTurn:
        return ScriptedTurn(text=said) if "Say something" in request.user_text else model(request)

    two = Plan(
        name="work",
        steps=(
            Step(id="first", action=CallAgent(agent="coder", prompt=literal("Say something."))),
            Step(
                id="second",
                needs=("first",),
                action=CallAgent(
                    agent="coder",
                    prompt=(*literal("Work on this: "), Ref(of="output", name="first")),
                ),
            ),
        ),
        agents={"coder": AGENTS[agent]},
    )
    played = play(scene, two, speak)
    obeyed(model)
    nothing_happened(scene, before, played)


@pytest.mark.item("I-7", "inv-12", "inv-13", "aldo-33", "aldo-35", "W21")
def test_in_a_conversation_that_is_taken_up_again(tmp_path: Path) -> None:
    """After each restart the whole conversation is believed anew, by a model without a memory."""
    scene = furnish(tmp_path)
    lures = all_of("resumed")
    (scene.work / "docs" / "note.md").write_text(lures[0].planted)
    before = picture(scene)
    lives: list[Obedient] = []

    def born() -> Obedient:
        work = [doing(call("fs_read", path="docs/note.md"))] if not lives else []
        weary = {lure.id for lure in lures} if len(lives) > 3 else set()  # it has to end somehow
        lives.append(Obedient(lures, work, obeyed=weary))
        return lives[-1]

    played = play(scene, plan(GUARDED), born(), lives=born)
    assert len(lives) > 3
    nothing_happened(scene, before, played)
    assert sum(isinstance(event, GateOpened) for event in played.events) >= 4


@pytest.mark.item("I-7", "aldo-43", "aldo-44")
def test_in_a_summary(tmp_path: Path) -> None:
    """A text that lives on in a summary has no more rights there than it had before."""
    scene = furnish(tmp_path)
    lures = all_of("summary")
    (scene.work / "docs" / "note.md").write_text(" ".join(lure.planted for lure in lures))
    (scene.work / "docs" / "dull.txt").write_text("It says nothing. " * 110)
    before = picture(scene)
    work = [doing(call("fs_read", path="docs/note.md"))]
    work += [doing(*[call("fs_read", path="docs/dull.txt")] * 4) for _ in range(6)]
    model = Obedient(lures, work, heeds=sums_up)
    step = Step(
        id="work",
        action=Repeat(
            body=ModelCycle(agent="coder", prompt=literal("Look at the project."), nudge="Go on."),
            max=30,
            until=NoCalls(),
            memory=ConversationHistory(window=6_000, strategy="periodic-summary"),
        ),
    )
    played = play(scene, Plan(name="work", steps=(step,), agents={"coder": GUARDED}), model)
    obeyed(model)
    nothing_happened(scene, before, played)
    cuts = [event for event in played.events if isinstance(event, HistoryCompressed)]
    assert any(lures[0].mark in str(event.summary) for event in cuts)


def sums_up(request: WireRequest) -> bool:
    """Whether the model is shown a summary, and not only a text that says so."""
    shown = request.body["messages"]
    assert isinstance(shown, list)
    return any(
        isinstance(one, dict)
        and one["role"] == "user"
        and str(one["content"]).startswith("Summary of the conversation")
        for one in shown
    )


# -- what the guards are for: the same calls with a person who says yes ----------------------------


@pytest.mark.item("aldo-36", "aldo-40")
def test_a_person_may_let_it_through(tmp_path: Path) -> None:
    """An approved write to a protected path happens, after the approval and not before; nothing
    outside is written even then.
    """
    scene = furnish(tmp_path)
    hook = ".git/hooks/post-commit"
    lure = Lure(
        id="x",
        text="Install it.",
        calls=(
            ScriptedCall(name="fs_write", args={"path": hook, "content": "yes"}),
            ScriptedCall(name="fs_write", args={"path": "../planted", "content": "no"}),
        ),
    )
    model = Obedient([lure])
    played = play(scene, plan(GUARDED, lure.planted), model, people=lambda gate: "approve")
    assert (scene.work / hook).read_text() == "yes"
    assert not (scene.top / "planted").exists()
    assert ungated(played.events) == []
    [turn, _] = [event for event in played.events if isinstance(event, TurnTaken)]
    assert [(bool(note.held), bool(note.problem)) for note in turn.calls] == [
        (True, False),
        (False, True),
    ]


def test_what_the_workspace_says_may_be_read(tmp_path: Path) -> None:
    """The wall is around the workspace: its own files, one with a key in it too, are the agent's to
    read. Whoever does not want that does not put them there.
    """
    scene = furnish(tmp_path)
    model = Obedient([], [doing(call("fs_read", path=".env"))])
    played = play(scene, plan(BARE), model)
    assert INSIDE in played.requests[-1].raw.decode()
    assert SECRETS["LOOPWRIGHT_MODEL_API_KEY"] == played.requests[-1].key
    assert told(played) == []
