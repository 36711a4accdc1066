"""The shapes of answers about what comes in from elsewhere: files, messages, links."""

import msgspec


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
    """A hook by which messages from elsewhere start runs of a stored definition."""

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
    """A hook just made; its secret is told once."""

    secret: str


class HookTaken(msgspec.Struct):
    """A message that was taken, and the run that it starts; `taken` is false for a known one."""

    id: str
    run: str
    taken: bool
