"""`user` and `token` with `--server`: the same answers as on the machine of the server."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Told, lw
from tests.http.served import Served
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw"]

Command = Callable[..., Told]


def uniform(text: str) -> str:
    """Output without addresses, ids and codes."""
    text = re.sub(r"\S*/setup#[\w-]+", "LINK", text)
    return re.sub(r"\btok_\w+|\b[0-9a-f]{12}\b", "ID", text)


STEPS: list[tuple[str, ...]] = [
    ("user", "add", "zoe", "--role", "editor"),
    ("user", "role", "zoe", "viewer"),
    ("user", "off", "zoe"),
    ("user", "on", "zoe"),
    ("user", "link", "zoe"),
    ("user", "rm", "zoe"),
    ("user", "rm", "zoe"),
    ("user", "role", "nobody", "viewer"),
    ("user", "add", "zoe", "--role", "root"),
    ("token", "revoke", "nothing"),
]


@pytest.mark.item("rec-46")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_accounts_are_changed_at_a_server_as_here(both: Both, as_json: bool) -> None:
    """Each command prints the same, with the same exit code."""
    more = ("--json",) if as_json else ()
    answers = [[one(*words, *more) for words in STEPS] for one in (both.here, both)]
    for words, here, there in zip(STEPS, *answers, strict=True):
        assert there.code == here.code, (words, there)
        assert uniform(there.out) == uniform(here.out), words
        if here.code:
            assert uniform(there.err) == uniform(here.err), words


@pytest.mark.item("rec-46")
def test_tokens_of_a_server_are_created_listed_and_revoked(both: Both, shared: Served) -> None:
    """A new token works until it is revoked; the list has no texts."""
    made = both("token", "create", "ci", "--role", "viewer", "--days", "3", "--json").json
    assert shared("GET", "/api/v1/me", token=made["token"]).status == 200
    listed = both("token", "ls", "--json")
    found: list[dict[str, Any]] = [one for one in listed.json["tokens"] if one["id"] == made["id"]]
    assert [one["state"] for one in found] == ["good"]
    assert made["token"] not in listed.out
    assert both("token", "revoke", made["id"]).code == 0
    assert shared("GET", "/api/v1/me", token=made["token"]).status == 401
    refused = both("token", "create", "x", "--user", "ann")
    assert (refused.code, "only for the person who asks" in refused.err) == (2, True)


@pytest.mark.item("rec-46")
def test_listed_agents_are_shown_alike_here_and_at_a_server(both: Both) -> None:
    """Every model and every script is a pattern in both."""
    columns = ("name", "spec", "listed", "source")
    here, there = (
        {
            tuple(one[name] for name in columns)
            for one in command("agent", "ls", "--json").json["agents"]
        }
        for command in (both.here, both)
    )
    assert ("models", "model:PROVIDER/NAME") in {one[:2] for one in here}
    assert here == there
