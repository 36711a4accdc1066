"""Promises of a workflow that are checked: nodes that change no files, and evidence of a run."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.workflows import Troupe


@pytest.fixture
def checkout(troupe: Troupe) -> Path:
    """A Git repository with one commit in the folder of the run."""
    folder = troupe.lw.folder
    (folder / "kept.txt").write_text("kept\n")
    (folder / ".gitignore").write_text("*.log\nflow.yaml\nreplies.yaml\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def quiet(bash: str, **more: Any) -> dict[str, Any]:
    return {"id": "look", "bash": bash, "mutates_checkout": False, **more}


CHANGES = {
    "new file": ("echo x > new.txt", "new.txt"),
    "changed file": ("echo x >> kept.txt", "kept.txt"),
    "removed file": ("rm kept.txt", "kept.txt"),
    "link instead of a file": ("ln -sf /etc/hosts kept.txt", "kept.txt"),
    "file with a blank in its name": ("echo x > 'a b.txt'", "a b.txt"),
    "commit": (
        "git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m x",
        "HEAD",
    ),
}


@pytest.mark.item("archon-86")
@pytest.mark.parametrize(("bash", "named"), CHANGES.values(), ids=CHANGES.keys())
def test_guarded_node_when_it_changes_the_checkout_fails_and_names_it(
    troupe: Troupe, checkout: Path, bash: str, named: str
) -> None:
    """The node fails although its script succeeded, and nodes behind it do not run."""
    told = troupe.run(quiet(bash), {"id": "after", "depends_on": ["look"], "bash": "true"})
    step = told["steps"]["look"]
    assert (told["status"], step["status"]) == ("failed", "failed")
    assert f"mutates_checkout is false, but these changed: {named}" in step["error"]["detail"]
    assert told["steps"]["after"]["status"] == "skipped"


KEEPS = {
    "reads": "cat kept.txt",
    "ignored file": "echo x > run.log; cat kept.txt",
    "artifact": 'echo x > "$ARTIFACTS_DIR/note.md"; cat kept.txt',
    "state": "mkdir -p .archon/state && echo x > .archon/state/n; cat kept.txt",
    "puts it back": "echo x > kept.txt; echo kept > kept.txt; cat kept.txt",
}


@pytest.mark.item("archon-86")
@pytest.mark.parametrize("bash", KEEPS.values(), ids=KEEPS.keys())
def test_guarded_node_when_the_checkout_is_the_same_completes(
    troupe: Troupe, checkout: Path, bash: str
) -> None:
    """Its output is that of its script, also for nodes that need it. What was changed before it
    does not count.
    """
    (checkout / "before.txt").write_text("not committed\n")
    told = troupe.run(
        quiet(bash), {"id": "after", "depends_on": ["look"], "bash": "echo got $look.output"}
    )
    assert (told["status"], told["output"]) == ("completed", "got kept")


@pytest.mark.item("archon-86")
def test_guarded_agent_when_it_changes_the_checkout_fails(troupe: Troupe, checkout: Path) -> None:
    """A prompt node is held to it as a script is."""
    program = checkout.parent / "writes.sh"
    program.write_text("#!/bin/sh\ncat > new.txt\necho done\n")
    program.chmod(0o755)
    troupe.agent = f"command:{program}"
    told = troupe.run({"id": "look", "prompt": "Look.", "mutates_checkout": False})
    detail = told["steps"]["look"]["error"]["detail"]
    assert "these changed: new.txt" in detail
    assert (told["status"], (checkout / "new.txt").exists()) == ("failed", True)


@pytest.mark.item("archon-86")
def test_guarded_node_outside_of_a_repository_is_not_checked(troupe: Troupe) -> None:
    """There is no checkout to compare."""
    told = troupe.run(quiet("echo x > new.txt; echo done"))
    assert (told["status"], told["output"]) == ("completed", "done")


@pytest.mark.item("archon-86")
def test_guarded_node_beside_one_that_may_write_is_not_blamed_for_it(
    troupe: Troupe, checkout: Path
) -> None:
    """The nodes of such a graph run one at a time."""
    told = troupe.run(
        quiet("sleep 0.3; echo looked"), {"id": "write", "bash": "echo x > new.txt; echo wrote"}
    )
    assert told["status"] == "completed", told["error"]


@pytest.mark.item("archon-87")
@pytest.mark.parametrize(
    ("policy", "bash", "ended"),
    [
        ({"required": True}, "true", "failed"),
        ({"required": True}, 'echo "{}" > "$ARTIFACTS_DIR/evidence.json"', "completed"),
        ({"required": True}, 'touch "$ARTIFACTS_DIR/evidence.json"', "completed"),
        ({"required": False}, "true", "completed"),
        ({}, "true", "completed"),
    ],
)
def test_run_whose_policy_requires_evidence_fails_without_it(
    troupe: Troupe, policy: dict[str, Any], bash: str, ended: str
) -> None:
    """Only the presence of the file decides; the message has its path."""
    told = troupe.run({"id": "a", "bash": f"{bash}; echo out"}, evidence_policy=policy)
    assert told["status"] == ended
    if ended == "failed":
        assert (
            "/evidence.json, which does not exist"
            in told["steps"]["evidence_policy"]["error"]["detail"]
        )
    else:
        assert told["output"] == "out"


@pytest.mark.item("archon-87")
@pytest.mark.parametrize(
    ("first", "second", "output"), [("one", "two", "one"), ("", "two", "two"), ("", "", "")]
)
def test_output_of_a_run_with_evidence_is_that_of_the_first_end_that_printed(
    troupe: Troupe, first: str, second: str, output: str
) -> None:
    """The step that looks for the evidence does not hide the output of the workflow."""
    file = '"$ARTIFACTS_DIR/evidence.json"'
    told = troupe.run(
        {"id": "a", "bash": f"touch {file}; printf '%s' '{first}'"},
        {"id": "b", "bash": f"printf '%s' '{second}'"},
        {"id": "c", "bash": "true"},
        evidence_policy={"required": True},
    )
    assert (told["status"], told["output"]) == ("completed", output)


@pytest.mark.item("archon-54")
def test_unreadable_condition_when_a_node_is_skipped_is_shown_as_it_is_written(
    troupe: Troupe,
) -> None:
    """The reason quotes the condition, and nothing of how it is stored."""
    told = troupe.told(
        {"id": "a", "bash": "echo one"},
        {"id": "b", "depends_on": ["a"], "when": "$a.output =~ 'x'", "bash": "echo two"},
    )
    step = told.json["steps"]["b"]
    assert (step["status"], step["error"]["detail"]) == (
        "skipped",
        "$a.output =~ 'x' is not a condition",
    )
