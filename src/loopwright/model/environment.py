"""Variables of programs: which names there can be, and which no plan may set."""

import re
from collections.abc import Collection

OWN_PREFIX = "LOOPWRIGHT_"

SYSTEM_PATH = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")
"""Folders of programs that an ordinary user cannot change."""

# Each of these makes a program load or run something other than what was asked for.
_RESERVED = frozenset(
    {
        "BASHOPTS",
        "BASH_ENV",
        "CDPATH",
        "ENV",
        "GCONV_PATH",
        "GLIBC_TUNABLES",
        "GLOBIGNORE",
        "IFS",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "NODE_OPTIONS",
        "PATH",
        "PERL5DB",
        "PERL5LIB",
        "PERL5OPT",
        "PROMPT_COMMAND",
        "PS4",
        "PYTHONBREAKPOINT",
        "PYTHONHOME",
        "PYTHONINSPECT",
        "PYTHONSTARTUP",
        "RUBYLIB",
        "RUBYOPT",
        "SHELLOPTS",
        "ZDOTDIR",
        "_JAVA_OPTIONS",
    }
)
_RESERVED_PREFIXES = ("BASH_FUNC_", "DYLD_", "GIT_", "LD_", OWN_PREFIX)

# Each of these decides which modules, settings or certificates a program loads, or where it sends
# its requests. Authors of their own definitions use them; others could replace a program with them.
_LOADING = frozenset({"CLASSPATH", "HOME", "HOSTALIASES", "LOCALDOMAIN", "PHPRC", "RES_OPTIONS"})
_LOADING_PREFIXES = (
    *("BUNDLE_", "CARGO_", "CLAUDE_", "CODEX_", "CURL_", "DENO_", "GEM_", "GEMINI_", "GOFLAGS"),
    *("JAVA_", "LUA_", "MAVEN_", "NODE_", "NPM_CONFIG_", "OPENCODE", "OPENSSL_", "PERL", "PHP_"),
    *("PIP_", "PYTHON", "REQUESTS_", "RUBY", "SSL_", "UV_", "XDG_"),
)
_LOADING_ENDS = ("_BASE_URL", "_ENDPOINT", "_PROXY", "_API_URL", "_API_BASE")

EDITOR_VARIABLES = (
    *("CI", "COLUMNS", "DEBUG", "FORCE_COLOR", "LANG", "LC_ALL", "LINES", "LOG_LEVEL", "NODE_ENV"),
    *("NO_COLOR", "TERM", "TZ"),
)
"""Variables that definitions of editors may set for agents, unless the settings list others."""
INPUTS_PREFIX = "INPUTS_"
"""The beginning of names that no program but that of the author reads."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_reserved(name: str) -> bool:
    """Whether a variable decides what programs load and run, in whatever case it is written."""
    return name.upper() in _RESERVED or name.upper().startswith(_RESERVED_PREFIXES)


def is_loading(name: str) -> bool:
    """Whether a variable decides what a program loads beside itself, or where it sends requests."""
    name = name.upper()
    loads = name in _LOADING or name.startswith(_LOADING_PREFIXES)
    return is_reserved(name) or loads or name.endswith(_LOADING_ENDS)


def is_listed(name: str, listed: Collection[str]) -> bool:
    """Whether a list names a variable; `REVIEW_*` names all that begin so. Names that decide what
    programs load and run are not listed by a beginning.
    """
    exact = name in listed
    begins = any(one.endswith("*") and name.startswith(one[:-1]) for one in listed)
    own = name.startswith(INPUTS_PREFIX)
    return not is_reserved(name) and (exact or ((begins or own) and not is_loading(name)))


def is_variable_pattern(text: str) -> bool:
    """Whether a text is the name of a variable, or the beginning of one before `*`."""
    return is_variable_name(text.removesuffix("*"))


def is_variable_name(name: str) -> bool:
    """Whether every system takes this for the name of a variable."""
    return _NAME.fullmatch(name) is not None
