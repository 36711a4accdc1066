"""What all tests share: the `item` marker and the profiles of hypothesis.

Warnings are errors (`filterwarnings` in pyproject.toml): a test that expects one says so with
`pytest.warns`.
"""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a slow machine is not a wrong answer, and pytest-timeout catches what hangs. A change
# is tested with the same examples wherever and whenever; the deep lane looks for new ones.
settings.register_profile("house", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("house")

# Records that all data directories of a user share are not those of whoever runs the tests.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="lw-share-")


def pytest_unconfigure() -> None:
    """Remove the records; worker processes of pytest-xdist run no functions of `atexit`."""
    shutil.rmtree(os.environ["XDG_DATA_HOME"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def known_data_directories() -> None:
    """Every sandbox hides all known data directories: those of other tests slow it down."""
    records = Path(os.environ["XDG_DATA_HOME"]) / "loopwright" / "records"
    (records / "data-directories.json").unlink(missing_ok=True)


# A shell starts background programs with this signal ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Test modules and syntax trees are long-lived objects in large numbers: with the usual threshold,
# a tenth of the time would go into looking through them again and again.
gc.set_threshold(20_000, 20, 20)

# Snapshots take time: tests that need them switch them on.
os.environ.setdefault("LOOPWRIGHT_SNAPSHOTS", "off")

# Where these programs are expected (CI), a test that is skipped for want of one has failed.
REQUIRED = (
    "bubblewrap cannot work here",
    "no browser is installed",
    "no ordinary user can run tests here",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register `item`, which ties a test to the checklist items it shows, and choose examples."""
    if config.getoption("markexpr").startswith("deep"):
        settings.load_profile("search")
    config.addinivalue_line(
        "markers", "item(*ids): the checklist items this test shows, see tests/checklists"
    )


def pytest_collection_finish() -> None:
    """Leave the collected tests out of all later garbage collections: they live until the end."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse an `item` marker that names nothing: it would count for nothing in the matrix."""
    for item in items:
        for mark in item.iter_markers("item"):
            named = mark.args and all(isinstance(one, str) and one.strip() for one in mark.args)
            if mark.kwargs or not named:
                raise pytest.UsageError(
                    f'{item.nodeid}: write @pytest.mark.item("A7", ...) with at least one id'
                )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip for want of a required program into a failure when REQUIRE_ALL_TESTS=1."""
    report = yield
    reason = str(report.longrepr)
    if (
        report.skipped
        and os.environ.get("REQUIRE_ALL_TESTS") == "1"
        and any(words in reason for words in REQUIRED)
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, but CI must run it: {reason}"
    return report
