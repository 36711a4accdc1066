"""Denials: whether the sentence around a word denies it or speaks of another time.

Only the clause around the word counts: "I did not change the docs, all stories are COMPLETE" says
COMPLETE, "this is not, as far as I know, COMPLETE" does not. Where it is not clear that a new
clause begins, the whole sentence counts.
"""

import re

_REACH = 400  # characters of a sentence that are looked at on each side
_SENTENCE_END = re.compile(r"[.!?](?:[\s\"')*_]|$)|\n")
_TAG = re.compile(r"<[^<>]*>")
# Words that deny, words that make it hang on something, and in front of the word those that speak
# of saying it at another time.
_NEGATES = r"\b(?:not|never|cannot|nor|neither)\b|n['\u2019]t\b"
_CONDITIONS = r"\b(?:unless|until|till|before|if|when|whenever|once)\b"
_PUTS_OFF = (
    r"\b(?:will|would|should|could|may|might|shall|going to|say|output|emit|print|write)\b"
    r"|['\u2019]ll\b"
)
_DENIED = re.compile(f"{_NEGATES}|{_CONDITIONS}", re.IGNORECASE)
_NOT_YET = re.compile(
    rf"{_NEGATES}|{_CONDITIONS}|{_PUTS_OFF}"
    r"|\b(?:none|nothing|hardly|barely|almost|nearly|partly|partially|far from|doubt|unclear"
    r"|whether)\b|^\W*(?:and|but|so)?\W*no\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"[,;\u2013\u2014]+|\s-+\s|\b(?=(?:and|but|so|thus|hence|therefore)\s)", re.IGNORECASE
)
_JOINS = r"\W*(?:(?:and|but|so|thus|hence|therefore|now|only|though|although)\b\W*)*"
_CONDITION_FIRST = re.compile(rf"{_JOINS}(?:{_CONDITIONS}|after\b|as soon as\b)", re.IGNORECASE)
_DENIAL_FIRST = re.compile(rf"{_JOINS}(?:{_NEGATES}|{_CONDITIONS}|after\b)", re.IGNORECASE)
# A clause of its own has a verb, and begins with what it is about.
_VERB = re.compile(r"\b(?:is|are|am|was|were|has|have)\b|['\u2019](?:s|re|m|ve)\b", re.IGNORECASE)
_CONTINUES = re.compile(
    rf"{_JOINS}(?:is|are|am|was|were|be|been|has|have|or|nor|that (?!is\b|was\b)|which|who"
    r"|whether|as|than|then|later|afterwards|in|at|for|to|of|with)\b",
    re.IGNORECASE,
)
# A denial that ends like this is continued by the next clause: "it is not, I fear, COMPLETE".
_OPEN = re.compile(
    rf"(?:{_NEGATES}|{_PUTS_OFF})\W+(?:\w+\W+)?"
    r"(?:say|saying|think|believe|know|sure|certain|confirm|claim|agree|promise"
    r"|(?:call|mark|report|declare|consider) (?:it|this|that))\b"
    r"|\b(?:is|are|am|was|were|be|been|not|yet|cannot|true|right|correct|case|say|output|emit|print"
    r"|write|answer|reply|as|that|whether)\W*$|n['\u2019]t\W*$",
    re.IGNORECASE,
)
_BLANK = " \t*_\"'("
_STATE = re.compile(r"(?<!be )\b(?:ready|finished|done|complete|possible)\W*$", re.IGNORECASE)


def is_denied(text: str, start: int, end: int) -> bool:
    """Whether the clause around a place of the text denies it or speaks of another time."""
    before = _TAG.sub(" ", text[max(0, start - _REACH) : start])
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
    """Whether the rest of a sentence denies what was said."""
    first, *others = [*_CLAUSE_END.split(rest)]
    return bool(_DENIED.search(first) or any(map(_DENIAL_FIRST.match, others)))
