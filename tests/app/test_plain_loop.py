"""A loop with plain options leads to the same definition as its text, without the validators."""

from itertools import product

import pytest

from loopwright.app.preparing import LoopWish, Wish, loop_definition, plain_definition

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
        wish = Wish(message="Make the tests pass: all of them, on every platform", budget=budget)
        loop = LoopWish(memory=memory, criteria=criteria, max=most, wish=wish, **checks)
        assert plain_definition(loop) == loop_definition(loop)[0]


@pytest.mark.parametrize("name", ["nightly", "é – ü", "x" * 200, None])
def test_plain_definition_has_the_name_of_the_native_one(name: str | None) -> None:
    loop = LoopWish(wish=Wish(message="a\tmessage {{with}} signs\n and lines", name=name))
    assert plain_definition(loop) == loop_definition(loop)[0]


@pytest.mark.parametrize(
    "loop",
    [
        LoopWish(max=0),
        LoopWish(max=1001),
        LoopWish(memory="unknown"),
        LoopWish(manual=True),
        LoopWish(judges=("it is good",)),
        LoopWish(patterns=("done",)),
        LoopWish(signals=("two words",)),
        LoopWish(commands=("a && b",)),
        LoopWish(commands=("A=1 pytest",)),
        LoopWish(commands=("cat $HOME",)),
        LoopWish(commands=(" ",)),
        LoopWish(wish=Wish(name="zero\u200bwidth")),
        LoopWish(wish=Wish(name=" blank")),
        LoopWish(wish=Wish(inputs=("a=b",))),
        LoopWish(wish=Wish(budget="usd=0")),
        LoopWish(wish=Wish(budget="usd=1000001")),
        LoopWish(wish=Wish(budget="tokens=0")),
        LoopWish(wish=Wish(budget="tokens=many")),
        LoopWish(wish=Wish(budget="time=3")),
        LoopWish(wish=Wish(budget="time=366d")),
    ],
)
def test_options_that_can_be_refused_are_left_to_the_native_definition(loop: LoopWish) -> None:
    assert plain_definition(loop) is None
