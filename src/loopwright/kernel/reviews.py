"""Reviews: whether the words of a reviewer approve. No approval is made of what denies one.

The structured verdict comes first: an object with `approved`, true or false, at the end of the
text. Where there is none, the whole text is read, sentence by sentence. Words approve only where
they are a verdict: alone, said of the work, or in the first person. What is denied, put under a
condition or off to another time is a refusal, and so is every word of rejection: one of them is
enough. What stands in code, in quotes, or copies the instructions approves nothing.
"""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder

import msgspec

from loopwright.kernel.phrases import (
    APPROVES,
    BENIGN,
    BUT,
    CONDITION_AFTER,
    CONDITION_BEFORE,
    CONTRAST,
    FOREIGN_DENIAL,
    HISTORY,
    IS_VERDICT,
    LABEL,
    NEGATION,
    NOT_REJECTED,
    REJECTS,
    TAKEN_BACK,
)
from loopwright.kernel.signal import fenced_lines
from loopwright.model.record import JsonValue

EVIDENCE_CHARS = 300
MILD = frozenset({"minor", "info", "low", "nit", "note", "suggestion", "trivial"})
"""Severities of a finding that may stand beside an approval."""

_SENTENCE = re.compile(r"(?:[^.!?\n。！？]|\.(?=\w))+[.!?。！？]*")
_INLINE_CODE = re.compile(r"(`+)[^`\n]*\1")
_QUOTED = re.compile(
    r"\"[^\"\n]*\"|“[^”\n]*”|„[^“”\n]*[“”]|«[^»\n]*»|‹[^›\n]*›|「[^」\n]*」|『[^』\n]*』"
    r"|(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)‘[^’\n]*’(?!\w)"
)
_MARKS = re.compile(r"[*_~#|]+|\[[ xX]\]|[\u2705\u2714\u2611\U0001f44d\U0001f389\U0001f680\ufe0f]")
_SPACES = re.compile(r"\s+")
_OBJECT = re.compile(r'\{\s*["}]')
_JSON = JSONDecoder()
_CLOSERS = re.compile(r"[\s`~]*")
_SMALL_CLAUSE_WORDS = 3
_CLAUSE = re.compile(r"[,:;()—–]|\s-\s")


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What a review comes to: whether it approves, what decided that, and what it found."""

    approved: bool
    why: str
    findings: tuple[str, ...] = ()


def _refused(why: str, findings: tuple[str, ...] = ()) -> Review:
    return Review(approved=False, why=why[:EVIDENCE_CHARS], findings=findings)


def _approved(why: str, findings: tuple[str, ...] = ()) -> Review:
    return Review(approved=True, why=why[:EVIDENCE_CHARS], findings=findings)


def review(text: str, result: JsonValue, instructions: str, *, words: bool) -> Review:
    """What a review says: by its structured verdict, and where it has none and words may speak,
    by its words.
    """
    said = _verdict(result)
    if said is not None:
        return said
    found = _last_verdict(text)
    if found is not None:
        said, rest = found
        refusal = _refusal(rest) if said.approved else None
        return _refused(f"{refusal!r} beside a verdict that approves") if refusal else said
    if not words:
        return _refused("there is no verdict: an object with `approved` was asked for")
    return by_words(text, instructions)


# -- the structured verdict ------------------------------------------------------------------------


def _verdict(value: JsonValue) -> Review | None:
    """What an object says, if it is a verdict at all."""
    if not isinstance(value, dict) or "approved" not in value:
        return None
    listed = value.get("findings")
    findings = listed if isinstance(listed, list) else []
    told = tuple(_told(one) for one in findings)
    if value["approved"] is not True:
        words = "the verdict is approved: false"
        return _refused(words if value["approved"] is False else _off(value), told)
    grave = [_told(one) for one in findings if not _is_mild(one)]
    if grave:
        return _refused(f"approved, but with a finding: {grave[0]}", told)
    return _approved("the verdict is approved: true", told)


def _off(value: dict[str, JsonValue]) -> str:
    shown = msgspec.json.encode(value["approved"]).decode()
    return f"approved is neither true nor false: {shown}"


def _is_mild(finding: JsonValue) -> bool:
    """Whether a finding may stand beside an approval; one that does not say how grave it is may."""
    if not isinstance(finding, dict):
        return True
    severity = finding.get("severity")
    return severity is None or str(severity).strip().lower() in MILD


def _told(finding: JsonValue) -> str:
    if not isinstance(finding, dict):
        return finding if isinstance(finding, str) else msgspec.json.encode(finding).decode()
    words = finding.get("summary") or finding.get("message") or finding.get("title")
    if not isinstance(words, str):
        return msgspec.json.encode(finding).decode()
    severity, place = finding.get("severity"), finding.get("location")
    head = f"{severity}: " if isinstance(severity, str) else ""
    return f"{head}{words}" + (f" ({place})" if isinstance(place, str) else "")


def _last_verdict(text: str) -> tuple[Review, str] | None:
    """The last verdict of a text, and the prose beside it that may take it back: none where it is
    the last thing said.
    """
    last: tuple[Review, str] | None = None
    at = 0
    while (opening := _OBJECT.search(text, at)) is not None:
        try:
            value, end = _JSON.raw_decode(text, opening.start())
        except (JSONDecodeError, RecursionError):
            at = opening.start() + 1
            continue
        said = _verdict(value)
        if said is not None:
            is_last = _CLOSERS.fullmatch(text, end) is not None
            last = said, "" if is_last else text[: opening.start()] + text[end:]
        at = end
    return last


# -- words -----------------------------------------------------------------------------------------


def by_words(text: str, instructions: str = "") -> Review:
    """Whether plain words approve: one verdict that does, and nothing that refuses."""
    refusal = _refusal(text)
    if refusal is not None:
        return _refused(f"it says {refusal!r}")
    found = ""
    for sentence in _sentences(_own_words(text, instructions)):
        said = False if TAKEN_BACK.fullmatch(sentence) else _reads(sentence)
        if said is False:
            return _refused(f"it says {_shown(sentence)!r}")
        if said:
            found = found or _shown(sentence)
        elif BUT.match(sentence):
            found = ""  # from here on another word of approval is needed
    if not found:
        return _refused("no words of approval")
    return _approved(f"it says {found!r}")


def _refusal(text: str) -> str | None:
    """The first words of rejection, wherever they stand but for code."""
    lines = text.splitlines()
    inside = fenced_lines(lines)
    prose = [line for number, line in enumerate(lines) if number not in inside]
    for sentence in _sentences("\n".join(prose)):
        plain = NOT_REJECTED.sub(" ", BENIGN.sub(" ", sentence))
        found = REJECTS.search(plain)
        if found is not None:
            return _shown(found[0])
    for number in sorted(inside):
        line = _plain(lines[number])
        whole = REJECTS.match(line)
        if whole is not None and whole.end() == len(line.rstrip(" .!")):
            return _shown(whole[0])
    return None


def _own_words(text: str, instructions: str) -> str:
    """The text without code, quotes and what copies the instructions."""
    lines = text.splitlines()
    inside = fenced_lines(lines)
    asked = {line.strip() for line in instructions.splitlines() if line.strip()}
    kept: list[str] = []
    copied = False
    for number, line in enumerate(lines):
        spoken = line.strip()
        is_code = number in inside or line.startswith(("    ", "\t")) or spoken.startswith(">")
        is_copy = spoken in asked and (copied or not _is_bare(spoken))
        copied = spoken in asked if spoken else copied
        if not is_code and not is_copy:
            kept.append(_QUOTED.sub(" … ", _INLINE_CODE.sub(" … ", line)))
    return "\n".join(kept)


def _is_bare(line: str) -> bool:
    """Whether a line is nothing but a word of approval, which is meant to be copied."""
    return APPROVES.fullmatch(_plain(line).strip(" .!")) is not None


def _sentences(text: str) -> Iterator[str]:
    for found in _SENTENCE.finditer(text):
        sentence = _plain(found[0])
        if sentence:
            yield sentence


def _plain(text: str) -> str:
    """Lower case without marks, with one kind of apostrophe."""
    text = text.replace("\u2019", "'").replace("\u02bc", "'")
    return _SPACES.sub(" ", _MARKS.sub(" ", text)).strip(" \"'").lower()


def _reads(sentence: str) -> bool | None:
    """True where a sentence approves, False where it refuses to, None where it does neither."""
    sentence = BENIGN.sub(" ", sentence)
    verdict: bool | None = None
    for found in APPROVES.finditer(sentence):
        said = _mention(sentence, found)
        if said is False:
            return False
        verdict = verdict or said
    return verdict


def _mention(sentence: str, found: "re.Match[str]") -> bool | None:
    before, after = LABEL.sub("", sentence[: found.start()]), sentence[found.end() :]
    if sentence.endswith(("?", "？")):
        return None
    if NEGATION.search(before) or NEGATION.search(_clause(after)) or _is_denied(sentence):
        return False
    if CONDITION_BEFORE.search(before) or CONDITION_AFTER.match(after):
        return False
    if HISTORY.search(before) or CONTRAST.search(after):
        return None
    return True if any(form.search(sentence) for form in IS_VERDICT) else None


def _clause(after: str) -> str:
    """What is said right after a word, up to the next comma; a short remark behind it belongs to
    it.
    """
    first, *rest = _CLAUSE.split(after)
    remark = " ".join(rest)
    short = len(remark.split()) <= _SMALL_CLAUSE_WORDS
    return f"{first} {remark}" if short else first


def _is_denied(sentence: str) -> bool:
    return FOREIGN_DENIAL.search(sentence) is not None


def _shown(words: str) -> str:
    return words.strip()[:EVIDENCE_CHARS]
