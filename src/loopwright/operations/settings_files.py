"""Parts of settings files (models, notifiers, MCP servers); usable files and folders.

A project file that decides what Loopwright does is ignored if an agent may have written it. A
folder for data must belong to this user and must not be on a remote disk.
"""

import errno
import json
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec
from platformdirs import user_data_path

from loopwright.agents.sandbox.host_files import parse_mounts, read_mount_table
from loopwright.agents.user_records import UserRecords
from loopwright.errors import LoopwrightError, StorageError
from loopwright.model.chat import Price
from loopwright.model.record import JsonValue

PRICES = "prices"
MODELS = "models"
PRICE_KEYS = ("input", "output", "cache_read", "call")
_UNQUOTED = re.compile(
    r"""\s*(?P<name>[\w.-]+)\s*=\s*
    (?!(?:true|false|inf|nan)\s*(?:\#|$))(?P<value>[A-Za-z./~][^"'\[\]{}\#]*?)\s*(?:\#.*)?""",
    re.VERBOSE,
)
MODEL_KINDS = ("model", "claude", "codex", "gemini", "opencode")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBudget:
    """What may be used in a day (of UTC), and ever. Without `hard_stop` it is only looked at."""

    usd_per_day: float | None = None
    tokens_per_day: int | None = None
    usd_total: float | None = None
    tokens_total: int | None = None
    hard_stop: bool = True

    @property
    def has_limits(self) -> bool:
        """Whether any limit is set, also one that stops nothing."""
        caps = (self.usd_per_day, self.tokens_per_day, self.usd_total, self.tokens_total)
        return any(one is not None for one in caps)

    @property
    def limits_usd(self) -> bool:
        """Whether USD are limited for all runs together."""
        return self.hard_stop and (self.usd_per_day is not None or self.usd_total is not None)

    @property
    def is_open(self) -> bool:
        """Whether nothing is limited."""
        return not (self.hard_stop and self.has_limits)


def read_models(value: object, origin: str) -> dict[str, str]:
    """The agents for model tiers, aliases and providers of definitions. A file of a
    project may have been written by an agent, so none of them is a program.
    """
    example = f'write [{MODELS}] with lines such as small = "model:PROVIDER/NAME"'
    if not isinstance(value, dict):
        raise refused(f"{origin}: {MODELS} is not a table", example)
    for name, spec in value.items():
        kind = spec.partition(":")[0] if isinstance(spec, str) else ""
        if kind not in MODEL_KINDS:
            hint = "name a model or a coding CLI; give programs with --agent"
            raise refused(f"{origin}: {MODELS}.{name} is {spec!r}", hint)
    return {str(name): str(spec) for name, spec in value.items()}


def read_prices(value: object, origin: str) -> dict[str, Price]:
    """Prices by model (`PROVIDER/NAME`) or by agent (`codex`, `command:./agent`)."""
    keys = ", ".join(PRICE_KEYS)
    example = f'write [{PRICES}."PROVIDER/NAME"] with {keys} (USD for a million tokens)'
    if not isinstance(value, dict):
        raise refused(f"{origin}: {PRICES} is not a table", example)
    found: dict[str, Price] = {}
    for name, said in value.items():
        if not isinstance(said, dict) or not said:
            raise refused(f"{origin}: {PRICES}.{name!r} is not a price", example)
        for key, amount in said.items():
            if key not in PRICE_KEYS:
                raise refused(f"{origin}: unknown {key!r} in {PRICES}.{name!r}", example)
            number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not number or not 0 <= amount < float("inf"):
                hint = "it must be a number from 0 on"
                raise refused(f"{origin}: {PRICES}.{name!r}.{key} is {amount!r}", hint)
        found[name] = Price(**said)
    return found


def refused(message: str, hint: str) -> LoopwrightError:
    """The error about a setting that cannot be used."""
    return LoopwrightError(message, code="bad-setting", hint=hint)


def toml_hint(file: Path) -> str:
    """What to write instead of the first value that lacks quotes, if that is what is wrong."""
    for line in file.read_text(encoding="utf-8").splitlines():
        found = _UNQUOTED.fullmatch(line)
        if found is not None:
            return f'text needs quotes: {found["name"]} = "{found["value"]}"'
    return "correct the TOML, or move the file away"


MCP = "mcp"
PROGRAM_KEYS = frozenset({"command", "args", "pass_env"})
ADDRESS_KEYS = frozenset({"url", "bearer_env", "header_env"})
_EXAMPLE = 'write command = ["PROGRAM", "ARG"] or url = "https://…"'

Servers = dict[str, Mapping[str, JsonValue]]


class BadServers(Exception):
    """What is wrong with the first of them, and what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def read_servers(value: object) -> Servers:
    """A table for each server, with a command or an address."""
    if not isinstance(value, dict):
        raise BadServers(f"{MCP} is not a table", f"write [{MCP}.NAME] with command or url")
    for name, one in value.items():
        for message, hint in _problems(name, one):
            raise BadServers(f"{MCP}.{name} {message}", hint)
    return cast("Servers", value)


def _problems(name: str, one: object) -> Iterator[tuple[str, str]]:
    from loopwright.tools.mcp.connections import server_name_problem  # noqa: PLC0415 - for servers only

    bad_name = server_name_problem(name)
    if bad_name is not None:
        yield f"cannot be: {bad_name}", f"write [{MCP}.my-{name.strip('.') or 'server'}]"
    if not isinstance(one, dict) or not (one.get("command") or one.get("url")):
        yield "has neither command nor url", _EXAMPLE
        return
    unknown = sorted(set(one) - PROGRAM_KEYS - ADDRESS_KEYS)
    if unknown:
        known = ", ".join(sorted(PROGRAM_KEYS | ADDRESS_KEYS))
        yield f"has an unknown {unknown[0]!r}", f"it may have {known}"
    if "command" in one and "url" in one:
        yield "has both command and url", "a server is a program or has an address: keep one"
    yield from _out_of_place(one)
    yield from _wrong_kinds(one)


def _out_of_place(one: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Keys that would do nothing beside the others."""
    kind, others = ("command", ADDRESS_KEYS) if "command" in one else ("url", PROGRAM_KEYS)
    for key in sorted(others & set(one)):
        yield f"has {kind}, which knows no {key}", f"remove {key}"


def _wrong_kinds(one: dict[str, object]) -> Iterator[tuple[str, str]]:
    command = one.get("command")
    if command is not None and not isinstance(command, str) and not _is_list_of_texts(command):
        yield "command must be a list of texts", 'write command = ["PROGRAM", "ARG"]'
    for key in ("args", "pass_env"):
        if key in one and not _is_list_of_texts(one[key]):
            yield f"{key} must be a list of texts", f'write {key} = ["…"]'
    for key in ("url", "bearer_env"):
        if key in one and not isinstance(one[key], str):
            yield f"{key} must be text", f'write {key} = "…"'
    url = one.get("url")
    if isinstance(url, str) and not url.startswith(("http://", "https://")):
        yield f"url is {url!r}, which is not an address", 'write url = "https://…"'
    headers = one.get("header_env", {})
    if not isinstance(headers, dict) or not _is_list_of_texts(list(headers.values())):
        yield "header_env must name a variable for each header", 'write header_env = {"X-A" = "A"}'


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


NOTIFY = "notify"
NotifiedKind: TypeAlias = Literal["gate.opened", "run.finished", "run.failed"]


class Notifier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A channel that speaks Slack's format, or a command that is given what happened."""

    slack: str = ""
    slack_env: str = ""  # the variable that has the address, which is a secret
    command: tuple[str, ...] = ()
    kinds: tuple[NotifiedKind, ...] = ("gate.opened", "run.failed")
    links: bool = False  # a question comes with a link that answers it, once
    allow_private: bool = False  # the channel may be on this machine or in its network

    @property
    def is_personal(self) -> bool:
        """Whether it starts a program or lets its receiver answer gates. The files of a project,
        which an agent may have written, cannot ask for that.
        """
        return bool(self.command) or self.links

    def address(self, env: Mapping[str, str] | None = None) -> str:
        values = os.environ if env is None else env
        return values.get(self.slack_env, "") if self.slack_env else self.slack


def read_notifiers(value: object) -> dict[str, Notifier]:
    """A table for each notifier."""
    if not isinstance(value, dict):
        raise BadServers(f"{NOTIFY} is not a table", f"write [{NOTIFY}.NAME] with slack or command")
    found: dict[str, Notifier] = {}
    for name, one in value.items():
        try:
            notifier = msgspec.convert(one, Notifier)
        except msgspec.ValidationError as error:
            known = ", ".join(Notifier.__struct_fields__)
            raise BadServers(f"{NOTIFY}.{name}: {error}", f"it may have {known}") from error
        ways = [bool(notifier.slack), bool(notifier.slack_env), bool(notifier.command)]
        if sum(ways) != 1:
            raise BadServers(
                f"{NOTIFY}.{name} needs one of slack, slack_env and command",
                'write slack_env = "VARIABLE" or command = ["PROGRAM", "ARG"]',
            )
        found[name] = notifier
    return found


RECORDS = "records"


def records_folder() -> Path:
    """Where the records that all data directories of this user share are. No agent sees it."""
    return user_data_path("loopwright") / RECORDS


def user_records() -> UserRecords:
    return UserRecords(records_folder())


def untrusted_note(file: Path, contents: bytes | object, part: str = "") -> str | None:
    """Why a file of a project is ignored, in words; None if it may be used. What may be used is
    remembered: an agent that works in the folder later does not make it doubtful.
    """
    records, name, known = user_records(), _name(file, part), _bytes(contents)
    if records.is_known(name, known):
        return None
    workspace = records.find_agent_work(file)
    if workspace is None:
        records.remember(name, known)
        return None
    shown = f"{file} {part}".strip()
    return (
        f"{shown} is ignored: the file, its folder or a link to it was created or changed while an "
        f"agent worked in {workspace}; look at it, and accept it with "
        f"`loopwright config trust {file}`"
    )


def trust(file: Path, contents: bytes | object, part: str = "") -> None:
    """Accept a file with these contents."""
    user_records().remember(_name(file, part), _bytes(contents))


def _name(file: Path, part: str) -> str:
    # Links are not resolved: a file that was accepted at another path is not accepted through a
    # link.
    return f"{os.path.abspath(file)} {part}".strip()


def _bytes(contents: bytes | object) -> bytes:
    if isinstance(contents, bytes):
        return contents
    return json.dumps(contents, sort_keys=True, default=str).encode()


# On these two machines may write at a time, each without seeing the locks of the other.
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs", "fuse.davfs2", "fuse.rclone")
ELSEWHERE = "name another data directory with --data-dir or LOOPWRIGHT_HOME"
LOCAL = "name a data directory on a local disk with --data-dir or LOOPWRIGHT_HOME"


def nearest(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def disk_kind(folder: Path) -> str:
    """The kind of file system that a folder is on, or would be; empty if unknown."""
    where = nearest(folder).resolve()
    around = [one for one in parse_mounts(read_mount_table()) if where.is_relative_to(one.path)]
    if not around:
        return ""
    innermost = max(reversed(around), key=lambda one: len(Path(one.path).parts))
    return innermost.kind


def refuse_remote(folder: Path) -> None:
    """StorageError for a folder on a disk of another machine."""
    kind = disk_kind(folder)
    if kind in REMOTE:
        raise StorageError(
            f"{folder} is on a disk of another machine ({kind}), where two writers cannot see each "
            "other's locks",
            code="remote-disk",
            hint=LOCAL,
        )


def unusable(folder: Path, error: OSError) -> StorageError:
    """Why a folder cannot be written, in words that name the cure."""
    if error.errno == errno.ENOSPC:
        return StorageError(
            f"{folder} cannot be used: no space is left on its disk",
            code="full",
            hint="free some space, then start again; nothing acknowledged was lost",
        )
    if error.errno == errno.EROFS:
        return StorageError(
            f"{folder} cannot be used: it is on a disk that can only be read",
            code="read-only",
            hint=f"mount it so that it can be written, or {ELSEWHERE}",
        )
    owner = owned_by(folder)
    if error.errno in (errno.EACCES, errno.EPERM) and owner:
        return StorageError(
            f"{folder} cannot be used: it belongs to {owner}",
            code="foreign",
            hint=f"work as {owner}, or {ELSEWHERE}",
        )
    why = (error.strerror or str(error)).lower()
    return StorageError(f"{folder} cannot be used: {why}", code="unusable", hint=ELSEWHERE)


def owned_by(folder: Path) -> str:
    """Who else a folder belongs to; empty when it is ours."""
    try:
        owner = nearest(folder).stat().st_uid
    except OSError:
        return ""
    if owner == os.geteuid():
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"
