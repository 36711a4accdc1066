"""Roles: what an agent of that name is told and how far it reaches. Markdown with front matter.

A role is looked for in the project (`.loopwright/roles`), then in the data directory (`roles`),
then among the built-in ones. A file that cannot be used is listed with what is wrong with it; it
still takes its name, so that a mistake in it never gives an agent the rights of another file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from loopwright.errors import LoopwrightError
from loopwright.model.access import DENIED_TOOLKITS, TOOLKITS, narrower
from loopwright.model.plan import Access, Agent, Plan
from loopwright.model.record import JsonValue
from loopwright.programs.files import FileProblem, read_regular
from loopwright.syntax import Diagnostic, read, suggest, validate

FOLDER = "roles"
PROJECT_FOLDER = Path(".loopwright", FOLDER)
MAX_BYTES = 262_144
MOST_FILES = 1_000
Place = Literal["built-in", "home", "project"]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_FENCE = "---"


def _one_text(value: object) -> object:
    """A version may be written as a number, and a filter as a list."""
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Head(BaseModel):
    """What stands between the two lines of dashes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = ""
    display_name: str = ""
    description: str = ""
    version: Annotated[str, BeforeValidator(_one_text)] = ""
    access_level: Access
    model: str | None = None
    max_iterations: int = Field(default=0, ge=0, le=10_000)
    toolkits: Annotated[str, BeforeValidator(_one_text)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A role, or a file that should have been one (`problem`)."""

    name: str
    place: Place
    file: str
    title: str = ""
    description: str = ""
    version: str = ""
    access: Access | None = None
    model: str | None = None
    max_turns: int | None = None
    denied: tuple[str, ...] = ()  # toolkits that it does not have
    instructions: str = ""
    problem: str | None = None


# -- reading ---------------------------------------------------------------------------------------


def read_role(data: bytes, *, file: str, name: str, place: Place) -> Role:
    """A role as it is written in a file that is called `name`."""
    bad = Role(name=name, place=place, file=file)
    parts = front_matter(data)
    if parts is None:
        words = "it has no front matter: begin with a line ---, and end it with another"
        return replace(bad, problem=words)
    document, found = read(parts[0], file=file)
    head, more = validate(Head, document) if document is not None else (None, [])
    if head is None:
        return replace(bad, problem=_told([*found, *more]))
    denied = denied_by(head.toolkits)
    problem = _problem(head, name, parts[1]) or (denied if isinstance(denied, str) else None)
    if problem is not None or isinstance(denied, str):
        return replace(bad, problem=problem)
    return Role(
        name=name,
        place=place,
        file=file,
        title=head.display_name or name,
        description=head.description,
        version=head.version,
        access=head.access_level,
        model=head.model or None,
        max_turns=head.max_iterations or None,
        denied=denied,
        instructions=parts[1],
    )


def front_matter(data: bytes) -> tuple[bytes, str] | None:
    """The front matter, with as many lines before it as it really has, and the text."""
    lines = data.decode(errors="replace").removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return None
    end = next((n for n, line in enumerate(lines) if n and line.rstrip() == _FENCE), None)
    if end is None:
        return None
    return "\n".join(["", *lines[1:end]]).encode(), "\n".join(lines[end + 1 :]).strip()


def _problem(head: Head, name: str, text: str) -> str | None:
    if not _NAME.fullmatch(name):
        return f"{name!r} cannot be the name of a role: use a-z, 0-9, - and _"
    if head.name not in ("", name):
        return f"its name is {head.name!r}, so the file must be called {head.name}.md"
    return None if text else "it has no instructions below the front matter"


def _told(found: Sequence[Diagnostic]) -> str:
    first = next(one for one in found if one.severity == "error")
    hint = f" ({first.hint})" if first.hint else ""
    return f"line {first.line}: {first.message}{hint}"


def denied_by(written: str) -> tuple[str, ...] | str:
    """The toolkits that a filter like `+*, -shell` takes away, or what is wrong with it. The last
    entry that speaks of a toolkit counts.
    """
    kept = dict.fromkeys(TOOLKITS, True)
    for entry in filter(None, (one.strip() for one in written.split(","))):
        sign, word = entry[0], entry[1:].strip()
        named = TOOLKITS if word == "*" else _toolkit(word)
        if sign not in "+-" or not named:
            known = ", ".join(TOOLKITS)
            return f"toolkits: {entry!r} is no +NAME or -NAME; there are *, {known}"
        kept |= dict.fromkeys(named, sign == "+")
    return tuple(name for name, keeps in kept.items() if not keeps)


def _toolkit(word: str) -> tuple[str, ...]:
    """A toolkit by its name, also as others write it: `ShellToolkit`, `artifact`."""
    plain = word.casefold().removesuffix("toolkit").removesuffix("s")
    plain = {"filesystem": "file", "mcp": "server"}.get(plain, plain)
    return tuple(name for name in TOOLKITS if name.removesuffix("s") == plain)


# -- finding ---------------------------------------------------------------------------------------


def find_roles(home: Path | None, project: Path | None) -> dict[str, Role]:
    """All roles by name, the project's before those of the data directory."""
    found = {role.name: role for role in _built_in()}
    if home is not None:
        found |= {role.name: role for role in _in_folder(home / FOLDER, "home")}
    if project is not None:
        for role in _in_folder(project / PROJECT_FOLDER, "project"):
            found[role.name] = _not_wider(role, found.get(role.name))
    return dict(sorted(found.items()))


def _not_wider(role: Role, known: Role | None) -> Role:
    """A folder that was downloaded may say more about a role, never let it reach further."""
    if known is None or known.access is None or role.access is None:
        return role
    return replace(role, access=narrower(role.access, known.access))


def _built_in() -> Iterator[Role]:
    folder = files("loopwright.app") / "builtin_roles"
    for entry in folder.iterdir():
        name = entry.name.removesuffix(".md")
        if name != entry.name:
            yield read_role(entry.read_bytes(), file=entry.name, name=name, place="built-in")


def _in_folder(folder: Path, place: Place) -> Iterator[Role]:
    try:
        found = sorted(one for one in folder.iterdir() if one.suffix == ".md")[:MOST_FILES]
    except OSError:
        return
    for file in found:
        data = read_regular(file, MAX_BYTES)
        if isinstance(data, FileProblem):
            yield Role(name=file.stem, place=place, file=str(file), problem=data.message)
        else:
            yield read_role(data, file=str(file), name=file.stem, place=place)


# -- binding ---------------------------------------------------------------------------------------


def bind_roles(plan: Plan, roles: Mapping[str, Role]) -> Plan:
    """The plan with what its agents have of their roles; an unknown role is an error."""
    if not any(agent.role for agent in plan.agents.values()):
        return plan
    agents = {
        name: _bound(name, agent, roles) if agent.role else agent
        for name, agent in plan.agents.items()
    }
    return msgspec.structs.replace(plan, agents=agents)


def _bound(name: str, agent: Agent, roles: Mapping[str, Role]) -> Agent:
    role = find_role(agent.role or "", roles, who=f"agent {name!r}: ")
    options: dict[str, JsonValue] = dict(agent.options)
    if role.denied:
        options[DENIED_TOOLKITS] = list(role.denied)
    return msgspec.structs.replace(
        agent,
        system="\n\n".join(part for part in (role.instructions, agent.system) if part),
        model=agent.model or role.model,
        max_turns=agent.max_turns or role.max_turns,
        access=narrower(agent.access, role.access),
        options=options,
    )


def find_role(wanted: str, roles: Mapping[str, Role], *, who: str = "") -> Role:
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
