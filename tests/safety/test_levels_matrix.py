"""The table of sandbox levels in docs/security.md: every cell is found out by trying it."""

from functools import cache
from pathlib import Path

import pytest

from loopwright.agents.sandbox import bubblewrap
from loopwright.model.sandbox import SANDBOX_LEVELS
from tests.safety.agent_program.cells import CELLS
from tests.safety.identities import IDENTITIES, missing
from tests.safety.sandbox_stage import CLIS, KINDS, Order, perform_as, system_python

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
WORDS = {"yes", "no", "private", "shared"}
BEGIN, END = "<!-- sandbox-levels -->", "<!-- /sandbox-levels -->"
OWN_CONFIGURATION = "write its own configuration"
NOT_STARTED = {("bash", "none"), ("tool", "none")}
"""A shell and a model have no other program at `none`."""
if system_python() is None:  # the one of the tests is hidden at `readonly`
    NOT_STARTED.add(("bash", "readonly"))
AT_LEAST = {("bash", "off"): "guard"}
"""A script with values of agents in it is never started without a sandbox."""
AT_LEAST_AS_ROOT = {("codex", "guard"): "workspace"}
"""A CLI with a sandbox of its own, which cannot work for root."""
GROUPS = (("command", "jsonl", "acp"), CLIS, ("check", "bash", "tool"))
needs_sandbox = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)


@cache
def read_table() -> dict[str, dict[str, str]]:
    """By row the word of each level."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    assert head == ["what", *SANDBOX_LEVELS]
    return {what: dict(zip(SANDBOX_LEVELS, words, strict=True)) for what, *words in rows}


def test_the_table_has_every_question_and_only_known_words() -> None:
    """A row without a question behind it would be a claim that nothing shows."""
    table = read_table()
    assert set(table) == set(CELLS)
    assert {word for row in table.values() for word in row.values()} <= WORDS


def expected_answer(row: str, kind: str, level: str, identity: str, usual: str) -> str:
    """What the table says about a kind of agent. `yes` is as far as the user can."""
    if row == OWN_CONFIGURATION and kind not in CLIS:
        row = "write other files of the user"
    level = AT_LEAST.get((kind, level), level)
    if identity == "root":
        level = AT_LEAST_AS_ROOT.get((kind, level), level)
    word = read_table()[row][level]
    return usual if word == "yes" else word


@pytest.mark.item("bnd-prf-2")
@needs_sandbox
@pytest.mark.parametrize("kinds", GROUPS, ids="-".join)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_every_cell_is_true(identity: str, kinds: tuple[str, ...]) -> None:
    """Every kind of agent can do what the table says at each level, and nothing else."""
    if missing(identity) is not None:
        pytest.skip(str(missing(identity)))
    questions = list(CELLS)
    orders = [Order("direct", "off", "cells", questions)]
    orders += [
        Order(kind, level, "cells", questions, inside=kind == "bash")
        for kind in kinds
        for level in SANDBOX_LEVELS
    ]
    direct, *answers = perform_as(identity, orders)
    wrong: list[str] = []
    for order, answer in zip(orders[1:], answers, strict=True):
        if (order.kind, order.level) in NOT_STARTED:
            wrong += [f"{order.kind} at {order.level} was started"] if "found" in answer else []
            continue
        assert "found" in answer, f"{order.kind} at {order.level}: {answer}"
        for row in questions:
            usual = direct["found"][row]
            word = expected_answer(row, order.kind, order.level, identity, usual)
            found = answer["found"][row]
            if found != word:
                wrong.append(f"{order.kind} at {order.level}: {row}: {found}, not {word}")
    assert wrong == []


def test_every_kind_of_agent_is_tried() -> None:
    """No kind is left out of the groups."""
    assert sorted(kind for group in GROUPS for kind in group) == sorted(KINDS)


@pytest.mark.item("bnd-prf-4")
@needs_sandbox
@pytest.mark.parametrize(
    ("identity", "works", "mode"),
    [("user", "yes", "workspace-write"), ("root", "no", "danger-full-access")],
    ids=["user", "root"],
)
def test_codex_keeps_its_own_sandbox_where_it_can_work(
    identity: str, works: str, mode: str
) -> None:
    """For an ordinary user it works at `guard`. Root starts Codex without it, at `workspace`."""
    if missing(identity) is not None:
        pytest.skip(str(missing(identity)))
    questions = ["a sandbox of its own", "arguments", "write other files of the user"]
    (answer,) = perform_as(identity, [Order("codex", "guard", "cells", questions)])
    found = answer["found"]
    assert found["a sandbox of its own"] == works
    assert mode in found["arguments"].split()
    assert found["write other files of the user"] == ("yes" if identity == "user" else "no")
