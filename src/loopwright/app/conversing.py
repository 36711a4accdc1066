"""A chat as a run: a loop of turns with a chat model that waits for a person after each answer.

Nothing of it is special to the engine. What the person says is the answer to a gate, so a chat is
durable like every run: it can be left, killed, resumed by its id and forked.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.binding import bind_agents
from loopwright.app.plugins import PREFIX
from loopwright.app.preparing import tightened
from loopwright.app.run_request import Start
from loopwright.app.service import Service, current_user
from loopwright.app.views.summary import ReadText
from loopwright.errors import Conflict, LoopwrightError
from loopwright.kernel.facts import (
    AnyFact,
    EffectDone,
    GateAnswered,
    GateOpened,
    RunStarted,
    TurnTaken,
)
from loopwright.kernel.state import State
from loopwright.model.actions import MAX_PASSES, Cycle, Repeat, Step
from loopwright.model.checks import AllOf, NoCalls, Person
from loopwright.model.memory import History
from loopwright.model.plan import CHAT, Agent, Plan
from loopwright.model.policy import NO_LIMITS
from loopwright.programs.files import FileProblem, read_beneath

SURFACE = "surface"
WINDOW = 128_000
FILE_BYTES = 64 * 1024
MOST_FILES = 20
_MENTION = re.compile(r"(?<!\S)@(\S+)")
_SYSTEM = "You are a helpful assistant at a terminal. Work in the workspace with your tools."


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWish:
    """What a chat is begun with."""

    message: str
    agent: str | None
    workspace: Path
    budget: str | None = None
    allow_unknown_cost: bool = False
    file: Plan | None = None


def chat_start(wish: ChatWish) -> Start:
    """The run that a chat is."""
    agent = _agent_of(wish.file) if wish.file is not None else Agent(system=_SYSTEM)
    _check_model(wish.agent or agent.spec)
    turns = Repeat(
        body=Cycle(agent="chat"),
        max=MAX_PASSES,
        until=AllOf(parts=(NoCalls(), Person(answers=("continue", "approve")))),
        memory=History(window=WINDOW),
    )
    plan = Plan(
        name="chat",
        steps=(Step(id="main", action=turns),),
        agents={"chat": agent},
        limits=tightened(NO_LIMITS, wish.budget) if wish.budget is not None else NO_LIMITS,
        settings={SURFACE: "chat"},
    )
    here = Path.cwd()
    bound = bind_agents(plan, default=wish.agent, named={}, base=here, cwd=here)
    return Start(
        plan=bound,
        workspace=wish.workspace,
        message=wish.message,
        by=current_user(),
        allow_unknown_cost=wish.allow_unknown_cost,
    )


def _check_model(spec: str | None) -> None:
    """A chat has the turns of a model; a program that runs whole tasks has none."""
    if spec is not None and not spec.startswith((CHAT, PREFIX)):
        raise LoopwrightError(
            f"`chat` needs a model (`--agent model:openai/gpt-5`); `{spec.partition(':')[0]}` "
            "only runs whole tasks",
            code="bad-agent",
            hint=f"`loopwright loop MESSAGE --agent {spec}` runs a task with it",
        )
    if spec is None:
        message = "`chat` needs a model: add `--agent model:openai/gpt-5`"
        raise LoopwrightError(message, code="no-agent", hint="or set `agent` in the settings")


def _agent_of(plan: Plan) -> Agent:
    """The agent of a definition that is a chat model; of several the first."""
    found = [agent for agent in plan.agents.values() if agent.is_chat]
    found = found or [agent for agent in plan.agents.values() if agent.spec is None]
    if not found:
        raise LoopwrightError(
            "no agent of this definition is a chat model",
            code="no-chat-model",
            hint="give one: --agent model:PROVIDER/NAME",
        )
    return found[0]


def check_is_chat(state: State) -> None:
    """Only a chat can be gone on with as one."""
    if state.plan.settings.get(SURFACE) != "chat":
        raise Conflict(
            f"{state.run} is no chat",
            code="no-chat",
            hint=f"`loopwright resume {state.run}` continues it",
        )
    if state.finished is not None:
        raise Conflict(
            f"{state.run} has ended: {state.finished.outcome} ({state.finished.reason})",
            code="ended",
            hint=f"`loopwright fork {state.run} --at PASS --edit TEXT` goes on from a turn of it",
        )


# -- what a person types ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expanded:
    """A message with the files that it names, and why some of them are not in it."""

    text: str
    skipped: tuple[str, ...] = ()


def expand(message: str, workspace: Path) -> Expanded:
    """Show the files below a message that it names as `@path`. Only texts of the workspace."""
    shown: list[str] = []
    skipped: list[str] = []
    names = dict.fromkeys(name.rstrip(".,;:!?)") for name in _MENTION.findall(message))
    for number, name in enumerate(names):
        text = (
            _file(workspace, name) if number < MOST_FILES else FileProblem("too-many-items", _MANY)
        )
        if isinstance(text, FileProblem):
            skipped.append(f"@{name} is not shown: {text.message}")
        else:
            shown.append(f"### {name}\n\n{fenced(text)}")
    return Expanded("\n\n".join([message, *shown]), tuple(skipped))


_MANY = f"a message shows {MOST_FILES} files at most"


def _file(workspace: Path, name: str) -> str | FileProblem:
    data = read_beneath(workspace, name, FILE_BYTES)
    if isinstance(data, FileProblem):
        return data
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return FileProblem("encoding", "it is no text")
    return FileProblem("encoding", "it is no text") if "\0" in text else text


def fenced(text: str) -> str:
    """A text in a fence that nothing in it can close: no link and no picture of it is followed."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"


# -- what was said ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """One entry of a chat: who said it, or which tools were asked for; a model, in which turn."""

    who: str
    text: str
    effect: str = ""


def said_in(facts: Sequence[AnyFact], read: ReadText) -> Iterator[Said]:
    """What these facts of a chat say, in order."""
    answers: dict[str, EffectDone] = {}
    tools: dict[str, str] = {}
    for fact in facts:
        match fact:
            case RunStarted():
                yield Said("user", read(fact.message))
            case GateOpened(call=int()):
                tools[fact.gate] = fact.message
            case GateAnswered() if fact.gate in tools:
                yield Said("approval", f"{tools[fact.gate]} {fact.decision} {fact.text}".strip())
            case GateAnswered(decision="continue"):
                yield Said("user", fact.text)
            case EffectDone():
                answers[fact.effect] = fact
            case TurnTaken():
                yield from _turn(fact, answers, read)
            case _:
                continue


def _turn(fact: TurnTaken, answers: dict[str, EffectDone], read: ReadText) -> Iterator[Said]:
    answer = answers.get(fact.effect)
    text = read(answer.output) if answer is not None else ""
    if text.strip():
        yield Said("assistant", text, fact.effect)
    for call in [one for one in fact.calls if one.id]:
        problem = f" ({call.problem})" if call.problem else ""
        yield Said("tool", f"{call.tool} {read(call.arguments)}{problem}")


def transcript(service: Service, run: str) -> str:
    """A chat in Markdown. What was said stands in fences, so it is shown and never followed."""
    facts = [numbered.fact for numbered in service.facts(run)]
    parts = [f"# Chat {run}"]
    parts += [f"## {one.who}\n\n{fenced(one.text)}" for one in said_in(facts, service.read_text)]
    return "\n\n".join(parts) + "\n"
