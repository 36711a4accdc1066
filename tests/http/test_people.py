"""People: the one-time link of the first, names, passwords, sessions, roles, the last admin."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from loopwright.http.clients import COOKIE
from loopwright.http.operation_routes import AT_ONCE, MOST_WAITING, Hashing
from loopwright.operations.accounts import people as passwords
from loopwright.ports import Clock
from tests.http.served import SECONDS, UNHURRIED, Reply, Served, served

ANN = {"name": "ann", "password": "correct horse"}


def add(server: Served, name: str = "ann", role: str = "editor") -> None:
    body = {"name": name, "role": role, "password": ANN["password"]}
    assert server("POST", "/api/v1/users", body).status == 201


def sign_in(server: Served, name: str = "ann", password: str = "correct horse") -> Reply:
    return server("POST", "/api/v1/session", {"name": name, "password": password}, token="")


def cookie(reply: Reply) -> str:
    return reply.headers["set-cookie"].partition(";")[0]


def by_cookie(server: Served, method: str, path: str, held: str, body: Any = None) -> Reply:
    origin = f"http://127.0.0.1:{server.port}"
    return server(method, path, body, token="", headers={"Cookie": held, "Origin": origin})


def test_the_first_admin_comes_by_a_link(own: Served) -> None:
    """The link works once; then its maker signs in, and no other link is made by a start."""
    code = own.call(own.context.people.first_link)
    made = own("POST", "/api/v1/setup", {"code": code, **ANN}, token="")
    assert (made.status, made.json) == (200, {"name": "ann", "role": "admin"})
    assert own.call(own.context.people.first_link) is None
    again = own("POST", "/api/v1/setup", {"code": code, **ANN, "name": "bob"}, token="")
    assert (again.status, again.code) == (400, "bad-link")
    assert sign_in(own).json == {"name": "ann", "role": "admin"}
    page = own("GET", "/setup", token="")
    assert page.headers["content-type"].startswith("text/html")
    assert b"setup.js" in page.body


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server where one may try as often as one likes."""
    limits = replace(UNHURRIED, sign_ins_per_minute=1_000)
    with served(tmp_path_factory.mktemp("patient"), limits=limits) as one:
        yield one


def bad_link(reply: Reply) -> bool:
    """Whether a link was refused, in the words that every such refusal has."""
    said = "this link is not good any more"
    return (reply.status, reply.code, reply.json["detail"]) == (400, "bad-link", said)


@pytest.mark.item("G2")
@pytest.mark.parametrize("code", [None, "", [], 0, {}, True, "x", "a" * 5_000])
def test_links_that_are_none(patient: Served, code: Any) -> None:
    """What is no code of a link is refused alike, whatever it is, and makes nobody."""
    before = patient("GET", "/api/v1/users").json
    assert bad_link(patient("POST", "/api/v1/setup", {"code": code, **ANN}, token=""))
    assert patient("GET", "/api/v1/users").json == before


def link(server: Served, name: str = "ann") -> str:
    return str(server("POST", f"/api/v1/users/{name}/link").json["link"]).partition("#")[2]


@pytest.mark.item("G2")
def test_a_link_that_was_used(own: Served) -> None:
    """A link sets the password of its account and of no other, and once."""
    add(own)
    changed = {"code": link(own), "name": "ann", "password": "another one"}
    assert bad_link(own("POST", "/api/v1/setup", {**changed, "name": "bob"}, token=""))
    assert own("POST", "/api/v1/setup", changed, token="").json["role"] == "editor"
    assert bad_link(own("POST", "/api/v1/setup", changed, token=""))
    assert sign_in(own).status == 401
    assert sign_in(own, password="another one").status == 200


class Later:
    """A clock that is ahead."""

    def __init__(self, clock: Clock, ms: int) -> None:
        self._clock, self._ms = clock, ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ms


def ahead(server: Served, monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Let people and tokens live in a later time."""
    later = Later(server.context.clock, ms)
    monkeypatch.setattr(server.context.people, "clock", later)
    monkeypatch.setattr(server.context.access, "clock", later)
    monkeypatch.setattr(server.context.service, "clock", later)


@pytest.mark.item("G2")
def test_a_link_that_is_too_old(patient: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a day a link sets no password."""
    add(patient, "old")
    changed = {"code": link(patient, "old"), "name": "old", "password": "another one"}
    with monkeypatch.context() as patch:
        ahead(patient, patch, 86_400_000)
        assert bad_link(patient("POST", "/api/v1/setup", changed, token=""))
    assert sign_in(patient, "old", "another one").status == 401
    ahead(patient, monkeypatch, 86_400_000 - 60_000)
    assert patient("POST", "/api/v1/setup", changed, token="").status == 200


@pytest.mark.parametrize("end", ["off", "remove"])
def test_a_link_opens_no_closed_account(own: Served, end: str) -> None:
    """Whoever is closed out or taken away does not come back by a link of before."""
    add(own)
    code = link(own)
    if end == "off":
        assert own("PATCH", "/api/v1/users/ann", {"active": False}).json["active"] is False
    else:
        assert own("DELETE", "/api/v1/users/ann").status == 204
    before = own("GET", "/api/v1/users").json
    assert bad_link(own("POST", "/api/v1/setup", {"code": code, **ANN}, token=""))
    assert own("GET", "/api/v1/users").json == before
    if end == "off":
        assert own("PATCH", "/api/v1/users/ann", {"active": True}).json["active"] is True
        assert bad_link(own("POST", "/api/v1/setup", {"code": code, **ANN}, token=""))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"role": "admin", "password": "x"}, 422, "bad-password"),
        ({"role": "root", "active": False}, 422, "unknown-value"),
        ({"password": "a good password", "role": "viewer", "active": False}, 409, "last-admin"),
    ],
    ids=["password", "role", "last admin"],
)
def test_a_change_is_whole_or_nothing(
    own: Served, body: dict[str, object], status: int, code: str
) -> None:
    """Of a change that is refused no part counts, nor is any on record."""
    name = "ann" if code != "last-admin" else "root"
    add(own)
    add(own, "root", "admin")
    held = cookie(sign_in(own, name))
    before = own("GET", "/api/v1/users").json, own("GET", "/api/v1/audit").json
    reply = own("PATCH", f"/api/v1/users/{name}", body)
    assert (reply.status, reply.code) == (status, code)
    assert (own("GET", "/api/v1/users").json, own("GET", "/api/v1/audit").json) == before
    assert by_cookie(own, "GET", "/api/v1/me", held).status == 200


def test_a_change_of_everything(own: Served) -> None:
    """Role, state and password change at once, each with its row in the record."""
    add(own)
    body = {"role": "viewer", "active": False, "password": "another one"}
    told = own("PATCH", "/api/v1/users/ann", body).json
    assert (told["role"], told["active"]) == ("viewer", False)
    rows = own("GET", "/api/v1/audit?subject=ann&limit=3").json["rows"]
    assert {row["action"] for row in rows} == {"user.role", "user.deactivated", "user.password"}
    assert own("PATCH", "/api/v1/users/ann", body | {"active": True}).json["active"] is True
    assert sign_in(own, password="another one").json == {"name": "ann", "role": "viewer"}


def test_a_session_is_a_cookie_of_ours_alone(own: Served) -> None:
    """The cookie is HttpOnly and SameSite=Strict, and only pages of ours change things by it."""
    add(own)
    reply = sign_in(own)
    told = reply.headers["set-cookie"].lower()
    assert told.startswith(COOKIE)
    assert all(word in told for word in ("httponly", "samesite=strict", "path=/", "max-age="))
    held = cookie(reply)
    assert by_cookie(own, "GET", "/api/v1/me", held).json == {"name": "ann", "role": "editor"}
    start = {"definition": own.definition(own.script("x"))}
    assert by_cookie(own, "POST", "/api/v1/runs", held, start).status == 201
    bare = own("POST", "/api/v1/runs", start, token="", headers={"Cookie": held})
    assert (bare.status, bare.code) == (403, "foreign-origin")
    assert by_cookie(own, "GET", "/api/v1/users", held).status == 403


@pytest.mark.item("G3")
@pytest.mark.parametrize("change", ["sign out", "password", "role", "off and on", "remove"])
def test_a_session_ends(own: Served, change: str) -> None:
    """After signing out, another password, another role, or no account, the cookie is worth
    nothing; nor does it come back with an account that was closed.
    """
    add(own)
    held = cookie(sign_in(own))
    if change == "sign out":
        assert by_cookie(own, "DELETE", "/api/v1/session", held).status == 204
    elif change == "remove":
        assert own("DELETE", "/api/v1/users/ann").status == 204
    else:
        bodies = {"password": {"password": "new password"}, "role": {"role": "viewer"}}
        body = bodies.get(change, {"active": False})
        assert own("PATCH", "/api/v1/users/ann", body).status == 200
        own("PATCH", "/api/v1/users/ann", {"active": True})
    assert by_cookie(own, "GET", "/api/v1/me", held).status == 401


def test_a_session_is_over_after_a_week(patient: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cookie counts for a week and not longer, whatever the browser keeps."""
    add(patient, "weekly")
    held, week = cookie(sign_in(patient, "weekly")), 7 * 86_400_000
    with monkeypatch.context() as patch:
        ahead(patient, patch, week - 60_000)
        assert by_cookie(patient, "GET", "/api/v1/me", held).status == 200
    ahead(patient, monkeypatch, week)
    assert by_cookie(patient, "GET", "/api/v1/me", held).status == 401


@pytest.mark.item("rondoflow-11")
def test_a_closed_account(own: Served) -> None:
    """Whoever has a closed account is told so: by token, by cookie and when they sign in. Whoever
    does not know the password learns nothing.
    """
    add(own)
    held = cookie(sign_in(own))
    text = by_cookie(own, "POST", "/api/v1/tokens", held, {"label": "mine"}).json["token"]
    own("PATCH", "/api/v1/users/ann", {"active": False})
    start = {"definition": own.definition(own.script("x"))}
    for reply in (
        own("POST", "/api/v1/runs", start, token=text),
        own("POST", "/api/agents/x/loop/start", {"message": "x"}, token=text),
        by_cookie(own, "POST", "/api/v1/runs", held, start),
        by_cookie(own, "GET", "/api/v1/me", held),
        sign_in(own),
    ):
        assert reply.status == 403, reply.body
        assert b"Your account has been deactivated" in reply.body
    assert sign_in(own, password="wrong password").status == 401
    assert own("GET", "/api/v1/runs").json["runs"] == []
    own("DELETE", "/api/v1/users/ann")
    assert own("GET", "/api/v1/me", token=text).status == 401


@pytest.mark.usefixtures("full_once")
@pytest.mark.item("G1")
def test_wrong_passwords(own: Served) -> None:
    """An unknown name and a wrong password are told alike; the sixth try has to wait."""
    add(own)
    wrong = [sign_in(own, password="wrong password") for _ in range(6)]
    unknown = sign_in(own, name="nobody")
    assert [reply.status for reply in wrong] == [401] * 5 + [429]
    assert int(wrong[-1].headers["retry-after"]) >= 1
    told = [{**reply.json, "trace_id": ""} for reply in (wrong[0], unknown)]
    assert told[0] == told[1]
    assert sign_in(own).status == 429


def test_passwords_keep_nobody_waiting(patient: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """While passwords are tried others are answered; few are tried at once, and of too many the
    last are sent away.
    """
    go, lock, inside, most = threading.Event(), threading.Lock(), [], []

    def slow(_kept: str, _password: str) -> bool:
        with lock:
            inside.append(1)
            most.append(len(inside))
        assert go.wait(SECONDS)
        with lock:
            inside.pop()
        return False

    monkeypatch.setattr(passwords, "fits", slow)
    with ThreadPoolExecutor(AT_ONCE + MOST_WAITING) as pool:
        try:
            tries = [pool.submit(sign_in, patient, f"n{n}") for n in range(AT_ONCE + MOST_WAITING)]
            hashing = patient.context.part(Hashing)
            while hashing.inside < AT_ONCE + MOST_WAITING:
                assert patient("GET", "/healthz", token="").status == 200
            late = sign_in(patient, "late")
        finally:
            go.set()
    assert (late.status, late.code, late.headers["retry-after"]) == (503, "busy", "1")
    assert {one.result().status for one in tries} == {401}
    assert max(most) == AT_ONCE
    assert sign_in(patient, "later").status == 401


@pytest.mark.parametrize("change", ["password", "remove", "off"])
def test_an_account_that_changes_while_its_password_is_tried(
    own: Served, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """What was right when it was asked and is not any more opens no session."""
    add(own)
    fits = passwords.fits

    def meanwhile(kept: str, password: str) -> bool:
        people = own.context.people
        if change == "remove":
            own.call(lambda: people.remove("ann", by="t"))
        elif change == "off":
            own.call(lambda: people.change("ann", by="t", active=False))
        else:
            other = passwords.hashed("another one")
            own.call(lambda: people.change("ann", by="t", password=other))
        return fits(kept, password)

    monkeypatch.setattr(passwords, "fits", meanwhile)
    reply = sign_in(own)
    assert reply.status == (403 if change == "off" else 401)
    assert "set-cookie" not in reply.headers


@pytest.mark.item("G5")
def test_the_last_admin_stays(own: Served) -> None:
    """The last admin is neither removed, demoted nor closed; with another one they may be."""
    add(own, "ann", "admin")
    for method, body in (
        ("DELETE", None),
        ("PATCH", {"role": "editor"}),
        ("PATCH", {"active": False}),
    ):
        reply = own(method, "/api/v1/users/ann", body)
        assert (reply.status, reply.code) == (409, "last-admin")
    add(own, "bob", "admin")
    assert own("PATCH", "/api/v1/users/ann", {"role": "viewer"}).json["role"] == "viewer"
    assert own("DELETE", "/api/v1/users/bob").code == "last-admin"


@pytest.mark.item("G6")
@pytest.mark.parametrize(
    "name", ["admin ", "ａｄｍｉｎ", "аdmin", "Admin", "", ".a", "a\u200b", "a" * 64, "a/b", "a\n"]
)
def test_names_that_look_like_others(shared: Served, name: str) -> None:
    """A name that could be taken for another is refused."""
    reply = shared("POST", "/api/v1/users", {"name": name})
    assert (reply.status, reply.code) == (422, "bad-user-name")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "zoe", "role": "root"}, "unknown-value"),
        ({"name": "zoe", "password": "short"}, "bad-password"),
        ({"name": "zoe", "password": "a" * 129}, "bad-password"),
    ],
)
def test_accounts_that_cannot_be(shared: Served, body: dict[str, str], code: str) -> None:
    """What is wrong with an account is told, and nobody is made."""
    reply = shared("POST", "/api/v1/users", body)
    assert (reply.status, reply.code) == (422, code)


def test_a_token_of_a_person_has_the_least_of_both(own: Served) -> None:
    """A token can do no more than its person, and nothing once they are gone."""
    add(own, "ann", "admin")
    add(own, "bob", "admin")
    held = cookie(sign_in(own, "bob"))
    text = by_cookie(own, "POST", "/api/v1/tokens", held, {"label": "ci"}).json["token"]
    assert own("GET", "/api/v1/me", token=text).json == {"name": "bob", "role": "admin"}
    own("PATCH", "/api/v1/users/bob", {"role": "viewer"})
    assert own("GET", "/api/v1/me", token=text).json["role"] == "viewer"
    assert own("GET", "/api/v1/users", token=text).status == 403
    own("DELETE", "/api/v1/users/bob")
    assert own("GET", "/api/v1/me", token=text).status == 401


def test_nothing_secret_is_kept(own: Served) -> None:
    """Neither tokens, nor passwords, nor cookies stand in the database, nor in any list."""
    add(own)
    held = cookie(sign_in(own)).partition("=")[2]
    listed = own("GET", "/api/v1/users").body + own("GET", "/api/v1/tokens").body
    data = b"".join(
        file.read_bytes() for file in own.context.settings.home.iterdir() if file.is_file()
    )
    for secret in (own.token.split("_")[2], ANN["password"], held):
        assert secret.encode() not in data + listed
