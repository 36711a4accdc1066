"""Reviews: whether the text of a reviewer approves. A text with a denial never approves.

The structured verdict comes first: an object with `approved`, true or false, at the end of the
text. If there is none, the whole text is read, sentence by sentence. Words approve only where
they are a verdict: alone, about the work, or in the first person. A denied, conditional or
postponed approval is a rejection, and one rejection is enough. Text in code, in quotes or
copied from the instructions does not approve.

Phrases are matched in lower case. Approval is read in English, because reviewers are asked for
English; denial and rejection are read in every language that a reviewer may use, because a
missed rejection would accept work that was not approved.
"""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder

import msgspec

from loopwright.kernel.signal import fenced_lines
from loopwright.model.patterns import LazyPattern
from loopwright.model.record import JsonValue

_WORK = (
    r"(?:work|change|changes|change set|changeset|implementation|plan|code|pr|pull request|patch|"
    r"solution|submission|documentation|docs|document|draft|iteration|deliverables?|design|"
    r"research|report|verdict|task|diff|commit|this|everything)"
)
_IT = r"(?:it|these|they|all|all of it|overall|results?)"
_APPROVED = r"(?:approved|accepted)"
_IS = r"(?: is| are| has been| have been)(?: hereby| now| fully| all| therefore)*"
_ANY_APPROVAL = (
    r"(?:approved|approves?|approving|accepted|lgtm|looks? good|"
    r"pass(?:es)? all(?: (?:the|of the|acceptance|given|our|your))* criteria)"
)
_START = (
    r"^[\s\W\d]*(?:[a-z0-9 ]{0,30}[:=]\s*"
    r"|(?:final |overall )?(?:verdict|status|decision|result|outcome)\s*[-–—]?\s*)?[\s\W]*"
)
_FOLLOWS = (
    r"(?=\s*$|\s*[,.:;!()—–\-…]"
    r"|\s+(?:for|as|and|with|in|since|because|given|now|this|to merge)\b)"
)

APPROVES = LazyPattern(rf"(?<![\w-]){_ANY_APPROVAL}(?![\w])")
"""Words that may approve."""

LABEL = LazyPattern(
    r"^\s*(?:final |overall )?(?:verdict|status|decision|result|outcome|review)\s*[:=–—-]\s*"
)

IS_VERDICT = (
    LazyPattern(rf"{_START}(?:approved|approve|accepted|lgtm|looks good){_FOLLOWS}"),
    LazyPattern(
        r"\b(?:i|we)(?: hereby| fully| happily| gladly| do| now| therefore)* (?:approve|accept)\b"
    ),
    LazyPattern(rf"\b(?:{_WORK}{_IS} {_APPROVED}|{_IT}{_IS} approved)(?!\s+by (?!me\b|us\b))"),
    LazyPattern(
        rf"(?:[,:;—–]|\s-|\band|\bso|\bthus|\bhence|\btherefore)\s+(?:hereby )?(?:{_APPROVED}|"
        rf"lgtm)\W*$"
    ),
    LazyPattern(
        rf"(?:^\W*|[,:;—–]\s*|\s-\s|\b(?:{_WORK}|{_IT})(?: now| really| all)? )looks? good\b"
    ),
    LazyPattern(rf"\b(?:is|are)(?: hereby| now| all)* {_APPROVED}\W*$"),
    LazyPattern(r"\blgtm\b"),
    LazyPattern(r"\bpass(?:es)? all\b"),
)
"""Forms in which words of approval are a verdict."""

NEGATION = LazyPattern(
    r"\b(?:not|never|cannot|can ?not|nor|neither|no|none|nobody|nothing|hardly|barely|scarcely|"
    r"without|unable|refus\w+|declin\w+|deny|denied|denies|withh\w+|fail\w*|lack\w*|far|"
    r"anything but|instead|rather|short of|against|almost|nearly|partly|partially|halfway|"
    r"nowhere|unlikely|impossible|false|nope|nah|premature|too early|"
    r"doubt\w*|unsure|uncertain|hesitat\w+|"
    r"nicht|kein\w*|nein|niemals|nie|non|pas|jamais|ne|nunca|ni|jam[aá]s|n[aã]o|nem|niet|geen|"
    r"ikke|inte|ej|ei|nem|nu|değil|hindi|tidak|bukan|chưa|không)\b|n't\b|\bn'|\bcant\b|"
    r"\bdont\b|\bwont\b|\bisnt\b"
)
"""Words that negate the word beside them."""

FOREIGN_DENIAL = LazyPattern(
    r"(?<!\w)(?:не|нет|ни|нельзя|никогда|ні|няма|няма)(?!\w)|[不未没沒無无非]|ない|"
    r"ません|아니|않|못|안 |नहीं|لا |ليس|لم |غير|לא |δεν |όχι"
)
"""The same in writings without word boundaries of ours."""

CONDITION_BEFORE = LazyPattern(
    r"\b(?:if|once|when|whenever|after|until|till|unless|provided|assuming|pending|subject to|"
    r"conditional\w*|would|could|should|shall|will|might|may|can|must|needs?|needed|has to|"
    r"have to|had to|to be|to get|to have|in order|before|only|wait\w*|await\w*|expect\w*|hop\w+|"
    r"wants?|wanted|asked|asks?|please|request\w*|later|soon|eventually|tomorrow|ready to|about to|"
    r"plans? to|going to|try\w*|tries|respond|reply|answer|say|says|said|write|output|print|emit|"
    r"either|or|whether|example|e\.g|such as|format|claims?|claimed|called|word|means?|return\w*|"
    r"wenn|sobald|falls|erst|si|cuando|quand|lorsque|quando|se|als|если|когда|jeśli|eğer)\b|"
    r"'ll\b|'d\b|如果|当|若|もし|たら"
)
"""What makes a word of approval behind it hang on something, or a thing that is spoken about."""

CONDITION_AFTER = LazyPattern(
    r"[\s,:;()—–-]*(?:but |and |only |as soon |conditionally |subject |,)*"
    r"(?:if|once|when|after|until|till|unless|provided|assuming|pending|conditional\w*|except|"
    r"excluding|apart from|aside from|modulo|with the (?:exception|condition|caveat)|or|"
    r"with (?:changes|conditions|comments|reservations|modifications|caveats)|later|soon|tomorrow|"
    r"only|wenn|sobald|falls|si|cuando|quand|se|если|когда)\b|[\s,]*(?:如果|もし)"
)
"""The same behind it."""

HISTORY = LazyPattern(
    r"\b(?:previously|already|earlier|formerly|once|last|previous|prior|was|were|had)\b"
)
"""A verdict about another time does not count now."""

CONTRAST = LazyPattern(
    r"\b(?:but|however|except|although|though|yet|still|whereas|aber|jedoch|pero|mais|cependant|"
    r"mas|ma|maar|men|но|однако)\b|但|しかし|ただし"
)
"""Words that withdraw part of the text before them."""

TAKEN_BACK = LazyPattern(
    r"\W*(?:not|no|nope|never|not really|not yet|just kidding|kidding|scratch that|no way)\W*"
)
"""A whole sentence that withdraws the text before it."""

BUT = LazyPattern(
    r"\W*(?:but|however|although|though|that said|still|on the other hand|yet|aber|jedoch|pero|"
    r"mais|mas|но)\b|\W*(?:但|しかし)"
)
"""The start of a sentence that withdraws part of the text before it."""

_NOUNS = (
    r"(?:issues?|problems?|concerns?|comments?|changes?|blockers?|objections?|remarks?|findings?|"
    r"errors?|regressions?|reservations?|nits?|bugs?|questions?|revisions?|edits?|work|rework|"
    r"doubts?|defects?|failures?|failing tests|complaints?|gaps?|fixes)"
)
BENIGN = LazyPattern(
    r"\b(?:no|zero|without(?: any)?|not any|not a single|have no|has no|found no|see no)"
    r"(?: (?:further|more|other|remaining|open|blocking|major|critical|outstanding|new|known|"
    r"serious|additional|significant|important|real))*"
    rf" {_NOUNS}(?: or {_NOUNS})*"
    r"(?: (?:found|remain|remains|remaining|left|needed|required|requested|necessary|to report|"
    r"are needed|are required|is needed|is required|were found|at all))?"
    r"|\bnothing (?:else |more |further )?(?:to add|to change|to fix|left|is missing|"
    r"missing|blocking)"
    r"(?: to do)?"
    r"|\bnot only\b"
)
"""What sounds like a denial and is praise."""

NOT_REJECTED = LazyPattern(
    r"\b(?:no longer|nothing|never|not|none|isn't|wasn't|doesn't|don't|does not|do not|is not|"
    r"was not)(?: (?:was|is|were|been|being|any|more))* "
    r"(?:reject\w*|needs?|require[sd]?)(?: (?:any|more|further|other|major))*"
    r"(?: (?:changes?|work|revisions?|rework|fixes|fixing))?"
)
"""A rejection that is itself denied: it refuses nothing, and approves nothing."""

_NEED = (
    r"(?:more|some|further|major|minor|additional|another|a few|significant|substantial|serious)"
)
_TESTS = r"(?:tests?|checks?|builds?|criteria|criterion|requirements?|ci|lint)"
_REJECTIONS = (
    r"\breject\w*",
    rf"\bneeds?[ _-](?:{_NEED} )*(?:changes?|work|revisions?|rework|fix\w*|improvements?|"
    rf"attention)\b",
    r"\bneeds? to be (?:fixed|changed|revised|reworked|addressed|redone|corrected)\b",
    r"\b(?:changes|change|revisions?|rework|fixes) (?:are |is |were )?(?:requested|"
    r"required|needed|necessary)\b",
    r"\brequest\w*[ _-]changes?\b",
    r"\bnot(?: yet| been| currently| fully| really| quite| at all| to be|"
    r" be)*[ -](?:approv\w*|accept\w*)",
    r"\b(?:do|does|did|can|could|will|would|should)(?: not|n't) (?:yet |fully |"
    r"really )?(?:approv\w*|accept\w*)",
    r"\bcan ?not (?:yet |be |fully )*(?:approv\w*|accept\w*|merge\w*|verif\w*|confirm\w*)",
    r"\b(?:dis|un|non-?|un-)approv\w*",
    r"\b(?:un|in|non-?)accept\w*",
    r"\bapproval (?:is |was |has been |still |remains )*(?:denied|withheld|refused|"
    r"declined|pending|revoked|blocked|not)\b",
    r"\b(?:withh\w+|deny|denying|denied|refus\w+|declin\w+)(?: my| the| our| to|"
    r" giv\w+)* (?:approv\w*|accept\w*)",
    r"\bno approval\b",
    r"\b(?:could not|couldn't|unable to|was not able to|did not|didn't|have not|haven't)"
    r"(?: be| fully| actually| really| yet)* (?:verif\w*|run|test\w*|check\w*|confirm\w*|"
    r"review\w*)\b",
    r"\b(?:do|does|did)(?: not|n't)(?: yet| fully| really)* "
    r"(?:merge|pass|meet|satisfy|work|compile|build|fulfil\w*|cover|handle)\b",
    r"\b(?:not|isn't|aren't) (?:yet )?(?:ready|done|complete|finished|good enough|"
    r"there yet|sufficient|acceptable|mergeable)\b",
    r"\b(?:incomplete|insufficient)\b",
    r"\bmust (?:still )?(?:be )?(?:fix\w*|chang\w*|address\w*|revis\w*|rework\w*|redo\w*)",
    r"\bplease (?:fix|address|revise|rework|change|correct|redo|resubmit)\b",
    rf"\bfails? (?:the |all |some |several |\d+ |of )*{_TESTS}",
    rf"\b{_TESTS} (?:are |is |still |currently )*(?:fail\w*|broken|red|unmet|missing)\b",
    r"\bstatus: (?:blocked|needs[ _]context)\b",
    r"\bblocking (?:issue|problem|finding|bug)",
    r"\bdo not (?:merge|ship|release|deploy)\b",
    r"\bdon't (?:merge|ship|release|deploy)\b",
    r"\bsend (?:it|this) back\b",
    # German, French, Spanish, Portuguese, Italian, Dutch, Polish, Turkish
    r"\babgelehnt\b|\bablehn\w*|\bnicht (?:genehmigt|freigegeben|akzeptiert|bestanden|"
    r"angenommen)\b",
    r"\büberarbeit\w*|\bnachbesser\w*|\bzurückgewiesen\b",
    r"\brejet\w*|\brefus(?:é|ée|és|ées)\b|\bnon approuv\w*|\bà revoir\b|\bdoit être corrig\w*",
    r"\brechaz\w*|\bno (?:está )?aprobad[oa]\b|\bnecesita cambios\b|\brejeitad[oa]\b|"
    r"\breprovad[oa]\b",
    r"\bn[aã]o aprovad[oa]\b|\brespint[oa]\b|\brifiutat[oa]\b|\bnon approvat[oa]\b",
    r"\bafgekeurd\b|\bafgewezen\b|\bniet goedgekeurd\b|\bodrzucon\w*|\breddedildi\b|"
    r"\bonaylanmadı\b",
    # writings of their own
    r"отклон[её]н\w*|отклоняю|не (?:одобр\w*|принят\w*|принима\w*)|доработ\w*|відхилен\w*",
    r"驳回|駁回|拒绝|拒絕|不通过|不通過|不批准|未批准|未通过|需要修改|却下|差し戻し|要修正|承認しない|承認できない",
    r"거부|반려|거절|승인하지|مرفوض|अस्वीकृत|נדחה|απορρίπτ\w*|απορρίφθηκε",
)
REJECTS = LazyPattern("|".join(_REJECTIONS))
"""Words that reject, at any position."""


EVIDENCE_CHARS = 300
MILD = frozenset({"minor", "info", "low", "nit", "note", "suggestion", "trivial"})
"""Severities of findings that do not contradict an approval."""

_SENTENCE = LazyPattern(r"(?:[^.!?\n。！？]|\.(?=\w))+[.!?。！？]*")
_INLINE_CODE = LazyPattern(r"(`+)[^`\n]*\1")
_QUOTED = LazyPattern(
    r"\"[^\"\n]*\"|“[^”\n]*”|„[^“”\n]*[“”]|«[^»\n]*»|‹[^›\n]*›|「[^」\n]*」|『[^』\n]*』"
    r"|(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)‘[^’\n]*’(?!\w)"
)
_MARKS = LazyPattern(r"[*_~#|]+|\[[ xX]\]|[\u2705\u2714\u2611\U0001f44d\U0001f389\U0001f680\ufe0f]")
_SPACES = LazyPattern(r"\s+")
_OBJECT = LazyPattern(r'\{\s*["}]')
_JSON = JSONDecoder()
_CLOSERS = LazyPattern(r"[\s`~]*")
_SMALL_CLAUSE_WORDS = 3
_CLAUSE = LazyPattern(r"[,:;()—–]|\s-\s")


class ReviewResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a review: whether it approves, what decided that, and what it found."""

    approved: bool
    why: str
    findings: tuple[str, ...] = ()


def _refused(why: str, findings: tuple[str, ...] = ()) -> ReviewResult:
    return ReviewResult(approved=False, why=why[:EVIDENCE_CHARS], findings=findings)


def _approved(why: str, findings: tuple[str, ...] = ()) -> ReviewResult:
    return ReviewResult(approved=True, why=why[:EVIDENCE_CHARS], findings=findings)


def read_review(text: str, result: JsonValue, instructions: str, *, words: bool) -> ReviewResult:
    """What a review says: by its structured verdict, and where it has none and words may speak,
    by its words.
    """
    verdict = _verdict(result)
    if verdict is not None:
        return verdict
    found = _last_verdict(text)
    if found is not None:
        verdict, rest = found
        refusal = _refusal(rest) if verdict.approved else None
        return _refused(f"{refusal!r} beside a verdict that approves") if refusal else verdict
    if not words:
        return _refused("there is no verdict: an object with `approved` was asked for")
    return by_words(text, instructions)


# -- the structured verdict ------------------------------------------------------------------------


def _verdict(value: JsonValue) -> ReviewResult | None:
    """What an object says, if it is a verdict at all."""
    if not isinstance(value, dict) or "approved" not in value:
        return None
    listed = value.get("findings")
    findings = listed if isinstance(listed, list) else []
    told = tuple(_finding_text(one) for one in findings)
    if value["approved"] is not True:
        words = "the verdict is approved: false"
        return _refused(words if value["approved"] is False else _off(value), told)
    grave = [_finding_text(one) for one in findings if not _is_mild(one)]
    if grave:
        return _refused(f"approved, but with a finding: {grave[0]}", told)
    return _approved("the verdict is approved: true", told)


def _off(value: dict[str, JsonValue]) -> str:
    shown = msgspec.json.encode(value["approved"]).decode()
    return f"approved is neither true nor false: {shown}"


def _is_mild(finding: JsonValue) -> bool:
    """Whether a finding is compatible with an approval; one without a severity is."""
    if not isinstance(finding, dict):
        return True
    severity = finding.get("severity")
    return severity is None or str(severity).strip().lower() in MILD


def _finding_text(finding: JsonValue) -> str:
    if not isinstance(finding, dict):
        return finding if isinstance(finding, str) else msgspec.json.encode(finding).decode()
    words = finding.get("summary") or finding.get("message") or finding.get("title")
    if not isinstance(words, str):
        return msgspec.json.encode(finding).decode()
    severity, place = finding.get("severity"), finding.get("location")
    head = f"{severity}: " if isinstance(severity, str) else ""
    return f"{head}{words}" + (f" ({place})" if isinstance(place, str) else "")


def _last_verdict(text: str) -> tuple[ReviewResult, str] | None:
    """The last verdict of a text, and the prose beside it that may take it back: none where it is
    the last statement.
    """
    last: tuple[ReviewResult, str] | None = None
    at = 0
    while (opening := _OBJECT.search(text, at)) is not None:
        try:
            value, end = _JSON.raw_decode(text, opening.start())
        except (JSONDecodeError, RecursionError):
            at = opening.start() + 1
            continue
        verdict = _verdict(value)
        if verdict is not None:
            is_last = _CLOSERS.fullmatch(text, end) is not None
            last = verdict, "" if is_last else text[: opening.start()] + text[end:]
        at = end
    return last


# -- words -----------------------------------------------------------------------------------------


def by_words(text: str, instructions: str = "") -> ReviewResult:
    """Whether plain words approve: one verdict that does, and nothing that refuses."""
    refusal = _refusal(text)
    if refusal is not None:
        return _refused(f"it says {refusal!r}")
    found = ""
    for sentence in _sentences(_own_words(text, instructions)):
        verdict = False if TAKEN_BACK.fullmatch(sentence) else _reads(sentence)
        if verdict is False:
            return _refused(f"it says {_shown(sentence)!r}")
        if verdict:
            found = found or _shown(sentence)
        elif BUT.match(sentence):
            found = ""  # from here on another word of approval is needed
    if not found:
        return _refused("no words of approval")
    return _approved(f"it says {found!r}")


def _refusal(text: str) -> str | None:
    """The first words of rejection, anywhere except in code."""
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
    instruction_lines = {line.strip() for line in instructions.splitlines() if line.strip()}
    kept: list[str] = []
    copied = False
    for number, line in enumerate(lines):
        spoken = line.strip()
        is_code = number in inside or line.startswith(("    ", "\t")) or spoken.startswith(">")
        is_copy = spoken in instruction_lines and (copied or not _is_bare(spoken))
        copied = spoken in instruction_lines if spoken else copied
        if not is_code and not is_copy:
            kept.append(_QUOTED.sub(" … ", _INLINE_CODE.sub(" … ", line)))
    return "\n".join(kept)


def _is_bare(line: str) -> bool:
    """Whether a line is only a word of approval, which is meant to be copied."""
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
    """The text right after a word, up to the next comma; a short remark behind it belongs to
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
