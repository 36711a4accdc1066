"""A loop with a real language model, served on this machine: no key, no script, no network."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Place, lw

__all__ = ["lw"]

PYTHON = os.environ.get("LOOPWRIGHT_TEST_MODEL_PYTHON", "")

# A model without a card speaks slowly, and more slowly beside other work. So small a model may also
# go on talking without an end: what bounds it is how much it says, not how long that takes.
SECONDS = 800
WRITER = {
    "use": "model:local/smollm2",
    "tools": [],
    "wall": f"{SECONDS}s",
    "idle": f"{SECONDS}s",
    "temperature": 0,
    "options": {"max_output_tokens": 64},
}

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="run by `make test-model`"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with subprocess.Popen(
        [PYTHON, str(Path(__file__).with_name("serve.py"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def test_a_loop_until_a_check_holds(lw: Place, address: str) -> None:
    """The model writes, the check decides, and the events have every turn with its tokens."""
    file = lw.loop(
        "writer",
        top={
            "goal": "Say hello to the reader in one short sentence.",
            "agents": {"writer": WRITER},
        },
        max=6,
        until={"regex": "hello", "ignore_case": True},
    )
    env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{address}/v1"}
    told = lw.real("run", file, "--json", env=env, seconds=SECONDS)
    assert told.json["status"] in ("completed", "exhausted"), told.err
    events = lw("events", told.json["run"]).lines
    turns = [event for event in events if event["kind"] == "turn.taken"]
    verdicts = [
        event["verdict"]
        for event in events
        if event["kind"] == "check.verdict" and event["check"] == "regex"
    ]
    assert turns
    assert verdicts == ["fail"] * (len(verdicts) - 1) + verdicts[-1:]
    assert (verdicts[-1] == "pass") == (told.json["status"] == "completed")
    assert told.json["usage"]["output_tokens"] > 0
    assert told.json["output"].strip()


def test_a_result_with_a_form(lw: Place, address: str) -> None:
    """Whatever so small a model says, a step with a form ends with a result that fits, or fails by
    name; nothing that does not fit is passed on.
    """
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    agents = {"writer": {**WRITER, "max_turns": 3}}
    lw.write(
        "form.json",
        json.dumps(
            {
                "name": "form",
                "agents": agents,
                "steps": [
                    {"id": "a", "agent": "writer", "prompt": "Count to 3.", "schema": schema}
                ],
            }
        ),
    )
    env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{address}/v1"}
    told = lw.real("run", "form.json", "--json", env=env, seconds=SECONDS)
    step = told.json["steps"]["a"]
    if step["status"] == "completed":
        assert isinstance(step["result"]["n"], int)
    else:
        assert step["error"]["type"] in ("bad_result", "max_iterations")
