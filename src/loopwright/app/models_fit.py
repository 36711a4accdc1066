"""Whether the models behind an agent fit what its author asks, told before anything is sent."""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from math import isfinite
from urllib.parse import urlsplit

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.gateway.asking import models_of
from loopwright.gateway.catalogue import Catalogue
from loopwright.gateway.specs import Endpoint, endpoint_of
from loopwright.model.actions import Action, Cycle, Repeat, Step, Steps
from loopwright.model.memory import History
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import JsonValue
from loopwright.ports import ModelCatalogue

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


def _price_problem(said: JsonValue) -> str | None:
    if said is None or said in ("allow", "deny"):
        return None
    if not isinstance(said, dict) or set(said) != {"input_usd", "output_usd"}:
        return "unknown_price must be allow, deny, or {input_usd, output_usd} for a million tokens"
    wrong = [one for one in said.values() if not _is_amount(one)]
    return f"unknown_price: {wrong[0]!r} is no price" if wrong else None


def _limits_problem(limits: JsonValue) -> str | None:
    if not isinstance(limits, dict):
        return "tool_limits must be limits by the name of a tool"
    for tool, said in limits.items():
        if not isinstance(said, dict) or not set(said) <= {"seconds", "at_once", "exclusive"}:
            return f"tool_limits: {tool} may have seconds, at_once and exclusive"
        seconds, at_once = said.get("seconds", 1), said.get("at_once", 1)
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
    said = agent.options.get(WINDOW)
    least = min(said, window) if isinstance(said, int) and said > 0 else window
    return msgspec.structs.replace(agent, options={**agent.options, WINDOW: least})


def _fit_step(step: Step, windows: Mapping[str, int]) -> Step:
    return msgspec.structs.replace(step, action=_fit(step.action, windows))


def _fit(action: Action, windows: Mapping[str, int]) -> Action:
    match action:
        case Repeat(body=Cycle(agent=agent), memory=History() as memory) if agent in windows:
            least = min(memory.window, windows[agent])
            fitted = msgspec.structs.replace(memory, window=least)
            return msgspec.structs.replace(action, memory=fitted)
        case Repeat(body=body):
            return msgspec.structs.replace(action, body=_fit(body, windows))
        case Steps(steps=steps):
            inner = tuple(_fit_step(step, windows) for step in steps)
            return msgspec.structs.replace(action, steps=inner)
        case _:
            return action
