"""Reader of shell texts, the part above quotes: words, commands, pipelines, groups."""

import re
from collections.abc import Sequence

from loopwright.dialects.archon.shell.commands import (
    ARITHMETIC,
    CODE,
    EVALUATED,
    INTERPRETER,
    TARGET,
    find_scripts,
    judge,
)
from loopwright.dialects.archon.shell.effects import Effects
from loopwright.dialects.archon.shell.guards import (
    OPTION,
    Proof,
    find_bare_words,
    find_compared,
    find_tested,
)
from loopwright.dialects.archon.shell.quotes import HEREDOC, IN_ANSI, IN_SINGLE, Quotes
from loopwright.dialects.archon.shell.state import (
    SUBSCRIPT,
    UNCLOSED,
    CompoundCommand,
    Frame,
    Heredoc,
    Pipe,
    Taint,
    Unreadable,
    Word,
    derive_mark,
    is_exec,
)
from loopwright.dialects.archon.variables import Mark, find_value_names
from loopwright.model.record import Ref

_PLAIN = re.compile(r"[^\s\\'\"$`#;&|()<>]+")
_REDIRECT = re.compile(r"&>>?|<<<|<&|<>|>>|>&|>\||[<>]")
_HEREDOC = re.compile(r"<<(?P<dash>-?)[ \t]*")
_DELIMITER = re.compile(
    r"""'(?P<one>[^']*)'|"(?P<two>[^"$`\\]*)"|\\(?P<slash>.)|(?P<bare>[\w.+:/@%=-]+)"""
)
_SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|]")
_MATCHES_NUMBERS = re.compile(
    r"\^?(?:[\w #/:,@-]|\(?\[(?:0-9|\[:digit:\])\][+*?]?\)?|\{\d+,?\d*\})*\$?"
)
_MOST_SCRIPTS = 5
_LAST_STANDARD = 2  # descriptors above it are the script's own
_EMPTY_BRACKETS = re.compile(r"\([ \t]*\)")

# Words before a command, and words that end a group of commands.
_OPENING = frozenset({"then", "else", "elif", "do", "!", "time", "-p"})
_GROUPS = frozenset({"if", "while", "until", "{"})
_BRANCHES = frozenset({"then", "elif", "else", "do"})
_HEADED = frozenset({"for", "select", "case"})
_CLOSING = frozenset({"}", "fi", "done", "esac"})
_CONTROL = _BRANCHES | _CLOSING
_NUMERIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})


class ShellReader(Quotes):
    """Reads a script once from left to right: words, commands, pipelines."""

    pending: list[Heredoc]
    numbered: bool = False  # the current redirection is of a descriptor of the script's own

    def read(self) -> None:
        """Read all of it; the results are in `edits` and `refused`."""
        self.pending = []
        self.loops: list[tuple[int, bool]] = []  # the groups around this place
        while True:
            while self.at < self.limit:
                self.steps.get(self.top.kind, self._words)()
            if self.top.kind != "here":
                break
            self._end_here()
        self._end_word()
        if len(self.stack) > 1 or self.top.case.cases:
            raise Unreadable(self.top.opened, UNCLOSED[self.top.kind])
        if self.pending:
            raise Unreadable(self.pending[0].token[0], UNCLOSED["here"])
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
        word = self.top.word = self.top.word or Word(at=self.at)
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
            frame.word = frame.word or Word(at=at)
            self._dollar('"', '"')
        elif frame.kind == "tick":
            self._end_command()
            self._pop()
            self._end_substitution(frame)
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
        word.end = self.at
        word.source = self.text[word.at : self.at].replace('"', "").replace("'", "")
        plain = word.literal if word.whole and not word.quoted else ""
        if frame.command.redirects or frame.command.names_function:
            self._end_target(frame, word)
        elif frame.kind == "array":
            subscript = word.before.startswith("[") and "]" not in word.before
            for mark in word.marks if subscript else ():
                self.refuse(mark, ARITHMETIC)
            self.checks.add_array_word(word, frame.array)
        elif frame.kind == "cond":
            frame.words.append(word)
            if plain == "]]":
                self._end_condition()
        elif frame.words or not self._reserved(frame, plain):
            self._end_argument(frame, word, plain)

    def _end_target(self, frame: Frame, word: Word) -> None:
        """A file that is read or written, or the name of a function."""
        sign, frame.command.redirects = frame.command.redirects, ""
        if frame.command.names_function:
            frame.command.names_function, frame.command.defines = False, word.literal
            return
        # The word after >& is expanded twice, so a value in it would be executed.
        twice = sign.endswith("&")
        for mark in word.marks if twice or frame.pipe.runs_input else ():
            self.refuse(mark, EVALUATED if twice else CODE)
        if ">" in sign:
            for mark in word.marks:
                self.refuse(mark, TARGET)
            frame.command.writes.append(word.source)
            self.taint.held.written |= {word.source} if is_exec(frame.words) else set()
        else:
            self._read_from(frame, word, sign)

    def _read_from(self, frame: Frame, word: Word, sign: str) -> None:
        """A command or a group reads a file or a text."""
        if sign == "<":
            for mark in word.marks if word.led and word.source[:2] != "<(" else ():
                self.refuse(mark, TARGET)
            held = self.taint.find_file(word.source, self.bodies[-1])
            read = [*word.marks, *([derive_mark(held, word.source, word.at)] if held else [])]
        elif sign == "<&":
            read = [*word.marks, *self.taint.held.descriptors.values()]
        else:
            read = word.marks
        if self.numbered or is_exec(frame.words):
            for mark in read:
                self.taint.held.descriptors.setdefault("", mark)
        frame.pipe.inputs += read
        frame.pipe.explicit = True
        for mark in read:
            if frame.pipe.runs_input:
                self.refuse(mark, CODE)
            if frame.command.compound:
                self.taint.held.inputs.setdefault((self.base, frame.command.ended), mark)

    def _end_argument(self, frame: Frame, word: Word, plain: str) -> None:
        array = SUBSCRIPT.match(word.source)
        if array and array[1] in self.taint.types.associative and "]" in word.source:
            word.keyed = array[1]
        frame.words.append(word)
        if plain in _HEADED and len(frame.words) == 1:
            self._open_group(frame, plain)
        elif plain == "in" and len(frame.words) == 3 and frame.words[0].literal == "case":
            frame.case.cases.append(True)
            self.guards.open_case(frame.words[1].source)
            frame.words = []
            frame.pipe.own.clear()

    def _reserved(self, frame: Frame, plain: str) -> bool:
        """Whether the first word of a command is a word of the language, and what it does."""
        if plain == "esac" and frame.case.cases:
            frame.case.cases.pop()
        elif frame.in_pattern:
            return False
        if frame.command.compound and plain in _CONTROL:
            self._end_command()
        if plain in _CLOSING:
            self._end_group(frame)
        elif plain in _GROUPS:
            self._open_group(frame, plain)
        elif plain == "function":
            frame.command.names_function = True
        elif plain == "[[":
            self._push("cond", 0)
        elif plain not in _OPENING:
            return False
        else:
            self._start_part(plain)
        return True

    def _start_part(self, plain: str) -> None:
        if plain == "!":
            self.guards.negate()
        elif plain in _BRANCHES:
            self.guards.branch(plain)

    def _open_group(self, frame: Frame, kind: str) -> None:
        function, frame.command.defines = frame.command.defines, None
        loop = kind in ("for", "select", "while", "until")
        place = self.base + self.at
        spoiled = {name for at, name in self.taint.spoiled if loop and at == place}
        self.loops.append((place, loop))
        self.guards.open(kind if function is None else "function", spoiled)
        reads = self._flowing(frame, function)
        frame.groups.append(
            CompoundCommand(frame.pipe, len(frame.flow.out), self.at, reads, function=function)
        )
        self._enter(function)
        frame.pipe = Pipe(list(reads))

    def _end_group(self, frame: Frame) -> None:
        """All that happened in a group happened in the pipeline around it."""
        frame.command.compound = True
        if not frame.groups:
            raise Unreadable(self.at, "a word that ends a group is outside of a group")
        group = frame.groups.pop()
        self.loops.pop()
        self.guards.close()
        frame.command.ended = group.opened
        frame.pipe = group.pipe
        printed = frame.flow.out[group.start :]
        del frame.flow.out[group.start :]
        self._leave(group.function, printed)
        if group.function is None:
            frame.pipe.own += printed
        frame.pipe.runs_input |= group.runs_input

    def _end_condition(self) -> None:
        frame = self.stack.pop()
        words = frame.words
        text = self.text[frame.opened : self.at].strip().removesuffix("]]").strip()
        self.top.command.tested = text
        self._note_matches(words, text)
        self.checks.add_condition(words)
        numeric = any(word.whole and word.literal in _NUMERIC for word in words)
        for word in words if numeric else ():
            for mark in word.marks:
                self.refuse(mark, ARITHMETIC)
            if word.literal not in ("-v", "-R") and not word.quoted:
                self._refuse_names(word)
        self.top.words.append(Word("[["))

    def _note_matches(self, words: list[Word], text: str) -> None:
        """`=~` leaves parts of a value in BASH_REMATCH, unless they can only be numbers."""
        found = next((mark for word in words for mark in word.marks), None)
        pattern = text.partition("=~")[2].strip()
        if found and pattern and not _MATCHES_NUMBERS.fullmatch(pattern):
            self.taint.add_name("BASH_REMATCH", found)

    def _refuse_names(self, word: Word) -> None:
        """A name in arithmetic is a variable, also without a $."""
        mark = self.find_in_text(word.literal, word.at) if word.whole else None
        if mark:
            self.refuse(mark, ARITHMETIC)

    # -- commands ----------------------------------------------------------------------------------

    def _end_command(self, separator: str = ";") -> None:
        self._end_word()
        frame = self.top
        words, frame.words = frame.words, []
        if frame.in_pattern:
            words = []
        if words or frame.command.compound or frame.command.redirected or not frame.flow.piped:
            self._end_stage(frame, words, separator)
        frame.command.compound, frame.command.tested = False, ""
        frame.command.redirects, frame.command.names_function = "", False

    def _end_stage(self, frame: Frame, words: list[Word], separator: str) -> None:
        """One command of a pipeline has been read."""
        piped = separator in ("|", "|&")
        printed = frame.pipe.own if frame.command.compound else frame.pipe.marks
        if words:
            effects = Effects(self.taint, self.bodies[-1], words, frame.pipe)
            effects.apply()
            self._judge(frame, words, effects)
            self.checks.add_command(words, effects.name, effects.arguments, self.bodies[-1])
            if INTERPRETER.fullmatch(effects.name):
                self._warn_of_programs(effects.command, frame.pipe)
            printed = effects.output()
            self.guards.finish(self._find_outcome(frame, effects), separator)
        elif frame.command.compound or frame.command.redirected:
            self.guards.finish(Proof(), separator)
        for path in [*frame.command.writes, *self.taint.held.written] if printed else ():
            self.taint.add_file(path, self.bodies[-1], printed[0])
        for mark in frame.pipe.marks if frame.command.feeds_code else ():
            self.refuse(mark, CODE)
        frame.command.writes, frame.command.redirected, frame.command.feeds_code = [], False, False
        frame.flow.piped = piped
        if piped:
            runs_input = frame.pipe.runs_input
            frame.pipe.inputs, frame.pipe.own = list(printed), []
            frame.pipe.explicit, frame.pipe.runs_input = True, runs_input
        else:
            frame.flow.out += printed
            self._start_pipe(frame)

    def _find_outcome(self, frame: Frame, effects: Effects) -> Proof:
        """What a command does to variables, and what it proves about them."""
        spoiled = frozenset(name for name, mark in effects.assigned.items() if mark)
        for place, block in self.loops:
            self.taint.spoiled |= {(place, name) for name in spoiled} if block else set()
        if len(self.bodies) > 1:
            self.taint.effects.called |= spoiled
        if effects.name in self.taint.effects.functions:
            spoiled |= self.taint.effects.called
        temporary = {one.assigns for one in effects.assignments if effects.command}
        cleaned = {name for name, mark in effects.assigned.items() if not mark}
        outcome = find_tested(frame.command.tested) if frame.command.tested else Proof()
        if effects.name in ("[", "test"):
            outcome = Proof(find_compared(effects.arguments))
        return outcome._replace(
            cleaned=frozenset(cleaned - temporary),
            spoiled=spoiled,
            leaves=self.guards.is_left(effects.name, effects.arguments),
        )

    def _judge(self, frame: Frame, words: list[Word], effects: Effects) -> None:
        judged = judge(words, self.taint.free_names, self.taint.kept_names)
        for mark, fault in [*effects.refused, *judged.found]:
            if fault is not OPTION or not self._drop_option(mark, effects.name):
                self.refuse(mark, fault)
        if effects.name == "eval" and not all(one.whole for one in effects.arguments):
            self._refuse_assembled(effects.arguments)
        for word in find_bare_words(effects.name, effects.arguments):
            self._add_quotes(word)
        named = next(iter(find_value_names(*(f"{one.literal} {one.tail}" for one in words))), None)
        if named:  # a program that finds the value itself
            frame.pipe.own.append(
                self._find_value(named, words[0].at) or Mark("", 0, Ref(of="run"))
            )
        if judged.runs_input:
            self._mark_runs_input(frame)
            effects.pass_values(HEREDOC, words[1:])
        for code, parameters in find_scripts(words):
            function = self.bodies[-1]
            if parameters is not None:
                function = f"-c {self.base} {code.at}"
                effects.pass_arguments(function, parameters)
                effects.pass_values(function, [], frame.pipe.inputs)
            self.read_script(code, function)

    def _refuse_assembled(self, words: Sequence[Word]) -> None:
        """Code that is put together when the script runs must not name a variable with a value."""
        for word in words:
            used = self.find_in_text(f"{word.literal} {word.tail}", word.at)
            if used:
                self.refuse(used, EVALUATED)

    def read_script(self, code: Word, function: str) -> None:
        """Read code for another shell, or for later; its problems are problems of this text."""
        if self.depth >= _MOST_SCRIPTS:
            raise Unreadable(code.at, "scripts are nested too deep")
        inner = self._start_inner(code, function)
        try:
            inner.read()
        except Unreadable as problem:
            if self.find_in_text(code.literal, code.at):
                raise Unreadable(code.at, problem.message) from None
            return
        start = code.at + 1
        exact = self.text.startswith(code.literal, start)
        for one in inner.refused.values():
            at = start + one.at if exact else code.at
            self.refused.setdefault(at, one._replace(at=at))
        if exact and self.text[code.at] in "'\n":
            moved = [(start + at, start + end, new) for at, end, new in inner.checks.edits]
            self.checks.edits += moved

    def _start_inner(self, code: Word, function: str) -> "ShellReader":
        inner = ShellReader(code.literal, [], self.env, self.taint)
        inner.depth, inner.base, inner.bodies = self.depth + 1, self.base + code.at + 1, [function]
        inner.checks.first_line = self.checks.first_line + self.text.count("\n", 0, code.at + 1)
        inner.checks.portable = function == HEREDOC or function.startswith("-c ")
        return inner

    def _check_script(self, code: Word) -> None:
        inner = self._start_inner(code, f"-c {self.base} {code.at}")
        inner.taint = inner.checks.taint = Taint()
        try:
            inner.read()
        except Unreadable:
            return
        start = code.at + 1
        for at, end, new in inner.checks.edits:
            self.checks.edits.append((start + at, start + end, new))

    def _start_pipe(self, frame: Frame) -> None:
        """A new pipeline reads what flows into the group or the brackets around it."""
        around = frame.groups[-1].reads if frame.groups else frame.flow.reads
        frame.pipe = Pipe(list(around))

    def _mark_runs_input(self, frame: Frame) -> None:
        """A command takes what flows into it for code."""
        frame.pipe.runs_input = frame.flow.runs_input = True
        for group in frame.groups:
            group.runs_input = True
        for mark in frame.pipe.inputs:
            self.refuse(mark, CODE)

    def _newline(self) -> None:
        self._end_word()
        if self.top.kind not in ("array", "cond"):
            self._end_command()
        self.at += 1
        waiting, self.pending = self.pending, []
        self._read_heredocs(waiting)

    def _round(self, char: str) -> None:
        if self.top.kind == "cond":
            self._end_word()
        frame = self.top
        if char == "(" and frame.kind != "cond" and not frame.in_pattern:
            self._open_round(frame)
            return
        self._end_word()
        if char == "(" or frame.kind == "cond":
            self.at += 1
        elif frame.in_pattern:
            self._end_pattern(frame)
            self.guards.open_clause(frame.case.patterns)
            frame.case.patterns = []
            frame.case.cases[-1] = False
            self._start_pipe(frame)
            self.at += 1
        elif frame.kind == "array":
            self._pop()
        elif frame.kind == "paren":
            self._end_command()
            self._pop()
            self._end_commands(frame)
        else:
            raise Unreadable(self.at, "this ) closes nothing")

    def _end_commands(self, frame: Frame) -> None:
        """Brackets around commands are closed."""
        self._leave(frame.function, frame.flow.out)
        self._end_substitution(frame)
        top = self.top
        top.command.feeds_code |= frame.flow.is_fed and frame.flow.runs_input
        if not frame.flow.captured:
            top.command.compound |= top.word is None
            top.command.ended = frame.opened
            top.pipe.own += frame.flow.out if frame.function is None else []
            top.pipe.runs_input |= frame.flow.runs_input and top.word is None

    def _end_pattern(self, frame: Frame) -> None:
        frame.case.patterns += [one.source for one in frame.words] or [""]
        frame.words = []

    def _open_round(self, frame: Frame) -> None:
        word = frame.word
        empty = _EMPTY_BRACKETS.match(self.text, self.at)
        if word and word.whole and word.assigns and word.literal.endswith("="):
            self._push("array", 1).array = word.assigns
        elif empty and (word or frame.words):  # name() defines a function
            named = word or frame.words[-1]
            frame.command.defines = frame.command.defines or named.literal
            frame.word, frame.words, frame.command.names_function = None, [], False
            self.at = empty.end()
        elif word is None and self.text.startswith("((", self.at):
            frame.command.compound = frame.command.compound or not frame.words
            self._push("arith", 2, depth=2).checks = len(self.checks.edits)
        else:
            self._push_commands(1)

    def _push_commands(self, width: int) -> Frame:
        """Commands in brackets read what the command around them would read."""
        function, self.top.command.defines = self.top.command.defines, None
        flowing = self._flowing(self.top, function)
        frame = self._push("paren", width)
        self.guards.open("(" if function is None else "function")
        frame.function = function
        self._enter(function)
        frame.flow.reads, frame.pipe = flowing, Pipe(list(flowing))
        return frame

    def _operator(self, char: str) -> None:
        if self.top.kind == "cond":
            self._end_word()
        frame = self.top
        if frame.kind in ("cond", "array"):
            self._end_word()
            self.at += 1
        elif char in "<>" or self.text.startswith("&>", self.at):
            self._redirect()
        else:
            self._end_word()
            found = _SEPARATOR.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if frame.in_pattern:
                self._end_pattern(frame)
                return
            self._end_command(found[0])
            if frame.case.cases and found[0] in (";;", ";&", ";;&"):
                frame.case.cases[-1] = True
                self.guards.end_clause(found[0])

    def _redirect(self) -> None:
        text, frame = self.text, self.top
        if text.startswith(("<(", ">("), self.at):
            self._unknown()
            inner = self._push_commands(2)
            inner.flow.captured, inner.flow.is_fed = True, text[self.at - 2] == ">"
            return
        self.numbered = False
        if frame.word and frame.word.whole and frame.word.literal.isdigit():
            self.numbered = int(frame.word.literal) > _LAST_STANDARD
            frame.word = None
        self._end_word()
        heredoc = None if text.startswith("<<<", self.at) else _HEREDOC.match(text, self.at)
        if heredoc:
            self._heredoc(heredoc)
            return
        found = _REDIRECT.match(text, self.at)
        assert found is not None
        self.at, frame.command.redirects, frame.command.redirected = found.end(), found[0], True

    def _heredoc(self, found: "re.Match[str]") -> None:
        """The delimiter; the text itself begins on the next line."""
        start = self.at = found.end()
        delimiter, quoted = "", False
        while piece := _DELIMITER.match(self.text, self.at, self.limit):
            quoted |= piece["bare"] is None
            delimiter += next(part for part in piece.groups() if part is not None)
            self.at = piece.end()
        if self.at == start or self.text[self.at : self.at + 1] in ("$", "`", '"', "'"):
            raise Unreadable(found.start(), UNCLOSED["here"])
        one = Heredoc(delimiter, quoted, bool(found["dash"]), (start, self.at), self.top.pipe)
        self.pending.append(one)
        self.top.command.redirected = True
        known = self.taint.held.inputs.get((self.base, start))
        self.top.pipe.explicit = True
        self.top.pipe.inputs += [known] if known else []
        if known and (self.numbered or is_exec(self.top.words)):
            self.taint.held.descriptors.setdefault("", known)
        if known and self.top.command.compound:
            self.taint.held.inputs.setdefault((self.base, self.top.command.ended), known)
