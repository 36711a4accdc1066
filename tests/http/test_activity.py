"""What agents did, at a server: pages, filters, streams, sockets, and on the command line."""

import gzip
import json
import threading
import time
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from loopwright.views.transcript import activity_items
from tests.cli.conftest import Place, lw
from tests.http.served import Served
from tests.http.talking import tab, talk
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw"]

TOOLS = [
    {"name": "Bash", "args": {"command": "make"}, "result": "r" * 3_000, "code": 1, "ms": 20},
    {"name": "Edit", "args": {"file_path": "a.py"}, "ok": True},
]


@pytest.fixture(scope="module")
def worked(shared: Served) -> str:
    """A run of three iterations, each with a command and an edit."""
    replies = [{"text": f"work {number}", "tools": TOOLS} for number in range(3)]
    run = shared.start(shared.definition(shared.script(*replies)))
    shared.until(run, "completed", "exhausted")
    return run


def asked(shared: Served, run: str, **query: object) -> Any:
    reply = shared("GET", f"/api/v1/runs/{run}/activity?{urlencode(query)}")
    assert reply.status == 200, reply.body
    return reply.json


@pytest.mark.item("rec-9")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        (
            {},
            [(1, "command"), (1, "edit"), (2, "command"), (2, "edit"), (3, "command"), (3, "edit")],
        ),
        ({"iteration": 2}, [(2, "command"), (2, "edit")]),
        ({"kind": "edit"}, [(1, "edit"), (2, "edit"), (3, "edit")]),
        ({"effect": "main.2/agent#1", "kind": "command"}, [(3, "command")]),
        ({"effect": "main.9/agent#1"}, []),
    ],
    ids=["all", "iteration", "kind", "effect", "none"],
)
def test_entries_are_filtered(
    shared: Served, worked: str, query: dict[str, object], found: list[tuple[int, str]]
) -> None:
    """Effect, iteration and kind choose entries."""
    page = asked(shared, worked, **query)
    assert [(one["iteration"], one["kind"]) for one in page["entries"]] == found
    assert (page["run"], page["dropped"], page["next"]) == (worked, 0, None)


@pytest.mark.item("rec-9")
def test_pages_are_the_whole(shared: Served, worked: str) -> None:
    """Asked page by page after `next`, every entry comes once and in order."""
    found: list[Any] = []
    after: int | None = 0
    while after is not None:
        page = asked(shared, worked, after=after, limit=1)
        found, after = [*found, *page["entries"]], page["next"]
        assert len(page["entries"]) <= 2  # a page ends with the event that fills it
    assert found == asked(shared, worked)["entries"]


@pytest.mark.item("rec-9")
def test_long_values_are_cut_unless_asked_for(shared: Served, worked: str) -> None:
    """A list has the beginning of a long result and its size; `full` has all of it."""
    [short, *_] = asked(shared, worked)["entries"]
    [whole, *_] = asked(shared, worked, full="true")["entries"]
    assert (len(short["result"]), short["result_bytes"]) == (400, 3_000)
    assert whole["result"] == "r" * 3_000


@pytest.mark.parametrize("wrong", ["kind=eat", "iteration=0", "after=-1", "limit=0", "x=1"])
def test_what_is_asked_wrongly_is_refused(shared: Served, worked: str, wrong: str) -> None:
    """A filter that means nothing is a problem that says so."""
    reply = shared("GET", f"/api/v1/runs/{worked}/activity?{wrong}")
    assert (reply.status, reply.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.item("rec-9")
@pytest.mark.parametrize(
    "words",
    [
        ["logs", "RUN", "--tools"],
        ["logs", "RUN", "--tools", "--iteration", "2"],
        ["logs", "RUN", "--tools", "--json"],
        ["logs", "RUN", "--tools", "-f"],
        ["logs", "RUN"],
        ["show", "RUN"],
        ["artifact", "ls", "RUN"],
    ],
    ids=" ".join,
)
def test_the_command_line_says_the_same_at_a_server(
    both: Both, worked: str, words: list[str]
) -> None:
    """With `--server` every view of activity is the one of the machine itself."""
    told = both.alike(*[worked if word == "RUN" else word for word in words])
    assert told.code == 0
    if "--tools" in words:
        assert "a.py" in told.out


@pytest.mark.item("rec-9")
def test_events_stream_and_sockets_carry_activity(shared: Served, worked: str) -> None:
    """The event goes out like any other: as a server-sent event and over Socket.IO."""
    accept = {"Accept": "text/event-stream"}
    body = shared("GET", f"/api/v1/runs/{worked}/events", headers=accept).body.decode()
    streamed = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    there = [one for one in streamed if one.get("kind") == "effect.activity"]
    assert [len(one["entries"]) for one in there] == [2, 2, 2]

    async def go() -> None:
        async with tab(shared) as one:
            await one.say("subscribe", {"run": worked, "after": 0})

            def seen() -> list[Any]:
                sent = [event for data in one.all("run:events") for event in data["events"]]
                return [event for event in sent if event["kind"] == "effect.activity"]

            await one.until(lambda: len(seen()) == 3)
            assert seen() == there

    talk(go())


@pytest.mark.item("rec-9")
def test_entries_come_while_the_call_runs(both: Both) -> None:
    """`logs --tools -f` at a server has an entry long before its call has ended."""
    shared = both.server
    tools = [TOOLS[1], {"name": "Read", "args": {"path": "b.py"}, "delay": 2}]
    run = shared.start(shared.definition(shared.script({"text": "x", "tools": tools}), max=1))
    began = time.monotonic()
    while not (page := asked(shared, run))["entries"]:
        assert time.monotonic() - began < 30
        time.sleep(0.05)
    assert [one["tool"] for one in page["entries"]] == ["Edit"]
    assert shared("GET", f"/api/v1/runs/{run}").json["status"] == "running"
    lines: list[str] = []
    follower = threading.Thread(
        target=lambda: lines.extend(both("logs", run, "--tools", "-f").out.splitlines())
    )
    follower.start()
    follower.join(30)
    assert ["Edit a.py" in lines[0], "Read b.py" in lines[1]] == [True, True]


@pytest.mark.item("rec-8")
def test_the_output_of_an_agent_is_downloaded(shared: Served, both: Both, lw: Place) -> None:
    """Its bytes come by id, and on the command line by name too."""
    agent = f"command:{lw.write('say.sh', '#!/bin/sh' + chr(10) + 'echo hello' + chr(10))}"
    (lw.folder / "say.sh").chmod(0o755)
    run = shared.start(shared.definition(agent, max=1))
    shared.until(run, "completed", "exhausted")
    [item] = shared("GET", f"/api/v1/runs/{run}/artifacts").json["artifacts"]
    assert item["name"] == "iteration-1/command.txt.gz"
    reply = shared("GET", f"/api/v1/runs/{run}/artifacts/{item['id']}/content")
    assert gzip.decompress(reply.body) == b"hello\n"
    assert 'filename="command.txt.gz"' in reply.headers["content-disposition"]
    assert both("artifact", "get", run, item["name"], "-o", "out.gz").code == 0
    assert gzip.decompress((lw.folder / "out.gz").read_bytes()) == b"hello\n"


def test_items_and_pages_agree(shared: Served, worked: str) -> None:
    """The page has exactly the items that are made of the log."""
    events = shared.context.here.log.read(worked)
    assert asked(shared, worked)["entries"] == msgspec.to_builtins([*activity_items(events)])
