"""Notations of values in definitions: durations, token counts, times, commands, branch names.

A duration is `1h30m`, a token count `500k`, a time seconds or a point in time with its zone. No
clock is used: a definition has the same meaning whenever and wherever it is read. A command is a
list of arguments, or a line that is split without a shell. A branch name must be safe for git, for
shell variables and for readers.
"""

import re
import shlex
from typing import NamedTuple

from loopwright.syntax.document import check_text

UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
MAX_DURATION_MS = 365 * UNITS_MS["d"]
_TOKENS = re.compile(r"(\d+)(?:\.(\d))?([kM])")
MAX_TOKENS = 1_000_000_000_000


def parse_duration(text: str) -> int | None:
    """A duration in milliseconds, even if it is out of range."""
    found = _DURATION.fullmatch(text) if text else None
    if found is None:
        return None
    # Cut, so that a number of any length is processed quickly: it is out of range anyway.
    amounts = [int(part[:15]) if part else 0 for part in found.groups()]
    return sum(n * unit for n, unit in zip(amounts, UNITS_MS.values(), strict=True))


def write_duration(ms: int) -> str:
    """A duration as people write it."""
    text = ""
    for unit, size in UNITS_MS.items():
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text or "0ms"


def is_duration(value: int) -> bool:
    """Whether a duration is within the range that definitions allow."""
    return 0 < value <= MAX_DURATION_MS


def parse_tokens(value: object) -> int | None:
    """A number of tokens, even if it is out of range."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _TOKENS.fullmatch(value[:20]) if isinstance(value, str) else None
    if found is None:
        return None
    whole, tenth, unit = found.groups()
    return (int(whole) * 10 + int(tenth or 0)) * {"k": 100, "M": 100_000}[unit]


def is_token_count(value: int) -> bool:
    """Whether a number of tokens is within the range that definitions allow."""
    return 0 < value <= MAX_TOKENS


_NUMBER = re.compile(r"\s*[0-9]+(?:\.[0-9]+)?\s*")
_POINT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(?:(Z|z)|([+-])(\d\d):?(\d\d))"
)
_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MOST_SECONDS = 10**9
_EPOCH_DAYS = 719_468  # from the first of March of the year 0


def span_ms(value: object) -> int | None:
    """A duration in seconds, in milliseconds."""
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value * 1000) if 0 < value <= _MOST_SECONDS else None


def point_ms(value: object) -> int | None:
    """A point in time, in milliseconds since the epoch."""
    found = _POINT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    year, month, day, hour, minute = (int(found[n]) for n in range(1, 6))
    second = int(found[6] or 0)
    if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month)):
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    zone = _zone_minutes(found)
    minutes = (_days(year, month, day) * 24 + hour) * 60 + minute - zone
    return (minutes * 60 + second) * 1000 + int((found[7] or "0").ljust(3, "0")[:3])


def write_point(ms: int) -> str:
    """The text of a point in time that `point_ms` reads."""
    seconds, part = divmod(ms, 1000)
    days, of_day = divmod(seconds, 86_400)
    year, month, day = _date(days)
    clock = f"{of_day // 3600:02}:{of_day // 60 % 60:02}:{of_day % 60:02}"
    return f"{year:04}-{month:02}-{day:02}T{clock}{f'.{part:03}' if part else ''}Z"


def _date(days: int) -> tuple[int, int, int]:
    """The date for days since the epoch."""
    era, of_era = divmod(days + _EPOCH_DAYS, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def _zone_minutes(found: "re.Match[str]") -> int:
    if found[8]:
        return 0
    minutes = int(found[10]) * 60 + int(found[11])
    return -minutes if found[9] == "-" else minutes


def _days_in(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 28 if month == 2 and not leap else _MONTHS[month - 1]


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch. Years begin in March here, so that a leap day is the last one."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH_DAYS


USE_A_SCRIPT = (
    "put it into a script file and name that file here; a definition may have `script:` instead"
)

# One group per kind of quoting: outside of all quotes, inside double quotes, and what is safe.
_PIECE = re.compile(
    r"""
      \\.                                    # an escaped character
    | '[^']*'                                # quoted: nothing has a meaning
    | "(?:\\[^$`]|[^"\\$`])*               # quoted: a shell would fill in $ and `
      (?:"|(?P<inside>\\?[$`])|\Z)
    | (?P<bare>&&|\|\||>>|[&|;<>$`*?()\n])
    | (?P<home>(?:^|(?<=\s))~)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_OPERATOR = re.compile(r"&&|\|\|?|;|&|\d*>>?|\d*<<?<?|\d*>&\d*|&>")
_NESTING = ("-exec", "-ok")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*=\S*)\s")
_OURS = re.compile(
    r"\{\{\s*(?:message|input|steps|item|index|iteration|max|previous|feedback|run|workspace)\b"
)


class CommandFault(NamedTuple):
    """Why a command is rejected."""

    code: str
    message: str
    hint: str | None = None


def split_command(line: str) -> list[str] | CommandFault:
    """The arguments of a command line, or why it cannot be run without a shell."""
    found = shell_syntax(line)
    if found:
        message = f"{found} means something to a shell only, and no shell is used"
        return CommandFault("shell-syntax", message, USE_A_SCRIPT)
    assigned = _ASSIGNMENT.match(line)
    if assigned:
        message = f"{assigned[1]} sets a variable in a shell only, and no shell is used"
        return CommandFault("shell-syntax", message, f"write `env {line.strip()}`")
    try:
        words = shlex.split(line)
    except ValueError:
        return CommandFault("bad-command", "a quotation mark or backslash is left open")
    return words or CommandFault("bad-command", "the command is empty")


def split_commands(line: str) -> list[str]:
    """The commands of a line that are joined by `&&`: each runs if the previous one succeeded."""
    starts = [0]
    ends = []
    for piece in _PIECE.finditer(line):
        if piece["bare"] == "&&":
            ends.append(piece.start())
            starts.append(piece.end())
    return [line[start:end] for start, end in zip(starts, [*ends, len(line)], strict=True)]


def shell_syntax(line: str) -> str | None:
    """The first sign of a line that only a shell would understand."""
    for piece in _PIECE.finditer(line):
        sign = piece["inside"] or piece["bare"] or piece["home"]
        if sign:
            return "a line break" if sign == "\n" else sign
    return None


def operator(words: list[object]) -> tuple[int, str] | None:
    """The first argument of a list that a shell would interpret, and its position; the program
    receives it as text. A semicolon is allowed where it ends the command of another command (`find
    -exec`).
    """
    nested = any(isinstance(word, str) and word.startswith(_NESTING) for word in words)
    for number, word in enumerate(words[1:], start=1):
        if isinstance(word, str) and _OPERATOR.fullmatch(word) and not (nested and word == ";"):
            return number, word
    return None


def checked_words(words: list[str]) -> list[str] | CommandFault:
    """The arguments, or why they are not a command. In a list, special characters of a shell are
    plain text.
    """
    if not words or not words[0].strip():
        return CommandFault("bad-command", "the command is empty")
    for word in words:
        if _OURS.search(word):
            message = (
                "a command cannot contain references: the output of an agent would become a command"
            )
            hint = "let the program read the workspace, or its LOOPWRIGHT_ variables"
            return CommandFault("reference-in-command", message, hint)
    return words


MOST_CHARS = 200
_FORBIDDEN = frozenset(" ~^:?*[\\;&|<>$`'\"(){}!#%")


def ref_problem(name: str) -> str | None:
    """Why a text cannot be the name of a branch, or None. Stricter than git: no character that a
    shell interprets.
    """
    if not name:
        return "it is empty"
    if len(name) > MOST_CHARS:
        return f"it has more than {MOST_CHARS} characters"
    if name.startswith("-"):
        return "it begins with - and would be taken for an option"
    for char in name:
        if not char.isprintable() or char in _FORBIDDEN:
            return f"it has the character U+{ord(char):04X}"
    if ".." in name or "@{" in name or "//" in name or name == "@":
        return "it has .., // or @{"
    parts = name.split("/")
    if any(not part or part.startswith(".") or part.endswith((".", ".lock")) for part in parts):
        return "a part of it is empty, begins or ends with a dot, or ends with .lock"
    return None


FENCE = "---"


def front_matter(data: bytes) -> tuple[bytes, str] | None:
    """The front matter, padded with the number of lines before it, and the text."""
    lines = data.decode(errors="replace").removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != FENCE:
        return None
    end = next((n for n, line in enumerate(lines) if n and line.rstrip() == FENCE), None)
    if end is None:
        return None
    return "\n".join(["", *lines[1:end]]).encode(), "\n".join(lines[end + 1 :]).strip()


_DRIVE = re.compile(r"[A-Za-z]:")


def path_inside(folder: str, written: str) -> str | None:
    """The path of a file that is named in `folder`, both from the folder of the first file on; None
    if it leads out of the folder of the first file.
    """
    if not written or written.startswith(("/", "~")) or "\\" in written or "://" in written:
        return None
    if _DRIVE.match(written) or check_text(written) or "\n" in written:
        return None
    parts = [part for part in folder.split("/") if part]
    for part in written.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or None
