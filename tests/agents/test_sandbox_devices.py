"""Which devices of the machine a program in a sandbox sees, also where this machine has none."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from loopwright.agents.sandbox.host_files import HostFiles
from loopwright.agents.sandbox.mounts import SandboxView, file_arguments
from loopwright.model.sandbox import SandboxLevel

SHOWN = ("/dev/dri", "/dev/kvm", "/dev/fuse", "/dev/nvidia0", "/dev/nvidia-uvm")
OTHERS = (
    *("/dev/video0", "/dev/snd", "/dev/bus/usb", "/dev/ttyUSB0", "/dev/ttyACM0", "/dev/sda"),
    *("/dev/nvme0n1", "/dev/mem", "/dev/kmsg", "/dev/input", "/dev/hidraw0", "/dev/tpm0"),
)


def find(paths: tuple[str, ...], patterns: Iterable[str]) -> list[str]:
    return [one for pattern in patterns for one in paths if fnmatch(one, pattern)]


@pytest.mark.item("bnd-prf-2")
@pytest.mark.parametrize("level", ["guard", "workspace", "readonly", "none"])
def test_cameras_microphones_usb_and_disks_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: SandboxLevel
) -> None:
    """Graphics, virtual machines and file systems of users are, where the workspace can change."""
    devices = (*SHOWN, *OTHERS)
    monkeypatch.setattr(HostFiles, "find", lambda files, patterns: find(devices, patterns))
    view = SandboxView(
        level=level, file="/bin/sh", argv=("sh",), cwd=str(tmp_path), env={"HOME": "/"}
    )
    shown = {one for one in file_arguments(view) if one.startswith("/dev/") and one != "/dev/null"}
    assert shown & set(OTHERS) == set()
    assert shown & set(SHOWN) == (set(SHOWN) if level in ("guard", "workspace") else set())
