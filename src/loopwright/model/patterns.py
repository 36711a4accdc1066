"""Regular expressions that are compiled when they are first used.

A command uses few of them, and compiling all when their modules are imported took as long as
importing the kernel.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any


class LazyPattern:
    """A pattern with the functions of `re.Pattern`, which take the place of these at first use."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern = pattern
        self._flags = flags

    def _compiled(self) -> re.Pattern[str]:
        compiled = re.compile(self.pattern, self._flags)
        for name in ("search", "match", "fullmatch", "finditer", "findall", "split", "sub"):
            setattr(self, name, getattr(compiled, name))
        return compiled

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._compiled().search(text, start)

    def match(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._compiled().match(text, start)

    def fullmatch(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._compiled().fullmatch(text, start)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._compiled().finditer(text)

    def findall(self, text: str) -> list[Any]:
        return self._compiled().findall(text)

    def split(self, text: str, maxsplit: int = 0) -> list[str]:
        return self._compiled().split(text, maxsplit)

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        return self._compiled().sub(replacement, text)
