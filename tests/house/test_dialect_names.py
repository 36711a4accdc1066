"""The engine knows no dialect by name: a dialect is text in, Plan out."""

import re

from tests.house.source_tree import SRC, shown

NAMES = re.compile(r"rondoflow|coqui|aldo|zenflow|archon", re.IGNORECASE)
TEXT = {".json", ".md", ".py", ".sql", ".toml", ".txt", ".yaml", ".yml"}

# The dialects themselves and the one table that lists them.
ALLOWED = ("dialects/", "app/dialects.py")


def test_no_dialect_is_named_outside_its_place() -> None:
    """Dialect names appear in `dialects/` and in `app/dialects.py`, nowhere else in src."""
    named = {
        f"{shown(path)}:{number}"
        for path in SRC.rglob("*")
        if path.suffix in TEXT and not path.relative_to(SRC).as_posix().startswith(ALLOWED)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if NAMES.search(line) or NAMES.search(path.relative_to(SRC).as_posix())
    }
    assert named == set()
