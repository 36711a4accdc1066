"""Which checklist item is shown by which test.

The items stand in `tests/checklists/*.yaml`. A test names the items it shows with
`@pytest.mark.item("A7", ...)`. The tests are read, not run or imported, so the table can be
printed from a bare clone in a moment, also while a test module is broken by work in progress.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("engine", "dag", "agents", "roles", "server", "record", "boundary", "fidelity")
FIELDS = ("id", "say", "area", "issue")
# Checklists of dialects also compare each item with the document of the dialect.
DIALECTS = frozenset({"aldo", "archon", "coqui", "rondoflow", "zenflow"})
FIDELITY = ("as documented", "stricter", "looser")
LONGEST_SAY = 100
OPEN = "open"
# A test that is never run, or that is expected to fail, shows nothing.
PARKING_MARKS = frozenset({"skip", "xfail"})

# The parser in C reads the checklists ten times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

HEADER = """\
# What is shown, and what is open

<!-- Generated. Do not edit: run `make matrix` (`python scripts/matrix.py --write`). -->

Every item of the checklists under `tests/checklists/` against the tests that name it with
`@pytest.mark.item(...)`. An item that no test names is `open`. Tests that are skipped or
expected to fail do not count. *Part* is the part of the product that brings the item. *Fidelity*
compares an item of a dialect with the document of that dialect: `as documented`, `stricter` or
`looser`. Every item that is not as documented is explained in [support.md](support.md).
"""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a checklist."""

    id: str
    say: str
    area: str
    issue: str
    fidelity: str = ""


@dataclass(frozen=True, slots=True)
class Checklist:
    """One file of items; its name is the file's."""

    name: str
    items: tuple[Item, ...]


@dataclass(slots=True)
class Findings:
    """What reading the tests gave: tests by item, where each item is named, and problems."""

    tests: dict[str, set[str]] = field(default_factory=dict)
    named: dict[str, set[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def note(self, mark: Mark, test: str, *, parked: bool) -> None:
        """Record that `test` carries `mark`; a parked test names its items, but shows none."""
        for item in mark.items:
            self.named.setdefault(item, set()).add(test)
            if not parked:
                self.tests.setdefault(item, set()).add(test)


@dataclass(frozen=True, slots=True)
class Mark:
    """One `pytest.mark.item(...)` in the source."""

    line: int
    items: tuple[str, ...]
    literal: bool


def load_checklists(folder: Path) -> tuple[list[Checklist], list[str]]:
    """All checklists of a folder in the order of their names, and what is wrong with them."""
    lists: list[Checklist] = []
    problems: list[str] = []
    seen: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        items: list[Item] = []
        rows = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)  # noqa: S506 - it is safe
        for number, row in enumerate(rows or [], start=1):
            where = f"{path.name}: entry {number}"
            trouble = row_trouble(row, of_dialect=path.stem in DIALECTS)
            if trouble:
                problems.append(f"{where}: {trouble}")
                continue
            item = Item(**row)
            if item.id in seen:
                problems.append(f"{where}: {item.id} already stands in {seen[item.id]}")
                continue
            seen[item.id] = path.name
            items.append(item)
        lists.append(Checklist(path.stem, tuple(items)))
    return lists, problems


def row_trouble(row: object, *, of_dialect: bool = False) -> str | None:
    """What is wrong with one entry, in words that name the fix."""
    fields = (*FIELDS, "fidelity") if of_dialect else FIELDS
    if not isinstance(row, dict) or set(row) != set(fields):
        return f"needs exactly these fields: {', '.join(fields)}"
    empty = [name for name in fields if not isinstance(row[name], str) or not row[name].strip()]
    if empty:
        return f"{empty[0]} must be a text that is not empty"
    if len(row["say"]) > LONGEST_SAY:
        return f"say has {len(row['say'])} characters, shorten it to {LONGEST_SAY}"
    if row["issue"] not in PARTS:
        return f"issue is {row['issue']!r}, use one of: {', '.join(PARTS)}"
    if of_dialect and row["fidelity"] not in FIDELITY:
        return f"fidelity is {row['fidelity']!r}, use one of: {', '.join(FIDELITY)}"
    return None


def mark_name(node: ast.AST) -> str | None:
    """`x` for an expression `pytest.mark.x` or `pytest.mark.x(...)`."""
    target = node.func if isinstance(node, ast.Call) else node
    if (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Attribute)
        and target.value.attr == "mark"
    ):
        return target.attr
    return None


def item_calls(node: ast.AST) -> Iterator[ast.Call]:
    """All `pytest.mark.item(...)` inside an expression or a module."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and mark_name(inner) == "item":
            yield inner


def read_mark(call: ast.Call) -> Mark:
    """The item names of a mark; not literal when a name can be known only by running it."""
    names = tuple(
        arg.value
        for arg in call.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
    )
    literal = bool(names) and len(names) == len(call.args) and not call.keywords
    return Mark(call.lineno, names, literal)


def parks(expressions: Iterable[ast.expr]) -> bool:
    """Whether one of these marks keeps its test from showing anything."""
    return any(mark_name(one) in PARKING_MARKS for one in expressions)


def listed(value: ast.expr) -> list[ast.expr]:
    """A mark, or the marks of a list of them."""
    return list(value.elts) if isinstance(value, ast.List | ast.Tuple) else [value]


def assigned(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """Names bound to a value directly in a body: `CASES = [...]`, `pytestmark = ...`."""
    values: dict[str, ast.expr] = {}
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets: list[ast.expr]
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            values.update({t.id: statement.value for t in targets if isinstance(t, ast.Name)})
    return values


class ModuleReader:
    """Reads one test module; every item mark must end up at a test, or is a problem."""

    def __init__(self, tree: ast.Module, where: str, findings: Findings) -> None:
        self.tree = tree
        self.where = where
        self.findings = findings
        self.constants = assigned(tree.body)
        self.placed: set[ast.Call] = set()

    def read(self) -> None:
        """Note the marks of all tests, then report the marks that reached no test."""
        self.body(self.tree.body, prefix="", inherited=[])
        for call in item_calls(self.tree):
            mark = read_mark(call)
            if not mark.literal:
                self.problem(mark, "write the item names as plain texts, so that they can be read")
            elif call not in self.placed:
                self.problem(mark, f"{', '.join(mark.items)} is named, but at no test")

    def problem(self, mark: Mark, text: str) -> None:
        self.findings.problems.append(f"{self.where}:{mark.line}: {text}")

    def body(self, body: Sequence[ast.stmt], *, prefix: str, inherited: list[ast.expr]) -> None:
        """Tests of a module or class, with the marks they have from around them."""
        own = assigned(body).get("pytestmark")
        marks = inherited + (listed(own) if own is not None else [])
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                self.body(
                    node.body,
                    prefix=f"{prefix}{node.name}::",
                    inherited=marks + node.decorator_list,
                )
            elif isinstance(node, FunctionNode) and node.name.startswith("test"):
                self.test(f"{self.where}::{prefix}{node.name}", marks + node.decorator_list)

    def test(self, name: str, marks: list[ast.expr]) -> None:
        """Marks on the whole test, then marks on single rows of its tables."""
        parked = parks(marks)
        for mark in marks:
            if mark_name(mark) == "item" and isinstance(mark, ast.Call):
                self.place(mark, name, parked=parked)
            elif mark_name(mark) == "parametrize" and isinstance(mark, ast.Call):
                for value in [*mark.args, *(keyword.value for keyword in mark.keywords)]:
                    self.table(value, name, parked=parked)

    def table(self, value: ast.expr, name: str, *, parked: bool) -> None:
        """Rows of a table, written in place or as module constants, also joined by + or *."""
        reached: set[str] = set()
        pending: list[ast.AST] = [value]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Name):
                if node.id in self.constants and node.id not in reached:
                    reached.add(node.id)
                    pending.append(self.constants[node.id])
            elif isinstance(node, ast.Call) and row_marks(node) is not None:
                self.row(node, name, parked=parked)
            else:
                pending.extend(ast.iter_child_nodes(node))

    def row(self, call: ast.Call, name: str, *, parked: bool) -> None:
        """One `pytest.param(..., marks=...)`."""
        marks = row_marks(call) or []
        label = next((k.value for k in call.keywords if k.arg == "id"), None)
        if isinstance(label, ast.Constant) and isinstance(label.value, str):
            name = f"{name}[{label.value}]"
        for mark in marks:
            if mark_name(mark) == "item" and isinstance(mark, ast.Call):
                self.place(mark, name, parked=parked or parks(marks))

    def place(self, call: ast.Call, name: str, *, parked: bool) -> None:
        self.placed.add(call)
        self.findings.note(read_mark(call), name, parked=parked)


def row_marks(call: ast.Call) -> list[ast.expr] | None:
    """The marks of a `pytest.param(...)`; nothing for any other call."""
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else None
    if called != "param" and not (isinstance(function, ast.Name) and function.id == "param"):
        return None
    return next((listed(k.value) for k in call.keywords if k.arg == "marks"), [])


def read_tests(folder: Path, *, root: Path) -> Findings:
    """Read all Python files below a folder; names are relative to `root`."""
    findings = Findings()
    for path in sorted(folder.rglob("*.py")):
        where = path.relative_to(root).as_posix()
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError) as error:
            findings.problems.append(f"{where}: cannot be read as Python: {error}")
            continue
        ModuleReader(tree, where, findings).read()
    return findings


def unknown_items(lists: Sequence[Checklist], findings: Findings) -> list[str]:
    """Items that tests name and no checklist has."""
    known = {item.id for checklist in lists for item in checklist.items}
    return [
        f"{', '.join(sorted(tests))}: no checklist has the item {name!r}"
        for name, tests in sorted(findings.named.items())
        if name not in known
    ]


def figures(items: Iterable[Item], findings: Findings) -> str:
    """`shown / total`, or a dash for no items at all."""
    shown = [item.id in findings.tests for item in items]
    return f"{sum(shown)} / {len(shown)}" if shown else "–"


def summary_rows(lists: Sequence[Checklist], findings: Findings) -> list[list[str]]:
    """Per checklist and for all of them: shown of total, then the same for each part."""
    groups = [(checklist.name, checklist.items) for checklist in lists]
    if len(groups) > 1:
        groups.append(("all", tuple(item for one in lists for item in one.items)))
    return [
        [name, figures(items, findings)]
        + [figures([item for item in items if item.issue == part], findings) for part in PARTS]
        for name, items in groups
    ]


def item_rows(checklist: Checklist, findings: Findings, *, only_open: bool) -> list[list[str]]:
    """Per item: id, what it says, area, part, fidelity, and its tests one per line, or `open`."""
    return [
        [item.id, item.say, item.area, item.issue, item.fidelity, "\n".join(tests) or OPEN]
        for item in checklist.items
        for tests in [sorted(findings.tests.get(item.id, ()))]
        if not (only_open and tests)
    ]


SUMMARY_HEAD = ["checklist", "shown", *PARTS]
ITEM_HEAD = ["id", "say", "area", "part", "fidelity", "tests"]


def markdown(lists: Sequence[Checklist], findings: Findings) -> str:
    """The whole of docs/matrix.md."""
    blocks = [HEADER, markdown_table(SUMMARY_HEAD, summary_rows(lists, findings))]
    for checklist in lists:
        rows = item_rows(checklist, findings, only_open=False)
        for row in rows:
            if row[-1] != OPEN:
                row[-1] = "<br>".join(f"`{test}`" for test in row[-1].splitlines())
        blocks += [
            f"## {checklist.name}: {figures(checklist.items, findings)} shown\n",
            markdown_table(ITEM_HEAD, rows),
        ]
    return "\n".join(blocks)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def show_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A drawn table on a terminal; off it, one line of tab-separated fields per row."""
    if not sys.stdout.isatty():
        print(f"# {title}")
        for row in [head, *rows]:
            print("\t".join(cell.replace("\n", " ") for cell in row))
        return
    table = Table(title=title, title_justify="left", show_lines=False)
    for column in head:
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for row in rows:
        table.add_row(*map(escape, row), style="yellow" if row[-1] == OPEN else None)
    Console().print(table)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="matrix.py", description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="also renew docs/matrix.md")
    action.add_argument(
        "--check", action="store_true", help="exit 1 if docs/matrix.md is stale or a name unknown"
    )
    parser.add_argument("--open", action="store_true", help="list only items without a test")
    parser.add_argument("--spec", metavar="NAME", help="only this checklist")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit 1 for a problem in checklists, marks or the page, 2 for usage."""
    options = parse_arguments(arguments)
    root: Path = options.root.resolve()
    page = root / "docs" / "matrix.md"
    lists, problems = load_checklists(root / "tests" / "checklists")
    findings = read_tests(root / "tests", root=root)
    problems += findings.problems + unknown_items(lists, findings)
    chosen = [one for one in lists if options.spec in (None, one.name)]
    if not chosen:
        known = ", ".join(one.name for one in lists) or "none"
        print(f"matrix.py: no checklist {options.spec!r}; there are: {known}", file=sys.stderr)
        return 2

    text = markdown(lists, findings)
    if options.write:
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
    elif options.check and (not page.is_file() or page.read_text(encoding="utf-8") != text):
        problems.append("docs/matrix.md is not current: run `make matrix`")

    if not options.check:
        for one in chosen:
            rows = item_rows(one, findings, only_open=options.open)
            show_table(one.name, ITEM_HEAD, rows)
    show_table("summary: shown / total", SUMMARY_HEAD, summary_rows(chosen, findings))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
