"""Effects of commands on variables and files: which of them get values."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from loopwright.dialects.archon.shell.commands import (
    ARITHMETIC,
    CARRIERS,
    DECLARERS,
    EXECUTES,
    FILE_CODE,
    FILTERS,
    INPUT_DEVICE,
    INTERPRETER,
    NAME_START_FILES,
    PRINTS_VARIABLES,
    READS_INPUT,
    RESERVED,
    RESERVED_NAMES,
    RUN_FILES,
    SILENT,
    WRITES_INPUT,
    Found,
    skip_wrappers,
)
from loopwright.dialects.archon.shell.repair import FUNCTIONS
from loopwright.dialects.archon.shell.state import (
    ANY,
    DYNAMIC,
    SUBSCRIPT,
    Pipe,
    Taint,
    Word,
    derive_mark,
)
from loopwright.dialects.archon.variables import Mark

_READ_VALUED = frozenset("dinNptu")
_MAPFILE_VALUED = frozenset("dnOsuCc")
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER_FORMAT = re.compile(r"(?:[^%\\]|%%|\\[nt]|%[-+ 0]*\d*[dixXuo])*")
_DIGITS = re.compile(r"(?:0-9|\[:digit:\]|\\n|[ .\n])+")
_NUMBER_PATTERN = re.compile(r"(?:\^?\[(?:0-9|\[:digit:\])\](?:\\?[+*]|\{\d*,?\d*\})?\$?)+")
_LENGTH = re.compile(r"(?:.*\|)?\s*length\s*", re.DOTALL)
_RUNS_HOOKS = frozenset(
    ("commit", "push", "merge", "rebase", "checkout", "switch", "pull", "am", "cherry-pick")
)
_COPIERS = frozenset({"cp", "mv", "install", "ln", "rsync"})
_ENDS_OPTIONS = "--"
_OUTPUT_OPTION = re.compile(r"-[A-Za-z]*o(?=.)|--output=")


class Effects:
    """The effects of one simple command."""

    def __init__(self, taint: Taint, function: str, words: Sequence[Word], pipe: Pipe) -> None:
        self.taint, self.function, self.pipe = taint, function, pipe
        start = next((n for n, one in enumerate(words) if one.assigns is None), len(words))
        self.assignments = list(words[:start])
        self.command = skip_wrappers(words[start:])
        self.name = self.command[0].program if self.command else ""
        self.arguments = self.command[1:]
        self.refused: list[Found] = []
        self.assigned: dict[str, Mark | None] = {}  # what variables hold afterwards
        self.noted: set[str] = set()  # variables of which it is known whether they hold a number

    def apply(self) -> None:
        """Note all places that hold a value from now on."""
        for word in self.assignments:
            self._assign(word)
        if self.name in DECLARERS:
            self._declare()
        rule = _RULES.get(self.name)
        if rule:
            rule(self)
        if self.name in self.taint.effects.functions:
            self._call_function()
        self._use_files()
        if self.arguments and self.arguments[-1].marks:
            self.taint.add_name("_", self.arguments[-1].marks[0])
        if self.name in ("eval", ".", "source"):
            self.taint.types.texts.add(DYNAMIC)
        self.taint.types.texts |= self.assigned.keys() - self.noted
        for name, mark in self.assigned.items():
            if mark:
                self._give_value(name, mark)

    def _give_value(self, name: str, mark: Mark) -> None:
        """A variable holds a value from now on, under each name that it has."""
        for one in self.taint.find_names_of(name):
            is_own = one in self.taint.free_names or one in self.taint.kept_names
            if not is_own and RESERVED_NAMES.fullmatch(one):
                self.refused.append((mark, RESERVED))
            if self.taint.is_integer(one, self.function) or one in self.taint.types.integers:
                self.refused.append((mark, ARITHMETIC))
        self.taint.add_name(name, mark)

    def _assign(self, word: Word) -> None:
        name = word.assigns or ""
        mark = word.marks[0] if word.marks else None
        if mark and name in self.taint.types.integers:
            self.refused += [(one, ARITHMETIC) for one in word.marks[1:]]
        if name in NAME_START_FILES:
            self._check_start_file(word)
        self.taint.note_assigned(name, word.source.partition("=")[2])
        self.noted.add(name)
        appends = "+=" in word.source.split("=", 1)[0] + "="
        element = SUBSCRIPT.match(word.source)
        if element and name not in self.taint.types.associative:
            _use_names(self, word, word.source[element.end() :].partition("]")[0])
        # Appending to a variable does not change the rest of it.
        if mark or (not appends and element is None):
            self.assigned[name] = mark
            self._remember(name, word.source.partition("=")[2])

    def _check_start_file(self, word: Word) -> None:
        """A variable names a file that interpreters run when they start."""
        file = word.source.partition("=")[2]
        held = self.taint.find_file(file, self.function)
        if INPUT_DEVICE.fullmatch(file):
            held = next(iter(self.taint.names.values()), None)
        if held:
            self.refused.append((derive_mark(held, word.source, word.at), FILE_CODE))

    def _remember(self, name: str, text: str) -> None:
        if "`" not in text and "$(" not in text:
            self.taint.add_constant(name, text)

    def _declare(self) -> None:
        flags = "".join(one.literal for one in self.arguments if one.literal[:1] == "-")
        if any(not one.whole and one.assigns is None and one.many for one in self.arguments):
            flags += "i"  # options that are only known later
        for word in self.arguments:
            found = _NAME.match(word.literal)
            name = word.assigns or (found[0] if found and word.whole else "")
            if (not name and word.literal[:1] not in ("-", "+")) or "n" in flags:
                self.taint.types.texts.add(DYNAMIC)
            if not name:
                continue
            if "i" in flags:
                self.taint.types.integers.add(name)
                scope = "" if "g" in flags or self.name == "export" else self.function
                self.taint.effects.local_integers.add((scope, name))
            if "A" in flags:
                self.taint.types.associative.add(name)
            if "n" in flags and word.assigns:
                target = word.literal.partition("=")[2]
                self.taint.aliases.add((name, target))
                self.assigned[name] = self.taint.names.get(target)
            elif word.assigns:
                self._assign(word)
            if word.assigns and "i" in flags:
                _use_names(self, word, word.literal.partition("=")[2])

    def _call_function(self) -> None:
        self.pass_arguments(self.name, self.arguments)
        if self.pipe.inputs:
            self.taint.effects.reads.setdefault(self.name, self.pipe.inputs[0])
        printed = self.taint.effects.prints.get(self.name)
        if printed:
            self.pipe.own.append(printed)

    def pass_arguments(self, function: str, words: Sequence[Word]) -> None:
        """Values become parameters; after a word that may be several, of any position."""
        unknown = False
        for position, word in enumerate(words, 1):
            unknown = unknown or word.many
            self._remember(f"{function} {position}", word.source)
            for mark in word.marks[:1]:
                self.taint.add_parameter(function, ANY if unknown else position, mark)

    def find_names(self, word: Word) -> list[str]:
        """The variables that a word may name, without their subscripts."""
        texts = self.taint.resolve(word.source, self.function)
        return sorted({text.partition("[")[0] for text in texts if _NAME.match(text)})

    def pass_values(self, function: str, words: Sequence[Word], marks: Sequence[Mark] = ()) -> None:
        """Values become parameters of which the position is not known."""
        for mark in [*marks, *(one for word in words for one in word.marks)][:1]:
            self.taint.add_parameter(function, ANY, mark)

    # -- files -------------------------------------------------------------------------------------

    def _use_files(self) -> None:
        """Files with values: a program reads them, or runs them."""
        held = [(word, self._held(word)) for word in self.command]
        run = set(map(id, self._run_files()))
        for word, mark in held:
            if mark and id(word) in run:
                self.refused.append((mark, FILE_CODE))
            elif mark:
                self.pipe.own.append(mark)
        self._refuse_run_files()
        self._refuse_files_found()
        self._note_outputs()
        if self.name in _COPIERS and any(mark for _, mark in held):
            mark = next(mark for _, mark in held if mark)
            self.taint.add_file(self.arguments[-1].source, self.function, mark)
        if self.name == "tee" and self.pipe.marks:
            for word in self.arguments:
                self.taint.add_file(word.source, self.function, self.pipe.marks[0])

    def _refuse_run_files(self) -> None:
        """Files with values that a program runs without receiving their names."""
        runs = self.name != "git" or any(one.literal in _RUNS_HOOKS for one in self.arguments)
        for name in RUN_FILES.get(self.name, ()) if runs else ():
            mark = self.taint.held.files.get(name)
            if mark is None:
                continue
            first, source = self.command[0], mark.source or mark.written
            message = f"{self.name} runs {name}, which holds {source}"
            own = replace(mark, written=first.source, at=first.at, source="", escaped=False)
            self.refused.append((own, FILE_CODE._replace(message=message)))

    def _note_outputs(self) -> None:
        """Files that commands name among their arguments and write."""
        if self.name in _COPIERS and len(self.arguments) > 1:
            devices = [one for one in self.arguments[:-1] if _is_input(one)]
            own = [mark for one in devices for mark in one.marks]
            known = next(iter([*own, *self.pipe.marks, *self.taint.names.values()]), None)
            if devices and known:
                self.taint.add_file(self.arguments[-1].source, self.function, known)
        if not self.pipe.marks:
            return
        mark = self.pipe.marks[0]
        for before, word in pairwise(self.command):
            if self.name == "dd" and word.source.startswith("of="):
                self.taint.add_file(word.source[3:], self.function, mark)
            elif self.name == "sort" and before.literal in ("-o", "--output"):
                self.taint.add_file(word.source, self.function, mark)
        if self.name in WRITES_INPUT and self.pipe.inputs:
            for word in self.arguments:
                attached = _OUTPUT_OPTION.match(word.source)
                file = word.source[attached.end() :] if attached else word.source
                self.taint.add_file(file, self.function, mark)
                if self.name in ("split", "csplit"):
                    self.taint.add_file(f"{file}*", self.function, mark)

    def _held(self, word: Word) -> Mark | None:
        if word.source.startswith(("/dev/fd/", "/proc/self/fd/")):
            return next(iter(self.taint.held.descriptors.values()), None)
        origin = self.taint.find_file(word.source, self.function)
        return derive_mark(origin, word.source, word.at) if origin else None

    def _run_files(self) -> Iterator[Word]:
        """The words that name a file that is run."""
        yield from self.command[:1]
        if self.name in (".", "source"):
            yield from self.arguments
        elif FILTERS.fullmatch(self.name) or self.name in ("make", "gmake"):
            for before, word in pairwise(self.arguments):
                if before.literal in ("-f", "--file", "--makefile"):
                    yield word
        elif INTERPRETER.fullmatch(self.name):
            operands = (one for one in self.arguments if not one.literal.startswith("-"))
            yield from list(operands)[:1]

    def _refuse_files_found(self) -> None:
        """`find … -exec sh {}` runs files whose names are not in the script."""
        held = next(iter(self.taint.held.files.values()), None)
        for before, word in pairwise(self.arguments) if self.name in CARRIERS else ():
            runs = before.literal in EXECUTES and (word.literal == "{}" or _is_interpreter(word))
            if held and runs:
                self.refused.append((derive_mark(held, word.source, word.at), FILE_CODE))

    # -- what it prints ----------------------------------------------------------------------------

    def output(self) -> list[Mark]:
        """The values that its output may hold."""
        if not self.command:
            return []
        if self.name in PRINTS_VARIABLES:
            return self._printed_variables()
        if self.name in SILENT or self.name in FUNCTIONS or self._prints_numbers():
            return []
        reads = self.pipe.explicit or self.name in READS_INPUT or not self.name
        reads = reads or INTERPRETER.fullmatch(self.name) is not None
        own = self.pipe.own
        return [*own, *self.pipe.inputs] if reads else list(own)

    def _printed_variables(self) -> list[Mark]:
        """`env`, `set`, `declare -p` and the like print all variables, or those that are named."""
        known = self.taint.names
        options = [one.literal for one in self.arguments if one.literal[:1] in ("-", "+")]
        named = [one.literal for one in self.arguments if _NAME.fullmatch(one.literal)]
        if self.name in DECLARERS and self.arguments and "-p" not in options:
            return []
        if self.name == "set" and self.arguments:
            return []
        if self.name == "printenv" and named:
            return [known[one] for one in named if one in known]
        return list(known.values())[:1]

    def _prints_numbers(self) -> bool:
        words, in_words = self.arguments, sum(1 for one in self.arguments if one.marks)
        flags = "".join(w.literal[1:] for w in words if re.match("-[A-Za-z]", w.literal))
        operands = [one.literal for one in words if one.whole and one.literal[:1] != "-"]
        match self.name:
            case "wc" | "cksum" | "md5sum" | "sha1sum" | "sha256sum":
                return not in_words and "f" not in flags
            case "grep" | "egrep" | "fgrep":
                counts = "c" in flags and "r" not in flags.lower() and in_words <= 1
                cuts = "o" in flags and not in_words and len(operands) == 1
                return counts or (cuts and bool(_NUMBER_PATTERN.fullmatch(operands[0])))
            case "tr":
                deletes = "d" in flags and "c" in flags.lower()
                return deletes and bool(operands) and bool(_DIGITS.fullmatch(operands[-1]))
            case "jq":
                return not in_words and bool(operands) and bool(_LENGTH.fullmatch(operands[0]))
            case "printf":
                return bool(operands) and _is_number_format(words)
            case _:
                return False


def _is_input(word: Word) -> bool:
    """Whether a word means a file that is read and has no name."""
    return INPUT_DEVICE.fullmatch(word.source) is not None or word.source.startswith("<(")


def _is_interpreter(word: Word) -> bool:
    return INTERPRETER.fullmatch(word.program) is not None


def _is_number_format(words: Sequence[Word]) -> bool:
    rest = list(words)
    if rest and rest[0].literal == "-v":
        rest = rest[2:]
    if rest and rest[0].literal == _ENDS_OPTIONS:
        rest = rest[1:]
    return bool(rest) and rest[0].whole and bool(_NUMBER_FORMAT.fullmatch(rest[0].literal))


# -- commands of the shell that give variables a value ---------------------------------------------


def _read(one: Effects) -> None:
    valued = _READ_VALUED if one.name == "read" else _MAPFILE_VALUED
    names, skip = [], False
    for word in one.arguments:
        option = word.literal.startswith("-") and not word.marks
        if not skip and not option:
            names += one.find_names(word)
            one.taint.types.texts |= set() if word.whole else {DYNAMIC}
        skip = not skip and option and len(word.literal) > 1 and word.literal[-1] in valued
    opened = (
        one.taint.held.descriptors.values() if any(w.literal == "-u" for w in one.arguments) else ()
    )
    mark = next(iter([*one.pipe.inputs, *opened]), None)
    for name in names or ["REPLY" if one.name == "read" else "MAPFILE"]:
        one.assigned[name] = mark


def _printf(one: Effects) -> None:
    for number, word in enumerate(one.arguments[:-1]):
        if word.literal == "-v" and word.whole:
            values = [mark for other in one.arguments[number + 2 :] for mark in other.marks]
            numeric = _is_number_format(one.arguments)
            one.taint.types.texts |= set() if one.arguments[number + 1].whole else {DYNAMIC}
            for name in one.find_names(one.arguments[number + 1]):
                one.assigned[name] = values[0] if values and not numeric else None


def _for(one: Effects) -> None:
    """`for x in …`, or `for x`, which iterates over the parameters."""
    if len(one.command) < 2:
        return
    listed = [mark for word in one.command[3:] for mark in word.marks]
    mark = listed[0] if listed else None
    if len(one.command) == 2:
        mark = one.taint.parameter(one.function, "@")
    one.assigned[one.command[1].literal] = mark
    one.noted |= {one.command[1].literal} if len(one.command) > 3 and one.name == "for" else set()
    for word in one.command[3:]:
        one.taint.add_constant(one.command[1].literal, word.source)
        one.taint.note_assigned(one.command[1].literal, word.source)


def _set(one: Effects) -> None:
    words = list(one.arguments)
    while words and words[0].literal[:1] in ("-", "+") and not words[0].marks:
        if words.pop(0).literal == _ENDS_OPTIONS:
            break
    one.pass_arguments(one.function, words)


def _let(one: Effects) -> None:
    """Names in arithmetic are variables, also without a $."""
    for word in one.arguments:
        _use_names(one, word, word.literal)


def _use_names(one: Effects, word: Word, text: str) -> None:
    for name in _NAME.findall(text):
        held = one.taint.names.get(name)
        if held:
            one.refused.append((derive_mark(held, name, word.at), ARITHMETIC))


def _shift(one: Effects) -> None:
    one.taint.effects.shifts.add(one.function)


def _getopts(one: Effects) -> None:
    mark = one.taint.parameter(one.function, "@")
    for name in ("OPTARG", one.arguments[1].literal if len(one.arguments) > 1 else "OPTARG"):
        one.assigned[name] = mark


_RULES: dict[str, Callable[[Effects], None]] = {
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "printf": _printf,
    "for": _for,
    "select": _for,
    "set": _set,
    "let": _let,
    "shift": _shift,
    "getopts": _getopts,
}
