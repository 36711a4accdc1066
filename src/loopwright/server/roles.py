"""The guard of roles, for every transport: who may not is told so, and it is on record."""

import contextlib

from loopwright.app.access import Role, Who, require
from loopwright.errors import NotAllowed, StorageError
from loopwright.server.context import Context


def admit(context: Context, who: Who, role: Role, what: str) -> None:
    """NotAllowed unless somebody has this role or more; `what` is what they wanted."""
    try:
        require(who, role)
    except NotAllowed:
        with contextlib.suppress(StorageError):  # the answer is no, with or without a record of it
            row = context.access.row(who.name, "denied", what, f"needs {role}, has {who.role}")
            context.cards.change(audit=[row])
        raise
