"""The exceptions of the product: their codes, their words, and who is a kind of whom."""

import pytest

from loopwright import errors
from loopwright.errors import Conflict, DefinitionError, LoopwrightError, NotAllowed

KINDS = {
    "error": LoopwrightError,
    "bad-definition": DefinitionError,
    "bad-value": errors.InputError,
    "not-found": errors.NotFound,
    "conflict": Conflict,
    "version-conflict": errors.VersionConflict,
    "not-allowed": NotAllowed,
    "not-signed-in": errors.NotSignedIn,
    "unreachable": errors.Unreachable,
    "server-failed": errors.ServerFailed,
    "cannot-serve": errors.CannotServe,
    "draining": errors.ServerDraining,
    "storage": errors.StorageError,
}


def test_every_kind_has_a_code_of_its_own() -> None:
    """Scripts rely on the codes, so none changes and none is left out."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    own = [one for one in kinds if issubclass(one, Exception)]
    assert {one.code: one for one in own} == KINDS
    assert len(own) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_is_one_of_ours(kind: type[LoopwrightError]) -> None:
    """Whoever catches the root catches all; a code is the kind's own unless another is given."""
    made = kind("it broke")
    assert isinstance(made, LoopwrightError)
    assert (made.message, made.code, made.hint, str(made)) == (
        "it broke",
        kind.code,
        None,
        "it broke",
    )


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        pytest.param({}, "conflict", "it broke", id="nothing more"),
        pytest.param({"code": "mine"}, "mine", "it broke", id="code"),
        pytest.param({"hint": "try again"}, "conflict", "it broke (try again)", id="hint"),
        pytest.param({"hint": ""}, "conflict", "it broke", id="empty hint"),
    ],
)
def test_a_code_and_a_hint_may_be_given(more: dict[str, str], code: str, words: str) -> None:
    """They are of this one error: the kind keeps its own code."""
    made = Conflict("it broke", **more)
    assert (made.code, str(made)) == (code, words)
    assert Conflict.code == "conflict"


@pytest.mark.parametrize(
    ("kind", "around"),
    [
        pytest.param(errors.VersionConflict, Conflict, id="version"),
        pytest.param(errors.NotSignedIn, NotAllowed, id="sign-in"),
    ],
)
def test_kinds_of_kinds(kind: type[LoopwrightError], around: type[LoopwrightError]) -> None:
    """What is a special case is caught by the name of the general one."""
    with pytest.raises(around):
        raise kind("no")


def test_a_refused_definition_holds_what_was_found() -> None:
    """All of it, in order, and nobody changes it afterwards."""
    found = ["line 1", "line 2"]
    refused = DefinitionError("2 problems", problems=found)
    found.clear()
    assert refused.problems == ("line 1", "line 2")
    assert DefinitionError("none").problems == ()
