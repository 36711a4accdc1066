"""Reader of shell texts, the part below words: quotes, `${…}`, arithmetic, here-documents.

Nesting is kept on a stack: however deep it is, it cannot exceed the recursion limit of Python.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

from loopwright.dialects.archon.shell.commands import (
    ARITHMETIC,
    CODE,
    FILE_CODE,
    IN_PROGRAM,
    INDIRECT,
    TARGET,
    starts_programs,
)
from loopwright.dialects.archon.shell.guards import (
    BARE,
    DROPPED,
    OPTION,
    Guards,
    has_running_options,
)
from loopwright.dialects.archon.shell.repair import NumberChecks
from loopwright.dialects.archon.shell.state import (
    UNCLOSED,
    WORDY,
    Frame,
    Heredoc,
    Kind,
    Misuse,
    Pipe,
    ShellFault,
    Taint,
    Unreadable,
    Use,
    Word,
    derive_mark,
    is_for_script,
)
from loopwright.dialects.archon.variables import OWN, TRUSTED, VARIABLES, Environment, Mark
from loopwright.model.record import Ref

_PLAIN_IN_DOUBLE = re.compile(r"[^\\\"$`]+")
_PLAIN_IN_HERE = re.compile(r"[^\\$`]+")
_PLAIN_IN_BRACE = re.compile(r"[^\\'\"$`}]+")
_PLAIN_IN_SUM = re.compile(r"[A-Za-z_]\w*|[^\\'\"$`()\[\]A-Za-z_]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|[0-9@*]")
# Only the digits of a value, or the names of variables and elements.
_HARMLESS = re.compile(r"\$\{(?:\w+//\[[!^](?:0-9|\[:digit:\])\](?:/0?)?|!\w+(?:[@*]|\[[@*]\]))\}")
_BRACE = re.compile(
    r"\$\{(?P<bang>!?)#?(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])?(?P<item>\[[^\]$`\"']*\])?(?P<op>:?.)?",
    re.DOTALL,
)
_IN_ANSI = re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL)
_SAFE_DELIMITER = re.compile(r"[A-Za-z0-9_.+-]+")
MAX_NESTING = 200
HEREDOC = "<<"  # the function that a here-document for a shell defines
IN_SINGLE = ("'\"", "\"'")
IN_ANSI = ("'\"", "\"$'")

_QUOTED_HEREDOC = ShellFault(
    "reference-in-quoted-heredoc",
    "a here-document with this delimiter cannot contain values",
    "use a delimiter of letters, such as <<'EOF', outside of backquotes",
)


class Quotes:
    """The state of reading, and everything in which words play no part."""

    def __init__(self, text: str, found: list[Mark], env: Environment, taint: Taint) -> None:
        self.text = text
        self.taint = taint
        self.guards = Guards()
        self.checks = NumberChecks(text, taint)
        self.bodies = [""]  # the functions around this place
        self.base = 0  # the start of a script inside another one
        self.depth = 0  # scripts around this one
        self.marks = {mark.at: mark for mark in found}
        self.places = sorted(self.marks)
        self.env = env
        self.at = 0
        self.stack = [Frame("top", 0)]
        self.limit = len(text)
        self.edits: list[tuple[int, int, str]] = []
        self.refused: dict[int, Misuse] = {}
        self.faults: dict[int, list[ShellFault]] = {}  # all reasons, by place
        self.warned: dict[int, Misuse] = {}
        self.steps: dict[Kind, Callable[[], None]] = {
            "double": self._double,
            "brace": self._brace,
            "arith": self._sum,
            "here": self._here,
        }

    @property
    def top(self) -> Frame:
        """The current position."""
        return self.stack[-1]

    def result(self) -> str:
        """The text with all changes made."""
        parts, at = [], 0
        edits = [*self.checks.edits, *self.edits]
        for start, end, new in sorted(edits, key=lambda one: (one[0], one[1])):
            parts += [self.text[at:start], new]
            at = end
        return "".join([*parts, self.text[at:]])

    # -- variables ---------------------------------------------------------------------------------

    def refuse(self, mark: Mark, fault: ShellFault) -> None:
        """A value is used where it is not allowed."""
        self.faults.setdefault(mark.at, []).append(fault)
        earlier = self.refused.get(mark.at)
        if earlier is None or earlier.fault.code == TARGET.code:  # any other reason says more
            self.refused[mark.at] = Misuse(mark.at, mark.written, self._explain(mark, fault))

    def _explain(self, mark: Mark, fault: ShellFault) -> ShellFault:
        name = mark.variable or self.env.add(mark.ref)
        message, hint = fault.message, fault.hint.replace("NAME", name)
        if mark.source:
            sign = "$" if _PARAMETER.fullmatch(mark.written) and fault is not FILE_CODE else ""
            message = f"{sign}{mark.written} holds {mark.source}: {message}"
        if hint == fault.hint:
            hint += f" (the value is in ${name} and in the file ${name}_FILE)"
        return fault._replace(message=message, hint=hint)

    def _drop_option(self, mark: Mark, program: str) -> bool:
        """Let a variable of the script be empty when its value would be an option."""
        start, end, name = mark.at, mark.end, mark.written
        braces = self.text[start - 2 : start] == "${" and self.text[end : end + 1] == "}"
        plain = self.text[start - 1 : start] == "$"
        if not mark.source or self.depth or not has_running_options(program):
            return False
        if not plain and not braces:
            return False
        first, last = (start - 2, end + 1) if braces else (start - 1, end)
        self.edits.append((first, last, f"${{{name}##-*}}"))
        self.warned[start] = Misuse(start, name, DROPPED)
        return True

    def _add_quotes(self, word: Word) -> None:
        """One word stays one word; in code for another shell that is left to its author."""
        note = Misuse(word.marks[0].at, word.marks[0].written, BARE)
        if self.depth:
            self.refuse(word.marks[0], BARE._replace(code=OPTION.code))
            return
        self.warned[note.at] = note
        for start, end in word.bare:
            self.edits += [(start, start, '"'), (end, end, '"')]

    def _fill(self, mark: Mark, before: str, after: str) -> None:
        """Put a variable of the shell into the place of a variable of the workflow."""
        name = self.env.add(mark.ref, mark.variable)
        self.edits.append((mark.at, mark.end, f"{before}${{{name}}}{after}"))
        if mark.variable in TRUSTED:
            self._unknown()
        else:
            self._notice(mark)

    def _notice(self, mark: Mark) -> None:
        """Let the levels around a value know of it, up to the command that it belongs to."""
        for frame in reversed(self.stack):
            brace, is_sum = frame.brace, frame.kind == "arith" or frame.brace.computes
            if is_sum or brace.assigns in self.taint.types.integers:
                self.refuse(mark, ARITHMETIC)
            if brace.assigns:
                self.taint.add_name(brace.assigns, mark)
            if frame.kind == "here":
                self._notice_in_heredoc(mark, frame.pipe, frame.document.token)
                return
            if frame.kind in WORDY:
                frame.pipe.own.append(mark)
                if frame.word is not None:
                    frame.word.take(mark)
            if frame.kind in ("top", "paren", "tick"):
                return

    def _notice_in_heredoc(self, mark: Mark, pipe: Pipe, token: int) -> None:
        """The command has been read already: it learns of the value when all is read again."""
        if pipe.runs_input:
            self.refuse(mark, CODE)
        self.taint.held.inputs.setdefault((self.base, token), mark)

    def _dollar(self, before: str = "", after: str = "") -> None:
        """An expression after a $, where the shell evaluates it."""
        text, at = self.text, self.at
        mark = self.marks.get(at)
        if mark and not mark.escaped:
            self._fill(mark, before, after)
            self.at = mark.end
            return
        self._unknown()
        if text.startswith("$((", at):
            self._push("arith", 3, depth=2).checks = len(self.checks.edits)
        elif text.startswith("$(", at):
            self._push_substitution("paren", 2)
        elif text.startswith("$[", at):
            self._push("arith", 2, depth=1, close="]")
        elif text.startswith("${", at):
            self._open_brace()
        else:
            found = _PARAMETER.match(text, at + 1)
            if found:
                self._use(found[0], at + 1)
            self.at = found.end() if found else at + (2 if text[at : at + 2] == "$$" else 1)
            self._note_bare(at)

    def _push_substitution(self, kind: Kind, width: int) -> Frame:
        """Commands whose output becomes a part of the word around them."""
        inputs = list(self._around().pipe.inputs)
        frame = self._push(kind, width)
        self.guards.open("(")
        frame.flow.captured = True
        frame.flow.reads, frame.pipe = inputs, Pipe(list(inputs))
        return frame

    def _end_substitution(self, frame: Frame) -> None:
        """What the commands printed becomes a part of the word."""
        self.guards.close(captured=frame.flow.captured)
        for mark in frame.flow.out if frame.flow.captured else ():
            self._notice(mark)
        if frame.flow.captured:
            self._note_bare(frame.opened)

    def _around(self) -> Frame:
        """The innermost level that is made of words."""
        return next(one for one in reversed(self.stack) if one.kind in WORDY)

    def _note_bare(self, start: int) -> None:
        """Text without quotes may become several words."""
        frame = self.top
        self._note_use(start)
        if frame.kind in WORDY and frame.word is not None and frame.kind != "cond":
            frame.word.many = True
            frame.word.bare.append((start, self.at))

    def _note_use(self, start: int) -> None:
        """Something with a $ has ended: it is evaluated here, or its word may be later."""
        quoted = self.top.kind == "double"
        frame = self.stack[-2] if quoted else self.top
        if frame.kind == "arith" or frame.brace.computes:
            self.checks.add_use(Use(start, self.at, is_quoted=True))
        elif frame.kind in WORDY and frame.word is not None:
            frame.word.uses.append(Use(start, self.at, quoted))

    def _use(self, name: str, at: int, *, fault: ShellFault | None = None) -> None:
        """A variable of the shell is read: it may hold a value."""
        if name in ("@", "*"):
            self._note_many()
        mark = self._find_value(name, at)
        if mark is None:
            return
        self._notice(mark)
        if fault:
            self.refuse(mark, fault)

    def _find_value(self, name: str, at: int) -> Mark | None:
        """The value that a variable of the shell holds at this place."""
        if self.guards.is_proven(name) or name in TRUSTED:
            return None
        if not name[0].isalpha() and name[0] != "_":
            held = self.taint.parameter(self.bodies[-1], name)
        elif name in VARIABLES or (name.startswith(OWN) and not self.env.is_file(name)):
            return Mark(name, at, VARIABLES.get(name, Ref(of="run")), name)
        else:
            held = self.taint.names.get(name)
        return derive_mark(held, name, at) if held else None

    def find_in_text(self, text: str, at: int) -> Mark | None:
        """The first variable with a value that a text names."""
        found = (self._find_value(name, at) for name in _NAME.findall(text))
        return next((mark for mark in found if mark), None)

    def _unknown(self) -> None:
        """The following text is known only when the script runs."""
        word = self._current_word()
        if word is not None:
            word.guess()

    def _current_word(self) -> Word | None:
        """The word around this place; a here-document is not made of words."""
        frame = next(one for one in reversed(self.stack) if one.kind in (*WORDY, "here"))
        if frame.kind == "here":
            return None
        frame.word = frame.word or Word(at=self.at)
        return frame.word

    def _note_many(self) -> None:
        """All parameters or elements: the shell makes several words of one."""
        word = self._current_word()
        if word is not None:
            word.many = True

    def _flowing(self, frame: Frame, function: str | None) -> list[Mark]:
        """What the commands of a group can read."""
        if function is not None:
            known = self.taint.effects.reads.get(function)
            return [known] if known else []
        known = self.taint.held.inputs.get((self.base, self.at))
        return [*frame.pipe.inputs, *([known] if known else [])]

    def _enter(self, function: str | None) -> None:
        if function is not None:
            self.taint.effects.functions.add(function)
            self.bodies.append(function)

    def _leave(self, function: str | None, printed: list[Mark]) -> None:
        if function is not None:
            self.bodies.pop()
            for mark in printed[:1]:
                self.taint.effects.prints.setdefault(function, mark)

    def _push(self, kind: Kind, width: int, *, depth: int = 0, close: str = ")") -> Frame:
        if len(self.stack) >= MAX_NESTING:
            raise Unreadable(
                self.at, f"quotes and brackets are nested more than {MAX_NESTING} deep"
            )
        self.stack.append(Frame(kind, self.at, depth=depth, close=close))
        self.at += width
        return self.top

    def _pop(self) -> None:
        self.stack.pop()
        self.at += 1

    # -- quotes ------------------------------------------------------------------------------------

    def _single(self, width: int, *, style: tuple[str, str]) -> None:
        """A text between single quotes, in which values get quotes of their own."""
        start = self.at + width
        end = self._closing(start, ansi=width == 2)
        if end < 0 or end >= self.limit:
            raise Unreadable(self.at, "a single quote is not closed")
        for mark in self._marks_between(start, end):
            self._literal(self.text[start : mark.at], mark.at)
            start = mark.end
            if mark.escaped:
                self.edits.append((mark.at, mark.at + 1, ""))
            else:
                self._fill(mark, *style)
        self._literal(self.text[start:end], end + 1)

    def _closing(self, start: int, *, ansi: bool) -> int:
        """The end of single quotes; a backslash has a meaning only in $'…'."""
        if not ansi:
            return self.text.find("'", start)
        found = _IN_ANSI.match(self.text, start)
        return found.end() - 1 if found else -1

    def _marks_between(self, start: int, end: int) -> list[Mark]:
        places = slice(bisect_left(self.places, start), bisect_left(self.places, end))
        return [self.marks[at] for at in self.places[places]]

    def _double(self) -> None:
        text, at = self.text, self.at
        found = _PLAIN_IN_DOUBLE.match(text, at)
        if found:
            self._literal(found[0], found.end())
        elif text[at] == "\\":
            self._literal(text[at + 1 : at + 2], at + 2)
        elif text[at] == "$":
            self._dollar()
        elif text[at] == "`":
            self._tick()
        else:
            self._pop()

    def _literal(self, text: str, end: int) -> None:
        """Plain text inside of quotes belongs to the word around them, if that is a word."""
        frame = self.stack[-2] if self.top.kind == "double" else self.top
        if frame.kind in WORDY and frame.word is not None:
            frame.word.say(text)
        self.at = end

    def _tick(self) -> None:
        """A backquote opens; the one that closes is met among words."""
        self._unknown()
        if any(frame.kind == "tick" for frame in self.stack):
            raise Unreadable(self.top.opened, UNCLOSED[self.top.kind])
        self._push_substitution("tick", 1)

    # -- ${…}, arithmetic, here-documents ----------------------------------------------------------

    def _open_brace(self) -> None:
        found = _BRACE.match(self.text, self.at)
        assert found is not None
        name, op, item = found["name"] or "", found["op"] or "", found["item"] or ""
        evaluated = bool(found["bang"]) or self.text.startswith("@P", found.start("op"))
        quoted = self._in_double()
        self._read_parameter(found, name, evaluated=evaluated)
        if item[1:-1] in ("@", "*"):
            self._note_many()
        elif name not in self.taint.types.associative:
            for one in _NAME.finditer(item):
                self._use(one[0], found.start("item") + one.start(), fault=ARITHMETIC)
                if not self.taint.has_keys(name):
                    self.checks.add_name(one[0], found.start("item") + one.start())
        if found["bang"] and name and not _HARMLESS.match(self.text, self.at):
            in_quotes = quoted or self.top.kind == "arith"
            self.checks.add_indirect(name, self.at, is_quoted=in_quotes)
        frame = self._push("brace", 2)
        subscript = op == "[" and name not in self.taint.types.associative
        frame.brace.subscript = op == "["
        frame.brace.computes = subscript or (op[:1] == ":" and op[1:] not in ("-", "=", "?", "+"))
        frame.brace.assigns = name if op in ("=", ":=") else ""
        if frame.brace.assigns:
            self.taint.note_assigned(name, self.text[found.end("op") :].partition("}")[0])
        frame.brace.in_quotes = quoted
        frame.brace.plain_single = quoted and op[:1] not in ("#", "%", "/", "^", ",")
        self.at = max(self.at, found.end("name"), found.end("item"))

    def _read_parameter(self, found: "re.Match[str]", name: str, *, evaluated: bool) -> None:
        """The variable of `${…}`, unless only its length, its digits or its name are taken."""
        length = self.text.startswith("${#", self.at)
        if not name or length or _HARMLESS.match(self.text, self.at):
            return
        at = found.start("name")
        self._use(name, at, fault=INDIRECT if evaluated else None)
        if found["bang"]:  # its value names the variable that is read, which may be any
            self._notice(Mark(found[0], self.at, Ref(of="run"), name, source="a value"))

    def _brace(self) -> None:
        text, at = self.text, self.at
        found = _PLAIN_IN_BRACE.match(text, at)
        if found:
            self._computed(found[0], at)
            self.at = found.end()
        elif text[at] == "\\":
            self.at += 2
        elif text[at] == "'":
            self._quote_in_brace()
        elif text[at] == '"':
            self._push("double", 1)
        elif text[at] == "$":
            quote = "" if self.top.brace.in_quotes else '"'
            self._dollar(quote, quote)
        elif text[at] == "`":
            self._tick()
        else:
            opened = self.top.opened
            self._pop()
            self._note_bare(opened)

    def _computed(self, text: str, at: int) -> None:
        """Names in arithmetic are variables, also without a $."""
        frame, end = self.top, len(text)
        if frame.brace.subscript and "]" in text:
            end, frame.brace.subscript = text.index("]"), False
        for one in _NAME.finditer(text, 0, end) if frame.brace.computes else ():
            self._use(one[0], at + one.start(), fault=ARITHMETIC)
            self.checks.add_name(one[0], at + one.start())
        frame.brace.computes = frame.brace.computes and (end == len(text))

    def _in_double(self) -> bool:
        """Whether double quotes or a here-document surround this place already."""
        return self.top.kind in ("double", "here") or self.top.brace.in_quotes

    def _quote_in_brace(self) -> None:
        if self.top.brace.plain_single:
            self.at += 1
        else:
            self._single(1, style=IN_SINGLE)

    def _sum(self) -> None:
        text, at = self.text, self.at
        found = _PLAIN_IN_SUM.match(text, at)
        if found:
            if found[0][0].isalpha() or found[0][0] == "_":
                self._use(found[0], at, fault=ARITHMETIC)
                self.checks.add_name(found[0], at)
            self.at = found.end()
        elif text[at] == "\\":
            self.at += 2
        elif text[at] == "'":
            self._single(1, style=IN_SINGLE)
        elif text[at] == '"':
            self._push("double", 1)
        elif text[at] == "$":
            self._dollar()
        elif text[at] == "`":
            self._tick()
        else:
            self._bracket()

    def _bracket(self) -> None:
        frame = self.top
        pair = "()" if frame.close == ")" else "[]"
        frame.depth += {pair[0]: 1, pair[1]: -1}.get(self.text[self.at], 0)
        self.at += 1
        if frame.depth == 0:
            self.stack.pop()
            if frame.close == ")" and not self.text.endswith("))", 0, self.at):
                self.checks.drop_since(frame.checks)  # commands in brackets
            elif self.text.startswith("$", frame.opened):
                self._note_use(frame.opened)

    def _here(self) -> None:
        text, at = self.text, self.at
        found = _PLAIN_IN_HERE.match(text, at, self.limit)
        if found:
            self.at = found.end()
        elif text[at] == "\\":
            self.at += 2
        elif text[at] == "$":
            self._dollar()
        else:
            self._tick()

    def _end_here(self) -> None:
        frame = self.stack.pop()
        self.at = frame.document.after
        self._limit_again()
        self._read_heredocs(frame.document.rest)

    def _limit_again(self) -> None:
        ends = [frame.document.end for frame in self.stack if frame.kind == "here"]
        self.limit = ends[-1] if ends else len(self.text)

    def _read_heredocs(self, heredocs: list[Heredoc]) -> None:
        """The texts that begin on this line, one after another."""
        for number, one in enumerate(heredocs):
            start = self.at
            end, after = self._find_end(one)
            if not one.quoted:
                frame = self._push("here", 0)
                frame.pipe, frame.document.end, frame.document.after = one.pipe, end, after
                frame.document.token = one.token[0]
                frame.document.rest = heredocs[number + 1 :]
                self.limit = end
                return
            self._quoted_heredoc(one, start, end)
            code = Word(self.text[start:end], at=start - 1)
            if one.pipe.runs_input:
                self.read_script(code, HEREDOC)
                self._warn_of_programs([code], one.pipe)
            elif is_for_script(self.text, one, start):
                self._check_script(code)
            self.at = after

    def read_script(self, code: Word, function: str) -> None:
        """Read code for another shell, whose parameters are those of `function`."""
        raise NotImplementedError

    def _check_script(self, code: Word) -> None:
        """Put checks of numbers into a script that the text writes into a file."""
        raise NotImplementedError

    def _warn_of_programs(self, words: Sequence[Word], pipe: Pipe) -> None:
        """Warn of code for another interpreter that gets a value and starts programs."""
        if pipe.marks and any(starts_programs(word.literal) for word in words):
            at = words[0].at + (self.text[words[0].at] == "\n")
            written = self.text[at:].split(maxsplit=1)[0]
            self.warned.setdefault(at, Misuse(at, written, IN_PROGRAM))

    def _find_end(self, one: Heredoc) -> tuple[int, int]:
        at = self.at
        while at < self.limit:
            line_end = self.text.find("\n", at, self.limit)
            line_end = self.limit if line_end < 0 else line_end
            line = self.text[at:line_end]
            if (line.lstrip("\t") if one.strips_tabs else line) == one.delimiter:
                return at, line_end
            at = line_end + 1
        raise Unreadable(one.token[0], f"the here-document {one.delimiter} is not closed")

    def _quoted_heredoc(self, one: Heredoc, start: int, end: int) -> None:
        """Take the quotes off the delimiter and escape all but the variables: the text is the same,
        and the shell fills the variables in.
        """
        found = [mark for mark in self._marks_between(start, end) if not mark.escaped]
        if not found:
            return
        plain = _SAFE_DELIMITER.fullmatch(one.delimiter)
        in_ticks = any(frame.kind == "tick" for frame in self.stack)
        frame = self._push("here", 0)
        frame.pipe, frame.document.token = one.pipe, one.token[0]
        for mark in found:
            if not plain or in_ticks:
                self.refuse(mark, _QUOTED_HEREDOC)
            self._fill(mark, "", "")
        self.stack.pop()
        self.edits.append((*one.token, one.delimiter))
        inside = {at for mark in found for at in range(mark.at, mark.end)}
        escapes = {mark.at for mark in self._marks_between(start, end) if mark.escaped}
        for at in range(start, end):
            if at in escapes:
                self.edits.append((at, at + 2, "\\$"))
            elif self.text[at] in "\\$`" and at not in inside and at - 1 not in escapes:
                self.edits.append((at, at, "\\"))
