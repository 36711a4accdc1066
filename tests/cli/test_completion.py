"""`completion`: scripts for three shells, and what they complete."""

import subprocess

import pytest

from tests.cli.conftest import Place


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(lw: Place, shell: str) -> None:
    """Each script speaks of both names of the command."""
    told = lw("completion", shell)
    assert told.code == 0
    assert f"_LOOPWRIGHT_COMPLETE={shell}_complete" in told.out
    assert f"_LW_COMPLETE={shell}_complete" in told.out
    assert lw("completion", "tcsh").code == 2


def test_the_bash_script_is_bash(lw: Place) -> None:
    """Bash reads the script without a complaint."""
    lw.write("script", lw("completion", "bash").out)
    done = subprocess.run(["bash", "-n", "script"], cwd=lw.folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def completed(lw: Place, line: str) -> list[str]:
    words = line.split(" ")
    env = {
        "_LOOPWRIGHT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    told = lw.real(env=env)
    assert told.err == ""
    return [item.partition(",")[2] for item in told.out.split()]


def test_what_is_completed(lw: Place) -> None:
    """Commands, options, runs, gates, statuses and dialects."""
    run = lw("run", lw.loop(lw.script("x"), until={"person": True}), "--json").json
    assert completed(lw, "loopwright res") == ["resume", "restore"]
    assert "--budget" in completed(lw, "loopwright run --b")
    assert completed(lw, "loopwright show run_") == [run["run"]]
    assert completed(lw, "loopwright approve gate_") == [run["gates"][0]["id"]]
    assert completed(lw, "loopwright ls --status wa") == ["waiting"]
    assert completed(lw, "loopwright run --dialect n") == ["native"]


def test_stored_definitions_are_completed(lw: Place) -> None:
    """By name where one is asked for, and by their prefix where a file may be named too."""
    file = lw.loop("model:test/x")
    for name in ("triage", "tidy"):
        assert lw("stored", "put", name, file).code == 0
    assert completed(lw, "loopwright stored show tr") == ["triage"]
    assert completed(lw, "loopwright hook add x --run t") == ["tidy", "triage"]
    assert completed(lw, "loopwright run sto") == ["stored:tidy", "stored:triage"]
    assert completed(lw, "loopwright run stored:ti") == ["stored:tidy"]
    assert completed(lw, "loopwright run ") == []


def test_completing_changes_nothing(lw: Place) -> None:
    """Where nothing ever ran there is nothing to complete, and nothing is made."""
    assert completed(lw, "loopwright show ") == []
    assert completed(lw, "loopwright stored show ") == []
    assert not (lw.folder.parent / "home").exists()
