"""What whoever starts a run lets its chat models do."""

import asyncio

import pytest

from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.actions import CallAgent, Step
from loopwright.model.chat import CallPart, RequestedCall
from loopwright.model.plan import Agent, Plan
from loopwright.operations.agents.permissions import ASK, DENIED, Rights, with_rights
from loopwright.operations.agents.tools import Denying

TOOLS = ("fs.read", "shell.exec", "issues.create")


def given(rights: Rights, *, asks: bool, spec: str = "model:a/b") -> Agent:
    plan = Plan(
        name="t",
        steps=(Step(id="a", action=CallAgent(agent="coder")),),
        agents={"coder": Agent(spec=spec, tools=TOOLS)},
        settings={"tools": ASK} if asks else {},
    )
    return with_rights(plan, rights).agents["coder"]


@pytest.mark.parametrize(
    ("rights", "held", "refused", "denied"),
    [
        pytest.param(Rights(), (), TOOLS, (), id="nobody there"),
        pytest.param(Rights(attended=True), TOOLS, (), (), id="somebody there"),
        pytest.param(
            Rights(allow=("read",), attended=True),
            ("shell.exec", "issues.create"),
            (),
            (),
            id="one allowed, by its short name",
        ),
        pytest.param(Rights(allow=("all",)), (), (), (), id="all allowed"),
        pytest.param(
            Rights(allow=("all",), deny=("create",)), (), (), ("issues.create",), id="one denied"
        ),
        pytest.param(
            Rights(file_tools_only=True),
            (),
            (),
            ("shell.exec", "issues.create"),
            id="file tools only",
        ),
        pytest.param(
            Rights(ask=("exec",)), ("shell.exec",), ("fs.read", "issues.create"), (), id="one asked"
        ),
        pytest.param(Rights(ask=("all",)), TOOLS, (), (), id="all asked"),
        pytest.param(
            Rights(file_tools_only=True, attended=True, strict=True),
            ("fs.read",),
            (),
            ("shell.exec", "issues.create"),
            id="a sandbox from elsewhere takes, and gives nothing unasked",
        ),
    ],
)
@pytest.mark.item("zenflow-71")
def test_a_definition_that_asks(
    rights: Rights, held: tuple[str, ...], refused: tuple[str, ...], denied: tuple[str, ...]
) -> None:
    """A tool that was not allowed is asked about, or refused where nobody is there."""
    agent = given(rights, asks=True)
    assert tuple(agent.approvals) == held
    assert tuple(agent.options.get(DENIED, ())) == refused  # type: ignore[arg-type]
    assert agent.deny_tools == denied


@pytest.mark.parametrize(
    ("rights", "denied"),
    [
        pytest.param(Rights(), (), id="nothing said"),
        pytest.param(Rights(deny=("fs.read",)), ("fs.read",), id="denied"),
        pytest.param(
            Rights(file_tools_only=True), ("shell.exec", "issues.create"), id="file tools only"
        ),
    ],
)
def test_a_definition_that_does_not_ask(rights: Rights, denied: tuple[str, ...]) -> None:
    """Its agents have what it gives them; a start can only take from that."""
    agent = given(rights, asks=False)
    assert (agent.deny_tools, agent.approvals, agent.options) == (denied, {}, {})


def test_programs_cannot_be_held_to_it() -> None:
    """A start that denies something to a program is refused; one that allows is not concerned."""
    with pytest.raises(LoopwrightError, match="chat models alone"):
        given(Rights(deny=("fs.read",)), asks=True, spec="claude")
    agent = given(Rights(allow=("all",)), asks=True, spec="claude")
    assert (agent.deny_tools, agent.options) == ((), {})


@pytest.mark.parametrize("asks", [True, False])
def test_nothing_is_allowed_from_elsewhere(asks: bool) -> None:
    """Whoever may only take from what a definition gives cannot let it pass unasked."""
    with pytest.raises(NotAllowed, match="without a question") as refused:
        given(Rights(allow=("fs.read",), attended=True, strict=True), asks=asks)
    assert refused.value.code == "widens"


def test_a_sandbox_is_all_there_is() -> None:
    """With an allow list besides it, one of the two was not meant."""
    with pytest.raises(LoopwrightError, match="exclude each other"):
        given(Rights(file_tools_only=True, allow=("fs.read",)), asks=True)


WHOLE = Plan(
    name="t",
    steps=(Step(id="a", action=CallAgent(agent="coder")),),
    agents={"coder": Agent(spec="model:a/b", tools=("issues.*",))},
    settings={"tools": ASK},
)


@pytest.mark.item("aldo-30", "zenflow-71")
@pytest.mark.parametrize("word", ["issues.close", "close"])
def test_denying_one_of_a_whole_server(word: str) -> None:
    """What only the server lists can be denied by name."""
    agent = with_rights(WHOLE, Rights(allow=("all",), deny=(word,))).agents["coder"]
    assert agent.deny_tools == (word,)


@pytest.mark.item("zenflow-71")
def test_allowing_a_whole_server() -> None:
    """All of it is allowed by the name that grants it; one of its tools alone allows nothing."""
    whole = with_rights(WHOLE, Rights(allow=("issues.*",))).agents["coder"]
    assert whole.options.get(DENIED, []) == []
    one = with_rights(WHOLE, Rights(allow=("issues.create",))).agents["coder"]
    assert one.options[DENIED] == ["issues.*"]


@pytest.mark.item("zenflow-71")
def test_nobody_is_there_for_a_whole_server() -> None:
    """Each of its tools is refused, whatever it is called; others are not."""

    class Any:
        async def resolve(self, call: CallPart) -> RequestedCall:
            return RequestedCall(id=call.id, tool=call.tool)

    tools = Denying(Any(), frozenset({"issues.*"}))  # type: ignore[arg-type]
    for tool, refused in (("issues.close", True), ("issuesx.close", False), ("fs.read", False)):
        wanted = asyncio.run(tools.resolve(CallPart(id="1", tool=tool, args="{}")))
        assert bool(wanted.problem) == refused
    with pytest.raises(LoopwrightError, match="denied"):
        asyncio.run(tools.run("issues.close", {}))
