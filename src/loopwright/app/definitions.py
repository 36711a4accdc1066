"""Stored definitions: kept by name, changed by version. One that came from elsewhere and would
start programs is held back until an admin has looked at exactly that text.
"""

import re

import msgspec

from loopwright.app.access import Access, Role
from loopwright.app.dialects import MAX_BYTES, Definition, names_files, parse_definition
from loopwright.app.named_programs import programs_named
from loopwright.app.run_admission import acting_role
from loopwright.app.run_request import Admission
from loopwright.errors import (
    Conflict,
    DefinitionError,
    LoopwrightError,
    NotAllowed,
    NotFound,
    VersionConflict,
)
from loopwright.ports import Card, Cards
from loopwright.syntax.diagnostic import Diagnostic

KIND = "definition"
_ALONE = "it names other files, and only the text of a definition is stored"
_WITH_FILES = (
    "write what they say into the definition, or leave it unstored: "
    "`loopwright run FILE --server URL` sends its files"
)
_MISSING_FILE = ("missing-file", "unknown-command", "unknown-script", "unknown-workflow")
"""The codes of warnings about a file that is not there."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A definition as it is kept."""

    name: str
    text: str
    dialect: str
    digest: str
    enabled: bool = True
    programs: list[str] = []
    by: str = ""
    role: Role = "editor"  # of who wrote it, or approved exactly this text
    changed_at: int = 0
    version: int = 0  # of the record; it is not part of what is kept


class Definitions:
    """The stored definitions of a home."""

    def __init__(self, cards: Cards, access: Access, admission: Admission | None = None) -> None:
        self._cards = cards
        self._access = access
        self._admission = admission  # None: by the owner of the data directory, on this machine

    def all(self) -> list[Stored]:
        return [_stored(card) for card in self._cards.cards(KIND)]

    def get(self, name: str) -> Stored:
        card = self._cards.card(KIND, name)
        if card is None:
            raise NotFound(
                f"no stored definition {name[:80]!a}",
                hint="`loopwright stored ls` lists all, `loopwright stored put NAME FILE` adds one",
            )
        return _stored(card)

    def runnable(self, name: str) -> Stored:
        """One that may be started."""
        stored = self.get(name)
        if not stored.enabled:
            raise NotAllowed(
                f"{name} came from elsewhere and starts programs: it needs admin approval of "
                f"digest {stored.digest}",
                code="needs-approval",
                hint=f"`loopwright stored approve {name} {stored.digest}`, after a look at it: "
                f"`loopwright stored show {name} --source`",
            )
        return stored

    def save(
        self, name: str, text: str, *, by: str, dialect: str | None, expected: int | None
    ) -> Stored:
        """Keep a definition that somebody wrote here; `expected` is the version they saw."""
        parsed = self._parsed(name, text, dialect)
        if self._admission is not None:
            self._admission.check_text(parsed.plan, by=by, what=f"definition {name}")
        stored = self._new(parsed, text, by, foreign=False)
        self._write(stored, expected, by=by, action="definition.saved")
        return self.get(name)

    def take_in(self, name: str, text: str, *, by: str, dialect: str | None) -> Stored:
        """Keep a definition from elsewhere; one that starts programs is held back."""
        stored = self._new(self._parsed(name, text, dialect), text, by, foreign=True)
        self._write(stored, 0, by=by, action="definition.imported")
        return self.get(name)

    def approve(self, name: str, digest: str, *, by: str) -> Stored:
        """Let exactly this text be started."""
        stored = self.get(name)
        if stored.digest != digest:
            raise Conflict(
                f"{name} has digest {stored.digest}, not {digest[:80]}", code="changed-since-shown"
            )
        if not stored.enabled or stored.role != "admin":
            stored = msgspec.structs.replace(stored, enabled=True, role="admin")
            self._write(stored, stored.version, by=by, action="definition.approved")
        return self.get(name)

    def remove(self, name: str, *, by: str) -> None:
        self.get(name)
        row = self._access.row(by, "definition.removed", name)
        self._cards.change(drops=[(KIND, name)], audit=[row])

    def _parsed(self, name: str, text: str, dialect: str | None) -> Definition:
        if _NAME.fullmatch(name) is None:
            raise LoopwrightError(
                f"{name[:80]!a} cannot be the name of a definition",
                code="bad-definition-name",
                hint="use a-z, 0-9, dots, dashes and underscores, at most 100 of them",
            )
        data = text.encode(errors="surrogatepass")[: MAX_BYTES + 1]
        alone = Diagnostic(name, 1, 1, "names-files", _ALONE, hint=_WITH_FILES)
        try:
            parsed = parse_definition(data, file=name, force=dialect)
        except DefinitionError as error:
            if not names_files(data, file=name, force=dialect):
                raise
            # Else it would only be told that they are missing, though they may lie beside it.
            raise DefinitionError(error.message, problems=[alone, *error.problems]) from error
        # A definition may load without a file that it names. Stored, it would lose that file.
        missing = [one for one in parsed.warnings if one.code in _MISSING_FILE]
        if missing:
            raise DefinitionError(f"{name}: {_ALONE}", problems=[alone, *missing])
        return parsed

    def _new(self, parsed: Definition, text: str, by: str, *, foreign: bool) -> Stored:
        programs = programs_named(parsed.plan)
        return Stored(
            name=parsed.file,
            text=text,
            dialect=parsed.dialect,
            digest=parsed.digest,
            enabled=not (foreign and programs),
            programs=programs,
            by=by,
            role="admin" if self._admission is None else acting_role(),
            changed_at=self._access.clock.now_ms(),
        )

    def _write(self, stored: Stored, expected: int | None, *, by: str, action: str) -> None:
        body = msgspec.json.encode(msgspec.structs.replace(stored, version=0))
        card = Card(kind=KIND, key=stored.name, body=body)
        row = self._access.row(by, action, stored.name, stored.digest)
        try:
            self._cards.change([(card, expected)], audit=[row])
        except VersionConflict as conflict:
            code, what = "changed-meanwhile", "was changed meanwhile"
            if expected == 0:
                code, what = "name-taken", "is stored already"
            raise Conflict(f"{stored.name} {what}", code=code) from conflict


def _stored(card: Card) -> Stored:
    kept = msgspec.json.decode(card.body, type=Stored)
    return msgspec.structs.replace(kept, version=card.version)
