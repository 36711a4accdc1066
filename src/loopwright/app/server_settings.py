"""MCP servers as the settings describe them: what may stand there, told when they are read."""

from collections.abc import Iterator, Mapping
from typing import cast

from loopwright.model.record import JsonValue
from loopwright.tools.offering import server_name_problem

MCP = "mcp"
PROGRAM_KEYS = frozenset({"command", "args", "pass_env"})
ADDRESS_KEYS = frozenset({"url", "bearer_env", "header_env"})
_EXAMPLE = 'write command = ["PROGRAM", "ARG"] or url = "https://…"'

Servers = dict[str, Mapping[str, JsonValue]]


class BadServers(Exception):
    """What is wrong with the first of them, and what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def read_servers(value: object) -> Servers:
    """A table for each server, with a command or an address."""
    if not isinstance(value, dict):
        raise BadServers(f"{MCP} is not a table", f"write [{MCP}.NAME] with command or url")
    for name, one in value.items():
        for message, hint in _problems(name, one):
            raise BadServers(f"{MCP}.{name} {message}", hint)
    return cast("Servers", value)


def _problems(name: str, one: object) -> Iterator[tuple[str, str]]:
    bad_name = server_name_problem(name)
    if bad_name is not None:
        yield f"cannot be: {bad_name}", f"write [{MCP}.my-{name.strip('.') or 'server'}]"
    if not isinstance(one, dict) or not (one.get("command") or one.get("url")):
        yield "has neither command nor url", _EXAMPLE
        return
    unknown = sorted(set(one) - PROGRAM_KEYS - ADDRESS_KEYS)
    if unknown:
        known = ", ".join(sorted(PROGRAM_KEYS | ADDRESS_KEYS))
        yield f"has an unknown {unknown[0]!r}", f"it may have {known}"
    if "command" in one and "url" in one:
        yield "has both command and url", "a server is a program or has an address: keep one"
    yield from _out_of_place(one)
    yield from _wrong_kinds(one)


def _out_of_place(one: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Keys that would do nothing beside the others."""
    kind, others = ("command", ADDRESS_KEYS) if "command" in one else ("url", PROGRAM_KEYS)
    for key in sorted(others & set(one)):
        yield f"has {kind}, which knows no {key}", f"remove {key}"


def _wrong_kinds(one: dict[str, object]) -> Iterator[tuple[str, str]]:
    command = one.get("command")
    if command is not None and not isinstance(command, str) and not _is_words(command):
        yield "command must be a list of texts", 'write command = ["PROGRAM", "ARG"]'
    for key in ("args", "pass_env"):
        if key in one and not _is_words(one[key]):
            yield f"{key} must be a list of texts", f'write {key} = ["…"]'
    for key in ("url", "bearer_env"):
        if key in one and not isinstance(one[key], str):
            yield f"{key} must be text", f'write {key} = "…"'
    url = one.get("url")
    if isinstance(url, str) and not url.startswith(("http://", "https://")):
        yield f"url is {url!r}, which is no address", 'write url = "https://…"'
    headers = one.get("header_env", {})
    if not isinstance(headers, dict) or not _is_words(list(headers.values())):
        yield "header_env must name a variable for each header", 'write header_env = {"X-A" = "A"}'


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)
