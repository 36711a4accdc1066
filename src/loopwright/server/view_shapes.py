"""The shapes of what a run has to show, and of what one could come to."""

import msgspec

from loopwright.model.record import JsonValue


class Rehearsal(msgspec.Struct):
    """What a run could come to, the same as `run --dry-run --json` prints."""

    name: str
    dialect: str
    graph: list[dict[str, JsonValue]]
    endings: list[dict[str, JsonValue]]
    worst: dict[str, JsonValue]
    assumed: list[str]
    snapshots: dict[str, JsonValue]
    sandbox: str | None
    limits: list[str]  # which are enforced, and how
    warnings: list[str]  # programs that are missing where the run would start


class RunFigures(msgspec.Struct):
    """Time, calls, tokens and cost of each iteration, step and agent of a run."""

    run: str
    rounds: list[dict[str, JsonValue]]
    stages: list[dict[str, JsonValue]]
    roles: list[dict[str, JsonValue]]
    total: dict[str, JsonValue]
    trends: dict[str, str]


class RunOutput(msgspec.Struct):
    """All that one step or pass said."""

    run: str
    path: str
    output: str


class ActivityItem(msgspec.Struct):
    """One thing that an agent did. Long arguments and results are cut unless they are asked for
    in full; the byte counts are those of what is stored.
    """

    seq: int  # of the event that holds it
    number: int  # counts from 1 within the effect
    effect: str
    path: str
    iteration: int | None
    agent: str
    at: str
    kind: str
    tool: str
    target: str
    ok: bool | None
    code: int | None
    ms: int | None
    text: str
    arguments: str
    arguments_bytes: int
    result: str
    result_bytes: int


class ActivityPage(msgspec.Struct):
    """What agents did in a run, in order. Ask again after `next`, which is None at the newest;
    `dropped` counts entries beyond the limit of their calls, which are not stored, and
    `dropped_by_call` the same for each call (its effect), on this page.
    """

    run: str
    entries: list[ActivityItem]
    dropped: int
    dropped_by_call: dict[str, int]
    seq: int
    next: int | None


class ChangedFile(msgspec.Struct):
    """A file that differs between two snapshots."""

    path: str
    status: str
    insertions: int
    deletions: int
    binary: bool
    old_path: str | None


class RunDiff(msgspec.Struct):
    """What differs between two snapshots of a run; `from` and `to` are their trees. `unrecorded`:
    the run may have changed more after its last snapshot, as `unrecorded_note` says.
    `omitted` names files that snapshots left out because of their size or kind, the first 100 of
    `omitted_count`.
    """

    run: str
    old: str = msgspec.field(name="from")
    new: str = msgspec.field(name="to")
    unrecorded: bool
    unrecorded_note: str | None
    omitted: list[str]
    omitted_count: int
    files: int
    insertions: int
    deletions: int
    changes: list[ChangedFile]
    diff: str | None


class RunCertificate(msgspec.Struct):
    """What decided a run, as its events tell; `head` is that of the hash chain over them."""

    run: str
    outcome: str | None
    reason: str
    checks: list[dict[str, JsonValue]]
    protected: dict[str, JsonValue]
    changed_dependencies: list[dict[str, JsonValue]]
    first_tree: str | None
    final_tree: str | None
    events: int
    head: str


class LogEntry(msgspec.Struct):
    """One thing that was said."""

    kind: str
    seq: int
    path: str
    iteration: int | None
    title: str
    text: str


class LogPage(msgspec.Struct):
    """What was said in a run, in order; ask again after `next`, which is None at the newest."""

    run: str
    entries: list[LogEntry]
    seq: int
    next: int | None
