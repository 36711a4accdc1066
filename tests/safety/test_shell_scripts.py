"""Scripts of Archon workflows with hostile values: refused at their line, or run and harmless."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.agents.calls import as_variables
from loopwright.model.actions import RunScript
from loopwright.model.checks import ScriptCheck
from loopwright.model.plan import Plan
from loopwright.syntax.document import Diagnostic
from tests.dialects.archon.reading import lowered
from tests.dialects.archon.running import (
    HELPER,
    MARKER,
    PAYLOADS,
    SPECIAL_PAYLOADS,
    last_script,
    run,
    run_with,
)
from tests.safety.script_compositions import AROUND, DATA, SINKS, WAYS
from tests.support.tables import read_table

_SCRIPTS = Path(__file__).parent / "scripts"
_FIRST_LINE = 7  # of the script in the workflow below
PAYLOAD_TEXTS = [
    *PAYLOADS.values(),
    *SPECIAL_PAYLOADS.values(),
    f"-v a[$(touch${{IFS}}{MARKER})]",
    f"-oProxyCommand=touch {MARKER}",
    f"--upload-pack=touch {MARKER};",
    f"--checkpoint-action=exec=touch {MARKER}",
    f"0 + a[$(touch {MARKER})]",
    f"1; touch {MARKER}",
    f"x[$(touch {MARKER})]=1",
    f"$(shell touch {MARKER})",
    f"--pre=./{HELPER}",
    f"require('child_process').execSync('touch {MARKER}')",
    f"'+require('child_process').execSync('touch {MARKER}')+'",
    f'"+require("child_process").execSync("touch {MARKER}")+"',
    f"`+require('child_process').execSync('touch {MARKER}')+`",
    f"${{require('child_process').execSync('touch {MARKER}')}}",
    f"all:\n\ttouch {MARKER}",
    "USER_MESSAGE",
]
FEW_PAYLOADS = [
    f"$(touch {MARKER})",
    f"a[$(touch {MARKER})]",
    f"'\"; touch {MARKER}; \"'",
    f"-v a[$(touch${{IFS}}{MARKER})]",
    f"--upload-pack=touch {MARKER};",
    f"x\nEOF\ntouch {MARKER}\nEOF\n",
]


class Row(TypedDict, total=False):
    """One script of a table."""

    id: str
    script: str
    nodes: list[str]
    line: int
    value: str
    prints: str
    warns: str
    needs: str


def rows(name: str) -> list[Row]:
    table: list[Row] = read_table(_SCRIPTS / name)
    return table


HOSTILE, BENIGN = rows("hostile.yaml"), rows("benign.yaml")
REFUSED = [one for one in HOSTILE if "line" in one]
LOADED = [one for one in HOSTILE if "line" not in one and "nodes" not in one]
NODES = [one for one in HOSTILE if "nodes" in one]
NODE_PAYLOADS = [f"a[$(touch {MARKER})]", f"x[$(touch {MARKER})]=1", f"1; touch {MARKER}"]


def named(row: Row) -> str:
    return row["id"]


def load(script: str) -> tuple[Plan | None, list[Diagnostic]]:
    """A workflow with this script, which begins at a known line."""
    text = "".join(f"      {line}\n" for line in script.split("\n"))
    head = "name: x\ndescription: y\nnodes:\n  - {id: src, bash: ls}\n"
    return lowered(f"{head}  - id: use\n    depends_on: [src]\n    bash: |\n{text}")


def load_nodes(scripts: Sequence[str]) -> list[RunScript | ScriptCheck]:
    """The scripts of a workflow in which each is a node that runs after the one before."""
    made = []
    for one in scripts:
        plan, problems = load(one)
        assert [one for one in problems if one.severity == "error"] == []
        assert plan is not None
        made.append(last_script(plan))
    return made


def run_nodes(scripts: Sequence[RunScript | ScriptCheck], value: str, folder: Path) -> bool:
    """Run scripts one after the other in one folder; whether a value ran anything."""
    folders = dict.fromkeys(("ARTIFACTS_DIR", "STATE_DIR"), str(folder / "shared"))
    for one in scripts:
        run_with(one, dict.fromkeys(one.env, value) | folders, folder)
    return any(folder.rglob(MARKER))


def run_payloads(plan: Plan, folder: Path, payloads: Sequence[str] = PAYLOAD_TEXTS) -> None:
    """Run the script of a workflow with these payloads; none may leave the marker behind."""
    for number, value in enumerate(payloads):
        place = folder / str(number)
        place.mkdir()
        _, ran = run(last_script(plan), value, place)
        assert not ran, value


def test_the_tables_are_complete() -> None:
    """Enough scripts of each kind, no two alike."""
    assert len(HOSTILE) >= 240
    assert len(BENIGN) >= 110
    assert len({one["script"] for one in HOSTILE}) == len(HOSTILE)
    assert len({one["id"] for one in [*HOSTILE, *BENIGN]}) >= len(HOSTILE)
    kinds = ("direct", "one", "two", "function", "array", "file", "heredoc")
    for kind in kinds:
        assert sum(one["id"].startswith(kind) for one in HOSTILE) >= 9, kind


@pytest.mark.item("bnd-shell-1")
@pytest.mark.parametrize("row", REFUSED, ids=named)
def test_a_script_that_would_evaluate_a_value_is_refused_or_gets_a_safe_form(
    row: Row, tmp_path: Path
) -> None:
    """The finding names the line. Where the value has a safe form, no payload runs anything."""
    plan, problems = load(row["script"])
    found = [one for one in problems if one.severity == "error" or one.code == "safe-form"]
    assert found[0].line == _FIRST_LINE + row["line"]
    assert all(one.hint for one in found)
    if plan is not None:
        assert {one.code for one in found} == {"safe-form"}
        run_payloads(plan, tmp_path)
        return
    errors = [one for one in problems if one.severity == "error"]
    assert all(one.code.startswith(("reference-", "reserved-")) for one in errors)


@pytest.mark.item("archon-80")
def test_most_hostile_scripts_still_run_and_those_without_a_safe_form_do_not() -> None:
    """Arithmetic, file names, operands and texts have safe forms; code has none."""
    loads = {one["id"] for one in REFUSED if load(one["script"])[0] is not None}
    assert {"one-arithmetic", "direct-target", "direct-find", "one-sed-code"} <= loads
    refused = {"direct-eval", "direct-command", "one-shell-code", "one-pipe", "direct-tar-action"}
    assert not refused & loads


@pytest.mark.item("bnd-shell-2")
@pytest.mark.parametrize("row", LOADED, ids=named)
def test_a_script_that_loads_runs_nothing_of_a_hostile_value(row: Row, tmp_path: Path) -> None:
    """Bash really runs the script with every payload, and only the intended commands run."""
    plan, problems = load(row["script"])
    assert [one for one in problems if one.severity == "error"] == []
    assert plan is not None
    run_payloads(plan, tmp_path)


@pytest.mark.item("bnd-shell-2")
@pytest.mark.parametrize("row", NODES, ids=named)
def test_a_value_that_another_node_left_behind_runs_nothing(row: Row, tmp_path: Path) -> None:
    """Where bash evaluates a number that came from a file, the value is checked as it is used."""
    scripts = load_nodes([*row["nodes"], row["script"]])
    for number, value in enumerate(NODE_PAYLOADS):
        place = tmp_path / str(number)
        place.mkdir()
        assert not run_nodes(scripts, value, place), value


@pytest.mark.item("bnd-shell-2")
def test_a_value_that_is_not_a_number_fails_the_script_and_names_line_and_variable(
    tmp_path: Path,
) -> None:
    """The check ends the script before bash evaluates the value."""
    script = load_nodes(["n=$(cat file)\necho $((n + 1))\necho after"])[0]
    (tmp_path / "file").write_text("a[0]", encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", script.text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "line 2: n must be an integer" in done.stderr


@pytest.mark.item("archon-80")
@pytest.mark.parametrize(
    "script",
    [
        'echo "$src.output" | awk \'{ "echo " $1 | getline x }\'',
        'echo "$src.output" | awk \'{ system("echo " $1) }\'',
        "echo \"$src.output\" | sed 's/^/echo /e'",
        "echo \"$src.output\" | perl -ne 'print `echo $_`'",
        "python3 -c 'import os, sys; os.system(sys.argv[1])' \"$src.output\"",
        "python3 - \"$src.output\" <<'EOF'\nimport os, sys\nos.system(sys.argv[1])\nEOF",
    ],
)
def test_a_program_that_gets_a_value_and_starts_commands_causes_a_warning(script: str) -> None:
    """What other interpreters do with a value is not followed, so the author is warned."""
    plan, problems = load(f"true\n{script}")
    assert plan is not None
    assert [one.code for one in problems] == ["value-in-program"]
    assert problems[0].line in (_FIRST_LINE + 2, _FIRST_LINE + 3)


@pytest.mark.item("bnd-shell-3")
@pytest.mark.parametrize("row", BENIGN, ids=named)
def test_an_ordinary_script_loads_and_prints_what_it_should(row: Row, tmp_path: Path) -> None:
    """What is safe loads without an error, and does what its author meant."""
    plan, problems = load(row["script"])
    warned = [row["warns"]] if "warns" in row else []
    assert [one.code for one in problems] == warned
    assert all(one.severity == "warning" for one in problems)
    assert plan is not None
    for program in [row["needs"]] if "needs" in row else []:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    script = last_script(plan)
    values = dict.fromkeys(script.env, row["value"]) | {"ARTIFACTS_DIR": "artifacts"}
    with as_variables(values, script.text) as given_values:
        assert run_with(script, given_values.variables, tmp_path) == row["prints"]


@pytest.mark.item("bnd-shell-2")
@pytest.mark.parametrize("row", BENIGN, ids=named)
def test_an_ordinary_script_runs_nothing_of_a_hostile_value(row: Row, tmp_path: Path) -> None:
    """The same scripts with payloads in place of the values their authors had in mind."""
    plan, _ = load(row["script"])
    assert plan is not None
    run_payloads(plan, tmp_path, FEW_PAYLOADS)


@pytest.mark.item("bnd-shell-2")
def test_a_reserved_name_that_a_script_keeps_is_not_passed_on(tmp_path: Path) -> None:
    """Also where the script has a variable of that name from its environment."""
    script = load_nodes(['EDITOR=$src.output\nbash -c \'echo "$1 [$EDITOR]"\' _ "$EDITOR"'])[0]
    values = dict.fromkeys(script.env, "value") | {"EDITOR": "vi"}
    assert run_with(script, values, tmp_path) == "value []\n"


def compose(ways: Sequence[str], sink: str, around: str) -> str:
    """A script in which the value takes these ways to a place where it ends."""
    expression, lines = '"$src.output"', []
    for number, name in enumerate(ways):
        lines_of_way, expression = WAYS[name](expression, number)
        lines.append(lines_of_way)
    end = {**DATA, **SINKS}[sink](expression)
    return AROUND[around].format("\n".join([*lines, end]))


_ways = st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=3)
_around = st.sampled_from(sorted(AROUND))


@pytest.mark.item("bnd-shell-2")
@given(ways=_ways, sink=st.sampled_from(sorted(SINKS)), around=_around)
@settings(max_examples=150, deadline=None)
def test_no_combination_of_ways_lets_a_value_run(ways: list[str], sink: str, around: str) -> None:
    """Whatever way a value takes to a place that evaluates it, it is refused or harmless."""
    plan, _ = load(compose(ways, sink, around))
    if plan is not None:
        with TemporaryDirectory() as folder:
            run_payloads(plan, Path(folder), FEW_PAYLOADS)


@pytest.mark.item("bnd-shell-3")
@given(ways=_ways, sink=st.sampled_from(sorted(DATA)), around=_around)
@settings(max_examples=100, deadline=None)
def test_every_combination_of_ways_may_end_as_data(ways: list[str], sink: str, around: str) -> None:
    """A value that stays data is never refused, and arrives as it is."""
    plan, problems = load(compose(ways, sink, around))
    assert [one for one in problems if one.severity == "error"] == []
    assert plan is not None
    value = "a b$(touch x)'\""
    with TemporaryDirectory() as folder:
        said, _ = run(last_script(plan), value, Path(folder))
        assert said == f"[{value}]"
        assert not (Path(folder) / "x").exists()
