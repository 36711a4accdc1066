"""Reading what a request carries: bounded in bytes and in time, strict about JSON."""

import asyncio
import json
import math
import re
from collections import Counter
from typing import TypeVar, get_type_hints

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request

from loopwright.server.context import Limits
from loopwright.server.refusals import Refusal, bad_json
from loopwright.server.routes import Body, OptionalBody, Query
from loopwright.server.texts import check_texts

_B = TypeVar("_B", bound=Body)
_Q = TypeVar("_Q", bound=Query)
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_PLACE = re.compile(r" - at `\$([^`]*)`$")
_STEP = re.compile(r"\[(\d+)\]")
LONGEST_INT = 1_000


async def read_body(request: Request, limits: Limits, most: int) -> bytes:
    """The body, whole; refused when it is too large, too slow or packed."""
    headers = request.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "packed-body", "a packed body is not taken", hint="send it as it is")
    declared = headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _collect(request, most)
    except TimeoutError as error:
        raise Refusal(
            408,
            "too-slow",
            f"the body was not there within {limits.body_seconds:g} seconds",
            headers={"Connection": "close"},
        ) from error
    except ClientDisconnect as error:
        raise Refusal(400, "cut-off", "the body ended too early") from error


async def _collect(request: Request, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise _too_large(most)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(most: int) -> Refusal:
    return Refusal(
        413,
        "too-large",
        f"a body has at most {most:,} bytes here",
        headers={"Connection": "close"},
    )


def parse_body(raw: bytes, headers: Headers, kind: type[_B]) -> _B:
    """The body as the route wants it."""
    if not raw and issubclass(kind, OptionalBody):
        return kind()
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refusal(
            415, "not-json", "the body must be JSON", hint="send Content-Type: application/json"
        )
    value = strict_json(raw)
    if not isinstance(value, dict):
        raise Refusal(422, "bad-field", "the body must be a JSON object")
    try:
        body = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise unfit(str(error), "unknown-field") from error
    check_texts(value, kind.free)
    return body


def strict_json(raw: bytes) -> object:
    """JSON as its standard has it: no key twice, no NaN, no number without end."""
    if not raw.strip():
        raise bad_json("it is empty")
    try:
        text = raw.decode("utf-8")
        value: object = json.loads(
            text,
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_float,
            parse_int=_int,
        )
        if "\\ud" in text.lower():  # half of a pair is no text, and could be kept nowhere
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError as error:
        raise bad_json("it is no UTF-8") from error
    except UnicodeEncodeError as error:
        raise bad_json("a sign in it is only half there") from error
    except RecursionError as error:
        raise bad_json("it is nested too deep") from error
    except ValueError as error:
        raise bad_json(str(error)[:200]) from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:80]!a} stands twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):  # it would be kept as null
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _int(digits: str) -> int:
    if len(digits) > LONGEST_INT:
        raise ValueError(f"a number in it has more than {LONGEST_INT} digits")
    return int(digits)


def parse_query(params: QueryParams, kind: type[_Q]) -> _Q:
    """The parameters as the route wants them."""
    many = {name for name, hint in get_type_hints(kind).items() if "tuple" in str(hint)}
    given: dict[str, object] = {}
    for name in params:
        values = params.getlist(name)
        if name in many:
            given[name] = [one for value in values for one in value.split(",")]
        elif len(values) > 1:
            raise Refusal(422, "given-twice", f"{name[:80]!a} is given twice")
        else:
            given[name] = values[0]
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise unfit(str(error), "unknown-filter") from error


def unfit(message: str, unknown: str) -> Refusal:
    """What does not fit, with where it stands."""
    place = _PLACE.search(message)
    pointer = _pointer(place[1]) if place else ""
    words = message[: place.start()] if place else message
    found = _UNKNOWN.search(words)
    if found:
        name = found[1][:80]
        return Refusal(
            422,
            unknown,
            f"{name!a} is not known here",
            errors=[{"pointer": f"{pointer}/{name}", "code": unknown, "message": "unknown"}],
        )
    said = f"{words[:1].lower()}{words[1:]}"
    return Refusal(
        422,
        "bad-field",
        f"{pointer or 'the request'}: {said}",
        errors=[{"pointer": pointer, "code": "bad-field", "message": said}],
    )


def _pointer(path: str) -> str:
    """`.a[0].b` as `/a/0/b`; which key of a mapping it was, nobody says."""
    return _STEP.sub(r"/\1", path.replace("[...]", "")).replace(".", "/")
