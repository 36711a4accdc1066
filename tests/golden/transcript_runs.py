"""Runs of a server that are transcribed: one of each dialect, one that waits and one that fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from loopwright.testing.wires import ScriptedTurn, WireScript, WireServer
from tests.http.served import Served, wait_for

ENDED = ("completed", "failed", "cancelled", "exhausted")


@dataclass(frozen=True)
class Wanted:
    """A run: its definition, what its agents say, and what a person answers when it waits."""

    definition: dict[str, Any]
    replies: tuple[dict[str, Any], ...]
    dialect: str = "native"
    answers: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    ends: str = "completed"
    model: bool = False  # whether its agents are chat models


RUNS: dict[str, Wanted] = {
    "native": Wanted(
        {
            "name": "work",
            "goal": "Do it.",
            "agent": "worker",
            "agents": {"worker": {}},
            "repeat": {"max": 3, "until": {"regex": "DONE"}},
        },
        (
            {
                "text": "one",
                "usage": {"input_tokens": 10, "output_tokens": 5, "usd": 0.25},
                "tools": [{"name": "Bash", "args": {"command": "make"}, "code": 2, "ms": 5}],
            },
            {"text": "two DONE"},
        ),
    ),
    "coqui": Wanted(
        {
            "name": "review",
            "description": "Review it",
            "roles": [
                {"role": "coder", "prompt": "Do it."},
                {"role": "reviewer", "prompt": "Look at it."},
            ],
            "termination_condition": {
                "type": "evaluation_bound",
                "value": {"criteria": "It works"},
            },
        },
        (
            {"when": {"agent": "coder"}, "text": "The work."},
            {"when": {"agent": "reviewer"}, "text": "Needs changes: no tests."},
            {"when": {"agent": "coder"}, "text": "Better work."},
            {"when": {"agent": "reviewer"}, "text": "APPROVED"},
        ),
        dialect="coqui",
    ),
    "aldo": Wanted(
        {
            "apiVersion": "aldo-ai/agent.v1",
            "kind": "Agent",
            "identity": {"name": "coder", "version": "0.1.0", "description": "x", "owner": "me"},
            "role": {"team": "delivery", "pattern": "worker"},
            "model_policy": {
                "privacy_tier": "public",
                "primary": {"capability_class": "local-reasoning"},
                "budget": {"usd_per_run": 0},
            },
            "prompt": {"system_file": "prompt.md"},
            "iteration": {
                "max_cycles": 4,
                "context_window": 100_000,
                "summary_strategy": "rolling-window",
                "termination_conditions": [{"kind": "text-includes", "text": "DONE"}],
            },
        },
        ({"text": "I look."}, {"text": "It is DONE."}),
        dialect="aldo",
        files=(("prompt.md", "You are careful.\n"),),
        model=True,
    ),
    "archon": Wanted(
        {
            "name": "fix",
            "description": "Fix it",
            "nodes": [
                {"id": "plan", "prompt": "Plan it."},
                {
                    "id": "work",
                    "depends_on": ["plan"],
                    "loop": {"prompt": "Do $plan.output", "until": "DONE", "max_iterations": 3},
                },
            ],
        },
        ({"text": "the plan"}, {"text": "trying"}, {"text": "<promise>DONE</promise>"}),
        dialect="archon",
    ),
    "zenflow": Wanted(
        {
            "name": "flow",
            "agents": {"writer": {"description": "Writes.", "prompt": "You write."}},
            "steps": [
                {"id": "first", "agent": "writer", "instructions": "Write."},
                {
                    "id": "second",
                    "agent": "writer",
                    "instructions": "Shorten.",
                    "dependsOn": ["first"],
                },
            ],
        },
        ({"text": "a page"}, {"text": "a line"}),
        dialect="zenflow",
    ),
    "rondoflow": Wanted(
        {
            "name": "fixer",
            "persona": "You fix.",
            "loopEnabled": True,
            "loopCriteria": {"type": "regex", "value": "DONE"},
            "maxIterations": 4,
        },
        ({"text": "trying"}, {"text": "it is DONE"}),
        dialect="rondoflow",
    ),
    "gate": Wanted(
        {
            "name": "gated",
            "goal": "Do it.",
            "agent": "worker",
            "agents": {"worker": {}},
            "repeat": {"max": 3, "until": {"person": True}},
        },
        ({"text": "one"}, {"text": "two"}),
        answers=(("continue", "Shorter."), ("approve", "Good.")),
    ),
    "failure": Wanted(
        {
            "name": "failing",
            "goal": "Do it.",
            "agent": "worker",
            "agents": {"worker": {}},
            "repeat": {"max": 2},
        },
        ({"text": "one"}, {"fail": {"type": "agent", "detail": "it broke"}}),
        ends="failed",
    ),
}


@contextmanager
def answering(name: str) -> Iterator[None]:
    """A chat model for a run that needs one."""
    if not RUNS[name].model:
        yield
        return
    turns = tuple(ScriptedTurn(text=str(reply["text"])) for reply in RUNS[name].replies)
    with WireServer(WireScript(turns=turns)) as wires, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_MODEL_BASE_URL", f"{wires.url}/v1")
        yield


def start(server: Served, name: str) -> str:
    """Start a run; its id."""
    wanted = RUNS[name]
    agent = server.script(*wanted.replies, name=f"{name}.replies.yaml")
    agent = "model:local/fake" if wanted.model else agent
    more: dict[str, Any] = {"files": dict(wanted.files)} if wanted.files else {}
    text = json.dumps(wanted.definition)
    return server.start(text, dialect=wanted.dialect, message="Do it.", agent=agent, **more)


def finish(
    server: Served, name: str, run: str, asked: Callable[[int], None] = lambda number: None
) -> None:
    """Answer what a run asks, and wait for its end.

    `asked` is called with the number of the question before it is answered.
    """
    wanted = RUNS[name]
    for number, (decision, text) in enumerate(wanted.answers, start=1):
        found: list[dict[str, Any]] = []

        def is_asked(number: int = number, found: list[dict[str, Any]] = found) -> bool:
            told = server("GET", f"/api/v1/runs/{run}").json
            found[:] = told["gates"] if told["iterations"] == number else []
            return bool(found)

        wait_for(is_asked)
        asked(number)
        path = f"/api/v1/gates/{found[0]['id']}/{decision}"
        reply = server("POST", path, {"text": text})
        assert reply.status == 200, reply.body
    ended = server.until(run, *ENDED)
    assert ended["status"] == wanted.ends, ended
