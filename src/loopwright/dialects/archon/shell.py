"""Shell texts: every variable becomes a variable of the shell, quoted as its place demands.

No value is ever pasted into a script. The reader knows at each variable where it stands: bare, in
quotes, in a here-document, in a command inside of another, in arithmetic. Where the shell or
another program would take the value for code, the variable is refused; a text whose quotes or
brackets do not fit together is refused too, since then nobody knows.
"""

import re
from dataclasses import dataclass, field

from loopwright.dialects.archon.environment import OWN, Environment
from loopwright.dialects.archon.shell_commands import ARITHMETIC, CODE, EVALUATED, judge
from loopwright.dialects.archon.shell_parts import (
    Fault,
    Frame,
    Group,
    Heredoc,
    Pipe,
    Refused,
    Unreadable,
    Word,
)
from loopwright.dialects.archon.shell_quotes import IN_ANSI, IN_SINGLE, SAY, Quotes
from loopwright.dialects.archon.variables import VARIABLES, marks

_PLAIN = re.compile(r"[^\s\\'\"$`#;&|()<>]+")
_WORD = re.compile(r"[A-Za-z_]\w*")
_REDIRECT = re.compile(r"&>>?|<<<|<&|<>|>>|>&|>\||[<>]")
_HEREDOC = re.compile(r"<<(?P<dash>-?)[ \t]*")
_DELIMITER = re.compile(
    r"""'(?P<one>[^']*)'|"(?P<two>[^"$`\\]*)"|\\(?P<slash>.)|(?P<bare>[\w.+:/@%=-]+)"""
)
_SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|]")
_EMPTY_BRACKETS = re.compile(r"\([ \t]*\)")

# Words after which a command begins, and words that end a group of commands.
_OPENING = frozenset({"then", "else", "elif", "do", "!", "time", "-p"})
_GROUPS = frozenset({"if", "while", "until", "{"})
_HEADED = frozenset({"for", "select", "case"})
_CLOSING = frozenset({"}", "fi", "done", "esac"})
_NUMERIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})


@dataclass(slots=True)
class Rewritten:
    """A text in which no value is pasted, or why there is none."""

    text: str
    refused: list[Refused] = field(default_factory=list)


def rewrite(text: str, env: Environment) -> Rewritten:
    """The text for the shell; the values it needs are added to its environment."""
    found = marks(text, env.item)
    if not found and not _names_a_value(text):
        return Rewritten(text)
    reader = _Reader(text, found, env)
    try:
        reader.read()
    except Unreadable as problem:
        fault = Fault("bad-shell", problem.message, "close it, or escape it with \\")
        return Rewritten(text, [Refused(problem.at, "", fault)])
    refused = sorted(reader.refused.values(), key=lambda one: one.at)
    return Rewritten(text, refused) if refused else Rewritten(reader.result())


def _names_a_value(text: str) -> bool:
    return any(word.startswith(OWN) or word in VARIABLES for word in _WORD.findall(text))


class _Reader(Quotes):
    """Reads a script once from left to right: words, commands, pipelines."""

    pending: list[Heredoc]

    def read(self) -> None:
        """Read all of it; what is found is in `edits` and `refused`."""
        self.pending = []
        while True:
            while self.at < self.limit:
                self.steps.get(self.top.kind, self._words)()
            if self.top.kind != "here":
                break
            self._end_here()
        self._end_word()
        if len(self.stack) > 1 or self.top.cases:
            raise Unreadable(self.top.opened, SAY[self.top.kind])
        if self.pending:
            raise Unreadable(self.pending[0].token[0], SAY["here"])
        self._end_command()

    def _words(self) -> None:
        found = _PLAIN.match(self.text, self.at, self.limit)
        if found:
            self._add(found[0], found.end())
            return
        char = self.text[self.at]
        if char in "\\'\"$`#":
            self._quoting(char)
        elif char == "\n":
            self._newline()
        elif char.isspace():
            self._end_word()
            self.at += 1
        elif char in "()":
            self._round(char)
        else:
            self._operator(char)

    def _add(self, text: str, end: int, *, quoted: bool = False) -> None:
        word = self.top.word = self.top.word or Word()
        word.say(text)
        word.quoted |= quoted
        self.at = end

    def _quoting(self, char: str) -> None:
        text, at, frame = self.text, self.at, self.top
        if char == "\\":
            self._backslash(text[at + 1 : at + 2])
        elif char == "#" and frame.word is None:
            self._comment()
        elif char == "#":
            self._add(char, at + 1)
        elif char == "'" or text.startswith("$'", at):
            self._add("", at, quoted=True)
            self._single(1 if char == "'" else 2, style=IN_SINGLE if char == "'" else IN_ANSI)
        elif char == '"' or text.startswith('$"', at):
            self._add("", at, quoted=True)
            self._push("double", 1 if char == '"' else 2)
        elif char == "$":
            frame.word = frame.word or Word()
            self._dollar('"', '"')
        elif frame.kind == "tick":
            self._end_command()
            self._pop()
        else:
            self._tick()

    def _backslash(self, following: str) -> None:
        if following == "`" and any(frame.kind == "tick" for frame in self.stack):
            raise Unreadable(self.at, "backquotes inside of backquotes cannot be followed")
        if following == "\n":
            self.at += 2
        else:
            self._add(following, self.at + 2, quoted=True)

    def _comment(self) -> None:
        """To the end of the line, or of the backquotes."""
        ends = [self.text.find("\n", self.at)]
        if any(frame.kind == "tick" for frame in self.stack):
            ends.append(self.text.find("`", self.at))
        self.at = min((end for end in ends if end >= 0), default=self.limit)

    # -- words -------------------------------------------------------------------------------------

    def _end_word(self) -> None:
        frame = self.top
        word, frame.word = frame.word, None
        if word is None:
            return
        plain = word.literal if word.whole and not word.quoted else ""
        if frame.redirects or frame.names_function:
            self._end_target(frame, word)
        elif frame.kind == "array":
            subscript = word.before.startswith("[") and "]" not in word.before
            for mark in word.marks if subscript else ():
                self.refuse(mark, ARITHMETIC)
        elif frame.kind == "cond":
            frame.words.append(word)
            if plain == "]]":
                self._end_condition()
        elif frame.words or not self._reserved(frame, plain):
            self._end_argument(frame, word, plain)

    def _end_target(self, frame: Frame, word: Word) -> None:
        """A file that is read or written, or the name of a function."""
        # The word behind >& is expanded twice, so what a value says would be run.
        twice = frame.redirects.endswith("&")
        for mark in word.marks if twice or frame.pipe.takes_code else ():
            self.refuse(mark, EVALUATED if twice else CODE)
        frame.redirects, frame.names_function = "", False

    def _end_argument(self, frame: Frame, word: Word, plain: str) -> None:
        frame.words.append(word)
        if plain in _HEADED and len(frame.words) == 1:
            self._open_group(frame)
        elif plain == "in" and len(frame.words) == 3 and frame.words[0].literal == "case":
            frame.cases.append(True)
            frame.words = []

    def _reserved(self, frame: Frame, plain: str) -> bool:
        """Whether the first word of a command is a word of the language, and what it does."""
        if plain == "esac" and frame.cases:
            frame.cases.pop()
            self._end_group(frame)
            return True
        if frame.in_pattern:
            return False
        if plain in _CLOSING:
            self._end_group(frame)
        elif plain in _GROUPS:
            self._open_group(frame)
        elif plain == "function":
            frame.names_function = True
        elif plain == "[[":
            self._push("cond", 0)
        elif plain not in _OPENING:
            return False
        return True

    def _open_group(self, frame: Frame) -> None:
        frame.groups.append(Group(frame.pipe, len(frame.marks)))
        frame.pipe = Pipe(list(frame.pipe.marks))

    def _end_group(self, frame: Frame) -> None:
        """All that happened in a group happened in the pipeline around it."""
        frame.compound = True
        if not frame.groups:
            raise Unreadable(self.at, "a word that ends a group stands outside of one")
        group = frame.groups.pop()
        frame.pipe = group.pipe
        frame.pipe.marks += frame.marks[group.start :]
        frame.pipe.takes_code |= group.takes_code

    def _end_condition(self) -> None:
        words = self.stack.pop().words
        numeric = any(word.whole and word.literal in _NUMERIC for word in words)
        for mark in [mark for word in words for mark in word.marks] if numeric else ():
            self.refuse(mark, ARITHMETIC)
        self.top.words.append(Word("[["))

    # -- commands ----------------------------------------------------------------------------------

    def _end_command(self, *, piped: bool = False) -> None:
        self._end_word()
        frame = self.top
        words, frame.words = frame.words, []
        if words and not frame.in_pattern:
            judged = judge(words)
            for mark, fault in judged.found:
                self.refuse(mark, fault)
            if judged.takes_code:
                self._take_code(frame)
        if words or frame.compound or not frame.piped:
            frame.piped = piped
        if not frame.piped:
            self._start_pipe(frame)
        frame.compound = False
        frame.redirects, frame.names_function = "", False

    def _start_pipe(self, frame: Frame) -> None:
        """A new pipeline reads what flows into the group or the brackets around it."""
        around = frame.groups[-1].pipe.marks if frame.groups else frame.reads
        frame.pipe = Pipe(list(around))

    def _take_code(self, frame: Frame) -> None:
        """A command takes what flows into it for code."""
        frame.pipe.takes_code = frame.takes_code = True
        for group in frame.groups:
            group.takes_code = True
        for mark in frame.pipe.marks:
            self.refuse(mark, CODE)

    def _newline(self) -> None:
        if self.top.kind in ("array", "cond"):
            self._end_word()
        else:
            self._end_command()
        self.at += 1
        waiting, self.pending = self.pending, []
        self._read_heredocs(waiting)

    def _round(self, char: str) -> None:
        frame = self.top
        if char == "(" and frame.kind != "cond" and not frame.in_pattern:
            self._open_round(frame)
            return
        self._end_word()
        if char == "(" or frame.kind == "cond":
            self.at += 1
        elif frame.in_pattern:
            frame.words = []
            frame.cases[-1] = False
            self._start_pipe(frame)
            self.at += 1
        elif frame.kind == "array":
            self._pop()
        elif frame.kind == "paren":
            self._end_command()
            self._pop()
            self.top.compound |= self.top.word is None
            self.top.pipe.takes_code |= frame.takes_code and self.top.word is None
        else:
            raise Unreadable(self.at, "this ) closes nothing")

    def _open_round(self, frame: Frame) -> None:
        word = frame.word
        empty = _EMPTY_BRACKETS.match(self.text, self.at)
        if empty and (word or frame.words):  # name() begins a function
            frame.word, frame.words, frame.names_function = None, [], False
            self.at = empty.end()
        elif word and word.whole and word.assigns and word.literal.endswith("="):
            self._push("array", 1)
        elif word is None and self.text.startswith("((", self.at):
            self._push("arith", 2, depth=2)
        else:
            self._push_commands(1)

    def _push_commands(self, width: int) -> None:
        """Commands in brackets read what the command around them would read."""
        flowing = list(self.top.pipe.marks)
        frame = self._push("paren", width)
        frame.reads, frame.pipe = flowing, Pipe(list(flowing))

    def _operator(self, char: str) -> None:
        frame = self.top
        if frame.kind in ("cond", "array"):
            self._end_word()
            self.at += 1
        elif char in "<>" or self.text.startswith("&>", self.at):
            self._redirect()
        else:
            found = _SEPARATOR.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if frame.in_pattern:
                self._end_word()
                frame.words = []
                return
            self._end_command(piped=found[0] in ("|", "|&"))
            if frame.cases and found[0] in (";;", ";&", ";;&"):
                frame.cases[-1] = True

    def _redirect(self) -> None:
        text, frame = self.text, self.top
        if text.startswith(("<(", ">("), self.at):
            self._unknown()
            self._push_commands(2)
            return
        if frame.word and frame.word.whole and frame.word.literal.isdigit():
            frame.word = None
        self._end_word()
        heredoc = None if text.startswith("<<<", self.at) else _HEREDOC.match(text, self.at)
        if heredoc:
            self._heredoc(heredoc)
            return
        found = _REDIRECT.match(text, self.at)
        assert found is not None
        self.at = found.end()
        frame.redirects = found[0]

    def _heredoc(self, found: "re.Match[str]") -> None:
        """The delimiter; the text itself begins on the next line."""
        start = self.at = found.end()
        delimiter, quoted = "", False
        while piece := _DELIMITER.match(self.text, self.at, self.limit):
            quoted |= piece["bare"] is None
            delimiter += next(part for part in piece.groups() if part is not None)
            self.at = piece.end()
        if self.at == start or self.text[self.at : self.at + 1] in ("$", "`", '"', "'"):
            raise Unreadable(found.start(), SAY["here"])
        one = Heredoc(delimiter, quoted, bool(found["dash"]), (start, self.at), self.top.pipe)
        self.pending.append(one)
