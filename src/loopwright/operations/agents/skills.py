"""Skills: texts about how to do things, in the data directory and in a project.

A skill is `skills/NAME/SKILL.md` or `skills/NAME.md`; front matter is optional and may have a
`description`. Skills of the project (`.loopwright/skills`, `workspace/skills`) come before
those of the data directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loopwright.agents.files import FileProblem, ReadScope, read_regular
from loopwright.operations.definition_files import project_folders
from loopwright.syntax.notations import front_matter
from loopwright.syntax.readers import read

FOLDER = "skills"
MAX_SKILL_BYTES = 262_144
MOST = 1_000


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A skill by its name."""

    name: str
    description: str
    text: str


def find_skills(home: Path | None, project: Path | None) -> dict[str, SkillFile]:
    """All skills by name."""
    found: dict[str, SkillFile] = {}
    if home is not None:
        found |= {one.name: one for one in _in_folder(home / FOLDER, home)}
    if project is not None:
        for folder in reversed(project_folders(project, FOLDER)):
            found |= {one.name: one for one in _in_folder(folder, project)}
    return dict(sorted(found.items()))


def _in_folder(folder: Path, around: Path) -> Iterator[SkillFile]:
    try:
        entries = sorted(folder.iterdir())[:MOST]
    except OSError:
        return
    for entry in entries:
        file = entry / "SKILL.md" if entry.is_dir() else entry
        if file.suffix != ".md":
            continue
        data = read_regular(file, MAX_SKILL_BYTES, ReadScope(around))
        if not isinstance(data, FileProblem):
            yield _skill(data, entry.name.removesuffix(".md"), str(file))


def _skill(data: bytes, name: str, file: str) -> SkillFile:
    parts = front_matter(data)
    if parts is None:
        return SkillFile(name, "", data.decode(errors="replace").strip())
    document, _ = read(parts[0], file=file)
    head = document.value if document is not None else None
    configured = head.get("description") if isinstance(head, dict) else None
    return SkillFile(name, configured if isinstance(configured, str) else "", parts[1])
