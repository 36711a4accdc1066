"""Commands and scripts in files: what is asked for, which is taken, what is said when none is."""

from types import MappingProxyType

import pytest

from loopwright.dialects import archon
from loopwright.dialects.archon.files import Files, FoundText, MissingFile, command, find, script
from loopwright.model.actions import CallAgent, FailStep, Repeat, RunScript, Steps
from loopwright.model.plan import Plan
from loopwright.model.record import Lit
from loopwright.syntax.document import Document
from loopwright.syntax.readers import read
from tests.dialects.archon.reading import Problem, flow, lowered

ABSENT = Problem("not-found", "no such file")


def document(*nodes: str) -> Document:
    found, _ = read(flow(*nodes).encode(), file="flow.yaml")
    assert found is not None
    return found


def needed(one: Document, files: Files = MappingProxyType({})) -> list[archon.ArchonFileRequest]:
    """What a workflow asks for, without the settings, which every workflow asks for."""
    return [each for each in archon.requested_files(one, files) if not each.is_optional]


def test_what_is_asked_for() -> None:
    """First the files beside the workflow and in the project, each once, with the folder."""
    asked = needed(document("{id: a, command: x}", "{id: b, command: x}"))
    assert [(one.path, one.kind) for one in asked] == [
        ("@/commands/x.md", "text"),
        (".archon/commands/x.md", "text"),
        (".archon/commands", "names"),
    ]
    assert {one.limit for one in asked} == {1_048_576}
    assert asked[0].where == (5, 22)


@pytest.mark.item("archon-71")
def test_folders_are_searched_one_level_deep_and_the_project_before_the_person() -> None:
    """A file of a folder in the project's folder comes before one of the person's."""
    one = document("{id: a, command: x}")
    absent = dict.fromkeys(["@/commands/x.md", ".archon/commands/x.md"], ABSENT)
    files = {**absent, ".archon/commands": b"a.md\ndefaults\nteam\n"}
    assert [each.path for each in needed(one, files)] == [
        ".archon/commands/defaults/x.md",
        ".archon/commands/team/x.md",
    ]
    files |= {".archon/commands/defaults/x.md": ABSENT, ".archon/commands/team/x.md": b"Go"}
    assert needed(one, files) == []
    assert find(command("x"), files) == FoundText(".archon/commands/team/x.md", "Go")
    files[".archon/commands/team/x.md"] = ABSENT
    assert [each.path for each in needed(one, files)] == [
        "~/.archon/commands/x.md",
        "~/.archon/commands",
    ]


SETTINGS = ".archon/config.yaml"


def plan_with(text: str, files: Files = MappingProxyType({})) -> Plan:
    """The plan of a workflow of one file, with these settings."""
    one, _ = read(text.encode(), file="flow.yaml")
    assert one is not None
    plan, problems = archon.lower(one, files)
    assert plan is not None, problems
    return plan


@pytest.mark.item("archon-71")
def test_settings_name_a_further_folder_with_commands() -> None:
    """It comes after the folders of the project and before those of the person."""
    one = document("{id: a, command: x}")
    absent = dict.fromkeys(["@/commands/x.md", ".archon/commands/x.md"], ABSENT)
    files: dict[str, bytes | Problem] = {
        **absent,
        ".archon/commands": b"a.md\n",
        SETTINGS: b"commands: {folder: ./.claude/commands/, autoLoad: true}\n",
    }
    assert [each.path for each in needed(one, files)] == [
        ".claude/commands/x.md",
        ".claude/commands",
    ]
    files |= {".claude/commands/x.md": b"Go", "~/.archon/commands/x.md": b"mine"}
    assert needed(one, files) == []
    assert find(command("x"), files) == FoundText(".claude/commands/x.md", "Go")
    found = find(command("y"), files)
    assert isinstance(found, MissingFile)
    folders = ".archon/commands or .claude/commands or ~/.archon/commands"
    assert found.message == f"no command is called y in {folders}"


@pytest.mark.parametrize("folder", ["../x", "/x", "~/x", "a/../../x", ".archon/commands", "[]", ""])
def test_a_further_folder_is_below_the_project(folder: str) -> None:
    """Any other has no effect."""
    files = {SETTINGS: f"commands: {{folder: {folder or chr(39) * 2}}}\n".encode()}
    found = find(command("x"), files)
    assert isinstance(found, MissingFile)
    assert found.message == "no command is called x in .archon/commands or ~/.archon/commands"


def test_settings_say_what_the_variables_of_the_project_are() -> None:
    """`docs.path` and `worktree.baseBranch`; without them the usual folder, and what Git says."""
    text = flow('{id: a, prompt: "$DOCS_DIR $BASE_BRANCH"}')
    assert plan_with(text).settings == {"base_branch": "", "docs_dir": "docs/"}
    config = b"docs: {path: packages/docs}\nworktree: {baseBranch: dev}\n"
    plan = plan_with(text, {SETTINGS: config})
    assert plan.settings == {"base_branch": "dev", "docs_dir": "packages/docs"}
    assert (
        plan_with(text, {SETTINGS: b"docs: [1]\nworktree: dev\n"}).settings["docs_dir"] == "docs/"
    )


@pytest.mark.item("archon-72")
@pytest.mark.parametrize(
    ("config", "head", "node", "agent"),
    [
        ("assistant: codex", "", "", ("codex", None)),
        ("assistant: codex", "provider: claude", "", ("claude", None)),
        ("assistant: codex", "", "provider: claude", ("claude", None)),
        ("assistants: {claude: {model: opus}}", "provider: claude", "", ("claude", "opus")),
        ("assistants: {claude: {model: opus}}", "provider: codex", "", ("codex", None)),
        ("assistants: {claude: {model: opus}}", "provider: claude", "model: haiku", "haiku"),
        ("assistants: {claude: {model: inherit}}", "provider: claude", "", ("claude", None)),
        ("assistant: codex\nassistants: {codex: {model: gpt-5}}", "", "", ("codex", "gpt-5")),
        ("assistant: [1]\nassistants: 3", "", "", (None, None)),
    ],
)
def test_settings_name_the_agent_of_workflows_that_name_none(
    config: str, head: str, node: str, agent: tuple[str | None, str | None] | str
) -> None:
    """`assistant`, and the model of each provider in `assistants`."""
    text = flow(f"{{id: a, prompt: Go{', ' if node else ''}{node}}}", head=head)
    [made] = plan_with(text, {SETTINGS: config.encode()}).agents.values()
    assert (made.spec, made.model) == (("claude", agent) if isinstance(agent, str) else agent)


def test_settings_of_the_project_come_before_those_of_the_person() -> None:
    """Each replaces only what it says itself."""
    files = {
        "~/.archon/config.yaml": b"defaultAssistant: claude\nassistants: {codex: {model: a}}\n",
        SETTINGS: b"assistant: codex\n",
    }
    [made] = plan_with(flow("{id: a, prompt: Go}"), files).agents.values()
    assert (made.spec, made.model) == ("codex", "a")


def test_a_provider_of_the_settings_without_an_agent_causes_a_warning() -> None:
    """As one in the workflow does, and only where an agent is needed."""
    files = {SETTINGS: b"assistant: pi\n"}
    _, [warning] = archon.lower(document("{id: a, prompt: Go}"), files)
    assert (warning.severity, warning.code) == ("warning", "unknown-agent")
    assert "the provider pi of the settings" in warning.message
    assert archon.lower(document("{id: a, bash: ls}"), files)[1] == []


@pytest.mark.parametrize(
    ("name", "runtime", "paths"),
    [
        ("x", "uv", ["a/x.py"]),
        ("x.py", "uv", ["a/x.py"]),
        ("x.js", "bun", ["a/x.js"]),
        ("x", "bun", ["a/x.ts", "a/x.js"]),
    ],
)
def test_endings_of_scripts(name: str, runtime: str, paths: list[str]) -> None:
    """The ending follows from the runtime unless it is written."""
    assert script(name, runtime).paths("a") == paths


def test_the_project_comes_first() -> None:
    """Of two files of one name the project's is taken."""
    files = {".archon/commands/x.md": b"\xef\xbb\xbfours\r\n", "~/.archon/commands/x.md": b"mine"}
    assert find(command("x"), files) == FoundText(".archon/commands/x.md", "ours\n")
    files[".archon/commands/x.md"] = ABSENT  # type: ignore[assignment]
    assert find(command("x"), files) == FoundText("~/.archon/commands/x.md", "mine")


UNUSABLE = [
    (b"\xff", "encoding"),
    (b"a\0b", "encoding"),
    (b" \n", "empty-definition"),
    (Problem("file-too-large", "too large"), "file-too-large"),
    (Problem("cannot-read", "permission denied"), "cannot-read"),
    (Problem("cannot-read", "no such file or directory"), "unknown-command"),
    (Problem("outside-workspace", "leads out"), "outside-workspace"),
]


@pytest.mark.parametrize(("given", "code"), UNUSABLE, ids=[str(one) for one, _ in UNUSABLE])
def test_files_that_cannot_be_used(given: bytes | Problem, code: str) -> None:
    """A file that is there but cannot be used is told as what it is."""
    files: dict[str, bytes | Problem] = {
        ".archon/commands/x.md": given,
        "~/.archon/commands/x.md": Problem("outside-workspace", "not for us"),
    }
    found = find(command("x"), files)
    assert isinstance(found, MissingFile)
    assert found.code == code


@pytest.mark.item("archon-68")
def test_near_misses_are_suggested() -> None:
    """The hint knows the names of both folders, and only files that would do."""
    files = {".archon/scripts": b"count.py\nnotes.txt\n", "~/.archon/scripts": b"say.py\n"}
    found = find(script("cuont", "uv"), files)
    message = "no script is called cuont in .archon/scripts or ~/.archon/scripts"
    assert found == MissingFile("unknown-script", message, "did you mean count?")
    found = find(script("zzz", "uv"), files)
    assert isinstance(found, MissingFile)
    assert (found.hint or "").endswith("; known are count, say")
    found = find(command("x"), {})
    assert isinstance(found, MissingFile)
    assert (found.hint or "").startswith("write .archon/commands/x.md, or copy")
    assert found.is_absent


ABSENT_NODES = [
    ("{id: a, command: archon-plan}", "unknown-command", "no command is called archon-plan in"),
    ("{id: a, command: reviw-code}", "unknown-command", "did you mean review-code?"),
    ("{id: a, script: cuont, runtime: uv}", "unknown-script", "did you mean count?"),
    (
        "{id: a, loop: {command: x, until: D, max_iterations: 2}}",
        "unknown-command",
        "write .archon/commands/x.md",
    ),
    ("{id: a, workflow: reviw}", "unknown-workflow", "did you mean review?"),
]


@pytest.mark.item("archon-68")
@pytest.mark.parametrize(("node", "code", "says"), ABSENT_NODES, ids=[n for n, *_ in ABSENT_NODES])
def test_a_node_whose_file_is_missing_loads_with_a_warning_and_fails_when_reached(
    node: str, code: str, says: str
) -> None:
    """The warning has the name, the folders and what to do; so has the failure of the node."""
    plan, (problem,) = lowered(flow(node))
    assert (problem.severity, problem.code) == ("warning", code)
    assert problem.message.endswith(": the node will fail")
    assert plan is not None
    action = plan.steps[0].action
    assert isinstance(action, FailStep)
    assert f".archon/{code.removeprefix('unknown-')}s" in action.reason
    assert says in action.reason


@pytest.mark.item("archon-68")
def test_the_items_of_a_fan_out_fail_whose_workflow_is_missing() -> None:
    """The node ends as its join says, like any other whose items have failed."""
    plan, (problem,) = lowered(flow("{id: a, workflow: x, fan_out: {items: [1, 2]}}"))
    assert problem.message.endswith(": each of its items will fail")
    assert plan is not None
    action = plan.steps[0].action
    assert isinstance(action, Repeat)
    assert isinstance(action.body, Steps)
    (inner,) = action.body.steps
    assert isinstance(inner.action, FailStep)
    assert "write .archon/workflows/x.yaml" in inner.action.reason


def test_files_become_prompts_and_scripts() -> None:
    """The text of a file stands in the plan, as if it had been written there."""
    files = {".archon/commands/x.md": b"Go on", ".archon/scripts/y.py": b"print(1)"}
    plan, problems = archon.lower(
        document("{id: a, command: x}", "{id: b, script: y, runtime: uv}"), files
    )
    assert problems == []
    assert plan is not None
    call, run = plan.steps[0].action, plan.steps[1].action
    assert isinstance(call, CallAgent)
    assert call.prompt == (Lit(text="Go on"),)
    assert isinstance(run, RunScript)
    assert run.text == "print(1)"


def test_findings_in_a_file_name_that_file() -> None:
    """A variable that leads nowhere is shown in the file in which it stands."""
    files = {".archon/commands/x.md": b"one\ntwo $ghost.output"}
    _, problems = archon.lower(document("{id: a, command: x}"), files)
    (one,) = problems
    assert (one.file, one.line, one.column) == (".archon/commands/x.md", 2, 5)
