"""Notifiers as the settings describe them: whom a server tells that a person is needed."""

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from loopwright.app.server_settings import BadServers

NOTIFY = "notify"
Told: TypeAlias = Literal["gate.opened", "run.finished", "run.failed"]


class Notifier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A channel that speaks Slack's format, or a command that is given what happened."""

    slack: str = ""
    slack_env: str = ""  # the variable that has the address, which is a secret
    command: tuple[str, ...] = ()
    kinds: tuple[Told, ...] = ("gate.opened", "run.failed")
    links: bool = False  # a question comes with a link that answers it, once
    allow_private: bool = False  # the channel may be on this machine or in its network

    @property
    def is_personal(self) -> bool:
        """Whether it starts a program or lets its receiver answer gates. The files of a project,
        which an agent may have written, cannot ask for that.
        """
        return bool(self.command) or self.links

    def address(self, env: Mapping[str, str] | None = None) -> str:
        values = os.environ if env is None else env
        return values.get(self.slack_env, "") if self.slack_env else self.slack


def read_notifiers(value: object) -> dict[str, Notifier]:
    """A table for each notifier."""
    if not isinstance(value, dict):
        raise BadServers(f"{NOTIFY} is not a table", f"write [{NOTIFY}.NAME] with slack or command")
    found: dict[str, Notifier] = {}
    for name, one in value.items():
        try:
            notifier = msgspec.convert(one, Notifier)
        except msgspec.ValidationError as error:
            known = ", ".join(Notifier.__struct_fields__)
            raise BadServers(f"{NOTIFY}.{name}: {error}", f"it may have {known}") from error
        ways = [bool(notifier.slack), bool(notifier.slack_env), bool(notifier.command)]
        if sum(ways) != 1:
            raise BadServers(
                f"{NOTIFY}.{name} needs one of slack, slack_env and command",
                'write slack_env = "VARIABLE" or command = ["PROGRAM", "ARG"]',
            )
        found[name] = notifier
    return found
