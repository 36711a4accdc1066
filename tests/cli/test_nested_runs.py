"""Runs that agents start: their depth has an end, and their budget is their parent's."""

from __future__ import annotations

import json
import sys

import pytest

from loopwright.agents.sandbox import bubblewrap
from tests.cli.conftest import Place


def itself(lw: Place) -> str:
    """A loop whose agent starts the same loop again."""
    home = lw.env["LOOPWRIGHT_HOME"]
    call = f"{sys.executable} -m loopwright run loop.yaml --json --sandbox off --data-dir {home}"
    told = "> told-$LOOPWRIGHT_DEPTH.json 2> err-$LOOPWRIGHT_DEPTH"
    lw.write("again.sh", f"#!/bin/sh\n{call} {told} || true\n").chmod(0o755)
    return lw.loop("command:./again.sh", max=1, at_cap="exhaust")


@pytest.mark.item("I-12")
def test_a_loop_that_starts_itself_has_an_end(lw: Place) -> None:
    """Five runs inside of the first, then it is refused with the reason; nothing hangs."""
    told = lw.real("run", itself(lw), "--json", "--sandbox", "off")
    assert told.code == 4, told.err
    runs = lw("ls", "--json").json["runs"]
    assert len(runs) == 6
    first = [lw.events(one["run"])[0] for one in runs]
    assert sorted(event.get("depth", 0) for event in first) == [0, 1, 2, 3, 4, 5]
    refusal = json.loads((lw.folder / "told-5.json").read_text())
    assert refusal["type"].endswith(":run-depth")
    assert "5 levels are the most" in refusal["detail"]


@pytest.mark.parametrize("named", ["option", "variable"])
def test_a_program_receives_where_its_run_is(lw: Place, named: str) -> None:
    """However the data directory was named, commands inside of a run find the same one."""
    elsewhere = lw.folder / "else where"
    lw.write("agent.sh", '#!/bin/sh\necho "$LOOPWRIGHT_HOME"\n').chmod(0o755)
    option = ("--data-dir", str(elsewhere)) if named == "option" else ()
    env = {"LOOPWRIGHT_HOME": str(elsewhere)} if named == "variable" else {}
    words = (
        "loop",
        "x",
        "--agent",
        "command:./agent.sh",
        "--max",
        "1",
        "--json",
        "--sandbox",
        "off",
        *option,
    )
    assert lw.real(*words, env=env).json["output"].strip() == str(elsewhere)


@pytest.mark.item("I-12")
def test_a_child_has_what_its_parent_has_left(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own smaller budget stays, a larger one does not; what siblings used is gone."""
    replies = lw.script({"text": "a", "usage": {"usd": 2.0}}, {"text": "b"})
    parent = lw("run", lw.loop(replies, max=1, top={"budget": {"usd": 5}}), "--json").json["run"]
    monkeypatch.setenv("LOOPWRIGHT_RUN", parent)
    monkeypatch.setenv("LOOPWRIGHT_DEPTH", "0")
    spend = lw.script(*[{"text": "x", "usage": {"usd": 1.0}}] * 9, name="more.yaml")
    child = lw("run", lw.loop(spend, max=9, name="c.yaml", top={"budget": {"usd": 50}}), "--json")
    assert (child.json["reason"], child.json["usage"]["usd"]) == ("budget", 3.0)
    rest = lw("run", lw.loop(spend, max=9, name="c.yaml"), "--json").json
    assert (rest["reason"], rest["usage"]["usd"]) == ("budget", 0.0)


def test_a_parent_that_is_not_here(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its depth counts all the same; a depth that is none counts as none."""
    file = lw.loop(lw.script("a"), max=1, at_cap="complete")
    monkeypatch.setenv("LOOPWRIGHT_RUN", "run_elsewhere")
    monkeypatch.setenv("LOOPWRIGHT_DEPTH", "5")
    assert lw("run", file).code == 2
    monkeypatch.setenv("LOOPWRIGHT_DEPTH", "nonsense")
    assert lw("run", file).code == 0


@pytest.mark.item("bnd-p3")
def test_a_sandboxed_agent_gets_no_second_data_directory(lw: Place) -> None:
    """Its commands say in one line that the data is not visible, whatever directory they name."""
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    home, call = lw.env["LOOPWRIGHT_HOME"], f"{sys.executable} -m loopwright"
    lines = [f"{call} run loop.yaml", f"env -i {call} approve last --data-dir {home}"]
    lw.write("agent.sh", "#!/bin/sh\n" + "\n".join(f"{one} 2>&1" for one in lines) + "\ntrue\n")
    (lw.folder / "agent.sh").chmod(0o755)
    told = lw.real("loop", "x", "--agent", "command:./agent.sh", "--max", "1", "--json")
    assert told.json["output"].count(f"{told.json['run']}: it is not visible here") == 2
    assert [one["run"] for one in lw("ls", "--json").json["runs"]] == [told.json["run"]]
