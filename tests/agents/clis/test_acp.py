"""The client's side of the Agent Client Protocol, played without a process."""

import json

import pytest

from loopwright.agents.clis.acp import (
    ABOUT_CHARS,
    PERMISSIONS,
    AcpConversation,
    Move,
    Permission,
    Send,
    policy,
    unfit,
)
from loopwright.agents.clis.transcript import LiveEntry
from loopwright.kernel.events import Usage
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue

OPTIONS: JsonValue = [
    {"optionId": "once", "kind": "allow_once", "name": "Allow once"},
    {"optionId": "always", "kind": "allow_always", "name": "Always"},
    {"optionId": "no", "kind": "reject_once", "name": "Reject"},
]


def talk(session: str | None = None) -> AcpConversation:
    return AcpConversation(prompt="Do it.", cwd="/ws", session=session)


def hears(conversation: AcpConversation, message: JsonValue) -> list[Move]:
    return conversation.read_line(json.dumps(message).encode())


def sent(moves: list[Move]) -> list[dict[str, JsonValue]]:
    return [move.message for move in moves if isinstance(move, Send)]


def result(number: int, **value: JsonValue) -> JsonValue:
    return {"jsonrpc": "2.0", "id": number, "result": value}


def update(what: str, **more: JsonValue) -> JsonValue:
    params: JsonValue = {"sessionId": "s-1", "update": {"sessionUpdate": what, **more}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


def asks(number: int = 7, **call: JsonValue) -> JsonValue:
    tool: JsonValue = {"toolCallId": "c1", "title": "Write a.txt", "kind": "edit", **call}
    params: JsonValue = {"sessionId": "s-1", "toolCall": tool, "options": OPTIONS}
    method = "session/request_permission"
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def prompted() -> AcpConversation:
    """A conversation whose prompt is under way."""
    conversation = talk()
    conversation.begin()
    hears(conversation, result(1, agentCapabilities={}))
    hears(conversation, result(2, sessionId="s-1"))
    return conversation


def test_a_whole_conversation() -> None:
    """Greeting, session, prompt, pieces of the answer, the end."""
    conversation = talk()
    (hello,) = sent(conversation.begin())
    assert hello["method"] == "initialize"
    capabilities = hello["params"]["clientCapabilities"]  # type: ignore[index,call-overload]
    assert capabilities == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }
    (new,) = sent(hears(conversation, result(1, agentCapabilities={"loadSession": True})))
    assert (new["method"], new["params"]) == ("session/new", {"cwd": "/ws", "mcpServers": []})
    (prompt,) = sent(hears(conversation, result(2, sessionId="s-1")))
    assert prompt["params"] == {
        "sessionId": "s-1",
        "prompt": [{"type": "text", "text": "Do it."}],
    }
    shown = [
        *hears(conversation, update("agent_message_chunk", content={"type": "text", "text": "I "})),
        *hears(conversation, update("agent_message_chunk", content={"type": "text", "text": "do"})),
        *hears(conversation, update("tool_call", title="Write a.txt", kind="edit")),
        *hears(conversation, update("tool_call", title="odd")),
        *hears(conversation, update("agent_message_chunk", content={"text": "Done."})),
        *hears(conversation, update("usage_update", cost={"amount": 0.5, "currency": "USD"})),
        *hears(conversation, update("usage_update", cost={"amount": 9, "currency": "EUR"})),
        *hears(conversation, update("of_the_future")),
    ]
    assert shown == [
        LiveEntry("text", "I "),
        LiveEntry("text", "do"),
        LiveEntry("tool", "edit Write a.txt"),
        LiveEntry("tool", "tool odd"),
        LiveEntry("text", "Done."),
    ]
    usage: JsonValue = {"inputTokens": 10, "outputTokens": 2}
    assert hears(conversation, result(3, stopReason="end_turn", usage=usage)) == []
    transcript = conversation.transcript
    assert (transcript.ending.ended, transcript.output, transcript.session) == (
        "well",
        "I do\n\nDone.",
        "s-1",
    )
    assert (transcript.spent.usage, conversation.cost, transcript.counts.tools) == (
        Usage(10, 2, unpriced=1),
        0.5,
        2,
    )
    assert conversation.phase == "over"
    assert hears(conversation, result(3, stopReason="refusal")) == []
    assert transcript.ending.ended == "well"


def test_a_session_is_loaded_and_its_replay_is_not_heard() -> None:
    """An agent that can load goes on with the session; what it repeats is no answer."""
    conversation = talk("s-0")
    conversation.begin()
    (load,) = sent(hears(conversation, result(1, agentCapabilities={"loadSession": True})))
    assert load["method"] == "session/load"
    assert load["params"]["sessionId"] == "s-0"  # type: ignore[index,call-overload]
    assert hears(conversation, update("agent_message_chunk", content={"text": "old"})) == []
    (prompt,) = sent(hears(conversation, {"jsonrpc": "2.0", "id": 2, "result": None}))
    assert prompt["params"]["sessionId"] == "s-0"  # type: ignore[index,call-overload]
    assert (conversation.began_anew, conversation.transcript.output) == (False, "")


@pytest.mark.parametrize("can_load", [True, False])
def test_a_session_that_is_gone_is_begun_anew(can_load: bool) -> None:
    """A session that cannot be loaded, or an agent that cannot load, begins a new one."""
    conversation = talk("s-0")
    conversation.begin()
    moves = hears(conversation, result(1, agentCapabilities={"loadSession": can_load}))
    if can_load:
        error: JsonValue = {"code": -32603, "message": "Internal error"}
        moves = hears(conversation, {"jsonrpc": "2.0", "id": 2, "error": error})
    (new,) = sent(moves)
    assert new["method"] == "session/new"
    assert (conversation.began_anew, conversation.transcript.session) == (True, None)


@pytest.mark.parametrize(
    ("stop", "trouble"),
    [
        ("cancelled", "aborted"),
        ("max_tokens", "turns"),
        ("max_turn_requests", "turns"),
        ("refusal", "other"),
    ],
)
def test_other_ends(stop: str, trouble: str) -> None:
    """A turn that did not come to its end ended badly."""
    conversation = prompted()
    hears(conversation, result(3, stopReason=stop))
    assert (conversation.transcript.ending.ended, conversation.transcript.ending.trouble) == (
        "badly",
        trouble,
    )
    assert conversation.transcript.spent.usage is None


def test_an_error_is_reported_with_its_details() -> None:
    """Agents put the words that matter into different places."""
    conversation = prompted()
    error: JsonValue = {"code": -32603, "message": "Internal error", "data": {"details": "401 no"}}
    hears(conversation, {"jsonrpc": "2.0", "id": 3, "error": error})
    assert conversation.transcript.ending.problem == "Internal error: 401 no"
    assert (conversation.transcript.ending.ended, conversation.transcript.ending.status) == (
        "badly",
        None,
    )
    assert conversation.phase == "over"


def test_a_permission_is_a_question() -> None:
    """What the agent wants to do is told exactly; the answer chooses by kind, never `always`."""
    conversation = prompted()
    (asked,) = hears(conversation, asks(rawInput={"path": "a.txt"}))
    assert asked == Permission(
        id=7,
        title="Write a.txt",
        kind="edit",
        about='{"path":"a.txt"}',
        allow="once",
        reject="no",
        call="c1",
    )
    assert isinstance(asked, Permission)
    yes = conversation.decide(asked, allowed=True).message
    assert yes["result"] == {"outcome": {"outcome": "selected", "optionId": "once"}}
    assert conversation.transcript.denied == []
    no = conversation.decide(asked, allowed=False).message
    assert no["result"] == {"outcome": {"outcome": "selected", "optionId": "no"}}
    assert conversation.transcript.denied == ["Write a.txt"]


def test_without_an_option_nothing_is_allowed() -> None:
    """An agent that offers only to allow for ever is not allowed anything."""
    conversation = prompted()
    message = asks(title="", kind="", content=[{"x": 1}])
    message["params"]["options"] = [OPTIONS[1]]  # type: ignore[index,call-overload]
    (asked,) = hears(conversation, message)
    assert isinstance(asked, Permission)
    assert (asked.title, asked.about) == ("use a tool", '[{"x":1}]')
    for allowed in (True, False):
        answer = conversation.decide(asked, allowed=allowed).message
        assert answer["result"] == {"outcome": {"outcome": "cancelled"}}


def test_long_questions_that_differ_never_look_alike() -> None:
    """A question is shortened for people, and its hash keeps all of it apart."""
    conversation = prompted()
    found = [hears(conversation, asks(rawInput="x" * ABOUT_CHARS + end))[0] for end in "ab"]
    first, second = found
    assert isinstance(first, Permission)
    assert isinstance(second, Permission)
    assert first.about != second.about
    assert len(first.about) < ABOUT_CHARS + 100
    (plain,) = hears(conversation, asks())
    assert isinstance(plain, Permission)
    assert plain.about == ""


def test_what_we_do_not_offer_is_refused() -> None:
    """A request for files or terminals is answered, and never followed; a notice is not."""
    conversation = prompted()
    request: JsonValue = {"jsonrpc": "2.0", "id": 4, "method": "fs/write_text_file", "params": {}}
    (answer,) = sent(hears(conversation, request))
    assert answer["error"]["code"] == -32601  # type: ignore[index,call-overload]
    assert hears(conversation, {"jsonrpc": "2.0", "method": "of/the/future"}) == []
    assert hears(conversation, {"jsonrpc": "2.0", "method": "session/request_permission"}) == []


def test_rubbish_and_strange_answers_say_nothing() -> None:
    """Lines that are no messages and answers to nobody change nothing."""
    conversation = prompted()
    assert conversation.read_line(b"warning: hello") == []
    assert conversation.read_line(b"  ") == []
    assert hears(conversation, result(99, stopReason="end_turn")) == []
    assert hears(conversation, [1]) == []
    assert (conversation.transcript.ending.ended, conversation.transcript.counts.garbage) == (
        None,
        2,
    )


def test_a_turn_can_be_cancelled_while_it_lasts() -> None:
    """A notice asks the agent to end its turn; without a turn there is nothing to ask."""
    (notice,) = sent(prompted().cancel())
    assert (notice["method"], notice["params"]) == ("session/cancel", {"sessionId": "s-1"})
    assert talk().cancel() == []


@pytest.mark.parametrize(
    ("permission", "kind", "decided"),
    [
        (None, "edit", "ask"),
        ("default", "read", "ask"),
        ("acceptEdits", "edit", "allow"),
        ("acceptEdits", "execute", "ask"),
        ("acceptEdits", "", "ask"),
        ("bypassPermissions", "execute", "allow"),
        ("read-only", "read", "allow"),
        ("plan", "edit", "reject"),
        ("dontAsk", "execute", "reject"),
        ("ask", "edit", "ask"),
        ("edit", "edit", "allow"),
        ("edit", "execute", "ask"),
        ("all", "execute", "allow"),
    ],
)
def test_what_a_definition_decides_by_itself(
    permission: str | None, kind: str, decided: str
) -> None:
    """A person is asked unless the definition has decided; what is unknown is asked about."""
    assert policy(Agent(permission=permission), wants(kind)) == decided


def wants(kind: str, command: str = "") -> Permission:
    return Permission(id=1, title="t", kind=kind, about="", allow="y", reject="n", command=command)


@pytest.mark.item("rec-31")
@pytest.mark.parametrize(
    ("permission", "command", "decided"),
    [
        (None, "pytest -q", "allow"),
        ("edit", "pytest -q", "allow"),
        ("all", "rm -rf x", "allow"),
        ("ask", "pytest -q", "ask"),
        ("plan", "pytest -q", "reject"),
        ("edit", "pytest -q; rm -rf x", "ask"),
        ("edit", "pytest -q\nrm -rf x", "ask"),
        ("edit", "pytest", "ask"),
        ("edit", "", "ask"),
    ],
    ids=["default", "edit", "all", "ask", "plan", "more", "second-line", "other", "unknown"],
)
def test_the_checks_of_the_loop_need_no_person(
    permission: str | None, command: str, decided: str
) -> None:
    """Exactly the command of a check is allowed, unless the agent may do nothing by itself."""
    agent = Agent(permission=permission)
    assert policy(agent, wants("execute", command), (("pytest", "-q"),)) == decided


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (Agent(permission="root"), "knows no permission 'root'"),
        (Agent(tools=("mystery",)), "cannot be confined to or kept from 'mystery'"),
        (Agent(deny_tools=("mystery",)), "cannot be confined to or kept from 'mystery'"),
        (Agent(tools=("Read", "bash"), deny_tools=("write",)), None),
        *((Agent(permission=word), None) for word in PERMISSIONS),
        (Agent(), None),
    ],
)
def test_what_the_protocol_has_no_words_for_is_refused(agent: Agent, says: str | None) -> None:
    """A right that an agent cannot be held to is not left out in silence."""
    found = unfit(agent)
    assert (found is None) if says is None else says in (found or "")


@pytest.mark.item("zenflow-74")
@pytest.mark.parametrize(
    ("agent", "rejected"),
    [
        (Agent(deny_tools=("bash",), permission="all"), {"execute"}),
        (Agent(deny_tools=("write",), permission="all"), {"edit", "delete", "move"}),
        (
            Agent(tools=("read", "grep"), permission="all"),
            {"execute", "edit", "delete", "move", "fetch"},
        ),
    ],
    ids=["command", "write", "only"],
)
def test_tools_that_an_agent_does_not_have_are_rejected(agent: Agent, rejected: set[str]) -> None:
    """Whatever its permission says: a request for one of them is refused without a person."""
    kinds = ("execute", "edit", "delete", "move", "fetch", "read", "search", "think")
    found = {kind for kind in kinds if policy(agent, wants(kind, "x")) == "reject"}
    assert found == rejected


def test_servers_of_a_stage_are_named_with_the_session() -> None:
    """How they are started, as the protocol has it."""
    talk = AcpConversation(prompt="p", cwd="/ws", servers=(("loopwright", ("python3", "x.py")),))
    talk.begin()
    line = b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}'
    [new] = [move for move in talk.read_line(line) if isinstance(move, Send)]
    assert new.message["params"] == {
        "cwd": "/ws",
        "mcpServers": [{"name": "loopwright", "command": "python3", "args": ["x.py"], "env": []}],
    }
