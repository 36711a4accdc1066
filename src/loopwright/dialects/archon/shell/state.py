"""The state of reading a shell text: nesting, command, word, and where its values can be.

A value can be in variables, parameters, functions and files. A script is read again until no
new place is found, so the order of its lines does not matter: a variable that holds a value on
one line holds it on all lines, except where `proven` says that the shell has replaced or tested
it.
"""

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeAlias

from loopwright.dialects.archon.variables import VARIABLES, Mark
from loopwright.model.record import Ref

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
UNCLOSED: dict[Kind, str] = {
    "top": "a case is not closed",
    "paren": "a ( is not closed",
    "tick": "a backquote is not closed",
    "array": "a ( is not closed",
    "cond": "[[ is not closed",
    "double": "a double quote is not closed",
    "brace": "${ is not closed",
    "arith": "arithmetic is not closed",
    "here": "a here-document is not closed",
}
# Frames that are made of words.
WORDY: tuple[Kind, ...] = ("top", "paren", "tick", "array", "cond")

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\+?=")
_SCRIPT_FILE = re.compile(r">\s*[\"']?\S*\.(?:ba|z|k)?sh\b")
_SHELL_LINE = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")
SUBSCRIPT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[")


class ShellFault(NamedTuple):
    """Why a variable is not allowed at its place."""

    code: str
    message: str
    hint: str


class Misuse(NamedTuple):
    """A variable at a place where it is not allowed."""

    at: int
    written: str
    fault: ShellFault


class Use(NamedTuple):
    """A `$…` of a script: its start and end, and whether double quotes surround it."""

    start: int
    end: int
    is_quoted: bool


class Unreadable(Exception):
    """Quotes or brackets are not balanced: where, and in which way."""

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
    tail: str = ""  # the literal text after the last part that is known only when the script runs
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
        """The name of the program, if this word is one; empty if unknown."""
        known = self.literal if self.whole else self.tail if "/" in self.tail else ""
        return known.rpartition("/")[2]

    def take(self, mark: Mark) -> None:
        """This word contains a variable."""
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
    runs_input: bool = False  # one of its commands takes what flows through it as code
    explicit: bool = False  # it reads from a pipe or a file, not what the group around it reads

    @property
    def marks(self) -> list[Mark]:
        """All values that the current command can see."""
        return [*self.inputs, *self.own]


@dataclass(slots=True)
class CompoundCommand:
    """A loop, a case, { … } and the like: the pipeline that it is a part of."""

    pipe: Pipe
    start: int  # the number of values printed before it
    opened: int
    reads: list[Mark] = field(default_factory=list)
    runs_input: bool = False
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
class CurrentCommand:
    """The command that is being read, apart from its words."""

    redirects: str = ""  # after such a sign the next word is a file, not an argument
    redirected: bool = False  # it has a redirection
    writes: list[str] = field(default_factory=list)  # files that it writes
    compound: bool = False  # a group has just ended, so the command is not empty
    ended: int = 0  # the start of the group that has just ended
    tested: str = ""  # the condition in [[ ]]
    names_function: bool = False
    defines: str | None = None  # the next group is the body of this function
    feeds_code: bool = False  # its output is executed as code


@dataclass(slots=True)
class CaseCommands:
    """The open case commands."""

    cases: list[bool] = field(default_factory=list)  # in a pattern or not
    patterns: list[str] = field(default_factory=list)  # of a case, up to here


@dataclass(slots=True)
class DataFlow:
    """What flows into and out of a level of nesting."""

    out: list[Mark] = field(default_factory=list)  # values that its commands print
    reads: list[Mark] = field(default_factory=list)  # what flows into it from outside
    runs_input: bool = False
    captured: bool = False  # what its commands print becomes part of a word
    is_fed: bool = False  # of >( … ): what the command around it prints flows into it
    piped: bool = False  # what comes next reads from a pipe


@dataclass(slots=True)
class Brace:
    """The state of a brace: `${ … }`."""

    in_quotes: bool = False  # it is in double quotes
    plain_single: bool = False  # single quotes mean nothing in it
    computes: bool = False  # arithmetic follows the name
    subscript: bool = False  # the arithmetic ends at ]
    assigns: str = ""  # the variable that it gives a value


@dataclass(slots=True)
class OpenHeredoc:
    """The place of a here-document, and the documents after it."""

    end: int = 0
    after: int = 0
    token: int = 0
    rest: list[Heredoc] = field(default_factory=list)


@dataclass(slots=True)
class Frame:
    """One level of nesting."""

    kind: Kind
    opened: int
    word: Word | None = None
    words: list[Word] = field(default_factory=list)
    pipe: Pipe = field(default_factory=Pipe)
    groups: list[CompoundCommand] = field(default_factory=list)
    function: str | None = None  # it is the body of this function
    depth: int = 0  # open brackets in arithmetic
    close: str = ")"
    array: str = ""  # of an array: its name
    checks: int = 0  # of arithmetic: the number of checks before it
    command: CurrentCommand = field(default_factory=CurrentCommand)
    case: CaseCommands = field(default_factory=CaseCommands)
    flow: DataFlow = field(default_factory=DataFlow)
    brace: Brace = field(default_factory=Brace)
    document: OpenHeredoc = field(default_factory=OpenHeredoc)

    @property
    def in_pattern(self) -> bool:
        """Whether patterns of a case command are expected."""
        return bool(self.case.cases) and self.case.cases[-1]


def is_for_script(text: str, one: Heredoc, start: int) -> bool:
    """Whether a here-document is written into a file that a shell will run."""
    line = text[text.rfind("\n", 0, one.token[0]) + 1 : start]
    first = text[start:].partition("\n")[0]
    return bool(_SCRIPT_FILE.search(line) or _SHELL_LINE.match(first))


def is_exec(words: list[Word]) -> bool:
    """Whether redirections are those of the whole script: `exec 3> FILE`, `exec {fd}<<< …`."""
    names = [one.literal for one in words]
    return names[:1] == ["exec"] and all(one.startswith("{") for one in names[1:])


ANY = 0  # the position of a parameter that may be any
DYNAMIC = ""  # means all variables, among those that may contain a text
# Variables in which bash keeps a number, unless the script assigns them.
_COUNTERS = frozenset(
    ("RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID", "BASHPID", "SHLVL", "OPTIND")
)
# Bash evaluates what is assigned to these, as if they were declared with -i.
_EVALUATED = frozenset({"RANDOM", "SRANDOM", "OPTIND", "HISTCMD"})
NUMBER = re.compile(
    r"[-+]?\d*|\$[#?$!]|\$\{#[^{}$`]*\}|\$\(\((?:[^()]|\([^()]*\))*\)\)"
    r"|\{\d+\.\.\d+\}|\$\(date \+%s\)|\$\(seq [-\d ]+\)|\$\(nproc\)"
    r"|\$\((?:[^()|;&`\n]+\|)*\s*wc -[lwcm](?:\s*<[^()|;&`\n]*)?\)"
    r"|\$\{\w+//\[[!^](?:0-9|\[:digit:\])\](?:/0?)?\}|\$\(__lw_number [^()]*\)",
    re.DOTALL,
)
"""Texts of a script that can only be a number; quotes are omitted."""
_COPY = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?[-=]-?\d*)?\})")
_QUOTES = re.compile(r"[\"'\\]")
_BRACES = re.compile(r"\$\{(\w+)\}")
_USE = re.compile(r"\$\{?(\w+)\}?")
_VALUE_FILE = re.compile(rf"\$\{{?((?:LW_\w+|INPUTS_\w+|{'|'.join(VARIABLES)}))_FILE\b")
_LONGEST_PATH = 300
_MOST_TEXTS = 8


@dataclass(slots=True)
class FunctionEffects:
    """What functions do with values; "" is the script itself."""

    parameters: dict[str, dict[int, Mark]] = field(default_factory=dict)
    shifts: set[str] = field(default_factory=set)  # functions that move their parameters
    prints: dict[str, Mark] = field(default_factory=dict)  # functions that print a value
    reads: dict[str, Mark] = field(default_factory=dict)  # functions that read one
    functions: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)  # variables that a function gives a value
    local_integers: set[tuple[str, str]] = field(default_factory=set)  # by function

    @property
    def size(self) -> int:
        positions = sum(len(one) for one in self.parameters.values())
        sets = (self.shifts, self.functions, self.called, self.local_integers)
        return positions + len(self.prints) + len(self.reads) + sum(len(one) for one in sets)


@dataclass(slots=True)
class VariableTypes:
    """What is known of the values of variables: numbers, arrays, texts."""

    integers: set[str] = field(default_factory=set)
    associative: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)  # that may hold something but a number
    counted: set[str] = field(default_factory=set)  # that the script gives a number
    copies: set[tuple[str, str]] = field(default_factory=set)  # variables, and what they copy
    constants: dict[str, set[str]] = field(default_factory=dict)  # texts that a script assigns

    @property
    def size(self) -> int:
        names = (self.integers, self.associative, self.texts, self.counted)
        pairs = len(self.copies) + sum(len(one) for one in self.constants.values())
        return pairs + sum(len(one) for one in names)


@dataclass(slots=True)
class TaintedFiles:
    """Files, descriptors and here-documents that hold a value."""

    # groups and here-documents, by place
    inputs: dict[tuple[int, int], Mark] = field(default_factory=dict)
    files: dict[str, Mark] = field(default_factory=dict)
    descriptors: dict[str, Mark] = field(default_factory=dict)  # open files, all under one name
    written: set[str] = field(default_factory=set)  # files that the script has opened to write

    @property
    def size(self) -> int:
        return len(self.inputs) + len(self.files) + len(self.descriptors) + len(self.written)


@dataclass(slots=True)
class Taint:
    """All places that hold a value, each with the variable that it came from."""

    free_names: frozenset[str] = frozenset()  # reserved names that do no harm in this script
    kept_names: frozenset[str] = frozenset()  # reserved names that it does not export
    names: dict[str, Mark] = field(default_factory=dict)
    aliases: set[tuple[str, str]] = field(default_factory=set)
    spoiled: set[tuple[int, str]] = field(default_factory=set)  # in a loop, by its place
    effects: FunctionEffects = field(default_factory=FunctionEffects)
    types: VariableTypes = field(default_factory=VariableTypes)
    held: TaintedFiles = field(default_factory=TaintedFiles)

    @property
    def size(self) -> int:
        """Grows with every place that is found."""
        own = len(self.names) + len(self.aliases) + len(self.spoiled)
        return own + self.effects.size + self.types.size + self.held.size

    def add_name(self, name: str, mark: Mark) -> None:
        """A variable holds a value, and so do the others by whose names it can be read."""
        self.names.setdefault(name, mark)
        for one, other in self.aliases:
            if name in (one, other):
                self.names.setdefault(one, mark)
                self.names.setdefault(other, mark)

    def find_names_of(self, name: str) -> set[str]:
        """All names of a variable: its own, and those of references to it."""
        found, size = {name}, 0
        while len(found) > size:
            size = len(found)
            for one, other in self.aliases:
                if one in found or other in found:
                    found |= {one, other}
        return found

    def note_assigned(self, name: str, text: str) -> None:
        """A variable gets this text; note whether that is a number."""
        copied = _COPY.fullmatch(text)
        if copied:
            self.types.copies.add((name, copied[1] or copied[2]))
        elif NUMBER.fullmatch(text) is None:
            self.types.texts.add(name)
        self.types.counted.add(name)

    def is_number(self, name: str) -> bool:
        """Whether a variable always contains a number where it is read."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop()
            known = one in _COUNTERS or one in self.types.counted
            if (
                not known
                or one in self.types.texts
                or DYNAMIC in self.types.texts
                or one in self.names
            ):
                return False
            seen.add(one)
            waiting += [
                source for copy, source in self.types.copies if copy == one and source not in seen
            ]
        return True

    def is_integer(self, name: str, function: str) -> bool:
        """Whether bash evaluates what is assigned to a variable."""
        scopes = ((function, name), ("", name))
        return name in _EVALUATED or any(one in self.effects.local_integers for one in scopes)

    def has_keys(self, name: str) -> bool:
        """Whether the subscripts of an array are texts, or may be."""
        stands_for_another = any(name == one for one, _ in self.aliases)
        return name in self.types.associative or (
            stands_for_another and bool(self.types.associative)
        )

    def add_parameter(self, function: str, position: int, mark: Mark) -> None:
        """A function gets a value at this position."""
        self.effects.parameters.setdefault(function, {}).setdefault(position, mark)

    def add_constant(self, name: str, text: str) -> None:
        """A script gives a variable this text, which may be the name of a file."""
        known = self.types.constants.setdefault(name, set())
        if text and len(text) <= _LONGEST_PATH and len(known) < _MOST_TEXTS:
            known.add(text)

    def resolve(self, written: str, function: str) -> set[str]:
        """The possible values of a word, if the script determines them."""
        found = {written}
        for _ in range(_MOST_TEXTS):
            for text in list(found)[:_MOST_TEXTS]:
                use = _USE.search(text)
                if use is None:
                    continue
                name = f"{function} {use[1]}" if use[1].isdigit() else use[1]
                others = self.types.constants.get(name, ())
                found |= {text[: use.start()] + one + text[use.end() :] for one in others}
        return found

    def add_file(self, written: str, function: str, mark: Mark) -> None:
        """A file holds a value."""
        for text in self.resolve(written, function):
            name = find_file_name(text)
            if name and not name.startswith("-"):
                self.held.files.setdefault(name, mark)

    def find_file(self, written: str, function: str) -> Mark | None:
        """The value in a file, which may be named by a pattern."""
        texts = self.resolve(written, function)
        for found in (_VALUE_FILE.search(text) for text in texts):
            if found:  # the file in which Loopwright hands a value over
                return Mark(written, 0, Ref(of="run"), found[1], source=f"${found[1]}")
        if not self.held.files:
            return None
        names = {find_file_name(text) for text in texts}
        for name, mark in self.held.files.items():
            if name in names or any(_is_match(name, n) or _is_match(n, name) for n in names):
                return derive_mark(mark, written, mark.at)
        return None

    def parameter(self, function: str, written: str) -> Mark | None:
        """The value of `$1`, `$@` and the like inside of a function."""
        held = self.effects.parameters.get(function, {})
        if written == "0" or not (written.isdigit() or written in ("@", "*")):
            return None
        if written in ("@", "*") or function in self.effects.shifts:
            return next(iter(held.values()), None)
        return held.get(int(written), held.get(ANY))


def derive_mark(origin: Mark, written: str, at: int) -> Mark:
    """The place where a variable of the script that contains a value is used."""
    source = origin.source or origin.written
    return replace(origin, written=written, at=at, escaped=False, source=source)


def find_file_name(written: str) -> str:
    """The last part of a path, since the script may change its folder; empty for devices."""
    plain = _BRACES.sub(r"$\1", _QUOTES.sub("", written))
    if plain.startswith(("/dev/", "&")) or plain.isdigit():
        return ""
    return plain.rstrip("/").rpartition("/")[2]


def _is_match(name: str, pattern: str) -> bool:
    return any(one in pattern for one in "*?[") and fnmatchcase(name, pattern)
