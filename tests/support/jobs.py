"""Jobs of effects for tests: fields of all parts are given by their names."""

from __future__ import annotations

from typing import Any

from loopwright.kernel.references import CallPrompt
from loopwright.ports import ChatTurn, EffectJob, JobLimits, JobOrigin, ProgramConfinement

PARTS: dict[str, Any] = {
    "origin": JobOrigin,
    "prompt": CallPrompt,
    "chat": ChatTurn,
    "limits": JobLimits,
    "confinement": ProgramConfinement,
}


def effect_job(**fields: Any) -> EffectJob:
    """A job; `prompt` is its text."""
    given = {("text" if name == "prompt" else name): value for name, value in fields.items()}
    parts = {}
    for name, record in PARTS.items():
        own = {one: given.pop(one) for one in record.__struct_fields__ if one in given}
        parts[name] = record(**own)
    return EffectJob(**given, **parts)
