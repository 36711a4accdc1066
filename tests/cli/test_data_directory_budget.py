"""A budget of all runs of one home: looked at before every call, with a reason of its own."""

from __future__ import annotations

import pytest

from loopwright.operations import shared_budget
from loopwright.testing.wires import ScriptedTurn, ScriptedUsage
from tests.cli.aldo import MODEL, asks, model, write
from tests.cli.conftest import Place, Serve
from tests.cli.test_aldo import only, told

COSTLY = ScriptedUsage(input=900, output=100)


def flow(lw: Place, agent: str = "model:local/tiny") -> str:
    return lw.loop(agent, max=3, at_cap="exhaust")


@pytest.mark.item("aldo-27")
def test_no_call_begins_when_it_is_used_up(
    lw: Place, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that meets it ends with its own reason; the next one is not even asked once."""
    monkeypatch.setattr(shared_budget, "DAY_MS", 10**15)  # midnight does not come in the middle
    lw.write("loopwright.toml", "[budget]\ntokens_per_day = 1500\n")
    server = serve(ScriptedTurn(text="more", usage=COSTLY, times=None))
    first = lw("run", flow(lw), "--json")
    assert (first.code, first.json["reason"]) == (4, "home_budget")
    assert first.json["error"] is None or "2000 of 1500 tokens today" in str(first.json)
    assert (len(server.requests), first.json["usage"]["input_tokens"]) == (2, 1800)
    second = lw("run", flow(lw), "--json")
    assert (second.code, second.json["reason"], len(server.requests)) == (4, "home_budget", 2)
    run = second.json["run"]
    assert "Stopped by the budget of all runs" in lw("show", run).out
    assert "loopwright spend" in lw("show", run, "--json").json["next"]
    told = lw("run", flow(lw))
    assert "continues it once the budget of all runs allows more" in told.err
    lw.write("loopwright.toml", "[budget]\ntokens_per_day = 1500\nhard_stop = false\n")
    assert lw("resume", run, "--json").json["reason"] == "max_iterations"
    assert len(server.requests) == 5
    assert lw("doctor", "--deep", "--json").json["ok"] is True


@pytest.mark.item("aldo-27")
def test_it_is_for_every_kind_of_agent(lw: Place) -> None:
    """A program is not started either when nothing may be used."""
    lw.write("loopwright.toml", "[budget]\nusd_total = 0\n")
    told = lw("run", flow(lw, lw.probe()), "--allow-unknown-cost", "--json")
    assert (told.code, told.json["reason"], lw.calls()) == (4, "home_budget", [])


@pytest.mark.item("aldo-27")
def test_a_guard_that_fails_stops_nobody(
    lw: Place, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be looked into has not said no."""

    def broken(self: shared_budget.UsageLedger, since_day: int) -> shared_budget.BudgetUse:
        raise OSError("the disk is gone")

    lw.write("loopwright.toml", "[budget]\nusd_per_day = 0\n")
    serve(ScriptedTurn(text="more", times=None))
    monkeypatch.setattr(shared_budget.UsageLedger, "used", broken)
    assert lw("run", flow(lw), "--json").json["reason"] == "max_iterations"


@pytest.mark.item("aldo-27")
def test_it_is_reported_in_the_words_of_the_dialect(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terminated by the tenant's budget, with the amounts; the cycle has not been."""
    lw.write("loopwright.toml", "[budget]\nusd_per_day = 0\n")
    with model(monkeypatch, asks("fs_list")) as server:
        run = lw("run", write(lw), "Go", "--agent", MODEL, "--json").json
    assert (run["reason"], server.requests) == ("home_budget", [])
    events = told(lw, run["run"])
    [ended] = only(events, "run.terminated_by")
    assert ended["reason"] == "tenant-budget-exhausted"
    assert (ended["detail"]["capUsd"], ended["detail"]["totalUsd"]) == (0, 0)
    [last] = only(events, "run.completed")
    assert (last["finishReason"], last["output"], last["cycles"]) == ("budget", "", 0)


def test_a_fork_does_not_count_twice(lw: Place, serve: Serve) -> None:
    """What it has copied was used once."""
    server = serve(ScriptedTurn(text="more", usage=COSTLY, times=None))
    run = lw("run", flow(lw), "--json").json["run"]
    lw.write("loopwright.toml", "[budget]\ntokens_total = 5500\n")
    told = lw("fork", run, "--at", "1", "--json").json
    assert (told["reason"], len(server.requests)) == ("max_iterations", 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("budget = 3", "not a table", id="no table"),
        pytest.param("[budget]\nusd = 3", "usd_per_day", id="unknown"),
        pytest.param("[budget]\nusd_per_day = -1", "a number from 0 on", id="below nothing"),
        pytest.param("[budget]\nusd_per_day = inf", "a number from 0 on", id="endless"),
        pytest.param("[budget]\ntokens_total = 1.5", "a whole number", id="half a token"),
        pytest.param("[budget]\nhard_stop = 1", "true or false", id="neither"),
    ],
)
def test_budgets_that_are_none(lw: Place, text: str, said: str) -> None:
    """They are refused when the settings are read."""
    lw.write("loopwright.toml", text)
    told = lw("ls")
    assert told.code == 2
    assert said in told.err
