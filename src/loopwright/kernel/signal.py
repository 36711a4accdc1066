"""Completion signals: whether the text of an agent says that the work is done.

The signal must be the last text: alone on the last line that is not blank, either bare (with
closing punctuation at most) or as the only content of a tag. A mention inside a sentence, a
longer word, a code fence, or an echo of the instructions is not a signal.

A loop can also accept the signal `anywhere`. Inside `<promise>` tags it always counts. In
another tag, alone on any line, or as the last word of the text it counts unless the text around
it denies or postpones it, quotes code or repeats the instructions; the verdict gives the
reason.

Only the clause around the word can deny it: "I did not change the docs, all stories are
COMPLETE" says COMPLETE, "this is not, as far as I know, COMPLETE" does not. If it is not clear
that a new clause begins, the whole sentence counts.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate

from loopwright.model.patterns import LazyPattern

_REACH = 400  # characters of a sentence that are searched on each side
_SENTENCE_END = LazyPattern(r"[.!?](?:[\s\"')*_]|$)|\n")
_MARKUP_TAG = LazyPattern(r"<[^<>]*>")
# Words that deny, words that make it hang on something, and in front of the word those that speak
# of saying it at another time.
_NEGATES = r"\b(?:not|never|cannot|nor|neither)\b|n['\u2019]t\b"
_CONDITIONS = r"\b(?:unless|until|till|before|if|when|whenever|once)\b"
_PUTS_OFF = (
    r"\b(?:will|would|should|could|may|might|shall|going to|say|output|emit|print|write)\b"
    r"|['\u2019]ll\b"
)
_DENIED = LazyPattern(f"{_NEGATES}|{_CONDITIONS}", re.IGNORECASE)
_NOT_YET = LazyPattern(
    rf"{_NEGATES}|{_CONDITIONS}|{_PUTS_OFF}"
    r"|\b(?:none|nothing|hardly|barely|almost|nearly|partly|partially|far from|doubt|unclear"
    r"|whether)\b|^\W*(?:and|but|so)?\W*no\b",
    re.IGNORECASE,
)
_CLAUSE_END = LazyPattern(
    r"[,;\u2013\u2014]+|\s-+\s|\b(?=(?:and|but|so|thus|hence|therefore)\s)", re.IGNORECASE
)
_JOINS = r"\W*(?:(?:and|but|so|thus|hence|therefore|now|only|though|although)\b\W*)*"
_CONDITION_FIRST = LazyPattern(rf"{_JOINS}(?:{_CONDITIONS}|after\b|as soon as\b)", re.IGNORECASE)
_DENIAL_FIRST = LazyPattern(rf"{_JOINS}(?:{_NEGATES}|{_CONDITIONS}|after\b)", re.IGNORECASE)
# A clause of its own has a verb, and begins with what it is about.
_VERB = LazyPattern(r"\b(?:is|are|am|was|were|has|have)\b|['\u2019](?:s|re|m|ve)\b", re.IGNORECASE)
_CONTINUES = LazyPattern(
    rf"{_JOINS}(?:is|are|am|was|were|be|been|has|have|or|nor|that (?!is\b|was\b)|which|who"
    r"|whether|as|than|then|later|afterwards|in|at|for|to|of|with)\b",
    re.IGNORECASE,
)
# A denial that ends like this is continued by the next clause: "it is not, I fear, COMPLETE".
_OPEN = LazyPattern(
    rf"(?:{_NEGATES}|{_PUTS_OFF})\W+(?:\w+\W+)?"
    r"(?:say|saying|think|believe|know|sure|certain|confirm|claim|agree|promise"
    r"|(?:call|mark|report|declare|consider) (?:it|this|that))\b"
    r"|\b(?:is|are|am|was|were|be|been|not|yet|cannot|true|right|correct|case|say|output|emit|print"
    r"|write|answer|reply|as|that|whether)\W*$|n['\u2019]t\W*$",
    re.IGNORECASE,
)
_BLANK = " \t*_\"'("
_STATE = LazyPattern(r"(?<!be )\b(?:ready|finished|done|complete|possible)\W*$", re.IGNORECASE)


def is_denied(text: str, start: int, end: int) -> bool:
    """Whether the clause around a place of the text denies it or speaks of another time."""
    before = _MARKUP_TAG.sub(" ", text[max(0, start - _REACH) : start])
    begun = _SENTENCE_END.split(before)[-1]
    rest = _SENTENCE_END.split(text[end : end + _REACH], maxsplit=1)[0]
    if text[start:end] in begun:  # it speaks about the word
        return bool(_NOT_YET.search(begun) or _DENIED.search(rest))
    return _is_denied_before(begun) or _is_denied_after(rest)


def _is_denied_before(sentence: str) -> bool:
    """Whether the beginning of a sentence denies what follows."""
    parts = _CLAUSE_END.split(sentence)
    clauses = [one for one in parts[:-1] if one.strip()] + parts[-1:]
    return (
        any(map(_CONDITION_FIRST.match, clauses))
        or _continues_denial(clauses[:-1], clauses[-1])
        or _is_denied_in_clause(clauses[-1])
    )


def _continues_denial(earlier: list[str], last: str) -> bool:
    """Whether the last clause, in front of the word, belongs to an earlier one that denies it."""
    denials = [one for one in earlier if _NOT_YET.search(one)]
    if any(map(_OPEN.search, denials)):
        return True
    if not last.strip(_BLANK):
        return any(map(_STATE.search, denials))
    return bool(denials) and (_VERB.search(last) is None or _CONTINUES.match(last) is not None)


def _is_denied_in_clause(clause: str) -> bool:
    """Whether a clause denies what follows; in front of a colon, only if it is left open."""
    label, colon, own = clause.rpartition(":")
    if not colon or _NOT_YET.search(own):
        return bool(_NOT_YET.search(own))
    return _continues_denial([label], own)


def _is_denied_after(rest: str) -> bool:
    """Whether the rest of a sentence negates its start."""
    first, *others = [*_CLAUSE_END.split(rest)]
    return bool(_DENIED.search(first) or any(map(_DENIAL_FIRST.match, others)))


# An info string may follow an opening fence, nothing a closing one; "```like this```" is neither.
_FENCE = LazyPattern(r" {0,3}(?:(`{3,})([^`]*)|(~{3,})(.*))")
# Content without angle brackets: then each character fits in one way, and long lines stay cheap.
_TAG = LazyPattern(r"<([A-Za-z][\w-]*)(?:\s[^<>]*)?>([^<>]*)</([A-Za-z][\w-]*)\s*>")
_CLOSING = ".!"
_ENDING = ".,;:!?"
_EMPHASIS = "*_"
_MARKS_BEHIND = frozenset(_ENDING + _EMPHASIS)
# The tag that agents are taught to use, taken out whatever it holds.
_USUAL = "promise"


def has_signal(text: str, word: str, instructions: str = "", *, anywhere: bool = False) -> bool:
    """Whether the text says the signal, and not as an echo of what was asked."""
    if anywhere:
        return why_not_signalled(text, word, instructions) is None
    lines = text.splitlines()
    last = _last_spoken(lines)
    if last is None:
        return False
    line = lines[last].strip()
    if _in_fence(lines, last) or not (_bare(line, word) or _tagged(line, word)):
        return False
    return not _is_echo(lines, last, instructions)


def why_not_signalled(text: str, word: str, instructions: str = "") -> str | None:
    """None when the signal is somewhere in the text, else why what looks like it does not count;
    empty when nothing does.
    """
    if word.lower() not in text.lower():
        return ""
    if any(found.group(1).lower() == _USUAL for found in _tags(text, word)):
        return None
    lines = text.splitlines()
    problem = ""
    for number, denied in _candidates(text, lines, word):
        problem = denied or ""
        if not problem and _is_copied(lines, number, word, instructions):
            problem = f"{word} repeats the instructions"
        if not problem:
            return None
    if not problem and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text):
        # The tag is not spelled out: an agent that quotes this reason does not signal.
        problem = (
            f"{word} is inside a sentence; it counts inside <{_USUAL}> tags, alone on a line "
            "or as the last word"
        )
    return problem


def _last_spoken(lines: list[str]) -> int | None:
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].strip():
            return number
    return None


def _in_fence(lines: list[str], last: int) -> bool:
    """Whether a line is inside a fenced block, also inside one that was never closed."""
    return last in fenced_lines(lines[: last + 1])


def fenced_lines(lines: list[str]) -> set[int]:
    """The lines inside of fenced blocks, and those that open them."""
    fence, inside = "", set()
    for number, line in enumerate(lines):
        found = _FENCE.fullmatch(line)
        if found is not None:
            mark = found.group(1) or found.group(3)
            info = found.group(2) or found.group(4)
            if not fence:
                fence = mark
            elif mark.startswith(fence) and not (info or "").strip():
                fence = ""
        if fence:
            inside.add(number)
    return inside


def _bare(line: str, word: str) -> bool:
    return line == word or line.rstrip(_CLOSING) == word


def _tagged(line: str, word: str) -> bool:
    found = _TAG.fullmatch(line.rstrip(_CLOSING))
    if found is None:
        return False
    opening, content, closing = found.groups()
    return opening.lower() == closing.lower() and content.strip().lower() == word.lower()


# -- anywhere --------------------------------------------------------------------------------------


def _candidates(text: str, lines: list[str], word: str) -> Iterator[tuple[int, str | None]]:
    """The numbers of the lines on which a signal ends, and why it does not count, if so."""
    fenced = fenced_lines(lines)
    in_code = f"{word} is inside a block of code"
    for number, line in enumerate(lines):
        if _is_alone(line, word):
            yield number, in_code if number in fenced else None
    ends = list(accumulate(len(line) for line in text.splitlines(keepends=True)))
    for start, end in _positions(text, word):
        number = bisect_left(ends, end)
        if number in fenced:
            yield number, in_code
        elif is_denied(text, start, end):
            yield number, f"the sentence around {word} denies it or speaks of another time"
        else:
            yield number, None


def _tags(text: str, word: str) -> "Iterator[re.Match[str]]":
    """The tags that hold the signal and nothing else."""
    for found in _TAG.finditer(text):
        opening, content, closing = found.groups()
        if opening.lower() == closing.lower() and content.strip().lower() == word.lower():
            yield found


def _positions(text: str, word: str) -> Iterator[tuple[int, int]]:
    """Where the signal is in a tag, or the last word."""
    for found in _tags(text, word):
        if text[found.start() - 1 : found.start()] != "`":
            yield found.span()
    end = len(text.rstrip())
    while not text.endswith(word, 0, end) and text[end - 1 : end] in _MARKS_BEHIND:
        end -= 1
    start = end - len(word)
    begun = text[:start].rstrip(_EMPHASIS)
    if begun and text.endswith(word, 0, end) and begun[-1].isspace():
        yield start, end


def _is_alone(line: str, word: str) -> bool:
    """Whether a line is the signal, plain or emphasised."""
    line = line.strip()
    if line.rstrip(_ENDING) == word:
        return True
    marks = line[: len(line) - len(line.lstrip(_EMPHASIS))]
    inner = line[len(marks) :].rstrip(_ENDING)
    is_closed = inner.endswith(marks)
    return is_closed and inner[: len(inner) - len(marks)].rstrip(_ENDING) == word


def _is_copied(lines: list[str], number: int, word: str, instructions: str) -> bool:
    """Whether a line with the signal is one of the instructions, as a whole."""
    line = lines[number].strip()
    if _is_echo(lines, number, instructions):
        return True
    alone = _is_alone(line, word) or _tagged(line, word)
    return not alone and line in (one.strip() for one in instructions.splitlines())


def _is_echo(lines: list[str], last: int, instructions: str) -> bool:
    """Whether the end of the text repeats a place of the instructions, line before and line.

    A signal that the instructions show alone on a line is meant to be copied; it is an echo
    when the line before it was copied too.
    """
    instruction_lines = [line.strip() for line in instructions.splitlines() if line.strip()]
    spoken = [line.strip() for line in lines[: last + 1] if line.strip()]
    for number, line in enumerate(instruction_lines):
        if line != spoken[-1]:
            continue
        if number == 0:
            if len(spoken) == len(instruction_lines) == 1:
                return True
        elif len(spoken) > 1 and spoken[-2] == instruction_lines[number - 1]:
            return True
    return False


# -- what others see -------------------------------------------------------------------------------


def without_signal(text: str, word: str) -> str:
    """The text without the tags that hold the signal; plain words stay."""
    if "<" not in text:
        return text
    return hidden_tags(word).sub("", text).strip()


@lru_cache(maxsize=64)
def hidden_tags(word: str) -> "re.Pattern[str]":
    """The tags that are for the loop alone: those around the signal, and the usual one."""
    tag = r"(?:\s[^<>]*)?>"
    signal = rf"<([A-Za-z][\w-]*){tag}\s*{re.escape(word)}\s*</\1\s*>"
    usual = rf"<{_USUAL}{tag}[^<>]*</{_USUAL}\s*>"
    return re.compile(rf"{signal}|{usual}", re.IGNORECASE)
