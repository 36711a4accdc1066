"""Users: the accounts of a server."""

from functools import partial

from loopwright.operations.accounts.access import PersonRecord
from loopwright.operations.accounts.people import People, as_role, hashed
from loopwright.operations.request_types import Request
from loopwright.operations.response_types import LinkMade, UserItem, UserList
from loopwright.operations.use_cases.operation import App, Caller, HttpRoute, PageRequest, operation
from loopwright.operations.use_cases.pages import page_of
from loopwright.views.event_records import timestamp

BASE = "/api/v1/users"
FAMILY = "access"


class AddUser(Request):
    """A new account."""

    free = ("password",)

    name: str
    role: str = "viewer"
    password: str | None = None


class ChangeUser(Request):
    """What changes of an account."""

    free = ("password",)

    name: str
    role: str | None = None
    active: bool | None = None
    password: str | None = None


class UserReference(Request):
    """An account, by its name."""

    name: str


@operation(
    "users.list",
    kind="query",
    role="admin",
    summary="People with accounts",
    request=PageRequest,
    response=UserList,
    http=HttpRoute(method="GET", path=BASE),
    family=FAMILY,
)
async def list_users(app: App, _caller: Caller, request: PageRequest) -> UserList:
    """A page of the accounts, by name."""
    page = page_of(
        app.cursors,
        "users",
        _people(app).all(),
        lambda one: one.name,
        limit=request.limit,
        cursor=request.cursor,
    )
    return UserList(users=[_item(one) for one in page.entries], next=page.next)


@operation(
    "users.add",
    kind="command",
    role="admin",
    summary="Make an account",
    request=AddUser,
    response=UserItem,
    http=HttpRoute(method="POST", path=BASE, status=201, schema="UserBody"),
    audit=("user.added",),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def add(app: App, caller: Caller, request: AddUser) -> UserItem:
    """Create an account. Without a password it is for tokens, or for a link that sets one."""
    role = as_role(request.role)
    password = await app.run_slowly(partial(hashed, request.password)) if request.password else None
    return _item(_people(app).add(request.name, role, by=caller.name, password=password))


@operation(
    "users.change",
    kind="command",
    role="admin",
    summary="Change role, password or state of an account",
    request=ChangeUser,
    response=UserItem,
    http=HttpRoute(method="PATCH", path=f"{BASE}/{{name}}", schema="UserChange"),
    audit=("user.role", "user.activated", "user.deactivated", "user.password"),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def change(app: App, caller: Caller, request: ChangeUser) -> UserItem:
    """Change an account; what is not given stays as it is."""
    role = None if request.role is None else as_role(request.role)
    password = None
    if request.password is not None:
        password = await app.run_slowly(partial(hashed, request.password))
    person = _people(app).change(
        request.name, by=caller.name, role=role, active=request.active, password=password
    )
    return _item(person)


@operation(
    "users.remove",
    kind="command",
    role="admin",
    summary="Take an account away, with its sessions and tokens",
    request=UserReference,
    response=type(None),
    http=HttpRoute(method="DELETE", path=f"{BASE}/{{name}}", status=204),
    audit=("user.removed",),
    draining="serve",
    family=FAMILY,
)
async def remove(app: App, caller: Caller, request: UserReference) -> None:
    """Remove an account with everything that signs in to it."""
    _people(app).remove(request.name, by=caller.name)


@operation(
    "users.link",
    kind="command",
    role="admin",
    summary="A one-time link that sets a password",
    request=UserReference,
    response=LinkMade,
    http=HttpRoute(method="POST", path=f"{BASE}/{{name}}/link", status=201),
    audit=("user.link",),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def link(app: App, caller: Caller, request: UserReference) -> LinkMade:
    """Create a link with which a user sets a new password."""
    code = _people(app).link("viewer", by=caller.name, person=request.name)
    return LinkMade(link=f"{app.base_url()}/setup#{code}")


def _people(app: App) -> People:
    return People(app.access())


def _item(person: PersonRecord) -> UserItem:
    return UserItem(
        name=person.name,
        role=person.role,
        active=person.active,
        created_at=timestamp(person.created_at),
    )


OPERATIONS = (list_users, add, change, remove, link)
