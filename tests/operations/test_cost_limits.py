"""Which cost is known: kind of agent, source of its price, and the limit that needs it."""

import pytest

from loopwright.errors import LoopwrightError
from loopwright.kernel.events import Usage
from loopwright.model.actions import CallAgent, Repeat, Step
from loopwright.model.chat import CostSource, Price
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits
from loopwright.operations.cost_limits import CostRules, PriceBook
from loopwright.operations.settings_files import SharedBudget

HERE = {"HOME": "/nonexistent", "LOOPWRIGHT_MODEL_BASE_URL": "", "OPENAI_API_KEY": "x"}
LOCAL = {**HERE, "LOOPWRIGHT_MODEL_BASE_URL": "http://192.168.1.7:8080/v1"}
PRICE = Price(input=1.0, output=10.0)


@pytest.mark.item("rec-23")
@pytest.mark.parametrize(
    ("agent", "prices", "env", "source"),
    [
        (Agent(spec="claude"), {}, HERE, "reported"),
        (Agent(spec="opencode"), {}, HERE, "reported"),
        (Agent(spec="codex"), {}, HERE, "unknown"),
        (Agent(spec="codex"), {"codex": PRICE}, HERE, "configured"),
        (Agent(spec="codex", model="gpt-5-codex"), {}, HERE, "listed"),
        (Agent(spec="codex:-m gpt-5-codex"), {}, HERE, "listed"),
        (Agent(spec="codex:-m nobody"), {}, HERE, "unknown"),
        (Agent(spec="codex:-m nobody"), {"openai/nobody": PRICE}, HERE, "listed"),
        (Agent(spec="gemini"), {}, HERE, "listed"),
        (Agent(spec="gemini", model="nobody"), {}, HERE, "unknown"),
        (Agent(spec="acp:some-agent"), {}, HERE, "unknown"),
        (Agent(spec="acp:claude-agent-acp"), {}, HERE, "reported"),
        (Agent(spec="command:./a"), {}, HERE, "unknown"),
        (Agent(spec="command:./a"), {"command:./a": Price(call=0.1)}, HERE, "configured"),
        (Agent(spec="command:./a"), {"command:./a": PRICE}, HERE, "unknown"),
        (Agent(spec="jsonl:./a"), {}, HERE, "reported"),
        (Agent(spec="script:/a"), {}, HERE, "script"),
        (Agent(spec="model:openai/gpt-4o"), {}, HERE, "listed"),
        (Agent(spec="model:openai/gpt-4o"), {}, LOCAL, "listed"),
        (Agent(spec="model:openai/nobody"), {}, HERE, "unknown"),
        (Agent(spec="model:openai/nobody"), {"openai/nobody": PRICE}, HERE, "configured"),
        (Agent(spec="model:openai/nobody"), {}, LOCAL, "local"),
        (Agent(spec="model:ollama/llama3"), {}, HERE, "local"),
        (Agent(spec="model:ollama/llama3"), {"ollama/llama3": PRICE}, HERE, "configured"),
        (Agent(spec="model:openai/gpt-4o,openai/nobody"), {}, HERE, "unknown"),
    ],
    ids=lambda value: value.spec if isinstance(value, Agent) else None,
)
def test_cost_source_of_an_agent(
    agent: Agent, prices: dict[str, Price], env: dict[str, str], source: CostSource
) -> None:
    """Reported, priced by the settings or the list, free on this machine, or unknown."""
    assert PriceBook(prices, env).source(agent) == source


TOKENS = Usage(input_tokens=1_000_000, output_tokens=100_000, unpriced=1)


@pytest.mark.item("rec-23")
@pytest.mark.parametrize(
    ("agent", "model", "prices", "usage", "expected"),
    [
        pytest.param("codex", "gpt-5", {}, TOKENS, (2.25, 0), id="listed"),
        pytest.param("codex", "nobody", {}, TOKENS, (0.0, 1), id="unknown model"),
        pytest.param("codex", "", {}, TOKENS, (0.0, 1), id="no model"),
        pytest.param("codex", "", {"codex": PRICE}, TOKENS, (2.0, 0), id="price of the CLI"),
        pytest.param("codex", "gpt-5", {"openai/gpt-5": PRICE}, TOKENS, (2.0, 0), id="configured"),
        pytest.param("jsonl:./a", "openai/gpt-5", {}, TOKENS, (2.25, 0), id="named provider"),
        pytest.param("jsonl:./a", "", {"jsonl:./a": PRICE}, TOKENS, (2.0, 0), id="by program"),
        pytest.param("jsonl:./a", "", {}, Usage(unpriced=1), (0.0, 1), id="nothing reported"),
        pytest.param(
            "command:./a",
            "",
            {"command:./a": Price(call=0.5)},
            Usage(unpriced=1),
            (0.5, 0),
            id="price of a call",
        ),
        pytest.param(
            "codex",
            "gpt-5",
            {},
            Usage(input_tokens=1_000_000, unpriced=1, cache_read_tokens=1_000_000),
            (0.125, 0),
            id="cached tokens",
        ),
        pytest.param("claude", "x", {}, Usage(usd=0.3, input_tokens=9), (0.3, 0), id="reported"),
    ],
)
def test_price_of_a_call(
    agent: str, model: str, prices: dict[str, Price], usage: Usage, expected: tuple[float, int]
) -> None:
    """What the agent reports stays; tokens are priced for the model that it names."""
    priced = PriceBook(prices, HERE).price(Agent(spec=agent), model, usage)
    assert (priced.usd, priced.unpriced) == (pytest.approx(expected[0]), expected[1])
    assert priced.tokens == usage.tokens


def plan_of(where: str) -> tuple[Plan, SharedBudget]:
    """A plan with one loop of one agent, and a limit in USD at one place."""
    usd = Limits(usd=1.0)
    agent = Agent(spec="command:./a", max_usd=1.0 if where == "agent" else None)
    loop = Repeat(body=CallAgent(agent="a"), max=2, limits=usd if where == "loop" else Limits())
    step = Step(id="s", action=loop, limits=usd if where == "step" else Limits())
    plan = Plan(
        name="p", steps=(step,), agents={"a": agent}, limits=usd if where == "run" else Limits()
    )
    return plan, SharedBudget(usd_per_day=1.0 if where == "day" else None)


@pytest.mark.item("rec-24")
@pytest.mark.parametrize("where", ["run", "step", "loop", "agent", "day", "none"])
def test_usd_limit_anywhere_is_refused_for_an_unknown_cost(where: str) -> None:
    """Every place that can limit USD is looked at; the refusal names the limit and the agent."""
    plan, budget = plan_of(where)
    rules = CostRules(book=PriceBook({}, HERE), budget=budget)
    if where == "none":
        assert rules.covered(plan) == plan
        return
    with pytest.raises(LoopwrightError) as refused:
        rules.covered(plan)
    assert refused.value.code == "unknown-cost"
    assert "agent 'a'" in refused.value.message
    assert rules.covered(plan, allow=True).uncovered == ("a",)
    priced = CostRules(book=PriceBook({"command:./a": Price(call=0.1)}, HERE), budget=budget)
    assert priced.covered(plan).uncovered == ()


@pytest.mark.item("rec-26")
def test_enforcement_names_each_limit_and_how() -> None:
    """What is enforced live, after each call, or not at all."""
    plan, budget = plan_of("run")
    rules = CostRules(book=PriceBook({}, HERE), budget=budget)
    [line] = rules.enforcement(plan)
    assert line.startswith("the budget usd=1: not enforced (the cost of a is unknown)")
