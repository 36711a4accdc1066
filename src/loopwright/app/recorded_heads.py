"""Export the recorded heads of all runs, and record a database anew after a backup was restored."""

from contextlib import closing
from pathlib import Path

from loopwright.app.opening import open_log
from loopwright.app.service import current_user
from loopwright.app.settings import Settings
from loopwright.errors import StorageError
from loopwright.ports import AuditRow
from loopwright.runtime.clock import wall_ms
from loopwright.stores.opening import rebuild_heads as rebuild
from loopwright.stores.place import heads_beside


def export_heads(settings: Settings, file: Path) -> int:
    """Write the newest hash of every run to a new file; answers how many runs there are."""
    with closing(open_log(settings)) as log:
        return log.export_heads(file)


def rebuild_heads(settings: Settings) -> tuple[int, Path]:
    """Take the database as it is; the audit log says who did. Answers how many runs it has."""
    if not settings.database.exists():
        raise StorageError(
            f"{settings.database} does not exist",
            code="no-log",
            hint="put a backup in its place first",
        )
    count = rebuild(settings.database)
    with closing(open_log(settings)) as log:
        who = current_user()
        row = AuditRow(at=wall_ms(), who=who, via="cli", action="heads.rebuilt", subject="")
        log.change(audit=[row])
    return count, heads_beside(settings.database)
