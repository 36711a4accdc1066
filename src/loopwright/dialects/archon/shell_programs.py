"""Programs by what they do with their arguments: tables for the judge of commands."""

import re

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
_TAKE_CODE = """
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
RUNS_ALL = frozenset(_TAKE_CODE.split())
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
# Programs among whose arguments another command stands.
_HOLD_COMMANDS = """
    docker podman nerdctl kubectl oc uv poetry pipenv hatch conda nix bundle
    find fd make npm pnpm yarn just mise asdf direnv
"""
CARRIERS = frozenset(_HOLD_COMMANDS.split())
# Programs that run what is named behind one of these words, up to a word that ends it.
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
# Commands that print nothing of what they are given.
_PRINT_NOTHING = """
    [ [[ test true false : cd pushd popd mkdir rmdir rm touch chmod chown sleep exit return break
    continue read mapfile readarray export declare typeset local readonly unset shift set getopts
    for select case kill wait umask ulimit shopt
"""
SILENT = frozenset(_PRINT_NOTHING.split())
# Commands that read what flows into the group around them when nothing else is named.
_READ_INPUT = """
    cat head tail tac rev sort uniq cut paste tr tee wc grep egrep fgrep jq yq column fold fmt nl
    base64 xargs md5sum sha1sum sha256sum cksum more less iconv xxd od dd read mapfile readarray
"""
READS_INPUT = frozenset(_READ_INPUT.split())
# Files that programs run or load without being told their names.
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
# Commands that write what they read into a file that is one of their arguments.
_WRITE_INPUT = "cp mv install ln rsync split csplit uniq sort shuf curl wget sponge openssl gpg"
WRITES_INPUT = frozenset(_WRITE_INPUT.split())
# Commands that print the variables of the script, or of the environment.
PRINTS_VARIABLES = frozenset({"printenv", "env", "set", "export", "declare", "typeset", "compgen"})
INPUT_DEVICE = re.compile(
    r"-|(?:file:/*)?/?(?:dev/(?:stdin|fd/.*)|proc/(?:thread-)?(?:self|\d+|\$\$)/fd/.*)"
)
"""Words that stand for what a command reads from its standard input."""
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
