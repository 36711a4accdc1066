"""A server with a few runs, and a client for each address of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.client.client import (
    Address,
    CommandClient,
    LocalServer,
    RemoteServer,
    ThisProcess,
    open_client,
)
from tests.http.served import Served, served

ADDRESSES = ("this process", "the local server", "a remote server")


def address_of(server: Served, name: str) -> Address:
    """How a client reaches the data directory of a server."""
    settings = server.context.settings
    if name == "this process":
        return ThisProcess(settings)
    if name == "the local server":
        return LocalServer(settings)
    return RemoteServer(f"http://127.0.0.1:{server.port}", server.token)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that commands of its data directory find."""
    folder: Path = tmp_path_factory.mktemp("client")
    with served(folder, held=True) as one:
        yield one


@pytest.fixture(params=ADDRESSES)
def client(request: pytest.FixtureRequest, server: Served) -> Iterator[CommandClient]:
    """A client for each address."""
    with CommandClient(open_client(address_of(server, request.param))) as one:
        yield one


@pytest.fixture
def clients(server: Served) -> Iterator[dict[str, CommandClient]]:
    """A client for every address, for comparisons."""
    found = {name: CommandClient(open_client(address_of(server, name))) for name in ADDRESSES}
    yield found
    for one in found.values():
        one.__exit__(None, None, None)
