"""Models are looked at before a run: whether they can be asked, may be, and how much they take."""

import pytest

from loopwright.errors import LoopwrightError
from loopwright.model.actions import CallAgent, ModelCycle, Repeat, Step, Steps
from loopwright.model.chat import Pricing
from loopwright.model.checks import Cap
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory
from loopwright.operations.agents.backends import check_models, fit_windows


class Known:
    """Two models with a window."""

    def window(self, model: str) -> int | None:
        return {"a/big": 200_000, "a/small": 8_000}.get(model)

    def price(
        self, model: str, input_tokens: int, output_tokens: int, pricing: Pricing
    ) -> float | None:
        return None


@pytest.mark.parametrize(
    ("spec", "env", "words"),
    [
        pytest.param("model:nobody/x", {}, "names no model", id="provider"),
        pytest.param("model:anthropic/x", {}, "ANTHROPIC_API_KEY", id="key"),
        pytest.param("model:local/x", {}, "LOOPWRIGHT_MODEL_BASE_URL", id="address"),
    ],
)
def test_a_model_that_cannot_be_asked(spec: str, env: dict[str, str], words: str) -> None:
    """What is missing is told before anything begins."""
    with pytest.raises(LoopwrightError, match=words):
        check_models("coder", Agent(spec=spec), env)


@pytest.mark.item("aldo-69")
@pytest.mark.parametrize(
    ("spec", "env", "fits"),
    [
        pytest.param("model:ollama/x", {}, True, id="here"),
        pytest.param(
            "model:local/x",
            {"LOOPWRIGHT_MODEL_BASE_URL": "http://localhost:1"},
            True,
            id="here by name",
        ),
        pytest.param(
            "model:local/x",
            {"LOOPWRIGHT_MODEL_BASE_URL": "http://[::1]:1"},
            True,
            id="here, version six",
        ),
        pytest.param(
            "model:local/x",
            {"LOOPWRIGHT_MODEL_BASE_URL": "http://10.0.0.9:1"},
            False,
            id="another machine",
        ),
        pytest.param("model:openai/x", {"OPENAI_API_KEY": "k"}, False, id="hosted"),
        pytest.param("model:ollama/x,openai/x", {"OPENAI_API_KEY": "k"}, False, id="hosted second"),
        pytest.param(
            "model:local/x",
            {"LOOPWRIGHT_MODEL_BASE_URL": "http://localhost.evil.org"},
            False,
            id="only looks like here",
        ),
    ],
)
def test_sensitive_data_stays_here(spec: str, env: dict[str, str], fits: bool) -> None:
    """An agent for sensitive data is refused a model elsewhere, also as a second choice."""
    agent = Agent(spec=spec, options={"privacy_tier": "sensitive"})
    if fits:
        check_models("coder", agent, env)
    else:
        with pytest.raises(LoopwrightError, match="not on this machine"):
            check_models("coder", agent, env)
    check_models("coder", Agent(spec=spec), env)


def cycles(window: int, agent: str = "coder") -> Repeat:
    return Repeat(
        body=ModelCycle(agent=agent), max=3, until=Cap(), memory=ConversationHistory(window=window)
    )


def windows(plan: Plan) -> list[int]:
    found: list[int] = []
    for step in plan.steps:
        action = step.action
        if isinstance(action, Steps):
            action = action.steps[0].action
        while isinstance(action, Repeat) and isinstance(action.body, Repeat):
            action = action.body
        if isinstance(action, Repeat) and isinstance(action.memory, ConversationHistory):
            found.append(action.memory.window)
    return found


def test_windows_are_those_of_the_models() -> None:
    """The smallest window of an agent's models counts where the author wrote a larger one."""
    agents = {
        "coder": Agent(spec="model:a/big,a/small"),
        "other": Agent(spec="model:a/unknown", options={"context_window": 5}),
        "small": Agent(spec="model:a/big", options={"context_window": 9}),
        "cli": Agent(spec="claude"),
    }
    steps = (
        Step(id="a", action=cycles(128_000)),
        Step(id="b", action=cycles(1_000)),
        Step(id="c", action=Steps(steps=(Step(id="d", action=cycles(128_000)),))),
        Step(id="e", action=Repeat(body=cycles(128_000), max=2, until=Cap())),
        Step(id="f", action=cycles(128_000, "other")),
        Step(id="g", action=CallAgent(agent="coder")),
    )
    plan = fit_windows(Plan(name="t", steps=steps, agents=agents), Known())
    assert windows(plan) == [8_000, 1_000, 8_000, 8_000, 128_000]
    said = {name: agent.options.get("context_window") for name, agent in plan.agents.items()}
    assert said == {"coder": 8_000, "other": 5, "small": 9, "cli": None}


def test_a_plan_without_known_windows_stays_as_it_is() -> None:
    """Nothing is known, so nothing is changed."""
    plan = Plan(name="t", steps=(Step(id="a", action=cycles(7)),), agents={})
    assert fit_windows(plan, Known()) is plan
