"""Parts of facts: what they are made of, and what all of them have."""

import msgspec

from loopwright.model.policy import FailureKind


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a call used, as far as it was told."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0  # calls whose price nobody knows: what was spent is more than `usd` says


NO_USAGE = Usage()


class ToolUse(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool that an agent has used, and with what, as JSON text; secrets are masked."""

    name: str
    input: str = ""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why something did not work, in a form that a policy can read and a person too."""

    type: FailureKind | str
    detail: str = ""
    retry_after_ms: int | None = None
    resets_at: int | None = None  # when a used-up allowance is renewed; milliseconds, epoch


class Fact(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False
):
    """Base of all facts. They hold plain data and never each other: none is part of a circle."""

    at: int


class PlaceFact(Fact, frozen=True, kw_only=True):
    """A fact that belongs to a place in the run."""

    path: str
    iteration: int | None = None
