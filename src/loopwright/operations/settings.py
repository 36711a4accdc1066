"""Settings: where the data lives and how it is kept. One frozen record, resolved once.

A value comes from the first of these that has it: flag, environment, `loopwright.toml` of the
project, `[tool.loopwright]` in its `pyproject.toml`, the user's own file, the default. Policies
come from `settings.toml` in the data directory; the other sources can only make them stricter.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias, cast

from platformdirs import user_config_path, user_data_path

from loopwright.model.chat import Price
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import (
    DEFAULT_SANDBOX,
    EDITOR_VARIABLES,
    SANDBOX_LEVELS,
    SandboxLevel,
    is_at_least,
    is_variable_pattern,
)
from loopwright.operations.settings_files import (
    MCP,
    MODELS,
    NOTIFY,
    PRICES,
    BadServers,
    Notifier,
    SharedBudget,
    read_models,
    read_notifiers,
    read_prices,
    read_servers,
    refused,
    toml_hint,
    untrusted_note,
)

PREFIX = "LOOPWRIGHT_"
PROJECT_FILE = "loopwright.toml"
BUDGET = "budget"
POLICY_FILE = "settings.toml"  # of the data directory
BUDGET_KEYS = ("usd_per_day", "tokens_per_day", "usd_total", "tokens_total", "hard_stop")

Durability: TypeAlias = Literal["full", "normal"]
Color: TypeAlias = Literal["auto", "always", "never"]
Switch: TypeAlias = Literal["off", "on"]
Name: TypeAlias = Literal[
    "home",
    "durability",
    "agent",
    "color",
    "four_eyes",
    "webhooks_to_loopback",
    "sandbox",
    "allow_unsandboxed",
    "workspaces",
    "editor_variables",
    "snapshots",
    "snapshot_max_file",
    "snapshot_max_total",
    "snapshot_max_files",
]

NAMES: dict[Name, tuple[str, ...]] = {
    "home": (),
    "durability": ("full", "normal"),
    "agent": (),
    "color": ("auto", "always", "never"),
    "four_eyes": ("off", "on"),
    "webhooks_to_loopback": ("off", "on"),
    "sandbox": SANDBOX_LEVELS,
    "allow_unsandboxed": ("off", "on"),
    "workspaces": (),
    "editor_variables": (),
    "snapshots": ("off", "on"),
    "snapshot_max_file": (),
    "snapshot_max_total": (),
    "snapshot_max_files": (),
}
"""Every setting, with the words it may be; none means any text."""

LISTS: tuple[Name, ...] = ("workspaces", "editor_variables")
"""Settings that are lists; in a variable they are separated as the folders of PATH."""
PERSONAL: set[Name] = {"sandbox", "allow_unsandboxed", "webhooks_to_loopback", *LISTS}
"""Settings that the files of a project cannot loosen."""
STRICTER: dict[Name, str] = {"four_eyes": "on"}
"""Policies, with the value that no other source takes back."""
SIZES: dict[Name, str] = {"snapshot_max_file": "50MB", "snapshot_max_total": "2GB"}
"""Settings that are sizes, with their defaults."""
COUNTS: dict[Name, str] = {"snapshot_max_files": "200000"}
"""Settings that are whole numbers, with their defaults."""
_UNITS = {"": 1, "B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_SIZE = re.compile(r"([0-9]{1,12})\s*([KMG]?B)?", re.IGNORECASE | re.ASCII)

# Other variables with our prefix: for finding faults, and those that agents are started with.
_OTHER_VARIABLES = (
    *("ASSISTANT", "ASSISTANT_MODEL", "ATTEMPT", "DEBUG", "DENIED_TOOLS", "DEPTH", "EFFECT"),
    *("HANDED_OWNER", "INBOX", "ITERATION", "MODEL", "MODEL_API_KEY", "MODEL_BASE_URL"),
    *("OPTIONS", "PATH", "PERMISSION", "RESULT_SCHEMA", "RUN", "RUN_TOOLS", "HERE", "SERVER"),
    *("SESSION", "SUPERVISOR", "SWEEP", "SYSTEM", "SYSTEM_FILE", "TEARDOWN_GRACE_MS"),
    *("TEARDOWN_ON_DISCONNECT", "TOKEN", "TOKEN_FILE", "TOOLS", "WORKSPACE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process needs to know before it opens anything."""

    home: Path
    durability: Durability = "full"
    agent: str | None = None
    color: Color = "auto"
    four_eyes: Switch = "off"  # on: who started a run approves nothing in it
    webhooks_to_loopback: Switch = "off"  # on: webhooks may go to this machine itself
    agent_is_of_project: bool = False  # an agent may have written the file that names `agent`
    sandbox: SandboxLevel = DEFAULT_SANDBOX  # of runs without an explicit level
    allow_unsandboxed: Switch = "off"  # on: a server may run agents without a sandbox
    workspaces: tuple[Path, ...] = ()  # of a server: where editors may choose workspaces
    editor_variables: tuple[str, ...] = EDITOR_VARIABLES  # that their definitions may set
    snapshots: Switch = "off"  # on by default; see `_settings`
    snapshot_max_file: int = 50_000_000  # bytes of one file that a snapshot takes in
    snapshot_max_total: int = 2_000_000_000  # bytes of all new and changed files
    snapshot_max_files: int = 200_000  # new and changed files
    mcp: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)  # servers by name
    budget: SharedBudget = field(
        default_factory=SharedBudget
    )  # of all runs of the data directory together
    notify: Mapping[str, Notifier] = field(default_factory=dict)  # whom a server tells
    prices: Mapping[str, Price] = field(default_factory=dict)  # by model or agent
    models: Mapping[str, str] = field(default_factory=dict)  # agents by tier, alias or provider

    @property
    def results(self) -> Path:
        """Where long results of tools are kept."""
        return self.home / "results"

    @property
    def database(self) -> Path:
        return self.home / "loopwright.db"

    @property
    def artifacts(self) -> Path:
        return self.home / "artifacts"

    @property
    def worktrees(self) -> Path:
        """Checkouts of runs that work in one of their own."""
        return self.home / "worktrees"

    @property
    def logs(self) -> Path:
        return self.home / "logs"


@dataclass(frozen=True, slots=True)
class FoundSetting:
    """A value and where it was found."""

    value: str
    origin: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """Settings, where each came from, and what a person should know about them."""

    settings: Settings
    origins: Mapping[Name, str]
    warnings: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSources:
    """Where settings are looked for."""

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cwd: Path = field(default_factory=Path.cwd)
    user_file: Path = field(
        default_factory=lambda: user_config_path("loopwright") / "config.toml",
    )


def load_settings(
    *, data_dir: str | None = None, place: SettingsSources | None = None
) -> ResolvedSettings:
    """Settings, and everything that is to be known about where they come from."""
    place = place or SettingsSources()
    found: dict[Name, FoundSetting] = {}
    files: list[Path] = []
    servers: dict[str, Mapping[str, JsonValue]] = {}
    notifiers: dict[str, Notifier] = {}
    budgets: list[SharedBudget | None] = []
    prices: dict[str, Price] = {}
    models: dict[str, str] = {}
    levels: list[FoundSetting] = []
    ignored: list[str] = []
    if data_dir is not None:
        found["home"] = FoundSetting(
            _checked("home", data_dir, "--data-dir"), "--data-dir", place.cwd
        )
    for name, value in _from_env(place):
        _take(found, name, value)
    for file, values in _from_files(place, ignored):
        files.append(file)
        for name, value in values.settings.items():
            if file == place.user_file or name not in PERSONAL:
                _take(found, name, value)
            elif name == "sandbox":
                levels.append(value)
            elif value.value == "on" or name in LISTS:
                ignored.append(_ignored(name, value))
        servers = {**values.servers, **servers}
        personal = () if file == place.user_file else _personal_notifiers(values)
        ignored += [_ignored_notifier(file, name) for name in personal]
        kept = {name: one for name, one in values.notifiers.items() if name not in personal}
        notifiers = {**kept, **notifiers}
        budgets.append(values.budget)
        prices = {**values.prices, **prices}
        models = {**values.models, **models}
    ignored += _tighten(found, levels)
    policies = _policies(_settings(found).home)
    if policies is not None:
        files.append(policies[0])
        budgets.append(policies[1].budget)
        for name, value in policies[1].settings.items():
            _take(found, name, value)
    origins = {name: found[name].origin if name in found else "default" for name in NAMES}
    projects = tuple(str(file) for file in _project_files(place.cwd) if file is not None)
    warnings = (*_unknown_variables(place.env), *ignored)
    return ResolvedSettings(
        settings=replace(
            _settings(found),
            mcp=servers,
            budget=strictest_budget(budgets),
            notify=notifiers,
            prices=prices,
            models=models,
            agent_is_of_project=origins["agent"].startswith(projects),
        ),
        origins=origins,
        warnings=warnings,
        files=tuple(files),
    )


def _tighten(found: dict["Name", FoundSetting], project: Sequence[FoundSetting]) -> Iterator[str]:
    """Apply what the files of a project say about the sandbox, and warn of what is ignored: an
    agent may have written them, so they can only make it stricter.
    """
    own = found.get("sandbox")
    if own is not None and own.origin.startswith(PREFIX):
        return
    for one in project:
        now = cast("SandboxLevel", found["sandbox"].value if "sandbox" in found else "guard")
        if is_at_least(cast("SandboxLevel", one.value), now):
            found["sandbox"] = one
        else:
            yield _ignored("sandbox", one)


def _personal_notifiers(values: "_Values") -> tuple[str, ...]:
    """Notifiers that the file of a project cannot have."""
    return tuple(name for name, one in values.notifiers.items() if one.is_personal)


def _ignored_notifier(file: Path, name: str) -> str:
    """A warning about a notifier of a project: an agent may have written it."""
    return (
        f"{file}: [{NOTIFY}.{name}] is ignored: a notifier with a command or with links counts "
        "only in your own settings"
    )


def _ignored(name: str, found: FoundSetting) -> str:
    """A warning about a setting of a project that would give its agents more freedom."""
    return (
        f"{found.origin}: {name} = {found.value!r} is ignored: a project can only be stricter; "
        "set it in your own settings or as a variable"
    )


def _take(found: dict[Name, FoundSetting], name: Name, value: FoundSetting) -> None:
    """The first value counts. A policy can only be made stricter, by whichever source."""
    if STRICTER.get(name) == value.value:
        found[name] = value
    found.setdefault(name, value)


def _policies(home: Path) -> tuple[Path, "_Values"] | None:
    """What the data directory says about everybody who uses it."""
    file = home / POLICY_FILE
    if not file.is_file():
        return None
    values = _values(_toml(file), file, str(file))
    other = [name for name in values.settings if name not in STRICTER]
    if other or values.servers or values.notifiers or values.prices or values.models:
        raise refused(
            f"{file} has {other[0] if other else 'a table'} that is not a policy",
            f"it may have {', '.join(STRICTER)} and [{BUDGET}]",
        )
    return file, values


def strictest_budget(budgets: Iterable[SharedBudget | None]) -> SharedBudget:
    """The smallest of all limits. Those that stop nothing count where no others are."""
    given = [one for one in budgets if one is not None]
    counted = [one for one in given if one.hard_stop] or given[:1]
    if not counted:
        return SharedBudget()
    least: dict[str, float | int | None] = {}
    for key in BUDGET_KEYS[:-1]:
        amounts = [amount for one in counted if (amount := getattr(one, key)) is not None]
        least[key] = min(amounts, default=None)
    return SharedBudget(**least, hard_stop=counted[0].hard_stop)  # type: ignore[arg-type]  # by its keys


def _settings(found: Mapping[Name, FoundSetting]) -> Settings:
    home = found.get("home")
    agent = found.get("agent")
    return Settings(
        home=_folder(home) if home else user_data_path("loopwright"),
        durability=cast("Durability", found["durability"].value)
        if "durability" in found
        else "full",
        agent=agent.value if agent else None,
        color=cast("Color", found["color"].value) if "color" in found else "auto",
        four_eyes=_switch(found, "four_eyes"),
        webhooks_to_loopback=_switch(found, "webhooks_to_loopback"),
        sandbox=cast("SandboxLevel", found["sandbox"].value)
        if "sandbox" in found
        else DEFAULT_SANDBOX,
        allow_unsandboxed=_switch(found, "allow_unsandboxed"),
        workspaces=_folders(found.get("workspaces")),
        editor_variables=tuple(found["editor_variables"].value.split(os.pathsep))
        if "editor_variables" in found
        else EDITOR_VARIABLES,
        snapshots=_switch(found, "snapshots", "on"),
        snapshot_max_file=_amount(found, "snapshot_max_file"),
        snapshot_max_total=_amount(found, "snapshot_max_total"),
        snapshot_max_files=_amount(found, "snapshot_max_files"),
    )


def _switch(found: Mapping[Name, FoundSetting], name: Name, default: Switch = "off") -> Switch:
    return cast("Switch", found[name].value) if name in found else default


def _amount(found: Mapping[Name, FoundSetting], name: Name) -> int:
    text = found[name].value if name in found else {**SIZES, **COUNTS}[name]
    return read_size(text)


def read_size(text: str) -> int:
    """`50MB` in bytes; a number without a unit is itself."""
    fits = _SIZE.fullmatch(text.strip())
    if fits is None:
        raise ValueError(text)
    return int(fits[1]) * _UNITS[(fits[2] or "").upper()]


def _folder(found: FoundSetting) -> Path:
    return ((found.folder or Path.cwd()) / Path(found.value).expanduser()).absolute()


def _folders(found: FoundSetting | None) -> tuple[Path, ...]:
    listed = found.value.split(os.pathsep) if found else ()
    return tuple(Path(one).expanduser() for one in listed)


# -- the environment -----------------------------------------------------------------------------


def _from_env(place: SettingsSources) -> Iterator[tuple[Name, FoundSetting]]:
    for name in NAMES:
        variable = f"{PREFIX}{name.upper()}"
        value = place.env.get(variable)
        # Inside an agent the variable contains that agent's name, which is not a spec.
        if not value or (name == "agent" and f"{PREFIX}RUN" in place.env):
            continue
        yield name, FoundSetting(_checked(name, value, variable), variable, place.cwd)


def _unknown_variables(env: Mapping[str, str]) -> Iterator[str]:
    known = [f"{PREFIX}{name.upper()}" for name in NAMES]
    known += [f"{PREFIX}{name}" for name in _OTHER_VARIABLES]
    for variable in sorted(env):
        if variable.startswith(PREFIX) and variable not in known:
            yield f"{variable} means nothing here{_near(variable, known)}"


# -- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Values:
    """What one file says."""

    settings: Mapping[Name, FoundSetting]
    servers: Mapping[str, Mapping[str, JsonValue]]
    budget: SharedBudget | None = None
    notifiers: Mapping[str, Notifier] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)


def _from_files(place: SettingsSources, ignored: list[str]) -> Iterator[tuple[Path, _Values]]:
    """What each file says. Those of a project that an agent may have written are ignored."""
    for file, part, table in project_tables(place.cwd):
        note = untrusted_note(file, table, part)
        if note is not None:
            ignored.append(note)
        else:
            yield file, _values(table, file, f"{file} {part}".strip())
    if place.user_file.is_file():
        yield (
            place.user_file,
            _values(_toml(place.user_file), place.user_file, str(place.user_file)),
        )


def project_tables(cwd: Path) -> Iterator[tuple[Path, str, dict[str, object]]]:
    """The settings of the project around a folder: the file, the part of it, and what it says."""
    project, pyproject = _project_files(cwd)
    if project is not None:
        yield project, "", _toml(project)
    table = _table(pyproject) if pyproject is not None else None
    if pyproject is not None and table is not None:
        yield pyproject, "[tool.loopwright]", table


def _project_files(cwd: Path) -> tuple[Path | None, Path | None]:
    """The nearest file of each kind, from here up to the top of the project."""
    found: dict[str, Path] = {}
    for folder in (cwd, *cwd.parents):
        for name in (PROJECT_FILE, "pyproject.toml"):
            if (folder / name).is_file():
                found.setdefault(name, folder / name)
        if (folder / ".git").exists():
            break
    return found.get(PROJECT_FILE), found.get("pyproject.toml")


def _table(pyproject: Path) -> dict[str, object] | None:
    tool = _toml(pyproject).get("tool")
    table = tool.get("loopwright") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise refused(f"{pyproject}: tool.loopwright is not a table", "write [tool.loopwright]")
    return table


def _toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise refused(f"{file}: {error}", toml_hint(file)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"{file} cannot be read: {error}", "correct it, or move it away") from error


def _values(table: Mapping[str, object], file: Path, origin: str) -> _Values:
    values: dict[Name, FoundSetting] = {}
    servers: dict[str, Mapping[str, JsonValue]] = {}
    budget: SharedBudget | None = None
    notifiers: dict[str, Notifier] = {}
    prices: dict[str, Price] = {}
    models: dict[str, str] = {}
    for key, value in table.items():
        if key in (MODELS, PRICES):
            models = read_models(value, origin) if key == MODELS else models
            prices = read_prices(value, origin) if key == PRICES else prices
            continue
        if key == MCP:
            servers = _servers(value, origin)
            continue
        if key == BUDGET:
            budget = _budget(value, origin)
            continue
        if key == NOTIFY:
            notifiers = _notifiers(value, origin)
            continue
        if key not in NAMES:
            known = ", ".join([*NAMES, MCP, BUDGET, NOTIFY, PRICES, MODELS])
            hint = _near(key, NAMES).removeprefix(": ") or f"settings are {known}"
            raise refused(f"{origin}: unknown setting {key!r}", hint)
        if key in (*SIZES, *COUNTS) and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if key in LISTS and isinstance(value, list):
            value = os.pathsep.join(map(str, value))
        if not isinstance(value, str):
            raise refused(f"{origin}: {key} must be text, not {value!r}", f'write {key} = "…"')
        values[key] = FoundSetting(_checked(key, value, f"{origin}: {key}"), origin, file.parent)
    return _Values(values, servers, budget, notifiers, prices, models)


def _servers(value: object, origin: str) -> dict[str, Mapping[str, JsonValue]]:
    try:
        return read_servers(value)
    except BadServers as problem:
        raise refused(f"{origin}: {problem}", problem.hint) from None


def _notifiers(value: object, origin: str) -> dict[str, Notifier]:
    try:
        return read_notifiers(value)
    except BadServers as problem:
        raise refused(f"{origin}: {problem}", problem.hint) from None


def _budget(value: object, origin: str) -> SharedBudget:
    """The shared budget of all runs of the data directory."""
    keys = ", ".join(BUDGET_KEYS)
    if not isinstance(value, dict):
        raise refused(f"{origin}: {BUDGET} is not a table", f"write [{BUDGET}] with {keys}")
    for key, amount in value.items():
        if key not in BUDGET_KEYS:
            raise refused(f"{origin}: unknown {key!r} in {BUDGET}", f"it may have {keys}")
        if key == "hard_stop":
            fits, wanted = isinstance(amount, bool), "true or false"
        else:
            whole = key.startswith("tokens")
            kinds = (int,) if whole else (int, float)
            number = isinstance(amount, kinds) and not isinstance(amount, bool)
            fits = number and 0 <= cast("float", amount) < float("inf")
            wanted = f"a {'whole ' if whole else ''}number from 0 on"
        if not fits:
            raise refused(f"{origin}: {BUDGET}.{key} is {amount!r}", f"it must be {wanted}")
    return SharedBudget(**value)


def _checked(name: Name, value: str, where: str) -> str:
    allowed = NAMES[name]
    if allowed and value not in allowed:
        near = _near(value, allowed).removeprefix(": ")
        raise refused(f"{where} is {value!r}", near or f"it may be {' or '.join(allowed)}")
    if not value.strip():
        raise refused(f"{where} is empty", "give it a value, or remove it")
    if name == "editor_variables" and not all(map(is_variable_pattern, value.split(os.pathsep))):
        raise refused(f"{where} is {value!r}", 'list names, as in ["CI", "REVIEW_*"]')
    if name == "workspaces" and not all(
        Path(one).expanduser().is_absolute() for one in value.split(os.pathsep)
    ):
        hint = 'list whole paths, as in ["/srv/projects"]'
        raise refused(f"{where} is {value!r}", hint)
    if name in COUNTS and not (value.isdecimal() and 0 < int(value) < 10**12):
        raise refused(f"{where} is {value!r}", f"it must be a whole number, as in {COUNTS[name]}")
    if name in SIZES and not _is_size(value):
        hint = f"it must be a size above 0 in B, KB, MB or GB, as in {SIZES[name]}"
        raise refused(f"{where} is {value!r}", hint)
    return value


def _is_size(text: str) -> bool:
    try:
        return read_size(text) > 0
    except ValueError:
        return False


def _near(word: str, known: "Mapping[Name, object] | list[str] | tuple[str, ...]") -> str:
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else ""
