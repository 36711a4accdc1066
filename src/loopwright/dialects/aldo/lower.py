"""Lowering of an agent to a plan: one step with a loop of cycles, or the steps of its subagents.

The message to a subagent is a template: empty (the message of the run), the output of a step,
or a JSON object that contains such outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, assert_never

import msgspec

from loopwright.dialects.aldo.files import AldoFileRequest, Files, parse_path, parse_source
from loopwright.dialects.aldo.loader import AldoLoader, AldoUnit
from loopwright.dialects.aldo.rules import SHELL, own_tool, tool_names
from loopwright.dialects.aldo.surface import (
    AldoAgent,
    BudgetExhausted,
    Ceilings,
    CommandPasses,
    Composite,
    Condition,
    FileAccess,
    NoToolCalls,
    Rounds,
    Subagent,
    TextIncludes,
    Tier,
    ToolResultRule,
)
from loopwright.model.actions import Action, ModelCycle, Repeat, Step, Steps
from loopwright.model.checks import (
    AnyOf,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    NoCalls,
    ResultPath,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import NO_LIMITS, ROLLING_WINDOW, AtCap, ConversationHistory, Limits
from loopwright.model.record import JsonValue, Lit, Ref, Template
from loopwright.syntax.document import MAX_PROBLEMS, Diagnostic, Document

_TIERS: tuple[Tier, ...] = ("public", "internal", "sensitive")
_REACHES: tuple[FileAccess, ...] = ("none", "repo-readonly", "repo-readwrite", "full")
PROGRAMS: tuple[str, ...] = ("node", "npm", "pnpm", "python3", "tsc")
"""The programs that `shell.exec` starts by default, in a sandbox that confines it to the workspace.
Of the programs of the original, `curl` and `gh` need permission from the person who starts the run:
their effects cannot be undone.
"""
REFUSED: tuple[str, ...] = (
    "rm -rf",
    "git push --force",
    "git push -f",
    "npm publish",
    "pnpm publish",
    "--no-verify",
)


def stricter(one: Tier, other: Tier) -> Tier:
    """The more private of two."""
    return max(one, other, key=_TIERS.index)


def lower_agent(unit: AldoUnit, tier: Tier) -> Agent:
    """The agent; settings without a field in the plan are among its options."""
    spec = unit.spec
    tools = tuple(tool_names(spec.tools.model_dump()))
    return Agent(
        system=unit.system,
        tools=tools,
        temperature=spec.model_policy.decoding.temperature,
        approvals=dict(spec.tools.approvals),
        options=_options(spec, tier),
    )


def _options(spec: AldoAgent, tier: Tier) -> dict[str, JsonValue]:
    """A stable text: only keys that were written, and those that decide where data may go."""
    policy, tools = spec.model_policy, spec.tools
    classes: list[JsonValue] = [policy.primary.capability_class]
    classes += [one.capability_class for one in policy.fallbacks]
    reach = _reach(spec)
    found: dict[str, JsonValue | None] = {
        "privacy_tier": tier,
        "capability_classes": classes,
        "capabilities": list(policy.capability_requirements) or None,
        "usd_per_run": policy.budget.usd_per_run,
        "usd_grace": policy.budget.usd_grace,
        "max_input_tokens": policy.budget.tokens_in_max,
        "max_output_tokens": policy.budget.tokens_out_max,
        "latency_p95_ms": policy.latency.p95_ms if policy.latency else None,
        "decoding": policy.decoding.mode,
        "mcp": [one.model_dump() for one in tools.mcp] or None,
        "permissions": tools.permissions.model_dump() | {"filesystem": reach},
        "skip_missing_tools": True,
        "commands": _commands(spec, reach),
        "tool_limits": _limits(spec),
        "identity": spec.identity.model_dump(),
        "role": spec.role.model_dump(exclude_none=True),
        "eval_gate": spec.eval_gate.model_dump() if spec.eval_gate else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _reach(spec: AldoAgent) -> FileAccess:
    """The files that tools may touch: the narrower one of the two blocks that say so."""
    own = spec.tools.permissions.filesystem
    block = spec.sandbox.filesystem if spec.sandbox is not None else None
    return min(own, block.permission, key=_REACHES.index) if block is not None else own


def _commands(spec: AldoAgent, reach: FileAccess) -> dict[str, JsonValue] | None:
    """Which programs `shell.exec` starts, and how they are confined."""
    if not any(own_tool(name) == SHELL for name in tool_names(spec.tools.model_dump())):
        return None
    network = spec.sandbox.network if spec.sandbox is not None else None
    offline = spec.tools.permissions.network == "none" or (
        network is not None and network.mode == "none"
    )
    return {
        "confined": list(PROGRAMS),
        "deny": list(REFUSED),
        "sandbox": "workspace" if reach in ("repo-readwrite", "full") else "readonly",
        "offline": offline,
    }


def _limits(spec: AldoAgent) -> dict[str, JsonValue] | None:
    """The time limit of one call of a tool, if the file sets one."""
    most = spec.sandbox.timeout_ms if spec.sandbox is not None else None
    if most is None:
        return None
    names = [own_tool(name) or name for name in tool_names(spec.tools.model_dump())]
    return {name: {"seconds": most / 1_000} for name in names}


def lower_limits(spec: AldoAgent) -> Limits:
    """The cost limit of a run of this agent, including the grace. With 0 only models that cost
    nothing are called, which is checked at the start; a limit of 0 would stop those before they
    start.
    """
    budget, ceilings = spec.model_policy.budget, spec.termination
    amounts = [budget.usd_per_run + (budget.usd_grace or 0)] if budget.usd_per_run else []
    if ceilings is not None and ceilings.max_usd is not None:
        amounts.append(ceilings.max_usd)
    return Limits(usd=min(amounts)) if amounts else NO_LIMITS


def lower_conditions(spec: AldoAgent) -> Check:
    """What ends the cycles: the conditions in their order, then the text of `termination`."""
    written = spec.iteration.termination_conditions if spec.iteration else [NO_TOOL_CALLS]
    usd = spec.model_policy.budget.usd_per_run
    checks = [_check(one, usd) for one in written]
    if spec.termination is not None and spec.termination.text_mention is not None:
        checks.append(Contains(text=spec.termination.text_mention, ignore_case=True))
    if len(checks) > 1:
        return AnyOf(parts=tuple(checks))
    return checks[0] if checks else Cap()


NO_TOOL_CALLS = NoToolCalls(kind="no-tool-calls")


def _check(condition: Condition, usd: float) -> Check:
    match condition:
        case TextIncludes(text=text):
            return Contains(text=text)
        case ToolResultRule(tool=tool, match=wanted):
            return ToolResultCheck(tool=tool, exit_code=wanted.exit_code, contains=wanted.contains)
        case BudgetExhausted():
            return SpendCheck(usd=usd)
        case NoToolCalls():
            return NoCalls()
        case CommandPasses(run=argv):
            return CommandCheck(argv=tuple(argv))
        case never:
            assert_never(never)


NUDGE = (
    "Continue with the task. If it is finished, say so explicitly in the agreed words. "
    "If it is not, use your tools."
)
LEAF_TURNS = 50
LEAF_WINDOW = 128_000
_OF_AN_ITERATION = frozenset({"iteration", "previous"})
_MESSAGE: Template = (Ref(of="message"),)


@dataclass(slots=True)
class AldoLowering:
    """One agent on its way, with all that it is made of."""

    agents: dict[str, Agent] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=lambda: {MAIN})

    def first(self, unit: AldoUnit) -> Step:
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
        self, unit: AldoUnit, name: str, prompt: Template, tier: Tier, *, at_cap: AtCap
    ) -> Action:
        composite = unit.spec.composite
        if composite is None:
            return self._cycles(unit, name, prompt, tier, at_cap=at_cap)
        match composite.strategy:
            case "sequential":
                return self._sequential(unit, composite, prompt, tier)
            case "parallel":
                steps = self._side_by_side(unit, composite, prompt, tier)
                return Steps(steps=tuple(steps), output="list")
            case "debate":
                return self._debate(unit, composite, prompt, tier)
            case "iterative":
                assert composite.iteration is not None, "a rule says so"
                return self._rounds(unit, composite.iteration, prompt, tier, at_cap=at_cap)
            case never:
                assert_never(never)

    # -- one agent ---------------------------------------------------------------------------------

    def _cycles(
        self, unit: AldoUnit, name: str, prompt: Template, tier: Tier, *, at_cap: AtCap
    ) -> Repeat:
        """A loop as it is declared; without one, as many turns as the model asks for tools."""
        spec, loop = unit.spec, unit.spec.iteration
        self.agents[name] = lower_agent(unit, tier)
        most = loop.max_cycles if loop else LEAF_TURNS
        if spec.termination is not None and spec.termination.max_turns is not None:
            most = min(most, spec.termination.max_turns) if loop else spec.termination.max_turns
        summarises = loop is not None and loop.summary_strategy == "periodic-summary"
        return Repeat(
            body=ModelCycle(
                agent=name,
                prompt=_inside(prompt),
                nudge=NUDGE if loop else None,
                schema=unit.schema,
                one_call=loop is None,
            ),
            max=most,
            until=lower_conditions(spec),
            memory=ConversationHistory(
                window=loop.context_window if loop else LEAF_WINDOW,
                strategy="periodic-summary" if summarises else ROLLING_WINDOW,
                trim=loop is None,  # a loop names what becomes of old turns
            ),
            # A missing answer is the same for every caller.
            at_cap=at_cap if loop else "exhaust",
        )

    # -- several -----------------------------------------------------------------------------------

    def _step(
        self,
        unit: AldoUnit,
        alias: str,
        prompt: Template,
        tier: Tier,
        *,
        needs: tuple[str, ...] = (),
    ) -> Step:
        name = self._free(alias)
        own = stricter(tier, unit.spec.model_policy.privacy_tier)
        # At its ceiling a loop counts as done for its caller.
        action = self._action(unit, name, prompt, own, at_cap="complete")
        return Step(id=name, action=action, needs=needs, limits=lower_limits(unit.spec))

    def _sequential(
        self, unit: AldoUnit, composite: Composite, prompt: Template, tier: Tier
    ) -> Steps:
        steps: list[Step] = []
        aliases: dict[str, str] = {}
        for sub, child in zip(composite.subagents, unit.children, strict=True):
            needs = (steps[-1].id,) if steps else ()
            asks: Template = (Ref(of="output", name=steps[-1].id),) if steps else prompt
            asks = _mapped(sub, prompt, aliases) or asks
            step = self._step(child, sub.alias or sub.agent, asks, tier, needs=needs)
            steps.append(step)
            aliases |= {sub.agent: step.id, sub.alias or sub.agent: step.id}
            if _is_last(unit.spec.termination, sub, len(steps)):
                break
        return Steps(steps=tuple(steps))

    def _side_by_side(
        self, unit: AldoUnit, composite: Composite, prompt: Template, tier: Tier
    ) -> list[Step]:
        pairs = zip(composite.subagents, unit.children, strict=False)  # an aggregator comes last
        return [
            self._step(child, sub.alias or sub.agent, _mapped(sub, prompt, {}) or prompt, tier)
            for sub, child in pairs
        ]

    def _debate(self, unit: AldoUnit, composite: Composite, prompt: Template, tier: Tier) -> Steps:
        parties = self._side_by_side(unit, composite, prompt, tier)
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
        self, unit: AldoUnit, rounds: Rounds, prompt: Template, tier: Tier, *, at_cap: AtCap
    ) -> Repeat:
        asks: Template = (
            Lit(text='{"input":'),
            *_embedded(_inside(prompt) or _MESSAGE),
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


def _mapped(sub: Subagent, prompt: Template, aliases: Mapping[str, str]) -> Template | None:
    """The input of a subagent according to its `input_map`; None if it has none."""
    if not sub.input_map:
        return None
    parts: list[Lit | Ref] = []
    for name, path in sub.input_map.items():
        begin = "{" if not parts else ","
        parts.append(Lit(text=f"{begin}{msgspec.json.encode(name).decode()}:"))
        parts.append(_value_at(path, prompt, aliases))
    return (*parts, Lit(text="}"))


def _value_at(path: str, prompt: Template, aliases: Mapping[str, str]) -> Lit | Ref:
    source = parse_source(path)
    if source is None:
        return Lit(text=msgspec.json.encode(path).decode())
    kind, alias, field_name = source
    if kind == "outputs":
        of: Literal["result", "output"] = "result" if field_name else "output"
        return Ref(of=of, name=aliases[alias], field=field_name or None, json=True)
    first = prompt[0] if len(prompt) == 1 else None
    if isinstance(first, Ref) and first.of == "output":
        of = "result" if field_name else "output"
        return msgspec.structs.replace(first, of=of, field=field_name or None, json=True)
    return Ref(of="message", field=field_name or None, json=True)


def _inside(prompt: Template) -> Template:
    """The same as seen from inside of one more loop."""
    return tuple(
        msgspec.structs.replace(part, up=part.up + 1)
        if isinstance(part, Ref) and part.of in _OF_AN_ITERATION
        else part
        for part in prompt
    )


def _embedded(prompt: Template) -> Template:
    """As a value of a JSON object: a text becomes a JSON text, an object already is one."""
    if len(prompt) == 1 and isinstance(prompt[0], Ref):
        return (msgspec.structs.replace(prompt[0], json=True),)
    return prompt


def _terminates(text: str) -> Check:
    target = parse_path(text)
    assert target is not None, "the surface has looked at it"
    if isinstance(target, bool):
        return Expr(text="true") if target else Cap()
    return ResultPath(path=target)


NAME = "aldo"
MAX_PARALLEL_CHILDREN = 8

_NO_FILES: Files = MappingProxyType({})


def requested_files(document: Document, files: Files = _NO_FILES) -> list[AldoFileRequest]:
    """The files that this agent asks for and that are not there yet."""
    loader = AldoLoader(files, document.file)
    loader.load(document)
    return list(loader.requests.values())


def lower(document: Document, files: Files = _NO_FILES) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    loader = AldoLoader(files, document.file)
    unit = loader.load(document)
    problems = _in_order(loader.problems, document.file)
    if unit is None or any(one.severity == "error" for one in problems):
        return None, problems
    lowering = AldoLowering()
    step = lowering.first(unit)
    spec = unit.spec
    plan = Plan(
        name=spec.identity.name,
        description=spec.identity.description,
        steps=(step,),
        agents=lowering.agents,
        parallel=MAX_PARALLEL_CHILDREN if spec.composite else None,
        settings={"agent_version": spec.identity.version},
        dialect=NAME,
    )
    return plan, problems


def _in_order(problems: list[Diagnostic], first: str) -> list[Diagnostic]:
    """Each problem once, those of the first file first; an agent may be used many times."""

    def order(one: Diagnostic) -> tuple[bool, str, int, int, str, str]:
        return one.file != first, one.file, one.line, one.column, one.code, one.message

    return sorted(set(problems), key=order)[:MAX_PROBLEMS]
