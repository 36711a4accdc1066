"""Connect standard input and output to a server on a socket: `pump.py SOCKET TOKENFILE`.

Coding agents start this file as an MCP server. It sends the token of its stage to the socket of
the engine and copies bytes both ways. It needs only the standard library, because it runs
inside of sandboxes.
"""

import os
import socket
import sys
import threading

CHUNK = 65_536


def main(place: str, token_file: str) -> None:
    """Copy until one side has ended."""
    with open(token_file, "rb") as file:
        token = file.read().strip()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(place)
        line.sendall(token + b"\n")
        threading.Thread(target=_give, args=(line,), daemon=True).start()
        while data := line.recv(CHUNK):
            _write(data)


def _give(line: socket.socket) -> None:
    """Text of the agent, to the engine."""
    try:
        while data := os.read(0, CHUNK):
            line.sendall(data)
        line.shutdown(socket.SHUT_WR)
    except OSError:
        os._exit(0)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
