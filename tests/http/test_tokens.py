"""Tokens over HTTP: nobody acts as somebody else by one, nor for longer than they may."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from loopwright.http.context import Rates
from tests.http.served import UNHURRIED, Reply, Served, served
from tests.http.test_people import add, by_cookie, cookie, sign_in

TOKENS, ME = "/api/v1/tokens", "/api/v1/me"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Where four eyes are needed, and where rose is an admin."""
    limits = replace(UNHURRIED, sign_ins_per_minute=1_000)
    folder = tmp_path_factory.mktemp("four-eyes")
    with served(folder, limits=limits, more={"four_eyes": "on"}) as one:
        add(one, "rose", "admin")
        add(one, "ann", "editor")
        yield one


def program(server: Served, label: str, role: Any = "editor", days: int | None = None) -> str:
    """The token of a program, as the command line makes it."""
    access = server.context.access
    made = server.call(lambda: access.new_token(label, role, by="t", days=days))
    return str(made.text)


def child(server: Served, of: str, label: str, **more: Any) -> Reply:
    reply = server("POST", TOKENS, {"label": label, **more}, token=of)
    assert reply.status == 201, reply.body
    return reply


def waiting(server: Served, token: str) -> str:
    """The gate of a run that somebody has started."""
    definition = server.definition(server.script(*["some work"] * 9), until={"person": True})
    run = server("POST", "/api/v1/runs", {"definition": definition}, token=token).json["run"]
    server.until(run, "waiting")
    return str(server("GET", f"/api/v1/runs/{run}").json["gates"][0]["id"])


@pytest.mark.item("G11")
def test_nobody_approves_by_another_name(server: Served) -> None:
    """A program that has started a run cannot approve in it with a token that it makes, whatever
    that one is called and however many are between; nobody is taken for a person by a label.
    """
    ci = program(server, "ci")
    gate = waiting(server, ci)
    [run] = [
        one["run"] for one in server("GET", "/api/v1/gates").json["gates"] if one["id"] == gate
    ]
    rose = str(child(server, ci, "rose").json["token"])
    further = str(child(server, rose, "rose").json["token"])
    for token in (ci, rose, further):
        reply = server("POST", f"/api/v1/gates/{gate}/approve", {}, token=token)
        assert (reply.status, reply.code) == (403, "self-approval")
    assert server("GET", ME, token=rose).json == {"name": "token:ci/rose", "role": "editor"}
    impostor = program(server, "rose")
    assert server("POST", f"/api/v1/gates/{gate}/approve", {}, token=impostor).status == 200
    rows = server("GET", f"/api/v1/audit?limit=200&subject={run}").json["rows"]
    assert [(row["action"], row["who"]) for row in rows] == [
        ("gate.answered", "token:rose"),
        ("run.started", "token:ci"),
    ]


@pytest.mark.item("G11")
def test_a_person_is_one_by_all_their_tokens(server: Served) -> None:
    """What somebody started with a token they do not approve with another, nor by their cookie."""
    held = cookie(sign_in(server, "ann"))
    first = by_cookie(server, "POST", TOKENS, held, {"label": "one"}).json["token"]
    gate = waiting(server, first)
    second = child(server, first, "rose").json
    assert second["person"] == "ann"
    path = f"/api/v1/gates/{gate}/approve"
    for reply in (
        server("POST", path, {}, token=second["token"]),
        by_cookie(server, "POST", path, held, {}),
    ):
        assert (reply.status, reply.code) == (403, "self-approval")


def test_a_label_opens_nothing_of_a_person(server: Served) -> None:
    """A program that is called like a person sees, makes and ends no tokens of theirs."""
    held = cookie(sign_in(server, "ann"))
    hers = by_cookie(server, "POST", TOKENS, held, {"label": "hers"}).json["id"]
    impostor = program(server, "ann")
    listed = server("GET", TOKENS, token=impostor).json["tokens"]
    assert [one["label"] for one in listed] == ["ann"]
    assert server("DELETE", f"{TOKENS}/{hers}", token=impostor).status == 404
    assert child(server, impostor, "x").json["person"] is None


def test_a_token_does_not_outlive_its_parent(server: Served) -> None:
    """Neither its time nor its end is escaped by making another one in time."""
    short = program(server, "short", days=1)
    parent = short.split("_")[1]
    (end,) = [
        one["expires_at"] for one in server("GET", TOKENS).json["tokens"] if one["id"] == parent
    ]
    made = child(server, short, "long", days=None).json
    assert (made["expires_at"], made["parent"]) == (end, parent)
    assert server("GET", ME, token=made["token"]).status == 200
    assert server("DELETE", f"{TOKENS}/{parent}").status == 200
    assert server("GET", ME, token=made["token"]).status == 401
    late = server("POST", TOKENS, {"label": "x"}, token=short)
    assert late.status == 401


def test_a_program_ends_its_own(server: Served) -> None:
    """A program sees what it has made and can end it; others of its kind stay."""
    ci, other = program(server, "own"), program(server, "own")
    made = child(server, ci, "mine").json
    assert server("DELETE", f"{TOKENS}/{other.split('_')[1]}", token=ci).status == 404
    assert server("DELETE", f"{TOKENS}/{made['id']}", token=ci).json["revoked_at"]
    assert server("GET", ME, token=made["token"]).status == 401
    assert server("GET", ME, token=other).status == 200


def test_more_tokens_are_no_more_requests(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes tokens for themselves has one rate with all of them."""
    ci, counted = program(server, "eager"), []
    made = [child(server, ci, label).json["token"] for label in ("a", "b")]
    monkeypatch.setattr(Rates, "count", lambda _, name: counted.append(name))
    assert [server("GET", ME, token=text).status for text in (ci, *made)] == [200] * 3
    assert counted == ["token:eager"] * 3
