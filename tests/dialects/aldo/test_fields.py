"""Single values: names, files, paths."""

import pytest

from loopwright.dialects.aldo.files import parse_path
from loopwright.syntax.notations import path_inside
from tests.dialects.aldo.cases import lowered, spec


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("prompts/a.md", "prompts/a.md"),
        ("./a//b.md", "a/b.md"),
        ("a/../b.md", "b.md"),
        ("../a.md", None),
        ("a/../../b.md", None),
        ("/etc/passwd", None),
        ("~/a.md", None),
        ("C:a.md", None),
        ("a\\b.md", None),
        ("http://host/a.md", None),
        ("a\u200b.md", None),
        ("a\nb.md", None),
        ("", None),
        (".", None),
    ],
)
def test_files_stay_in_the_folder(written: str, path: str | None) -> None:
    """A file is named from the folder of the agent on, and stands in it or below."""
    assert path_inside("", written) == path


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("true", True),
        (" false ", False),
        ("$", ()),
        ("$.a.b", ("a", "b")),
        ("$['a b'][\"c\"][0].d-e", ("a b", "c", 0, "d-e")),
        ("$['']", ("",)),
        ("", None),
        ("done", None),
        ("$.", None),
        ("$..a", None),
        ("$[x]", None),
        ("$.a b", None),
        ("$[-1]", None),
        ("$ == 1", None),
    ],
)
def test_paths(text: str, target: object) -> None:
    """Constants and plain paths; there is nothing else in this language."""
    assert parse_path(text) == target


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("My Worker", ": my-worker"),
        ("A--B", ": a-b"),
        ("'***'", "characters"),
        ("a" * 64, "characters"),
    ],
)
def test_names_are_kebab_case(name: str, hint: str) -> None:
    """A name that is not is refused, with a better one where there is one."""
    plan, [one] = lowered(spec(name=name))
    assert plan is None
    assert one.code == "bad-id"
    assert (one.hint or "").endswith(hint)


@pytest.mark.parametrize("name", ["a--b", "'9-lives'", "'2'"])
def test_names_may_have_digits_and_hyphens_anywhere(name: str) -> None:
    """What the original takes for a name is one here, also where ids of steps are narrower."""
    plan, problems = lowered(spec(name=name))
    assert (plan is not None, problems) == (True, [])


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("0.1.0", True),
        ("1.2.3-rc.1+build.5", True),
        ("'1.2'", False),
        ("v1.0.0", False),
        ("01.0.0", True),
        ("1.2", False),
    ],
)
def test_versions_are_semantic(version: str, good: bool) -> None:
    """Three numbers, and what may stand behind them."""
    plan, _ = lowered(spec().replace("1.0.0", version))
    assert (plan is not None) is good


@pytest.mark.item("aldo-81")
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "write a composite instead"),
        ("composite: {strategy: sequential, subagents: [{agent: a}]}\n", "asks its own subagents"),
    ],
    ids=["one agent", "composite"],
)
def test_the_warning_about_spawn_fits_the_agent(more: str, words: str) -> None:
    """A composite is not advised to be written as a composite."""
    _, problems = lowered(spec(f"spawn: {{allowed: [a]}}\n{more}"))
    [told] = [one.message for one in problems if one.message.startswith("spawn")]
    assert words in told
