"""Parts of facts: what they are made of, and what all of them have."""

import msgspec

from loopwright.model.policy import FailureKind
from loopwright.model.record import Text


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a call used, as far as it was told."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0  # calls whose price nobody knows: what was spent is more than `usd` says
    cache_read_tokens: int = 0  # part of the input tokens
    cache_write_tokens: int = 0  # part of the input tokens

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            usd=round(self.usd + other.usd, 9),
            unpriced=self.unpriced + other.unpriced,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        """The difference, to replace one amount by another: parts of it may be negative."""
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            usd=round(self.usd - other.usd, 9),
            unpriced=self.unpriced - other.unpriced,
            cache_read_tokens=self.cache_read_tokens - other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens - other.cache_write_tokens,
        )


NO_USAGE = Usage()


class ToolUse(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool that an agent has used, and with what, as JSON text; secrets are masked."""

    name: str
    input: str = ""


class DiffStat(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How many files and lines differ between two snapshots."""

    files: int = 0
    insertions: int = 0
    deletions: int = 0


NO_DIFF = DiffStat()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The state of a workspace at one moment. `tree` is the id of a Git tree in the repository of
    the data directory.
    """

    tree: str
    changed: DiffStat = NO_DIFF  # since the previous snapshot of the run
    total: DiffStat = NO_DIFF  # since the first snapshot of the run
    paths: tuple[str, ...] = ()  # changed since the previous snapshot, the first 100 of them
    omitted: tuple[str, ...] = ()  # left out because of size or kind, the first 100 of them
    omitted_count: int = 0
    protected: tuple[str, ...] = ()  # protected files that differ from the baseline, the first 100
    protected_count: int = 0
    watched: tuple[str, ...] = ()  # files that a check names, changed since the previous snapshot
    outside: tuple[tuple[str, str], ...] = ()  # those that no snapshot has, with their state


class Worktree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The Git worktree that a run works in, and where it came from."""

    repository: str  # the folder of the user's checkout
    folder: str  # the root of the worktree
    branch: str
    base: str  # the commit that the branch started from
    uncommitted: int = 0  # files of the checkout that differed from that commit and are not in it


class ActivityNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that an agent did during a call, as the log stores it. `number` counts from 1
    within the call. Secrets are masked; long arguments and results are stored by content.
    """

    number: int
    at: int
    kind: str  # tool, command, edit, read, fetch, status, denied, stderr, warning
    tool: str = ""
    target: str = ""
    ok: bool | None = None
    code: int | None = None
    ms: int | None = None
    text: str = ""
    arguments: Text = ""
    result: Text = ""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why something did not work, in a form that a policy can read and a person too."""

    type: FailureKind | str
    detail: str = ""
    retry_after_ms: int | None = None
    resets_at: int | None = None  # when a used-up allowance is renewed; milliseconds, epoch
    outer: bool = False  # a limit around the call ended it, not a limit of the call itself


class Fact(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False
):
    """Base of all facts. They hold plain data and never each other: none is part of a circle."""

    at: int


class PlaceFact(Fact, frozen=True, kw_only=True):
    """A fact that belongs to a place in the run."""

    path: str
    iteration: int | None = None
