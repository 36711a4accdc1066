"""Steps that use a tool themselves: what is refused, and what the scripts behind them do."""

import subprocess
from pathlib import Path

import pytest

from loopwright.dialects.zenflow.tools import lower_tool
from loopwright.model.actions import RunScript
from loopwright.model.record import Lit, Ref
from tests.dialects.zenflow.cases import codes, plan_of

HEAD = "name: x\nagents: {w: {description: Works.}}\nsteps:\n  - {id: a, agent: w}\n"
pytestmark = pytest.mark.item("zenflow-84")


@pytest.mark.parametrize(
    ("step", "found"),
    [
        ("tool: read, toolInput: {path: x}, agent: w", ["tool-has-other"]),
        ("tool: read, toolInput: {path: x}, loop: {maxIterations: 2}", ["tool-has-other"]),
        ("toolInput: {path: x}", ["tool-input-alone"]),
        ("tool: read", ["missing-tool-input"]),
        ("tool: write, toolInput: {path: x}", ["missing-tool-input"]),
        ("tool: bash", ["missing-tool-input"]),
        (
            "tool: bash, toolInput: {command: $steps.a.content}, dependsOn: [a]",
            ["computed-command"],
        ),
        ("tool: read, toolInput: {path: $steps.a.content}", ["tool-input"]),
        ("tool: read, toolInput: {path: '$size(steps)'}, dependsOn: [a]", ["tool-input"]),
        ("tool: read, toolInput: {path: x, color: red}", ["ignored-field"]),
        ("tool: deploy", ["unknown-tool"]),
        ("tool: read, toolInput: {path: $steps.a.content}, dependsOn: [a]", []),
        ("tool: read, toolInput: {path: '$$x'}", []),
        ("tool: bash, toolInput: {command: 'echo $HOME'}", []),
    ],
)
def test_rules_of_tool_steps(step: str, found: list[str]) -> None:
    """A tool stands alone, has the inputs that it needs, and runs no computed command."""
    assert codes(f"{HEAD}  - {{id: t, {step}}}\n") == found


@pytest.mark.parametrize(
    ("value", "template"),
    [
        ("$steps.a.content", Ref(of="output", name="a")),
        ('$steps["a"].content', Ref(of="output", name="a")),
        ("$steps['a'].result.file.name", Ref(of="result", name="a", field="file.name")),
        ("$$price", Lit(text="$price")),
        ("plain", Lit(text="plain")),
    ],
)
def test_inputs_become_variables(value: str, template: Lit | Ref) -> None:
    """A reference is filled in when the step starts; two dollars are one."""
    step = f"  - id: t\n    dependsOn: [a]\n    tool: read\n    toolInput:\n      path: {value}\n"
    text = HEAD + step
    action = plan_of(text).steps[1].action
    assert isinstance(action, RunScript)
    assert action.env == {"TOOL_PATH": (template,)}


def used(folder: Path, tool: str, **given: str | int) -> tuple[int, str]:
    """What the script of a tool does with these inputs."""
    script = lower_tool(tool, {**given}, None)
    env = {name: "".join(p.text for p in v if isinstance(p, Lit)) for name, v in script.env.items()}
    done = subprocess.run(
        ["/bin/bash", "-c", script.text],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout or done.stderr


def test_scripts_of_tools(tmp_path: Path) -> None:
    """Files are read, written, found and searched, and never outside of the workspace."""
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "src" / "a.py").write_text("one\nTODO two\nthree\n")
    (tmp_path / "secret").write_text("TOP SECRET")
    (work / "link").symlink_to(tmp_path / "secret")
    assert used(work, "read", path=" src/a.py\n") == (0, "one\nTODO two\nthree\n")
    assert used(work, "read", path="src/a.py", offset=2, limit=1) == (0, "TODO two\n")
    for outside in ("../secret", str(tmp_path / "secret"), "link", "src/../../secret"):
        code, said = used(work, "read", path=outside)
        assert (code, "TOP SECRET" in said) == (1, False)
        assert used(work, "write", path=outside, content="x")[0] == 1
    assert (tmp_path / "secret").read_text() == "TOP SECRET"
    assert used(work, "write", path="out/$(id).txt", content="a'b\"$(id)\n")[0] == 0
    assert (work / "out" / "$(id).txt").read_text() == "a'b\"$(id)\n"
    assert used(work, "glob", pattern="**/*.py") == (0, "src/a.py\n")
    assert used(work, "glob", pattern="../*")[0] == 1
    assert used(work, "grep", pattern="TO+", path="src") == (0, "src/a.py:2:TODO two\n")
    assert used(work, "grep", pattern="nothing like it") == (0, "")
    assert used(work, "grep", pattern="(")[0] == 1
    assert used(work, "bash", command="echo hi") == (0, "hi\n")
    assert used(work, "deploy") == (1, "there is no tool deploy for steps here\n")
