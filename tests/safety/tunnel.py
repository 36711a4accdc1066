"""A tunnel whose open files cannot be listed, as those of `sshd` cannot, outside of all runs.

Started as `python tunnel.py PORT SOCKET`; prints the port on which it listens, and passes on to
PORT what arrives there, or at that port of the address `::1`. On the Unix socket it accepts
connections, and receives nothing.
"""

import asyncio
import contextlib
import ctypes
import socket
import sys

_PR_SET_DUMPABLE = 4


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _serve(port: int, unread: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer), return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    with contextlib.suppress(OSError):  # pages ask the port from which they came
        await asyncio.start_server(connected, "::1", port)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    with socket.socket(socket.AF_UNIX) as queue:
        queue.bind(unread)
        queue.listen(100)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
