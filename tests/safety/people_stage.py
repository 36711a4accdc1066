"""A server with a gate, and an agent that tries to act as a person at every sandbox level.

Started as `python -m tests.safety.people_stage` under the identity to be tested, with an order as
JSON on standard input; prints what became of all attempts. Each level starts one program.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopwright.agents.processes.process import ProgramStart
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox
from loopwright.operations.settings_files import records_folder
from loopwright.operations.workspace_rules import policy_of
from tests.http.served import Served, served
from tests.safety import inside_attempts

PROGRAM = str(Path(inside_attempts.__file__).resolve())


def filled(value: Any, names: dict[str, str]) -> Any:
    """The texts in a value with names filled in."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"<{name}>", text)
        return value
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    if isinstance(value, dict):
        return {key: filled(one, names) for key, one in value.items()}
    return value


def play(server: Served, order: dict[str, Any]) -> dict[str, Any]:
    """What becomes of the attempts at each level."""
    run, gate = server.gated()
    own = server.start(server.definition(server.script("x"), until={"contains": "x"}))
    server.until(own, "completed")
    home = server.context.settings.home
    token = home / "token"
    token.write_text(server.token)
    names = {"run": run, "gate": gate, "home": str(home), "token": server.token}
    names |= {"records": str(records_folder()), "port": str(server.port)}
    attempts = filled(order["attempts"], names)
    for one in attempts["requests"]:
        one[0] = server.port
    policy = policy_of(server.context.settings, env={}, served=True)
    sandbox = Sandbox(replace(policy, fixed_workspaces=False))
    workspace = Path(order["folder"], "work")
    workspace.mkdir()
    found: dict[str, Any] = {}
    for level in order["levels"]:
        before = refusals(server, own)
        program = ProgramStart(
            argv=(sys.executable, PROGRAM, "all"),
            cwd=str(workspace),
            env={
                "PATH": os.environ["PATH"],
                "HOME": os.environ["HOME"],
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "PYTHONDONTWRITEBYTECODE": "1",
                "LOOPWRIGHT_RUN": own,
                "LOOPWRIGHT_AGENT": "coder",
            },
            stdin=json.dumps(attempts).encode(),
            wall_s=240,
        )
        end = asyncio.run(sandbox.run(program, Confinement(level=level)))
        said = json.loads(end.stdout) if end.code == 0 else end.stderr_tail.decode()[-2000:]
        found[level] = {"said": said, "audited": refusals(server, own) - before}
        gates = server("GET", f"/api/v1/runs/{run}").json["gates"]
        found[level]["gates"] = [one["id"] for one in gates] == [gate]
    return found


def refusals(server: Served, own: str) -> int:
    rows = server.call(lambda: server.context.records.audited(limit=10_000))
    who = f"agent:coder of {own}"
    return sum(row.who == who and row.action == "denied" and row.via == "http" for row in rows)


def main() -> None:
    order = json.load(sys.stdin)
    folder = Path(order["folder"], "server")
    folder.mkdir()
    with served(folder, held=True) as server:
        sys.stdout.write(json.dumps(play(server, order)))


if __name__ == "__main__":
    main()
