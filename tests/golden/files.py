"""Golden files: compared byte for byte, and written anew with `make golden`.

A log that a release has written stays as it is for ever, since later code must fold it. Renew a
file only for a change that is meant, in a commit of its own that says why.
"""

import os
from difflib import unified_diff
from itertools import islice
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
RENEW = "RENEW_GOLDEN"
MOST_LINES = 40
MOST_COLUMNS = 400


def compare(path: Path, found: bytes) -> None:
    """Fail where a golden file differs from what was found now; with RENEW_GOLDEN=1, write it."""
    if os.environ.get(RENEW) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != found:
            path.write_bytes(found)
        return
    name = path.relative_to(FOLDER)
    assert path.exists(), f"{name} is missing: `make golden` writes it"
    before = path.read_text(encoding="utf-8")
    now = found.decode()
    if now != before:
        lines = unified_diff(
            before.splitlines(), now.splitlines(), "stored", "found", lineterm="", n=1
        )
        shown = "\n".join(line[:MOST_COLUMNS] for line in islice(lines, MOST_LINES))
        pytest.fail(f"{name} has changed: `make golden` renews it, if this is meant\n{shown}")
