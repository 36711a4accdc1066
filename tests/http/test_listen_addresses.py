"""Addresses of a server: requirements of public ones, TLS, host names, and links to it."""

import datetime
import http.client
import ipaddress
import json
import signal
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from loopwright.client.client import CommandClient, RemoteServer, open_client
from loopwright.engine.services import SystemClock
from loopwright.errors import NotAllowed, Unreachable
from loopwright.http import server as serving_room
from loopwright.http.application import Guard
from loopwright.http.context import ServerOptions
from loopwright.http.server import check_options, check_reach
from loopwright.operations.accounts.access import PERSON, Access, PersonRecord, Role
from loopwright.operations.accounts.people import LINK, LINK_MS, Hashed, Link, People
from loopwright.ports import StoredRecord
from loopwright.stores.sqlite.log import open_sqlite_log
from loopwright.testing import FakeClock
from tests.http.served import Reply, Served, served
from tests.http.test_people import ANN, add, sign_in
from tests.http.test_serving import refused, serving

PROXY = "https://loops.example"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    folder, key = tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loops.lan")])
    names = [
        x509.DNSName("loops.lan"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    files = {name: folder / f"{name}.pem" for name in ("cert", "key", "locked")}
    files["cert"].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files["key"].write_bytes(private)
    files["locked"].write_bytes(locked)
    return files


class Crowd:
    """People of a home, by words."""

    def __init__(self, people: People, clock: FakeClock) -> None:
        self.people, self.clock = people, clock

    def come(self, words: str) -> None:
        for word in words.split():
            getattr(self, f"_{word.replace('-', '_')}")()

    def _add(self, name: str, role: Role, password: str = "") -> None:
        self.people.add(name, role, by="x", password=Hashed(password) if password else None)

    def _viewer(self) -> None:
        self._add("eve", "viewer")

    def _viewer_with_password(self) -> None:
        self._add("vic", "viewer", "hash")

    def _admin(self) -> None:
        self._add("ann", "admin")

    def _admin_with_password(self) -> None:
        self._add("bob", "admin", "hash")

    def _closed_admin(self) -> None:
        person = PersonRecord(name="cat", role="admin", password="hash", active=False)
        body = msgspec.json.encode(person)
        self.people.records.change([(StoredRecord(kind=PERSON, key="cat", body=body), 0)])

    def _viewer_link(self) -> None:
        self.people.link("viewer", by="x", person="eve")

    def _admin_link(self) -> None:
        self.code = self.people.link("admin", by="x", person="ann")

    def _open_link(self) -> None:
        self.people.link("admin", by="x")

    def _open_viewer_link(self) -> None:
        self.people.link("viewer", by="x")

    def _spent_link(self) -> None:
        link = Link(role="admin", expires_at=self.clock.now_ms() + LINK_MS, used_at=1)
        self.people.records.change(
            [(StoredRecord(kind=LINK, key="a", body=msgspec.json.encode(link)), 0)]
        )

    def _used(self) -> None:
        self.people.use_link(self.code, "ann", Hashed("hash"))
        self.people.remove("eve", by="x")

    def _too_late(self) -> None:
        self.clock.elapse(LINK_MS)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    log = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True, durability="normal")
    clock = FakeClock(1_000_000)
    yield Crowd(People(Access(log, clock)), clock)
    log.close()


def missing(crowd: Crowd, **how: Any) -> set[str]:
    """What a server lacks to be reached from elsewhere."""
    known = {"admin": "loopwright user add", "TLS": "--tls-cert"}
    try:
        check_reach(ServerOptions(**{"host": "0.0.0.0", **how}), crowd.people)
    except NotAllowed as error:
        return {name for name, words in known.items() if words in error.message}
    return set()


@pytest.mark.item("coqui-58")
@pytest.mark.parametrize(
    ("words", "comes"),
    [
        ("", False),
        ("viewer", False),
        ("viewer viewer-link", False),
        ("viewer-with-password", False),
        ("admin", False),
        ("viewer admin viewer-link", False),
        ("closed-admin", False),
        ("admin admin-link too-late", False),
        ("open-link too-late", False),
        ("open-viewer-link", False),
        ("spent-link", False),
        ("admin admin-link", True),
        ("viewer admin admin-link used", True),
        ("open-link", True),
        ("admin-with-password", True),
        ("viewer admin-with-password too-late", True),
    ],
)
def test_an_admin_who_could_come_in(crowd: Crowd, words: str, comes: bool) -> None:
    """Elsewhere takes an admin with a password or a good link, whatever TLS there is, and TLS
    whatever admins there are; this machine takes neither.
    """
    crowd.come(words)
    lack = set() if comes else {"admin"}
    assert missing(crowd) == {*lack, "TLS"}
    assert missing(crowd, public_url=PROXY) == lack
    assert missing(crowd, public_url="HTTPS://loops.example") == lack
    assert missing(crowd, tls_cert=Path("c"), tls_key=Path("k")) == lack
    assert missing(crowd, public_url="http://localhost") == {*lack, "TLS"}
    assert missing(crowd, host="127.0.0.1") == set()
    assert missing(crowd, host="localhost", bound="10.0.0.1") == {*lack, "TLS"}
    assert missing(crowd, host="::1") == set()


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "",
        "loops.example",
        "//loops.example",
        "ftp://loops.example",
        "javascript:alert(1)",
        "http://x.example",
        "http://10.0.0.1:8080",
        "https://",
        "https://:443",
        "https://x.example:99999",
        "https://x.example:0",
        "https://x.example:",
        "https://x..example",
        "https://-x.example",
        "https://x.example/loops",
        "https://x.example?a=1",
        "https://x.example#a",
        "https://ann:secret@x.example",
        "https://x.example\n",
        "https://x y.example",
        "https://[::1",
        "https://0.0.0.0",
        "https://1.2.3",
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_what_is_no_public_address(url: str, host: str, tmp_path: Path) -> None:
    """It is refused before anything is touched, also on this machine: links would be made of it."""
    code, said = refused(tmp_path, port=0, host=host, public_url=url)
    assert code == 2
    assert "--public-url" in said
    assert "https://loops.example.org" in said
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "url",
    [
        "https://loops.example",
        "https://loops.example/",
        "HTTPS://Loops.Example:8443",
        "https://loops",
        "https://[2606:2800:220:1::1]:8443",
        "http://localhost:8080",
        "http://127.0.0.1",
    ],
)
def test_public_addresses(url: str) -> None:
    """Names and addresses with TLS, and this machine without."""
    check_options(ServerOptions(public_url=url))


def test_files_that_are_no_tls(tmp_path: Path, tls: dict[str, Path]) -> None:
    """Told at the start and in words, without asking for a password."""
    for cert, key in (
        (tmp_path / "none", tls["key"]),
        (tls["key"], tls["key"]),
        (tls["cert"], tls["locked"]),
    ):
        code, said = refused(tmp_path, port=0, tls_cert=cert, tls_key=key)
        assert code == 1
        assert str(cert) in said
        assert "PEM" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", ""])
def test_links_lead_somewhere(host: str) -> None:
    """Whoever listens everywhere is called by a name of this machine that the guard lets in, or by
    the public one; never by the address that means everywhere.
    """
    with serving_room._listening(ServerOptions(host=host, port=0)) as (sock, port):
        bound = sock.getsockname()[0]
    how = ServerOptions(host=host, port=port, bound=bound)
    assert how.base in (f"http://127.0.0.1:{port}", f"http://[::1]:{port}")
    guard = Guard(how)
    assert how.base.removeprefix("http://").rpartition(":")[0] in guard.hosts
    assert how.base in guard.origins
    assert not {host, "0.0.0.0", "[::]", ""} & guard.hosts
    assert f"http://0.0.0.0:{port}" not in guard.origins
    assert ServerOptions(host=host, bound=bound, public_url=f"{PROXY}/").base == PROXY


@pytest.mark.parametrize(
    ("how", "origin"),
    [
        ({"port": 443, "allowed_hosts": ("Loops.lan",)}, "https://loops.lan"),
        ({"port": 8443, "allowed_hosts": ("loops.lan",)}, "https://loops.lan:8443"),
        ({"public_url": "https://Loops.example:443/"}, "https://loops.example"),
        ({"public_url": "https://loops.example:8443"}, "https://loops.example:8443"),
        ({"public_url": "https://[2606:2800::1]"}, "https://[2606:2800::1]"),
    ],
)
def test_origins_as_browsers_write_them(how: dict[str, Any], origin: str) -> None:
    """Small, and without the port that everybody knows; the host of each is let in, too."""
    guard = Guard(ServerOptions(**how))
    assert origin in guard.origins
    host = origin.removeprefix("https://")
    assert (host if host.endswith("]") else host.partition(":")[0]) in guard.hosts


# -- a server --------------------------------------------------------------------------------------


class Secure:
    """A client that speaks TLS, and believes one certificate."""

    def __init__(self, port: int, cert: Path) -> None:
        self.port, self.context = port, ssl.create_default_context(cafile=str(cert))

    def __call__(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}
    ) -> Reply:
        line = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.context)
        data = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json", **headers}
        try:
            line.request(method, path, data, sent)
            found = line.getresponse()
            told = {name.lower(): value for name, value in found.getheaders()}
            return Reply(found.status, told, found.read())
        finally:
            line.close()


@contextmanager
def home(folder: Path) -> Iterator[People]:
    """The people of a home, before its server is there."""
    (folder / "home").mkdir(exist_ok=True)
    log = open_sqlite_log(folder / "home" / "loopwright.db", alive=lambda _: True)
    yield People(Access(log, SystemClock()))
    log.close()


@pytest.mark.item("coqui-58")
def test_a_server_with_tls_of_its_own(tmp_path: Path, tls: dict[str, Path]) -> None:
    """With an admin who has a link and a certificate it can be reached from elsewhere: over TLS,
    under its names alone, with links that lead to it and a cookie that goes over TLS only.
    """
    with home(tmp_path) as people:
        people.add("ann", "admin", by="x")
        code = people.link("admin", by="x", person="ann")
    options = ["--host", "0.0.0.0", "--allow-host", "loops.lan"]
    options += ["--tls-cert", str(tls["cert"]), "--tls-key", str(tls["key"])]
    with serving(tmp_path, *options) as one:
        port = one.ask.port
        assert one.url == f"https://127.0.0.1:{port}"
        assert "0.0.0.0" not in "\n".join(one.said)
        ask = Secure(port, tls["cert"])
        assert ask("GET", "/healthz").json["status"] == "ok"
        with pytest.raises((OSError, http.client.HTTPException)):
            one.ask("GET", "/healthz")  # not in clear
        client = CommandClient(open_client(RemoteServer(one.url)))
        with client, pytest.raises(Unreachable, match="is not trusted here") as untrusted:
            client.find_run("last")
        assert "SSL_CERT_FILE" in str(untrusted.value.hint)
        for host, status in (("loops.lan", 200), (f"loops.lan:{port}", 200), ("other.lan", 400)):
            assert ask("GET", "/healthz", headers={"Host": host}).status == status
        assert ask("POST", "/api/v1/setup", {"code": code, **ANN}).status == 200
        for site, status in (("loops.lan", 200), ("127.0.0.1", 200), ("0.0.0.0", 403)):
            origin = {"Origin": f"https://{site}:{port}"}
            signed = ask("POST", "/api/v1/session", ANN, headers=origin)
            assert signed.status == status
            assert ("secure" in signed.headers.get("set-cookie", "").lower()) is (status == 200)
        bearer = {"Authorization": f"Bearer {one.ask.token}"}
        link = ask("POST", "/api/v1/users/ann/link", headers=bearer).json["link"]
        assert link.startswith(f"https://127.0.0.1:{port}/setup#")
        assert one.end(signal.SIGTERM) == 0


def test_a_server_behind_a_proxy(tmp_path: Path) -> None:
    """Its links have the public name, under which it can be asked, and its cookie is for TLS; that
    of a server for this machine alone is not.
    """
    with served(tmp_path, public_url=f"{PROXY}/") as own:
        add(own)
        assert "; secure" in sign_in(own).headers["set-cookie"].lower()
        assert own("POST", "/api/v1/users/ann/link").json["link"].startswith(f"{PROXY}/setup#")
        named = {"Host": "loops.example", "Origin": PROXY}
        assert own("POST", "/api/v1/users/ann/link", headers=named).status == 201
        named["Origin"] = "http://loops.example"
        assert own("POST", "/api/v1/users/ann/link", headers=named).status == 403


def test_the_cookie_of_this_machine(shared: Served) -> None:
    """Without TLS a browser would not send back what is for TLS only."""
    add(shared)
    assert "secure" not in sign_in(shared).headers["set-cookie"].lower()


def test_the_link_of_the_first_admin(own: Served) -> None:
    """It is told at every start until somebody has an account, also where there are tokens; each
    start makes a new one, and the one before counts no more.
    """
    first, second = (own.call(lambda: serving_room._started_server(own.context)) for _ in range(2))
    assert (first.token, second.token) == (None, None)
    base = f"http://127.0.0.1:{own.port}/setup#"
    old, new = (one.link.removeprefix(base) for one in (first, second))
    assert old != new
    assert own("POST", "/api/v1/setup", {"code": old, **ANN}, token="").code == "bad-link"
    assert own("POST", "/api/v1/setup", {"code": new, **ANN}, token="").status == 200
    assert own.call(lambda: serving_room._started_server(own.context)).link is None
