"""Confinement of programs: sandbox levels, reserved variables, protected files.

Sandbox levels: `off`: not confined. `guard`: Loopwright's own files and the settings of the
kernel are out of reach; the user's files are not affected. `workspace`: only the workspace can
be changed. `readonly`: nothing can be changed, and home directories are hidden except for the
workspace. `none`: no files except the program itself.

File patterns (`protect`): `*` and `?` match within a name, `**` matches any number of folders.
A pattern with a slash is relative to the workspace; one without a slash matches at any depth. A
pattern that names a folder matches everything in it. Caches that Python and its tools write
next to sources are not protected unless a pattern names them: running the tests would otherwise
count as a change of the tests.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

import re2

SandboxLevel: TypeAlias = Literal["off", "guard", "workspace", "readonly", "none"]
ConfinedLevel: TypeAlias = Literal["guard", "workspace", "readonly", "none"]
"""Levels that a definition may request: only a person can choose `off`."""

SANDBOX_LEVELS: tuple[SandboxLevel, ...] = ("off", "guard", "workspace", "readonly", "none")
"""From the weakest to the strictest."""

DEFAULT_SANDBOX: SandboxLevel = "guard"

LEVEL_SAYS: Mapping[SandboxLevel, str] = MappingProxyType(
    {
        "off": "not confined",
        "guard": "Loopwright's data and the settings of the kernel are out of reach",
        "workspace": "writes only to the workspace, temporary files and its own configuration",
        "readonly": "changes nothing, and sees no other files of people than the workspace",
        "none": "sees no files but its own program",
    }
)
"""Each level in a few words."""

LEVEL_OF_ACCESS: Mapping[str, SandboxLevel] = MappingProxyType(
    {
        "full": "workspace",
        "readonly-shell": "readonly",
        "readonly": "readonly",
        "minimal": "none",
    }
)
"""The level that corresponds to the access of a role."""


COMMAND_SANDBOX = "command_sandbox"
"""The setting of a plan with the least level of its check commands and scripts."""


def strictest(*levels: SandboxLevel | None) -> SandboxLevel:
    """The strictest of some levels; without any, `off`."""
    found = [SANDBOX_LEVELS.index(level) for level in levels if level is not None]
    return SANDBOX_LEVELS[max(found, default=0)]


def is_at_least(level: SandboxLevel, other: SandboxLevel) -> bool:
    """Whether a level is as strict as another one, or stricter."""
    return SANDBOX_LEVELS.index(level) >= SANDBOX_LEVELS.index(other)


def command_level(level: SandboxLevel | None, settings: Mapping[str, str]) -> SandboxLevel | None:
    """The level of the commands of a plan: that of the run, or what its settings ask for."""
    least = next((one for one in SANDBOX_LEVELS if one == settings.get(COMMAND_SANDBOX)), None)
    return level if least is None else strictest(level, least)


def effective_level(
    chosen: SandboxLevel | None,
    *,
    requested: SandboxLevel | None = None,
    access: str | None = None,
    offline: bool = False,
    default: SandboxLevel = DEFAULT_SANDBOX,
) -> SandboxLevel:
    """The level of one call: the strictest of all that apply.

    `chosen` is the level of the run (the person's choice and the definition's), `requested` that of
    the agent, `access` that of its role. A program without a network always needs a sandbox. Only
    `chosen` can be `off`, as no other value weakens a level.
    """
    return strictest(
        chosen if chosen is not None else default,
        requested,
        LEVEL_OF_ACCESS.get(access or ""),
        "guard" if offline else None,
    )


OWN_PREFIX = "LOOPWRIGHT_"

SYSTEM_PATH = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")
"""Folders of programs that an ordinary user cannot change."""

# Each of these makes a program load or run something other than the intended code.
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
"""The prefix of names that only the author's program reads."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_reserved(name: str) -> bool:
    """Whether a variable decides what programs load and run, in upper or lower case."""
    return name.upper() in _RESERVED or name.upper().startswith(_RESERVED_PREFIXES)


def is_loading(name: str) -> bool:
    """Whether a variable decides what a program loads beside itself, or where it sends requests."""
    name = name.upper()
    loads = name in _LOADING or name.startswith(_LOADING_PREFIXES)
    return is_reserved(name) or loads or name.endswith(_LOADING_ENDS)


def is_listed(name: str, listed: Collection[str]) -> bool:
    """Whether a list names a variable; `REVIEW_*` names all with this prefix. Names that decide
    what programs load and run cannot be listed by a prefix.
    """
    exact = name in listed
    begins = any(one.endswith("*") and name.startswith(one[:-1]) for one in listed)
    own = name.startswith(INPUTS_PREFIX)
    return not is_reserved(name) and (exact or ((begins or own) and not is_loading(name)))


def is_variable_pattern(text: str) -> bool:
    """Whether a text is the name of a variable, or a prefix of one before `*`."""
    return is_variable_name(text.removesuffix("*"))


def is_variable_name(name: str) -> bool:
    """Whether every system accepts this as the name of a variable."""
    return _NAME.fullmatch(name) is not None


NO_MATCH = "no file matches "
"""The beginning of the note about patterns that match nothing."""
_PARTS = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|[^*?]+")
_WRITTEN = {
    "**/": "(?:.*/)?",
    "/**": "/.*",
    "**": ".*",
    "*": "[^/]*",
    "?": r"(?:\\x[0-9a-f]{2}|[^/])",
}
# A byte of a name that is not UTF-8 is written as `\xNN`: `?` matches it as one character.
_CACHES = re.compile(
    r"(?:.*/)?(?:__pycache__/[^/]+\.pyc(?:\.\d+)?"
    r"|\.(?:pytest|ruff|mypy)_cache/(?:.*/)?"
    r"(?:README\.md|CACHEDIR\.TAG|\.gitignore|[^/.]+|[^/]+\.(?:json|ff|db)))",
    re.DOTALL,
)
_CACHE_NAMES = ("__pycache__", ".pyc", ".pytest_cache", ".ruff_cache", ".mypy_cache")


def is_protected(patterns: Iterable[str], path: str) -> bool:
    """Whether one of the patterns protects a file. A cache is protected only if a pattern
    names it.
    """
    if _CACHES.fullmatch(path):
        patterns = [one for one in patterns if any(name in one for name in _CACHE_NAMES)]
    return matches_any(patterns, path)


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Whether a path is a file that one of the patterns names."""
    return any(_is_match(pattern, path) for pattern in patterns)


def may_match(patterns: Sequence[str], path: str) -> bool:
    """Whether a pattern matches a file, or files of a folder, whose path ends with a slash."""
    if path.endswith("/"):
        return matches_any(patterns, path[:-1]) or matches_any(patterns, f"{path}file")
    return matches_any(patterns, path)


def pathspecs(pattern: str) -> tuple[str, str]:
    """The same pattern for Git."""
    plain = _plain(pattern).replace("[", "\\[")
    anywhere = "" if _has_slash(pattern) else "**/"
    return f":(glob){anywhere}{plain}", f":(glob){anywhere}{plain}/**"


def _has_slash(pattern: str) -> bool:
    return "/" in pattern.rstrip("/")


def _plain(pattern: str) -> str:
    return pattern.removeprefix("./").rstrip("/")


def _is_match(pattern: str, path: str) -> bool:
    return _compiled(pattern).fullmatch(_encodable(path)) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> "re2._Regexp":
    """The pattern for an engine that needs time linear in the path. Python's `re` backtracks: a
    pattern of an author could keep the whole process busy for years. A pattern that is too large
    for the engine matches every file, so that no file loses its protection.
    """
    plain = _plain(_encodable(pattern))
    text = "".join(_WRITTEN.get(part) or re2.escape(part) for part in _PARTS.findall(plain))
    anywhere = "" if _has_slash(pattern) else "(?:.*/)?"
    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    try:
        return re2.compile(f"{anywhere}{text}(?:/.*)?", options)
    except re2.error:
        return re2.compile(".*", options)


def _encodable(text: str) -> str:
    """The text with unpaired surrogates, which the engine cannot read, written as escapes."""
    return text.encode(errors="backslashreplace").decode()
