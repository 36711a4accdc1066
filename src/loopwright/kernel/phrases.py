"""Phrases: the words by which reviews are read. Tables only; `reviews.py` says what they mean.

All are matched against lower case. Approval is read in English, as reviewers are asked for it;
denial and rejection in every language that a reviewer may fall into, because a word that is missed
there would let work pass that nobody approved.
"""

import re

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

APPROVES = re.compile(rf"(?<![\w-]){_ANY_APPROVAL}(?![\w])")
"""Words that may approve."""

LABEL = re.compile(
    r"^\s*(?:final |overall )?(?:verdict|status|decision|result|outcome|review)\s*[:=–—-]\s*"
)

IS_VERDICT = (
    re.compile(rf"{_START}(?:approved|approve|accepted|lgtm|looks good){_FOLLOWS}"),
    re.compile(
        r"\b(?:i|we)(?: hereby| fully| happily| gladly| do| now| therefore)* (?:approve|accept)\b"
    ),
    re.compile(rf"\b(?:{_WORK}{_IS} {_APPROVED}|{_IT}{_IS} approved)(?!\s+by (?!me\b|us\b))"),
    re.compile(
        rf"(?:[,:;—–]|\s-|\band|\bso|\bthus|\bhence|\btherefore)\s+(?:hereby )?(?:{_APPROVED}|"
        rf"lgtm)\W*$"
    ),
    re.compile(
        rf"(?:^\W*|[,:;—–]\s*|\s-\s|\b(?:{_WORK}|{_IT})(?: now| really| all)? )looks? good\b"
    ),
    re.compile(rf"\b(?:is|are)(?: hereby| now| all)* {_APPROVED}\W*$"),
    re.compile(r"\blgtm\b"),
    re.compile(r"\bpass(?:es)? all\b"),
)
"""Forms in which words of approval are a verdict."""

NEGATION = re.compile(
    r"\b(?:not|never|cannot|can ?not|nor|neither|no|none|nobody|nothing|hardly|barely|scarcely|"
    r"without|unable|refus\w+|declin\w+|deny|denied|denies|withh\w+|fail\w*|lack\w*|far|"
    r"anything but|instead|rather|short of|against|almost|nearly|partly|partially|halfway|"
    r"nowhere|unlikely|impossible|false|nope|nah|premature|too early|"
    r"doubt\w*|unsure|uncertain|hesitat\w+|"
    r"nicht|kein\w*|nein|niemals|nie|non|pas|jamais|ne|nunca|ni|jam[aá]s|n[aã]o|nem|niet|geen|"
    r"ikke|inte|ej|ei|nem|nu|değil|hindi|tidak|bukan|chưa|không)\b|n't\b|\bn'|\bcant\b|"
    r"\bdont\b|\bwont\b|\bisnt\b"
)
"""Words that deny what they stand beside."""

FOREIGN_DENIAL = re.compile(
    r"(?<!\w)(?:не|нет|ни|нельзя|никогда|ні|няма|няма)(?!\w)|[不未没沒無无非]|ない|"
    r"ません|아니|않|못|안 |नहीं|لا |ليس|لم |غير|לא |δεν |όχι"
)
"""The same in writings without word boundaries of ours."""

CONDITION_BEFORE = re.compile(
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

CONDITION_AFTER = re.compile(
    r"[\s,:;()—–-]*(?:but |and |only |as soon |conditionally |subject |,)*"
    r"(?:if|once|when|after|until|till|unless|provided|assuming|pending|conditional\w*|except|"
    r"excluding|apart from|aside from|modulo|with the (?:exception|condition|caveat)|or|"
    r"with (?:changes|conditions|comments|reservations|modifications|caveats)|later|soon|tomorrow|"
    r"only|wenn|sobald|falls|si|cuando|quand|se|если|когда)\b|[\s,]*(?:如果|もし)"
)
"""The same behind it."""

HISTORY = re.compile(
    r"\b(?:previously|already|earlier|formerly|once|last|previous|prior|was|were|had)\b"
)
"""What was said at another time is no verdict now."""

CONTRAST = re.compile(
    r"\b(?:but|however|except|although|though|yet|still|whereas|aber|jedoch|pero|mais|cependant|"
    r"mas|ma|maar|men|но|однако)\b|但|しかし|ただし"
)
"""What takes back part of what was said before it."""

TAKEN_BACK = re.compile(
    r"\W*(?:not|no|nope|never|not really|not yet|just kidding|kidding|scratch that|no way)\W*"
)
"""A whole sentence that takes back what was said before it."""

BUT = re.compile(
    r"\W*(?:but|however|although|though|that said|still|on the other hand|yet|aber|jedoch|pero|"
    r"mais|mas|но)\b|\W*(?:但|しかし)"
)
"""How a sentence begins that takes back part of what was said before it."""

_NOUNS = (
    r"(?:issues?|problems?|concerns?|comments?|changes?|blockers?|objections?|remarks?|findings?|"
    r"errors?|regressions?|reservations?|nits?|bugs?|questions?|revisions?|edits?|work|rework|"
    r"doubts?|defects?|failures?|failing tests|complaints?|gaps?|fixes)"
)
BENIGN = re.compile(
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

NOT_REJECTED = re.compile(
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
REJECTS = re.compile("|".join(_REJECTIONS))
"""Words that refuse, wherever they stand."""
