"""What operations are asked for and return: the base of requests, and the types of responses."""

from typing import ClassVar, Literal

import msgspec

from loopwright.model.record import JsonValue
from loopwright.views.run_responses import InboxGate, RunItem, RunTotal


class Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What an operation is asked for. Control characters are refused in its texts, except in the
    fields that are `free`. One that `is_valid` was made from a request that was validated.
    """

    free: ClassVar[tuple[str, ...]] = ()
    is_valid: ClassVar[bool] = False


class Health(msgspec.Struct):
    """Whether something is well, part by part."""

    status: str
    parts: dict[str, str]


class Version(msgspec.Struct):
    """What answers here."""

    version: str
    api: int


class RunPage(msgspec.Struct):
    """A page of runs; `next` is the cursor of the page after it."""

    runs: list[RunItem]
    next: str | None
    total: RunTotal | None  # of all runs that fit, with the first page


class SpendAmount(msgspec.Struct, kw_only=True):
    """What calls have used. `usd` is null when nothing of the cost is known."""

    runs: int
    calls: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    unpriced_calls: int
    cost: str


class SpendLine(SpendAmount):
    """The same for an agent, a definition, a label or a day."""

    name: str  # the first in JSON


class LimitUsed(msgspec.Struct):
    """How much of a limit of all runs together is used."""

    limit: str
    of: float
    used: float
    unpriced_calls: int


class SpendReport(msgspec.Struct):
    """What runs have cost."""

    by: str
    since: str | None
    lines: list[SpendLine]
    total: SpendAmount
    runs_without_usage: int  # started since then; they are not among the lines
    limits: list[LimitUsed]
    left_out: list[str]  # damaged runs, which are not counted


class Inbox(msgspec.Struct):
    """What waits for a person, oldest first; `next` is the cursor of the next page."""

    gates: list[InboxGate]
    next: str | None


class EventPage(msgspec.Struct):
    """Events of a run in order; continue after `next`, which is None at the newest."""

    run: str
    events: list[dict[str, JsonValue]]
    seq: int
    next: int | None


class Me(msgspec.Struct):
    """The caller."""

    name: str
    role: str


class UserItem(msgspec.Struct):
    """A person with an account."""

    name: str
    role: str
    active: bool
    created_at: str


class UserList(msgspec.Struct):
    """People with accounts."""

    users: list[UserItem]
    next: str | None


class LinkMade(msgspec.Struct):
    """A one-time link."""

    link: str


class TokenItem(msgspec.Struct):
    """A token as lists show it."""

    id: str
    label: str
    role: str
    person: str | None
    parent: str | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class TokenList(msgspec.Struct):
    """Tokens."""

    tokens: list[TokenItem]
    next: str | None


class TokenMade(TokenItem):
    """A new token; its text is shown only once."""

    token: str


class AuditItem(msgspec.Struct):
    """An action of a person."""

    id: int
    at: str
    who: str
    via: str
    action: str
    subject: str
    detail: str


class AuditPage(msgspec.Struct):
    """Who did what, newest first; `next` is the cursor of the next page."""

    rows: list[AuditItem]
    next: str | None


class DefinitionItem(msgspec.Struct):
    """A stored definition; `detail` says why one that is not enabled cannot be started."""

    name: str
    dialect: str
    digest: str
    enabled: bool
    detail: str | None
    programs: list[str]
    by: str
    changed_at: str
    version: int
    text: str | None


class DefinitionList(msgspec.Struct):
    """Stored definitions."""

    definitions: list[DefinitionItem]
    next: str | None


class WebhookItem(msgspec.Struct):
    """An outgoing webhook; `problem` says why deliveries stopped."""

    id: str
    url: str
    kinds: list[str]
    active: bool
    problem: str | None
    created_at: str


class WebhookList(msgspec.Struct):
    """Outgoing webhooks."""

    webhooks: list[WebhookItem]
    next: str | None


class WebhookMade(WebhookItem):
    """A new outgoing webhook; its secret is shown only once."""

    secret: str


class SessionItem(msgspec.Struct):
    """What several loops have in common."""

    id: str
    title: str
    by: str
    status: Literal["open", "closed"]
    created_at: str | None
    closed_at: str | None


class Deleted(msgspec.Struct):
    """It is gone."""

    deleted: bool
    id: str


class SessionList(msgspec.Struct):
    """Sessions, newest first."""

    sessions: list[SessionItem]
    next: str | None


class Manager(msgspec.Struct):
    """Something that has to go round for loops to move."""

    available: bool
    ready: bool
    last_tick_at: str | None
    last_reconcile_at: str | None = None


class LoopHealth(msgspec.Struct):
    """Whether loops that are started now will move."""

    status: str
    version: str
    uptime_seconds: float
    workspace_id: str
    database_id: str
    managers: dict[str, Manager]


class Notification(msgspec.Struct):
    """A notification; `waiting` until its question is answered, `data` is what is
    sent over sockets.
    """

    id: str
    kind: str
    level: Literal["info", "action_required", "critical", "error"]
    title: str
    run: str
    seq: int
    at: str
    to: str
    session: str | None
    actions: list[str]
    waiting: bool
    read: bool
    data: dict[str, JsonValue]


class NotificationPage(msgspec.Struct):
    """A page of notifications; `next` is the cursor of the page after it."""

    notifications: list[Notification]
    next: str | None


class ReadCount(msgspec.Struct):
    """How many were unread before."""

    read: int


class ArtifactItem(msgspec.Struct):
    """An artifact in one version, without its content; its name can be shown as it is."""

    id: str
    version: int
    name: str
    type: str
    size: int
    by: str | None
    at: str


class ArtifactList(msgspec.Struct):
    """Artifacts, each in its newest version."""

    artifacts: list[ArtifactItem]


class ArtifactVersions(ArtifactItem):
    """An artifact with all its versions, the newest last."""

    versions: list[ArtifactItem]


class LinkAnswer(msgspec.Struct):
    """The gate of a link: whose it is, what was decided just now, every line of what it asks."""

    run: str
    name: str
    decision: str | None
    shown: list[str]


class HookItem(msgspec.Struct):
    """An incoming webhook: its messages start runs of a stored definition."""

    name: str
    stored: str
    message: str
    at_once: int
    allow_unknown_cost: bool
    waiting: int  # messages that wait for their turn
    problem: str | None
    created_at: str


class HookList(msgspec.Struct):
    """All of them."""

    hooks: list[HookItem]
    next: str | None


class HookMade(HookItem):
    """A new incoming webhook; its secret is shown only once."""

    secret: str


class HookTaken(msgspec.Struct):
    """A message that was taken, and the run that it starts; `taken` is false for a known one."""

    id: str
    run: str
    taken: bool
