"""Skills: texts that tell how things are done, in the data directory and in a project.

A skill is `skills/NAME/SKILL.md` or `skills/NAME.md`, with or without front matter that has a
`description`. The project's (`.loopwright/skills`, `workspace/skills`) come before those of the
data directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.fetching import project_folders
from loopwright.programs.files import FileProblem, ReadScope, read_regular
from loopwright.syntax.front_matter import front_matter
from loopwright.syntax.reading import read

FOLDER = "skills"
MAX_BYTES = 262_144
MOST = 1_000


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill by its name."""

    name: str
    description: str
    text: str


def find_skills(home: Path | None, project: Path | None) -> dict[str, Skill]:
    """All skills by name."""
    found: dict[str, Skill] = {}
    if home is not None:
        found |= {one.name: one for one in _in_folder(home / FOLDER, home)}
    if project is not None:
        for folder in reversed(project_folders(project, FOLDER)):
            found |= {one.name: one for one in _in_folder(folder, project)}
    return dict(sorted(found.items()))


def _in_folder(folder: Path, around: Path) -> Iterator[Skill]:
    try:
        entries = sorted(folder.iterdir())[:MOST]
    except OSError:
        return
    for entry in entries:
        file = entry / "SKILL.md" if entry.is_dir() else entry
        if file.suffix != ".md":
            continue
        data = read_regular(file, MAX_BYTES, ReadScope(around))
        if not isinstance(data, FileProblem):
            yield _skill(data, entry.name.removesuffix(".md"), str(file))


def _skill(data: bytes, name: str, file: str) -> Skill:
    parts = front_matter(data)
    if parts is None:
        return Skill(name, "", data.decode(errors="replace").strip())
    document, _ = read(parts[0], file=file)
    head = document.value if document is not None else None
    said = head.get("description") if isinstance(head, dict) else None
    return Skill(name, said if isinstance(said, str) else "", parts[1])
