"""Files that are no text: which kinds there are, and which chat models can look at them."""

import re
from typing import Literal, TypeAlias

from loopwright.model.plan import CHAT, Agent

Medium: TypeAlias = Literal["image", "pdf"]

MEDIA_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".webp": "image/webp",
}

# All current models of these services look at both. Elsewhere the name of a model tells.
_BOTH = ("anthropic", "google")
_OPENAI = ("openai", "openai-responses")
_TEXT_ONLY = re.compile(r"gpt-3|gpt-4(?!o|\.|-turbo|-vision)|o1-mini|o3-mini|instruct|davinci")
_SEES = re.compile(
    r"vision|-vl\b|vl:|\bvl|llava|pixtral|gemma-?3|llama-?4|minicpm-v|moondream|claude|gemini"
    r"|gpt-4o|gpt-4\.|gpt-5|grok-4|mistral-(small|medium)-(3|2[5-9])",
    re.IGNORECASE,
)


def media_type(name: str) -> str | None:
    """The media type of an image or a PDF by the name of its file; None for any other file."""
    dot = name.rfind(".")
    return MEDIA_TYPES.get(name[dot:].lower()) if dot >= 0 else None


def can_see(agent: Agent, media: str) -> bool:
    """Whether an agent can be given a file of this media type as a part of its prompt. An agent
    with several models is given one only if all of them can look at it.
    """
    if not agent.is_chat:
        return False
    medium: Medium = "pdf" if media == "application/pdf" else "image"
    models = (agent.spec or "").removeprefix(CHAT).split(",")
    return all(_model_sees(one.strip(), medium) for one in models)


def _model_sees(model: str, medium: Medium) -> bool:
    provider, _, name = model.partition("/")
    if provider in _BOTH:
        return True
    if provider in _OPENAI:
        return _TEXT_ONLY.search(name) is None
    if provider == "openrouter" and medium == "pdf":
        return True  # it reads them for models that cannot
    return medium == "image" and _SEES.search(name) is not None
