"""Parts of a content, and whether somebody has it already: RFC 9110, sections 13 and 14.

What cannot be understood is as if it had not been said: then the whole content is the answer.
"""

import re
from dataclasses import dataclass

from starlette.responses import Response

from loopwright.server.refusals import Refusal

MOST = 10  # entity tags that are looked at
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TAG = re.compile(r'(?:W/)?"[^"\x00-\x20\x7f-\xff]*"')


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a request says about the content that it wants."""

    range: str | None
    if_range: str | None
    if_none_match: str | None


def part_of(data: bytes, tag: str, wanted: Conditions) -> Response:
    """The content, a part of it, or nothing new."""
    etag = f'"{tag}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes"}
    if wanted.if_none_match is not None and _matches(wanted.if_none_match, etag):
        return Response(status_code=304, headers=headers)
    if wanted.range is None or wanted.if_range not in (None, etag):
        return Response(data, 200, headers)
    asked = _RANGE.fullmatch(wanted.range.strip())
    if asked is None or asked[0] == "bytes=-":
        return Response(data, 200, headers)
    first, last = _places(asked[1], asked[2], len(data))
    if first > last or first >= len(data):
        raise Refusal(
            416,
            "no-such-range",
            f"the content has {len(data)} bytes",
            headers={"Content-Range": f"bytes */{len(data)}", "ETag": etag},
        )
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], 206, headers)


def _places(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:  # so many from the end
        count = int(last)
        return (max(size - count, 0), size - 1) if count else (0, -1)
    return int(first), min(int(last), size - 1) if last else size - 1


def _matches(given: str, etag: str) -> bool:
    if given.strip() == "*":
        return True
    return any(tag.removeprefix("W/") == etag for tag in _TAG.findall(given)[:MOST])
