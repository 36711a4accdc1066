"""The ways a store says no to an append that is well formed. One wording for every store."""

from loopwright.errors import Conflict, NotFound, StorageError, VersionConflict
from loopwright.ports import Append


def stale(append: Append, version: int) -> VersionConflict:
    """The run is at another version than the writer thought."""
    if not version:
        return VersionConflict(
            f"{append.run} does not exist; the append expected version {append.expected}"
        )
    return VersionConflict(
        f"{append.run} is at version {version}; the append expected {append.expected}",
        hint="read the newer facts and decide again",
    )


def fenced(run: str) -> Conflict:
    """The writer no longer drives the run, or never did."""
    return Conflict(
        f"{run} is driven by another process now",
        code="fenced",
        hint="stop driving it; its owner stands in the row of the run",
    )


def key_taken(key: str, holder: str) -> Conflict:
    """Another open run has the key."""
    return Conflict(
        f"{holder} is already open for {key}",
        code="key-taken",
        hint=f"wait for {holder} or stop it first",
    )


def gate_taken(gate: str, run: str) -> Conflict:
    """An open gate of another run has the same id."""
    return Conflict(f"gate {gate} is already open in {run}", code="gate-taken")


def no_run(run: str) -> NotFound:
    """No run has this id."""
    return NotFound(f"no run {run!r}", hint="`loopwright ls` lists them")


def no_blob(digest: str) -> NotFound:
    """No content has this hash."""
    return NotFound(f"no stored content {digest!a}")


def closed() -> StorageError:
    """The log was closed before the call."""
    return StorageError("the log is closed", code="closed")
