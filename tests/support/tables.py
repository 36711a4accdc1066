"""Tables of tests that are written as YAML."""

from pathlib import Path
from typing import Any

import yaml

# The parser in C: tables are read while tests are collected, by each worker process.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_table(file: Path) -> Any:
    """The contents of a YAML file."""
    return yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - it is safe
