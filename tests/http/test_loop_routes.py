"""The table of routes of Coqui's document: each row answers what its description says."""

from typing import Any

import pytest

from tests.http.served import Served
from tests.http.test_loops import start, until

ROWS = [
    ("GET", "/api/v1/loops", {"loops", "count", "active"}),
    ("GET", "/api/v1/loops/active/count", {"active"}),
    ("GET", "/api/v1/loops/definitions", {"definitions", "count"}),
    ("GET", "/api/v1/loops/{id}", {"loop", "iteration", "stages"}),
    ("GET", "/api/v1/loops/{id}/history", {"loop", "history", "count"}),
    ("GET", "/api/v1/loops/{id}/metrics", {"iterations", "stages", "timings"}),
    ("GET", "/api/v1/loops/{id}/iterations", {"iterations", "count"}),
    ("GET", "/api/v1/loops/{id}/iterations/{iterationId}", {"iteration", "stages"}),
    ("PATCH", "/api/v1/loops/{id}", set()),
    ("POST", "/api/v1/loops/{id}/pause", {"id", "status"}),
    ("POST", "/api/v1/loops/{id}/resume", {"id", "status"}),
    ("POST", "/api/v1/loops/{id}/stop", {"id", "status"}),
    ("DELETE", "/api/v1/loops/{id}", {"deleted", "id"}),
]


@pytest.mark.item("coqui-16", "coqui-48", "coqui-87")
def test_every_route_of_the_table_answers(shared: Served) -> None:
    """In the order of a loop's life: started, looked at, edited, paused, resumed, stopped, deleted;
    its record agrees with the document on every status.
    """
    made = start(shared, "APPROVED", slow={"plan": 0.3, "coder": 30})
    loop, first = made["loop"]["id"], made["iteration"]["id"]
    assert made["loop"]["status"] == "running"
    assert made["loop"]["metadata"]["dispatch"]["status"] in ("pending", "dispatched")
    statuses: list[Any] = []
    for method, path, keys in ROWS:
        place = path.replace("{id}", loop).replace("{iterationId}", first)
        body = {"goal": "Another goal"} if method == "PATCH" else None
        reply = shared(method, place, body)
        assert reply.status == 200, (method, place, reply.body)
        assert keys <= reply.json.keys()
        statuses += [reply.json["status"]] if keys == {"id", "status"} else []
        if path.endswith("/pause"):
            until(shared, loop, "paused")
    assert statuses == ["paused", "running", "cancelled"]
    assert shared("GET", f"/api/v1/loops/{loop}").status == 404
