"""Accounts and tokens that `user` and `token` list and change: here, or at a server."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from loopwright.cli.remote_client import RemoteClient
from loopwright.cli.terminal import Terminal
from loopwright.errors import LoopwrightError, NotFound

if TYPE_CHECKING:
    from loopwright.operations.accounts.people import People

Item = dict[str, Any]
USERS, TOKENS = "/api/v1/users", "/api/v1/tokens"


class Accounts(Protocol):
    """The accounts and tokens of a server."""

    def users(self) -> list[Item]: ...

    def add(self, name: str, role: str, password: str) -> str | None:
        """Create an account; the link that sets its password, unless one is given."""
        ...

    def link(self, name: str) -> str: ...

    def change(self, name: str, **fields: str | bool) -> None: ...

    def remove(self, name: str) -> None: ...

    def tokens(self) -> list[Item]: ...

    def create(self, label: str, role: str, days: int, user: str | None) -> Item: ...

    def revoke(self, token: str) -> Item: ...


@contextmanager
def open_accounts(terminal: Terminal) -> Iterator[Accounts]:
    """The accounts of the server that `--server` names, otherwise of this data directory."""
    if terminal.remote is not None:
        yield RemoteAccounts(terminal.remote)
        return
    from loopwright.engine.clock import SystemClock  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.people import People  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import address_of, open_log  # noqa: PLC0415 - quick help
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick

    server = address_of(terminal.settings.home) or "SERVER"
    with closing(open_log(terminal.settings)) as log:
        yield LocalAccounts(People(Access(log, SystemClock())), current_user(), server)


class LocalAccounts:
    """Those of this data directory, whose owner is an admin."""

    def __init__(self, people: "People", by: str, server: str) -> None:
        self._people, self._by, self._server = people, by, server

    def users(self) -> list[Item]:
        return [
            {"name": one.name, "role": one.role, "active": one.active} for one in self._people.all()
        ]

    def add(self, name: str, role: str, password: str) -> str | None:
        from loopwright.operations.accounts.people import (  # noqa: PLC0415 - help stays quick
            as_role,
            hashed,
        )

        kept = hashed(password) if password else None
        self._people.add(name, as_role(role), by=self._by, password=kept)
        return None if kept else self._link(name, role)

    def link(self, name: str) -> str:
        return self._link(name, "viewer")

    def _link(self, name: str, role: str) -> str:
        from loopwright.operations.accounts.people import as_role  # noqa: PLC0415 - help stays quick

        code = self._people.link(as_role(role), by=self._by, person=name)
        return f"{self._server}/setup#{code}"

    def change(self, name: str, **fields: str | bool) -> None:
        from loopwright.operations.accounts.people import as_role  # noqa: PLC0415 - help stays quick

        role, active = fields.get("role"), fields.get("active")
        self._people.change(
            name,
            by=self._by,
            role=as_role(role) if isinstance(role, str) else None,
            active=active if isinstance(active, bool) else None,
        )

    def remove(self, name: str) -> None:
        self._people.remove(name, by=self._by)

    def tokens(self) -> list[Item]:
        now = self._people.clock.now_ms()
        return [
            _token_item(
                {"id": one.id, "role": one.role},
                now=now,
                until=one.expires_at,
                revoked=bool(one.revoked_at),
                label=f"{_owner(one.person, one.root)}{one.label}",
            )
            for one in self._people.access.tokens()
        ]

    def create(self, label: str, role: str, days: int, user: str | None) -> Item:
        from loopwright.operations.accounts.people import as_role  # noqa: PLC0415 - help stays quick

        made = self._people.new_token(
            label, as_role(role), by=self._by, person=user or "", days=days
        )
        return {"id": made.token.id, "token": made.text}

    def revoke(self, token: str) -> Item:
        ended = self._people.access.revoke(token, by=self._by)
        return {"id": ended.id, "label": ended.label}


class RemoteAccounts:
    """Those of a remote server: all for an admin, one's own tokens for others."""

    def __init__(self, remote: RemoteClient) -> None:
        self._remote = remote

    def users(self) -> list[Item]:
        listed = self._pages(USERS, "users")
        return [{name: one[name] for name in ("name", "role", "active")} for one in listed]

    def add(self, name: str, role: str, password: str) -> str | None:
        given = {"password": password} if password else {}
        self._remote.post(USERS, {"name": name, "role": role, **given})
        return None if password else self.link(name)

    def link(self, name: str) -> str:
        return str(self._remote.post(f"{_place(USERS, name)}/link")["link"])

    def change(self, name: str, **fields: str | bool) -> None:
        self._remote.patch(_place(USERS, name), {**fields})

    def remove(self, name: str) -> None:
        self._remote.delete(_place(USERS, name))

    def tokens(self) -> list[Item]:
        now = round(datetime.now().astimezone().timestamp() * 1_000)
        return [
            _token_item(
                {"id": one["id"], "role": one["role"]},
                now=now,
                until=_milliseconds(one["expires_at"]),
                revoked=one["revoked_at"] is not None,
                label=f"{_owner(one['person'], one['parent'])}{one['label']}",
            )
            for one in self._pages(TOKENS, "tokens")
        ]

    def create(self, label: str, role: str, days: int, user: str | None) -> Item:
        if user is not None:
            raise LoopwrightError(
                "a remote server creates tokens only for the person who asks",
                code="usage",
                hint="leave out --user, or run the command on the machine of the server",
            )
        made = self._remote.post(TOKENS, {"label": label, "role": role, "days": days})
        return {"id": made["id"], "token": made["token"]}

    def revoke(self, token: str) -> Item:
        found = next((one for one in self._pages(TOKENS, "tokens") if one["id"] == token), None)
        if found is None:
            raise NotFound(f"no token {token!r}", hint="`loopwright token ls` lists them")
        self._remote.delete(_place(TOKENS, token))
        return {"id": found["id"], "label": found["label"]}

    def _pages(self, path: str, name: str) -> Iterator[Item]:
        page = self._remote.get(path)
        yield from page[name]
        while page.get("next"):
            page = self._remote.get(path, cursor=page["next"])
            yield from page[name]


def _place(path: str, name: str) -> str:
    return f"{path}/{quote(name, safe='')}"


def _owner(person: str | None, parent: str | None) -> str:
    """Whose token it is, before its label."""
    return f"{person}: " if person else (f"{parent}/" if parent else "")


def _milliseconds(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1_000)


def _token_item(item: Item, *, now: int, until: int | None, revoked: bool, label: str) -> Item:
    state = "revoked" if revoked else ("expired" if until and until <= now else "good")
    day = datetime.fromtimestamp(until / 1_000).astimezone().date().isoformat() if until else "-"
    return {**item, "state": state, "until": day, "label": label}
