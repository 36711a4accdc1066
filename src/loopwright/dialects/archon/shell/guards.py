"""Words of a command that a value must not choose, and tests which prove that it is harmless.

Options of some programs run other programs, so a value must not become such an option.

A test such as `[[ $n =~ ^[0-9]+$ ]] || exit 1` proves that `n` is a number from there on. Each
list of commands has two sets of such variables: those proven when it succeeds, and when it
fails.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from loopwright.dialects.archon.shell.state import ShellFault, Word
from loopwright.dialects.archon.variables import Mark

OPTION = ShellFault(
    "reference-as-option",
    "a value that begins with - would be an option, and this program has options that run things",
    "write -- in front of it, or text such as ./",
)
_RUNS = ShellFault(
    "reference-in-code",
    "this program runs or loads what a value says here",
    "write this argument into the script, and give the program the value as data",
)
DROPPED = ShellFault(
    "option-value",
    "a value that begins with - would be an option here, so it is replaced by an empty text",
    "write -- in front of it, or text such as ./, if the value may begin with -",
)
BARE = ShellFault(
    "unquoted-value",
    "without quotes the shell makes several words of a value, of which each could be an option",
    'write "$x"; until then quotes are added here',
)
# Programs that take a word with - for an option that runs something, and the options in front of
# a word that is never taken for one.
_WITH_RUNNING_OPTIONS: dict[str, str] = {
    "git": r"-m|--message|-b|-B|-C|-F|--file|--author|--date|--grep|-S|-G|--since|--until|--before"
    r"|--after|-n|--max-count|--format|--pretty",
    "find": r"-i?(?:name|path|regex)|-(?:type|newer\w*|size|user|group|(?:min|max)depth)",
    "tar": r"-C|--directory",
    "go": r"-run|-tags|-bench",
    "rg": r"-e|--regexp|-g|--glob|-t|--type",
    "fd": r"-e|--extension|-t|--type",
    "curl": r"-d|--data(?:-\w+)?|--json|-H|--header|-X|--request|--url|-u|--user|-F|--form|-A|-e"
    r"|--max-time|-m|-b|--cookie",
    "wget": r"--header|--post-data|--body-data|--user|--password",
    **dict.fromkeys(("rsync", "scp", "sftp", "sed", "gsed", "man", "zip", "less", "ag", "ack"), ""),
}
_NEVER_OPTIONS = frozenset({"BASE_BRANCH"})  # a name of a branch, which is checked, has no -
# For these, -- does not end the options: an argument that begins with - is always one.
_NEVER_ENDED = frozenset({"find"})
# Options whose value is a program, or a file that is written or loaded.
_RUNNING_VALUES: dict[str, str] = {
    "git": r"-c|-x|-O|--(?:exec|exec-path|upload-pack|receive-pack|config-env|config|extcmd"
    r"|open-files-in-pager|template|strategy|output)",
    "tar": r"-I|-F|--(?:use-compress-program|to-command|checkpoint-action|info-script"
    r"|new-volume-script|rsh-command|rmt-command)",
    "rsync": r"-e|--(?:rsh|rsync-path)",
    "scp": r"-S|-o|-F|-D",
    "sftp": r"-S|-o|-F|-D",
    "curl": r"-K|-o|--(?:config|output|engine|output-dir)",
    "wget": r"-O|-o|-a|-e|--(?:output-document|output-file|config|execute|use-askpass)",
    "find": r"-f(?:printf?|print0|ls)",
    "zip": r"-TT|--unzip-command",
    "sort": r"-o|-T|--(?:output|compress-program)",
    "split": r"--filter",
    "rg": r"--pre|--hostname-bin",
    "go": r"-(?:exec|toolexec|vettool|ldflags|o)",
    "man": r"-P|--pager",
    "less": r".*",
    "kubectl": r"--kubeconfig",
}
# Programs that evaluate every argument, also one of the form NAME=VALUE.
_EVALUATES_ALL = frozenset({"make", "gmake", "just", "rake", "task"})
_GIT_VALUED = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path"})
# Subcommands without an option that runs a program or writes a file of any name.
_HARMLESS_GIT = """
    add branch checkout cherry-pick commit merge-base mv reset restore rev-list rev-parse revert
    rm show-ref stash switch symbolic-ref tag worktree
"""
_SAFE_GIT = frozenset(_HARMLESS_GIT.split())
_RUNNING_GIT = frozenset({"bisect", "difftool", "filter-branch", "mergetool", "submodule"})
_SAFE_SETTINGS = re.compile(r"user\.\w+|remote\..*\.url|branch\..*|init\.defaultBranch")


def judge_options(name: str, words: Sequence[Word]) -> Iterator[tuple[Mark, ShellFault]]:
    """Values that could be an option which runs something, or the value of one."""
    if name in _EVALUATES_ALL:
        led = [one for one in words if one.led]
        yield from _marks_of(led, _RUNS._replace(code=OPTION.code))
        yield from _marks_of(words, _RUNS)
    yield from _marks_of(_running_values(name, words), _RUNS)
    if name not in _WITH_RUNNING_OPTIONS:
        return
    if name == "git":
        yield from _judge_git(words)
    else:
        yield from _marks_of(_led(name, words), OPTION)


def find_bare_words(name: str, words: Sequence[Word]) -> list[Word]:
    """Words with a value that must not become several, each of which could be an option."""
    if name not in ("test", "[") and name not in _WITH_RUNNING_OPTIONS:
        return []
    bare = [one for one in words if one.marks and one.bare]
    if name == "git" and _find_subcommand(words)[0] in _SAFE_GIT:  # more words do no harm
        valued = re.compile(_WITH_RUNNING_OPTIONS[name])
        after = [two for one, two in pairwise(words) if valued.fullmatch(one.literal)]
        return [one for one in bare if one in after]
    return bare


def has_running_options(name: str) -> bool:
    """Whether a program has options that run something."""
    return name in _WITH_RUNNING_OPTIONS


def _marks_of(words: Sequence[Word], fault: ShellFault) -> Iterator[tuple[Mark, ShellFault]]:
    return ((mark, fault) for word in words for mark in word.marks)


def _running_values(name: str, words: Sequence[Word]) -> list[Word]:
    """Words that hold the value of an option which runs something."""
    pattern = _RUNNING_VALUES.get(name)
    if pattern is None:
        return []
    option, attached = re.compile(pattern), re.compile(rf"(?:{pattern})=?.*", re.DOTALL)
    found, before = [], ""
    for word in words:
        own = word.before.startswith("-") and attached.fullmatch(word.before)
        if word.marks and (own or (before and option.fullmatch(before))):
            found.append(word)
        before = word.literal if word.whole else ""
    return found


def _led(name: str, words: Sequence[Word]) -> list[Word]:
    """Words that begin with a value where an option could be."""
    valued = re.compile(_WITH_RUNNING_OPTIONS[name])
    found, before = [], ""
    for word in words:
        if word.whole and word.literal == "--" and name not in _NEVER_ENDED:
            break
        named = word.marks and word.marks[0].variable in _NEVER_OPTIONS
        if word.led and not named and not (before and valued.fullmatch(before)):
            found.append(word)
        before = word.literal if word.whole else ""
    return found


def _find_subcommand(words: Sequence[Word]) -> tuple[str, int]:
    at = 0
    while at < len(words) and words[at].literal.startswith("-"):
        at += 2 if words[at].literal in _GIT_VALUED and words[at].whole else 1
    return (words[at].literal if at < len(words) and words[at].whole else ""), at


def _judge_git(words: Sequence[Word]) -> Iterator[tuple[Mark, ShellFault]]:
    subcommand, at = _find_subcommand(words)
    rest = words[at + 1 :]
    yield from _marks_of([one for one in words[: at + 1] if one.led], OPTION)
    if subcommand in _RUNNING_GIT:
        yield from _marks_of(rest, _RUNS)
    elif subcommand == "config":
        setting = next((one for one in rest if not one.literal.startswith("-")), None)
        if setting is None or not _SAFE_SETTINGS.fullmatch(setting.literal) or setting.marks:
            yield from _marks_of(rest, _RUNS)
    elif subcommand not in _SAFE_GIT:
        yield from _marks_of(_led("git", rest), OPTION)


# `None` means all variables: the place is never reached.
Proven: TypeAlias = frozenset[str] | None
NOTHING: frozenset[str] = frozenset()

_LOOPS = ("while", "until", "for", "select")
_DIGIT_CLASS = r"\[(?:0-9|1-9|\[:digit:\])\](?:[+*?]|\{\d*,?\d*\})?"
_IS_NUMBER = re.compile(
    rf"(?P<no>!\s+)?\"?\$\{{?(?P<name>\w+)\}}?\"?\s+=~\s+\^-?\??(?:{_DIGIT_CLASS})+\$"
)
_HAS_OTHERS = re.compile(
    r"(?P<no>!\s+)?\"?\$\{?(?P<name>\w+)\}?\"?\s+(?P<sign>==|=|!=)\s+\*\[[!^]0-9\]\*"
)
_NOT_A_NUMBER = frozenset({"*[!0-9]*", "*[^0-9]*"})
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


class Proof(NamedTuple):
    """What a command proves when it succeeds, and when it fails."""

    success: frozenset[str] = NOTHING
    failure: frozenset[str] = NOTHING
    cleaned: frozenset[str] = NOTHING  # variables that it gives a harmless value
    spoiled: frozenset[str] = NOTHING  # variables that may hold a value from outside afterwards
    leaves: bool = False  # it never comes back


@dataclass(slots=True)
class _Block:
    kind: str
    start: Proven
    current: Proven
    true: Proven = NOTHING  # when the list so far has succeeded
    false: Proven = NOTHING
    seen: bool = False  # the list has a command
    sign: str = ""
    negated: bool = False
    piped: bool = False
    result: tuple[Proven, Proven] | None = None  # of the group that has just ended
    ends: list[Proven] = field(default_factory=list)  # what holds at the end of each branch
    otherwise: Proven = NOTHING
    has_else: bool = False
    subject: str = ""  # of a case: its variable


def _meet(one: Proven, other: Proven) -> Proven:
    return other if one is None else one if other is None else one & other


def _join(one: Proven, names: frozenset[str]) -> Proven:
    return None if one is None else one | names


def _without(one: Proven, names: Iterable[str]) -> Proven:
    return None if one is None else one.difference(names)


class Guards:
    """Tracks what is proven while a script is read from left to right."""

    def __init__(self) -> None:
        self.blocks = [_Block("{", NOTHING, NOTHING)]

    def is_proven(self, name: str) -> bool:
        """Whether a variable holds a harmless value at this place."""
        current = self.blocks[-1].current
        return current is None or name in current

    def is_left(self, name: str, words: Sequence[Word]) -> bool:
        """Whether a command never comes back to this place."""
        if len(words) > 1 or any(one.many for one in words):
            return False
        around = [one.kind for one in reversed(self.blocks)]
        inside = around[: around.index("(")] if "(" in around else around
        if name in ("break", "continue"):
            body = inside[: inside.index("function")] if "function" in inside else inside
            return any(kind in _LOOPS for kind in body)
        return name == "exit" or (name == "return" and "function" in inside)

    # -- lists of commands -------------------------------------------------------------------------

    def negate(self) -> None:
        """A ! before the next command."""
        self.blocks[-1].negated = not self.blocks[-1].negated

    def finish(self, outcome: Proof, separator: str) -> None:
        """A command has ended with `separator`."""
        block = self.blocks[-1]
        true, false = self._result(block, outcome)
        apart = block.piped or separator in ("|", "|&", "&")
        if apart:  # it runs in a separate process
            true = false = _without(_meet(block.current, _meet(true, false)), outcome.spoiled)
        block.piped = separator in ("|", "|&")
        if block.piped:
            return
        if block.negated:
            true, false, block.negated = false, true, False
        if block.sign == "&&":
            false = _meet(block.false, false)
        elif block.sign == "||":
            true = _meet(block.true, true)
        block.true, block.false, block.seen = true, false, True
        block.sign = separator if separator in ("&&", "||") else ""
        after = {"&&": true, "||": false}
        block.current = after[block.sign] if block.sign else _meet(true, false)

    def _result(self, block: _Block, outcome: Proof) -> tuple[Proven, Proven]:
        if block.result is not None:
            result, block.result = block.result, None
            return result
        if outcome.leaves:
            return None, None
        left = _without(block.current, outcome.spoiled)
        kept = _join(left, outcome.cleaned)
        return _join(kept, outcome.success), _join(kept, outcome.failure)

    # -- groups ------------------------------------------------------------------------------------

    def open(self, kind: str, spoiled: Iterable[str] = ()) -> None:
        """A group starts; `spoiled`: variables to which a loop assigns values from outside."""
        current = self.blocks[-1].current
        start = NOTHING if kind == "function" else _without(current, spoiled)
        self.blocks.append(_Block(kind, start, start))

    def open_case(self, written: str) -> None:
        """The word of a case is known."""
        block, found = self.blocks[-1], _VARIABLE.fullmatch(written)
        block.subject = found[1] if found else ""
        block.otherwise = block.current

    def open_clause(self, patterns: Sequence[str]) -> None:
        """The commands for some patterns of a case start; later ones are for all other words."""
        block = self.blocks[-1]
        block.current, block.seen, block.sign = block.otherwise, False, ""
        if block.subject and _NOT_A_NUMBER.intersection(patterns):
            block.otherwise = _join(block.otherwise, frozenset({block.subject}))

    def end_clause(self, separator: str) -> None:
        """The commands for some patterns have ended."""
        block = self.blocks[-1]
        block.ends.append(block.current)
        if separator != ";;":  # the next commands run after these, too
            block.otherwise = NOTHING

    def branch(self, word: str) -> None:
        """`then`, `elif`, `else` or `do` starts another part of a group."""
        block = self.blocks[-1]
        true = block.true if block.seen else block.current
        false = block.false if block.seen else block.current
        if word == "then":
            block.otherwise, block.current = false, true
        elif word == "do":
            block.current = {"while": true, "until": false}.get(block.kind, block.current)
        else:
            block.ends.append(block.current)
            block.current, block.has_else = block.otherwise, word == "else"
        block.seen, block.sign = False, ""

    def close(self, *, captured: bool = False) -> None:
        """A group has ended; what it prints may be part of a word."""
        block = self.blocks.pop()
        around = self.blocks[-1]
        if captured:
            return
        around.result = (around.current, around.current)
        if block.kind == "{":
            seen = (block.true, block.false) if block.seen else (block.current, block.current)
            around.result = seen
        elif block.kind in ("if", "case"):
            end = block.current
            for one in [*block.ends, *([] if block.has_else else [block.otherwise])]:
                end = _meet(end, one)
            around.result = (end, end)
        elif block.kind in _LOOPS:
            around.result = (block.start, block.start)


def find_tested(text: str) -> Proof:
    """What a condition in `[[ … ]]` proves about numbers."""
    parts = [one.strip() for one in text.split("&&")] if "||" not in text else []
    found = [_test_part(one) for one in parts]
    success = frozenset(name for one in found for name in one.success)
    return Proof(success, found[0].failure if len(found) == 1 else NOTHING)


def _test_part(text: str) -> Proof:
    number, others = _IS_NUMBER.fullmatch(text), _HAS_OTHERS.fullmatch(text)
    if number:
        names = frozenset({number["name"]})
        return Proof(failure=names) if number["no"] else Proof(names)
    if others:
        names = frozenset({others["name"]})
        differs = (others["sign"] == "!=") != bool(others["no"])
        return Proof(names) if differs else Proof(failure=names)
    return Proof()


def find_compared(words: Sequence[Word]) -> frozenset[str]:
    """The variables that are numbers when `[ A -gt B ]` succeeds."""
    operands = [one for one in words if one.literal != "]" or one.marks]
    if len(operands) != 3 or operands[1].literal not in _COMPARES:
        return NOTHING
    found = (_VARIABLE.fullmatch(one.source) for one in (operands[0], operands[2]))
    return frozenset(one[1] for one in found if one)
