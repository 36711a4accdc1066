"""Which files a program in a sandbox sees, as arguments of bubblewrap.

The arguments are ordered by depth, outer folders first: a hidden folder inside the workspace, a
workspace inside a hidden folder and a file shown inside either work without further rules. Nothing
is shown inside a hidden folder except what is trusted: the workspace, and files that Loopwright
itself created for the call.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

from loopwright.agents.program_files import is_own_checkout, program_files, script_files
from loopwright.agents.sandbox.git_settings import find_repository
from loopwright.agents.sandbox.host_files import (
    HostFiles,
    is_within,
    is_within_any,
    other_kernel_mounts,
    usable_sockets,
)
from loopwright.agents.user_records import entries_on_the_way
from loopwright.model.access import READ_COMMANDS, Commands
from loopwright.model.sandbox import SandboxLevel

_SHELLS = ("sh", "bash", "dash")
# Where programs are that a person did not install manually.
_BINARIES = (
    *("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"),
    *("/usr/games", "/snap/bin"),
)
# Folders of users and temporary ones; nothing in them is needed to start a program.
PRIVATE = ("/home", "/root", "/tmp", "/var/tmp", "/mnt", "/media", "/srv", "/run", "/var/run")
_TEMPORARY = ("/tmp", "/var/tmp")
# Parts of the kernel that root may write to without any capability; read-only for everybody.
_KERNEL = (
    *("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"),
    *("/proc/scsi", "/proc/mtrr", "/proc/driver"),
)
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
_KERNEL_SECRETS = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug")
# Devices that builds and tests use. Others stay hidden: root could write to whole disks, also by
# USB, and an agent does not need a camera or a microphone.
_DEVICES = ("/dev/dri", "/dev/kvm", "/dev/fuse", "/dev/nvidia*")
# At `guard`, read-only for root: what the system starts by itself, and what every start reads.
_SYSTEM = (
    *("/etc", "/boot", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"),
    *("/var/spool", "/run/systemd", "/run/udev"),
)
# The same for root alone: what package managers, modprobe, tmpfiles and others start or read.
_SYSTEM_OF_ROOT = ("/run", "/var/lib")
# Services that start programs on request, outside of the sandbox.
_SERVICES = (
    *("/run/dbus", "/run/systemd/private", "/run/docker.sock", "/run/podman", "/run/containerd"),
    *("/run/crio", "/run/libvirt", "/run/snapd.socket", "/run/snapd-snap.socket", "/run/screen"),
    *("/run/incus", "/var/lib/lxd", "/var/lib/incus", "/var/snap/lxd/common/lxd"),
    *("/run/supervisor.sock", "/run/supervisord.sock", "/run/initctl"),
)
# The same of desktops, terminals, editors and agents for keys.
_USER_SERVICES = (
    *("/tmp/.X11-unix", "/tmp/.ICE-unix", "/tmp/ssh-*", "/tmp/screens", "/tmp/uscreens"),
    *("/tmp/emacs*", "/tmp/vscode-ipc-*", "/tmp/vscode-git-*", "/tmp/kitty*", "/tmp/dbus-*"),
    *("/tmp/nvim*", "/tmp/zellij-*", "/tmp/supervisor.sock"),
)
# The same in the home directory.
_HOME_SERVICES = (
    *(".docker/run", ".docker/desktop/*.sock", ".colima/*.sock", ".colima/*/*.sock"),
    *(".rd/*.sock", ".lima/*/sock", ".lima/*/*.sock", ".orbstack/run", ".pm2/*.sock"),
    *(".local/state/watchman", ".local/share/wezterm/*sock*", ".local/share/containers/podman"),
    *(".screen", ".gnupg/S.*", ".ssh/agent", ".byobu/*.sock", ".emacs.d/server", ".dbus"),
)
# Remaining listening sockets: names, logs, user accounts. They start no programs.
_HARMLESS_SERVICES = (
    *("/run/systemd/journal", "/run/systemd/resolve", "/run/systemd/userdb", "/run/nscd"),
    *("/var/run/nscd", "/var/lib/sss/pipes", "/run/avahi-daemon", "/run/postgresql"),
    *("/run/mysqld", "/run/redis", "/dev/log"),
)
# In the folder of a session that is passed on: what shows windows and plays sound.
_SESSION_DEVICES = ("wayland-", "pipewire-", "pulse")
# Those in the folder of a session, where that folder itself is passed on.
_SESSION_SERVICES = ("bus", "systemd", "podman", "docker.sock", "containerd-rootless", "gnupg")
# At `none`, everything that is visible beside the program: libraries, certificates, names of hosts.
_LIBRARIES = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/gnu/store")
_NEEDED_SETTINGS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/ssl", "/etc/ca-certificates", "/etc/pki", "/etc/hosts", "/etc/nsswitch.conf"),
    *("/etc/host.conf", "/etc/gai.conf", "/etc/localtime", "/etc/passwd", "/etc/group"),
)
# Roles, definitions and settings of the project, which decide what the next run does.
_PROJECT_FILES = (".loopwright", "loopwright.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxView:
    """The visible files, and the program that sees them."""

    level: SandboxLevel
    file: str  # of the program
    argv: tuple[str, ...]
    cwd: str  # the workspace
    env: Mapping[str, str]
    commands: Commands = "all"
    configuration: tuple[str, ...] = ()  # the agent's own, which it may change
    shown: tuple[str, ...] = ()  # files of the call, made by Loopwright
    artifacts: str = ""  # the folder of the run for what its agents make, inside of a hidden one
    hidden: tuple[str, ...] = ()  # the data directory, and everything else that is always hidden
    own: tuple[str, ...] = ()  # of these, what this process uses: empty and closed in any case
    protected: tuple[str, ...] = ()  # read-only at every level
    sets_modes: bool = False  # whether bubblewrap can set the mode of an empty folder
    temporary: str = ""  # the private folder for temporary files; else they are in memory

    @property
    def writes(self) -> bool:
        """Whether the workspace can be changed."""
        return self.level in ("guard", "workspace")


@dataclass(slots=True)
class _Mounts:
    """What is mounted where; a later entry for the same path replaces an earlier one."""

    hidden: frozenset[str]
    own: frozenset[str]
    trusted: frozenset[str]
    files: HostFiles
    at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)  # made read-only when all mounts are in place
    empty: set[str] = field(default_factory=set)  # hidden by an empty folder or file
    unwritable: set[str] = field(default_factory=set)  # empty folders that have the mode 0555

    def bind(self, how: str, path: str, source: str | None = None) -> None:
        if self._is_visible(path):
            self.at[path] = (how, source or path, path)
            self.empty.discard(path)

    def hide(self, path: str, *, closed: bool = False) -> None:
        """Mount an empty folder or file, in memory."""
        self.empty.add(path)
        if self.files.is_folder(path):
            self.at[path] = ("--tmpfs", path)
            self.closed += [path] if closed else []
        elif self.files.exists(path):
            self.at[path] = ("--ro-bind", os.devnull, path)

    def arguments(self) -> Iterator[str]:
        made: dict[str, tuple[str, ...]] = {}
        for path in sorted(self.at, key=lambda one: one.count(os.sep)):
            if not self._is_superfluous(path, made):
                made[path] = self.at[path]
                if path in self.unwritable and made[path][0] == "--tmpfs":
                    yield from ("--perms", "0555")
                yield from self.at[path]
        for path in self.closed:
            if made.get(path, ("",))[0] == "--tmpfs":
                yield from ("--remount-ro", path)

    def _is_superfluous(self, path: str, made: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether the mount around a path has the same effect: the path is read-only already, or it
        is to be hidden and does not exist there. bubblewrap cannot mount anything on a link, and
        each mount makes every start slower. The own data directory is mounted in any case: a
        program that names it must not be able to create another one in its place.
        """
        if path in self.own:
            return False
        around = next((one for one in _folders_above(path) if one in made), None)
        if around is None:
            return False
        mount, (how, source, *target) = self.at[path], made[around]
        if path not in self.empty:
            is_same = mount == ("--ro-bind", path, path)
            return is_same and (how, source) == ("--ro-bind", around)
        if how == "--tmpfs":
            return True
        inner = os.path.join(source, os.path.relpath(path, around))
        return how != "--symlink" and bool(target) and not self.files.ask(os.path.lexists, inner)

    def _is_visible(self, path: str) -> bool:
        """Whether the innermost folder around a path that is hidden or trusted is a trusted one."""
        for one in (path, *_folders_above(path)):
            if one in self.trusted:
                return True
            if one in self.hidden:
                return False
        return True


VARIABLES = ("HOME", "PATH", "SSH_AUTH_SOCK", "TMPDIR", "TMUX_TMPDIR", "XDG_RUNTIME_DIR")
"""The variables of the program on which its view depends."""


def file_arguments(view: SandboxView, files: HostFiles | None = None) -> Iterator[str]:
    """The arguments of bubblewrap for a view of the files. At `guard` they depend only on the view
    and on what is asked of `files`.
    """
    files = files or HostFiles()
    mounted = files.mounts()
    hidden = tuple(
        dict.fromkeys(one for path in view.hidden for one in files.all_paths(path, mounted))
    )
    places = (view.cwd, *view.shown, *((view.artifacts,) if view.artifacts else ()))
    trusted = frozenset(map(files.real_path, places))
    own = frozenset(one for path in view.own for one in files.all_paths(path, mounted))
    mounts = _Mounts(frozenset(hidden), own, trusted, files)
    if view.level == "guard":
        yield from ("--ro-bind" if os.getuid() == 0 else "--bind", "/", "/")
    elif view.level != "none":
        yield from ("--ro-bind", "/", "/")
    yield from ("--dev", "/dev", "--proc", "/proc")
    _LEVELS[view.level](mounts, view)
    if view.artifacts and view.level != "none":
        folder = files.real_path(view.artifacts)
        mounts.bind("--bind" if view.writes else "--ro-bind", folder)
    _add_kernel(mounts, view)
    protected = tuple(_protected(view, files))
    for path in protected:
        mounts.bind("--ro-bind", path)
    # There may be hundreds of other data directories. Making a mount read-only is slow: bubblewrap
    # reads the list of all mounts again for each one. So these get permissions instead.
    for path in hidden:
        by_mode = view.sets_modes and path not in own
        mounts.hide(path, closed=not by_mode)
        if by_mode:
            mounts.unwritable.add(path)
    if view.writes:
        _pin_parents(mounts, (*hidden, *protected), is_writable=view.level == "guard")
    yield from mounts.arguments()


# -- the levels ------------------------------------------------------------------------------------


def _add_guard(mounts: _Mounts, view: SandboxView) -> None:
    """The whole file system, except for services that start programs outside of the sandbox. Root
    changes no names in the root folder: `/bin` may be a link there.
    """
    as_root = os.getuid() == 0
    files = mounts.files
    for path in _outer_folders(files) if as_root else ():
        mounts.bind("--bind", path)
    for path in (*_SYSTEM, *(_SYSTEM_OF_ROOT if as_root else ()), *_own_services(view.env)):
        if files.is_folder(path):
            mounts.bind("--ro-bind", files.real_path(path))
    _hide_services(mounts, view)
    if files.real_path(view.cwd) != os.sep:
        _add_workspace(mounts, view)
    for path in map(files.real_path, view.shown):
        if is_within_any(path, mounts.hidden):
            mounts.bind("--ro-bind", path)


def _add_writing(mounts: _Mounts, view: SandboxView) -> None:
    """Nothing can be changed except for the workspace and the agent's own configuration."""
    _hide_services(mounts, view)
    for folder in _real(*_TEMPORARY, view.env.get("TMPDIR", "")):
        mounts.bind("--bind", folder, view.temporary or None)
    for home in _real(view.env.get("HOME", "")):
        if is_within_any(home, mounts.at):
            mounts.bind("--ro-bind", home)
    _show_program(mounts, view)
    _add_workspace(mounts, view)
    _protect_repository(mounts, os.path.realpath(view.cwd))


def _add_reading(mounts: _Mounts, view: SandboxView) -> None:
    """The workspace, the system and the program, all of it read-only; no other folder of people."""
    folders = [*PRIVATE, view.env.get("HOME", ""), view.env.get("TMPDIR", "")]
    if view.commands != "all":
        folders += [*_BINARIES, *_search_path(view.env)]
    for folder in _real(*folders):
        mounts.hide(folder)
    _hide_services(mounts, view)
    _show_program(mounts, view)
    _add_workspace(mounts, view)


def _add_nothing(mounts: _Mounts, view: SandboxView) -> None:
    """Libraries and the program, in an otherwise empty tree of files."""
    for path in (*_LIBRARIES, *_NEEDED_SETTINGS):
        if os.path.islink(path) and path.count(os.sep) == 1:
            mounts.at[path] = ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            mounts.bind("--ro-bind", path)
    for folder in _real(*_BINARIES):
        mounts.hide(folder)
    for folder in (*_TEMPORARY, view.env.get("HOME", ""), view.env.get("TMPDIR", "")):
        if os.path.isabs(folder) and os.path.realpath(folder) != os.sep:
            mounts.at[os.path.realpath(folder)] = ("--tmpfs", os.path.realpath(folder))
    _add_workspace(mounts, view)
    _show_program(mounts, view)


_LEVELS = {
    "guard": _add_guard,
    "workspace": _add_writing,
    "readonly": _add_reading,
    "none": _add_nothing,
}


# -- their parts -----------------------------------------------------------------------------------


def _add_workspace(mounts: _Mounts, view: SandboxView) -> None:
    """The workspace, by its own path and by that of a link to it, then the configuration."""
    real, named = mounts.files.real_path(view.cwd), os.path.abspath(view.cwd)
    for path in dict.fromkeys((real, named)):
        if path == named and named != real and view.writes:
            continue  # the links on the way exist
        is_hidden = is_within_any(real, mounts.hidden)
        if view.level == "guard" and not is_hidden and _is_writable(mounts, real, otherwise=True):
            continue  # as it is; being a mount it could not be removed
        if view.level == "none":
            mounts.at[path] = ("--tmpfs", path)
            mounts.empty.discard(path)
            mounts.closed.append(path)
        else:
            mounts.bind("--bind" if view.writes else "--ro-bind", path, real)
    for own in (os.path.join(real, name) for name in _PROJECT_FILES):
        if view.writes and mounts.files.exists(own):
            mounts.bind("--ro-bind", own)
    for path in _configuration(view):
        mounts.bind("--bind", os.path.realpath(path))


def _show_program(mounts: _Mounts, view: SandboxView) -> None:
    """The program, the commands of its role, and the files that it was started with."""
    search = view.env.get("PATH")
    names = os.path.realpath("/etc/resolv.conf")  # often below /run, which is hidden
    shown = [*program_files(view.file, search), *script_files(view.argv, view.cwd, search)]
    shown += [*_commands(view.commands), names, *view.shown]
    if view.level != "none":
        shown += [one for one in view.argv if os.path.isabs(one) and os.path.isfile(one)]
    covered = tuple(path for path, how in mounts.at.items() if how[0] != "--ro-bind")
    paths = _real_parents(shown)
    inside = (one for one in paths if view.level == "none" or is_within_any(one, covered))
    for path in _outermost(inside, covered):
        if not is_within(path, os.path.realpath(view.cwd)) or view.level == "none":
            mounts.bind("--ro-bind", path)


def _add_kernel(mounts: _Mounts, view: SandboxView) -> None:
    """Kernel settings that root could change without any capability, read-only for root. Others may
    not write there anyway, and a sandbox inside this one can mount its own /proc only if nothing is
    mounted on this one.
    """
    if view.level == "guard":
        mounts.at["/sys"] = ("--ro-bind-try", "/sys", "/sys")
    for path in _KERNEL if os.getuid() == 0 else ():
        mounts.at[path] = ("--ro-bind-try", path, path)
    files = mounts.files
    for path in _KERNEL_SECRETS if os.getuid() == 0 else ():
        if files.exists(path):
            mounts.at[path] = ("--ro-bind", os.devnull, path)
    for path in other_kernel_mounts(files.mounts()) if view.level != "none" else ():
        mounts.hide(path)
    if view.writes:
        for path in files.find(_DEVICES):
            mounts.at[path] = ("--dev-bind-try", path, path)


def _protected(view: SandboxView, files: HostFiles) -> Iterator[str]:
    """Files that are always read-only. At the levels that change nothing they need not be shown."""
    if not view.writes:
        return
    workspace, is_own = files.real_path(view.cwd), files.ask(is_own_checkout, view.cwd)
    for path in map(files.real_path, view.protected):
        if files.exists(path) and not (is_own and is_within(path, workspace)):
            yield path


def _pin_parents(mounts: _Mounts, paths: Iterable[str], *, is_writable: bool) -> None:
    """Mount the folders above paths on themselves. A folder with a mount on it cannot be renamed,
    so nothing else can replace what is hidden or protected.
    """
    above = dict.fromkeys(folder for path in paths for folder in reversed([*_folders_above(path)]))
    for folder in above:
        # Below another folder, such as a private one for temporary files, this is unnecessary.
        writable = _is_writable(mounts, folder, otherwise=is_writable)
        is_new = folder != os.sep and folder not in mounts.at and mounts.files.is_folder(folder)
        if is_new and writable and mounts.files.can_write(os.path.dirname(folder)):
            mounts.at[folder] = ("--bind", folder, folder)


def _is_writable(mounts: _Mounts, path: str, *, otherwise: bool) -> bool:
    """Whether the mount around a path shows it as it is outside, and can be written to."""
    around = (one for one in (path, *_folders_above(path)) if one in mounts.at)
    mount = mounts.at.get(next(around, ""))
    if mount is None:
        return otherwise
    return mount[0] in ("--bind", "--bind-try") and mount[1] == mount[2]


def _outer_folders(files: HostFiles) -> Iterator[str]:
    """The folders at the top, and those below the ones of the system that everybody writes to."""
    yield from (one for one in files.folders_in(os.sep) if one not in _KERNEL_FOLDERS)
    yield from (one for one in ("/run/lock", "/run/user") if files.is_folder(one))


def _hide_services(mounts: _Mounts, view: SandboxView) -> None:
    known = (*_SERVICES, *_user_services(view.env, mounts.files))
    for path in dict.fromkeys(map(mounts.files.real_path, known)):
        mounts.hide(path)
    for path in _other_services(view, mounts.files):
        if not is_within_any(path, mounts.empty):
            mounts.hide(path)


def _other_services(view: SandboxView, files: HostFiles) -> Iterator[str]:
    """Listening sockets of other programs of this user or of root that could be connected to: any
    of them may start programs.
    """
    keys, session = view.env.get("SSH_AUTH_SOCK"), view.env.get("XDG_RUNTIME_DIR")
    kept = [view.cwd, *view.shown, view.artifacts, *_HARMLESS_SERVICES, keys or ""]
    kept = [files.real_path(one) for one in kept if one]
    devices = [f"{files.real_path(session)}/{one}" for one in _SESSION_DEVICES] if session else []
    for path in files.ask(usable_sockets):
        if not is_within_any(path, kept) and not path.startswith(tuple(devices)):
            yield path


def _user_services(env: Mapping[str, str], files: HostFiles) -> Iterator[str]:
    """Sockets through which programs of this user accept commands. A key agent stays if the program
    receives its address on purpose.
    """
    user, session = os.getuid(), env.get("XDG_RUNTIME_DIR", "")
    keys = files.real_path(env.get("SSH_AUTH_SOCK") or "/")
    patterns = [f"{env.get('TMUX_TMPDIR') or '/tmp'}/tmux-{user}", *_USER_SERVICES]
    if session:
        patterns += [os.path.join(session, name) for name in _SESSION_SERVICES]
    if not session or files.real_path(session) != f"/run/user/{user}":
        patterns.append(f"/run/user/{user}")
    home = env.get("HOME", "")
    if os.path.isabs(home):
        patterns += [os.path.join(escape(home), name) for name in _HOME_SERVICES]
    for path in files.find(patterns):
        if not is_within(keys, files.real_path(path)):
            yield path


def _own_services(env: Mapping[str, str]) -> Iterator[str]:
    """Folders from which programs of this user are started at the next sign-in."""
    home = env.get("HOME", "")
    if os.path.isabs(home):
        yield from (f"{home}/.config/systemd/user", f"{home}/.config/autostart")


def _protect_repository(mounts: _Mounts, workspace: str) -> None:
    """A repository can be committed to. Files that start programs for its next user are read-only;
    being mounts, these files cannot be moved away either, nor the folders around submodules.
    """
    repository = find_repository(workspace)
    if repository is None:
        return
    for folder in (repository.common, repository.own):
        if folder:
            mounts.bind("--bind", folder)
    paths = tuple(dict.fromkeys(repository.read_only()))
    for path in paths:
        mounts.bind("--ro-bind", path)
    inside = (one for one in paths if is_within(one, workspace))
    _pin_parents(mounts, inside, is_writable=False)


def _commands(commands: Commands) -> Iterator[str]:
    """The programs that may be started, and the shells that coding agents start them with."""
    if commands != "reading":
        return
    for name in (*READ_COMMANDS, *_SHELLS):
        for folder in _BINARIES:
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                yield file


def _configuration(view: SandboxView) -> Iterator[str]:
    """The configuration of an agent, where it would be read-only or hidden. A missing folder is
    made, as inside of the sandbox it could not be.
    """
    if view.level == "guard":
        return
    for path in view.configuration:
        if _is_led_out(path, view.cwd):
            continue
        missing = not os.path.exists(path) and not os.path.splitext(path)[1]
        if missing and os.path.isdir(view.env.get("HOME", "")):
            Path(path).mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.path.exists(path):
            yield path


def _is_led_out(path: str, workspace: str) -> bool:
    """Whether a link in the workspace leads out of it: an agent may have made it."""
    work = os.path.realpath(workspace)
    *links, end = map(str, entries_on_the_way(Path(path)))
    return any(is_within(one, work) for one in links) and not is_within(end, work)


# -- paths -----------------------------------------------------------------------------------------


def _folders_above(path: str) -> Iterator[str]:
    """The folders above an absolute path, the innermost first."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def _real(*folders: str) -> list[str]:
    """Folders that exist, without links; the root is not one of them."""
    found = {os.path.realpath(one) for one in folders if os.path.isabs(one) and os.path.isdir(one)}
    return sorted(found - {os.sep})


def _real_parents(paths: Iterable[str]) -> Iterator[str]:
    """Paths whose folders have no links; what they name may be a link."""
    for path in paths:
        folder, name = os.path.split(os.path.normpath(path))
        yield os.path.join(os.path.realpath(folder), name)


def _outermost(places: Iterable[str], covered: Iterable[str]) -> list[str]:
    """Places without those inside of another one, where they are seen as they are, unless a covered
    folder between the two hides them.
    """
    found = sorted({one for one in places if os.path.lexists(one)})
    kept: list[str] = []
    for one in found:
        around = [*kept, *covered]
        innermost = max(
            (folder for folder in around if is_within(one, folder)), key=len, default=""
        )
        if innermost not in kept:
            kept.append(one)
    return kept


def _search_path(env: Mapping[str, str]) -> list[str]:
    return [one for one in env.get("PATH", "").split(os.pathsep) if os.path.isabs(one)]
