"""What a plain loop imports: everything else is loaded when it is first needed."""

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import Place

LOOP = ("loop", "x", "--agent", "command:true", "--max", "1", "--quiet")
CODE = """
import json, sys
from loopwright.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as left:
    print(json.dumps([left.code, sorted(sys.modules)]))
"""
NOT_NEEDED = {
    "csv",
    "email",
    "http.client",
    "importlib.metadata",
    "importlib.resources",
    "jsonschema",
    "mcp",
    "pydantic",
    "rich",
    "starlette",
    "yaml",
    "zoneinfo",
}
MOST_MODULES = {("ls",): 185, LOOP: 212}
"""The modules of Loopwright itself; lower the numbers when a command needs fewer."""


@pytest.mark.parametrize("args", MOST_MODULES, ids=lambda args: args[0])
def test_imports_when_a_command_runs_are_those_it_needs(lw: Place, args: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *args],
        cwd=lw.folder,
        env=lw.env,
        capture_output=True,
        text=True,
        check=True,
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    assert not NOT_NEEDED & set(modules)
    own = [name for name in modules if name.partition(".")[0] == "loopwright"]
    assert len(own) <= MOST_MODULES[args], own
