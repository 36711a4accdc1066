"""Where the values of a script can be: in variables, parameters, functions and files.

A script is read again and again until no new place is found, so the order of its lines plays no
part: a variable that holds a value on one line holds it on all, except where `proven` says that the
shell has replaced or tested it.
"""

import re
from dataclasses import dataclass, field, replace

from loopwright.dialects.archon.variables import Mark

ANY = 0  # the position of a parameter that may be any
_QUOTES = re.compile(r"[\"'\\]")
_BRACES = re.compile(r"\$\{(\w+)\}")
_SLASHES = re.compile(r"/(?:\./)*/*")


@dataclass(slots=True)
class Taint:
    """All places that hold a value, each with the variable that it came from."""

    names: dict[str, Mark] = field(default_factory=dict)
    parameters: dict[str, dict[int, Mark]] = field(default_factory=dict)  # "" is the script itself
    shifts: set[str] = field(default_factory=set)  # functions that move their parameters
    prints: dict[str, Mark] = field(default_factory=dict)  # functions that print a value
    reads: dict[str, Mark] = field(default_factory=dict)  # functions that read one
    inputs: dict[tuple[int, int], Mark] = field(
        default_factory=dict
    )  # groups and here-documents, by place
    files: dict[str, Mark] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    associative: set[str] = field(default_factory=set)
    aliases: set[tuple[str, str]] = field(default_factory=set)
    spoiled: set[tuple[int, str]] = field(default_factory=set)  # in a loop, by its place
    called: set[str] = field(default_factory=set)  # variables that a function gives a value

    @property
    def size(self) -> int:
        """Grows with every place that is found."""
        held = (self.names, self.prints, self.reads, self.inputs, self.files)
        known = (self.shifts, self.functions, self.integers, self.associative, self.called)
        positions = sum(len(one) for one in self.parameters.values())
        pairs = len(self.aliases) + len(self.spoiled)
        return sum(len(one) for one in held) + sum(len(one) for one in known) + positions + pairs

    def add_name(self, name: str, mark: Mark) -> None:
        """A variable holds a value, and so do the others by whose names it can be read."""
        self.names.setdefault(name, mark)
        for one, other in self.aliases:
            if name in (one, other):
                self.names.setdefault(one, mark)
                self.names.setdefault(other, mark)

    def add_parameter(self, function: str, position: int, mark: Mark) -> None:
        """A function gets a value at this position."""
        self.parameters.setdefault(function, {}).setdefault(position, mark)

    def parameter(self, function: str, written: str) -> Mark | None:
        """The value of `$1`, `$@` and the like inside of a function."""
        held = self.parameters.get(function, {})
        if written == "0" or not (written.isdigit() or written in ("@", "*")):
            return None
        if written in ("@", "*") or function in self.shifts:
            return next(iter(held.values()), None)
        return held.get(int(written), held.get(ANY))


def derive_mark(origin: Mark, written: str, at: int) -> Mark:
    """The place where a variable of the script is used that holds a value."""
    source = origin.source or origin.written
    return replace(origin, written=written, at=at, escaped=False, source=source)


def normalize_path(written: str) -> str:
    """One spelling for the ways to write the name of a file; empty for devices."""
    plain = _SLASHES.sub("/", _BRACES.sub(r"$\1", _QUOTES.sub("", written)))
    plain = plain.removeprefix("./").replace("$PWD/", "")
    return "" if plain.startswith(("/dev/", "&")) or plain.isdigit() else plain
