"""Loops over Socket.IO, with a real client: one test for each promise of their document."""

import asyncio
import json
import socket
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import socketio

from loopwright.http.context import RequestLimits
from loopwright.http.socket_endpoint import Sockets
from loopwright.operations.accounts.people import hashed
from tests.http.served import SECONDS, Served, served, wait_for
from tests.http.talking import Tab, tab, talk
from tests.http.test_assistants import BASE, STAYS, made, people, status

MANUAL = {"type": "manual", "value": ""}
DONE = {"type": "regex", "value": "done"}


async def begin(one: Tab, agent: str, **more: Any) -> dict[str, Any]:
    answer = await one.say("loop:start", {"agentId": agent, "message": "Do it.", **more})
    return dict(answer)


SHAPE = {"id", "notification", "kind", "level", "title", "agentId", "run", "seq", "at", "actions"}


@pytest.mark.item("rondoflow-42", "rondoflow-43", "rondoflow-44", "rondoflow-17", "rondoflow-68")
def test_a_loop_is_sent_to_all_tabs_of_its_starter(shared: Served) -> None:
    """Every tab gets each iteration in order and the end with the whole output; nobody else
    does.
    """
    agent = made(shared, "one", "two", "all done", loopCriteria=DONE)
    other = people(shared, "editor")

    async def go() -> None:
        async with tab(shared) as one, tab(shared) as two, tab(shared, other) as stranger:
            answer = await begin(one, agent)
            assert (answer["ok"], answer["status"]) == (True, "started")
            for each in (one, two):
                await each.first("agent:status", agentId=agent, status="idle")
                told = [(name, data) for name, data in each.got if data["agentId"] == agent]
                assert [data for name, data in told if name == "agent:loop_iteration"] == [
                    {"agentId": agent, "iteration": number, "maxIterations": 10}
                    for number in (1, 2, 3)
                ]
                words = [data["status"] for name, data in told if name == "agent:status"]
                assert words == ["running", "idle"]
                notes = [data for name, data in told if name == "notification"]
                assert len({note["id"] for note in notes}) == 4
                assert all(note.keys() >= SHAPE | {"iteration"} for note in notes)
                kinds = [note["kind"] for note in notes]
                assert kinds == [*["loop.progress"] * 3, "loop.completed"]
                assert {note["level"] for note in notes} == {"info"}
                assert [note.get("output") for note in notes[:3]] == ["one", "two", "all done"]
                assert (notes[-1]["finalOutput"], notes[-1]["totalIterations"]) == ("all done", 3)
                names = [name for name, _ in told]
                assert names[1:5] == [
                    "iteration",
                    "agent:loop_iteration",
                    "progress",
                    "notification",
                ]
                about = {"agentId": agent, "run": answer["run"]}
                (*_, iteration) = each.all("iteration")
                assert iteration == {
                    **about,
                    "iteration": 3,
                    "maxIterations": 10,
                    "output": "all done",
                }
                (*_, progress) = each.all("progress")
                assert progress == {**about, "iteration": 3, "learning": "all done"}
                (completed,) = each.all("completed")
                assert completed == {**about, "totalIterations": 3, "finalOutput": "all done"}
            assert stranger.got == []

    talk(go())


@pytest.mark.item("rondoflow-44", "rondoflow-28", "rondoflow-29", "rondoflow-30")
@pytest.mark.parametrize("approved", [True, False])
def test_a_review_over_the_socket(shared: Served, approved: bool) -> None:
    """The request offers both answers and shows what is decided about; the first answer counts."""
    agent = made(shared, loopCriteria=MANUAL)

    async def go() -> None:
        async with tab(shared) as one:
            await begin(one, agent)
            note = await one.first("notification", agentId=agent, level="action_required")
            assert note["actions"] == ["approve", "reject"]
            assert note.keys() >= SHAPE | {"loopId", "iteration", "output"}
            event = await one.first("manual_approval_required", agentId=agent)
            assert event == {
                "agentId": agent,
                "run": note["run"],
                "iteration": 1,
                "output": "some work",
                "loopId": note["loopId"],
            }
            assert (note["iteration"], note["output"]) == (1, "some work")
            answer = {"agentId": agent, "loopId": "gate_0", "approved": True}
            wrong = await one.say("loop:approve", answer)
            assert (wrong["ok"], wrong["code"]) == (False, "no-review")
            answer = {"agentId": agent, "loopId": note["loopId"], "approved": approved}
            assert (await one.say("loop:approve", answer))["ok"] is True
            if approved:
                end = await one.first("notification", agentId=agent, kind="loop.completed")
                assert end["finalOutput"] == "some work"
                await one.first("agent:status", agentId=agent, status="idle")
            else:
                await one.first("agent:status", agentId=agent, status="error")
                (failed,) = [e for e in one.all("agent:error") if e["type"] == "PROCESS_ERROR"][1:]
                assert failed == {
                    "agentId": agent,
                    "sessionId": "",
                    "error": "Manual approval was rejected by user",
                    "type": "PROCESS_ERROR",
                }

    talk(go())


def test_a_start_returns_the_warnings_of_its_assistant(shared: Served) -> None:
    """Fields of an assistant without effect are named in the answer, as over HTTP."""
    doubtful = made(shared, "done", loopCriteria=DONE, avatar="a.png")
    plain = made(shared, "done", loopCriteria=DONE)

    async def go() -> None:
        async with tab(shared) as one:
            [warning] = (await begin(one, doubtful))["warnings"]
            assert "warning: ignored-field: avatar" in warning
            assert (await begin(one, plain))["warnings"] == []
            for agent in (doubtful, plain):
                await one.first("agent:status", agentId=agent, status="idle")

    talk(go())


@pytest.mark.item("rec-46", "rondoflow-45", "rondoflow-36", "rondoflow-7", "rondoflow-34")
def test_refusals_over_the_socket(shared: Served) -> None:
    """Each refusal is an answer and an error event with its type, in the words of HTTP; nothing is
    announced.
    """
    off, agent = made(shared, loopEnabled=False), made(shared, STAYS)

    async def go() -> None:
        async with tab(shared) as one:
            cases = [
                ("loop:start", "agent_nobody", "PROCESS_ERROR", "no-assistant"),
                ("loop:start", off, "PROCESS_ERROR", "loop-disabled"),
                ("loop:stop", agent, "PROCESS_ERROR", "no-loop"),
                ("loop:stop", "agent_nobody", "PROCESS_ERROR", "no-assistant"),
            ]
            for event, of, kind, code in cases:
                message = {"message": "x"} if event == "loop:start" else {}
                answer = await one.say(event, {"agentId": of, **message})
                assert (answer["ok"], answer["type"], answer["code"]) == (False, kind, code)
                path = f"/api/agents/{of}/{event.replace(':', '/')}"
                over = await asyncio.to_thread(shared, "POST", path, message)
                assert over.json == {"success": False, "error": answer["error"], "code": code}
            ours = (off, agent, "agent_nobody")
            told = [(name, data["type"]) for name, data in one.got if data["agentId"] in ours]
            assert told == [("agent:error", "PROCESS_ERROR")] * 4
            await begin(one, agent)
            again = await begin(one, agent)
            assert (again["type"], again["code"]) == ("RESOURCE_ERROR", "already-running")
            told = await one.first("agent:error", type="RESOURCE_ERROR")
            assert told["agentId"] == agent
            assert (await one.say("loop:stop", {"agentId": agent}))["ok"]
            await one.first("agent:status", agentId=agent, status="idle")
            assert (await begin(one, agent))["ok"]
            await one.say("loop:stop", {"agentId": agent})

    talk(go())


@pytest.mark.item("rondoflow-31", "rondoflow-43", "rondoflow-66", "rondoflow-67", "rondoflow-68")
def test_a_failing_loop_over_the_socket(shared: Served) -> None:
    """The error names the iteration, the status goes to error, and the assistant is free again."""
    agent = made(shared, {"fail": {"type": "crashed", "detail": "exit 3"}})

    async def go() -> None:
        async with tab(shared) as one:
            await begin(one, agent)
            await one.first("agent:status", agentId=agent, status="error")
            (failed,) = one.all("agent:error")
            assert failed["type"] == "PROCESS_ERROR"
            assert failed["error"].startswith("Iteration 1")
            event = await one.first("failed", agentId=agent)
            note = await one.first("notification", agentId=agent)
            assert note.keys() >= SHAPE
            assert (note["kind"], note["level"]) == ("loop.failed", "error")
            for told in (event, note):
                assert (told["iteration"], told["error"]) == (1, failed["error"])
            names = [name for name, data in one.got if data.get("agentId") == agent]
            assert names == [
                "agent:status",
                "failed",
                "agent:error",
                "notification",
                "agent:status",
            ]
            kept = f"/api/v1/notifications?run={note['run']}"

            def read() -> list[Any]:
                page = shared("GET", kept).json["notifications"]
                return [(one["id"], one["read"]) for one in page]

            await asyncio.to_thread(wait_for, read)
            assert await asyncio.to_thread(read) == [(note["id"], False)]
            assert (await one.say("notifications:read", {"ids": [note["id"]]}))["read"] == 1
            assert await asyncio.to_thread(read) == [(note["id"], True)]
            unknown = await one.say("notifications:read", {"ids": ["ntf_0"]})
            assert (unknown["ok"], unknown["code"]) == (False, "not-found")
            assert one.all("agent:loop_iteration") == []
            assert (await begin(one, agent))["ok"]

    talk(go())


@pytest.mark.item("rondoflow-46", "rondoflow-11", "F8")
def test_a_viewer_changes_nothing(shared: Served) -> None:
    """Viewers are refused with the documented words, which is written down; nothing happens."""
    agent = made(shared, loopCriteria=MANUAL)
    viewer = people(shared, "viewer")

    async def go() -> None:
        async with tab(shared) as one, tab(shared, viewer) as looker:
            await begin(one, agent)
            note = await one.first("notification", level="action_required")
            before = status(shared, agent)
            approve = {"agentId": agent, "loopId": note["loopId"], "approved": True}
            start = {"agentId": agent, "message": "x"}
            said = {"loop:start": start, "loop:stop": {"agentId": agent}, "loop:approve": approve}
            for event, data in said.items():
                answer = await looker.say(event, data)
                assert answer["type"] == "POLICY_ERROR"
                assert answer["error"] == (
                    "Your role does not permit running or modifying workflows"
                )
            assert [one["type"] for one in looker.all("agent:error")] == ["POLICY_ERROR"] * 3
            assert status(shared, agent) == before
            assert (await looker.say("subscribe", {"run": before["run"]}))["ok"]
            await one.say("loop:stop", {"agentId": agent})

    talk(go())
    rows = [row for row in shared.context.records.audited() if row.action == "denied"]
    assert sorted(row.subject for row in rows[:3]) == ["loop:approve", "loop:start", "loop:stop"]


@pytest.mark.item("rondoflow-62")
def test_an_editor_stops_the_loop_of_another(shared: Served) -> None:
    """Both the one who stops and the one whose loop it was are told."""
    agent = made(shared, STAYS)
    editor = people(shared, "editor")

    async def go() -> None:
        async with tab(shared) as owner, tab(shared, editor) as other:
            await begin(owner, agent)
            await owner.first("agent:status", status="running")
            assert (await other.say("loop:stop", {"agentId": agent}))["ok"]
            await owner.first("agent:status", agentId=agent, status="idle")
            assert other.all("agent:status") == [{"agentId": agent, "status": "idle"}]

    talk(go())


def test_a_loop_of_another_interface_is_reported_too(shared: Served) -> None:
    """A loop that was started over HTTP is told to the tabs of its starter, and stopped by them."""
    agent = made(shared, STAYS)

    async def go() -> None:
        async with tab(shared) as one:
            ask = asyncio.to_thread(
                shared, "POST", f"{BASE}/{agent}/loop/start", {"message": "Do it."}
            )
            assert (await ask).status == 202
            await one.first("agent:status", agentId=agent, status="running")
            assert (await one.say("loop:stop", {"agentId": agent}))["ok"]
            await one.first("agent:status", agentId=agent, status="idle")

    talk(go())


def test_a_person_who_comes_back_sees_how_it_stands(shared: Served) -> None:
    """A new tab is told which loops are under way, how far, and what waits for an answer."""
    agent = made(shared, loopCriteria=MANUAL)

    async def go() -> None:
        async with tab(shared) as one:
            await begin(one, agent)
            before = await one.first("notification", agentId=agent, level="action_required")
        async with tab(shared) as one:
            note = await one.first("notification", agentId=agent, level="action_required")
            assert note == before
            assert {"agentId": agent, "status": "running"} in one.all("agent:status")
            ring = {"agentId": agent, "iteration": 1, "maxIterations": 10}
            assert ring in one.all("agent:loop_iteration")
            await one.say("loop:stop", {"agentId": agent})

    talk(go())


# -- who comes in, and what they may say -----------------------------------------------------------


async def refused(own: Served, **how: Any) -> str:
    """What somebody is told who is not let in."""
    one = socketio.AsyncClient(reconnection=False)
    how.setdefault("transports", ["websocket"])
    query = how.pop("query", "")
    try:
        await one.connect(f"http://127.0.0.1:{own.port}{query}", **how)
    except socketio.exceptions.ConnectionError as error:
        return str(error)
    finally:
        await one.disconnect()
    raise AssertionError("let in")


HANDSHAKE = "/socket.io/?EIO=4&transport=polling"


@pytest.mark.item("F1", "F2", "F5")
def test_what_is_refused_before_the_handshake(shared: Served) -> None:
    """Pages of other sites, rebound names and tokens in addresses are refused by polling too."""
    port = shared.port
    for origin in (f"http://127.0.0.1:{port}.evil", "http://evil", "null"):
        assert shared("GET", HANDSHAKE, headers={"Origin": origin}).status == 403
    rebound = {"Host": f"evil:{port}", "Origin": f"http://evil:{port}"}
    assert shared("GET", HANDSHAKE, headers=rebound).status == 400
    assert shared("GET", f"{HANDSHAKE}&token={shared.token}").status == 400
    own = {"Origin": f"http://127.0.0.1:{port}"}
    begun = shared("GET", HANDSHAKE, headers=own)
    assert begun.status == 200
    line = f"{HANDSHAKE}&sid={json.loads(begun.body[1:])['sid']}"
    plain = {"Content-Type": "text/plain"}
    assert shared("POST", line, raw=b'40{"token":"x"}', token="", headers=plain).status == 200
    assert b"this token is not known here" in shared("GET", line, token="").body
    assert shared("POST", line, raw=b'42["loop:stop",{}]', token="", headers=plain).status < 500


@pytest.mark.item("F1", "F3", "F5", "F13")
def test_who_is_not_let_in(shared: Served) -> None:
    """Pages of other sites, rebound names, strangers and tokens in addresses get no further."""
    port, auth = shared.port, {"token": shared.token}

    async def go() -> None:
        for origin in (f"http://127.0.0.1:{port}.evil", "http://evil", "null"):
            await refused(shared, auth=auth, headers={"Origin": origin})
        rebound = {"Host": "evil", "Origin": "http://evil"}
        await refused(shared, auth=auth, headers=rebound)
        for nobody in (None, {}, {"token": "lwt_x_y"}, {"role": "admin", "scopes": ["*"]}, "admin"):
            await refused(shared, auth=nobody)
        await refused(shared, query=f"?token={shared.token}")
        own = {"Origin": f"http://127.0.0.1:{port}"}
        for transports in (["websocket"], ["polling", "websocket"]):
            async with tab(shared, transports=transports, headers=own) as one:
                assert (await one.say("unsubscribe", {"run": "x"}))["ok"]

    talk(go())


@pytest.mark.item("F2")
@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 101), ("evil.example", 403), ("127.0.0.1.evil.example", 403)],
)
def test_a_socket_by_another_name(shared: Served, host: str, status: int) -> None:
    """A name that was made to point here opens no socket, with no Origin either."""
    head = (
        f"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: {host}:{shared.port}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", shared.port), timeout=SECONDS) as line:
        line.sendall(head.encode())
        assert line.recv(65_536).startswith(b"HTTP/1.1 %d " % status)


def test_a_session_will_do(own: Served) -> None:
    """A page of ours comes in by the cookie of its session."""
    people_here, password = own.context.people, "correct horse"
    own.call(lambda: people_here.add("ann", "editor", by="test", password=hashed(password)))
    secret = own.call(lambda: people_here.sign_in("ann", password)).secret
    page = {"Origin": f"http://127.0.0.1:{own.port}", "Content-Type": "text/plain"}
    for cookie, answer in ((secret, b'40{"sid"'), ("x", b"44{")):
        sent = {**page, "Cookie": f"loopwright_session={cookie}"}
        begun = own("GET", HANDSHAKE, token="", headers=sent)
        line = f"{HANDSHAKE}&sid={json.loads(begun.body[1:])['sid']}"
        assert own("POST", line, raw=b"40", token="", headers=sent).status == 200
        assert own("GET", line, token="", headers=sent).body.startswith(answer)


def test_a_token_in_a_header_will_do(shared: Served) -> None:
    """Programs may send their token as they do with every request."""

    async def go() -> None:
        headers = {"Authorization": f"Bearer {shared.token}"}
        async with tab(shared, "", headers=headers) as one:
            assert (await one.say("unsubscribe", {"run": "x"}))["ok"]

    talk(go())


@pytest.mark.item("F6")
@pytest.mark.parametrize(
    "said",
    [
        '["loop:start",{"agentId":"AGENT","message":"half \\ud800"}]',
        '["loop:start",{"agentId":"\\udc00","message":"x"}]',
        '["loop:start",{"agentId":"AGENT","message":"x","message":"y"}]',
        '["loop:start",{"agentId":"AGENT","message":1e999}]',
        '["loop:start",',
        "[]",
    ],
)
def test_events_that_cannot_be_read(
    shared: Served, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    """JSON is as strict as in a body; its sender is told, nothing is started, nothing is logged."""
    agent = made(shared)
    plain = {"Content-Type": "text/plain", "Authorization": f"Bearer {shared.token}"}
    begun = shared("GET", HANDSHAKE, token="", headers=plain)
    line = f"{HANDSHAKE}&sid={json.loads(begun.body[1:])['sid']}"
    packet = f"4217{said.replace('AGENT', agent)}".encode()
    for one in (b"40", packet):
        assert shared("POST", line, raw=one, token="", headers=plain).status == 200
    answer = b""
    while b"4317[" not in answer:
        answer += shared("GET", line, token="", headers=plain).body
    assert b'"code":"bad-event"' in answer
    assert status(shared, agent)["run"] is None
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.item("F6")
def test_odd_events(shared: Served) -> None:
    """What is not understood is answered so, and the socket stays."""
    agent = made(shared)

    async def go() -> None:
        async with tab(shared) as one:
            odd: list[tuple[str, tuple[Any, ...]]] = [
                ("no:such", ({},)),
                ("loop:start", ()),
                ("loop:start", ("text",)),
                ("loop:start", (1,)),
                ("loop:stop", tuple({"agentId": agent} for _ in range(100))),
            ]
            for event, args in odd:
                answer = await one.say(event, *args) if len(args) != 0 else await one.say(event, ())
                assert (answer["ok"], answer["code"]) == (False, "bad-event"), event
            fields: list[tuple[str, str, dict[str, Any]]] = [
                ("missing-field", "loop:start", {"agentId": agent}),
                ("out-of-range", "loop:start", {"agentId": agent, "message": ""}),
                ("wrong-type", "loop:start", {"agentId": 1, "message": "x"}),
                ("unknown-field", "loop:start", {"agentId": "a", "message": "x", "role": "admin"}),
                ("wrong-type", "loop:approve", {"agentId": "a", "loopId": "g", "approved": "yes"}),
                ("out-of-range", "subscribe", {"run": "x" * 1_000}),
                ("out-of-range", "subscribe", {"run": "x", "after": -1}),
            ]
            for code, event, given in fields:
                answer = await one.say(event, given)
                assert (answer["ok"], answer["code"]) == (False, code), event
            reserved: list[tuple[str, tuple[Any, ...]]] = [
                ("disconnect", ("x",)),
                ("connect", ({"asgi.scope": 1}, {"token": "x"})),
            ]
            for event, args in reserved:
                await one.client.emit(event, args)
            assert (await one.say("unsubscribe", {"run": "x"}))["ok"]
            assert one.all("agent:error") == []

    talk(go())
    assert status(shared, agent)["run"] is None


@pytest.mark.usefixtures("full_once")
@pytest.mark.item("F7")
def test_too_much_is_cut_off(tmp_path: Path) -> None:
    """A huge message and a flood of small ones end the connection; others do not notice."""

    async def go(own: Served) -> None:
        async with tab(own) as good:
            async with tab(own) as huge:
                await huge.client.emit("loop:start", {"agentId": "x" * 5_000_000, "message": "x"})
                async with asyncio.timeout(SECONDS):
                    await huge.client.wait()
                assert not huge.client.connected
            async with tab(own) as flood:
                for _ in range(1_000):
                    if flood.client.connected:
                        await flood.client.emit("unsubscribe", {"run": "x"})
                async with asyncio.timeout(SECONDS):
                    await flood.client.wait()
            assert (await good.say("unsubscribe", {"run": "x"}))["ok"]

    with served(tmp_path, limits=RequestLimits()) as own:
        talk(go(own))


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Lines are looked through from then on: what is said before is answered, however slowly."""
    event, look = threading.Event(), Sockets._shut_out

    async def after(self: Sockets) -> None:
        if event.is_set():
            await look(self)

    monkeypatch.setattr(Sockets, "_shut_out", after)
    return event


@pytest.mark.item("F9")
def test_a_person_who_is_shut_out(tmp_path: Path, denied: threading.Event) -> None:
    """Once their token is revoked the next event is denied, and the line is closed."""
    with served(tmp_path, limits=RequestLimits(recheck_seconds=0.2)) as own:
        _shut_out(own, denied)


def _shut_out(own: Served, denied: threading.Event) -> None:
    agent, editor = made(own), people(own, "editor")

    async def go() -> None:
        async with tab(own, editor) as one, tab(own, editor) as silent:
            own.context.access.revoke(editor.split("_")[1], by="test")
            answer = await one.say("loop:start", {"agentId": agent, "message": "x"})
            assert answer["ok"] is False
            denied.set()
            async with asyncio.timeout(SECONDS):
                await silent.client.wait()

    talk(go())
    assert status(own, agent)["run"] is None


LESS: list[dict[str, Any]] = [{"role": "viewer"}, {"active": False}]


@pytest.mark.item("F9")
@pytest.mark.parametrize("less", LESS, ids=["demoted", "closed"])
def test_a_follower_whose_role_is_taken_away(
    tmp_path: Path, less: dict[str, Any], denied: threading.Event
) -> None:
    """While they follow a run, by a session and by a token: the next event is denied, the lines are
    closed within five seconds, and nothing more of the run is told.
    """
    assert RequestLimits().recheck_seconds < 5
    with served(tmp_path, limits=RequestLimits(recheck_seconds=0.2)) as own:
        known, password = own.context.people, "correct horse"
        own.call(lambda: known.add("ann", "editor", by="test", password=hashed(password)))
        secret = own.call(lambda: known.sign_in("ann", password)).secret
        token = own.context.access.new_token("hers", "editor", by="test", person="ann").text
        page = {
            "Origin": f"http://127.0.0.1:{own.port}",
            "Cookie": f"loopwright_session={secret}",
        }
        run, gate = own.gated()
        agent = made(own)

        async def go() -> None:
            async with (
                tab(own, "", headers=dict(page), host="localhost") as says,
                tab(own, "", headers=dict(page), host="localhost") as silent,
                tab(own, token) as program,
                tab(own) as other,
            ):
                lines = (says, silent, program)
                for one in (*lines, other):
                    assert (await one.say("subscribe", {"run": run}))["ok"]
                own.call(lambda: known.change("ann", by="test", **less))
                answer = await says.say("loop:start", {"agentId": agent, "message": "x"})
                assert (answer["ok"], answer["code"]) == (False, "gone")
                denied.set()
                async with asyncio.timeout(SECONDS):
                    await asyncio.gather(*(one.client.wait() for one in lines))
                await asyncio.to_thread(own, "POST", f"/api/v1/gates/{gate}/approve", {})
                await other.until(lambda: "run.finished" in str(other.got))
                assert not [one.got for one in lines if one.all("run:events")]

        talk(go())
        assert status(own, agent)["run"] is None


def test_how_many_sockets(shared: Served) -> None:
    """One person has twenty at most, with whichever of their tokens."""
    editor = people(shared, "editor")
    more = {"label": "another of mine", "role": "viewer"}
    another = shared("POST", "/api/v1/tokens", more, token=editor).json["token"]

    async def go() -> None:
        tabs = [tab(shared, editor) for _ in range(20)]
        for one in tabs:
            await one.__aenter__()
        await refused(shared, auth={"token": editor})
        await refused(shared, auth={"token": another})
        for one in tabs:
            await one.__aexit__(None, None, None)

    talk(go())


@pytest.mark.item("G8", "inv-11")
def test_a_hundred_clients_answer_one_review(shared: Served) -> None:
    """Approvals and rejections of a hundred clients at the same instant: exactly one counts."""
    agent = made(shared, loopCriteria=MANUAL)
    tokens = [people(shared, "editor", str(number)) for number in range(5)]

    async def go() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            one = await stack.enter_async_context(tab(shared))
            await begin(one, agent)
            note = await one.first("notification", agentId=agent, level="action_required")
            come = [stack.enter_async_context(tab(shared, token)) for token in tokens * 20]
            tabs = [await each for each in come]
            said = [
                {"agentId": agent, "loopId": note["loopId"], "approved": number % 2 == 0}
                for number in range(100)
            ]
            answers = await asyncio.gather(
                *(each.say("loop:approve", what) for each, what in zip(tabs, said, strict=True))
            )
            assert [answer["ok"] for answer in answers].count(True) == 1
            codes = {answer["code"] for answer in answers if not answer["ok"]}
            assert codes <= {"no-review", "already-resolved", "no-longer-waiting", "no-loop"}
            await one.until(lambda: one.all("agent:status")[-1]["status"] in ("idle", "error"))

    talk(go())
    run = status(shared, agent)["run"]
    actions = [row.action for row in shared.context.records.audited(subject=run)]
    assert actions.count("gate.answered") == 1


@pytest.mark.item("G8", "inv-11")
def test_a_hundred_answers_by_two_interfaces(shared: Served) -> None:
    """Fifty answers over sockets and fifty over HTTP at the same instant, yes and no: one counts,
    and everybody else is told that it was not theirs.
    """
    agent = made(shared, loopCriteria=MANUAL)

    async def go() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            tabs = [await stack.enter_async_context(tab(shared)) for _ in range(10)]
            await begin(tabs[0], agent)
            note = await tabs[0].first("notification", agentId=agent, level="action_required")
            gates = (await asyncio.to_thread(shared, "GET", "/api/v1/gates")).json["gates"]
            [gate] = [one["id"] for one in gates if one["run"] == note["run"]]
            ways = [f"/api/v1/gates/{gate}/{word}" for word in ("approve", "reject")]
            said = {"agentId": agent, "loopId": note["loopId"]}
            answers = await asyncio.gather(
                *(
                    each.say("loop:approve", {**said, "approved": number % 2 == 0})
                    for number in range(5)
                    for each in tabs
                ),
                *(
                    asyncio.to_thread(shared, "POST", ways[number % 2], {"text": "no"})
                    for number in range(50)
                ),
            )
        sockets = [answer["ok"] for answer in answers[:50]]
        replies = [answer.status for answer in answers[50:]]
        assert sockets.count(True) + replies.count(200) == 1
        assert set(replies) <= {200, 409}

    talk(go())
    run = status(shared, agent)["run"]
    actions = [row.action for row in shared.context.records.audited(subject=run)]
    assert actions.count("gate.answered") == 1


def test_numbers_beyond_what_can_be_kept(shared: Served) -> None:
    """A number that no store holds is refused, and the connection goes on."""

    async def go() -> None:
        async with tab(shared) as one:
            answer = await one.say("subscribe", {"run": "x", "after": 10**30})
            assert (answer["ok"], answer["code"]) == (False, "out-of-range")
            assert (await one.say("unsubscribe", {"run": "x"}))["ok"]

    talk(go())
