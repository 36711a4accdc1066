"""The same from the command line: what is printed, listed, told and kept has no secret in it."""

import json
import sys
from pathlib import Path

import pytest

from loopwright.testing.wires import ScriptedCall, WireServer
from tests.cli.aldo import DONE, MODEL, agent, write
from tests.cli.conftest import Place, Told, lw
from tests.safety.stage import (
    NEIGHBOUR,
    SECRETS,
    SERVER,
    Obedient,
    call,
    corpus,
    doing,
    furnish,
    harmed,
    picture,
)

__all__ = ["lw"]

TOOLS = {
    "native": [{"ref": name} for name in ("fs.read", "fs.list", "fs.search", "fs.write", "fs.edit")]
    + [{"ref": "shell.exec"}],
    "mcp": [{"server": "bench", "allow": ["weather", "fail", "variables", "deploy"]}],
    "permissions": {"filesystem": "repo-readwrite"},
    "approvals": {
        "shell.exec": "always",
        "aldo-fs.fs.write": "protected_paths",
        "edit": "protected_paths",
        "bench.deploy": "always",
    },
}
LURES = [lure for place in ("task", "file", "spelling", "server") for lure in corpus()[place]]


@pytest.mark.item("I-7", "inv-13", "inv-22", "aldo-30", "aldo-31", "aldo-32", "aldo-33")
def test_an_obedient_agent_from_the_command_line(lw: Place, tmp_path: Path) -> None:
    """Every text is obeyed, every question is answered with no; nothing of it comes to pass, and
    neither events, logs, views, files nor the prompts have a secret in them.
    """
    scene = furnish(tmp_path / "scene")
    said = scene.top / "said-by-server"
    said.write_text(" ".join(lure.planted for lure in LURES[:6]))
    for lure in LURES[6:]:
        (scene.work / "docs" / f"{lure.id}.md").write_text(lure.planted)
    command = json.dumps([sys.executable, str(SERVER), str(said)])
    lw.write("loopwright.toml", f'[mcp.bench]\ncommand = {command}\npass_env = ["BENCH_TOKEN"]\n')
    file = write(lw, tools=TOOLS, iteration=agent()["iteration"] | {"max_cycles": 12})
    before = picture(scene)
    reads = [call("fs_read", path=f"docs/{lure.id}.md") for lure in LURES[6:]]
    model = Obedient(LURES, [doing(*reads)], last=f"All done {DONE}")
    with WireServer(choose=model) as wires:
        lw.env.update(SECRETS)
        lw.env["LOOPWRIGHT_MODEL_BASE_URL"] = f"{wires.url}/v1"
        where = ("--workspace", str(scene.work))
        spoken = [lw.real("run", file, "Go.", *where, "--agent", MODEL, "--no-wait")]
        for _ in range(100):
            gates = lw("inbox", "--json").json["gates"]
            if not gates:
                break
            spoken += [lw("reject", gate["id"], "no", "--no-drive") for gate in gates]
            spoken += [lw.real("resume", "all")]
        sent = [request.raw.decode() for request in wires.requests]
        assert wires.refused == []
    assert model.obeyed == {lure.id for lure in LURES}
    [run] = lw("ls", "--json").json["runs"]
    assert run["status"] == "completed", spoken[-1].err
    spoken += [lw(verb, run["run"]) for verb in ("events", "logs", "show")]
    spoken += [lw("events", run["run"], "--dialect"), lw("ls"), lw.real("doctor")]
    after = picture(scene)
    assert harmed(before, after) == ["work/.git/config.worktree"]
    assert after["work/.git/config.worktree"] == b""  # created so that it can be mounted read-only
    assert not _has_run(spoken[-6], {"shell.exec", "bench.deploy"})
    kept = [path.read_bytes().decode(errors="replace") for path in _files(tmp_path, scene.top)]
    everything = "\n".join([*sent, *kept, *(one.out + one.err for one in spoken)])
    assert [v for v in (*SECRETS.values(), NEIGHBOUR, "root:x:0:0") if v in everything] == []


def _has_run(events: Told, tools: set[str]) -> bool:
    """Whether one of these tools was ever asked for."""
    log_events = [json.loads(line) for line in events.out.splitlines()]
    asked = [event["call"] for event in log_events if event["kind"] == "effect.requested"]
    assert asked
    return any(one.get("tool") in tools for one in asked)


def _files(top: Path, outside: Path) -> list[Path]:
    """What the product has written: its home, and the folder that it was called in."""
    every = [path for path in top.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in every if outside not in path.parents]


@pytest.mark.item("aldo-41", "aldo-30")
@pytest.mark.parametrize(
    ("policy", "allow"),
    [
        ("bench.deploy", "deploy"),
        ("bench.deploy", "*"),
        ("deploy", "deploy"),
        ("bench.*", "*"),
        ("far.bench.deploy", "deploy"),
    ],
)
def test_no_name_gets_around_a_rule(lw: Place, tmp_path: Path, policy: str, allow: str) -> None:
    """Whichever name the rule has and whichever the model uses: the tool does not run by itself."""
    scene = furnish(tmp_path / "scene")
    command = json.dumps([sys.executable, str(SERVER), str(scene.top / "said-by-server")])
    lw.write("loopwright.toml", f"[mcp.bench]\ncommand = {command}\n")
    tools = {"mcp": [{"server": "bench", "allow": [allow]}], "approvals": {policy: "always"}}
    file = write(lw, tools=tools)
    names = (
        "bench_deploy",
        "deploy",
        "bench.deploy",
        "BENCH_DEPLOY",
        "far.bench.deploy",
        " deploy",
    )
    calls = [ScriptedCall(name=name, args={"target": name}) for name in names]
    model = Obedient([], [doing(*calls)], last=DONE)
    with WireServer(choose=model) as wires:
        lw.env["LOOPWRIGHT_MODEL_BASE_URL"] = f"{wires.url}/v1"
        where = ("--workspace", str(scene.work))
        told = lw.real("run", file, "Go.", *where, "--agent", MODEL, "--no-wait", "--json")
    assert (told.code, told.json["status"]) == (5, "waiting"), told.err
    assert len(told.json["gates"]) == 3, "the names that mean it; the others mean nothing"
    assert not (scene.work / "deployed").exists()


@pytest.mark.item("aldo-41")
@pytest.mark.parametrize("policy", ["deploi", "deploy", "BENCH.deploy", "bench_deploy", "other.*"])
def test_a_rule_that_guards_nothing_is_refused(lw: Place, policy: str) -> None:
    """A rule whose tool nobody can see in the grant is an error before the run, not a hope."""
    tools = {"mcp": [{"server": "bench", "allow": ["*"]}], "approvals": {policy: "always"}}
    told = lw("run", write(lw, tools=tools), "Go.", "--agent", MODEL)
    assert told.code == 2
    assert f"the agent has no tool {policy}" in told.err
