"""From an agent, alone or made of others, to what is done: a loop of cycles, or steps.

What an agent is asked is a template: nothing (the run's own message), the output of a step, or a
JSON object with such outputs in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, assert_never

import msgspec

from loopwright.dialects.aldo.agents import (
    lower_agent,
    lower_conditions,
    lower_limits,
    stricter,
)
from loopwright.dialects.aldo.paths import parse_path, parse_source
from loopwright.dialects.aldo.surface import Ceilings, Composite, Rounds, Subagent, Tier
from loopwright.dialects.aldo.units import Unit
from loopwright.model.actions import Action, Cycle, Repeat, Step, Steps
from loopwright.model.checks import AnyOf, Cap, Check, Contains, Expr, ResultPath
from loopwright.model.ids import MAIN
from loopwright.model.memory import ROLLING_WINDOW, History
from loopwright.model.plan import Agent
from loopwright.model.policy import AtCap
from loopwright.model.template import Lit, Ref, Template

NUDGE = (
    "Go on with the task. If it is finished, say so explicitly in the agreed words. "
    "If it is not, use your tools."
)
LEAF_TURNS = 50
LEAF_WINDOW = 128_000
_OF_A_PASS = frozenset({"iteration", "previous"})
_MESSAGE: Template = (Ref(of="message"),)


@dataclass(slots=True)
class Lowering:
    """One agent on its way, with all that it is made of."""

    agents: dict[str, Agent] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=lambda: {MAIN})

    def first(self, unit: Unit) -> Step:
        """The only step of the plan."""
        tier = unit.spec.model_policy.privacy_tier
        name = self._free(unit.spec.identity.name)
        action = self._action(unit, name, (), tier, at_cap="exhaust")
        return Step(id=MAIN, action=action, limits=lower_limits(unit.spec))

    def _free(self, wanted: str) -> str:
        """An id that no other use of an agent has; the same one may be used many times."""
        wanted = wanted if wanted[0].isalpha() else f"a-{wanted}"[:63]
        name, number = wanted, 1
        while name in self._ids:
            number += 1
            name = f"{wanted[:59]}-{number}"
        self._ids.add(name)
        return name

    def _action(
        self, unit: Unit, name: str, asked: Template, tier: Tier, *, at_cap: AtCap
    ) -> Action:
        composite = unit.spec.composite
        if composite is None:
            return self._cycles(unit, name, asked, tier, at_cap=at_cap)
        match composite.strategy:
            case "sequential":
                return self._sequential(unit, composite, asked, tier)
            case "parallel":
                steps = self._side_by_side(unit, composite, asked, tier)
                return Steps(steps=tuple(steps), output="list")
            case "debate":
                return self._debate(unit, composite, asked, tier)
            case "iterative":
                assert composite.iteration is not None, "a rule says so"
                return self._rounds(unit, composite.iteration, asked, tier, at_cap=at_cap)
            case never:
                assert_never(never)

    # -- one agent ---------------------------------------------------------------------------------

    def _cycles(
        self, unit: Unit, name: str, asked: Template, tier: Tier, *, at_cap: AtCap
    ) -> Repeat:
        """A loop as it is declared; without one, as many turns as the model asks for tools."""
        spec, loop = unit.spec, unit.spec.iteration
        self.agents[name] = lower_agent(unit, tier)
        most = loop.max_cycles if loop else LEAF_TURNS
        if spec.termination is not None and spec.termination.max_turns is not None:
            most = min(most, spec.termination.max_turns) if loop else spec.termination.max_turns
        summarises = loop is not None and loop.summary_strategy == "periodic-summary"
        return Repeat(
            body=Cycle(
                agent=name,
                prompt=_inside(asked),
                nudge=NUDGE if loop else None,
                schema=unit.schema,
                one_call=loop is None,
            ),
            max=most,
            until=lower_conditions(spec),
            memory=History(
                window=loop.context_window if loop else LEAF_WINDOW,
                strategy="periodic-summary" if summarises else ROLLING_WINDOW,
                trim=loop is None,  # a loop names what becomes of old turns
            ),
            # An answer that never came is no answer, whoever asks for it.
            at_cap=at_cap if loop else "exhaust",
        )

    # -- several -----------------------------------------------------------------------------------

    def _step(
        self, unit: Unit, alias: str, asked: Template, tier: Tier, *, needs: tuple[str, ...] = ()
    ) -> Step:
        name = self._free(alias)
        own = stricter(tier, unit.spec.model_policy.privacy_tier)
        # At its ceiling a loop counts as done for whoever has asked for it.
        action = self._action(unit, name, asked, own, at_cap="complete")
        return Step(id=name, action=action, needs=needs, limits=lower_limits(unit.spec))

    def _sequential(self, unit: Unit, composite: Composite, asked: Template, tier: Tier) -> Steps:
        steps: list[Step] = []
        aliases: dict[str, str] = {}
        for sub, child in zip(composite.subagents, unit.children, strict=True):
            needs = (steps[-1].id,) if steps else ()
            asks: Template = (Ref(of="output", name=steps[-1].id),) if steps else asked
            asks = _mapped(sub, asked, aliases) or asks
            step = self._step(child, sub.alias or sub.agent, asks, tier, needs=needs)
            steps.append(step)
            aliases |= {sub.agent: step.id, sub.alias or sub.agent: step.id}
            if _is_last(unit.spec.termination, sub, len(steps)):
                break
        return Steps(steps=tuple(steps))

    def _side_by_side(
        self, unit: Unit, composite: Composite, asked: Template, tier: Tier
    ) -> list[Step]:
        pairs = zip(composite.subagents, unit.children, strict=False)  # an aggregator comes last
        return [
            self._step(child, sub.alias or sub.agent, _mapped(sub, asked, {}) or asked, tier)
            for sub, child in pairs
        ]

    def _debate(self, unit: Unit, composite: Composite, asked: Template, tier: Tier) -> Steps:
        parties = self._side_by_side(unit, composite, asked, tier)
        parts: list[Lit | Ref] = []
        for sub, party in zip(composite.subagents, parties, strict=True):
            head = {"alias": sub.alias or sub.agent, "agent": sub.agent}
            begin = '{"parties":[' if not parts else "},"
            parts.append(Lit(text=f'{begin}{msgspec.json.encode(head).decode()[:-1]},"output":'))
            parts.append(Ref(of="output", name=party.id, json=True))
        parts.append(Lit(text="}]}"))
        needs = tuple(party.id for party in parties)
        assert composite.aggregator is not None, "a rule says so"
        judge = self._step(unit.children[-1], composite.aggregator, tuple(parts), tier, needs=needs)
        return Steps(steps=(*parties, judge))

    def _rounds(
        self, unit: Unit, rounds: Rounds, asked: Template, tier: Tier, *, at_cap: AtCap
    ) -> Repeat:
        asks: Template = (
            Lit(text='{"input":'),
            *_embedded(_inside(asked) or _MESSAGE),
            Lit(text=',"round":'),
            Ref(of="iteration", json=True),
            Lit(text=',"previous":'),
            Ref(of="previous", json=True),
            Lit(text="}"),
        )
        composite = unit.spec.composite
        assert composite is not None
        (sub,) = composite.subagents
        step = self._step(unit.children[0], sub.alias or sub.agent, asks, tier)
        ends, most, until = unit.spec.termination, rounds.max_rounds, _terminates(rounds.terminate)
        if ends is not None and ends.max_turns is not None:
            most = min(most, ends.max_turns)
        if ends is not None and {sub.agent, sub.alias} & {*ends.success_roles}:
            until = Expr(text="true")
        if ends is not None and ends.text_mention is not None:
            mention = Contains(text=ends.text_mention, ignore_case=True)
            until = mention if isinstance(until, Cap) else AnyOf(parts=(until, mention))
        return Repeat(body=Steps(steps=(step,)), max=most, until=until, at_cap=at_cap)


def _is_last(ends: Ceilings | None, sub: Subagent, number: int) -> bool:
    """Whether the subagents after this one are not asked any more. Each one answers once, so that
    is known beforehand.
    """
    if ends is None:
        return False
    return number == ends.max_turns or bool({sub.agent, sub.alias} & {*ends.success_roles})


def _mapped(sub: Subagent, asked: Template, aliases: Mapping[str, str]) -> Template | None:
    """The input of a subagent as its `input_map` says; None where it has none."""
    if not sub.input_map:
        return None
    parts: list[Lit | Ref] = []
    for name, path in sub.input_map.items():
        begin = "{" if not parts else ","
        parts.append(Lit(text=f"{begin}{msgspec.json.encode(name).decode()}:"))
        parts.append(_value_at(path, asked, aliases))
    return (*parts, Lit(text="}"))


def _value_at(path: str, asked: Template, aliases: Mapping[str, str]) -> Lit | Ref:
    source = parse_source(path)
    if source is None:
        return Lit(text=msgspec.json.encode(path).decode())
    kind, alias, field_name = source
    if kind == "outputs":
        of: Literal["result", "output"] = "result" if field_name else "output"
        return Ref(of=of, name=aliases[alias], field=field_name or None, json=True)
    first = asked[0] if len(asked) == 1 else None
    if isinstance(first, Ref) and first.of == "output":
        of = "result" if field_name else "output"
        return msgspec.structs.replace(first, of=of, field=field_name or None, json=True)
    return Ref(of="message", field=field_name or None, json=True)


def _inside(asked: Template) -> Template:
    """The same as seen from inside of one more loop."""
    return tuple(
        msgspec.structs.replace(part, up=part.up + 1)
        if isinstance(part, Ref) and part.of in _OF_A_PASS
        else part
        for part in asked
    )


def _embedded(asked: Template) -> Template:
    """As a value of a JSON object: a text becomes a JSON text, an object already is one."""
    if len(asked) == 1 and isinstance(asked[0], Ref):
        return (msgspec.structs.replace(asked[0], json=True),)
    return asked


def _terminates(text: str) -> Check:
    target = parse_path(text)
    assert target is not None, "the surface has looked at it"
    if isinstance(target, bool):
        return Expr(text="true") if target else Cap()
    return ResultPath(path=target)
