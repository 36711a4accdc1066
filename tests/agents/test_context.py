"""Files of the workspace below a prompt: read there alone, and never a reason to fail."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loopwright.agents.files import LEAST_BYTES, MAX_FILE_BYTES, with_files
from loopwright.kernel.event_parts import AgentCall
from loopwright.model.chat import UserMessage
from loopwright.model.plan import Agent
from loopwright.ports import EffectJob
from tests.support.jobs import effect_job


def job(workspace: Path, *files: str, prompt: str = "Do it.") -> EffectJob:
    return effect_job(
        run="run_1",
        effect="a/agent#1",
        path="a",
        iteration=1,
        attempt=1,
        call=AgentCall(agent="w"),
        workspace=str(workspace),
        token="t",
        prompt=prompt,
        files=files,
    )


def test_without_files_nothing_changes(tmp_path: Path) -> None:
    """The prompt stays as it is, byte for byte."""
    plain = job(tmp_path)
    assert with_files(plain) is plain


def test_files_are_below_the_task(tmp_path: Path) -> None:
    """In the order in which they are named, each under its name."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("first")
    (tmp_path / "b.txt").write_text("second")
    assert with_files(job(tmp_path, "docs/a.md", "b.txt")).prompt.text == (
        "Do it.\n\n## Context Files\n\n### docs/a.md\n\nfirst\n\n### b.txt\n\nsecond"
    )


@pytest.mark.parametrize("name", ["../secret", "link", "missing", "binary", "large"])
def test_what_cannot_be_shown_is_reported(tmp_path: Path, name: str) -> None:
    """Outside, by a link, not there, no text, too large: the agent is told and is called."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    (tmp_path / "secret").write_text("TOP SECRET")
    (workspace / "link").symlink_to(tmp_path / "secret")
    (workspace / "binary").write_bytes(b"\xff\xfe\x00")
    with (workspace / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    prompt = with_files(job(workspace, name)).prompt.text
    assert f"### {name}\n\n(not shown: " in prompt
    assert "TOP SECRET" not in prompt


def test_long_files_are_cut(tmp_path: Path) -> None:
    """The whole prompt keeps its cap; of each file at least its beginning is shown."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name * 200_000)
    prompt = with_files(job(tmp_path, "a", "b")).prompt.text
    assert len(prompt) < 125_000
    assert prompt.count("[… truncated") == 2
    assert "b" * LEAST_BYTES in prompt


@pytest.mark.item("zenflow-80")
@pytest.mark.parametrize(
    ("spec", "attached"),
    [
        ("model:openai/gpt-5", ["logo.png", "spec.pdf"]),
        ("model:ollama/llava", ["logo.png"]),
        ("model:ollama/llama3", []),
    ],
)
def test_images_and_pdfs_are_parts_for_models_that_can_see_them(
    tmp_path: Path, spec: str, attached: list[str]
) -> None:
    """The others are given the names; a file that is not what its name says is not attached."""
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    (tmp_path / "spec.pdf").write_bytes(b"%PDF-1.7\n\xff")
    (tmp_path / "fake.png").write_bytes(b"\xff\xfe")
    asked = job(tmp_path, "logo.png", "spec.pdf", "fake.png")
    asked = replace(asked, agent=Agent(spec=spec))
    asked.chat = replace(asked.chat, messages=(UserMessage(text="Look."),))
    [first] = with_files(asked).chat.messages
    assert isinstance(first, UserMessage)
    assert [one.name for one in first.files] == attached
    for name in ("logo.png", "spec.pdf", "fake.png"):
        shown = first.text.partition(f"### {name}\n\n")[2]
        assert shown.startswith("(attached as" if name in attached else "(not shown: ")
