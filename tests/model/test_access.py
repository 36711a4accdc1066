"""Access levels: what they mean, and which of two counts."""

import pytest

from loopwright.model.access import (
    DENIED_TOOLKITS,
    LEVELS,
    Reach,
    has_tracker,
    is_offline,
    is_tracker,
    narrower,
    network_problem,
    reach_of,
)
from loopwright.model.plan import Access, Agent
from loopwright.model.record import JsonValue


@pytest.mark.parametrize(
    ("level", "reach"),
    [
        (None, Reach()),
        ("full", Reach()),
        ("readonly-shell", Reach(writes=False, commands="reading", servers=False, web=False)),
        ("readonly", Reach(writes=False, commands="none", servers=False, web=False)),
        ("minimal", Reach(reads=False, writes=False, commands="none", servers=False, web=False)),
    ],
)
def test_levels(level: Access | None, reach: Reach) -> None:
    """Each level has less than the one before it."""
    assert reach_of(Agent(access=level)) == reach


def test_a_role_takes_toolkits_away() -> None:
    """A filter can only take away; what is not a list of names takes nothing."""
    options = {DENIED_TOOLKITS: ["files", "shell", "servers", 7]}
    taken = reach_of(Agent(access="full", options=options))
    assert taken == Reach(reads=False, writes=False, commands="none", servers=False)
    assert reach_of(Agent(options={DENIED_TOOLKITS: "shell"})) == Reach()


def test_the_narrower_level_counts() -> None:
    """In whichever order, and a missing one says nothing."""
    for wide, narrow in zip(LEVELS[1:], LEVELS, strict=False):
        assert narrower(wide, narrow) == narrower(narrow, wide) == narrow
    assert narrower(None, "readonly") == narrower("readonly", None) == "readonly"
    assert narrower(None, None) is None


@pytest.mark.parametrize(
    ("tool", "levels"),
    [
        ("artifact.create", LEVELS),
        ("artifact.delete", ("full",)),
        ("todo.add", LEVELS),
        ("todo.complete", ("full",)),
        ("skill.read", ("readonly", "readonly-shell", "full")),
    ],
)
def test_trackers_by_level(tool: str, levels: tuple[Access, ...]) -> None:
    """All levels have them; what ends things is for `full`, and skills are not for `minimal`."""
    assert is_tracker(tool)
    assert tuple(one for one in LEVELS if has_tracker(Agent(access=one), tool)) == tuple(levels)
    denied = {DENIED_TOOLKITS: ["artifacts", "todos", "skills"]}
    assert not has_tracker(Agent(access="full", options=denied), tool)
    assert not is_tracker("fs.read")


@pytest.mark.parametrize(
    ("options", "offline", "good"),
    [
        ({}, False, True),
        ({"network": "full"}, False, True),
        ({"network": "none"}, True, True),
        ({"network": ["github.com"]}, False, False),
        ({"network": None}, False, False),
    ],
)
def test_the_network(options: dict[str, JsonValue], offline: bool, good: bool) -> None:
    """It is there or not; a list of hosts, which nobody would keep to, is told to mean nothing."""
    agent = Agent(options=options)
    assert is_offline(agent) is offline
    assert (network_problem(agent) is None) is good
