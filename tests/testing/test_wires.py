"""The fake wires, asked by the official clients, by hand, and as a program."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from loopwright.errors import DefinitionError
from loopwright.testing.wires import (
    ScriptedCall,
    ScriptedFault,
    ScriptedTurn,
    ScriptedUsage,
    TurnFilter,
    WireRequest,
    WireScript,
    WireServer,
    read_script,
)

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TURN = ScriptedTurn(
    text="I look at two things.",
    thinking="Hm.",
    calls=(
        ScriptedCall(name="read", args={"path": "a"}),
        ScriptedCall(name="list", args={"path": "b"}),
    ),
    usage=ScriptedUsage(input=100, output=7, cached=40),
    times=None,
)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "m", "max_tokens": 10, "messages": HELLO},
    "/v1/chat/completions": {"model": "m", "messages": HELLO},
    "/v1/responses": {"model": "m", "input": "hello"},
}
KEY = {"authorization": "Bearer k"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_anthropic_client(stream: bool) -> None:
    """Text, thought, both calls and the usage arrive in the official client."""
    with (
        WireServer(WireScript(turns=(TURN,))) as wires,
        anthropic.Anthropic(base_url=wires.url, api_key="k", max_retries=0) as client,
    ):
        if stream:
            with client.messages.stream(model="m", max_tokens=9, messages=HELLO) as told:
                message: Any = told.get_final_message()
        else:
            message = client.messages.create(model="m", max_tokens=9, messages=HELLO)
        counted = client.messages.count_tokens(model="m", messages=HELLO)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in message.content[2:]] == [{"path": "a"}, {"path": "b"}]
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (60, 40)
    assert message.usage.output_tokens == 7
    assert counted.input_tokens > 0


def test_the_openai_client_on_chat() -> None:
    """The same on the Chat Completions wire, whole and in pieces."""
    with (
        WireServer(WireScript(turns=(TURN,))) as wires,
        openai.OpenAI(base_url=f"{wires.url}/v1", api_key="k", max_retries=0) as client,
    ):
        whole = client.chat.completions.create(model="m", messages=HELLO)
        chunks = list(
            client.chat.completions.create(
                model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        )
        models = [model.id for model in client.models.list()]
    message: Any = whole.choices[0].message
    assert message.content == TURN.text
    assert [json.loads(call.function.arguments)["path"] for call in message.tool_calls] == [
        "a",
        "b",
    ]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == TURN.text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 100
    assert models == ["fake-model"]


def test_the_openai_client_on_responses() -> None:
    """The same on the Responses wire."""
    with (
        WireServer(WireScript(turns=(TURN,))) as wires,
        openai.OpenAI(base_url=f"{wires.url}/v1", api_key="k", max_retries=0) as client,
    ):
        whole: Any = client.responses.create(model="m", input="hello")
        with client.responses.stream(model="m", input="hello") as told:
            streamed: Any = told.get_final_response()
    for response in (whole, streamed):
        kinds = [item.type for item in response.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert response.output_text == TURN.text
        assert response.usage.input_tokens_details.cached_tokens == 40


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_errors(path: str, status: int) -> None:
    """Each wire has each error, with the pause that was asked for."""
    fault = ScriptedFault(status=status, message="no", retry_after=2)
    with WireServer(WireScript(turns=(ScriptedTurn(fault=fault),))) as wires:
        answer = httpx2.post(f"{wires.url}{path}", json=BODIES[path], headers=KEY)
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "no"
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("path", BODIES)
def test_a_prompt_that_does_not_fit(path: str) -> None:
    """With a window the server refuses longer prompts, in the words of the wire."""
    with WireServer(WireScript(window=50, otherwise=ScriptedTurn(text="ok"))) as wires:
        long = json.loads(json.dumps(BODIES[path]).replace("hello", "hello " * 50))
        short, refused = (
            httpx2.post(f"{wires.url}{path}", json=one, headers=KEY) for one in (BODIES[path], long)
        )
    assert short.status_code == 200
    assert refused.status_code == 400
    words = refused.json()["error"]["message"]
    assert "too long" in words or "maximum context length" in words


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param(
            {"tools": [{"type": "function", "function": {"name": "fs.read"}}]},
            "'fs.read' does not match",
            id="name",
        ),
        pytest.param(
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
                    {"role": "tool", "tool_call_id": "a", "content": "x"},
                ]
            },
            "'b' has 0 results",
            id="no result",
        ),
        pytest.param(
            {"messages": [*HELLO, {"role": "tool", "tool_call_id": "z", "content": "x"}]},
            "no such tool call",
            id="no call",
        ),
        pytest.param(
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "a"}]},
                    *HELLO,
                    {"role": "tool", "tool_call_id": "a", "content": "x"},
                ]
            },
            "not answered before the next message",
            id="parted",
        ),
    ],
)
def test_what_services_refuse_is_refused(body: dict[str, Any], complaint: str) -> None:
    """A strict server says what is wrong and remembers it; a lenient one answers."""
    sent = {**BODIES["/v1/chat/completions"], **body}
    for strict in (True, False):
        with WireServer(WireScript(strict=strict, otherwise=ScriptedTurn(text="ok"))) as wires:
            answer = httpx2.post(f"{wires.url}/v1/chat/completions", json=sent, headers=KEY)
            assert answer.status_code == (400 if strict else 200)
            assert bool(wires.refused) is strict
        if strict:
            assert complaint in answer.json()["error"]["message"]


def test_turns_are_chosen_by_what_is_asked() -> None:
    """The first unused turn that fits is used; what fits none gets `otherwise`."""
    turns = (
        ScriptedTurn(when=TurnFilter(contains="title"), text="A title"),
        ScriptedTurn(when=TurnFilter(model="small"), text="small one"),
        ScriptedTurn(when=TurnFilter(system="judge"), text="verdict"),
        ScriptedTurn(text="first"),
    )
    script = WireScript(turns=turns, otherwise=ScriptedTurn(text="nothing left"))

    def say(text: str, model: str = "big", system: str = "") -> str:
        messages = [{"role": "system", "content": system}] if system else []
        body = {"model": model, "messages": [*messages, {"role": "user", "content": text}]}
        answer = httpx2.post(f"{wires.url}/v1/chat/completions", json=body, headers=KEY)
        return str(answer.json()["choices"][0]["message"]["content"])

    with WireServer(script) as wires:
        assert say("hello") == "first"
        assert say("write a title") == "A title"
        assert say("hello", system="you are a judge") == "verdict"
        assert say("hello", model="small-1") == "small one"
        assert say("write a title") == "nothing left"
        assert [request.user_text for request in wires.asked][:2] == ["hello", "write a title"]


def test_a_script_that_runs_out_says_so() -> None:
    """The refusal names the request, so that a test that fails can be understood."""
    with WireServer(WireScript(turns=(ScriptedTurn(text="one"),))) as wires:
        for _ in range(2):
            answer = httpx2.post(
                f"{wires.url}/v1/messages", json=BODIES["/v1/messages"], headers=KEY
            )
        assert answer.status_code == 400
        assert wires.refused == ["request 2 (anthropic): the script has no turn for this request"]


def test_a_chooser_that_raises_is_reported() -> None:
    """Its client is not left waiting."""

    def broken(request: WireRequest) -> ScriptedTurn:
        raise KeyError(request.model)

    with WireServer(choose=broken) as wires:
        with pytest.raises(httpx2.TransportError):
            httpx2.post(f"{wires.url}/v1/messages", json=BODIES["/v1/messages"], headers=KEY)
        assert wires.refused == ["request 1 (anthropic): KeyError('m')"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 401, id="none"),
        pytest.param({"x-api-key": "other"}, 401, id="wrong"),
        pytest.param({"x-api-key": "k"}, 200, id="right"),
        pytest.param({"authorization": "Bearer k"}, 200, id="right, as bearer"),
    ],
)
def test_keys(headers: dict[str, str], status: int) -> None:
    """A key is always needed, and with `keys` the right one."""
    with WireServer(WireScript(keys=("k",), otherwise=ScriptedTurn(text="ok"))) as wires:
        body = BODIES["/v1/messages"]
        assert httpx2.post(f"{wires.url}/v1/messages", json=body, headers=headers).status_code == (
            status
        )


def test_a_cut_and_a_stall() -> None:
    """A connection can be dropped in the middle, and one that stalls goes on when told."""
    cut = ScriptedTurn(text="one two three", chunk=4, cut_after=1)
    stall = ScriptedTurn(text="one two three", chunk=4, stall_after=1)
    body = {**BODIES["/v1/chat/completions"], "stream": True}
    with WireServer(WireScript(turns=(cut, stall))) as wires:
        url = f"{wires.url}/v1/chat/completions"
        with pytest.raises(httpx2.TransportError):
            httpx2.post(url, json=body, headers=KEY)
        with httpx2.stream("POST", url, json=body, headers=KEY) as answer:
            lines = answer.iter_lines()
            assert "one" in "".join(next(lines) for _ in range(4))
            wires.release()
            assert "[DONE]" in list(lines)[-2:][0]
        assert all(request.ended.wait(60) for request in wires.asked)  # in a thread of its own
        assert [request.end for request in wires.asked] == ["cut", "answered"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("turns: [{txt: hi}]", "unknown field `txt`", id="unknown"),
        pytest.param("turns: [{times: often}]", "Expected `int | null`", id="type"),
        pytest.param("turns: [", "while parsing", id="no YAML"),
    ],
)
def test_a_bad_script_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """With the file and what is wrong."""
    file = tmp_path / "script.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DefinitionError, match=f"script.yaml: .*{problem}"):
        read_script(file)


def test_as_a_program(tmp_path: Path) -> None:
    """It prints its address, answers by its script, logs requests without keys, and ends at once
    when told to.
    """
    script, log = tmp_path / "script.yaml", tmp_path / "log"
    script.write_text("turns: [{text: from a file}]", encoding="utf-8")
    command = [sys.executable, "-m", "loopwright.testing.wires"]
    with subprocess.Popen(
        [*command, "--script", str(script), "--log", str(log)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        key = {"x-api-key": "a-secret-key"}
        answer = httpx2.post(f"{url}/v1/messages", json=BODIES["/v1/messages"], headers=key)
        assert answer.json()["content"][0]["text"] == "from a file"
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    [line] = log.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["body"] == BODIES["/v1/messages"]
    assert "a-secret-key" not in line


def test_the_program_refuses_a_bad_script(tmp_path: Path) -> None:
    """With exit code 2 and the reason."""
    done = subprocess.run(
        [sys.executable, "-m", "loopwright.testing.wires", "--script", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "none" in done.stderr


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
def test_the_gemini_wire(method: str) -> None:
    """Text, calls, results and usage in the shapes of that wire; the model is in the path."""
    contents = [
        {"role": "user", "parts": [{"text": "hello"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "call_0001", "name": "list"}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "call_0001", "name": "list"}}]},
    ]
    body = {
        "contents": contents,
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [{"name": "read"}, {"name": "list"}]}],
    }
    with WireServer(WireScript(turns=(TURN,))) as wires:
        url = f"{wires.url}/v1beta/models/gemini-x:{method}"
        answer = httpx2.post(url, json=body, headers={"x-goog-api-key": "k"})
        refused = httpx2.post(url, json=body)
    assert (answer.status_code, refused.status_code) == (200, 401)
    assert refused.json()["error"]["status"] == "UNAUTHENTICATED"
    events = [
        json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")
    ]
    events = events or [answer.json()]
    parts = [part for one in events for part in one["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in parts) == TURN.text
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    assert [(call["name"], call["args"]) for call in calls] == [
        ("read", {"path": "a"}),
        ("list", {"path": "b"}),
    ]
    assert events[-1]["usageMetadata"]["promptTokenCount"] == 100
    assert events[-1]["candidates"][0]["finishReason"] == "STOP"
    asked = wires.requests[0]
    assert (asked.wire, asked.model, asked.tools) == ("gemini", "gemini-x", ("read", "list"))
    assert (asked.user_text, asked.system_text, asked.results) == ("hello", "Be brief.", 1)
    assert wires.refused == []
