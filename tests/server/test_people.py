"""People: the one-time link of the first, names, passwords, sessions, roles, the last admin."""

from typing import Any

import pytest

from loopwright.server.identity import COOKIE
from tests.server.served import Reply, Served

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


@pytest.mark.item("G2")
@pytest.mark.parametrize("code", [None, "", [], 0, "x", "a" * 5_000])
def test_links_that_are_none(shared: Served, code: Any) -> None:
    """What is no code of a link is refused, and makes nobody."""
    reply = shared("POST", "/api/v1/setup", {"code": code, **ANN}, token="")
    assert reply.status in ((400, 429) if isinstance(code, str) else (422,))
    assert shared("GET", "/api/v1/users").json["users"] == []


@pytest.mark.item("G2")
def test_a_link_that_is_too_old(own: Served) -> None:
    """After a day, and after it was used, a link sets no password."""
    add(own)
    link = own("POST", "/api/v1/users/ann/link").json["link"]
    code = link.partition("#")[2]
    changed = {"code": code, "name": "ann", "password": "another one"}
    assert own("POST", "/api/v1/setup", {**changed, "name": "bob"}, token="").status == 400
    assert own("POST", "/api/v1/setup", changed, token="").json["role"] == "editor"
    assert own("POST", "/api/v1/setup", changed, token="").code == "bad-link"
    assert sign_in(own).status == 401
    assert sign_in(own, password="another one").status == 200


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
@pytest.mark.parametrize("change", ["sign out", "password", "role", "off", "remove"])
def test_a_session_ends(own: Served, change: str) -> None:
    """After signing out, another password, another role, or no account, the cookie is worth
    nothing.
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
    assert by_cookie(own, "GET", "/api/v1/me", held).status == 401


@pytest.mark.item("G1")
def test_wrong_passwords(own: Served) -> None:
    """An unknown name and a wrong password are told alike; the sixth try has to wait."""
    add(own)
    wrong = [sign_in(own, password="wrong password") for _ in range(6)]
    unknown = sign_in(own, name="nobody")
    assert [reply.status for reply in wrong] == [401] * 5 + [429]
    assert int(wrong[-1].headers["retry-after"]) >= 1
    assert wrong[0].json == unknown.json
    assert sign_in(own).status == 429


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
        ({"name": "zoe", "role": "root"}, "unknown-user-role"),
        ({"name": "zoe", "password": "short"}, "bad-password"),
        ({"name": "zoe", "password": "a" * 129}, "bad-password"),
    ],
)
def test_accounts_that_cannot_be(shared: Served, body: dict[str, str], code: str) -> None:
    """What is wrong with an account is told, and nobody is made."""
    reply = shared("POST", "/api/v1/users", body)
    assert (reply.status, reply.code) == (422, code)


def test_a_token_of_somebody_has_the_least_of_both(own: Served) -> None:
    """A token can do no more than its person, and nothing once they are gone."""
    add(own, "ann", "admin")
    add(own, "bob", "admin")
    held = cookie(sign_in(own, "bob"))
    text = by_cookie(own, "POST", "/api/v1/tokens", held, {"label": "ci"}).json["token"]
    assert own("GET", "/api/v1/me", token=text).json == {"name": "bob", "role": "admin"}
    own("PATCH", "/api/v1/users/bob", {"role": "viewer"})
    assert own("GET", "/api/v1/me", token=text).json["role"] == "viewer"
    assert own("GET", "/api/v1/users", token=text).status == 403
    own("PATCH", "/api/v1/users/bob", {"active": False})
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
