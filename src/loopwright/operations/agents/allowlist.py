"""The agents that editors of a server may start runs with.

An entry has a name and a spec. Coding CLIs, chat models, scripts in the workspace and plugins
are built-in entries, and the agent of the server's settings is one too: an admin can disable
them. A program (`command:`, `jsonl:`, `acp:`) is only on the list after an admin has added it,
and only as long as its files are those that the admin approved.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.specs import KINDS, BadSpec, Spec, parse_spec
from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError, VersionConflict
from loopwright.model.sandbox import SandboxLevel, is_reserved, is_variable_name
from loopwright.operations.accounts.access import Access
from loopwright.operations.agents.approved_programs import (
    PROGRAM_KINDS,
    ApprovedFile,
    approve_files,
    check_named_files,
    files_in_workspace,
    find_change,
    find_indirect,
)
from loopwright.operations.agents.programs import PREFIX, plugins
from loopwright.operations.settings import Settings
from loopwright.ports import StoredRecord

RECORD_KIND = "agent"
ANY_MODEL, ANY_SCRIPT = "model:*", "script:*"
MODELS, SCRIPTS, DEFAULT = "models", "scripts", "default"
MOST_ENTRIES = 1_000
MOST_VARIABLES = 50
CHANGED = "agent-changed"
_DETAIL_CHARS = 200
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

Source: TypeAlias = Literal["built-in", "settings", "plugin", "admin"]


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An agent on the list. `pass_env` names variables of the server that it is given."""

    name: str
    spec: str
    sandbox: SandboxLevel | None = (
        None  # the lowest level that it runs at; None: that of the server
    )
    allow_off: bool = False  # whether a definition may run it without a sandbox
    pass_env: tuple[str, ...] = ()
    enabled: bool = True
    source: Source = "admin"
    by: str = ""  # who approved it
    approved_at: int = 0
    files: tuple[ApprovedFile, ...] = ()  # of a program, as they were approved
    version: int = 0  # of the record; not stored in it


class EntryChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is different about an entry. A value that is not given stays as it is; `sandbox: None`
    is the level of the server.
    """

    sandbox: SandboxLevel | msgspec.UnsetType | None = msgspec.UNSET
    allow_off: bool | None = None
    pass_env: tuple[str, ...] | None = None
    enabled: bool | None = None
    approve: bool = False  # the files of the program as they are now


def listed_default(settings: Settings) -> str | None:
    """The agent of the settings, unless a file of a project names it: whatever works in that folder
    can write such a file, and only people add agents to the list.
    """
    return None if settings.agent_is_of_project else settings.agent


class AgentRegistry:
    """The list of a data directory. `default` is the agent of the settings."""

    def __init__(self, access: Access, default: str | None = None) -> None:
        self._access = access
        self._records = access.records
        self._default = default
        self._default_files = _files_of_default(default)

    def all(self) -> list[AgentEntry]:
        """Every entry by name; what an admin has stored replaces a built-in entry."""
        return self._merged(self._provided())

    def _merged(self, provided: Iterable[AgentEntry]) -> list[AgentEntry]:
        stored = {record.key: _decode(record) for record in self._records.records(RECORD_KIND)}
        found = {entry.name: entry for entry in provided}
        for name, entry in stored.items():
            known = found.get(name)
            if known is None and entry.source != "admin":
                continue  # of a plugin or a setting that is gone
            if known is not None:
                entry = msgspec.structs.replace(
                    entry, spec=known.spec, source=known.source, files=known.files
                )
            found[name] = entry
        return [found[name] for name in sorted(found)]

    def get(self, name: str) -> AgentEntry:
        entry = next((one for one in self.all() if one.name == name), None)
        if entry is None:
            raise NotFound(
                f"no agent {name[:80]!a} on the list", hint="`loopwright agent ls` shows the list"
            )
        return entry

    def find(self, spec: str) -> AgentEntry | None:
        """The enabled entry that a spec equals; an entry for exactly this spec comes first."""
        wanted = parse_spec(spec)
        if isinstance(wanted, BadSpec):
            return None
        # Plugins are programs: looking for them takes longer than everything else here.
        known = self.all() if wanted.kind in PROGRAM_KINDS else self._merged(self._fixed())
        fitting = [one for one in known if one.enabled and _covers(one.spec, wanted)]
        return min(fitting, key=lambda one: "*" in one.spec, default=None)

    def names(self) -> Mapping[str, str]:
        """The spec, by name, of each enabled entry for a single agent."""
        known = self._merged(self._fixed())
        entries = [one for one in known if one.enabled and "*" not in one.spec]
        return {one.name: one.spec for one in entries}

    def add(self, entry: AgentEntry, *, by: str) -> AgentEntry:
        """Approve an agent."""
        known = {one.name for one in self.all()}
        _check_entry(entry)
        if entry.name in known or entry.name in KINDS:
            raise _name_taken(entry.name)
        if len(known) >= MOST_ENTRIES:
            raise Conflict(f"there are {MOST_ENTRIES:,} agents already", code="too-many")
        files = approve_files(_spec_of(entry.spec))
        made = msgspec.structs.replace(entry, source="admin", files=files)
        return self._write(made, 0, by=by, action="agent.added")

    def change(self, name: str, change: EntryChange, *, by: str) -> AgentEntry:
        """Change an entry, also a built-in one. Its spec stays: another spec is another agent."""
        known = self.get(name)
        changed = msgspec.structs.replace(
            known,
            sandbox=known.sandbox if change.sandbox is msgspec.UNSET else change.sandbox,
            allow_off=_or(change.allow_off, known.allow_off),
            enabled=_or(change.enabled, known.enabled),
            pass_env=known.pass_env if change.pass_env is None else change.pass_env,
        )
        _check_entry(changed)
        if change.approve:
            changed = _with_files_of_now(changed)
        return self._write(changed, known.version, by=by, action="agent.changed")

    def problem(self, entry: AgentEntry) -> str | None:
        """Why the program of an entry may not be started, in words; None if it may."""
        spec = parse_spec(entry.spec)
        if isinstance(spec, BadSpec) or spec.kind not in PROGRAM_KINDS or entry.source == "plugin":
            return None
        remedy = f"an admin approves it with `loopwright agent change {entry.name} --approve`"
        if entry.source == "settings":
            remedy = "restart the server to use it as it is now"
        if entry.source == "settings" and files_in_workspace(spec):
            return (
                f"agent {entry.name!r} of the settings is a path in the workspace, where agents "
                "can replace the program; write its whole path in the settings of the server"
            )
        indirect = find_indirect(spec)
        if indirect is not None or (entry.source == "admin" and files_in_workspace(spec)):
            why = indirect or "it names a path in the workspace"
            return (
                f"it is not known which files agent {entry.name!r} runs ({why}); an admin writes a "
                "program file and adds it to the list with its whole path"
            )
        if not entry.files:
            return f"the files of agent {entry.name!r} were not recorded; {remedy}"
        change = find_change(spec, entry.files)
        if change is None:
            return None
        return (
            f"the program of agent {entry.name!r} has changed since it was approved ({change}); "
            f"{remedy}"
        )

    def listed_program(self, spec: str) -> AgentEntry | None:
        """The entry whose program a call starts, if it is on the list."""
        wanted = parse_spec(spec)
        if isinstance(wanted, BadSpec) or wanted.kind not in PROGRAM_KINDS:
            return None
        entries = self._merged(self._fixed())
        return next((one for one in entries if one.enabled and _covers(one.spec, wanted)), None)

    def program_files(self) -> tuple[str, ...]:
        """The files of all listed programs that are not files of the system."""
        entries = self._merged(self._fixed())
        return tuple({file.real for one in entries for file in one.files if file.sha256})

    def remove(self, name: str, *, by: str) -> None:
        """Take an agent off the list; runs that use it continue."""
        entry = self.get(name)
        if entry.source != "admin":
            raise Conflict(
                f"{name} is a {entry.source} agent, which cannot be removed",
                code="built-in-agent",
                hint=f"`loopwright agent change {name} --disable` takes it off the list",
            )
        row = self._access.row(by, "agent.removed", name, entry.spec)
        self._records.change(drops=[(RECORD_KIND, name)], audit=[row])

    def _write(self, entry: AgentEntry, version: int, *, by: str, action: str) -> AgentEntry:
        approved = msgspec.structs.replace(
            entry, by=by, approved_at=self._access.clock.now_ms(), version=0
        )
        record = StoredRecord(kind=RECORD_KIND, key=entry.name, body=msgspec.json.encode(approved))
        row = self._access.row(by, action, entry.name, _audit_detail(approved))
        try:
            self._records.change([(record, version)], audit=[row])
        except VersionConflict as conflict:
            if version == 0 and action == "agent.added":
                raise _name_taken(entry.name) from conflict
            raise Conflict(f"{entry.name} was changed meanwhile", code="busy") from conflict
        return self.get(entry.name)

    def _provided(self) -> Iterator[AgentEntry]:
        """The entries that exist without being added."""
        yield from self._fixed()
        for one in plugins():
            if not one.problem:
                yield AgentEntry(name=f"{PREFIX}{one.name}", spec=one.spec, source="plugin")

    def _fixed(self) -> Iterator[AgentEntry]:
        for name in CLIS:
            yield AgentEntry(name=name, spec=name, source="built-in")
        yield AgentEntry(name=MODELS, spec=ANY_MODEL, source="built-in")
        yield AgentEntry(name=SCRIPTS, spec=ANY_SCRIPT, source="built-in")
        if self._default and not isinstance(parse_spec(self._default), BadSpec):
            yield AgentEntry(
                name=DEFAULT, spec=self._default, source="settings", files=self._default_files
            )


class ListedPrograms:
    """The programs of the list, for the sandbox that starts them. Refusals are audited."""

    def __init__(self, registry: AgentRegistry, access: Access) -> None:
        self._registry = registry
        self._access = access

    def files(self) -> tuple[str, ...]:
        """Files that no program changes, as they belong to listed programs."""
        return self._registry.program_files()

    def problem(self, spec: str, run: str) -> str | None:
        """Why the program of an agent may not be started, in words."""
        entry = self._registry.listed_program(spec)
        found = self._registry.problem(entry) if entry is not None else None
        if entry is not None and found is not None:
            who = f"agent:{entry.name}"
            row = self._access.row(who, "denied", run, f"{CHANGED}: {found}"[:_DETAIL_CHARS])
            with contextlib.suppress(StorageError):
                self._access.records.change(audit=[row])
        return found


def own_variables_of(spec: Spec) -> tuple[str, ...]:
    """Variables of the server that an agent of this kind is given anyway: a coding CLI has the key
    and the addresses of its own provider, without which it cannot work.
    """
    cli = CLIS.get(spec.kind)
    return () if cli is None else (*cli.credentials, *cli.variables)


def suggest_command(text: str) -> str:
    """The command with which an admin puts a spec on the list. A path in the workspace is shown as
    a whole path to fill in, since an entry must have one.
    """
    spec = parse_spec(text)
    inside = files_in_workspace(spec) if isinstance(spec, Spec) else []
    if isinstance(spec, Spec) and find_indirect(spec) is not None:
        text = f"{spec.kind}:/PATH/TO/PROGRAM"
    elif isinstance(spec, Spec) and spec.argv and inside:
        words = [_whole_path(one) if one in inside else one for one in spec.argv]
        text = f"{spec.kind}:{shlex.join(words)}"
    return f"loopwright agent add NAME {shlex.quote(text)}"


def _whole_path(word: str) -> str:
    return f"/PATH/TO/{os.path.normpath(word).removeprefix('../')}"


def with_entry_names(choices: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """`--agent` choices in which the name of an entry is replaced by its spec."""
    found = []
    for choice in choices:
        agent, equals, spec = choice.partition("=")
        if equals and spec in names and ":" not in agent:
            found.append(f"{agent}={names[spec]}")
        else:
            found.append(names.get(choice, choice))
    return tuple(found)


def _covers(listed: str, wanted: Spec) -> bool:
    """Whether the spec of an entry covers the requested agent. Words are compared, not spelling."""
    if listed in (ANY_MODEL, ANY_SCRIPT):
        return wanted.kind == listed.partition(":")[0]
    return parse_spec(listed) == wanted


def _check_entry(entry: AgentEntry) -> None:
    if entry.source == "admin" and _NAME.fullmatch(entry.name) is None:
        raise LoopwrightError(
            f"{entry.name[:80]!a} cannot be the name of an agent",
            code="bad-agent-name",
            hint="use a-z, 0-9, dashes and underscores, at most 63 of them",
        )
    if entry.source == "admin":
        check_named_files(_spec_of(entry.spec))
    if entry.sandbox == "off":
        raise LoopwrightError(
            "the lowest sandbox level of an agent cannot be off",
            code="bad-level",
            hint="allow_off (`--allow-off`) lets a definition run it without a sandbox",
        )
    for name in entry.pass_env:
        if not is_variable_name(name) or is_reserved(name):
            raise LoopwrightError(
                f"{name[:60]!a} cannot be given to an agent",
                code="reserved-env",
                hint="name a variable that does not decide what programs load and run",
            )
    if len(entry.pass_env) > MOST_VARIABLES:
        message = f"an agent is given {MOST_VARIABLES} variables at most"
        raise LoopwrightError(message, code="out-of-range")


def _spec_of(text: str) -> Spec:
    spec = parse_spec(text)
    if isinstance(spec, BadSpec):
        raise LoopwrightError(spec.message, code="bad-agent", hint=spec.hint)
    return spec


def _files_of_default(text: str | None) -> tuple[ApprovedFile, ...]:
    """The files of the agent of the settings, as they are when the process starts."""
    spec = parse_spec(text or "")
    if isinstance(spec, BadSpec):
        return ()
    try:
        return approve_files(spec)
    except LoopwrightError:
        return ()


def _with_files_of_now(entry: AgentEntry) -> AgentEntry:
    if entry.source != "admin" or _spec_of(entry.spec).kind not in PROGRAM_KINDS:
        raise LoopwrightError(
            f"{entry.name} is not a program that an admin has added",
            code="not-a-program",
            hint="leave out `approve`: only files of added programs are recorded",
        )
    return msgspec.structs.replace(entry, files=approve_files(_spec_of(entry.spec)))


def _name_taken(name: str) -> Conflict:
    return Conflict(f"there is an agent {name!r} already", code="name-taken")


def _audit_detail(entry: AgentEntry) -> str:
    notes = [
        *([] if entry.enabled else ["disabled"]),
        *([f"at least {entry.sandbox}"] if entry.sandbox else []),
        *(["off allowed"] if entry.allow_off else []),
        *([f"given {', '.join(entry.pass_env)}"] if entry.pass_env else []),
    ]
    return "; ".join([entry.spec[:200], *notes])


def _or(wanted: bool | None, known: bool) -> bool:  # noqa: FBT001 - two values of one setting
    return known if wanted is None else wanted


def _decode(record: StoredRecord) -> AgentEntry:
    entry = msgspec.json.decode(record.body, type=AgentEntry)
    return msgspec.structs.replace(entry, version=record.version)
