"""Roles: instructions and access level of agents.

A role is a Markdown file with front matter. It is looked up in the project (`.loopwright/roles`,
`workspace/roles`), then in the data directory (`roles`), then among the built-in ones, which
are package data (`builtin_roles`). An invalid file is listed with its errors. It still takes
its name, so that a mistake in it never gives an agent the rights of another file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from loopwright.agents.files import FileProblem, ReadScope, read_regular
from loopwright.errors import LoopwrightError
from loopwright.model.access import DENIED_TOOLKITS, TOOLKITS, narrower
from loopwright.model.actions import CallAgent, Steps
from loopwright.model.plan import Access, Agent, Plan, only_repeat
from loopwright.model.record import JsonValue
from loopwright.operations.definition_files import project_folders
from loopwright.operations.dialects import stage_turns
from loopwright.operations.settings_files import untrusted_note
from loopwright.syntax.document import Diagnostic, Document, suggest
from loopwright.syntax.notations import front_matter
from loopwright.syntax.readers import read
from loopwright.syntax.validation import validate

FOLDER = "roles"
MAX_BYTES = 262_144
MOST_FILES = 1_000
Place = Literal["built-in", "home", "project"]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_OF_RIGHTS = ("access_level", "max_iterations", "toolkits")
_NEAR = 0.8
"""How alike two words are of which one is taken for a misspelling of the other."""


def _one_text(value: object) -> object:
    """A version may be written as a number, and a filter as a list."""
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class RoleHead(BaseModel):
    """The front matter. `is_builtin`, `is_template` and `ignore_updates` are read because files of
    other systems have them; they change nothing here.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str = ""
    display_name: str = ""
    description: str = ""
    version: Annotated[str, BeforeValidator(_one_text)] = ""
    access_level: Access
    model: str | None = None
    max_iterations: int | None = Field(default=None, ge=0, le=10_000)
    toolkits: Annotated[str | None, BeforeValidator(_one_text)] = None
    is_builtin: bool = False
    is_template: bool = False
    ignore_updates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFile:
    """A role, or a file that should have been one (`problem`)."""

    name: str
    place: Place
    file: str
    title: str = ""
    description: str = ""
    version: str = ""
    access: Access | None = None
    model: str | None = None
    max_turns: int | None = None  # 0: as many as there may be
    denied: tuple[str, ...] = ()  # toolkits that it does not have
    instructions: str = ""
    problem: str | None = None
    warnings: tuple[str, ...] = ()  # parts of its file that have no effect


# -- reading ---------------------------------------------------------------------------------------


def read_role(data: bytes, *, file: str, name: str, place: Place) -> RoleFile:
    """A role as it is written in a file that is called `name`."""
    bad = RoleFile(name=name, place=place, file=file)
    parts = front_matter(data)
    if parts is None:
        words = "it has no front matter: begin with a line ---, and end it with another"
        return replace(bad, problem=words)
    document, found = read(parts[0], file=file)
    head, more = validate(RoleHead, document) if document is not None else (None, [])
    if head is None or document is None:
        return replace(bad, problem=_problem_text([*found, *more]))
    unknown = _unknown_fields(document)
    denied = denied_by(head.toolkits or "")
    problem = _problem(head, name, parts[1]) or _misspelled(document, unknown)
    problem = problem or (denied if isinstance(denied, str) else None)
    if problem is not None or isinstance(denied, str):
        return replace(bad, problem=problem)
    return RoleFile(
        name=name,
        place=place,
        file=file,
        title=head.display_name or name,
        description=head.description,
        version=head.version,
        access=head.access_level,
        model=head.model or None,
        max_turns=head.max_iterations,
        denied=denied,
        instructions=parts[1],
        warnings=(
            *(f"{name} has no effect" for name in unknown),
            *(f"toolkits: {entry} has no effect" for entry in _foreign(head.toolkits or "")),
        ),
    )


def _unknown_fields(document: Document) -> list[str]:
    written = document.value if isinstance(document.value, dict) else {}
    return [name for name in written if name not in RoleHead.model_fields]


def _misspelled(document: Document, names: Sequence[str]) -> str | None:
    """A field that is nearly one about rights: it may have been meant to take a right away."""
    for name in names:
        near = get_close_matches(name, _OF_RIGHTS, n=1, cutoff=_NEAR)
        if near:
            line, _ = document.key_at((name,))
            return f"line {line}: {name} is not a field of a role (did you mean {near[0]}?)"
    return None


def _foreign(written: str) -> list[str]:
    """Entries of a filter about toolkits and tools that are not known here."""
    words = {entry: entry[1:].strip() for entry in _entries(written)}
    return [entry for entry, word in words.items() if word != "*" and not _toolkit(word)]


def _problem(head: RoleHead, name: str, text: str) -> str | None:
    if not _NAME.fullmatch(name):
        return f"{name!r} cannot be the name of a role: use a-z, 0-9, - and _"
    if head.name not in ("", name):
        return f"its name is {head.name!r}, so the file must be called {head.name}.md"
    return None if text else "it has no instructions below the front matter"


def _problem_text(found: Sequence[Diagnostic]) -> str:
    first = next(one for one in found if one.severity == "error")
    hint = f" ({first.hint})" if first.hint else ""
    return f"line {first.line}: {first.message}{hint}"


def denied_by(written: str) -> tuple[str, ...] | str:
    """The toolkits that a filter like `+*, -shell` takes away, or what is wrong with it. The last
    entry about a toolkit counts; toolkits of other systems and single tools have no effect.
    """
    kept = dict.fromkeys(TOOLKITS, True)
    for entry in _entries(written):
        sign, word = entry[0], entry[1:].strip()
        if sign not in "+-" or not word:
            there = ", ".join(TOOLKITS)
            return f"toolkits: {entry!r} is not +NAME or -NAME; there are *, {there}"
        named = TOOLKITS if word == "*" else _toolkit(word)
        known = [] if named else [_plain(one) for one in TOOLKITS]
        near = get_close_matches(_plain(word), known, n=1, cutoff=_NEAR)
        if near:
            return f"toolkits: {entry!r} is not known; did you mean {near[0]}?"
        kept |= dict.fromkeys(named, sign == "+")
    return tuple(name for name, keeps in kept.items() if not keeps)


def _entries(written: str) -> list[str]:
    return [one.strip() for one in written.split(",") if one.strip()]


def _toolkit(word: str) -> tuple[str, ...]:
    """A toolkit by its name, also as others write it: `ShellToolkit`, `artifact`."""
    plain = _plain(word)
    plain = {"filesystem": "file", "mcp": "server", "webfetch": "web"}.get(plain, plain)
    return tuple(name for name in TOOLKITS if name.removesuffix("s") == plain)


def _plain(word: str) -> str:
    return word.casefold().removesuffix("toolkit").removesuffix("s")


# -- finding ---------------------------------------------------------------------------------------


def find_roles(data_directory: Path | None, project: Path | None) -> dict[str, RoleFile]:
    """All roles by name, the project's before those of the data directory."""
    found = {role.name: role for role in _built_in()}
    if data_directory is not None:
        own = _in_folder(data_directory / FOLDER, "home", data_directory)
        found |= {role.name: role for role in own}
    if project is not None:
        known = dict(found)
        for folder in reversed(project_folders(project, FOLDER)):
            for role in _in_folder(folder, "project", project):
                found[role.name] = _not_wider(role, known.get(role.name))
    return dict(sorted(found.items()))


def _not_wider(role: RoleFile, known: RoleFile | None) -> RoleFile:
    """A folder that was downloaded may say more about a role, never let it reach further."""
    if known is None or known.access is None or role.access is None:
        return role
    return replace(role, access=narrower(role.access, known.access))


def _built_in() -> Iterator[RoleFile]:
    folder = files("loopwright.operations.agents") / "builtin_roles"
    for entry in folder.iterdir():
        name = entry.name.removesuffix(".md")
        if name != entry.name:
            yield read_role(entry.read_bytes(), file=entry.name, name=name, place="built-in")


def _in_folder(folder: Path, place: Place, around: Path) -> Iterator[RoleFile]:
    try:
        found = sorted(one for one in folder.iterdir() if one.suffix == ".md")[:MOST_FILES]
    except OSError:
        return
    for file in found:
        data = read_regular(file, MAX_BYTES, ReadScope(around))
        if place == "project" and isinstance(data, bytes):
            note = untrusted_note(file, data)
            if note is not None:
                yield RoleFile(name=file.stem, place=place, file=str(file), problem=note)
                continue
        if isinstance(data, FileProblem):
            yield RoleFile(name=file.stem, place=place, file=str(file), problem=data.message)
        else:
            yield read_role(data, file=str(file), name=file.stem, place=place)


# -- binding ---------------------------------------------------------------------------------------


def bind_roles(plan: Plan, roles: Mapping[str, RoleFile]) -> Plan:
    """The plan with what its agents have of their roles; an unknown role is an error."""
    if not any(agent.role for agent in plan.agents.values()):
        return plan
    most = stage_turns(plan.dialect)
    agents = {
        name: _bound(_stages_of(plan, name), agent, roles, most) if agent.role else agent
        for name, agent in plan.agents.items()
    }
    return msgspec.structs.replace(plan, agents=agents)


def _stages_of(plan: Plan, agent: str) -> str:
    """Who has a role, in words: the stages of a loop, else the agent."""
    loop = only_repeat(plan)
    steps = loop.body.steps if loop is not None and isinstance(loop.body, Steps) else ()
    found = [
        repr(step.id)
        for step in steps
        if isinstance(step.action, CallAgent) and step.action.agent == agent
    ]
    if not found:
        return f"agent {agent!r}: "
    return f"{'stage' if len(found) == 1 else 'stages'} {', '.join(found)}: "


def _bound(
    who: str, agent: Agent, roles: Mapping[str, RoleFile], most: tuple[int, int] | None
) -> Agent:
    """The agent with what its role says. `most` is how many turns a stage has whose role does not
    say it, and how many it has at most.
    """
    role = find_role(agent.role or "", roles, who=who)
    turns = agent.max_turns or role.max_turns
    if most is not None:
        usual, limit = most
        turns = min(turns if turns else limit if role.max_turns == 0 else usual, limit)
    options: dict[str, JsonValue] = dict(agent.options)
    if role.denied:
        options[DENIED_TOOLKITS] = list(role.denied)
    return msgspec.structs.replace(
        agent,
        system="\n\n".join(part for part in (role.instructions, agent.system) if part),
        model=agent.model or role.model,
        max_turns=turns or None,
        access=narrower(agent.access, role.access),
        options=options,
    )


def find_role(wanted: str, roles: Mapping[str, RoleFile], *, who: str = "") -> RoleFile:
    """A role that can be used, by its name."""
    role = roles.get(wanted)
    if role is None:
        near = suggest(wanted, roles)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(roles)}"
        raise LoopwrightError(f"{who}there is no role {wanted!r}", code="unknown-role", hint=hint)
    if role.problem is not None:
        raise LoopwrightError(
            f"{who}the role {wanted!r} cannot be used: {role.problem}",
            code="bad-role",
            hint=f"correct {role.file}; `loopwright roles` lists what is wrong",
        )
    return role
