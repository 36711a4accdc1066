"""Accounts: changes that are whole or nothing, and one after the other, whoever else is at work."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from loopwright.errors import Conflict, LoopwrightError, NotFound, NotSignedIn, VersionConflict
from loopwright.operations.accounts.access import TOKEN, Principal, TokenRecord
from loopwright.operations.accounts.people import LINK, LINK_MS, SESSION, Hashed, People
from loopwright.ports import StoredRecord
from loopwright.testing.fakes import FakeClock
from tests.operations.meanwhile import Interrupted, connections

OTHER = Hashed("another")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], People]]:
    with connections(tmp_path) as make:
        yield make


MOMENTS = ("before guard", "after guard", "after person", "after all person", "before change")
ENDS: dict[str, Callable[[People, str], object]] = {
    "role": lambda people, name: people.change(name, by="t", role="viewer"),
    "off": lambda people, name: people.change(name, by="t", active=False),
    "remove": lambda people, name: people.remove(name, by="t"),
}


@pytest.mark.item("G5")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("end", ENDS)
def test_two_processes_leave_an_admin(opened: Callable[[], People], moment: str, end: str) -> None:
    """Two admins who are taken away at the same time by two processes: one of them stays, wherever
    in the one change the other one comes.
    """
    here, there = opened(), opened()
    for name in ("ann", "bob"):
        here.add(name, "admin", by="t")
    records = Interrupted(here.records, moment, lambda: ENDS[end](there, "bob"))
    here.records = here.access.records = records
    with pytest.raises(Conflict) as caught:
        ENDS[end](here, "ann")
    assert caught.value.code == "last-admin"
    assert [one.name for one in there.all() if one.role == "admin" and one.active] == ["ann"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_two_changes_of_one_account_both_count(opened: Callable[[], People], moment: str) -> None:
    """What another process changes meanwhile is not overwritten."""
    here, there = opened(), opened()
    for name in ("ann", "bob"):
        here.add(name, "admin", by="t")
    records = Interrupted(here.records, moment, lambda: there.change("bob", by="t", password=OTHER))
    here.records = here.access.records = records
    here.change("bob", by="t", role="viewer")
    (bob,) = [one for one in there.all() if one.name == "bob"]
    assert (bob.role, bob.password) == ("viewer", OTHER)


def test_a_change_that_never_gets_through(
    opened: Callable[[], People], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others are always first, it is said so."""
    people = opened()
    people.add("ann", "viewer", by="t")

    def late(*_: object, **__: object) -> None:
        raise VersionConflict("late")

    monkeypatch.setattr(people.records, "change", late)
    with pytest.raises(Conflict) as caught:
        people.change("ann", by="t", role="editor")
    assert caught.value.code == "busy"


@pytest.mark.parametrize("moment", ["before guard", "after guard", "after link", "before change"])
@pytest.mark.parametrize("end", ["off", "remove"])
def test_a_link_and_the_end_of_its_account(
    opened: Callable[[], People], moment: str, end: str
) -> None:
    """An account that is closed or taken away while its link is used stays so."""
    here, there = opened(), opened()
    here.add("ann", "editor", by="t")
    code = here.link("viewer", by="t", person="ann")
    records = Interrupted(here.records, moment, lambda: ENDS[end](there, "ann"))
    here.records = here.access.records = records
    with pytest.raises(LoopwrightError) as caught:
        here.use_link(code, "ann", OTHER)
    assert caught.value.code == "bad-link"
    assert [one for one in there.all() if one.active] == []
    assert there.records.records(LINK) == []


def test_a_link_is_used_once_by_two_processes(opened: Callable[[], People]) -> None:
    """Of two who use one link at the same time one is refused."""
    here, there = opened(), opened()
    code = here.link("viewer", by="t")
    other = lambda: there.use_link(code, "bob", OTHER)  # noqa: E731 - said where it is used
    here.records = here.access.records = Interrupted(here.records, "before change", other)
    with pytest.raises(LoopwrightError) as caught:
        here.use_link(code, "ann", OTHER)
    assert caught.value.code == "bad-link"
    assert [one.name for one in there.all()] == ["bob"]


@pytest.mark.item("G2")
def test_links_expire(opened: Callable[[], People]) -> None:
    """A link counts until a day is over, and not a moment longer."""
    people = opened()
    clock = people.clock
    assert isinstance(clock, FakeClock)
    first, second = people.link("viewer", by="t"), people.link("viewer", by="t")
    clock.advance(LINK_MS - 1)
    assert people.use_link(first, "ann", OTHER).name == "ann"
    clock.advance(1)
    with pytest.raises(LoopwrightError) as caught:
        people.use_link(second, "bob", OTHER)
    assert caught.value.code == "bad-link"
    assert [one.name for one in people.all()] == ["ann"]


def test_a_new_password_ends_links(opened: Callable[[], People]) -> None:
    """Links of before are worth nothing once a password was set, by an admin or by another link."""
    people = opened()
    people.add("ann", "viewer", by="t")
    for how in ("admin", "link"):
        old = people.link("viewer", by="t", person="ann")
        if how == "admin":
            people.change("ann", by="t", password=OTHER)
        else:
            people.use_link(people.link("viewer", by="t", person="ann"), "ann", OTHER)
        with pytest.raises(LoopwrightError) as caught:
            people.use_link(old, "ann", OTHER)
        assert caught.value.code == "bad-link"


def test_no_link_for_a_closed_account(opened: Callable[[], People]) -> None:
    """An account is opened again by an admin, not by a link."""
    people = opened()
    people.add("ann", "viewer", by="t")
    people.change("ann", by="t", active=False)
    with pytest.raises(Conflict) as caught:
        people.link("viewer", by="t", person="ann")
    assert caught.value.code == "deactivated"


@pytest.mark.parametrize("end", ["off", "remove"])
def test_a_link_that_is_left_over(opened: Callable[[], People], end: str) -> None:
    """A link that outlived its account, as homes of earlier versions have them, does nothing."""
    people = opened()
    people.add("ann", "editor", by="t")
    code = people.link("viewer", by="t", person="ann")
    (kept,) = people.records.records(LINK)
    ENDS[end](people, "ann")
    people.records.change([(kept, None)])
    with pytest.raises(LoopwrightError) as caught:
        people.use_link(code, "ann", OTHER)
    assert caught.value.code == "bad-link"
    assert [one for one in people.all() if one.active] == []


BEGUN: dict[str, Callable[[People], object]] = {
    "session": lambda people: people.begin("ann", OTHER),
    "token": lambda people: people.new_token("x", "editor", by="t", person="ann", days=1),
    "child": lambda people: people.access.child_token("x", "editor", of=HERS),
}
HERS = Principal(name="ann", role="editor", id="hers", person="ann")


@pytest.mark.parametrize("moment", ["before change", "after all session", "after all token"])
@pytest.mark.parametrize("begun", BEGUN)
def test_nothing_of_an_account_outlives_it(
    opened: Callable[[], People], begun: str, moment: str
) -> None:
    """Whatever begins for somebody while another process takes them away ends with them, and does
    not wake up when somebody comes by the same name.
    """
    here, there = opened(), opened()
    here.add("ann", "editor", by="t", password=OTHER)
    hers = TokenRecord(id="hers", hash="", label="hers", role="editor", person="ann")
    record = StoredRecord(kind=TOKEN, key="hers", body=msgspec.json.encode(hers), owner="ann")
    here.records.change([(record, 0)])
    records = Interrupted(here.records, moment, lambda: BEGUN[begun](there))
    here.records = here.access.records = records
    here.remove("ann", by="t")
    left = [*there.records.records(SESSION), *there.records.records(TOKEN), *there.all()]
    assert left == []


@pytest.mark.parametrize("moment", ["before guard", "after guard", "before change"])
@pytest.mark.parametrize("begun", BEGUN)
def test_nothing_begins_for_who_is_gone(
    opened: Callable[[], People], begun: str, moment: str
) -> None:
    """The other way round: what begins finds that they are gone."""
    here, there = opened(), opened()
    here.add("ann", "editor", by="t", password=OTHER)
    hers = TokenRecord(id="hers", hash="", label="hers", role="editor", person="ann")
    record = StoredRecord(kind=TOKEN, key="hers", body=msgspec.json.encode(hers), owner="ann")
    here.records.change([(record, 0)])
    records = Interrupted(here.records, moment, lambda: there.remove("ann", by="t"))
    here.records = here.access.records = records
    with pytest.raises((NotSignedIn, NotFound)):
        BEGUN[begun](here)
    assert [*there.records.records(SESSION), *there.records.records(TOKEN)] == []
