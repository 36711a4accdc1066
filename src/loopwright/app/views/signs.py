"""Signs of statuses and words of verdicts. Imports nothing, so that commands start fast."""

SIGNS = {
    "running": "▶",
    "waiting": "?",
    "paused": "‖",
    "completed": "✓",
    "exhausted": "■",
    "failed": "✗",
    "cancelled": "■",
}
PROTECT = "protect"  # the name of the check that protected files are unchanged
PERSON = "person"  # the name of the check that a person decides
_PERSON = {"pass": "approved", "fail": "sent back"}
VERDICTS = {"pass": "passed", "fail": "failed", "timed_out": "timed out", "error": "could not run"}
_ASCII = str.maketrans({"·": "|", "\N{MINUS SIGN}": "-", "…": "...", "→": "->"})


def without_signs(line: str) -> str:
    """A final line for a terminal that cannot show signs beyond ASCII."""
    sign, _, text = line.partition(" ")
    return (text if sign in SIGNS.values() else line).translate(_ASCII)


def protect_words(verdict: str, evidence: str) -> str:
    """The check of protected files: its evidence is a sentence that names them."""
    return evidence or f"protected files {'unchanged' if verdict == 'pass' else 'changed'}"


def shown_evidence(label: str, evidence: str) -> str:
    """What is shown below a check: nothing where its words have it already."""
    return "" if label == PROTECT else evidence


def evidence_below(label: str, evidence: str) -> str:
    """The same below a line of `labelled`."""
    return "" if label == PERSON else shown_evidence(label, evidence)


def person_words(verdict: str, by: str = "") -> str:
    """What a person decided about an iteration."""
    return f"{_PERSON.get(verdict, 'rejected')} by {by or 'a person'}"


def labelled(label: str, verdict: str, evidence: str = "", by: str = "") -> str:
    """A check as views store it, with its verdict: `pytest -q failed`. The words of a person are in
    its line.
    """
    if label == PROTECT:
        return protect_words(verdict, evidence)
    if label == PERSON:
        return f"{person_words(verdict, by)}{f': {evidence}' if evidence else ''}"
    return f"{label.removeprefix('command: ')} {VERDICTS.get(verdict, verdict)}"
