"""Roles: files with front matter, where they are found, and what agents have of them."""

from pathlib import Path

import msgspec
import pytest

from loopwright.errors import LoopwrightError
from loopwright.model.access import DENIED_TOOLKITS
from loopwright.model.plan import Agent, Plan
from loopwright.operations.agents.roles import (
    RoleFile,
    bind_roles,
    denied_by,
    find_roles,
    read_role,
)
from loopwright.operations.run_request import StartRun
from loopwright.operations.run_start import DefinitionSource, StartPlace, prepare_start
from loopwright.operations.settings import Settings

ROLE = """\
---
name: scribe
display_name: The scribe
description: Writes things down.
version: 1.2
access_level: readonly-shell
model: tiny
max_iterations: 7
toolkits: "+*, -ShellToolkit"
---

You write things down.
"""


def role(text: str, name: str = "scribe") -> RoleFile:
    return read_role(text.encode(), file=f"{name}.md", name=name, place="home")


def plan(**agents: Agent) -> Plan:
    return Plan(name="p", steps=(), agents=agents)


@pytest.mark.parametrize(
    ("name", "access", "turns"),
    [
        ("plan", "readonly", 30),
        ("coder", "full", 48),
        ("reviewer", "readonly", 15),
        ("explorer", "readonly-shell", 20),
    ],
)
@pytest.mark.item("coqui-26", "coqui-28")
def test_built_in_roles(name: str, access: str, turns: int) -> None:
    """The four that are always there, with their levels and budgets."""
    found = find_roles(None, None)[name]
    assert (found.problem, found.access, found.max_turns) == (None, access, turns)
    assert found.instructions


def test_a_role_is_read_whole() -> None:
    """Every field of the front matter, and the text below it."""
    found = role(ROLE)
    assert found == RoleFile(
        name="scribe",
        place="home",
        file="scribe.md",
        title="The scribe",
        description="Writes things down.",
        version="1.2",
        access="readonly-shell",
        model="tiny",
        max_turns=7,
        denied=("shell",),
        instructions="You write things down.",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("You write.", "no front matter"),
        ("", "no front matter"),
        ("---\nname: scribe\n", "no front matter"),
        (ROLE.replace("name: scribe", "name: other"), "must be called other.md"),
        (ROLE.replace("readonly-shell", "read-only"), "access_level"),
        (ROLE.replace("access_level: readonly-shell\n", ""), "access_level"),
        (ROLE.replace("toolkits", "toolkit"), "line 9: toolkit is not"),
        (ROLE.replace("max_iterations: 7", "max_iterations: -1"), "max_iterations"),
        (ROLE.replace("-ShellToolkit", "-Shel"), "toolkits"),
        (ROLE.replace("+*, ", "*, "), "toolkits"),
        (ROLE.replace("You write things down.", ""), "no instructions"),
        (ROLE.replace("scribe", "[scribe"), "line "),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text: str, says: str) -> None:
    """It stays a role without rights, with what is wrong in words."""
    found = role(text)
    assert found.problem is not None
    assert says in found.problem
    assert found.access is None


def test_names_of_roles() -> None:
    """They are names that fit in a file name and a command line."""
    assert "cannot be the name" in (
        role(ROLE.replace("scribe", "Sc Ribe"), "Sc Ribe").problem or ""
    )
    assert role(ROLE.replace("name: scribe\n", "", 1)).problem is None


@pytest.mark.parametrize(
    ("written", "denied"),
    [
        ("", ()),
        ("+*", ()),
        (
            "-*, +artifacts, +todo",
            ("files", "shell", "web", "servers", "memory", "sprints", "projects", "skills"),
        ),
        ("-MemoryToolkit, -WebToolkit", ("web", "memory")),
        ("-shell, +ShellToolkit", ()),
        ("-FilesystemToolkit", ("files",)),
        ("+*, -php_execute, -LearningToolkit, -vendor/package, -ShellToolkit", ("shell",)),
    ],
)
def test_the_last_entry_of_a_filter_counts(written: str, denied: tuple[str, ...]) -> None:
    """Toolkits by our names or by those of others."""
    assert denied_by(written) == denied


def write(folder: Path, text: str = ROLE, name: str = "scribe") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text)


def test_a_project_comes_before_the_data_directory(tmp_path: Path) -> None:
    """The nearest file counts, and it is told where it was found."""
    home, project = tmp_path / "home", tmp_path / "project"
    write(home / "roles", ROLE.replace("things", "books"))
    assert find_roles(home, project)["scribe"].instructions == "You write books down."
    write(project / ".loopwright" / "roles")
    found = find_roles(home, project)["scribe"]
    assert (found.place, found.instructions) == ("project", "You write things down.")


def test_a_project_cannot_let_a_known_role_reach_further(tmp_path: Path) -> None:
    """A downloaded folder may change what the reviewer is told, not that it only reads."""
    text = ROLE.replace("scribe", "reviewer").replace("readonly-shell", "full")
    write(tmp_path / ".loopwright" / "roles", text, "reviewer")
    found = find_roles(None, tmp_path)["reviewer"]
    assert (found.access, found.instructions) == ("readonly", "You write things down.")


def test_a_broken_file_takes_its_name(tmp_path: Path) -> None:
    """It is listed with its problem and never replaced by another role of that name."""
    write(tmp_path / "roles", "nothing", "reviewer")
    (tmp_path / "roles" / "folder.md").mkdir()
    roles = find_roles(tmp_path, None)
    assert roles["reviewer"].problem
    assert roles["folder"].problem
    with pytest.raises(LoopwrightError, match="cannot be used") as caught:
        bind_roles(plan(a=Agent(role="reviewer")), roles)
    assert caught.value.code == "bad-role"


def test_what_an_agent_has_of_its_role() -> None:
    """Instructions first, then its own; its own model and turns win; the narrower level counts."""
    roles = {"scribe": role(ROLE)}
    bound = bind_roles(plan(a=Agent(role="scribe", system="Be brief.", access="full")), roles)
    agent = bound.agents["a"]
    assert agent.system == "You write things down.\n\nBe brief."
    assert (agent.model, agent.max_turns, agent.access) == ("tiny", 7, "readonly-shell")
    assert agent.options == {DENIED_TOOLKITS: ["shell"]}
    own = Agent(role="scribe", model="large", max_turns=3, access="minimal")
    agent = bind_roles(plan(a=own), roles).agents["a"]
    assert (agent.model, agent.max_turns, agent.access) == ("large", 3, "minimal")
    assert bind_roles(plan(a=Agent()), roles) == plan(a=Agent())


DEFINITION = """\
name: r
goal: Look.
agents: {eye: {use: "script:answers.yaml", role: %s}}
agent: eye
"""


def test_an_unknown_role_is_an_error_before_anything_is_created(tmp_path: Path) -> None:
    """With the role that was probably meant."""
    (tmp_path / "answers.yaml").write_text("replies: []")
    file = tmp_path / "r.yaml"
    place = StartPlace(settings=Settings(home=tmp_path / "home"), workspace=tmp_path)
    source = DefinitionSource(file=str(file))
    file.write_text(DEFINITION % "reviwer")
    with pytest.raises(LoopwrightError) as caught:
        prepare_start(place, StartRun(), source)
    assert (caught.value.code, caught.value.hint) == ("unknown-role", "did you mean reviewer?")
    file.write_text(DEFINITION % "zzz")
    with pytest.raises(LoopwrightError) as caught:
        prepare_start(place, StartRun(), source)
    assert "there are coder" in (caught.value.hint or "")
    file.write_text(DEFINITION % "reviewer")
    start, _ = prepare_start(place, StartRun(), source)
    assert start.plan.agents["eye"].access == "readonly"


FOREIGN = """---
name: muse
display_name: Muse
description: Collects ideas.
version: 1
access_level: readonly-shell
is_builtin: true
is_template: false
ignore_updates: false
max_iterations: 32
toolkits: "+*, -ShellToolkit, -php_execute"
persona: bright
---

You collect ideas.
"""


@pytest.mark.item("coqui-76")
def test_a_role_of_another_system_loads_with_warnings() -> None:
    """Its own fields count, and each field or toolkit that means nothing here is named."""
    found = role(FOREIGN, "muse")
    assert (found.problem, found.access, found.max_turns) == (None, "readonly-shell", 32)
    assert found.denied == ("shell",)
    assert found.warnings == ("persona has no effect", "toolkits: -php_execute has no effect")


@pytest.mark.item("coqui-76")
def test_roles_are_found_in_the_workspace_folder(tmp_path: Path) -> None:
    """`workspace/roles/` of a project counts, and cannot widen a role that is known."""
    write(tmp_path / "workspace" / "roles")
    write(tmp_path / "workspace" / "roles", FOREIGN, "muse")
    wide = ROLE.replace("name: scribe", "name: reviewer").replace("readonly-shell", "full")
    write(tmp_path / "workspace" / "roles", wide, "reviewer")
    found = find_roles(None, tmp_path)
    assert found["scribe"].place == "project"
    assert found["muse"].access == "readonly-shell"
    assert found["reviewer"].access == "readonly"


@pytest.mark.item("coqui-77")
@pytest.mark.parametrize(
    ("own", "of_role", "turns"),
    [
        pytest.param(None, "max_iterations: 7", 7, id="the role's"),
        pytest.param(12, "max_iterations: 7", 12, id="the stage's comes first"),
        pytest.param(None, "", 48, id="neither: the default"),
        pytest.param(None, "max_iterations: 0", 100, id="0 is as many as there may be"),
        pytest.param(None, "max_iterations: 5000", 100, id="never more than 100"),
    ],
)
def test_turns_of_a_stage_follow_its_role(own: int | None, of_role: str, turns: int) -> None:
    """A stage without a number of its own has the turns of its role."""
    text = ROLE.replace("max_iterations: 7\n", f"{of_role}\n" if of_role else "", 1)
    made = plan(a=Agent(role="scribe", max_turns=own))
    loop = msgspec.structs.replace(made, dialect="coqui")
    bound = bind_roles(loop, {"scribe": role(text)})
    assert bound.agents["a"].max_turns == turns
