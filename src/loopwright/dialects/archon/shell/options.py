"""Options that run programs: which words of a command a value must not choose."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

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
