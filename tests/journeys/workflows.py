"""Workflows of nodes, run by the command line with an agent that does what a test wants."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from loopwright.model.plan import Plan
from loopwright.operations.dialects import parse_definition
from tests.cli.conftest import Place, Told

ACTOR = Path(__file__).with_name("actor.py")


def workflow(*nodes: dict[str, Any], **head: Any) -> str:
    """A workflow with these nodes."""
    value = {"name": "journey", "description": "For a test.", **head, "nodes": list(nodes)}
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def plan_of(*nodes: dict[str, Any], **head: Any) -> Plan:
    """The plan of a workflow that names no other files."""
    return parse_definition(workflow(*nodes, **head).encode(), file="flow.yaml").plan


def loop(prompt: str = "Go on.", *, until: str | None = "DONE", most: int = 3, **more: Any) -> Any:
    """What stands under `loop`."""
    signal = {} if until is None else {"until": until}
    return {"prompt": prompt, **signal, "max_iterations": most, **more}


class Troupe:
    """A place with an agent whose words stand in a table."""

    def __init__(self, lw: Place) -> None:
        self.lw = lw
        self.folder = lw.folder.parent / "troupe"
        self.folder.mkdir()
        self.agent = f"jsonl:{sys.executable} -I -S {ACTOR} {self.folder}"
        self.says()

    def says(self, **table: Any) -> "Troupe":
        """What the agent does for each step."""
        (self.folder / "table.json").write_text(json.dumps(table))
        return self

    def write(self, text: str, name: str = "flow.yaml") -> str:
        file = self.lw.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return name

    def run(self, *nodes: dict[str, Any], message: str = "Do it.", **head: Any) -> Any:
        """Run a workflow until it rests; what the command says as JSON."""
        told = self.told(*nodes, message=message, **head)
        assert told.code in (0, 3, 5), told.err
        return told.json

    def told(self, *nodes: dict[str, Any], message: str = "Do it.", **head: Any) -> Told:
        file = self.write(workflow(*nodes, **head))
        return self.lw("run", file, message, "--agent", self.agent, "--json")

    @property
    def calls(self) -> list[dict[str, Any]]:
        log = self.folder / "calls.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def prompts(self) -> list[str]:
        return [call["prompt"] for call in self.calls]

    def events(self, kind: str, run: str = "last") -> list[dict[str, Any]]:
        return [event for event in self.lw.events(run) if event["kind"] == kind]
