"""Cost over HTTP: limits that cannot be enforced are refused, `spend` and the filters of runs."""

import pytest

from loopwright.operations import api_types
from tests.http.served import Served
from tests.http.test_runs import RUNS, fits


@pytest.mark.item("rec-24")
def test_usd_limit_for_unknown_cost_is_refused_over_http(own: Served) -> None:
    """At a start and when a run is resumed with another agent; a flag of the request allows it."""
    text = own.definition("command:true", max=1)
    refused = own("POST", RUNS, {"definition": text, "budget": "usd=1"})
    assert (refused.status, refused.code) == (400, "unknown-cost")
    allowed = own("POST", RUNS, {"definition": text, "budget": "usd=1", "allow_unknown_cost": True})
    assert allowed.status == 201
    assert len(allowed.json["uncovered"]) == 1
    failing = own.definition(own.script({"fail": "no"}), max=1)
    run = own.start(failing, budget="usd=1")
    own.until(run, "failed")
    again = own("POST", f"{RUNS}/{run}/resume", {"agent": "command:true"})
    assert (again.status, again.code) == (400, "unknown-cost")


@pytest.mark.item("rec-27")
@pytest.mark.item("rec-28")
def test_spend_and_filters_over_http(own: Served) -> None:
    """The same sums and filters as at the command line."""
    text = own.definition(own.script({"text": "ok", "usage": {"usd": 0.5}}), max=1)
    run = own.start(text, name="paid", labels=["nightly"])
    own.until(run, "completed")
    told = own("GET", "/api/v1/spend?by=label").json
    fits(told, api_types.SpendReport)
    assert [(one["name"], one["usd"]) for one in told["lines"]] == [("nightly", 0.5)]
    for query, count in (
        ("label=nightly", 1),
        ("label=other", 0),
        ("name=PAI", 1),
        ("since=1h", 1),
    ):
        page = own("GET", f"{RUNS}?{query}").json
        assert (len(page["runs"]), page["total"]["runs"]) == (count, count), query
    assert own("GET", f"{RUNS}?chats=true").json["runs"] == []
    assert own("GET", "/api/v1/spend?since=soon").code == "bad-since"
