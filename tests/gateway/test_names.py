"""Tool names on the wire."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.gateway.models import wire_names

ALLOWED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@pytest.mark.parametrize(
    ("tools", "tool", "wire"),
    [
        pytest.param(["fs.read"], "fs.read", "fs_read", id="dot"),
        pytest.param(["fs_read"], "fs_read", "fs_read", id="allowed as it is"),
        pytest.param(["server.fs.read", "b"], "server.fs.read", "server_fs_read", id="two dots"),
        pytest.param(["übung"], "übung", "_bung", id="letters of other languages"),
        pytest.param([], "never.offered", "never_offered", id="unknown"),
    ],
)
def test_names_are_cleaned(tools: list[str], tool: str, wire: str) -> None:
    """What services do not allow becomes an underscore."""
    assert wire_names(tools).wire(tool) == wire


def test_names_that_would_be_the_same_stay_apart() -> None:
    """The one that is allowed keeps itself; the others get a mark of their own."""
    names = wire_names(["fs.read", "fs_read", "fs read"])
    wires = [names.wire(one) for one in ("fs.read", "fs_read", "fs read")]
    assert wires[1] == "fs_read"
    assert len(set(wires)) == 3
    assert [names.tool(wire) for wire in wires] == ["fs.read", "fs_read", "fs read"]


def test_a_name_that_nobody_gave_stays() -> None:
    """A model that makes up a tool is told about that very name."""
    assert wire_names(["fs.read"]).tool("rm_all") == "rm_all"


@given(st.lists(st.text(max_size=90), max_size=8, unique=True))
@pytest.mark.item("W3")
def test_every_set_of_names_can_be_mapped(tools: list[str]) -> None:
    """Names on the wire are allowed, differ, lead back, and do not depend on the order."""
    names, other = wire_names(tools), wire_names(list(reversed(tools)))
    wires = [names.wire(tool) for tool in tools]
    assert all(ALLOWED.fullmatch(wire) for wire in wires)
    assert len(set(wires)) == len(tools)
    assert [names.tool(wire) for wire in wires] == tools
    assert wires == [other.wire(tool) for tool in tools]
