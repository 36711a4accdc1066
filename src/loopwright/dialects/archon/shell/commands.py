"""Commands that execute text as code: which words of a command must not hold a value.

A value in an argument is data. It becomes code as the name of a command, in the code of another
interpreter, as an option that names a program, or as a name that the shell evaluates. The
tables at the top list programs by what they do with their arguments.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from loopwright.dialects.archon.shell.guards import OPTION, has_running_options, judge_options
from loopwright.dialects.archon.shell.state import ShellFault, Word
from loopwright.dialects.archon.variables import Mark

INTERPRETER = re.compile(
    r"(?:(?:ba|da|a|z|k|mk|c|tc|fi|r?ba)?sh|busybox|python[\d.]*|pypy[\d.]*|node|nodejs|bun|deno|tsx"
    r"|ts-node|perl[\d.]*|ruby[\d.]*|php[\d.]*|lua[\d.]*|[gmn]?awk|sed|gsed|Rscript|osascript"
    r"|tclsh|wish|pwsh|powershell|irb|ghc|runghc|groovy|elixir|erl|escript|julia|scala|jshell)"
)
SHELL = re.compile(r"(?:ba|da|a|z|k|mk|c|tc|fi)?sh")
FILTERS = re.compile(r"[gmn]?awk|g?sed")
CODE_FLAG = re.compile(
    r"[-+][A-Za-z0-9]*[cCeEpPrRB]"
    r"|--?(?:eval|print|command|Command|EncodedCommand|expression|source|execute|run)|eval"
)
_INTERPRETERS = """
    eval . source trap alias fc hash enable bind complete compgen coproc jobs
    ssh su at batch crontab parallel watch expect screen tmux script systemd-run nsenter
    sqlite3 psql mysql mariadb mongosh redis-cli
    dc ed ex vi vim nvim emacs gdb lldb m4 gnuplot runuser socat nc ncat history
    taskset prlimit setarch linux32 linux64 i386 x86_64 uname26 setpriv choom chrt numactl
    ssh-agent dbus-run-session dbus-launch fakeroot fakechroot faketime proot runcon capsh
    firejail bwrap sg newgrp pkexec gosu su-exec chpst setuidgid softlimit envdir s6-setuidgid
    dumb-init tini start-stop-daemon daemonize xvfb-run unbuffer rlwrap hyperfine entr watchexec
    ltrace perf valgrind gdbserver cgexec systemd-inhibit systemd-cat torsocks torify proxychains
    proxychains4 eatmydata nodemon concurrently nu yash xonsh elvish ion
"""
RUNS_ALL = frozenset(_INTERPRETERS.split())
SQL_CLIENTS = frozenset(("sqlite3", "psql", "mysql", "mariadb"))
# Programs that start another one: options that take a value, and operands in front of the program.
WRAPPERS: dict[str, tuple[str, int]] = {
    "builtin": ("", 0),
    "chroot": ("", 1),
    "command": ("", 0),
    "doas": ("uC", 0),
    "env": ("uC", 0),
    "exec": ("a", 0),
    "flock": ("wE", 1),
    "ionice": ("cnp", 0),
    "nice": ("n", 0),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "stdbuf": ("ioe", 0),
    "strace": ("eops", 0),
    "sudo": ("ughpCTUDRr", 0),
    "time": ("fo", 0),
    "timeout": ("ks", 1),
    "unshare": ("", 0),
    "xargs": ("InPdLsaE", 0),
    "npx": ("pc", 0),
    "bunx": ("", 0),
    "pipx": ("", 1),
    "uvx": ("", 0),
}
# Programs whose arguments contain another command.
_HOLD_COMMANDS = """
    docker podman nerdctl kubectl oc uv poetry pipenv hatch conda nix bundle
    find fd make npm pnpm yarn just mise asdf direnv
"""
CARRIERS = frozenset(_HOLD_COMMANDS.split())
# Programs that run the arguments after one of these words, up to a word that ends them.
RUNS = frozenset({"run", "exec", "shell", "develop", "x", "dlx", "run-script"})
RUNNERS: dict[str, str] = {
    **dict.fromkeys(("docker", "podman", "nerdctl", "kubectl", "oc", "uv", "poetry"), ""),
    **dict.fromkeys(("pipenv", "hatch", "conda", "nix", "bundle", "mise", "asdf", "direnv"), ""),
    **dict.fromkeys(("npm", "pnpm", "yarn", "just"), "--"),
}
EXECUTES = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec"})
DECLARERS = frozenset({"declare", "typeset", "local", "readonly", "export"})
NAMERS = frozenset({"read", "unset", "mapfile", "readarray", "getopts", "wait"})
RESERVED_NAMES = re.compile(
    r"PATH|IFS|ENV|HOME|CDPATH|GLOBIGNORE|PS[0-4]|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|ZDOTDIR|EDITOR"
    r"|PAGER|VISUAL|SHELL|BROWSER|XDG_\w+|LESS(?:OPEN|CLOSE)|MANPAGER|MAKEFLAGS|MAKEFILES|MAKE"
    r"|(?:BASH|LD|DYLD|LOOPWRIGHT|_JAVA)_\w+|BASH|(?:npm|NPM)_(?:config|CONFIG)_\w+"
    r"|GIT_(?:SSH\w*|EXTERNAL_DIFF|PAGER|\w*EDITOR|ASKPASS|EXEC_PATH|CONFIG\w*|PROXY_COMMAND"
    r"|TEMPLATE_DIR|DIR|WORK_TREE|INDEX_FILE|\w*OBJECT_DIRECTOR\w+|ALLOW_PROTOCOL|TRACE\w*)"
    r"|PYTHON(?:PATH|HOME|STARTUP|WARNINGS|INSPECT|BREAKPOINT|USERBASE|PYCACHEPREFIX|EXECUTABLE)"
    r"|NODE_(?:OPTIONS|PATH|REPL\w*)|PERL(?:5?LIB|5?OPT|5DB)|RUBY(?:OPT|LIB|SHELL)"
    r"|J(?:DK_J)?AVA_(?:TOOL_OPTIONS|OPTIONS|OPTS|HOME)"
    r"|TAR_OPTIONS|(?:RSYNC|CVS)_RSH|SVN_SSH|RUSTC(?:_WRAPPER)?|MANOPT|GOFLAGS"
)
# Commands that print nothing of their input.
_PRINT_NOTHING = """
    [ [[ test true false : cd pushd popd mkdir rmdir rm touch chmod chown sleep exit return break
    continue read mapfile readarray export declare typeset local readonly unset shift set getopts
    for select case kill wait umask ulimit shopt
"""
SILENT = frozenset(_PRINT_NOTHING.split())
# Commands that read the input of the group around them if no other input is named.
_READ_INPUT = """
    cat head tail tac rev sort uniq cut paste tr tee wc grep egrep fgrep jq yq column fold fmt nl
    base64 xargs md5sum sha1sum sha256sum cksum more less iconv xxd od dd read mapfile readarray
"""
READS_INPUT = frozenset(_READ_INPUT.split())
# Files that programs run or load without receiving their names.
_HOOKS = """
    pre-commit prepare-commit-msg commit-msg post-commit pre-push pre-rebase post-checkout
    post-merge post-rewrite pre-merge-commit applypatch-msg pre-applypatch post-applypatch
"""
RUN_FILES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("make", "gmake"), ("Makefile", "makefile", "GNUmakefile")),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun", "npx", "bunx"), ("package.json",)),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "rake": ("Rakefile",),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
    "pytest": ("conftest.py",),
    "cargo": ("build.rs",),
    "pre-commit": (".pre-commit-config.yaml",),
    **dict.fromkeys(("gradle", "gradlew"), ("build.gradle", "build.gradle.kts")),
    "git": tuple(_HOOKS.split()),
    **dict.fromkeys(("sh", "bash"), (".profile", ".bash_profile", ".bash_login", ".bashrc")),
    **dict.fromkeys(("zsh",), (".zshenv", ".zprofile", ".zshrc", ".zlogin")),
}
# Variables that name a file which an interpreter runs when it starts.
NAME_START_FILES = frozenset({"BASH_ENV", "ENV", "PYTHONSTARTUP"})
# Commands that write their input into a file that is one of their arguments.
_WRITE_INPUT = "cp mv install ln rsync split csplit uniq sort shuf curl wget sponge openssl gpg"
WRITES_INPUT = frozenset(_WRITE_INPUT.split())
# Commands that print the variables of the script, or of the environment.
PRINTS_VARIABLES = frozenset({"printenv", "env", "set", "export", "declare", "typeset", "compgen"})
INPUT_DEVICE = re.compile(
    r"-|(?:file:/*)?/?(?:dev/(?:stdin|fd/.*)|proc/(?:thread-)?(?:self|\d+|\$\$)/fd/.*)"
)
"""Words that mean the standard input of a command."""
# What starts a command in the code of awk, sed, Perl, Python, Ruby and JavaScript.
_STARTS_PROGRAMS = re.compile(
    r"\b(?:system|popen|exec(?!ute)\w*|spawn\w*|getoutput|getstatusoutput|qx)\s*[({\[\"'/|]"
    r"|\bshell\s*=\s*True|\bchild_process\b|\|\s*getline\b|\bprint[^;}\n]*\|\s*[\"']"
    r"|`[^`\n]*(?:[#@]|\$(?!\{))[^`\n]*`"
    r"|(?:^|[\s;{\"'])s([/|#,@!~])(?:(?!\1).)*\1(?:(?!\1).)*\1[0-9gpiIM]*e"
    r"|\A\s*e\s*\Z"
)


def starts_programs(code: str) -> bool:
    """Whether the code of another interpreter starts commands, as far as can be seen."""
    return _STARTS_PROGRAMS.search(code) is not None


Found = tuple[Mark, ShellFault]


class CommandVerdict(NamedTuple):
    """The problems of a command, and whether it executes its input as code."""

    found: list[Found]
    runs_input: bool = False


_NAME = ShellFault(
    "reference-in-code",
    "a value in the position of a command would be run",
    'name the command and give it the value as an argument, or choose it with case "$x" in …',
)
EVALUATED = ShellFault(
    "reference-in-code",
    "the shell evaluates this text",
    "use the variable in quotes, in an ordinary command",
)
RESERVED = ShellFault(
    "reserved-env",
    "this variable decides what programs load and run",
    "use a name of your own, or assign it without exporting it",
)
ARITHMETIC = ShellFault(
    "reference-in-arithmetic",
    "arithmetic runs commands in a value, such as a[$(cmd)]",
    "put it into a variable of your own and test that it is a number first: "
    "case $n in ''|*[!0-9]*) exit 1;; esac",
)


_FORMAT = ShellFault(
    "reference-in-code",
    "a value in the format of printf decides what becomes of the other values",
    "write the format into the script: printf '%s\\n' \"$x\"",
)
INDIRECT = ShellFault(
    "reference-in-arithmetic",
    "the shell evaluates the value of this variable",
    'use the variable itself, in quotes: "$x"',
)
TARGET = ShellFault(
    "reference-as-target",
    "the shell would open a file whose name a value chooses",
    "name the file in the script, and write the value into it",
)
FILE_CODE = ShellFault(
    "reference-in-code",
    "this file holds a value, which would be run",
    "run a file that the script does not fill with values, and let it read the value",
)
IN_PROGRAM = ShellFault(
    "value-in-program",
    "this program gets a value and starts commands; Loopwright does not check what it runs",
    "start commands with a list of arguments and without a shell, or let the script start them",
)
# NAME in a hint is replaced by the name under which the value is found.
CODE = ShellFault(
    "reference-in-code",
    "a value in the code of an interpreter would be run",
    'let the code read it: os.environ["NAME"] in Python, process.env.NAME in JavaScript, '
    '"$NAME" in single quotes for a shell',
)
SQL = ShellFault(
    "reference-in-code",
    "a value in the text of a query could be another query, and these programs start commands",
    "in psql: \\getenv x NAME and :'x' in a quoted here-document; "
    "for SQLite: Python's sqlite3 with a ? in the query",
)


_MOST_WRAPPERS = 20
_PATTERN = re.compile(r"[*?\[\\]")
# Code for a shell that runs more code, or reads it.
_RUNS_MORE = re.compile(r"\b(?:eval|source|(?:ba|da|k|z)?sh)\b|(?:^|[;&|({]\s*)\.\s")


def judge(
    words: Sequence[Word], free: frozenset[str] = frozenset(), kept: frozenset[str] = frozenset()
) -> CommandVerdict:
    """One simple command; assignments before it belong to it. Of the reserved names, `free` may
    have values, and `kept` are those that the shell does not pass on to programs.
    """
    start = next((n for n, word in enumerate(words) if word.assigns is None), len(words))
    is_own = start == len(words) or words[start].program in DECLARERS
    allowed = free | kept if is_own else free
    found = [one for word in words if word.assigns not in allowed for one in _reserved(word)]
    return _with(found, _command(words[start:])) if words[start:] else CommandVerdict(found)


def skip_wrappers(words: Sequence[Word]) -> Sequence[Word]:
    """A command without the programs that only start it."""
    for _ in range(_MOST_WRAPPERS):
        name = words[0].program if words else ""
        if name not in WRAPPERS or name == "xargs" or words[0].marks or len(words) == 1:
            break
        words = words[1 + _width(name, words[1:]) :]
    return words


def _with(found: list[Found], judged: CommandVerdict) -> CommandVerdict:
    return CommandVerdict([*found, *judged.found], judged.runs_input)


def _reserved(word: Word) -> list[Found]:
    name = word.assigns
    if name is None or not word.marks or not RESERVED_NAMES.fullmatch(name):
        return []
    return _all([word], RESERVED)


def _all(words: Sequence[Word], fault: ShellFault) -> list[Found]:
    return [(mark, fault) for word in words for mark in word.marks]


def _command(words: Sequence[Word]) -> CommandVerdict:
    """A command, after the programs that start it."""
    found: list[Found] = []
    runs_input = guessed = False
    for _ in range(_MOST_WRAPPERS):
        first, rest = words[0], words[1:]
        name = first.program
        if first.marks:
            return CommandVerdict([*found, *_all([first], _NAME)], runs_input)
        if _PATTERN.search(name.removeprefix("[[").removeprefix("[")):
            return CommandVerdict(
                [*found, *_all(rest, CODE)], runs_input=True
            )  # it may be any program
        if name in WRAPPERS:
            found += _unwrapped(name, rest)
            words = rest[_width(name, rest) :]
            runs_input = runs_input or (name == "xargs" and _makes_code(rest, words))
        elif name:
            judged = _known(name, rest)
            return CommandVerdict([*found, *judged.found], runs_input or judged.runs_input)
        else:  # an unknown word may be an interpreter, or nothing at all
            judged = CommandVerdict([]) if guessed else _interpreter(name, rest)
            found += judged.found
            runs_input, guessed, words = runs_input or judged.runs_input, True, rest
        if not words:
            break
    return CommandVerdict([*found, *_all(words, _NAME)], runs_input)


def _known(name: str, arguments: Sequence[Word]) -> CommandVerdict:
    inner = _run_by(name, arguments)
    if inner:
        return _command(inner)
    if name in RUNS_ALL:
        fault = EVALUATED if name in ("eval", ".", "source", "trap", "alias") else CODE
        fault = SQL if name in SQL_CLIENTS else fault
        return CommandVerdict(_all(arguments, fault), runs_input=True)
    if INTERPRETER.fullmatch(name):
        return _with(list(judge_options(name, arguments)), _interpreter(name, arguments))
    judged = _carried(name, arguments, list(_RULES.get(name, _no_rule)(arguments)))
    runs_input = judged.runs_input or (name in ("make", "gmake") and _names_input(arguments))
    return CommandVerdict([*judged.found, *judge_options(name, arguments)], runs_input)


_RUN_FLAGS = re.compile(r"-q|--(?:frozen|locked|isolated|no-project|no-sync|quiet|active|offline)")
_RUN_VALUED = re.compile(
    r"-p|--(?:with|with-requirements|with-editable|python|project|directory|extra|group|env-file"
    r"|index-url|only-group)"
)


def _run_by(name: str, words: Sequence[Word]) -> Sequence[Word]:
    """The command that `uv run` and similar programs start, if it is written literally."""
    if name not in ("uv", "poetry", "pipenv", "pdm", "rye") or not words:
        return ()
    at = 1 if words[0].whole and words[0].literal == "run" else len(words)
    while at < len(words):
        word = words[at]
        option, equals, _ = word.literal.partition("=")
        if word.whole and _RUN_VALUED.fullmatch(option):
            at += 1 if equals else 2
        elif word.whole and _RUN_FLAGS.fullmatch(word.literal):
            at += 1
        elif word.whole and not word.literal.startswith("-"):
            return words[at:]
        else:
            break
    return ()


# -- programs that run other programs --------------------------------------------------------------


def _width(name: str, words: Sequence[Word]) -> int:
    """The number of words between a wrapper and the program that it starts."""
    valued, operands = WRAPPERS[name]
    if name == "command" and words and words[0].literal in ("-v", "-V"):
        return len(words)
    at = 0
    while at < len(words):
        word = words[at]
        if word.literal.startswith("-") and not word.led:
            if _hides_the_rest(name, word.literal):
                return len(words)
            at += 2 if word.literal[-1] in valued else 1
        elif word.assigns is not None and name in ("env", "sudo", "doas"):
            at += 1
        elif operands:
            operands -= 1
            at += 1
        else:
            return at
    return at


def _unwrapped(name: str, words: Sequence[Word]) -> list[Found]:
    """The words between a wrapper and its program must be known, except for values of variables."""
    if name == "command" and words and words[0].literal in ("-v", "-V"):
        return []  # it only looks a name up
    between = words[: _width(name, words)]
    return [one for word in between if word.assigns is None for one in _all([word], _NAME)]


def _hides_the_rest(name: str, option: str) -> bool:
    """Whether it is unknown which word after an option is the program; or none is started."""
    long = option.startswith("--") and "=" not in option and option != "--"
    return long or (name == "env" and option.startswith(("-S", "--split-string")))


def _makes_code(rest: Sequence[Word], words: Sequence[Word]) -> bool:
    """Whether what xargs reads becomes code, or an option that runs something."""
    name = words[0].program if words else ""
    if has_running_options(name):
        return all(one.literal != "--" for one in words)
    if not _starts_others(words):
        return False
    scripts = list(_code_of_shell(words[1:])) if SHELL.fullmatch(name) else []
    options = [one.literal for one in rest[: len(rest) - len(words)]]
    inserted = {"{}", *(one[2:] for one in options if one.startswith("-I"))}
    inserted |= {after for one, after in pairwise(options) if one == "-I"}
    return len(scripts) != 1 or any(one and one in scripts[0][0].literal for one in inserted)


def _starts_others(words: Sequence[Word]) -> bool:
    return any(
        word.program in _STARTERS or INTERPRETER.fullmatch(word.program) is not None
        for word in words
    )


_STARTERS = frozenset({*WRAPPERS, *RUNS_ALL, *RUNNERS})


def _is_interpreter(word: Word) -> bool:
    return INTERPRETER.fullmatch(word.program) is not None


def _interpreter(name: str, words: Sequence[Word]) -> CommandVerdict:
    """Nothing up to the first operand may hold a value, nor anything that is code."""
    found: list[Found] = []
    operand = code_next = flagged = False
    for number, word in enumerate(words):
        is_flag = word.whole and CODE_FLAG.fullmatch(word.literal) is not None
        is_option = word.literal.startswith("-") and word.literal != "-"
        allowed = operand or _is_awk_value(name, words, number) or _is_input(name, words[:number])
        if word.marks and (code_next or not allowed):
            found += _all([word], CODE)
        if is_flag:
            code_next = flagged = True
        elif not (code_next and is_option):
            operand = operand or code_next or not is_option
            code_next = False
    first = next(
        (w.literal for w in words if not w.literal.startswith("-") or w.literal == "-"), ""
    )
    from_input = not operand or (bool(INPUT_DEVICE.fullmatch(first)) and not flagged)
    if SHELL.fullmatch(name):
        from_input = from_input or _reads_input(words) or _passes_input(words)
        found += _zeroth(words)
    if FILTERS.fullmatch(name):
        from_input = _names_input(words)
    return CommandVerdict(found, runs_input=from_input)


def _names_input(words: Sequence[Word]) -> bool:
    """Whether the file with the code is what flows in: `awk -f -`, `make --file=/dev/stdin`."""
    behind = [
        word.literal for before, word in pairwise(words) if _FILE_FLAG.fullmatch(before.literal)
    ]
    attached = [found[1] for word in words if (found := _FILE_ATTACHED.fullmatch(word.literal))]
    return any(INPUT_DEVICE.fullmatch(one) for one in (*behind, *attached))


_FILE_FLAG = re.compile(r"-f|--(?:file|makefile)")
_FILE_ATTACHED = re.compile(r"(?:-f|--(?:file|makefile)=)(.+)")


def _passes_input(words: Sequence[Word]) -> bool:
    """Whether the code of `bash -c` may run what it reads."""
    codes = (code for code, _ in _code_of_shell(words))
    return any(_RUNS_MORE.search(one.literal) for one in codes)


def _zeroth(words: Sequence[Word]) -> list[Found]:
    """In `bash -c CODE VALUE`, the value is $0, which is not followed in the code."""
    for number, word in enumerate(words):
        if any(code is word for code, _ in _code_of_shell(words)):
            uses = "$0" in word.literal or "${0" in word.literal
            return _all(words[number + 1 : number + 2], CODE) if uses else []
    return []


def _is_input(name: str, before: Sequence[Word]) -> bool:
    """`bash -s -- VALUE` gives a shell a parameter."""
    ended = any(word.whole and word.literal == "--" for word in before)
    return bool(SHELL.fullmatch(name)) and ended and _reads_input(before)


def _reads_input(words: Sequence[Word]) -> bool:
    return any(re.fullmatch(r"-[A-Za-z]*s[A-Za-z]*", word.literal) for word in words)


def _is_awk_value(name: str, words: Sequence[Word], number: int) -> bool:
    """`awk -v name=VALUE` gives awk a value, not code."""
    behind = number > 0 and words[number - 1].literal == "-v" and words[number].assigns is not None
    return name.endswith("awk") and behind


def _carried(name: str, words: Sequence[Word], found: list[Found]) -> CommandVerdict:
    """Commands among the arguments of another program."""
    runs_input = runs = False
    for number, word in enumerate(words):
        rest = words[number + 1 :]
        if word.whole and word.literal in EXECUTES and name in CARRIERS:
            found += _all(rest if _starts_others(rest[:1]) else rest[:1], _NAME)
        if name in RUNNERS and word.whole:
            runs = (runs or word.literal in RUNS) and word.literal != RUNNERS[name]
        elif runs and word.led:
            found += _all([word], _NAME)
        if _is_interpreter(word) and name in CARRIERS:
            judged = _interpreter(word.program, rest)
            found += judged.found
            runs_input = runs_input or judged.runs_input
        elif _is_interpreter(word):
            found += _behind_flags(rest)
    return CommandVerdict(found, runs_input)


def _behind_flags(words: Sequence[Word]) -> Iterator[Found]:
    for word, following in pairwise(words):
        if word.whole and CODE_FLAG.fullmatch(word.literal):
            yield from _all([following], CODE)


def find_scripts(words: Sequence[Word]) -> Iterator[tuple[Word, Sequence[Word] | None]]:
    """Shell code inside a command, and its parameters; `None` if it has those of the script around
    it.
    """
    for number, word in enumerate(words):
        if SHELL.fullmatch(word.program):
            yield from _code_of_shell(words[number + 1 :])
    command = skip_wrappers(words)
    name = command[0].program if command else ""
    if name == "eval" and all(one.whole for one in command):
        whole = " ".join(one.literal for one in command[1:])
        yield Word(whole, at=command[1].at if len(command) > 1 else 0), None
    elif name == "trap":
        code = next((one for one in command[1:] if not one.literal.startswith("-")), None)
        if code is not None and code.whole:
            yield code, None


def _code_of_shell(words: Sequence[Word]) -> Iterator[tuple[Word, Sequence[Word]]]:
    flagged = False
    for number, word in enumerate(words):
        if word.whole and re.fullmatch(r"[-+][A-Za-z]*c[A-Za-z]*", word.literal):
            flagged = True
        elif flagged and not word.literal.startswith("-"):
            if word.whole:
                yield word, words[number + 2 :]
            return


# -- commands of the shell itself ------------------------------------------------------------------


def _no_rule(_: Sequence[Word]) -> Iterator[Found]:
    return iter(())


def _declaring(words: Sequence[Word]) -> Iterator[Found]:
    flags = "".join(word.literal for word in words if word.literal[:1] in ("-", "+"))
    for word in words:
        if word.assigns is None or word.before.partition("=")[2].lstrip().startswith("("):
            yield from _all([word], EVALUATED)
        elif "i" in flags or "n" in flags:
            yield from _all([word], ARITHMETIC)


def _naming(words: Sequence[Word]) -> Iterator[Found]:
    yield from _all(words, EVALUATED)


def _computing(words: Sequence[Word]) -> Iterator[Found]:
    yield from _all(words, ARITHMETIC)


def _printing(words: Sequence[Word]) -> Iterator[Found]:
    """`printf -v NAME` evaluates the name, also when option and name are one word."""
    for number, word in enumerate(words):
        if word.literal == "--" and word.whole:
            return
        if word.literal.startswith("-v"):
            yield from _all(words[number : number + 2], EVALUATED)
        elif word.led:
            yield from _all([word], OPTION)
            return
        elif not word.literal.startswith("-"):
            if any(one.marks for one in words[number + 1 :]):
                yield from _all([word], _FORMAT)
            return


def _testing(words: Sequence[Word]) -> Iterator[Found]:
    """`test -v NAME` evaluates the name; two values side by side could say just that."""
    for word, following in pairwise(words):
        if word.whole and word.literal in ("-v", "-R"):
            yield from _all([following], EVALUATED)
        elif word.led and following.led:
            yield from _all([word, following], EVALUATED)


_RULES: dict[str, Callable[[Sequence[Word]], Iterator[Found]]] = {
    **dict.fromkeys(DECLARERS, _declaring),
    **dict.fromkeys(NAMERS, _naming),
    "let": _computing,
    "printf": _printing,
    "test": _testing,
    "[": _testing,
}
