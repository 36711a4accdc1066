"""Sandbox levels: their order, and which one applies to a call."""

from itertools import pairwise
from typing import get_args

import pytest

from loopwright.model.plan import Access
from loopwright.model.sandbox import (
    LEVEL_OF_ACCESS,
    SANDBOX_LEVELS,
    SandboxLevel,
    effective_level,
    is_at_least,
    strictest,
)

CASES = [
    pytest.param("guard", None, None, False, "guard", id="as the run"),
    pytest.param("off", None, None, False, "off", id="a person chooses off"),
    pytest.param("off", "workspace", None, False, "workspace", id="the agent is stricter"),
    pytest.param("readonly", "workspace", None, False, "readonly", id="the run is stricter"),
    pytest.param("off", None, "full", False, "workspace", id="full"),
    pytest.param("guard", None, "readonly-shell", False, "readonly", id="readonly-shell"),
    pytest.param("guard", None, "readonly", False, "readonly", id="readonly"),
    pytest.param("guard", "workspace", "minimal", False, "none", id="minimal"),
    pytest.param("off", None, None, True, "guard", id="no network needs a sandbox"),
    pytest.param(None, None, None, False, "guard", id="nothing is recorded"),
]


@pytest.mark.item("bnd-l1")
@pytest.mark.parametrize(("chosen", "requested", "access", "offline", "level"), CASES)
def test_the_strictest_level_applies(
    chosen: SandboxLevel | None,
    requested: SandboxLevel | None,
    access: Access | None,
    offline: bool,
    level: SandboxLevel,
) -> None:
    """Nothing but the level of the run makes a call weaker."""
    found = effective_level(chosen, requested=requested, access=access, offline=offline)
    assert found == level


def test_levels_are_in_order() -> None:
    """From the weakest to the strictest, and the strictest of several is the last of them."""
    for weaker, stricter in pairwise(SANDBOX_LEVELS):
        assert strictest(stricter, weaker) == stricter
        assert is_at_least(stricter, weaker)
        assert not is_at_least(weaker, stricter)
    assert strictest() == strictest(None) == "off"


def test_every_access_has_a_level() -> None:
    """A role cannot have an access that no level stands for."""
    assert set(LEVEL_OF_ACCESS) == set(get_args(Access))
