"""Which chat models can look at images and PDFs."""

import pytest

from loopwright.model.chat import can_see, media_type
from loopwright.model.plan import Agent

PDF, PNG = "application/pdf", "image/png"


@pytest.mark.item("zenflow-80")
@pytest.mark.parametrize(
    ("spec", "images", "pdfs"),
    [
        ("model:anthropic/claude-sonnet-4-5", True, True),
        ("model:google/gemini-2.5-flash", True, True),
        ("model:openai/gpt-5", True, True),
        ("model:openai-responses/gpt-4.1", True, True),
        ("model:openai/gpt-3.5-turbo", False, False),
        ("model:openai/gpt-4", False, False),
        ("model:openrouter/deepseek/deepseek-chat", False, True),
        ("model:openrouter/anthropic/claude-sonnet-4-5", True, True),
        ("model:ollama/llava:13b", True, False),
        ("model:ollama/qwen2.5vl:7b", True, False),
        ("model:ollama/llama3", False, False),
        ("model:local/tiny", False, False),
        ("model:openai/gpt-5,ollama/llama3", False, False),
        ("claude", False, False),
        ("command:true", False, False),
    ],
)
def test_models_that_can_look_at_files(spec: str, images: bool, pdfs: bool) -> None:
    """By the service, or by the name of the model; of several models all must be able to."""
    agent = Agent(spec=spec)
    assert (can_see(agent, PNG), can_see(agent, PDF)) == (images, pdfs)


@pytest.mark.parametrize(
    ("name", "media"),
    [("a/b.PNG", PNG), ("x.pdf", PDF), ("y.jpeg", "image/jpeg"), ("z.md", None), ("png", None)],
)
def test_media_types_by_the_name_of_a_file(name: str, media: str | None) -> None:
    """Images and PDFs; everything else is text or nothing."""
    assert media_type(name) == media
