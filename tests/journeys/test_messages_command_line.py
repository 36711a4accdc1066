"""The worked example of the documents through the command line: agents are programs and scripts,
and the process is killed in the middle.
"""

import json
import os
import shlex
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE_S, Place, until

FLOW = """
name: loop-bidirectional
agents:
  worker:
    description: "Worker that performs a task and sends progress updates."
  judge:
    description: "Judge: stop after 3 stages."
    resultSchema:
      type: object
      required: [done]
      properties:
        done:
          type: boolean

steps:
  - id: setup
    agent: worker
    instructions: 'Reply EXACTLY with "READY".'

  - id: loop-stages
    dependsOn: [setup]
    loop:
      maxIterations: 3
      untilAgent: judge
      outputMode: cumulative
      steps:
        - id: worker
          agent: worker
          instructions: |
            Iteration N. Read your inbox for any coordinator context.
            Call send_message with "STAGE_<N>: <task description>"
            Reply with EXACTLY "STAGE_<N>_DONE".
"""

# An agent of the line protocol: it uses the tools of its run and reads the answers in its inbox.
TALK = """
import json, os, sys
prompt = sys.stdin.read()
path, number = os.environ["LOOPWRIGHT_PATH"], int(os.environ["LOOPWRIGHT_ITERATION"])
stage = sys.argv[1]
def say(**line): print(json.dumps(line), flush=True)
def use(name, **args):
    say(type="tool", name=name, args=args, id=name)
    answer = json.loads(inbox.readline())
    assert answer["type"] == "tool_result" and answer["id"] == name, answer
    return answer
def stop_here():
    stop = os.path.join(stage, "stop")
    if os.path.exists(stop) and open(stop).read() == path:
        os.rename(stop, os.path.join(stage, "reached"))
        import time; time.sleep(60)
"""
WORKER = f"""{TALK}
if path == "setup":
    say(type="text", text="READY")
    sys.exit()
inbox = open(os.environ["LOOPWRIGHT_INBOX"])
with open(os.path.join(stage, path), "a") as log:
    log.write(prompt.partition("## Messages")[2])
use("send_message", text=f"STAGE_{{number}}: task {{number}}")
stop_here()
heard = use("read_inbox", wait=20)
with open(os.path.join(stage, path), "a") as log:
    log.write(json.dumps(heard))
say(type="result", text=f"STAGE_{{number}}_DONE")
"""
COORDINATOR = f"""{TALK}
inbox = open(os.environ["LOOPWRIGHT_INBOX"])
assert os.environ["LOOPWRIGHT_RUN_TOOLS"] == "forward_to_agent,narrate,finalize"
for line in prompt.splitlines():
    if line.startswith("- message from="):
        who, _, text = line.removeprefix("- message from=").partition(": ")
        use("narrate", text=f"{{who}} works on {{text}}")
        use("forward_to_agent", target_step_id=who, text=f"noted {{text}}", kind="context_update")
if "All steps have ended" in prompt:
    use("finalize", summary="Three stages, all done.")
"""
JUDGE = [
    {"when": {"step": "loop-stages.judge"}, "data": {"done": False}},
    {"when": {"step": "loop-stages.judge"}, "data": {"done": False}},
    {"when": {"step": "loop-stages.judge"}, "data": {"done": True}},
]


class Stage:
    """The folder of the agents, and how a run of the example is started."""

    def __init__(self, lw: Place) -> None:
        self.lw = lw
        self.folder = lw.folder / "stage"
        self.folder.mkdir()
        self.file = lw.write("flow.yaml", FLOW)
        worker, coordinator = lw.write("w.py", WORKER), lw.write("c.py", COORDINATOR)
        judge = lw.script(*JUDGE, name="judge.yaml")
        self.agents = [
            "--agent",
            self._spec(worker),
            "--agent",
            f"coordinator={self._spec(coordinator)}",
            "--agent",
            f"judge={judge}",
        ]

    def _spec(self, program: Path) -> str:
        words = [sys.executable, "-I", "-S", str(program), str(self.folder)]
        return "jsonl:" + " ".join(map(shlex.quote, words))

    def heard(self, path: str) -> str:
        """What the worker at a place read between its turns."""
        return (self.folder / path).read_text()


@pytest.fixture
def stage(lw: Place) -> Stage:
    return Stage(lw)


def of_kind(lw: Place, kind: str) -> list[dict[str, Any]]:
    return [event for event in lw.events("run_") if event["kind"] == kind]


@pytest.mark.item("zenflow-59", "zenflow-60", "zenflow-86")
def test_the_worked_example_runs_as_written(lw: Place, stage: Stage) -> None:
    """Three passes; each worker writes under its own name and hears back in the same iteration."""
    told = lw("run", str(stage.file), *stage.agents, "--json")
    assert told.code == 0, told.err
    assert told.json["status"] == "completed"
    assert told.json["output"] == "Three stages, all done."
    assert "STAGE_3_DONE" in told.json["steps"]["loop-stages"]["output"]
    check_exchange(lw, stage)
    assert [event["text"] for event in of_kind(lw, "coordinator.narrated")] == [
        f"loop-stages.{n}.worker works on STAGE_{n + 1}: task {n + 1}" for n in range(3)
    ]


def check_exchange(lw: Place, stage: Stage) -> None:
    """Every message is there once, was read once, and nothing was dropped."""
    sent = of_kind(lw, "message.sent")
    senders = Counter((event["sender"], event["to"]) for event in sent)
    workers = [f"loop-stages.{n}.worker" for n in range(3)]
    assert senders == Counter(
        [(name, "coordinator") for name in workers] + [("coordinator", name) for name in workers]
    )
    assert of_kind(lw, "message.dropped") == []
    read = Counter(one for f in of_kind(lw, "message.delivered") for one in f.get("messages", []))
    assert read == Counter(event["message"] for event in sent)
    for number, name in enumerate(workers, start=1):
        assert f"noted STAGE_{number}" in stage.heard(name)


@pytest.mark.item("zenflow-59", "zenflow-60")
@pytest.mark.parametrize("path", ["loop-stages.1.worker", "loop-stages.2.worker"])
def test_the_worked_example_survives_a_kill(lw: Place, stage: Stage, path: str) -> None:
    """Killed after a worker has written: what was sent is not sent again, nothing is lost."""
    (stage.folder / "stop").write_text(path)
    process = lw.start("run", str(stage.file), *stage.agents)
    until((stage.folder / "reached").exists)
    until(lambda: any(event["sender"] == path for event in of_kind(lw, "message.sent")))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    told = lw("resume", "run_", "--json")
    assert told.code == 0, told.err
    assert (told.json["status"], told.json["iterations"]) == ("completed", 3)
    assert told.json["output"] == "Three stages, all done."
    check_exchange(lw, stage)


def test_scripts_talk_too(lw: Place) -> None:
    """A scripted worker and a scripted coordinator use the same tools; `logs` tells the talk."""
    lw.write("flow.yaml", FLOW)
    agent = lw.script(
        {"when": {"step": "setup"}, "text": "READY"},
        *[
            {
                "when": {"step": "worker", "iteration": n},
                "tools": [
                    {"name": "send_message", "args": {"text": f"STAGE_{n}"}},
                    {"name": "read_inbox", "args": {"wait": 20}},
                ],
                "text": f"STAGE_{n}_DONE",
            }
            for n in (1, 2, 3)
        ],
        *JUDGE,
    )
    forward = {"target_step_id": "worker", "text": "go on"}
    listens = lw.script(
        *[{"tools": [{"name": "forward_to_agent", "args": forward}]} for _ in range(30)],
        name="listens.yaml",
    )
    told = lw("run", "flow.yaml", "--agent", agent, "--agent", f"coordinator={listens}", "--json")
    assert told.code == 0, told.err
    kept = [f for f in of_kind(lw, "message.delivered") if f["to"] == "loop-stages.worker"]
    assert len(kept) >= 3
    logs = lw("logs", "run_").out
    assert "message loop-stages.0.worker → coordinator" in logs
    assert "message coordinator → worker" in logs


def test_a_plain_program_coordinates_and_hears(lw: Place) -> None:
    """A `command:` coordinator answers with an object; a `command:` step reads in its prompt."""
    lw.write(
        "flow.yaml",
        "name: plain\nagents: {w: {description: Works.}, coordinator: {description: Leads.}}\n"
        "steps:\n  - {id: a, agent: w, instructions: First.}\n"
        "  - {id: b, agent: w, instructions: Then., dependsOn: [a]}\n",
    )
    worker = lw.write("w.sh", '#!/bin/sh\ncat >> "$LOOPWRIGHT_PATH.prompt"\nsleep 1\necho done\n')
    tools = {
        "tools": [
            {"name": "forward_to_agent", "args": {"target_step_id": "b", "text": "mind the gap"}},
            {"name": "finalize", "args": {"summary": "Over."}},
        ]
    }
    leader = lw.write("c.sh", f"#!/bin/sh\ncat > /dev/null\necho '{json.dumps(tools)}'\n")
    for program in (worker, leader):
        program.chmod(0o755)
    agents = ["--agent", "command:./w.sh", "--agent", "coordinator=command:./c.sh"]
    told = lw("run", "flow.yaml", *agents, "--json")
    assert (told.code, told.json["output"]) == (0, "Over."), told.err
    assert "[coordinator]: mind the gap" in (lw.folder / "b.prompt").read_text()
    assert (lw.folder / "a.prompt").read_text().count("mind the gap") == 0


# -- structured results and tools ------------------------------------------------------------------

RESULT_FLOW = """
name: result
agents:
  w:
    description: Works.
    resultSchema: {type: object, required: [n], properties: {n: {type: integer}}}
steps:
  - {id: a, agent: w, instructions: Count.}
"""
SUBMITS = """
import json, os, sys, time
sys.stdin.read()
inbox = open(os.environ["LOOPWRIGHT_INBOX"])
for args in json.loads(sys.argv[1]):
    print(json.dumps({"type": "tool", "name": "submit_result", "args": args}), flush=True)
    open("answers", "a").write(inbox.readline())
print(json.dumps({"type": "text", "text": "done"}), flush=True)
time.sleep(60)
"""


@pytest.mark.item("zenflow-56")
@pytest.mark.parametrize("kind", ["jsonl", "script"])
@pytest.mark.parametrize(
    ("results", "taken"),
    [
        pytest.param([{"n": 1}], 1, id="valid"),
        pytest.param([{"n": "x"}, {"n": 2}], 2, id="invalid, then valid"),
        pytest.param([{"n": 1}, {"n": 2}], 1, id="the first of two"),
    ],
)
def test_submit_result(lw: Place, kind: str, results: list[Any], taken: int) -> None:
    """A result that fits ends the talk, one that does not says why, and the first counts."""
    file = lw.write("flow.yaml", RESULT_FLOW)
    if kind == "script":
        tools = [{"name": "submit_result", "args": one} for one in results]
        agent = lw.script({"tools": tools, "text": "done", "data": {"n": 99}})
    else:
        program = lw.write("w.py", SUBMITS)
        words = [sys.executable, "-I", "-S", str(program), json.dumps(results)]
        agent = "jsonl:" + " ".join(map(shlex.quote, words))
    told = lw("run", str(file), "--agent", agent, "--json")
    assert told.code == 0, told.err
    assert told.json["steps"]["a"]["result"] == {"n": taken}
    assert told.json["steps"]["a"]["output"] == "done"
    if kind == "jsonl":
        answers = [json.loads(one) for one in (lw.folder / "answers").read_text().splitlines()]
        assert [bool(one.get("is_error")) for one in answers] == [
            one != {"n": taken} for one in results
        ]
        if "x" in str(results):
            assert "'x' is not of type 'integer'" in answers[0]["result"]


@pytest.mark.item("zenflow-56")
def test_only_invalid_results_fail_the_step(lw: Place) -> None:
    """Nothing that fits was handed in: the step has failed, and its reason has a name."""
    file = lw.write("flow.yaml", RESULT_FLOW)
    bad = {"tools": [{"name": "submit_result", "args": {"n": 1.5}}], "text": "sorry"}
    told = lw("run", str(file), "--agent", lw.script(bad, bad), "--json")
    assert told.json["steps"]["a"]["error"]["type"] == "bad_result"


@pytest.mark.item("zenflow-67")
@pytest.mark.parametrize("kind", ["jsonl", "script"])
def test_secrets_in_the_input_of_tools_are_masked(lw: Place, kind: str) -> None:
    """Events show that a tool was used and with what, but for what looks like a secret."""
    args = {
        "command": "curl -H 'Authorization: Bearer abc123def456' --password hunter2 x",
        "api_key": "very-secret",
        "nested": [{"text": "sk-abcdefgh12345678 and ghp_abcdefgh12345678"}],
        "plain": "keep me",
    }
    file = lw.write(
        "flow.yaml",
        "name: t\nagents: {w: {description: Works.}}\n"
        "steps: [{id: a, agent: w, instructions: Go.}]\n",
    )
    if kind == "script":
        agent = lw.script({"tools": [{"name": "shell", "args": args}], "text": "ok"})
    else:
        line = json.dumps({"type": "tool", "name": "shell", "args": args, "result": "fine"})
        program = lw.write("w.py", f"print({line!r})\n")
        agent = f"jsonl:{shlex.quote(sys.executable)} -I -S {shlex.quote(str(program))}"
    assert lw("run", str(file), "--agent", agent).code == 0
    (done,) = of_kind(lw, "effect.done")
    (tool,) = done["tools"]
    assert tool["name"] == "shell"
    assert "keep me" in tool["input"]
    whole = lw("events", "run_").out
    for secret in ("abc123def456", "hunter2", "very-secret", "sk-abc", "ghp_abc"):
        assert secret not in whole


@pytest.mark.item("zenflow-67")
def test_keys_in_messages_are_masked(lw: Place) -> None:
    """What is passed on in a message has the look of keys taken out."""
    file = lw.write(
        "flow.yaml",
        "name: t\nagents: {w: {description: Works.}}\n"
        "steps: [{id: a, agent: w, instructions: Go.}]\n",
    )
    text = "the key is sk-abcdefgh12345678"
    agent = lw.script({"tools": [{"name": "send_message", "args": {"text": text}}], "text": "ok"})
    assert lw("run", str(file), "--agent", agent).code == 0
    (sent,) = of_kind(lw, "message.sent")
    assert sent["text"] == "the key is ***"
    assert "sk-abc" not in lw("events", "run_").out
