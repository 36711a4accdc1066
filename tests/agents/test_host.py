"""What is said and done on a system other than Linux; the name of the system is injected."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright import host
from loopwright.agents.sandbox import bubblewrap
from loopwright.errors import LoopwrightError
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Agent, Plan
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.doctor import examine
from loopwright.operations.settings import SettingsSources, load_settings
from loopwright.operations.workspace_rules import SandboxRules

REASON = "the sandbox needs Linux, and this is macOS"


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(host, "SYSTEM", "darwin")
    bubblewrap.works.cache_clear()
    yield
    bubblewrap.works.cache_clear()


def test_missing_features_when_on_linux_are_none() -> None:
    assert host.missing_features() == ()
    assert host.sandbox_problem() is None


@pytest.mark.usefixtures("macos")
def test_doctor_when_on_macos_names_what_is_not_available(tmp_path: Path) -> None:
    resolved = load_settings(
        data_dir=str(tmp_path / "home"), place=SettingsSources(env={}, cwd=tmp_path)
    )
    found = {one.name: one for one in examine(resolved)}
    for name in ("sandbox", "callers", "processes"):
        assert found[name].state == "warn"
        assert found[name].why.startswith("not available on macOS: ")
        assert found[name].fix == "run Loopwright on Linux, for example in a virtual machine"
    assert not found.keys() & {"sandbox guard", "proc", "orphans"}  # they are about Linux


@pytest.mark.usefixtures("macos")
def test_works_when_on_macos_names_the_system_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bubblewrap.subprocess, "run", lambda *_, **__: pytest.fail("started"))
    assert bubblewrap.works() == REASON


@pytest.mark.usefixtures("macos")
@pytest.mark.parametrize("level", ["workspace", "readonly", "none"])
def test_level_when_on_macos_is_refused_with_a_hint_that_helps(level: SandboxLevel) -> None:
    steps = (Step(id="main", action=CallAgent(agent="worker")),)
    agents = {"worker": Agent(spec="command:true")}
    plan = Plan(name="p", steps=steps, agents=agents, sandbox=level)
    with pytest.raises(LoopwrightError) as refused:
        SandboxRules().check(plan)
    assert refused.value.code == "no-sandbox"
    assert refused.value.message.endswith(f"cannot be enforced here: {REASON}")
    assert refused.value.hint == host.NEEDS_LINUX


def test_peer_user_when_it_is_this_process_is_this_user() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert host.peer_user(ours) == os.getuid()
        assert host.peer_process(ours) == os.getpid()
        assert host.is_own_user(ours)


class OtherSystem:
    """A socket whose system does not know the question, or answers in too few bytes."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer

    def getsockopt(self, *_: int) -> bytes:
        if self.answer is None:
            raise OSError(92, "Protocol not available")
        return self.answer


@pytest.mark.parametrize("answer", [None, b"", struct.pack("2i", 1, os.getuid())])
def test_peer_user_when_the_system_does_not_tell_is_nobody(answer: bytes | None) -> None:
    connection: socket.socket = OtherSystem(answer)  # type: ignore[assignment]
    assert host.peer_user(connection) is None
    assert not host.is_own_user(connection)


@pytest.mark.usefixtures("macos")
def test_programs_and_files_when_on_macos_use_no_linux_call(tmp_path: Path) -> None:
    assert not host.can_adopt_orphans()
    assert host.open_beneath(0, "x", os.O_RDONLY) is None
    program = tmp_path / "git"
    program.write_text("")
    program.chmod(0o700)
    assert host.find_program("git", str(tmp_path)) == str(program)
