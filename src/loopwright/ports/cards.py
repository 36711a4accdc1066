"""The port of small records: people, tokens, stored definitions; and who did what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

PICTURE = "picture"
"""The kind of records that show a run by its id; they are forgotten with it."""

OF_A_RUN = (PICTURE, "notice-seen", "webhook-seen")
"""Every kind of records whose key is a run and which are forgotten with it."""

NOTICE, NOTICE_HEAD = "notice", 29
"""The kind of records that tell of a run, forgotten with it too; behind so many signs of the key
stands the run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """Who did what, by which door; written in the transaction of what was done, or not at all."""

    at: int
    who: str
    action: str
    subject: str = ""
    via: str = ""
    detail: str = ""
    request: str = ""  # the key under which the request may be repeated
    id: int = 0  # given by the store


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A small record beside the runs: a person, a token, a stored definition. `version` counts its
    changes from 1; `owner` is another card it belongs to, `due` a time by which lists are made.
    """

    kind: str
    key: str
    body: bytes
    version: int = 0
    owner: str = ""
    due: int | None = None


class Cards(Protocol):
    """Small records with optimistic versions. A change is one transaction, with its audit rows."""

    def card(self, kind: str, key: str) -> Card | None:
        """A record, or None."""

    def cards(
        self,
        kind: str,
        *,
        owner: str | None = None,
        due_by: int | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[Card]:
        """Records of a kind in the order of their keys; with `due_by` those that are due, oldest
        first.
        """

    def change(
        self,
        puts: Sequence[tuple[Card, int | None]] = (),
        drops: Sequence[tuple[str, str]] = (),
        audit: Sequence[AuditRow] = (),
    ) -> None:
        """Write and remove records, all or nothing. With each put goes the version that the record
        must have now (0: it must not exist, None: any); else VersionConflict.
        """

    def audited(
        self,
        *,
        before: int | None = None,
        subject: str = "",
        request: str = "",
        limit: int = 100,
    ) -> list[AuditRow]:
        """Audit rows, newest first; those about a subject, or of one request."""
