"""Lists in pages: every list goes on where a page ended, and a cursor belongs to its list."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from loopwright.http.operation_routes import app_of
from loopwright.workers.webhooks import MessageStarter
from tests.http.served import Served, served
from tests.http.test_loops import DEFINITION

LISTS = {
    "/api/v1/gates": ("gates", "id"),
    "/api/agents": ("data", "id"),
    "/api/v1/agents": ("agents", "spec"),
    "/api/v1/users": ("users", "name"),
    "/api/v1/tokens": ("tokens", "id"),
    "/api/v1/sessions": ("sessions", "id"),
    "/api/v1/definitions": ("definitions", "name"),
    "/api/v1/loops/definitions": ("definitions", "name"),
    "/api/v1/webhooks": ("webhooks", "id"),
    "/api/v1/hooks": ("hooks", "name"),
    "/api/v1/audit": ("rows", "id"),
    "/api/v1/runs": ("runs", "run"),
    "/api/v1/loops": ("loops", "id"),
}
"""Every list, where its entries stand and what they are called by."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with three of everything."""
    with served(tmp_path_factory.mktemp("pages")) as one:
        for name in ("a", "b", "c"):
            _make(one, name)
        yield one


def _make(own: Served, name: str) -> None:
    def good(method: str, path: str, body: object, **headers: str) -> None:
        reply = own(method, path, body, headers=headers)
        assert reply.status in (200, 201), reply.body

    definition = own.definition(own.script("x"), until={"person": True})
    own.gated()
    good("POST", "/api/agents", {"name": name})
    good("POST", "/api/v1/users", {"name": name, "role": "viewer"})
    own.made("viewer")
    good("POST", "/api/v1/sessions", {"title": name})
    good("PUT", f"/api/v1/definitions/{name}", {"text": definition})
    loop = f"/api/v1/loops/definitions/{name}"
    good("PUT", loop, {**DEFINITION}, **{"If-None-Match": "*"})
    good("POST", "/api/v1/hooks", {"name": name, "stored": name})
    own.call(lambda: own.context.part(app_of).part(MessageStarter))
    good("POST", "/api/v1/webhooks", {"url": f"https://93.184.216.34/{name}"})


def entries(path: str, told: Any) -> list[Any]:
    field, name = LISTS[path]
    return [one[name] for one in told[field]]


def cursor_of(own: Served, path: str) -> str:
    return str(own("GET", f"{path}?limit=1").json["next"])


@pytest.mark.parametrize("path", LISTS)
def test_a_list_in_pages(shared: Served, path: str) -> None:
    """Without a limit everything comes at once; with one the pages together are the same."""
    everything = shared("GET", path).json
    assert everything["next"] is None
    assert len(entries(path, everything)) >= 3
    seen: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = shared("GET", f"{path}?limit=1{f'&cursor={cursor}' if cursor else ''}").json
        assert len(entries(path, page)) == 1
        seen += entries(path, page)
        cursor = page["next"]
    assert seen == entries(path, everything)


@pytest.mark.parametrize("path", LISTS)
def test_cursors_that_are_none(shared: Served, path: str) -> None:
    """What is from nowhere, changed, or of another list is refused, and so is not a number."""
    own, others = cursor_of(shared, path), [one for one in LISTS if one != path]
    wrong = ["x", own[:-2] + "AA", own[2:], *(cursor_of(shared, one) for one in others)]
    for cursor in wrong:
        reply = shared("GET", f"{path}?cursor={cursor}")
        assert reply.status == 400, (path, cursor, reply.body)
        assert b"begin without one" in reply.body
    for limit in ("0", "1001", "-1", "x"):
        assert shared("GET", f"{path}?limit={limit}").status in (400, 422)


def test_what_goes_meanwhile(shared: Served) -> None:
    """An entry that a page ended with may be gone: nothing is left out, and nothing told twice."""
    first = shared("GET", "/api/v1/sessions").json["sessions"]
    names = [shared("POST", "/api/agents", {"name": n}).json["data"]["id"] for n in ("x", "y", "z")]
    everything = entries("/api/agents", shared("GET", "/api/agents").json)
    at = everything.index(names[0])
    page = shared("GET", f"/api/agents?limit={at + 1}").json
    assert shared("DELETE", f"/api/agents/{names[0]}").status == 200
    rest = shared("GET", f"/api/agents?cursor={page['next']}").json
    assert entries("/api/agents", rest) == everything[at + 1 :]
    assert len(first) == 3


def test_the_record_of_one_subject(shared: Served) -> None:
    """A page of the record goes on about the same subject, and about no other."""
    run, _ = shared.gated()
    for verb in ("pause", "resume", "stop"):
        shared("POST", f"/api/v1/runs/{run}/{verb}")
    path = f"/api/v1/audit?subject={run}&limit=1"
    page = shared("GET", path).json
    again = shared("GET", f"{path}&cursor={page['next']}").json
    assert [one["subject"] for one in again["rows"]] == [run]
    assert again["rows"][0]["id"] < page["rows"][0]["id"]
    assert shared("GET", f"/api/v1/audit?cursor={page['next']}").status == 400
    assert json.dumps(again["rows"]) != json.dumps(page["rows"])
