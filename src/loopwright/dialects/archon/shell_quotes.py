"""Reading shell texts, the part below words: quotes, `${…}`, arithmetic, here-documents.

Every method looks at the character it stands on, takes what belongs together and moves on; nesting
lives on a stack, so its depth is never the depth of Python's.
"""

import re
from bisect import bisect_left
from collections.abc import Callable

from loopwright.dialects.archon.environment import OWN, Environment
from loopwright.dialects.archon.shell_commands import ARITHMETIC, CODE
from loopwright.dialects.archon.shell_parts import (
    WORDY,
    Fault,
    Frame,
    Heredoc,
    Kind,
    Refused,
    Unreadable,
    Word,
)
from loopwright.dialects.archon.variables import VARIABLES, Mark
from loopwright.model.template import Ref

_PLAIN_IN_DOUBLE = re.compile(r"[^\\\"$`]+")
_PLAIN_IN_HERE = re.compile(r"[^\\$`]+")
_PLAIN_IN_BRACE = re.compile(r"[^\\'\"$`}]+")
_PLAIN_IN_SUM = re.compile(r"[A-Za-z_]\w*|[^\\'\"$`()\[\]A-Za-z_]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACE = re.compile(
    r"\$\{(?P<bang>!?)#?(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])?(?P<item>\[[^\]$`\"']*\])?(?P<op>:?.)?",
    re.DOTALL,
)
_IN_ANSI = re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL)
_SAFE_DELIMITER = re.compile(r"[A-Za-z0-9_.+-]+")
MAX_NESTING = 200
IN_SINGLE = ("'\"", "\"'")
IN_ANSI = ("'\"", "\"$'")

_QUOTED_HEREDOC = Fault(
    "reference-in-quoted-heredoc",
    "a here-document with this delimiter takes no values",
    "use a delimiter of letters, such as <<'EOF', outside of backquotes",
)
SAY: dict[Kind, str] = {
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


class Quotes:
    """The state of reading, and everything in which words play no part."""

    def __init__(self, text: str, found: list[Mark], env: Environment) -> None:
        self.text = text
        self.marks = {mark.at: mark for mark in found}
        self.places = sorted(self.marks)
        self.env = env
        self.at = 0
        self.stack = [Frame("top", 0)]
        self.limit = len(text)
        self.edits: list[tuple[int, int, str]] = []
        self.refused: dict[int, Refused] = {}
        self.steps: dict[Kind, Callable[[], None]] = {
            "double": self._double,
            "brace": self._brace,
            "arith": self._sum,
            "here": self._here,
        }

    @property
    def top(self) -> Frame:
        """Where we are."""
        return self.stack[-1]

    def result(self) -> str:
        """The text with all changes made."""
        parts, at = [], 0
        for start, end, new in sorted(self.edits):
            parts += [self.text[at:start], new]
            at = end
        return "".join([*parts, self.text[at:]])

    # -- variables ---------------------------------------------------------------------------------

    def refuse(self, mark: Mark, fault: Fault) -> None:
        name = self.env.add(mark.ref, mark.variable) if fault is CODE else ""
        told = fault._replace(hint=fault.hint.replace("NAME", name)) if name else fault
        self.refused.setdefault(mark.at, Refused(mark.at, mark.written, told))

    def _fill(self, mark: Mark, before: str, after: str) -> None:
        """Put a variable of the shell into the place of a variable of the workflow."""
        name = self.env.add(mark.ref, mark.variable)
        self.edits.append((mark.at, mark.end, f"{before}${{{name}}}{after}"))
        self._notice(mark)

    def _notice(self, mark: Mark) -> None:
        """Let every level around a variable know of it."""
        for frame in self.stack:
            if frame.kind == "arith" or frame.computes:
                self.refuse(mark, ARITHMETIC)
            if frame.kind == "here" and frame.pipe.takes_code:
                self.refuse(mark, CODE)
            if frame.kind == "here" or frame.kind in WORDY:
                frame.pipe.marks.append(mark)
                frame.marks.append(mark)
            if frame.word is not None and frame.kind in WORDY:
                frame.word.take(mark)

    def _dollar(self, before: str = "", after: str = "") -> None:
        """Something behind a $, in a place where the shell looks at it."""
        text, at = self.text, self.at
        mark = self.marks.get(at)
        if mark and not mark.escaped:
            self._fill(mark, before, after)
            self.at = mark.end
            return
        self._unknown()
        if text.startswith("$((", at):
            self._push("arith", 3, depth=2)
        elif text.startswith("$(", at):
            self._push("paren", 2)
        elif text.startswith("$[", at):
            self._push("arith", 2, depth=1, close="]")
        elif text.startswith("${", at):
            self._open_brace()
        else:
            found = _NAME.match(text, at + 1)
            if found:
                self._mentioned(found[0], at + 1)
            self.at = found.end() if found else at + (2 if text[at : at + 2] == "$$" else 1)

    def _mentioned(self, name: str, at: int, *, fault: Fault | None = None) -> None:
        """A value that the author names by its variable of the shell."""
        if name not in VARIABLES and not name.startswith(OWN):
            return
        mark = Mark(name, at, VARIABLES.get(name, Ref(of="run")), name)
        self._notice(mark)
        if fault:
            self.refuse(mark, fault)

    def _unknown(self) -> None:
        """What follows is known only when the script runs."""
        frame = next(one for one in reversed(self.stack) if one.kind in (*WORDY, "here"))
        if frame.kind in WORDY:
            frame.word = frame.word or Word()
            frame.word.guess()

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
        """Where single quotes end; only in $'…' a backslash means something."""
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
            raise Unreadable(self.top.opened, SAY[self.top.kind])
        self._push("tick", 1)

    # -- ${…}, arithmetic, here-documents ----------------------------------------------------------

    def _open_brace(self) -> None:
        found = _BRACE.match(self.text, self.at)
        assert found is not None
        name, op = found["name"] or "", found["op"] or ""
        evaluated = bool(found["bang"]) or op == "@"
        self._mentioned(name, found.start("name"), fault=ARITHMETIC if evaluated else None)
        quoted = self._in_double()
        frame = self._push("brace", 2)
        frame.computes = op == "[" or (op[:1] == ":" and op[1:] not in ("-", "=", "?", "+"))
        frame.in_quotes = quoted
        frame.plain_single = quoted and op[:1] not in ("#", "%", "/", "^", ",")
        self.at = max(self.at, found.end("name"), found.end("item"))

    def _brace(self) -> None:
        text, at = self.text, self.at
        found = _PLAIN_IN_BRACE.match(text, at)
        if found:
            self.at = found.end()
        elif text[at] == "\\":
            self.at += 2
        elif text[at] == "'":
            self._quote_in_brace()
        elif text[at] == '"':
            self._push("double", 1)
        elif text[at] == "$":
            quote = "" if self.top.in_quotes else '"'
            self._dollar(quote, quote)
        elif text[at] == "`":
            self._tick()
        else:
            self._pop()

    def _in_double(self) -> bool:
        """Whether double quotes or a here-document surround this place already."""
        return self.top.kind in ("double", "here") or self.top.in_quotes

    def _quote_in_brace(self) -> None:
        if self.top.plain_single:
            self.at += 1
        else:
            self._single(1, style=IN_SINGLE)

    def _sum(self) -> None:
        text, at = self.text, self.at
        found = _PLAIN_IN_SUM.match(text, at)
        if found:
            self._mentioned(found[0], at)
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
        self.at = frame.after
        self._limit_again()
        self._read_heredocs(frame.rest)

    def _limit_again(self) -> None:
        ends = [frame.end for frame in self.stack if frame.kind == "here"]
        self.limit = ends[-1] if ends else len(self.text)

    def _read_heredocs(self, heredocs: list[Heredoc]) -> None:
        """The texts that begin on this line, one after another."""
        for number, one in enumerate(heredocs):
            start = self.at
            end, after = self._find_end(one)
            if not one.quoted:
                frame = self._push("here", 0)
                frame.pipe, frame.end, frame.after = one.pipe, end, after
                frame.rest = heredocs[number + 1 :]
                self.limit = end
                return
            self._quoted_heredoc(one, start, end)
            self.at = after

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
        for mark in found:
            if one.pipe.takes_code:
                self.refuse(mark, CODE)
            if not plain or in_ticks:
                self.refuse(mark, _QUOTED_HEREDOC)
            one.pipe.marks.append(mark)
            self._fill(mark, "", "")
        self.edits.append((*one.token, one.delimiter))
        inside = {at for mark in found for at in range(mark.at, mark.end)}
        escapes = {mark.at for mark in self._marks_between(start, end) if mark.escaped}
        for at in range(start, end):
            if at in escapes:
                self.edits.append((at, at + 2, "\\$"))
            elif self.text[at] in "\\$`" and at not in inside and at - 1 not in escapes:
                self.edits.append((at, at, "\\"))
