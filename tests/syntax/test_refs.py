"""Names of branches: what may be one, and why not."""

import pytest

from loopwright.syntax.notations import ref_problem


@pytest.mark.parametrize("name", ["main", "feature/a-1", "v1.2", "Jörg/fix", "a" * 200])
def test_names(name: str) -> None:
    """Ordinary names, also in other letters, are fine."""
    assert ref_problem(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("main;curl", "U+003B"),
        ("-delete", "option"),
        ("--upload-pack=touch x", "option"),
        ("a\u200bb", "U+200B"),
        ("a\nb", "U+000A"),
        ("a b", "U+0020"),
        ("..", "//"),
        ("a..b", "//"),
        ("a//b", "//"),
        ("a@{1}", "U+007B"),
        ("@", "//"),
        ("/a", "empty"),
        ("a/.b", "dot"),
        ("a.lock", "lock"),
        ("a" * 300, "characters"),
        ("$(id)", "U+0024"),
    ],
)
@pytest.mark.item("C6")
def test_what_is_no_name(name: str, why: str) -> None:
    """Each refusal says what is wrong."""
    problem = ref_problem(name)
    assert problem is not None
    assert why in problem
