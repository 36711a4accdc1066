"""Uploaded files: they are deleted, expire, and large numbers of them delay no other request."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from loopwright.model.trackers import Item
from loopwright.operations.backup import old_uploads, prune, prune_uploads
from loopwright.operations.trackers import access_in, uploads_in
from loopwright.operations.uploads import FOLDER, STRAY_SECONDS, Uploads
from loopwright.stores import trackers
from tests.http.served import SECONDS, Reply, Served
from tests.http.test_artifacts import give, kept, listed, tarred, zipped
from tests.http.test_loops import start, until

DAY_MS = 86_400_000


def files(own: Served) -> list[str]:
    """The bytes that lie there, by their names."""
    return [Path(one).name for one in kept(own) if Path(one).is_file()]


def aged(own: Served, places: list[tuple[str, str]], ms: int) -> None:
    """Let artifacts be that old."""

    def work(book: trackers.TrackerChange) -> str:
        for scope, name in places:
            item = book.get(scope, "artifact", name)
            assert item is not None
            book.drop(scope, "artifact", name)
            book.put(
                Item(scope=scope, kind="artifact", id=name, at=item.at - ms, values=item.values)
            )
        return ""

    own.call(lambda: own.context.here.trackers.change(f"aged {places}", work))


# -- many ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["keep_all", "put_all"])
def test_others_are_answered_meanwhile(
    shared: Served, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """While the files of an archive are written, and while they are entered, the server answers:
    here neither goes on before somebody else was answered.
    """
    run = shared.gated()[0]
    begun, answered = threading.Event(), threading.Event()
    owner = Uploads if where == "keep_all" else trackers._Page
    real: Callable[..., object] = getattr(owner, where)

    def waits(self: object, given: object) -> object:
        begun.set()
        assert answered.wait(SECONDS)
        return real(self, given)

    monkeypatch.setattr(owner, where, waits)
    replies: list[Reply] = []
    data = zipped(*[(f"f{n}", b"same") for n in range(30)])
    giving = threading.Thread(
        target=lambda: replies.append(give(shared, run, data, unpack="true")), daemon=True
    )
    giving.start()
    assert begun.wait(SECONDS)
    assert shared("GET", "/healthz").status == 200
    assert shared("GET", f"/api/v1/runs/{run}").status == 200
    answered.set()
    giving.join(SECONDS)
    assert [one.status for one in replies] == [201]
    assert len(listed(shared, run)) == 30


def test_many_of_the_same_names(shared: Served) -> None:
    """A name that occurs twice in an archive is two versions, and so is the archive again."""
    run = shared.gated()[0]
    names = [f"f{n}" for n in range(25)]
    data = tarred(*[(name, name.encode()) for name in names], ("f3", b"other"))
    first = give(shared, run, data, unpack="true").json["artifacts"]
    assert {one["name"]: one["version"] for one in first} == {n: 1 + (n == "f3") for n in names}
    second = give(shared, run, data, unpack="true").json["artifacts"]
    assert {one["name"]: one["version"] for one in second} == {
        n: 2 + 2 * (n == "f3") for n in names
    }
    assert listed(shared, run) == second
    path = f"/api/v1/runs/{run}/artifacts/{second[3]['id']}"
    told = shared("GET", path).json["versions"]
    assert [one["version"] for one in told] == [1, 2, 3, 4]
    bodies = [shared("GET", f"{path}/content?version={n}").body for n in (1, 2, 3, 4)]
    assert bodies == [b"f3", b"other"] * 2


# -- taking away -----------------------------------------------------------------------------------


def test_a_file_is_taken_away(own: Served) -> None:
    """With all its versions and its bytes, unless another artifact has the same; who did it is in
    the record, and there is no second time.
    """
    run = own.gated()[0]
    name = give(own, run, b"first").json["artifacts"][0]["id"]
    give(own, run, b"second")
    give(own, run, b"second", "b.txt")
    assert len(files(own)) == 2
    path = f"/api/v1/runs/{run}/artifacts/{name}"
    assert own("DELETE", path, token=own.made("viewer")).status == 403
    assert own("DELETE", path).status == 204
    assert [one["name"] for one in listed(own, run)] == ["b.txt"]
    assert len(files(own)) == 1
    assert own("GET", path).status == 404
    assert own("DELETE", path).status == 404
    rows = own("GET", "/api/v1/audit").json["rows"]
    assert [row["subject"] for row in rows if row["action"] == "artifact.removed"] == [name]
    [left] = listed(own, run)
    assert own("GET", f"/api/v1/runs/{run}/artifacts/{left['id']}/content").body == b"second"


def test_what_a_run_has_made_stays(own: Served) -> None:
    """What the engine or an agent has made goes with its run, not before: 409."""
    session = own("POST", "/api/v1/sessions", {}).json["id"]
    loop = start(own, "APPROVED", session_id=session)["loop"]["id"]
    until(own, loop, "completed")
    made = own("GET", f"/api/v1/sessions/{session}/artifacts").json["artifacts"][0]["id"]
    reply = own("DELETE", f"/api/v1/sessions/{session}/artifacts/{made}")
    assert (reply.status, reply.code) == (409, "not-given")

    def work(book: trackers.TrackerChange) -> str:
        book.put(Item(scope=session, kind="artifact", id="agents", values={"content": "x"}))
        return ""

    own.call(lambda: own.context.here.trackers.change("by an agent", work))
    reply = own("DELETE", f"/api/v1/sessions/{session}/artifacts/agents")
    assert (reply.status, reply.code) == (409, "not-given")


def test_bytes_that_were_taken_away_meanwhile_come_back(
    own: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes are given while their only artifact is taken away: they are there."""
    run = own.gated()[0]
    name = give(own, run, b"same").json["artifacts"][0]["id"]
    real = Uploads.keep

    def keep(self: Uploads, called: str, data: bytes) -> object:
        file = real(self, called, data)
        if listed_now():
            own.call(lambda: self.forget([(run, name)], []))
        return file

    def listed_now() -> list[Item]:
        found = own.call(lambda: own.context.here.trackers.versions(run, "artifact", name))
        assert isinstance(found, list)
        return found

    monkeypatch.setattr(Uploads, "keep", keep)
    [made] = give(own, run, b"same", "again.txt").json["artifacts"]
    assert own("GET", f"/api/v1/runs/{run}/artifacts/{made['id']}/content").body == b"same"


# -- age -------------------------------------------------------------------------------------------


def test_old_files_go_with_prune(own: Served) -> None:
    """Where no open run uses them; those of a run that is forgotten go at any age."""
    open_run = own.gated()[0]
    ended = own.start(own.definition(own.script("done"), until={"contains": "done"}))
    own.until(ended, "completed")
    session = own("POST", "/api/v1/sessions", {}).json["id"]
    places = {}
    for scope, base in ((open_run, "runs"), (ended, "runs"), (session, "sessions")):
        for name in ("old", "new"):
            path = f"/api/v1/{base}/{scope}/artifacts?name={name}"
            data, kind = f"{scope} {name}".encode(), {"Content-Type": "application/octet-stream"}
            made = own("POST", path, raw=data, headers=kind).json["artifacts"][0]["id"]
            places[scope, name] = (scope, made)
    aged(own, [place for (_, name), place in places.items() if name == "old"], 40 * DAY_MS)

    def old(gone: Sequence[str] = ()) -> list[tuple[str, str]]:
        service, settings = own.context.service, own.context.settings
        uploads = uploads_in(settings, service)
        return sorted(old_uploads(service, uploads, older_ms=30 * DAY_MS, gone=gone))

    expected = sorted([places[ended, "old"], places[session, "old"]])
    assert own.call(old) == expected
    assert own.call(lambda: old([ended])) == sorted([*expected, places[ended, "new"]])

    def work() -> int:
        service, settings = own.context.service, own.context.settings
        prune(service, settings, [ended], by="me")
        uploads = uploads_in(settings, service)
        return prune_uploads(uploads, access_in(service), old(), by="me")

    assert own.call(work) == 3
    assert own.call(old) == []
    assert {one["name"] for one in listed(own, open_run)} == {"old", "new"}
    left = own("GET", f"/api/v1/sessions/{session}/artifacts").json["artifacts"]
    assert [one["name"] for one in left] == ["new"]
    assert len(files(own)) == 3
    rows = own("GET", "/api/v1/audit").json["rows"]
    pruned = {row["subject"]: row["detail"] for row in rows if row["action"] == "artifact.pruned"}
    assert pruned == {ended: "2 files", session: "1 files"}


def test_bytes_that_nobody_entered(own: Served) -> None:
    """A crash between the bytes and their artifact leaves bytes: they go later, not at once."""
    run = own.gated()[0]
    give(own, run, b"entered")
    uploads = uploads_in(own.context.settings, own.context.service)
    stray = uploads.keep("x", b"never entered")
    assert own.call(uploads.sweep) == 0
    later = Uploads(home=uploads.home, trackers=uploads.trackers, clock=_Later())
    assert own.call(later.sweep) == 1
    assert stray.digest not in files(own)
    assert len(files(own)) == 1
    assert (uploads.home / FOLDER).is_dir()


class _Later:
    """A clock that is far ahead."""

    def now_ms(self) -> int:
        return int(STRAY_SECONDS * 1_000) + 4_102_444_800_000
