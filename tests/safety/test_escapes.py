"""Programs in a sandbox: none of the known escapes works, at any level, for root and for others."""

import re
from pathlib import Path

import pytest

from loopwright.agents.sandbox import bubblewrap
from tests.safety.agent_program.__main__ import ESCAPES
from tests.safety.identities import IDENTITIES, missing
from tests.safety.sandbox_stage import PLACES, Order, perform_as

pytestmark = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
CONFINED = ("guard", "workspace", "readonly", "none")
every_identity = pytest.mark.parametrize(
    "identity",
    [
        pytest.param(
            one, marks=pytest.mark.skipif(missing(one) is not None, reason=str(missing(one)))
        )
        for one in IDENTITIES
    ],
)


@pytest.mark.item("bnd-prf-1")
@pytest.mark.parametrize("place", PLACES)
@every_identity
def test_no_escape_succeeds(identity: str, place: str) -> None:
    """Wherever the data directory is, something blocks each escape at each level."""
    orders = [Order("command", level, "escapes", inside=place == "beside") for level in CONFINED]
    answers = perform_as(identity, orders, place)
    for order, answer in zip(orders, answers, strict=True):
        found = answer.get("found", answer)
        assert set(found) == set(ESCAPES), f"{order.level}: {found}"
        bad = {name: said for name, said in found.items() if said.startswith(("+", "!"))}
        assert bad == {}, f"{order.level}: {len(bad)} escapes succeeded or are broken"


@pytest.mark.item("bnd-prf-1")
@every_identity
def test_escapes_succeed_without_a_sandbox(identity: str) -> None:
    """At `off` those succeed that do so everywhere: the attempts themselves work."""
    expected = [name for name, one in ESCAPES.items() if one.works_at_off]
    (answer,) = perform_as(identity, [Order("command", "off", "escapes", expected)])
    assert {n: said for n, said in answer["found"].items() if not said.startswith("+")} == {}
    assert len(expected) >= 20


def test_every_escape_says_what_blocks_it() -> None:
    """At least 60 escapes, each with a title and what blocks it, and the page has their number."""
    assert len(ESCAPES) >= 60
    assert all(one.blocked_by and one.title for one in ESCAPES.values())
    assert len({one.title for one in ESCAPES.values()}) == len(ESCAPES)
    (number,) = re.findall(r"(\d+) escapes", PAGE.read_text(encoding="utf-8"))
    assert int(number) == len(ESCAPES)
