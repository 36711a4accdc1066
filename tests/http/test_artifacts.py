"""Artifacts over HTTP: files and archives that people give, and what they read back."""

import gzip
import hashlib
import io
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from loopwright.errors import LoopwrightError
from loopwright.model.trackers import Item
from loopwright.operations import api_types as shapes
from loopwright.operations import uploads
from loopwright.operations.uploads import FOLDER, entries_of, saved_name, shown_name
from tests.http.served import Reply, Served
from tests.http.test_runs import fits

BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def run(shared: Served) -> str:
    """A run that waits, so that its artifacts can be added to."""
    return shared.gated()[0]


def give(own: Served, run: str, data: bytes, name: str = "a.txt", **more: Any) -> Reply:
    query = "&".join(f"{key}={quote(str(value))}" for key, value in {"name": name, **more}.items())
    path = f"/api/v1/runs/{run}/artifacts?{query}"
    return own("POST", path, raw=data, headers=BYTES)


def listed(own: Served, run: str) -> list[Any]:
    return list(own("GET", f"/api/v1/runs/{run}/artifacts").json["artifacts"])


def zipped(*entries: tuple[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in entries:
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, body)
        for name in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, "/etc/passwd")
    return made.getvalue()


def tarred(*entries: tuple[str, bytes], mode: str = "w:gz", **special: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, body in entries:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
        for name, kind in special.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    return made.getvalue()


GOOD = ("notes.txt", b"hello")
UNSAFE: dict[str, Callable[[], bytes]] = {
    "zip up": lambda: zipped(GOOD, ("../x", b"1")),
    "zip up inside": lambda: zipped(GOOD, ("a/../../x", b"1")),
    "zip absolute": lambda: zipped(GOOD, ("/etc/x", b"1")),
    "zip drive": lambda: zipped(GOOD, ("C:\\x", b"1")),
    "zip backslash": lambda: zipped(GOOD, ("..\\x", b"1")),
    "zip home": lambda: zipped(GOOD, ("~root/x", b"1")),
    "zip link": lambda: zipped(GOOD, links=("link",)),
    "zip in bzip2": lambda: zipped_plain(GOOD, packing=zipfile.ZIP_BZIP2),
    "zip in lzma, broken": lambda: zipped_plain(GOOD, packing=zipfile.ZIP_LZMA).replace(
        b"]", b"\xff"
    ),
    "tar up": lambda: tarred(GOOD, ("../x", b"1")),
    "tar absolute": lambda: tarred(GOOD, ("/etc/x", b"1")),
    "tar symbolic link": lambda: tarred(GOOD, link=tarfile.SYMTYPE),
    "tar hard link": lambda: tarred(GOOD, link=tarfile.LNKTYPE),
    "tar device": lambda: tarred(GOOD, device=tarfile.CHRTYPE),
    "tar pipe": lambda: tarred(GOOD, pipe=tarfile.FIFOTYPE),
    "cut off": lambda: zipped(GOOD, ("b", b"x" * 999))[:-30],
    "tar cut off": lambda: tarred(GOOD, ("b", bytes(range(256)) * 99))[:-40],
    "a broken body": lambda: zipped_plain(GOOD).replace(b"hello", b"help!"),
    "nothing of the kind": lambda: b"plain text",
    "gzip of a text": lambda: gzip.compress(b"plain text" * 999),
}


@pytest.mark.item("D8")
@pytest.mark.parametrize("make", UNSAFE.values(), ids=UNSAFE)
def test_archives_that_lead_out(shared: Served, run: str, make: Callable[[], bytes]) -> None:
    """Names that lead out, links and devices: 422, and not even the good files are kept."""
    before = (listed(shared, run), kept(shared))
    reply = give(shared, run, make(), unpack="true")
    assert (reply.status, reply.code) == (422, "unsafe-archive")
    assert (listed(shared, run), kept(shared)) == before


def zipped_plain(*entries: tuple[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, body in entries:
            archive.writestr(name, body)
    return made.getvalue()


def kept(own: Served) -> list[str]:
    folder = own.context.settings.home / FOLDER
    return sorted(str(one) for one in folder.rglob("*")) if folder.exists() else []


def bomb(size: int) -> bytes:
    return zipped(("zeros", bytes(size)))


def many(count: int) -> bytes:
    return zipped(*[(f"f{number}", b"") for number in range(count)])


def long_header() -> bytes:
    """A tar whose description of an entry is the bomb."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"comment": "x" * 30_000_000}
        archive.addfile(info)
    return made.getvalue()


BOMBS: dict[str, Callable[[], bytes]] = {
    "ratio": lambda: bomb(30_000_000),
    "ratio of a tar": lambda: tarred(("zeros", bytes(30_000_000))),
    "inside of another": lambda: zipped(GOOD, ("inner.zip", bomb(30_000_000))),
    "four deep": lambda: zipped(("d", zipped(("c", zipped(("b", zipped(("a", b"1")))))))),
    "many entries": lambda: many(10_001),
    "many behind a larger end": lambda: many(3) + b"PK\x06\x07" + bytes(16) + many(3)[-22:],
    "a header that is one": long_header,
}


@pytest.mark.item("D9")
@pytest.mark.parametrize("make", BOMBS.values(), ids=BOMBS)
def test_bombs(make: Callable[[], bytes]) -> None:
    """What would unpack to far more than it is, by size, by number or inside, is refused."""
    with pytest.raises(LoopwrightError) as error:
        entries_of(make())
    assert error.value.code == "archive-too-big"


@pytest.mark.item("D9")
def test_a_bomb_that_comes_out_at_once() -> None:
    """A packing that is not read bit by bit is refused before anything of it is unpacked."""
    made = zipped_plain(("zeros", bytes(90_000_000)), packing=zipfile.ZIP_BZIP2)
    assert len(made) < 1_000
    tracemalloc.start()
    try:
        with pytest.raises(LoopwrightError) as error:
            entries_of(made)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert error.value.code == "unsafe-archive"


@pytest.mark.item("D9")
def test_a_bomb_over_http(shared: Served, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """422, and nothing is kept; the bound on the whole counts for what packs badly too."""
    before = listed(shared, run)
    reply = give(shared, run, bomb(5_000_000), unpack="true")
    assert (reply.status, reply.code) == (422, "archive-too-big")
    monkeypatch.setattr(uploads, "MOST_ENTRIES", 3)
    reply = give(shared, run, tarred(*[(f"f{n}", b"") for n in range(4)]), unpack="true")
    assert (reply.status, reply.code) == (422, "archive-too-big")
    monkeypatch.setattr(uploads, "MOST_BYTES", 1_000)
    reply = give(shared, run, zipped(("a", bytes(range(256)) * 8)), unpack="true")
    assert (reply.status, reply.code) == (422, "archive-too-big")
    assert listed(shared, run) == before


@pytest.mark.parametrize("make", [zipped, tarred], ids=["zip", "tar.gz"])
def test_a_good_archive(own: Served, make: Any) -> None:
    """Its files are artifacts; an archive inside is a file like any other."""
    run, _ = own.gated()
    inner = zipped(("x", b"1"))
    data = make(("src/main.py", b"print(1)\n"), ("b.bin", b"\0\1"), ("w.whl", inner), ("./d/", b""))
    reply = give(own, run, data, unpack="true")
    assert reply.status == 201, reply.body
    made = {one["name"]: one for one in reply.json["artifacts"]}
    assert {"src/main.py", "b.bin", "w.whl"} <= set(made)
    path = f"/api/v1/runs/{run}/artifacts/{made['w.whl']['id']}/content"
    assert own("GET", path).body == inner
    item = own.context.here.trackers.get(run, "artifact", made["src/main.py"]["id"])
    assert item is not None
    assert item.text("content") == "print(1)\n"  # agents can read what is text


NAMES = [
    "../../x",
    "con",
    "n" * 5_000,
    "a\nb",
    "\u202egpj.exe",
    "C:\\boot.ini",
    "/etc/passwd",
    "  ",
]


@pytest.mark.item("D10")
@pytest.mark.parametrize("name", NAMES)
def test_names_that_mean_harm(shared: Served, run: str, name: str) -> None:
    """The bytes lie under their hash; the name is shown escaped, on one line, of a bounded length,
    and is harmless as the name of a download.
    """
    data = f"body of {name}".encode()
    reply = give(shared, run, data, name)
    assert reply.status == 201, reply.body
    [made] = reply.json["artifacts"]
    fits(made, shapes.ArtifactItem)
    assert made["name"] == shown_name(name)
    assert len(made["name"]) <= 200
    assert made["name"].isprintable()
    assert made["id"].startswith("art_")
    digest = hashlib.sha256(data).hexdigest()
    home = shared.context.settings.home
    assert (home / FOLDER / digest[:2] / digest).read_bytes() == data
    got = shared("GET", f"/api/v1/runs/{run}/artifacts/{made['id']}/content")
    assert got.body == data
    saved = got.headers["content-disposition"].removeprefix('attachment; filename="').rstrip('"')
    assert Path(saved).name == saved
    assert saved.lower() != "con"
    assert got.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in got.headers["content-security-policy"]


def test_names_on_disk() -> None:
    """Whatever a name is, a file of a plain name can be made of it."""

    def saved(title: str) -> str:
        return saved_name(Item(scope="s", kind="artifact", id="art_1", values={"title": title}))

    assert saved("src/main.py") == "main.py"
    for title in ("", "..", "con", "NUL.txt", "/", "…"):
        assert saved(title) == "art_1"


@pytest.mark.item("D11")
def test_two_of_one_name(own: Served) -> None:
    """Both are kept, as versions of one artifact, and each can be read; another name is another
    artifact, and so is the same name in another run.
    """
    run, _ = own.gated()
    first = give(own, run, b"one", "report.txt").json["artifacts"][0]
    second = give(own, run, b"two", "report.txt").json["artifacts"][0]
    other = give(own, run, b"three", "other.txt").json["artifacts"][0]
    assert second["id"] == first["id"] != other["id"]
    assert (first["version"], second["version"]) == (1, 2)
    path = f"/api/v1/runs/{run}/artifacts/{first['id']}"
    shown = own("GET", path).json
    fits(shown, shapes.ArtifactVersions)
    assert [(one["version"], one["size"]) for one in shown["versions"]] == [(1, 3), (2, 3)]
    assert own("GET", f"{path}/content").body == b"two"
    assert own("GET", f"{path}/content?version=1").body == b"one"
    assert own("GET", f"{path}/content?version=3").status == 404
    assert [one["name"] for one in listed(own, run)] == ["report.txt", "other.txt"]
    elsewhere, _ = own.gated()
    assert listed(own, elsewhere) == []
    assert own("GET", f"/api/v1/runs/{elsewhere}/artifacts/{first['id']}/content").status == 404
    both = tarred(("report.txt", b"three"), ("report.txt", b"four"))
    again = give(own, run, both, unpack="true").json["artifacts"]
    assert [(one["id"], one["version"]) for one in again] == [(first["id"], 4)]


TEN = b"0123456789"
RANGES = {
    "bytes=0-3": (206, b"0123"),
    "bytes=7-": (206, b"789"),
    "bytes=-3": (206, b"789"),
    "bytes=-99": (206, TEN),
    "bytes=5-99": (206, b"56789"),
    "bytes=10-": (416, None),
    "bytes=99-100": (416, None),
    "bytes=5-2": (416, None),
    "bytes=-0": (416, None),
    "bytes=-": (200, TEN),
    "bytes=a-b": (200, TEN),
    "bytes=0-1,3-4": (200, TEN),
    "bytes=0-" + "9" * 18: (206, TEN),
    "bytes=0-" + "9" * 400: (200, TEN),
    "bytes=--1": (200, TEN),
    "bytes": (200, TEN),
    "lines=1-2": (200, TEN),
    "": (200, TEN),
    "\xe9": (200, TEN),
}


@pytest.fixture(scope="module")
def ten(shared: Served, run: str) -> str:
    made = give(shared, run, TEN, "ten.bin").json["artifacts"][0]
    return f"/api/v1/runs/{run}/artifacts/{made['id']}/content"


@pytest.mark.item("E19")
@pytest.mark.parametrize("wanted", RANGES)
def test_parts(shared: Served, ten: str, wanted: str) -> None:
    """A part that is there is given, one that is not is 416, and nonsense gets everything."""
    status, body = RANGES[wanted]
    reply = shared("GET", ten, headers={"Range": wanted})
    assert reply.status == status
    if body is None:
        assert reply.code == "no-such-range"
        assert reply.headers["content-range"] == "bytes */10"
    else:
        assert reply.body == body
    if status == 206:
        assert reply.headers["content-range"].endswith("/10")


@pytest.mark.item("E19")
def test_who_has_it_already(shared: Served, ten: str) -> None:
    """304 for the tag of the content in any of its forms; any other tag, and nonsense, gets it."""
    etag = shared("GET", ten).headers["etag"]
    for same in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        reply = shared("GET", ten, headers={"If-None-Match": same})
        assert (reply.status, reply.body) == (304, b"")
        assert reply.headers["etag"] == etag
    for other in ('"x"', etag.strip('"'), '"', "", ",,,", "\xe9", '"' + "x" * 3_000 + '"'):
        assert shared("GET", ten, headers={"If-None-Match": other}).body == TEN, other
    part = {"Range": "bytes=0-1"}
    assert shared("GET", ten, headers={**part, "If-Range": etag}).status == 206
    assert shared("GET", ten, headers={**part, "If-Range": '"old"'}).body == TEN
    assert shared("GET", ten, headers={**part, "If-Range": "Mon, 1 Jan"}).status == 200
    both = {**part, "If-None-Match": etag}
    assert shared("GET", ten, headers=both).status == 304
    assert shared("HEAD", ten).body == b""


def test_what_cannot_be_given(shared: Served, run: str) -> None:
    """Nothing at all, too much, and artifacts of runs that are not there."""
    assert give(shared, run, b"").code == "empty-upload"
    large = {**BYTES, "Content-Length": "64000001"}
    path = f"/api/v1/runs/{run}/artifacts"
    assert shared("POST", path, raw=b"x", headers=large).status == 413
    assert give(shared, "run_none", b"x").status == 404
    assert shared("GET", f"{path}/art_none").status == 404
    assert shared("GET", f"{path}/art_none/content?version=0").status == 422


def test_content_that_is_gone(shared: Served, run: str) -> None:
    """A file that somebody has removed is reported as damage, never as an empty file."""
    made = give(shared, run, b"soon gone", "gone.txt").json["artifacts"][0]
    digest = hashlib.sha256(b"soon gone").hexdigest()
    (shared.context.settings.home / FOLDER / digest[:2] / digest).unlink()
    reply = shared("GET", f"/api/v1/runs/{run}/artifacts/{made['id']}/content")
    assert (reply.status, reply.code) == (503, "damaged")


def test_artifacts_of_a_session(shared: Served) -> None:
    """A session has artifacts as a run has them."""
    session = shared("POST", "/api/v1/sessions", {"title": "s"}).json["id"]
    path = f"/api/v1/sessions/{session}/artifacts"
    made = shared("POST", f"{path}?name=a.txt", raw=b"hello", headers=BYTES)
    assert made.status == 201, made.body
    item = made.json["artifacts"][0]
    assert shared("GET", f"{path}/{item['id']}/content").body == b"hello"
    assert shared("GET", path).json["artifacts"] == [item]
    assert shared("GET", "/api/v1/sessions/none/artifacts").status == 404
