"""Agent backends of a plan: the backend, model and inputs of each agent, decided before the start.

Also checks whether a model has the capabilities and options that the definition asks for,
before anything is sent to it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, assert_never
from urllib.parse import urlsplit

import msgspec

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.specs import CHAT_WORDS, BadSpec, Spec, parse_spec, unfit_agent
from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.gateway.models import Catalogue, Endpoint, endpoint_of
from loopwright.gateway.turns import models_of
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    ModelCycle,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import Goal, Judge, leaves
from loopwright.model.plan import Agent, Coordinator, Input, Plan
from loopwright.model.policy import ConversationHistory, StageOutputs
from loopwright.model.record import JsonValue
from loopwright.operations.agents.programs import PREFIX, plugin_spec
from loopwright.operations.agents.tool_grants import asking, check_tools, in_own_tool_names
from loopwright.operations.dialects import PORTABLE
from loopwright.ports import ModelCatalogue
from loopwright.syntax.document import suggest
from loopwright.syntax.notations import CommandFault, split_command

WINDOW = "context_window"


UNUSED_MODEL = "unused_model"
"""Where an agent's options name the model of its definition that its program does not have."""
_VENDORS = {
    "claude": re.compile(r"claude"),
    "codex": re.compile(r"gpt-|\bo[1-9]\b|codex"),
    "gemini": re.compile(r"gemini"),
}


def with_own_model(kind: str, agent: Agent) -> Agent:
    """The agent with its model under the name that a coding CLI of one vendor knows: of
    `bedrock/anthropic.claude-sonnet-4-6` that is `claude-sonnet-4-6`. A model of another vendor is
    left out, so that the program uses its own; the start says so.
    """
    model = agent.model or ""
    if kind not in _VENDORS or not any(one.search(model) for one in _VENDORS.values()):
        return agent
    found = _VENDORS[kind].search(model)
    if found is not None:
        own = model[found.start() :] if "/" in model else model
        return msgspec.structs.replace(agent, model=own)
    options = {**agent.options, UNUSED_MODEL: model}
    return msgspec.structs.replace(agent, model=None, options=options)


def check_options(name: str, agent: Agent) -> None:
    """What the engine itself reads of an agent's options is as it can be read. A price that is
    none would switch a budget off.
    """
    problem = _price_problem(agent.options.get("unknown_price"))
    limits = agent.options.get("tool_limits")
    if problem is None and limits is not None:
        problem = _limits_problem(limits)
    if problem is not None:
        raise LoopwrightError(f"agent {name!r}: options.{problem}", code="bad-option")


def _price_problem(configured: JsonValue) -> str | None:
    if configured is None or configured in ("allow", "deny"):
        return None
    if not isinstance(configured, dict) or set(configured) != {"input_usd", "output_usd"}:
        return "unknown_price must be allow, deny, or {input_usd, output_usd} for a million tokens"
    wrong = [one for one in configured.values() if not _is_amount(one)]
    return f"unknown_price: {wrong[0]!r} is not a price" if wrong else None


def _limits_problem(limits: JsonValue) -> str | None:
    if not isinstance(limits, dict):
        return "tool_limits must be limits by the name of a tool"
    for tool, configured in limits.items():
        if not isinstance(configured, dict) or not set(configured) <= {
            "seconds",
            "at_once",
            "exclusive",
        }:
            return f"tool_limits: {tool} may have seconds, at_once and exclusive"
        seconds, at_once = configured.get("seconds", 1), configured.get("at_once", 1)
        if not _is_amount(seconds) or not seconds or not isinstance(at_once, int) or at_once < 1:
            return f"tool_limits: {tool} needs seconds above 0 and at_once of at least 1"
    return None


def _is_amount(value: JsonValue) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isfinite(value) and value >= 0


def check_models(name: str, agent: Agent, env: Mapping[str, str] | None = None) -> None:
    """Each model can be asked from here, and is allowed to see what the agent is given."""
    env = os.environ if env is None else env
    for model in models_of(agent):
        to = endpoint_of(model, env)
        if not isinstance(to, Endpoint):
            raise LoopwrightError(f"agent {name!r}: {to.detail}", code="bad-agent")
        if agent.options.get("privacy_tier") == "sensitive" and not _is_here(to.url):
            raise LoopwrightError(
                f"agent {name!r} handles sensitive data, and {model} is not on this machine",
                code="bad-agent",
                hint="give it a local model, for example --agent model:ollama/NAME",
            )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fit_windows(plan: Plan, catalogue: ModelCatalogue | None = None) -> Plan:
    """The plan with windows that the models behind its agents really have. A number that its
    author wrote is kept where it is the smaller one.
    """
    known = catalogue or Catalogue()
    windows = {
        name: window
        for name, agent in plan.agents.items()
        if agent.is_chat and (window := _window(agent, known)) is not None
    }
    if not windows:
        return plan
    agents = {
        name: _with_window(agent, windows[name]) if name in windows else agent
        for name, agent in plan.agents.items()
    }
    steps = tuple(_fit_step(step, windows) for step in plan.steps)
    return msgspec.structs.replace(plan, agents=agents, steps=steps)


def _window(agent: Agent, known: ModelCatalogue) -> int | None:
    """The smallest window among the models: any of them may have to answer."""
    found = [known.window(model) for model in models_of(agent)]
    return min((one for one in found if one is not None), default=None)


def _with_window(agent: Agent, window: int) -> Agent:
    configured = agent.options.get(WINDOW)
    least = min(configured, window) if isinstance(configured, int) and configured > 0 else window
    return msgspec.structs.replace(agent, options={**agent.options, WINDOW: least})


def _fit_step(step: Step, windows: Mapping[str, int]) -> Step:
    return msgspec.structs.replace(step, action=_fit_agent(step.action, windows))


def _fit_agent(action: Action, windows: Mapping[str, int]) -> Action:
    match action:
        case Repeat(body=ModelCycle(agent=agent), memory=ConversationHistory() as memory) if (
            agent in windows
        ):
            least = min(memory.window, windows[agent])
            fitted = msgspec.structs.replace(memory, window=least)
            return msgspec.structs.replace(action, memory=fitted)
        case Repeat(body=body):
            return msgspec.structs.replace(action, body=_fit_agent(body, windows))
        case Steps(steps=steps):
            inner = tuple(_fit_step(step, windows) for step in steps)
            return msgspec.structs.replace(action, steps=inner)
        case CallAgent() | ModelCycle() | RunCommand() | RunScript():
            return action
        case AskPerson() | Wait() | StopRun() | FailStep():
            return action
        case _:
            assert_never(action)


class Fallback(NamedTuple):
    """The settings for agents that were not chosen explicitly."""

    agent: str | None = None
    models: Mapping[str, str] = MappingProxyType({})  # agents by tier, alias or provider


NO_FALLBACK = Fallback()
PROGRAM_KINDS = ("acp", "command", "jsonl")
"""Kinds of agents that name a command line."""
TIERS = {"small": "haiku", "medium": "sonnet", "large": "opus"}
"""Sizes of models, with those of the CLI `claude`."""
COORDINATOR = "coordinator"
"""The name of an agent that coordinates, in a definition and on the command line."""


def bind_agents(
    plan: Plan,
    *,
    default: str | None,
    named: Mapping[str, str],
    base: Path,
    cwd: Path,
    fallback: Fallback = NO_FALLBACK,
) -> Plan:
    """Give every agent of a plan a spec that can be started.

    A named choice overrides the default, the default overrides the file, and that overrides the
    fallback of the settings. Files of the definition are looked for beside it (`base`), those of
    the command line in the current folder (`cwd`). A coordinator that is named for a plan without
    one is its coordinator.
    """
    if COORDINATOR in named and COORDINATOR not in plan.agents and plan.coordinator is None:
        plan = msgspec.structs.replace(plan, coordinator=Coordinator(agent=COORDINATOR))
    known = set(plan.agents) | _called(plan)
    for name in named:
        if name not in known:
            near = suggest(name, sorted(known))
            hint = f"did you mean {near}?" if near else f"it has {', '.join(sorted(known))}"
            raise LoopwrightError(f"no agent {name!r} here", code="unknown-agent", hint=hint)
    bound: dict[str, Agent] = {}
    conversing = _conversing(plan)
    for name in sorted(known):
        agent = plan.agents.get(name, Agent())
        chosen = named.get(name) or default
        if plan.dialect in PORTABLE:
            agent = resolve_model(name, agent, chosen, fallback)
        given = named.get(name) or default or (None if agent.spec else fallback.agent)
        spec, place = (given, cwd) if given else (agent.spec, base)
        if given:
            _refuse_shell_syntax(name, given)
        found = _checked(name, spec, place, chats=name in conversing)
        agent = msgspec.structs.replace(agent, spec=found)
        bound[name] = _fit(name, _loosened(agent) if plan.dialect in PORTABLE else agent)
    for name in conversing:
        _check_chat(name, bound[name])
    bound_plan = msgspec.structs.replace(plan, agents=bound)
    return fit_windows(bound_plan) if any(one.is_chat for one in bound.values()) else bound_plan


def resolve_model(name: str, agent: Agent, chosen: str | None, fallback: Fallback) -> Agent:
    """An agent whose provider and model are names that any machine may map to its own: a tier, an
    alias, a provider. What the settings map, they decide; what nothing maps is named in an error.
    """
    provider, model, models = agent.spec, agent.model, fallback.models
    if chosen is not None:
        kind = chosen.partition(":")[0].strip()
        keeps = kind == (provider or kind) and not _is_portable(model)
        return agent if keeps else msgspec.structs.replace(agent, model=None)
    keys = (f"{provider}/{model}", model or "", provider or "")
    mapped = next((models[key] for key in keys if key in models), None)
    if mapped is not None:
        kept = None if _is_portable(model) or mapped.startswith("model:") else model
        return msgspec.structs.replace(agent, spec=mapped, model=kept)
    if model is not None and model.startswith("@"):
        raise LoopwrightError(
            f"agent {name!r}: the model alias {model} is not defined",
            code="no-agent",
            hint=f'give --agent {name}=SPEC, or add "{model}" = "SPEC" to [models] in the settings',
        )
    if provider is not None and isinstance(parse_spec(provider), BadSpec):
        raise LoopwrightError(
            f"agent {name!r}: Loopwright has no agent for the provider {provider!r}",
            code="no-agent",
            hint=f"give --agent SPEC (or --agent {name}=SPEC), or add "
            f'"{provider}" = "SPEC" to [models] in the settings',
        )
    if model in TIERS:
        is_claude = (provider or fallback.agent or "").partition(":")[0] == "claude"
        return msgspec.structs.replace(agent, model=TIERS[model] if is_claude else None)
    return agent


def _is_portable(model: str | None) -> bool:
    return model is not None and (model in TIERS or model.startswith("@"))


def _loosened(agent: Agent) -> Agent:
    """The agent without named tools, where its program cannot be confined to them. Who starts the
    run is warned; see `unsupported_options`.
    """
    spec = parse_spec(agent.spec or "")
    if not isinstance(spec, Spec) or spec.kind not in CLIS or unfit_agent(spec, agent) is None:
        return agent
    free = msgspec.structs.replace(agent, tools=None, deny_tools=())
    return free if unfit_agent(spec, free) is None else agent


def _refuse_shell_syntax(name: str, text: str) -> None:
    """Refuse a command line that only a shell would understand, as definitions do."""
    kind, _, line = text.partition(":")
    words = split_command(line.strip()) if kind.strip() in PROGRAM_KINDS and line.strip() else []
    if isinstance(words, CommandFault):
        raise LoopwrightError(
            f"agent {name!r}: {words.message}",
            code=words.code,
            hint="put the commands into a script file, and name that file" if words.hint else None,
        )


def _checked(name: str, text: str | None, place: Path, *, chats: bool) -> str:
    if not text:
        kinds = "claude, model:PROVIDER/NAME or command:./my-agent"
        kinds = "model:PROVIDER/NAME" if chats else kinds
        raise LoopwrightError(
            f"no {'model' if chats else 'agent'} is specified for {name!r}",
            code="no-agent",
            hint=f"add --agent SPEC, for example {kinds}; or name it in the definition or as "
            "`agent` in the settings",
        )
    if text.startswith(PREFIX):
        text = plugin_spec(text)
    spec = parse_spec(text)
    if isinstance(spec, BadSpec):
        raise LoopwrightError(spec.message, code="bad-agent", hint=spec.hint)
    if spec.kind != "script":
        return text
    return f"script:{(place / spec.file).absolute()}"


def check_scripts(agents: Mapping[str, Agent]) -> None:
    """Refuse scripts that do not exist. This comes after the permission to read them: otherwise the
    answer would say which files exist on a server.
    """
    for name, agent in agents.items():
        spec = parse_spec(agent.spec) if agent.spec else None
        if isinstance(spec, Spec) and spec.kind == "script" and not Path(spec.file).is_file():
            raise LoopwrightError(
                f"agent {name!r}: no file {spec.file}",
                code="bad-agent",
                hint="name an existing script",
            )


def _fit(name: str, agent: Agent) -> Agent:
    """The agent, if its backend can enforce all of its settings."""
    spec = parse_spec(agent.spec or "")
    assert isinstance(spec, Spec), "it was checked"
    agent = with_own_model(spec.kind, in_own_tool_names(spec.kind, agent))
    if agent.is_chat and agent.permission in CHAT_WORDS:
        agent = msgspec.structs.replace(agent, permission=CHAT_WORDS[agent.permission])
    problem = unfit_agent(spec, agent)
    if problem is not None:
        raise LoopwrightError(f"agent {name!r}: {problem}", code="bad-agent")
    if agent.is_chat:
        check_options(name, agent)
        check_models(name, agent)
        check_tools(name, agent)
        return asking(agent)
    return agent


def _check_chat(name: str, agent: Agent) -> None:
    """An agent whose turns the engine has itself must be a chat model."""
    if not agent.is_chat:
        raise LoopwrightError(
            f"agent {name!r} is called turn by turn; {agent.spec!r} only runs whole tasks",
            code="bad-agent",
            hint="give it a chat model: --agent model:PROVIDER/NAME",
        )


def _conversing(plan: Plan) -> set[str]:
    """The agents in a cycle."""
    return {name for step in plan.steps for name in _in_cycles(step.action)}


def _in_cycles(action: Action) -> Iterator[str]:
    match action:
        case ModelCycle(agent=name):
            yield name
        case Repeat(body=body):
            yield from _in_cycles(body)
        case Steps(steps=steps):
            for step in steps:
                yield from _in_cycles(step.action)
        case CallAgent() | RunCommand() | RunScript() | AskPerson():
            return
        case Wait() | StopRun() | FailStep():
            return
        case _:
            assert_never(action)


def _called(plan: Plan) -> set[str]:
    names: set[str] = {plan.coordinator.agent} if plan.coordinator is not None else set()
    for step in plan.steps:
        _collect(step, names)
    return names


def _collect(step: Step, names: set[str]) -> None:
    _collect_action(step.action, names)


def _collect_action(action: Action, names: set[str]) -> None:
    match action:
        case CallAgent(agent=name) | ModelCycle(agent=name):
            names.add(name)
        case Repeat(body=body, until=until):
            _collect_action(body, names)
            judges = [leaf for leaf in leaves(until) if isinstance(leaf, Judge | Goal)]
            names.update(leaf.agent for leaf in judges)
        case AskPerson(on_reject=Rework(agent=name)):
            names.add(name)
        case Steps(steps=steps):
            for step in steps:
                _collect(step, names)
        case AskPerson() | RunCommand() | RunScript() | Wait() | StopRun() | FailStep():
            pass
        case _:
            assert_never(action)


def unknown_input(name: str, known: Sequence[str]) -> LoopwrightError:
    """The refusal of an input that a definition does not declare; `known` are those it does."""
    near = suggest(name, known)
    there = f"its inputs are {', '.join(known)}" if known else "the definition has no inputs"
    hint = f"did you mean {near}?" if near else there
    return LoopwrightError(f"unknown input {name!r}", code="unknown-input", hint=hint)


def bind_inputs(plan: Plan, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The inputs of a run: what was given, then defaults; unknown and missing ones are refused."""
    for name in given:
        if name not in plan.inputs:
            raise unknown_input(name, sorted(plan.inputs))
    missing = [n for n, i in plan.inputs.items() if i.required and n not in given]
    if missing:
        raise LoopwrightError(
            f"missing input: {', '.join(missing)}",
            code="missing-input",
            hint=_missing_hint(missing[0], plan.inputs[missing[0]]),
        )
    return {name: given.get(name, item.default) for name, item in plan.inputs.items()}


def _missing_hint(name: str, wanted: Input) -> str:
    about = f" ({wanted.description})" if wanted.description else ""
    return f"give --input {name}=VALUE{about}"


def check_not_empty(message: str) -> None:
    """Refuse a message that says nothing."""
    if not message.strip():
        raise DefinitionError("the message is empty: describe the task")


def check_message(plan: Plan, message: str | None) -> str:
    """The run's message; something must say what to do."""
    if message is not None and message.strip():
        return message
    if message is not None:
        check_not_empty(message)
    if not plan.message and _needs_message(plan):
        raise DefinitionError("no message: give one after the file, or a goal in the definition")
    return ""


def _needs_message(plan: Plan) -> bool:
    """Whether some agent is called without a prompt of its own."""

    def bare(action: Action) -> bool:
        match action:
            case CallAgent(prompt=prompt) | ModelCycle(prompt=prompt):
                return not prompt
            case Repeat(memory=StageOutputs()):
                return True  # every stage receives the goal
            case Repeat(body=body):
                return bare(body)
            case Steps(steps=steps):
                return any(bare(step.action) for step in steps)
            case RunCommand() | RunScript() | AskPerson() | Wait() | StopRun() | FailStep():
                return False
            case _:
                assert_never(action)

    return any(bare(step.action) for step in plan.steps)
