"""Names of variables."""

import pytest

from loopwright.model.sandbox import is_reserved, is_variable_name


@pytest.mark.item("C12")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PATH", True),
        ("Path", True),
        ("LD_PRELOAD", True),
        ("ld_preload", True),
        ("GIT_SSH", True),
        ("LOOPWRIGHT_RUN", True),
        ("BASH_FUNC_x%%", True),
        ("NODE_OPTIONS", True),
        ("MY_PATH", False),
        ("GITHUB_TOKEN", False),
        ("LOOPWRIGHT", False),
    ],
)
def test_reserved_names(name: str, expected: bool) -> None:
    """What decides which code runs is nobody's to set, in whatever case it is written."""
    assert is_reserved(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("A", True), ("_a1", True), ("", False), ("1A", False), ("A-B", False), ("A\n", False)],
)
def test_names_of_variables(name: str, expected: bool) -> None:
    """Letters, digits and underscores, no digit first, and nothing behind them."""
    assert is_variable_name(name) is expected
