"""The output that agents' programs printed, as artifacts of their iterations.

They are read off the events, so they exist as long as their run does.
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from loopwright.app.views.iteration_names import iteration_of
from loopwright.kernel.calls import AgentCall
from loopwright.kernel.facts import AnyFact, EffectDone, EffectFailed, EffectRequested, RunStarted
from loopwright.model.plan import Plan
from loopwright.model.record import Blob
from loopwright.model.trackers import Item

BLOB = "blob"
"""The value of an item that names its content in the log."""
OUTPUT = "agent_output"


def output_items(
    plan: Plan, facts: Iterable[AnyFact], scope: str, *, several: bool = False
) -> list[Item]:
    """One item for each call whose output was kept: `iteration-2/claude.jsonl.gz`. With
    `several`, names begin with the id of the run.
    """
    calls: dict[str, str] = {}
    names: Counter[str] = Counter()
    items: list[Item] = []
    run = ""
    for fact in facts:
        if isinstance(fact, RunStarted):
            run = fact.run
        elif isinstance(fact, EffectRequested) and isinstance(fact.call, AgentCall):
            calls[fact.effect] = fact.call.agent
        elif isinstance(fact, EffectDone | EffectFailed) and isinstance(fact.stream, Blob):
            agent = calls.get(fact.effect, "")
            name = _name(plan, agent, iteration_of(fact.path, fact.iteration))
            names[name] += 1
            title = _counted(name, names[name])
            items.append(
                Item(
                    scope=scope,
                    kind="artifact",
                    id=f"out_{blake2b(f'{run}/{fact.effect}'.encode(), digest_size=8).hexdigest()}",
                    at=fact.at,
                    values={
                        "type": OUTPUT,
                        "title": f"{run}/{title}" if several else title,
                        "size": fact.stream.size,
                        "by": agent,
                        BLOB: fact.stream.blob,
                    },
                )
            )
    return items


def _name(plan: Plan, agent: str, iteration: int | None) -> str:
    """The iteration and the agent: a coding CLI by its own name, others as the plan names them."""
    known = plan.agents.get(agent)
    spec = known.spec or "" if known is not None else ""
    program, colon, _ = spec.partition(":")
    words = spec.split()
    label = words[0] if words and not colon else agent or "agent"
    safe = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in label)
    kind = "txt" if program == "command" else "jsonl"
    place = f"iteration-{iteration}/" if iteration is not None else ""
    return f"{place}{safe}.{kind}.gz"


def _counted(name: str, number: int) -> str:
    """The second call of an agent in the same iteration has another name."""
    if number == 1:
        return name
    place, slash, file = name.rpartition("/")
    stem, dot, rest = file.partition(".")
    return f"{place}{slash}{stem}-{number}{dot}{rest}"
