"""What a program inside a run tries in order to act as a person, for `test_only_people.py`.

Started as `python inside_attempts.py KIND` with a list of attempts on standard input; prints what
became of each as JSON. With `all`, the input is an object with a list for each kind.
"""

import contextlib
import http.client
import io
import json
import os
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module


def run_commands(lines: list[list[str]]) -> list[list[object]]:
    """Exit code, problem code and stderr of each command line, each in a process of its own."""
    from loopwright.cli.main import COMMANDS, main  # noqa: PLC0415 - only this kind needs it

    for one in {entry.module for entry in COMMANDS.values()} | {"inside_run"}:
        import_module(f"loopwright.cli.{one}")  # once, and not in each of the processes
    import_module("loopwright.operations.data_directory")
    ended: list[list[object]] = []
    for words in lines:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            out, err = io.StringIO(), io.StringIO()
            code: object = 0
            try:
                with redirect_stdout(out), redirect_stderr(err):
                    main([*words, *([] if words[0] == "mcp" else ["--json"])])
            except SystemExit as leave:
                code = leave.code
            except BaseException as error:
                err.write(repr(error))
            told = json.dumps([code, out.getvalue()[-2000:], err.getvalue()[-500:]])
            os.write(writing, told.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            ended.append(json.loads(pipe.read()))
        os.waitpid(child, 0)
    return ended


def send_requests(lines: list[list[object]]) -> list[list[object]]:
    """Status and body of each request: port, method, path, body, headers."""
    ended: list[list[object]] = []
    for port, method, path, body, headers in lines:
        connection = http.client.HTTPConnection("127.0.0.1", int(str(port)), timeout=60)
        data = None if body is None else json.dumps(body)
        given = {"Content-Type": "application/json", **dict(headers or {})}  # type: ignore[call-overload]
        connection.request(str(method), str(path), data, given)
        reply = connection.getresponse()
        ended.append([reply.status, reply.read().decode(errors="replace")])
        connection.close()
    return ended


def use_sockets(lines: list[list[str]]) -> list[str]:
    """The first line that comes from each socket after a line was sent to it."""
    ended: list[str] = []
    for path, line in lines:
        with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as incoming:
            sock.settimeout(60)
            try:
                sock.connect(path)
                with contextlib.suppress(BrokenPipeError):  # refused before anything was sent
                    sock.sendall(line.encode() + b"\n")
                ended.append(incoming.readline().decode())
            except OSError as error:
                ended.append(type(error).__name__)
    return ended


def read_files(paths: list[str]) -> list[bool]:
    """Whether each file can be read, and has something in it."""
    ended: list[bool] = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                ended.append(bool(file.read(1)))
        except OSError:
            ended.append(False)
    return ended


KINDS = {
    "commands": run_commands,
    "requests": send_requests,
    "sockets": use_sockets,
    "files": read_files,
}


def try_all(attempts: dict[str, list[object]]) -> dict[str, object]:
    """All kinds of attempts. Where Loopwright itself cannot be loaded, no command can be used."""
    ended: dict[str, object] = {}
    for kind, lines in attempts.items():
        try:
            ended[kind] = KINDS[kind](lines)  # type: ignore[operator]
        except (ImportError, OSError) as error:
            ended[kind] = type(error).__name__
    return ended


if __name__ == "__main__":
    given = json.load(sys.stdin)
    use = try_all if sys.argv[1] == "all" else KINDS[sys.argv[1]]
    sys.stdout.write(json.dumps(use(given)))  # type: ignore[operator]
