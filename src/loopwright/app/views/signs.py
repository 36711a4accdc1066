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
VERDICTS = {"pass": "passed", "fail": "failed", "timed_out": "timed out", "error": "could not run"}
_ASCII = str.maketrans({"·": "|", "\N{MINUS SIGN}": "-", "…": "...", "→": "->"})


def without_signs(line: str) -> str:
    """A final line for a terminal that cannot show signs beyond ASCII."""
    sign, _, text = line.partition(" ")
    return (text if sign in SIGNS.values() else line).translate(_ASCII)


def labelled(label: str, verdict: str) -> str:
    """A check as views store it, with its verdict: `pytest -q failed`."""
    return f"{label.removeprefix('command: ')} {VERDICTS.get(verdict, verdict)}"
