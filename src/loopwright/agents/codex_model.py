"""Find out which model Codex used: its events do not name it, its session file and settings do."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loopwright.agents.clis.loose_json import text
from loopwright.model.record import JsonValue

MOST_LINES = 200
MOST_FILES = 20_000


def codex_model(env: Mapping[str, str], session: str | None = None) -> str:
    """The model of a session, or the one in the settings; an empty text if neither names one."""
    home = Path(env.get("CODEX_HOME") or Path(env.get("HOME") or "/nonexistent") / ".codex")
    try:
        return (_of_session(home, session) if session else "") or _configured(home)
    except OSError:
        return ""


def _configured(home: Path) -> str:
    try:
        named = tomllib.loads((home / "config.toml").read_text(encoding="utf-8")).get("model")
    except (OSError, ValueError):
        return ""
    return named if isinstance(named, str) else ""


def _of_session(home: Path, session: str) -> str:
    """The newest model in the beginning of a session's file. The name of the file ends with the
    session, the newest folders are named last.
    """
    for day in sorted((home / "sessions").glob("*/*/*"), reverse=True)[:MOST_FILES]:
        for file in day.iterdir():
            if file.stem.endswith(session):
                return _named_in(file)
    return ""


def _named_in(file: Path) -> str:
    named = ""
    with file.open("rb") as lines:
        for _, line in zip(range(MOST_LINES), lines, strict=False):
            try:
                event: JsonValue = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if text(event, "type") == "turn_context":
                named = text(event, "payload", "model") or named
    return named
