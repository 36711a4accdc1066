"""Socket.IO, below its own path; what is said on it is in `server/sockets`."""

from contextlib import AbstractAsyncContextManager

from starlette.types import ASGIApp

from loopwright.server.context import Context
from loopwright.server.routes import Family, Mount
from loopwright.server.sockets.door import Sockets
from loopwright.server.sockets.line import PATH


def _make(context: Context) -> ASGIApp:
    return context.part(Sockets).line.app()


def _living(context: Context) -> AbstractAsyncContextManager[None]:
    return context.part(Sockets).living()


FAMILY = Family(
    name="sockets",
    prefix=PATH,
    mounts=(Mount(path=PATH, make=_make),),
    living=_living,
)
