"""From the parts of a workflow to the parts of a plan: agents, tries, times."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from loopwright.dialects.zenflow.files import Path
from loopwright.dialects.zenflow.surface import AgentSpec, Options, StepSpec, Workflow
from loopwright.model.plan import Agent
from loopwright.model.policy import NO_LIMITS, RETRYABLE, Limits, Retry
from loopwright.model.record import JsonValue
from loopwright.model.toolnames import family_of

DEFAULT_PARALLEL = 5
DEFAULT_TURNS = 50
DEFAULT_MAX_RETRIES = 2
"""A provider that asks to come back later does not end a run."""

ONCE = Retry()


def lower_retry(step: StepSpec, options: Options) -> Retry:
    """`retries` tries the whole step again; without it only a model call is, on its own account."""
    if step.retries:
        return Retry(attempts=step.retries + 1, on=("any",))
    if step.include is not None or (step.loop is not None and step.loop.steps is not None):
        return ONCE  # the steps inside have tries of their own
    calls = options.max_retries if step.max_retries is None else step.max_retries
    return Retry(attempts=(DEFAULT_MAX_RETRIES if calls is None else calls) + 1, on=RETRYABLE)


def at_most(*times: int | None) -> Limits:
    """The limits that say no more than a time."""
    wall_ms = shorter(*times)
    return NO_LIMITS if wall_ms is None else Limits(wall_ms=wall_ms)


def shorter(*times: int | None) -> int | None:
    """The shortest of some times; 0 is the same as none."""
    return min((one for one in times if one), default=None)


@dataclass(slots=True)
class Agents:
    """The agents of a plan. Those of an included workflow have its step's path before their name,
    and a step with a model of its own calls a copy of its agent.
    """

    made: dict[str, Agent] = field(default_factory=dict)
    default: str = ""

    def define(self, flow: Workflow, texts: Mapping[Path, str], *, prefix: str) -> None:
        """Take over the agents of a workflow."""
        for name, spec in (flow.agents or {}).items():
            # Without a prompt the description is all that is known of the role.
            system = texts.get(("agents", name, "prompt")) or spec.description
            self.made[prefix + name] = _agent(spec, system)

    def call(self, name: str | None, model: str | None) -> str:
        """The name under which an agent is called; a step that names none gets a plain one."""
        name = self._plain() if name is None else name
        if model is None or self.made[name].model == model:
            return name
        copy = f"{name}@{model}"
        self.made[copy] = msgspec.structs.replace(self.made[name], model=model)
        return copy

    def _plain(self) -> str:
        if not self.default:
            self.default = "default"
            while self.default in self.made:
                self.default += "-agent"
            self.made[self.default] = Agent(max_turns=DEFAULT_TURNS, options=_ANY_COMMAND)
        return self.default


_ANY_COMMAND: dict[str, JsonValue] = {"commands": {"allow": ["*"]}}
"""What `bash` means: any command, in a sandbox in which only the workspace can be written."""


def _has_shell(spec: AgentSpec) -> bool:
    """Whether `bash` is among the tools of an agent, and not among those taken away."""
    has = "tools" not in spec.model_fields_set or _is_shell(spec.tools)
    return has and not _is_shell(spec.disallowed_tools or ())


def _is_shell(names: Iterable[str]) -> bool:
    return any((family := family_of(name)) is not None and family.name == "bash" for name in names)


def _agent(spec: AgentSpec, system: str) -> Agent:
    options = {} if spec.top_p is None else {"top_p": spec.top_p}
    return Agent(
        system=system,
        model=spec.model,
        tools=tuple(spec.tools) if "tools" in spec.model_fields_set else None,
        deny_tools=tuple(spec.disallowed_tools or ()),
        max_turns=spec.max_turns or DEFAULT_TURNS,
        temperature=spec.temperature,
        options={**options, **(_ANY_COMMAND if _has_shell(spec) else {})},
    )
