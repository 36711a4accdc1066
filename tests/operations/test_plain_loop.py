"""A loop with plain options leads to the same definition as its text, without the validators."""

from itertools import product

import pytest

from loopwright.errors import LoopwrightError
from loopwright.operations.loop_definition import LoopOptions, loop_definition, plain_definition
from loopwright.operations.run_request import StartRun

CHECKS: tuple[dict[str, tuple[str, ...]], ...] = (
    {},
    {"commands": ("pytest -q",)},
    {"commands": ("make test", "ruff check .")},
    {"signals": ("DONE",)},
    {"signals": ("DONE",), "commands": ("true",)},
)
BUDGETS = (None, "usd=5", "usd=0.5,tokens=2M,time=1h30m", "tokens=120000", "time=90s")


@pytest.mark.parametrize("checks", CHECKS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_plain_definition_is_the_native_definition(
    checks: dict[str, tuple[str, ...]], budget: str | None
) -> None:
    memories = ("progress-log", "previous-output", "session", "none")
    for memory, criteria, most in product(memories, (True, False), (1, 10, 1000)):
        request = StartRun(
            message="Make the tests pass: all of them, on every platform", budget=budget
        )
        loop = LoopOptions(memory=memory, criteria=criteria, max=most, **checks)
        assert plain_definition(request, loop) == loop_definition(request, loop)[0]


@pytest.mark.parametrize("name", ["nightly", "é – ü", "x" * 200, None])
def test_plain_definition_has_the_name_of_the_native_one(name: str | None) -> None:
    request, loop = (
        StartRun(message="a\tmessage {{with}} signs\n and lines", name=name),
        LoopOptions(),
    )
    assert plain_definition(request, loop) == loop_definition(request, loop)[0]


@pytest.mark.parametrize(
    "loop",
    [
        LoopOptions(max=0),
        LoopOptions(max=1001),
        LoopOptions(memory="unknown"),
        LoopOptions(manual=True),
        LoopOptions(judges=("it is good",)),
        LoopOptions(patterns=("done",)),
        LoopOptions(signals=("two words",)),
        LoopOptions(commands=("a && b",)),
        LoopOptions(commands=("A=1 pytest",)),
        LoopOptions(commands=("cat $HOME",)),
        LoopOptions(commands=(" ",)),
    ],
)
def test_options_that_can_be_refused_are_left_to_the_native_definition(loop: LoopOptions) -> None:
    assert plain_definition(StartRun(), loop) is None


@pytest.mark.parametrize(
    "request_",
    [
        StartRun(name="zero\u200bwidth"),
        StartRun(name=" blank"),
        StartRun(inputs={"a": "b"}),
    ],
)
def test_requests_that_can_be_refused_are_left_to_the_native_definition(request_: StartRun) -> None:
    assert plain_definition(request_, LoopOptions()) is None


@pytest.mark.parametrize(
    "budget", ["usd=0", "usd=1000001", "tokens=0", "tokens=many", "time=3", "time=366d"]
)
def test_wrong_budget_is_refused_in_the_same_words_with_and_without_validators(budget: str) -> None:
    request, loop = StartRun(message="Make the tests pass", budget=budget), LoopOptions()
    refusals = []
    for definition in (plain_definition, loop_definition):
        with pytest.raises(LoopwrightError, match="--budget: ") as refused:
            definition(request, loop)
        refusals.append((refused.value.code, refused.value.message, refused.value.hint))
    assert refusals[0] == refusals[1]
