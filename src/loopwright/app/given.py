"""Files that were given to runs and sessions, for commands that open a home by themselves."""

from loopwright.app.access import Access
from loopwright.app.service import Service
from loopwright.app.settings import Settings
from loopwright.app.uploads import Uploads
from loopwright.stores import SqliteLog, SqliteTrackers


def uploads_in(settings: Settings, service: Service) -> Uploads:
    """The files of a home that is open already."""
    trackers = SqliteTrackers(_log(service))
    return Uploads(home=settings.home, trackers=trackers, clock=service.clock)


def access_in(service: Service) -> Access:
    """Who does what there."""
    return Access(_log(service), service.clock)


def _log(service: Service) -> SqliteLog:
    assert isinstance(service.log, SqliteLog), "a home has its log in a file"
    return service.log
