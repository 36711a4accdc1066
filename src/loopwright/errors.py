"""Every exception that the product raises on purpose, with a stable code.

    LoopwrightError
    ├── DefinitionError      a definition or argument was refused; carries the problems
    ├── InputError           a parameter of a request was refused
    ├── NotFound             a run, gate or definition of that name does not exist
    ├── Conflict             another caller was first, or the state does not allow it
    │   └── VersionConflict  an append expected another version of the run
    ├── NotAllowed           the caller may not do this
    │   └── NotSignedIn      the caller is unknown
    ├── Unreachable          a server does not answer
    ├── ServerFailed         a server returned a response that is not valid
    ├── CannotServe          this machine does not let a server start
    ├── ServerDraining       a server that is about to stop accepts no new work
    └── StorageError         the data directory cannot be used (newer, damaged, busy, full)

Exceptions are for broken input and broken environments. What may happen in a healthy run (a
failing agent, a check that cannot run, a limit) is a value or an event, never an exception.
"""

from collections.abc import Sequence


class LoopwrightError(Exception):
    """Root of the tree; `code` is a slug that scripts may rely on."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class DefinitionError(LoopwrightError):
    """A definition was refused; `problems` holds one entry for each thing found."""

    code = "bad-definition"

    def __init__(self, message: str, *, problems: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class InputError(LoopwrightError):
    """A parameter of a request is unknown, missing or has a value that cannot be used."""

    code = "bad-value"
    pointer = ""
    """Where in the request it is, as a JSON pointer."""


class NotFound(LoopwrightError):
    """Nothing of that name exists."""

    code = "not-found"


class Conflict(LoopwrightError):
    """The state does not allow it, or another caller was first."""

    code = "conflict"


class VersionConflict(Conflict):
    """An append expected a version that is no longer the newest."""

    code = "version-conflict"


class NotAllowed(LoopwrightError):
    """The caller may not do this."""

    code = "not-allowed"


class NotSignedIn(NotAllowed):
    """The caller has not shown who they are, or not so that it counts."""

    code = "not-signed-in"


class Unreachable(LoopwrightError):
    """A server does not answer."""

    code = "unreachable"


class ServerFailed(LoopwrightError):
    """A server answered, but not as it should."""

    code = "server-failed"


class CannotServe(LoopwrightError):
    """A server cannot start here as it was asked to."""

    code = "cannot-serve"


class ServerDraining(LoopwrightError):
    """A server that is about to stop accepts no new work."""

    code = "draining"


class StorageError(LoopwrightError):
    """The data directory cannot be used as it is."""

    code = "storage"


RESTORE_HINT = "restore a backup, or move it away to start with an empty one; nothing was changed"
"""What helps when stored data is damaged."""
