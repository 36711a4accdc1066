"""Notifiers of the settings: a channel in Slack's format and commands; links that decide once."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from loopwright.errors import LoopwrightError
from loopwright.operations.outgoing_requests import send
from loopwright.operations.settings import Settings, SettingsSources, load_settings
from loopwright.operations.settings_files import BadServers, Notifier, read_notifiers
from loopwright.ports import StoredRecord
from loopwright.workers import notifiers
from loopwright.workers.notifiers import (
    LINK,
    GateLink,
    SettingsChannels,
    idle_channels,
    run_command,
    slack_text,
)
from tests.http.served import Reply, Served, served, wait_for
from tests.http.test_webhooks import World, world

__all__ = ["world"]
LINKS = "/api/v1/links"


def teller(folder: Path, code: str = "cat >> told.jsonl") -> tuple[str, ...]:
    program = folder / "tell.sh"
    program.write_text(f"#!/bin/sh\ncd {folder}\n{code}\n")
    program.chmod(0o755)
    return (str(program),)


def told(folder: Path, count: int) -> list[Any]:
    """What a command was given, once there is so much of it."""
    file, lines = folder / "told.jsonl", list[str]()

    def is_there() -> bool:
        text = file.read_text() if file.exists() else ""
        lines[:] = text[: text.rfind("\n") + 1].splitlines()  # one may be written just now
        return len(lines) >= count

    wait_for(is_there, lambda: f"{len(lines)} of {count} were told")
    return [json.loads(line) for line in lines]


def channels(world: World, home: Path, **more: Any) -> None:
    """Give a world notifiers."""
    settings = Settings(home=home, notify={"team": Notifier(**more)})
    found = SettingsChannels(
        settings, log=world.log, records=world.log, clock=world.clock, base="https://loops.example"
    )
    world.hooks._channels = found
    world.hooks.begin()
    world.clock.elapse(1_000)


@pytest.mark.parametrize(
    ("notifier", "said"),
    [
        pytest.param(Notifier(slack_env="NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE is not", id="unset"),
        pytest.param(Notifier(command=("no-such-program",)), "is not a program", id="no program"),
        pytest.param(Notifier(command=("./none",)), "./none is not a program", id="no file"),
        pytest.param(Notifier(slack="http://127.0.0.1:1/x"), "allow_private", id="near"),
        pytest.param(Notifier(slack="http://localhost/x"), "allow_private", id="here"),
        pytest.param(Notifier(slack="http://10.0.0.1/x", allow_private=True), "", id="meant"),
        pytest.param(Notifier(slack="https://hooks.example/x"), "", id="out there"),
        pytest.param(Notifier(command=("true",)), "", id="a program"),
    ],
)
def test_a_notifier_that_reports_nobody_is_reported_at_the_start(
    tmp_path: Path, notifier: Notifier, said: str
) -> None:
    """What cannot work is said when the server starts, by the name of the notifier."""
    found = idle_channels(Settings(home=tmp_path, notify={"team": notifier}))
    assert len(found) == bool(said)
    assert all(one.startswith("[notify.team] notifies no one") and said in one for one in found)


def test_a_channel_in_the_format_of_slack(world: World, tmp_path: Path) -> None:
    """A channel gets a text without markup for what it wants to know, and is tried again."""
    kinds = ("gate.opened", "run.finished")
    channels(world, tmp_path, slack="https://hooks.example/x", kinds=kinds)
    world.finish()
    world.answers = [500, 200, 200]
    world.deliver()
    world.clock.elapse(6_000)
    world.deliver()
    assert len(world.got) == 3
    target, headers, _ = world.got[0]
    assert (target.host, headers) == ("hooks.example", {"content-type": "application/json"})
    texts = {json.loads(body)["text"] for _, _, body in world.got}
    assert any("waits for a person at main.0" in text for text in texts)
    assert any("has ended: completed (approved)" in text for text in texts)
    assert not any("secret" in text or "Decide" in text for text in texts)
    assert (
        slack_text(
            {
                "type": "run.finished",
                "data": {"run": "r", "outcome": "<!channel>", "reason": "a&b"},
            },
            "n\nm",
            None,
        )
        == b'{"text":"n m (r) has ended: &lt;!channel&gt; (a&amp;b)"}'
    )


def test_failures_alone(world: World, tmp_path: Path) -> None:
    """Who wants to know of failures hears of no success; what was before is not told either."""
    world.finish("run_before")
    channels(world, tmp_path, slack="https://hooks.example/x", kinds=("run.failed",))
    world.finish()
    assert world.deliver() == 0
    assert world.got == []


def test_a_channel_nearby_needs_a_word(world: World, tmp_path: Path) -> None:
    """An address of this machine is told nothing, unless its own settings say so."""
    channels(world, tmp_path, slack="http://127.0.0.1:9/x", kinds=("run.finished",))
    world.hooks.resolve = lambda *_: ["127.0.0.1"]
    world.finish()
    world.deliver()
    assert world.got == []


class Channel(BaseHTTPRequestHandler):
    """Somebody who is told."""

    seen: list[Any] = []

    def do_POST(self) -> None:
        self.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def test_a_channel_on_this_machine(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With allow_private a channel on loopback is told; its address may come from a variable."""
    server = HTTPServer(("127.0.0.1", 0), Channel)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        monkeypatch.setenv("CHANNEL", f"http://127.0.0.1:{server.server_address[1]}/x")
        channels(world, tmp_path, slack_env="CHANNEL", allow_private=True, kinds=("run.finished",))
        world.hooks.resolve = lambda host, _port: [host]
        world.send = send  # type: ignore[method-assign]
        world.finish()
        assert world.deliver() == 1
    finally:
        server.shutdown()
        server.server_close()
    assert "run_a) has ended: completed" in Channel.seen[0]["text"]


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gets the message on stdin and little else; failing, hanging and missing ones did
    not tell it, and what a hanging one has started is ended.
    """
    monkeypatch.setenv("A_SECRET", "x")
    argv = teller(tmp_path, 'cat > got; env > env; echo "$1" > word')
    notifier = Notifier(command=(*argv, "$(id); `id`"))
    assert run_command(notifier, b"hello", tmp_path) is True
    assert (tmp_path / "got").read_text() == "hello"
    assert (tmp_path / "word").read_text() == "$(id); `id`\n"
    assert "A_SECRET" not in (tmp_path / "env").read_text()
    assert run_command(Notifier(command=("/no/such/program",)), b"", tmp_path) is False
    assert run_command(Notifier(command=teller(tmp_path, "exit 3")), b"", tmp_path) is False
    monkeypatch.setattr(notifiers, "COMMAND_SECONDS", 0.2)
    assert run_command(Notifier(command=teller(tmp_path, "sleep 30")), b"x", tmp_path) is False


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x", "is not a table"),
        ({"a": {}}, "needs one of slack"),
        ({"a": {"slack": "https://x", "command": ["y"]}}, "needs one of slack"),
        ({"a": {"command": "a b"}}, "command"),
        ({"a": {"slack": "https://x", "kinds": ["vibes"]}}, "kinds"),
        ({"a": {"slak": "https://x"}}, "slak"),
    ],
)
def test_settings_that_cannot_be(value: Any, said: str) -> None:
    """What is wrong with a notifier is told with what it may have."""
    with pytest.raises(BadServers) as error:
        read_notifiers(value)
    assert said in str(error.value)
    assert error.value.hint


def test_settings_of_a_project(tmp_path: Path) -> None:
    """Notifiers are in the files of settings. Those of a project, which an agent may have written,
    neither start programs nor get links that answer gates.
    """
    text = '[notify.team]\nslack_env = "X"\nlinks = true\n[notify.b]\ncommand = ["b"]\n'
    (tmp_path / "loopwright.toml").write_text(f'{text}[notify.c]\nslack_env = "Y"\n')
    place = SettingsSources(env={}, cwd=tmp_path, user_file=tmp_path / "config.toml")
    loaded = load_settings(place=place)
    assert loaded.settings.notify == {"c": Notifier(slack_env="Y")}
    assert [one.partition("]")[0].rpartition("[")[2] for one in loaded.warnings] == [
        "notify.team",
        "notify.b",
    ]
    (tmp_path / "config.toml").write_text(text)
    found = load_settings(place=place).settings.notify
    assert found["team"] == Notifier(slack_env="X", links=True)
    assert found["b"] == Notifier(command=("b",))
    (tmp_path / "loopwright.toml").write_text("[notify.team]\nx = 1\n")
    with pytest.raises(LoopwrightError) as error:
        load_settings(place=place)
    assert error.value.code == "bad-setting"


# -- links -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that tells a command, with links."""
    folder = tmp_path_factory.mktemp("told")
    kinds = ("gate.opened", "run.finished")
    notifier = Notifier(command=teller(folder), links=True, kinds=kinds)
    with served(folder, more={"notify": {"team": notifier}}) as one:
        yield one


def link(own: Served) -> tuple[str, str]:
    """A run that waits, and the code of the link that was sent."""
    run, _ = own.gated()
    found: list[Any] = []

    def is_told() -> bool:
        found[:] = [one for one in told(own.folder, 1) if one["data"]["run"] == run]
        return bool(found)

    wait_for(is_told, lambda: "nobody was told")
    assert found[0]["link"].startswith(f"http://127.0.0.1:{own.port}/decide#")
    return run, found[0]["link"].partition("#")[2]


def use(own: Served, code: str, decision: str = "look", **more: str) -> Reply:
    return own("POST", LINKS, {"code": code, "decision": decision, **more}, token="")


@pytest.mark.item("G14")
@pytest.mark.parametrize(("decision", "status"), [("approve", "completed"), ("reject", "failed")])
def test_a_link_decides_once(told_server: Served, decision: str, status: str) -> None:
    """Looking changes nothing; the answer counts as that of the channel; after it the same link
    is 409 whatever it says, and nothing more happens.
    """
    own = told_server
    run, code = link(own)
    for _ in range(2):
        look = use(own, code)
        assert (look.status, look.json["decision"]) == (200, None)
        assert look.json["shown"] != []
    assert own("GET", f"/api/v1/runs/{run}").json["status"] == "waiting"
    assert use(own, code, decision, text="fine").status == 200
    own.until(run, status)
    before = own.context.here.log.version(run)
    for again in ("approve", "reject", "look"):
        reply = use(own, code, again)
        assert (reply.status, reply.code) == (409, "link-used")
    assert own.context.here.log.version(run) == before
    rows = own.context.records.audited(subject=run)
    assert [row.who for row in rows if row.action == "gate.answered"] == ["link:notify:team"]


@pytest.mark.item("G14")
def test_links_that_are_over(told_server: Served) -> None:
    """410 when its time is over, 409 when the gate was answered by another way, 404 for no link;
    the code itself is kept nowhere.
    """
    own = told_server
    run, code = link(own)
    for record in own.call(lambda: own.context.records.records(LINK)):
        assert code.encode() not in record.body
        assert code != record.key
        found = msgspec.json.decode(record.body, type=GateLink)
        if found.run == run:
            old = msgspec.structs.replace(found, expires_at=1)
            body = msgspec.json.encode(old)
            late = StoredRecord(kind=LINK, key=record.key, body=body, due=record.due)
            own.call(lambda late=late: own.context.records.change([(late, None)]))
    reply = use(own, code, "approve")
    assert (reply.status, reply.code) == (410, "link-expired")
    other, second = link(own)
    gate = own("GET", f"/api/v1/runs/{other}").json["gates"][0]["id"]
    assert own("POST", f"/api/v1/gates/{gate}/approve", {}).status == 200
    reply = use(own, second, "approve")
    assert (reply.status, reply.code) == (409, "already-resolved")
    assert use(own, second).code == "no-longer-waiting"
    for bad in ("", "x", code[:-1], "é"):
        assert use(own, bad, "approve").status == 404
    assert own("GET", f"/api/v1/runs/{run}").json["status"] == "waiting"
    own.call(lambda: own.context.webhooks._channels.links.forget_old())  # type: ignore[union-attr]
    assert use(own, second).status == 409


def test_a_link_of_before_four_eyes(told_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that was sent before somebody else had to approve approves nothing any more."""
    run, code = link(told_server)
    monkeypatch.setattr(told_server.context.service, "four_eyes", True)
    reply = use(told_server, code, "approve")
    assert (reply.status, reply.code) == (403, "self-approval")
    assert told_server("GET", f"/api/v1/runs/{run}").json["status"] == "waiting"
    assert use(told_server, code, "reject").status == 200


def test_the_page_of_a_link(told_server: Served) -> None:
    """It is plain, asks by script, and needs no account."""
    page = told_server("GET", "/decide", token="")
    assert page.headers["content-type"].startswith("text/html")
    assert b'<script src="/decide.js">' in page.body
    assert b"/api/v1/links" in told_server("GET", "/decide.js", token="").body


def test_no_links_under_four_eyes(world: World, tmp_path: Path) -> None:
    """Nobody knows who follows a link, so where two people are needed there is none."""
    settings = Settings(
        home=tmp_path,
        four_eyes="on",
        notify={"team": Notifier(slack="https://hooks.example/x", links=True)},
    )
    world.hooks._channels = SettingsChannels(
        settings, log=world.log, records=world.log, clock=world.clock, base="https://x.example"
    )
    world.hooks.begin()
    world.clock.elapse(1)
    world.finish()
    world.deliver()
    assert world.log.records(LINK) == []
    assert all(b"Decide" not in body for _, _, body in world.got)
