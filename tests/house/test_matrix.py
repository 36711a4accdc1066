"""The checklists are whole, the marks in the tests are readable, and the page is current."""

import re
from collections import Counter
from pathlib import Path

import pytest

from scripts import matrix
from tests.house.source_tree import ROOT, TESTS


def numbered(prefix: str, last: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(1, last + 1)]


SECTIONS = {
    "A": 30,
    "B": 17,
    "C": 12,
    "D": 14,
    "E": 20,
    "F": 15,
    "G": 14,
    "H": 10,
    "I-": 12,  # with a hyphen: I1 and its kin are names of invariants elsewhere
    "J": 12,
    "K": 10,
}
EXPECTED = {
    "catalogue": [one for section, last in SECTIONS.items() for one in numbered(section, last)],
    "invariants": numbered("inv-", 28),
    "record": numbered("rec-", 47),
    "weaknesses": numbered("W", 30),
}
DIALECT_ITEMS = {"aldo": 70, "archon": 83, "coqui": 70, "rondoflow": 62, "zenflow": 72}

ONE_ITEM = "- {id: A1, say: Something to show, area: files, issue: engine}\n"


def read(tmp_path: Path, source: str) -> matrix.Findings:
    """What the reader finds in one test module with this text."""
    module = tmp_path / "test_probe.py"
    module.write_text(f"import pytest\n{source}", encoding="utf-8")
    return matrix.read_tests(tmp_path, root=tmp_path)


def project(tmp_path: Path, *, checklist: str = ONE_ITEM, source: str = "") -> Path:
    """A project with one checklist and one test module."""
    folder = tmp_path / "tests" / "checklists"
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(checklist, encoding="utf-8")
    (tmp_path / "tests" / "test_probe.py").write_text(f"import pytest\n{source}", encoding="utf-8")
    return tmp_path


def test_checklists_are_whole() -> None:
    """Every checklist has exactly its items, in order; dialects and the boundary still grow."""
    lists, problems = matrix.load_checklists(TESTS / "checklists")
    assert problems == []
    found = {one.name: [item.id for item in one.items] for one in lists}
    boundary = found.pop("boundary")  # each part of that issue has a prefix of its own
    assert boundary
    assert all(one.startswith("bnd-") for one in boundary)
    for name, at_least in DIALECT_ITEMS.items():
        items = found.pop(name)
        assert len(items) >= at_least
        assert items == numbered(f"{name}-", len(items))
    assert found == EXPECTED


def test_differences_from_documents_are_explained() -> None:
    """docs/support.md names exactly the items that are stricter or looser than their document."""
    lists, _ = matrix.load_checklists(TESTS / "checklists")
    items = [item for one in lists if one.name in matrix.DIALECTS for item in one.items]
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"\b(?:aldo|archon|coqui|rondoflow|zenflow)-\d+\b", page))
    assert explained == {item.id for item in items if item.fidelity != "as documented"}


def test_ids_are_unique() -> None:
    """No id stands in two places, in whichever lists."""
    lists, _ = matrix.load_checklists(TESTS / "checklists")
    counts = Counter(item.id for one in lists for item in one.items)
    assert [name for name, times in counts.items() if times > 1] == []


def test_no_two_items_say_the_same() -> None:
    """Within a checklist every line says something of its own."""
    lists, _ = matrix.load_checklists(TESTS / "checklists")
    for one in lists:
        counts = Counter(item.say for item in one.items)
        assert [say for say, times in counts.items() if times > 1] == [], one.name


@pytest.fixture(scope="module")
def findings() -> matrix.Findings:
    """What all tests of the project say about items."""
    return matrix.read_tests(TESTS, root=ROOT)


def test_tests_name_known_items(findings: matrix.Findings) -> None:
    """Every item mark is literal, sits at a test, and names an item that exists."""
    lists, _ = matrix.load_checklists(TESTS / "checklists")
    assert findings.problems + matrix.unknown_items(lists, findings) == []


def test_page_is_current(findings: matrix.Findings) -> None:
    """docs/matrix.md is what the generator writes today."""
    lists, _ = matrix.load_checklists(TESTS / "checklists")
    text = matrix.markdown(lists, findings)
    page = ROOT / "docs" / "matrix.md"
    current = page.is_file() and page.read_text(encoding="utf-8") == text
    assert current, "docs/matrix.md is not current: run `make matrix` and commit the page"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            '@pytest.mark.item("A1", "A2")\ndef test_x(): ...',
            {"A1": {"test_x"}, "A2": {"test_x"}},
            id="decorator",
        ),
        pytest.param(
            '@pytest.mark.item("A1")\nasync def test_x(): ...', {"A1": {"test_x"}}, id="coroutine"
        ),
        pytest.param(
            'pytestmark = pytest.mark.item("A1")\ndef test_x(): ...\ndef test_y(): ...',
            {"A1": {"test_x", "test_y"}},
            id="module",
        ),
        pytest.param(
            'pytestmark = [pytest.mark.deep, pytest.mark.item("A1")]\ndef test_x(): ...',
            {"A1": {"test_x"}},
            id="module-list",
        ),
        pytest.param(
            '@pytest.mark.item("A1")\nclass TestIt:\n    def test_x(self): ...',
            {"A1": {"TestIt::test_x"}},
            id="class",
        ),
        pytest.param(
            '@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.item("A1"))])\n'
            "def test_x(n): ...",
            {"A1": {"test_x"}},
            id="row",
        ),
        pytest.param(
            '@pytest.mark.parametrize("n", [\n'
            '    pytest.param(1, id="one", marks=[pytest.mark.item("A1")]), 2])\n'
            "def test_x(n): ...",
            {"A1": {"test_x[one]"}},
            id="row-with-id",
        ),
        pytest.param(
            'MORE = [pytest.param(1, marks=pytest.mark.item("A1"))]\n'
            "CASES: list[object] = [*MORE, 2]\n"
            '@pytest.mark.parametrize("n", CASES)\ndef test_x(n): ...',
            {"A1": {"test_x"}},
            id="table-as-constant",
        ),
        pytest.param(
            '@pytest.mark.skip\n@pytest.mark.item("A1")\ndef test_x(): ...', {}, id="skipped"
        ),
        pytest.param(
            '@pytest.mark.xfail(reason="no")\n@pytest.mark.item("A1")\ndef test_x(): ...',
            {},
            id="expected-to-fail",
        ),
        pytest.param(
            '@pytest.mark.parametrize("n", [pytest.param(\n'
            '    1, marks=[pytest.mark.item("A1"), pytest.mark.skip])])\ndef test_x(n): ...',
            {},
            id="row-skipped",
        ),
        pytest.param("def test_x(): ...", {}, id="no-mark"),
    ],
)
def test_marks_are_found(tmp_path: Path, source: str, expected: dict[str, set[str]]) -> None:
    """Marks count wherever pytest honours them, for tests that are really run."""
    findings = read(tmp_path, source)
    assert findings.problems == []
    named = {item: {f"test_probe.py::{one}" for one in tests} for item, tests in expected.items()}
    assert findings.tests == named


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        pytest.param(
            'NAME = "A1"\n@pytest.mark.item(NAME)\ndef test_x(): ...',
            "test_probe.py:3: write the item names as plain texts",
            id="computed",
        ),
        pytest.param(
            "@pytest.mark.item()\ndef test_x(): ...",
            "test_probe.py:2: write the item names as plain texts",
            id="nameless",
        ),
        pytest.param(
            '@pytest.mark.item("A1")\ndef helper(): ...',
            "test_probe.py:2: A1 is named, but at no test",
            id="at-a-helper",
        ),
        pytest.param(
            'UNUSED = [pytest.param(1, marks=pytest.mark.item("A1"))]',
            "test_probe.py:2: A1 is named, but at no test",
            id="unused-table",
        ),
        pytest.param("def test_x(:", "test_probe.py: cannot be read as Python", id="syntax"),
    ],
)
def test_unreadable_marks_are_problems(tmp_path: Path, source: str, problem: str) -> None:
    """A mark that cannot count is told with its place, never passed over."""
    (found,) = read(tmp_path, source).problems
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("checklist", "problem"),
    [
        pytest.param(ONE_ITEM * 2, "entry 2: A1 already stands in small.yaml", id="twice"),
        pytest.param("- {id: A1}\n", "entry 1: needs exactly these fields", id="field-missing"),
        pytest.param(
            ONE_ITEM.replace("engine", "motor"), "issue is 'motor', use one of", id="unknown-part"
        ),
        pytest.param(
            ONE_ITEM.replace("Something", "S" * 100), "shorten it to 100", id="say-too-long"
        ),
        pytest.param(ONE_ITEM.replace("A1", "1"), "id must be a text", id="id-not-a-text"),
    ],
)
def test_bad_checklists_are_problems(tmp_path: Path, checklist: str, problem: str) -> None:
    """A checklist entry that breaks the form is named with its fix."""
    root = project(tmp_path, checklist=checklist)
    _, (found,) = matrix.load_checklists(root / "tests" / "checklists")
    assert problem in found


def test_check_fails_on_unknown_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A test that names an item no checklist has fails the check, even when it is skipped."""
    source = '@pytest.mark.skip\n@pytest.mark.item("Z9")\ndef test_x(): ...'
    root = ["--root", str(project(tmp_path, source=source))]
    assert matrix.main([*root, "--write"]) == 1
    assert matrix.main([*root, "--check"]) == 1
    assert "tests/test_probe.py::test_x: no checklist has the item 'Z9'" in capsys.readouterr().err


def test_check_follows_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check fails without a page, passes after writing, and fails again after a new test."""
    root = project(tmp_path)
    arguments = ["--root", str(root)]
    assert matrix.main([*arguments, "--check"]) == 1
    assert matrix.main([*arguments, "--write"]) == 0
    assert matrix.main([*arguments, "--check"]) == 0
    added = 'import pytest\n@pytest.mark.item("A1")\ndef test_x(): ...\n'
    (root / "tests" / "test_probe.py").write_text(added, encoding="utf-8")
    capsys.readouterr()
    assert matrix.main([*arguments, "--check"]) == 1
    assert "run `make matrix`" in capsys.readouterr().err


def test_page_shows_tests_and_open_items(tmp_path: Path) -> None:
    """The page has the tests of a shown item, `open` for others, and how to renew it."""
    source = (
        '@pytest.mark.item("A1")\ndef test_x(): ...\n@pytest.mark.item("A1")\ndef test_y(): ...'
    )
    checklist = ONE_ITEM + ONE_ITEM.replace("A1", "A2").replace("Something", "A|B")
    root = project(tmp_path, checklist=checklist, source=source)
    assert matrix.main(["--root", str(root), "--write"]) == 0
    page = (root / "docs" / "matrix.md").read_text(encoding="utf-8")
    tests = "`tests/test_probe.py::test_x`<br>`tests/test_probe.py::test_y`"
    assert f"| A1 | Something to show | files | engine |  | {tests} |\n" in page
    assert "| A2 | A\\|B to show | files | engine |  | open |\n" in page
    assert "| small | 1 / 2 | 1 / 2 | – | – | – | – | – | – | – |\n" in page
    assert "make matrix" in page


def test_open_lists_only_open_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--open` leaves out what is shown."""
    source = '@pytest.mark.item("A1")\ndef test_x(): ...'
    checklist = ONE_ITEM + ONE_ITEM.replace("A1", "A2")
    root = project(tmp_path, checklist=checklist, source=source)
    assert matrix.main(["--root", str(root), "--open"]) == 0
    first_fields = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert "A2" in first_fields
    assert "A1" not in first_fields


def test_spec_filters_and_refuses_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--spec` prints one list; a name that is none gets the names there are, and exit 2."""
    root = project(tmp_path)
    (root / "tests" / "checklists" / "other.yaml").write_text(ONE_ITEM.replace("A1", "B1"))
    assert matrix.main(["--root", str(root), "--spec", "other"]) == 0
    out = capsys.readouterr().out
    assert "B1\t" in out
    assert "A1\t" not in out
    assert matrix.main(["--root", str(root), "--spec", "smal"]) == 2
    assert "there are: other, small" in capsys.readouterr().err
