"""The base of all requests. It imports little, because commands that only list use it."""

from typing import ClassVar

import msgspec


class Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What an operation is asked for. Control characters are refused in its texts, except in the
    fields that are `free`.
    """

    free: ClassVar[tuple[str, ...]] = ()
