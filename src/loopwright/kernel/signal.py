"""Completion signals: whether an agent's text says that the work is done.

The signal must be the last thing said: alone on the last line that is not blank, either bare (with
closing punctuation at most) or as the only content of a tag. A mention inside a sentence, a longer
word, a code fence, or an echo of the instructions is not a signal.
"""

import re

# An info string may follow an opening fence, nothing a closing one; "```like this```" is neither.
_FENCE = re.compile(r" {0,3}(?:(`{3,})([^`]*)|(~{3,})(.*))")
# Content without angle brackets: then each character fits in one way, and long lines stay cheap.
_TAG = re.compile(r"<([A-Za-z][\w-]*)(?:\s[^<>]*)?>([^<>]*)</([A-Za-z][\w-]*)\s*>")
_CLOSING = ".!"


def signalled(text: str, word: str, instructions: str = "") -> bool:
    """Whether the text ends with the signal, and not as an echo of what was asked."""
    lines = text.splitlines()
    last = _last_spoken(lines)
    if last is None or _in_fence(lines, last):
        return False
    line = lines[last].strip()
    if not (_bare(line, word) or _tagged(line, word)):
        return False
    return not _is_echo(lines, last, instructions)


def _last_spoken(lines: list[str]) -> int | None:
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].strip():
            return number
    return None


def _in_fence(lines: list[str], last: int) -> bool:
    """Whether a line stands inside a fenced block, also inside one that was never closed."""
    fence = ""
    for line in lines[: last + 1]:
        found = _FENCE.fullmatch(line)
        if found is None:
            continue
        mark = found.group(1) or found.group(3)
        info = found.group(2) or found.group(4)
        if not fence:
            fence = mark
        elif mark.startswith(fence) and not (info or "").strip():
            fence = ""
    return bool(fence)


def _bare(line: str, word: str) -> bool:
    return line == word or line.rstrip(_CLOSING) == word


def _tagged(line: str, word: str) -> bool:
    found = _TAG.fullmatch(line.rstrip(_CLOSING))
    if found is None:
        return False
    opening, content, closing = found.groups()
    return opening.lower() == closing.lower() and content.strip().lower() == word.lower()


def _is_echo(lines: list[str], last: int, instructions: str) -> bool:
    """Whether the end of the text repeats a place of the instructions, line before and line.

    A signal that the instructions show alone on a line is meant to be copied; it is an echo
    when the line before it was copied too.
    """
    asked = [line.strip() for line in instructions.splitlines() if line.strip()]
    spoken = [line.strip() for line in lines[: last + 1] if line.strip()]
    for number, line in enumerate(asked):
        if line != spoken[-1]:
            continue
        if number == 0:
            if len(spoken) == len(asked) == 1:
                return True
        elif len(spoken) > 1 and spoken[-2] == asked[number - 1]:
            return True
    return False
