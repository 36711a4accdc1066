"""Programs of version managers: which one a shim stands for, found without starting anything."""

import os
from pathlib import Path

import pytest

from loopwright.agents.program_files import real_program
from loopwright.agents.sandbox import bubblewrap
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox
from tests.agents.test_sandbox import needs_sandbox
from tests.agents.test_sandbox import run as run_confined


def put_program(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def pyenv(tmp_path: Path) -> Path:
    """A pyenv with three versions; its own program records that it was started."""
    root = tmp_path / ".pyenv"
    put_program(root / "bin" / "pyenv", f"#!/bin/sh\necho x > {tmp_path}/started\n")
    put_program(root / "shims" / "tool", '#!/bin/sh\nexec pyenv exec tool "$@"\n')
    for version in ("3.9.1", "3.12.2", "3.12.10"):
        put_program(root / "versions" / version / "bin" / "tool", f"#!/bin/sh\necho {version}\n")
    (root / "version").write_text("3.9.1\n")
    return root


@pytest.mark.parametrize(
    ("variable", "local", "version"),
    [
        ("", "", "3.9.1"),
        ("3.12.2", "3.9.1", "3.12.2"),
        ("", "3.12.2\n3.9.1\n", "3.12.2"),
        ("", "# newest\n3.12\n", "3.12.10"),
        ("", "3.1\n3.12.2\n", "3.12.2"),
    ],
)
def test_a_shim_is_resolved_without_its_manager(
    tmp_path: Path, pyenv: Path, variable: str, local: str, version: str
) -> None:
    """By the variable, the nearest `.python-version` or the global file, as pyenv would."""
    folder = tmp_path / "work" / "inner"
    folder.mkdir(parents=True)
    if local:
        (tmp_path / "work" / ".python-version").write_text(local)
    env = {"PYENV_VERSION": variable} if variable else {}
    found = real_program(str(pyenv / "shims" / "tool"), str(folder), env)
    assert found == str(pyenv / "versions" / version / "bin" / "tool")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("named", ["../../evil", "/etc", "3.12.2/../../../evil", "linked", "*"])
def test_a_version_outside_of_the_manager_is_not_used(
    tmp_path: Path, pyenv: Path, named: str
) -> None:
    """An agent can write `.python-version`."""
    put_program(tmp_path / "evil" / "bin" / "tool", "#!/bin/sh\n")
    (pyenv / "versions" / "linked").symlink_to(tmp_path / "evil")
    (tmp_path / ".python-version").write_text(named)
    shim = str(pyenv / "shims" / "tool")
    assert real_program(shim, str(tmp_path), {}) == shim


def test_a_pipe_in_the_place_of_a_version_file_does_not_block(tmp_path: Path, pyenv: Path) -> None:
    """It is passed over."""
    os.mkfifo(tmp_path / ".python-version")
    found = real_program(str(pyenv / "shims" / "tool"), str(tmp_path), {})
    assert found == str(pyenv / "versions" / "3.9.1" / "bin" / "tool")


@needs_sandbox
@pytest.mark.item("bnd-prf-1")
@pytest.mark.parametrize("level", ["readonly", "none"])
@pytest.mark.parametrize("way", ["program", "interpreter", "env"])
def test_a_manager_in_the_workspace_is_not_started_outside_of_the_sandbox(
    tmp_path: Path, level: str, way: str
) -> None:
    """Neither for a program in a folder `shims` nor for the interpreter of one."""
    work = tmp_path / "work"
    put_program(work / "bin" / "pyenv", f"#!/bin/sh\necho x > {tmp_path}/escaped\n")
    shim = put_program(work / "shims" / "tool", "#!/bin/sh\nexit 3\n")
    (work / "versions").mkdir()
    first = f"#!/usr/bin/env {shim.name}" if way == "env" else f"#!{shim}"
    script = put_program(work / "script", f"{first}\n")
    started = shim if way == "program" else script
    if way == "env":
        env = {"PATH": f"{shim.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        program = bubblewrap.ProgramStart(argv=(str(started),), cwd=str(work), env=env)
        with Sandbox().confined(program, Confinement(level=level)):  # type: ignore[arg-type]
            pass
    else:
        run_confined(work, str(started), level=level)  # type: ignore[arg-type]
    assert not (tmp_path / "escaped").exists()


@needs_sandbox
def test_the_program_behind_a_shim_runs_at_readonly(
    tmp_path: Path, pyenv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that the manager would choose is shown and started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".python-version").write_text("3.12.2\n")
    end = run_confined(tmp_path / "work", str(pyenv / "shims" / "tool"), level="readonly")
    assert end.stdout == b"3.12.2\n", end
