"""Tokens: under which names they act, and tokens that tokens make."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from loopwright.errors import Conflict, LoopwrightError, NotSignedIn
from loopwright.operations.accounts.access import (
    DAY_MS,
    TOKEN,
    Access,
    Principal,
    TokenRecord,
    same_somebody,
)
from loopwright.operations.accounts.people import People
from loopwright.ports import StoredRecord
from loopwright.testing.fakes import FakeClock
from tests.operations.meanwhile import Interrupted, connections


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], People]]:
    with connections(tmp_path) as make:
        yield make


@pytest.fixture
def access(opened: Callable[[], People]) -> Access:
    return opened().access


def who(access: Access, text: str) -> Principal:
    return access.by_token(text)


@pytest.mark.parametrize(
    ("token", "name"),
    [
        ({"label": "ci"}, "token:ci"),
        ({"label": "rose", "person": "ann"}, "ann"),
        ({"label": "rose", "root": "token:ci"}, "token:ci/rose"),
        ({"label": "first-start"}, "first-start"),
        ({"label": "first-start", "root": "token:ci"}, "token:ci/first-start"),
    ],
    ids=["program", "person", "made by a token", "first", "not the first"],
)
def test_names(token: dict[str, str], name: str) -> None:
    """A token without a person never acts under a name that a person could have."""
    assert TokenRecord(id="x", hash="", role="viewer", **token).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("token:ci", "token:ci", True),
        ("token:ci", "token:ci/rose", True),
        ("token:ci/a", "token:ci/b", True),
        ("first-start", "first-start/rose", True),
        ("ci", "token:ci", True),
        ("ann", "ann", True),
        ("token:ci", "token:cd", False),
        ("rose", "token:ci/rose", False),
        ("ann", "bob", False),
    ],
)
def test_who_is_the_same(one: str, other: str, same: bool) -> None:
    """All tokens of a program are one somebody, and so is the bare label of earlier versions."""
    assert same_somebody(one, other) is same_somebody(other, one) is same


def test_a_token_of_an_earlier_version(access: Access) -> None:
    """What was kept before there were parents is read, and its holder comes in."""
    made = access.new_token("ci", "editor", by="t")
    body = msgspec.json.decode(msgspec.json.encode(made.token))
    for later in ("parent", "root"):
        del body[later]
    access.records.change(
        [(StoredRecord(kind=TOKEN, key=made.token.id, body=msgspec.json.encode(body)), None)]
    )
    found = who(access, made.text)
    assert (found.name, found.role, found.person) == ("token:ci", "editor", "")


@pytest.mark.parametrize(
    ("of", "asked", "told"),
    [(1, None, 1), (1, 90, 1), (30, 2, 2), (None, None, None), (None, 3, 3)],
)
def test_no_longer_life(
    access: Access, of: int | None, asked: int | None, told: int | None
) -> None:
    """A token that was made by a token ends with it at the latest."""
    parent = access.new_token("ci", "editor", by="t", days=of)
    child = access.child_token("x", "viewer", of=who(access, parent.text), days=asked)
    now = access.clock.now_ms()
    assert child.token.expires_at == (None if told is None else now + told * DAY_MS)
    assert (child.token.parent, child.token.role) == (parent.token.id, "viewer")


def test_no_higher_role(access: Access) -> None:
    """Whatever is asked for, a token makes none that may do more than itself."""
    parent = access.new_token("ci", "viewer", by="t")
    child = access.child_token("x", "admin", of=who(access, parent.text))
    assert who(access, child.text).role == "viewer"


def test_a_token_ends_with_all_that_it_made(access: Access) -> None:
    """Children and their children go with it, and nothing else; each is on record."""
    one = access.new_token("one", "editor", by="t")
    two = access.child_token("two", "editor", of=who(access, one.text))
    three = access.child_token("three", "editor", of=who(access, two.text))
    other = access.new_token("other", "editor", by="t")
    seen = [who(access, made.text) for made in (one, two, three)]
    assert [found.name for found in seen] == ["token:one", "token:one/two", "token:one/three"]
    assert {token.id for token in access.tokens_of(seen[1])} == {two.token.id, three.token.id}
    access.revoke(two.token.id, by="t")
    assert [access.still(found) for found in seen] == [True, False, False]
    access.revoke(one.token.id, by="t")
    for made in (one, two, three):
        with pytest.raises(NotSignedIn):
            who(access, made.text)
    assert who(access, other.text).name == "token:other"
    ended = [row.subject for row in access.records.audited() if row.action == "token.revoked"]
    assert sorted(ended) == sorted(made.token.id for made in (one, two, three))


@pytest.mark.parametrize("moment", ["before token", "after token", "before change"])
def test_made_while_the_parent_ends(opened: Callable[[], People], moment: str) -> None:
    """A token whose end comes while it makes another one makes none."""
    here, there = opened().access, opened().access
    parent = here.new_token("ci", "editor", by="t")
    asker = who(here, parent.text)
    here.records = Interrupted(  # type: ignore[assignment]
        here.records, moment, lambda: there.revoke(parent.token.id, by="t")
    )
    with pytest.raises(NotSignedIn):
        here.child_token("x", "editor", of=asker)
    assert [one.label for one in there.tokens()] == ["ci"]


@pytest.mark.parametrize("moment", ["after all token", "before change"])
def test_ended_while_it_makes_another(opened: Callable[[], People], moment: str) -> None:
    """The same the other way round: what is made while its parent is being ended, ends too."""
    here, there = opened().access, opened().access
    parent = here.new_token("ci", "editor", by="t")
    asker = who(here, parent.text)
    here.records = Interrupted(  # type: ignore[assignment]
        here.records, moment, lambda: there.child_token("x", "editor", of=asker)
    )
    here.revoke(parent.token.id, by="t")
    made = there.tokens()
    assert len(made) == 2
    assert [one for one in made if one.revoked_at is None] == []


@pytest.mark.parametrize("label", ["", "  ", "a" * 101, "a\n", "a/b"])
def test_labels_that_cannot_be(access: Access, label: str) -> None:
    """A label is a short text on one line, without what parts names."""
    with pytest.raises(LoopwrightError) as caught:
        access.new_token(label, "viewer", by="t")
    assert caught.value.code == "bad-name"


def test_the_first_token_is_one(access: Access) -> None:
    """Nobody else is called like the first token, neither a program nor a person."""
    first = access.first_token()
    assert first is not None
    assert who(access, first.text).name == "first-start"
    assert access.first_token() is None
    with pytest.raises(Conflict) as caught:
        access.new_token(" first-start ", "viewer", by="t")
    assert caught.value.code == "name-taken"
    with pytest.raises(LoopwrightError) as refused:
        People(access).add("first-start", "viewer", by="t")
    assert refused.value.code == "bad-user-name"


def test_time_is_the_clocks(access: Access) -> None:
    """A token counts until its time is over."""
    made = access.new_token("ci", "viewer", by="t", days=1)
    clock = access.clock
    assert isinstance(clock, FakeClock)
    clock.advance(DAY_MS - 1)
    asker = who(access, made.text)
    clock.advance(1)
    with pytest.raises(NotSignedIn) as caught:
        who(access, made.text)
    assert caught.value.code == "expired"
    assert not access.still(asker)
