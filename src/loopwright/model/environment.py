"""Variables of programs: which names there can be, and which no plan may set."""

import re

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

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_reserved(name: str) -> bool:
    """Whether a variable decides what programs load and run, in whatever case it is written."""
    return name.upper() in _RESERVED or name.upper().startswith(_RESERVED_PREFIXES)


def is_variable_name(name: str) -> bool:
    """Whether every system takes this for the name of a variable."""
    return _NAME.fullmatch(name) is not None
