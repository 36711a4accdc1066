"""The state of reading a shell text: the level of nesting, the command, the word."""

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from loopwright.dialects.archon.variables import Mark

Kind: TypeAlias = Literal[
    "top",  # the script itself
    "paren",  # ( … ), $( … ), <( … )
    "tick",  # ` … `
    "array",  # name=( … )
    "cond",  # [[ … ]]
    "double",  # " … "
    "brace",  # ${ … }
    "arith",  # $(( … )), (( … )), $[ … ]
    "here",  # a here-document in which the shell fills in variables
]
# Frames that are made of words.
WORDY: tuple[Kind, ...] = ("top", "paren", "tick", "array", "cond")

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\+?=")
_SCRIPT_FILE = re.compile(r">\s*[\"']?\S*\.(?:ba|z|k)?sh\b")
_SHELL_LINE = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")
SUBSCRIPT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[")


class Fault(NamedTuple):
    """Why a variable may not stand where it stands."""

    code: str
    message: str
    hint: str


class Refused(NamedTuple):
    """A variable that may not stand where it stands."""

    at: int
    written: str
    fault: Fault


class Use(NamedTuple):
    """A `$…` of a script: where it begins and ends, and whether double quotes surround it."""

    start: int
    end: int
    is_quoted: bool


class Unreadable(Exception):
    """Quotes or brackets do not fit together: where, and in which way."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at, self.message = at, message


@dataclass(slots=True)
class Word:
    """A word of a command as far as it is known before anything runs."""

    literal: str = ""  # its text without quotes, up to what is only known later
    whole: bool = True  # the literal is all of it
    quoted: bool = False
    marks: list[Mark] = field(default_factory=list)
    before: str = ""  # the literal text in front of its first variable
    led: bool = False  # a variable is the first thing in it
    tail: str = ""  # the literal text behind the last thing that is only known later
    at: int = 0
    source: str = ""  # as it is written, without quotes
    many: bool = False  # the shell may make several words of it
    bare: list[tuple[int, int]] = field(default_factory=list)  # values without quotes
    keyed: str = ""  # the associative array of which it sets an element
    end: int = 0
    uses: list[Use] = field(default_factory=list)  # all that the shell expands in it

    def say(self, text: str) -> None:
        """Literal text belongs to this word."""
        self.literal += text if self.whole else ""
        self.tail += text

    def guess(self) -> None:
        """Something belongs to this word that is only known later."""
        self.whole, self.tail = False, ""

    @property
    def program(self) -> str:
        """The name of the program, if this word is one; empty where nobody knows."""
        known = self.literal if self.whole else self.tail if "/" in self.tail else ""
        return known.rpartition("/")[2]

    def take(self, mark: Mark) -> None:
        """A variable stands in this word."""
        if not self.marks:
            self.before, self.led = self.literal, not self.literal and not self.tail
        self.marks.append(mark)
        self.guess()

    @property
    def assigns(self) -> str | None:
        """The name that a word of the form NAME=… gives a value."""
        found = ASSIGNMENT.match(self.before if self.marks else self.literal)
        return found[1] if found else self.keyed or None


@dataclass(slots=True)
class Pipe:
    """A pipeline: what its current command reads, and which values its words hold."""

    inputs: list[Mark] = field(default_factory=list)
    own: list[Mark] = field(default_factory=list)
    takes_code: bool = False  # one of its commands takes what flows through it as code
    explicit: bool = False  # it reads from a pipe or a file, not what the group around it reads

    @property
    def marks(self) -> list[Mark]:
        """All values that the current command can see."""
        return [*self.inputs, *self.own]


@dataclass(slots=True)
class Group:
    """A loop, a case, { … } and the like: the pipeline that it is a part of."""

    pipe: Pipe
    start: int  # so many values had been printed before it
    opened: int
    reads: list[Mark] = field(default_factory=list)
    takes_code: bool = False
    function: str | None = None  # it is the body of this function


@dataclass(slots=True)
class Heredoc:
    """A here-document whose text has not been read yet."""

    delimiter: str
    quoted: bool
    strips_tabs: bool
    token: tuple[int, int]
    pipe: Pipe


@dataclass(slots=True)
class Frame:
    """One level of nesting."""

    kind: Kind
    opened: int
    word: Word | None = None
    words: list[Word] = field(default_factory=list)
    pipe: Pipe = field(default_factory=Pipe)
    out: list[Mark] = field(default_factory=list)  # values that its commands print
    redirects: str = ""  # after such a sign the next word is a file, not an argument
    redirected: bool = False  # the current command has a redirection
    writes: list[str] = field(default_factory=list)  # files that the current command writes
    compound: bool = False  # a group has just ended, so the command is not empty
    ended: int = 0  # where the group that has just ended began
    patterns: list[str] = field(default_factory=list)  # of a case, up to here
    tested: str = ""  # the condition in [[ ]] of the current command
    groups: list[Group] = field(default_factory=list)
    reads: list[Mark] = field(default_factory=list)  # what flows into it from outside
    takes_code: bool = False
    names_function: bool = False
    defines: str | None = None  # the next group is the body of this function
    function: str | None = None  # it is the body of this function
    captured: bool = False  # what its commands print becomes part of a word
    is_fed: bool = False  # of >( … ): what the command around it prints flows into it
    feeds_code: bool = False  # what the current command prints is taken for code
    cases: list[bool] = field(default_factory=list)  # open case commands: in a pattern or not
    depth: int = 0  # open brackets in arithmetic
    close: str = ")"
    piped: bool = False  # what comes next reads from a pipe
    in_quotes: bool = False  # of a brace: it stands in double quotes
    plain_single: bool = False  # of a brace: single quotes mean nothing in it
    computes: bool = False  # of a brace: what follows the name is arithmetic
    subscript: bool = False  # of a brace: the arithmetic ends at ]
    array: str = ""  # of an array: its name
    checks: int = 0  # of arithmetic: so many checks were made before it
    assigns: str = ""  # of a brace: the variable that it gives a value
    end: int = 0  # of a here-document
    after: int = 0
    token: int = 0
    rest: list[Heredoc] = field(default_factory=list)

    @property
    def in_pattern(self) -> bool:
        """Whether patterns of a case command are expected."""
        return bool(self.cases) and self.cases[-1]


def is_for_script(text: str, one: Heredoc, start: int) -> bool:
    """Whether a here-document is written into a file that a shell will run."""
    line = text[text.rfind("\n", 0, one.token[0]) + 1 : start]
    first = text[start:].partition("\n")[0]
    return bool(_SCRIPT_FILE.search(line) or _SHELL_LINE.match(first))


def is_exec(words: list[Word]) -> bool:
    """Whether redirections are those of the whole script: `exec 3> FILE`, `exec {fd}<<< …`."""
    names = [one.literal for one in words]
    return names[:1] == ["exec"] and all(one.startswith("{") for one in names[1:])
