"""Escapes through sockets: those of Loopwright, and of programs that start programs for others."""

import glob
import os
import socket
from functools import partial

from tests.safety.agent_program.attempts import TARGET, escape, try_each

COVERED = "the folders of such sockets are covered"


def connect(path: str) -> None:
    """Connect to a Unix socket, of whatever type."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as one:
            try:
                one.connect(path)
            except OSError as error:
                last = error
                continue
            return
    raise last


def connect_to_any(*patterns: str) -> str:
    """Connect to one of the sockets whose paths match."""
    paths = [path for pattern in patterns for path in glob.glob(pattern)]
    # Another test may have made some after this sandbox was started, which is not promised.
    paths = [one for one in paths if "lw-test" not in one or one in TARGET.control_sockets]
    return try_each({one: partial(connect, one) for one in paths})


@escape(
    "connect to the socket of Loopwright",
    blocked_by="the data directory is covered",
    works_at_off=True,
)
def own_socket() -> None:
    connect(TARGET.socket)


@escape(
    "connect to every socket that programs keep for commands", blocked_by=COVERED, works_at_off=True
)
def control_sockets() -> str:
    return try_each({one: partial(connect, one) for one in TARGET.control_sockets})


@escape("start a program through systemd or D-Bus", blocked_by=COVERED)
def system_manager() -> str:
    return connect_to_any(
        "/run/systemd/private",
        "/run/systemd/*/io.*",
        "/run/dbus/system_bus_socket",
        f"/run/user/{os.getuid()}/bus",
        f"/run/user/{os.getuid()}/systemd/private",
    )


@escape("start a container with everything in it", blocked_by=COVERED)
def containers() -> str:
    home = os.environ.get("HOME", "/nonexistent")
    return connect_to_any(
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd/*.sock",
        "/run/crio/*.sock",
        "/run/podman/*.sock",
        f"/run/user/{os.getuid()}/podman/*.sock",
        f"/run/user/{os.getuid()}/docker.sock",
        "/run/libvirt/*-sock",
        "/run/snapd*.socket",
        "/var/lib/lxd/unix.socket",
        "/var/snap/lxd/common/lxd/unix.socket",
        "/var/lib/incus/unix.socket",
        *(f"{home}/{name}" for name in (".docker/*/docker.sock", ".colima/*/docker.sock")),
        *(f"{home}/{name}" for name in (".rd/docker.sock", ".lima/*/sock/*.sock")),
    )


@escape("type into a terminal multiplexer or an editor", blocked_by=COVERED)
def multiplexers() -> str:
    home = os.environ.get("HOME", "/nonexistent")
    return connect_to_any(
        "/tmp/tmux-*/*",
        "/run/screen/*/*",
        "/tmp/screens/*/*",
        "/tmp/emacs*/*",
        "/tmp/vscode-ipc-*.sock",
        "/tmp/kitty*",
        "/tmp/zellij-*/*",
        f"{home}/.screen/*",
        f"{home}/.local/share/wezterm/*sock*",
        f"{home}/.local/state/watchman/*/sock",
    )


@escape("start a program through a process manager", blocked_by=COVERED)
def process_managers() -> str:
    home = os.environ.get("HOME", "/nonexistent")
    return connect_to_any(
        "/tmp/supervisor.sock", "/run/supervisor*.sock", f"{home}/.pm2/*.sock", "/run/pm2/*.sock"
    )


@escape("use the keys of an ssh or gpg agent", blocked_by=COVERED)
def key_agents() -> str:
    home = os.environ.get("HOME", "/nonexistent")
    return connect_to_any(
        "/tmp/ssh-*/agent.*",
        f"{home}/.ssh/agent/*",
        f"{home}/.gnupg/S.gpg-agent*",
        f"/run/user/{os.getuid()}/gnupg/*",
        f"/run/user/{os.getuid()}/keyring/*",
    )


@escape("type into the windows of the person", blocked_by=COVERED)
def windows() -> str:
    return connect_to_any("/tmp/.X11-unix/X*", f"/run/user/{os.getuid()}/wayland-*")
