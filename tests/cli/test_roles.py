"""`loopwright roles`: what there is, and what is wrong with it."""

from tests.cli.conftest import Place

GOOD = "---\naccess_level: minimal\n---\nYou think.\n"


def test_roles_are_listed(lw: Place) -> None:
    """The built-in ones, those of the data directory and of the project, with their levels."""
    (lw.folder / ".loopwright" / "roles").mkdir(parents=True)
    lw.write(".loopwright/roles/thinker.md", GOOD)
    told = lw("roles")
    assert told.code == 0
    assert [line.split()[0] for line in told.out.splitlines()[1:]] == [
        *("coder", "evaluator", "explorer", "identity-curator", "muse", "philosopher"),
        *("plan", "reviewer", "thinker"),
    ]
    found = {one["name"]: one for one in lw("roles", "--json").json["roles"]}
    assert (found["thinker"]["place"], found["thinker"]["access"]) == ("project", "minimal")
    assert lw("roles", "thinker").out == "You think.\n"
    assert lw("roles", "thinker", "--json").json["instructions"] == "You think."


def test_a_broken_role_is_listed_with_its_error(lw: Place) -> None:
    """Nothing is dropped silently; whoever asks in a script sees the exit code."""
    (lw.folder / ".loopwright" / "roles").mkdir(parents=True)
    lw.write(".loopwright/roles/thinker.md", GOOD.replace("minimal", "most"))
    told = lw("roles")
    assert told.code == 1
    assert "thinker" in told.out
    assert "access_level" in told.err
    assert lw("roles", "thinkr").code != 0
