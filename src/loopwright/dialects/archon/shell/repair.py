"""Safe forms for values in places where a shell would evaluate them.

A value that would be rejected is replaced by the output of a function that only passes harmless
text: a number in arithmetic, a path below the workspace after `>`, an operand that is not an
option. The repaired script is read again as a whole, and a repair is used only if the value is then
accepted.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from loopwright.dialects.archon.shell.commands import DECLARERS
from loopwright.dialects.archon.shell.state import (
    NUMBER,
    SUBSCRIPT,
    Misuse,
    ShellFault,
    Taint,
    Use,
    Word,
)

PREFIX = "__lw_"
_SAY = 'echo "refused: a value here %s" >&2'
FUNCTIONS = {
    "__lw_number": (
        '__lw_number() { if [[ $1 =~ ^-?[0-9]+(\\.[0-9]+)?$ ]]; then printf %s "$1"; '
        f'else [ -z "$1" ] || {_SAY % "is not a number and counts as 0"}; printf 0; fi; }}; '
    ),
    "__lw_path": (
        '__lw_path() { case "/$1/" in */../*) ;; //*) case "$1" in "$PWD"/*|'
        '"${ARTIFACTS_DIR:-/dev/null}"/*|"${STATE_DIR:-/dev/null}"/*) printf %s "$1"; return ;; '
        'esac ;; *) printf %s "$1"; return ;; esac; '
        f"{_SAY % 'names a file outside of the workspace'}; printf /dev/null/refused; }}; "
    ),
    "__lw_operand": (
        '__lw_operand() { case "$1" in -*) '
        f'{_SAY % "begins with - and would be an option"} ;; *) printf %s "$1" ;; esac; }}; '
    ),
    "__lw_word": (
        "__lw_word() { if [[ $1 =~ ^[A-Za-z0-9_@%+:,./][A-Za-z0-9_@%+:,./-]*$ ]]; "
        f'then printf %s "$1"; else {_SAY % "is not one plain word"}; fi; }}; '
    ),
    "__lw_text": (
        "__lw_text() { local c i out=; for ((i = 0; i < ${#1}; i++)); do c=${1:i:1}; "
        "case $c in [[:alnum:]\\ _.-]) out+=$c ;; $'\\n') out+=' ' ;; *) out+=\\\\$c ;; esac; "
        'done; printf %s "$out"; }; '
    ),
}
"""The definitions before a script that uses one of them; each on one line, so that line numbers do
not change.
"""
_WARNINGS = {
    "__lw_number": "a value that is not a number counts as 0 here",
    "__lw_path": "a value that names a file outside of the workspace is refused here",
    "__lw_operand": "a value that begins with - is replaced by an empty text here",
    "__lw_word": "a value that is more than one plain word is refused here",
    "__lw_text": "the value is inserted as plain text here",
}
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]")
_BRACES = re.compile(r"\$\{\w+(?:\[[@*]\]|:?[-=+?][^{}$`]*)?\}")
_ASSIGNS = re.compile(r"\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))")
_COUNTS_UP = re.compile(r"(?:\+\+|--)\s*\Z")
_TARGETED = re.compile(
    r"\b(?:g?make|just|rake|task|(?:npm|pnpm|yarn|bun)[ \t]+(?:run|run-script))\b"
)
_SUBSTITUTION = re.compile(r"\b(?:g?sed)\b[^\n|;&]*?[\"'\s;{]s(?P<mark>[/|#,@:;!~+%=_])")
# A line number of sed: at the start of its program, or after a comma.
_ADDRESS = re.compile(r"\b(?:g?sed)\b[^\n|;&]*?[\"'\s](?:[0-9]+,|\$\([^()]*\),)?\Z")
_MOST_REPAIRS = 60


class ReaderResult(NamedTuple):
    """The result of reading a text: the faults of each rejected value by its place."""

    refused: Sequence[Misuse]
    faults: dict[int, list[ShellFault]]


class RepairedScript(NamedTuple):
    """A text in which values have a safe form as far as there is one."""

    text: str
    notes: list[Misuse]


def repair(text: str, read: Callable[[str], ReaderResult | None]) -> RepairedScript:
    """Give every value that would be refused a safe form, one after the other."""
    original, notes = text, []
    reading = read(text)
    if reading is None or PREFIX in text:
        return RepairedScript(text, [])
    tried: set[tuple[int, str]] = set()
    for _ in range(_MOST_REPAIRS):
        one = next((r for r in reversed(reading.refused) if (r.at, r.written) not in tried), None)
        if one is None:
            break
        tried.add((one.at, one.written))
        made = _repaired(text, one, reading.faults.get(one.at, [one.fault]))
        after = read(made[0]) if made else None
        if made is None or after is None or len(after.refused) >= len(reading.refused):
            continue
        fault = ShellFault("safe-form", _WARNINGS[made[1]], "see Values in scripts in the guide")
        notes.append(Misuse(find_in_original(original, text, one), one.written, fault))
        # Places after the repair have moved; those before it have not.
        tried = {(at, written) for at, written in tried if at < one.at}
        text, reading = made[0], after
    return RepairedScript(text, notes)


def find_in_original(original: str, text: str, one: Misuse) -> int:
    """The position in the original script of a value of a rewritten script. A rewritten script has
    the same lines.
    """
    line = text.count("\n", 0, one.at)
    lines = original.split("\n")
    start = sum(len(before) + 1 for before in lines[:line])
    found = original.find(one.written, start) if one.written else -1
    end = start + len(lines[line]) if line < len(lines) else start
    return found if start <= found <= end else start


def with_functions(text: str) -> str:
    """The script with the functions that it calls in front of its first line."""
    return "".join(made for name, made in FUNCTIONS.items() if name in text) + text


def _repaired(text: str, one: Misuse, faults: Sequence[ShellFault]) -> tuple[str, str] | None:
    """The text with a safe form for one value, and the function that makes it safe."""
    codes = {fault.code for fault in faults}
    place = _extent(text, one)
    if place is None:
        return None
    at, end, held = place
    name = one.written if at == one.at and not one.written.startswith("$") else ""
    if "reference-in-arithmetic" in codes:
        return _as_number(text, at, end, name, held)
    if codes == {"reference-as-target"}:
        return _replaced(text, at, end, "__lw_path", held)
    before = text[text.rfind("\n", 0, at) + 1 : at]
    if codes <= {"reference-as-option", "reference-in-code"} and _TARGETED.search(before):
        return _replaced(text, at, end, "__lw_word", held)
    if codes == {"reference-as-option"}:
        return _replaced(text, at, end, "__lw_operand", held)
    if codes == {"reference-in-code"} and _ADDRESS.search(before) and text[end : end + 1] in ",pdq":
        return _replaced(text, at, end, "__lw_number", held)
    if codes == {"reference-in-code"} and _is_replacement(before, text[end:]):
        return _replaced(text, at, end, "__lw_text", held)
    return None


def _extent(text: str, one: Misuse) -> tuple[int, int, str] | None:
    """The position of a value with its sign and braces, and the same value as a quoted word."""
    if one.written.startswith("$"):
        if not text.startswith(one.written, one.at):
            return None
        return one.at, one.at + len(one.written), f'"{one.written}"'
    if not _NAME.fullmatch(one.written) or not text.startswith(one.written, one.at):
        return None
    braces = _BRACES.match(text, one.at - 2) if one.at >= 2 else None
    if braces:
        return braces.start(), braces.end(), f'"{braces[0]}"'
    end = one.at + len(one.written)
    signed = text[: one.at].endswith("$")
    return one.at - signed, end, f'"${{{one.written}}}"'


def _replaced(text: str, at: int, end: int, function: str, held: str) -> tuple[str, str]:
    return f"{text[:at]}$({function} {held}){text[end:]}", function


def _as_number(text: str, at: int, end: int, name: str, held: str) -> tuple[str, str] | None:
    function = "__lw_number"
    if text[:at].endswith("!") or text.startswith("@", end):
        return None  # its value is the name of another variable
    if not _ASSIGNS.match(text, end) and not _COUNTS_UP.search(text[:at]):
        return _replaced(text, at, end, function, held)
    start, stop = text.rfind("((", 0, at), text.find("))", end)
    same_line = "\n" not in text[start:stop]
    if not name or start < 0 or stop < 0 or text[:start].endswith("$") or not same_line:
        return None
    if re.search(r"\bfor\s*\Z", text[:start]):
        return None
    inner = text[start : stop + 2]
    return f"{text[:start]}{{ {name}=$({function} {held}); {inner}; }}{text[stop + 2 :]}", function


def _is_replacement(before: str, after: str) -> bool:
    """Whether a place is in the second part of a `s/…/…/` of sed."""
    found = None
    for found in _SUBSTITUTION.finditer(before):  # noqa: B007 - the last one is meant
        pass
    if found is None:
        return False
    mark = re.escape(found["mark"])
    between = re.findall(rf"(?<!\\){mark}", before[found.end() :])
    flags = re.search(rf"(?<!\\){mark}(\w*)", after)
    return len(between) == 1 and flags is not None and not set("ew") & set(flags[1])


# -- checks of numbers -----------------------------------------------------------------------------

Kind: TypeAlias = Literal["integer", "key", "name"]
# The characters of a text that is harmless if bash evaluates it, and its required form.
_ALLOWED: dict[Kind, tuple[str, str]] = {
    "integer": ("0-9[:space:]+-", "must be an integer"),
    "key": (r"[:alnum:][:space:]_.,:\/@%=+-", "has a character that is not allowed in a key"),
    "name": ("][A-Za-z0-9_@*", "must be the name of a variable"),
}
_PURE_ASSIGNMENT = re.compile(r"\s*=(?!=)")
_ASSIGNMENT_AHEAD = re.compile(r"\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))")
_PART_OF_NUMBER = re.compile(r"[\w#@.]\Z")
_VARIABLE_NAME = re.compile(r"(?<![\w$#@.])[A-Za-z_]\w*")
_SIMPLE_USE = re.compile(
    r"\$(?:(?P<bare>[A-Za-z_]\w*|[0-9])"
    r"|\{(?P<name>\w+)(?P<item>\[[\w\s+*/%$-]*\])?(?::?[-=?+]-?\d*)?\})"
)
_SIMPLE_SUBSCRIPT = re.compile(r"[\w\s+*/%$-]*|[\"']?\$?\w*[\"']?")
_USED_NAME = re.compile(r"\$?([A-Za-z_]\w*)")
_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_VALUED_OPTIONS = {"read": "dinNptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc", "unset": ""}


class NumberChecks:
    """Checks in front of everything that bash would evaluate as a number, a key or a name.

    A check is an expansion that gives an empty text, or ends the script with a message when the
    value has a character that could make bash run something. Not only values that were followed
    are checked: a file, another node or a program may have handed one over.
    """

    def __init__(self, text: str, taint: Taint) -> None:
        self.text, self.taint = text, taint
        self.edits: list[tuple[int, int, str]] = []
        self.first_line = 1
        self.portable = False  # the script may be for another shell than bash
        self._keys_end = 0  # up to here, a subscript is a key

    def drop_since(self, count: int) -> None:
        """Discard checks in a text that turned out not to be arithmetic."""
        del self.edits[count:]

    def add_name(self, name: str, at: int) -> None:
        """A name in arithmetic, which bash takes for a variable."""
        end = at + len(name)
        if at < self._keys_end or _PART_OF_NUMBER.search(self.text[max(0, at - 1) : at]):
            return
        closing = self._find_closing(end)
        counts_up = _COUNTS_UP.search(self.text[max(0, at - 8) : at]) is not None
        assigned = counts_up or _ASSIGNMENT_AHEAD.match(self.text, closing or end) is not None
        if closing:
            self._add_element(name, at, closing, is_assigned=assigned)
            return
        if assigned:
            self.taint.types.counted.add(name)
        if not _PURE_ASSIGNMENT.match(self.text, end) and not self.taint.is_number(name):
            self._insert(at, name, "integer", is_quoted=True)

    def _add_element(self, name: str, at: int, closing: int, *, is_assigned: bool) -> None:
        keyed = self.taint.has_keys(name)
        inside = self.text[at + len(name) + 1 : closing - 1]
        if keyed:
            self._keys_end = closing
        if _PURE_ASSIGNMENT.match(self.text, closing):
            return
        if _SIMPLE_SUBSCRIPT.fullmatch(inside) and not self.portable:
            for used in _USED_NAME.finditer(inside):
                is_key = keyed and used[0][0] == "$"
                if is_key or (not keyed and not self.taint.is_number(used[1])):
                    self._insert(at, used[1], "key" if keyed else "integer", is_quoted=True)
            self._insert(at, f"{name}[{inside}]", "integer", is_quoted=True)
        elif not is_assigned:
            self._wrap(at, closing, "integer", before="${", after="}")

    def _find_closing(self, at: int) -> int:
        """The position after the ] that closes the subscript at this place; 0 if there is none."""
        depth = 0
        for place in range(at, len(self.text)) if self.text.startswith("[", at) else ():
            depth += {"[": 1, "]": -1}.get(self.text[place], 0)
            if depth == 0 or self.text[place] == "\n":
                return place + 1 if depth == 0 else 0
        return 0

    def add_use(self, use: Use, kind: Kind = "integer") -> None:
        """A `$…` in a place that bash evaluates."""
        raw = self.text[use.start : use.end]
        kind = "key" if use.start < self._keys_end else kind
        plain = raw.replace('"', "").replace("'", "")
        if kind == "integer" and NUMBER.fullmatch(plain):
            return
        simple = _SIMPLE_USE.fullmatch(raw)
        name = (simple["bare"] or simple["name"]) if simple else ""
        if simple is None or (simple["item"] and self.portable):
            if kind != "name":
                self._wrap(use.start, use.end, kind)
            return
        if kind == "integer" and not simple["item"] and self.taint.is_number(name):
            return
        self._insert(use.start, name + (simple["item"] or ""), kind, is_quoted=use.is_quoted)

    def add_indirect(self, name: str, at: int, *, is_quoted: bool) -> None:
        """A `${!name}`, whose value is the name of another variable."""
        if re.fullmatch(r"[A-Za-z_]\w*|\d", name):
            self._insert(at, name, "name", is_quoted=is_quoted)

    def _insert(self, at: int, body: str, kind: Kind, *, is_quoted: bool) -> None:
        allowed, wanted = _ALLOWED[kind]
        message = f"line {self._line(at)}: {body.partition('[')[0]} {wanted}"
        if self.portable:
            if kind == "name":
                return
            test = f'[ "${{{body}#*[!{allowed}]}}" = "${{{body}-}}" ]'
            made = f'$({test} || {{ echo "{message}" >&2; echo @; }})'
        else:
            rest = f"${{__lw_t:=${{{body}:+${{{body}//[{allowed}]/}}}}}}"
            made = f"{rest}${{__lw_t:+${{__lw_refused:?{message}}}}}"
        self.edits.append((at, at, made if is_quoted else f'"{made}"'))

    def _wrap(self, start: int, end: int, kind: Kind, before: str = "", after: str = "") -> None:
        """Pass the result of an expansion, if it is harmless."""
        allowed, wanted = _ALLOWED[kind]
        messages_for = f'echo "line {self._line(start)}: the value here {wanted}" >&2; echo @'
        test = f'[ "${{__lw_v#*[!{allowed}]}}" = "$__lw_v" ]'
        test = f'if {test}; then echo "$__lw_v"; else {messages_for}; fi'
        self.edits.append((start, start, f"$(__lw_v={before}"))
        self.edits.append((end, end, f"{after}; {test})"))

    def _line(self, at: int) -> int:
        return self.first_line + self.text.count("\n", 0, at)

    # -- words -------------------------------------------------------------------------------------

    def add_condition(self, words: Sequence[Word]) -> None:
        """The words of `[[ … ]]`: operands of -gt and similar operators are evaluated."""
        for number, word in enumerate(words):
            sign = word.literal if word.whole and not word.quoted else ""
            if sign in _COMPARES:
                for operand in (*words[max(0, number - 1) : number], *words[number + 1 :][:1]):
                    self._add_part(operand, operand.at, operand.end, operand.at)
            elif sign in ("-v", "-R"):
                self._add_names(words[number + 1 : number + 2])

    def add_command(
        self, words: Sequence[Word], name: str, arguments: Sequence[Word], function: str
    ) -> None:
        """The words of a simple command: assignments, then its name and arguments."""
        for word in words:
            if not self._is_assignment(word):
                break
            self._add_assignment(word, function)
        self._add_arguments(name, arguments, function)

    def _add_arguments(self, name: str, arguments: Sequence[Word], function: str) -> None:
        if name == "let":
            for word in arguments:
                self._add_part(word, word.at, word.end, word.at)
        elif name in DECLARERS:
            self._add_declared(arguments, function)
        elif name in _VALUED_OPTIONS:
            self._add_names(_find_operands(arguments, _VALUED_OPTIONS[name]))
        elif name == "getopts":
            self._add_names(arguments[1:2])
        elif name in ("printf", "test", "["):
            signs = ("-v",) if name == "printf" else ("-v", "-R")
            for number, word in enumerate(arguments[:-1]):
                if word.whole and word.literal in signs:
                    self._add_names(arguments[number + 1 : number + 2])

    def add_array_word(self, word: Word, array: str) -> None:
        """A word of `name=( … )`, which may begin with a subscript."""
        raw = self.text[word.at : word.end]
        closing = self._find_closing(word.at)
        subscript = raw.startswith("[") and self.text.startswith(("=", "+="), closing or word.end)
        if subscript and not self.taint.has_keys(array):
            self._add_part(word, word.at + 1, closing - 1, word.at + 1, is_quoted=True)

    def _add_declared(self, words: Sequence[Word], function: str) -> None:
        flags = "".join(one.literal for one in words if one.literal[:1] == "-")
        for word in words:
            value = self._find_value(word)
            if word.literal[:1] in ("-", "+"):
                continue
            if "n" in flags and value:
                for use in word.uses:
                    self.add_use(use, "name")
            elif "i" in flags and value:
                self._add_part(word, value, word.end, value)
            elif word.assigns:
                self._add_assignment(word, function)
            else:
                named = [one for one in word.uses if not value or one.start < value]
                for use in named:
                    self.add_use(use, "name")

    def _add_assignment(self, word: Word, function: str) -> None:
        value = self._find_value(word)
        name = re.split(r"[^A-Za-z0-9_]", self.text[word.at : word.end], maxsplit=1)[0]
        element = SUBSCRIPT.match(self.text, word.at)
        closing = self._find_closing(element.end() - 1) if element else 0
        if element and closing and not self.taint.has_keys(name):
            start = element.end()
            self._add_part(word, start, closing - 1, start, is_quoted=True)
        if value and self.taint.is_integer(name, function):
            self._add_part(word, value, word.end, value)

    def _is_assignment(self, word: Word) -> bool:
        name = _NAME.match(self.text, word.at)
        end = name.end() if name else word.at
        behind = self._find_closing(end) or end
        return end > word.at and self.text.startswith(("=", "+="), behind)

    def _find_value(self, word: Word) -> int:
        """The start of the value of NAME=VALUE; 0 if a word has another form."""
        element = SUBSCRIPT.match(self.text, word.at)
        closing = self._find_closing(element.end() - 1) if element else 0
        found = self.text.find("=", max(closing, word.at), word.end)
        return found + 1 if found >= 0 else 0

    def _add_names(self, words: Sequence[Word]) -> None:
        """Words that name variables, perhaps with a subscript."""
        for word in words:
            for use in word.uses:
                before = self.text[word.at : use.start].strip("\"'")
                array = SUBSCRIPT.fullmatch(before)
                keyed = array is not None and self.taint.has_keys(array[1])
                self.add_use(use, "key" if keyed else "integer" if array else "name")
            raw = self.text[word.at : word.end].strip("\"'")
            named = SUBSCRIPT.match(raw)
            if named and word.whole and not self.taint.has_keys(named[1]):
                for used in _VARIABLE_NAME.findall(raw[named.end() :]):
                    if not self.taint.is_number(used):
                        self._insert(word.at, used, "integer", is_quoted=False)

    def _add_part(
        self, word: Word, start: int, end: int, at: int, *, is_quoted: bool = False
    ) -> None:
        """A part of a word is evaluated: check what it names in front of it, at `at`."""
        uses = [one for one in word.uses if start <= one.start and one.end <= end]
        for use in uses:
            self.add_use(use)
        rest, done = "", start
        for use in uses:
            rest, done = f"{rest}{self.text[done : use.start]}\0", max(done, use.end)
        rest += self.text[done:end]
        for found in _VARIABLE_NAME.finditer(rest):
            assigned = _PURE_ASSIGNMENT.match(rest, found.end()) is not None
            if not assigned and not self.taint.is_number(found[0]):
                self._insert(at, found[0], "integer", is_quoted=is_quoted)


def _find_operands(words: Sequence[Word], valued: str) -> list[Word]:
    """The words of a command that are neither options nor the values of options."""
    found, skip = [], False
    for word in words:
        option = word.literal.startswith("-") and not skip
        if not skip and not option:
            found.append(word)
        skip = option and word.whole and len(word.literal) > 1 and word.literal[-1] in valued
    return found
