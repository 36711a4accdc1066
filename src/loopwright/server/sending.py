"""Sending a webhook: one connection to the address that was looked at, and no redirect."""

import http.client
import socket
import ssl

from loopwright.server.outgoing import Target

SECONDS = 15.0
MOST_READ = 65_536


def send(target: Target, headers: dict[str, str], body: bytes) -> int:
    """Post a body; the status. A redirect is an answer like any other, and is not followed."""
    line = _Pinned(target)
    try:
        line.request("POST", target.path, body, headers)
        reply = line.getresponse()
        reply.read(MOST_READ)
        return reply.status
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        line.close()


class _Pinned(http.client.HTTPConnection):
    """Connects to an address, and speaks to a name."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.host, target.port, timeout=SECONDS)
        self._target = target

    def connect(self) -> None:
        """The name is not resolved again: it could mean something else by now."""
        plain = socket.create_connection((self._target.address, self._target.port), SECONDS)
        if self._target.scheme == "https":
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(plain, server_hostname=self._target.host)
        else:
            self.sock = plain
