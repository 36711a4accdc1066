"""What a plain loop imports: everything else is loaded when it is first needed."""

import json
import resource
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
MOST_MODULES = {("ls",): 80, ("inbox",): 80, ("spend",): 80, LOOP: 212}
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


@pytest.mark.parametrize("name", ["ls", "inbox", "spend"])
def test_list_when_it_runs_needs_little_processor_time(lw: Place, name: str) -> None:
    """`bench/run.py --workloads lists` measures it; this limit is for a machine that is busy."""
    words = [sys.executable, "-m", "loopwright", name]
    used = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, cwd=lw.folder, env=lw.env, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) <= 1.5, used
