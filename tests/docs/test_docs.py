"""The documentation against the product: what is shown is run, what is named exists."""

import ast
import importlib.util
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import yaml

from loopwright.cli.main import COMMANDS
from loopwright.cli.terminal import EXIT_CODES
from loopwright.errors import DefinitionError
from loopwright.kernel.events import AnyEvent
from loopwright.operations.dialects import NAMES as DIALECTS
from loopwright.operations.dialects import parse_definition
from loopwright.operations.settings import NAMES as SETTINGS
from loopwright.syntax.document import Diagnostic
from tests.docs.pages import DOCS, ROOT, Block, anchors, blocks, links, pages, shown
from tests.docs.sessions import Terminal, commands

PAGES = [pytest.param(page, id=shown(page)) for page in pages()]
SOURCE = ROOT / "src" / "loopwright"


def reference() -> ModuleType:
    path = ROOT / "scripts" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- what is shown is run --------------------------------------------------------------------------


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.key != "not run"]


SESSIONS = [
    pytest.param(page, id=shown(page))
    for page in pages()
    if any(b.language in ("console", "sh") and b.key != "file" for b in runnable(page))
]


@pytest.mark.parametrize("page", SESSIONS)
def test_sessions_go_as_shown(page: Path, tmp_path: Path) -> None:
    """Every console block of a page, typed one after the other, prints what the page shows."""
    with Terminal(tmp_path) as terminal:
        for block in runnable(page):
            if block.key == "file":
                file = tmp_path / block.value
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
            elif block.language in ("console", "sh"):
                play(terminal, block)


def play(terminal: Terminal, block: Block) -> None:
    typed = commands(block)
    for number, command in enumerate(typed):
        code, output = terminal.run(command.typed)
        missing = terminal.compare(command.shown, output)
        told = f"{block.place}: $ {command.typed}\n{output}\nexit code {code}"
        assert missing is None, f"{told}\nnot printed: {missing}"
        asked = number + 1 < len(typed) and typed[number + 1].typed == "echo $?"
        assert code == 0 or asked, told


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    """Words before a block are of a known kind, and `not run` has a reason."""
    for block in blocks(page):
        assert block.key in ("", "file", "not run", "part of"), block.place
        assert not block.key or block.value.strip(), block.place


# -- definitions -----------------------------------------------------------------------------------

SCRIPTS = ("replies:", "turns:")  # of agents and models that answer by one

YAML = [
    pytest.param(block, id=block.place)
    for page in pages()
    for block in blocks(page, "yaml", "json")
    if block.key != "not run" and block.text.partition("\n")[0] not in SCRIPTS
]


@pytest.mark.parametrize("block", YAML)
def test_definitions_are_valid(block: Block, tmp_path: Path) -> None:
    """A definition on a page is accepted, with the files beside it, unless it is called
    wrong.yaml.
    """
    text = block.text
    if block.key == "part of":
        text = whole(block)
    for file in (one for one in blocks(block.page) if one.key == "file"):
        target = tmp_path / file.value
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.text, encoding="utf-8")
    try:
        parse_definition(text.encode(), file=block.place, files=tmp_path)
    except DefinitionError as error:
        found = [p.render() for p in error.problems if isinstance(p, Diagnostic)]
        assert block.value == "wrong.yaml", found
    else:
        assert block.value != "wrong.yaml", block.place


EXAMPLES = [
    *(ROOT / "examples").rglob("*.yaml"),
    *(ROOT / "examples" / "definitions").glob("*.json"),
]


@pytest.mark.parametrize("path", EXAMPLES, ids=shown)
def test_examples_are_valid_and_listed(path: Path) -> None:
    """Every example is accepted without a warning and has its line in the list of examples."""
    assert parse_definition(path.read_bytes(), file=shown(path)).warnings == ()
    listed = links(ROOT / "examples" / "README.md")
    assert path.relative_to(ROOT / "examples").as_posix() in listed


def whole(block: Block) -> str:
    """A part of a definition with the least around it that makes it whole."""
    value = yaml.safe_load(block.text)
    for key in reversed([key for key in block.value.split(".") if key]):
        value = [{"id": "one", **value}] if key == "steps" else {key: value}
    if "repeat" in value:
        value["repeat"] = {"max": 3, **value["repeat"]}
    return json.dumps({"name": "part", "goal": "a part", **value})


# -- what exists is documented ---------------------------------------------------------------------


def test_generated_pages_are_current() -> None:
    """What the code says of itself is what stands in docs/reference (`make docs` renews it)."""
    assert [shown(page) for page in reference().stale()] == []


def test_reserved_events_are_written_by_nothing() -> None:
    """A kind of event that the reference calls reserved is made nowhere in the source."""
    module = reference()
    names = {
        kind.__name__
        for kind in get_args(AnyEvent)
        if kind.__struct_config__.tag in module.RESERVED
    }
    made = {
        node.func.id
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert names & made == set()


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_is_shown_by_people(command: str) -> None:
    """Each command occurs on a page that was not generated."""
    texts = [page.read_text(encoding="utf-8") for page in pages() if page.name != "cli.md"]
    assert any(re.search(rf"\b(loopwright|lw) {command}\b", text) for text in texts)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_setting_is_explained(name: str) -> None:
    """Each setting has a line of its own on the settings page."""
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    assert re.search(rf"^\* `{name}`: \S", page, re.MULTILINE)


@pytest.mark.parametrize("code", sorted({0, 1, 2, 6, 8, *EXIT_CODES.values()}))
def test_every_exit_code_is_explained(code: int) -> None:
    """Each exit code is a row of the table."""
    page = (DOCS / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {code} \|", page, re.MULTILINE)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_a_page(name: str) -> None:
    """Each dialect is explained somewhere."""
    assert [p for p in pages() if p.stem == name]


# -- diagnostics -----------------------------------------------------------------------------------

_SLUG = re.compile(r"[a-z]+(?:-[a-z]+)*")
_SPEAKERS = {
    *("error", "warning", "fault", "_fault", "refusal", "problem", "note", "_note", "_refused"),
    *(
        "_on_key",
        "Fault",
        "CommandFault",
        "SpecFault",
        "BadScalar",
        "_Found",
        "Finding",
        "_Finding",
    ),
    *("Diagnostic", "CannotStart", "FileProblem", "Refusal", "unfit"),
    *(
        "AldoFileProblem",
        "ArchonFileProblem",
        "CallFailure",
    ),
    *(
        "DoctorFinding",
        "KeyConflict",
        "PatternFault",
    ),
    *(
        "ReadingStopped",
        "RequestRefusal",
        "RondoflowFileProblem",
    ),
    *(
        "SchemaFinding",
        "ScriptedFault",
        "ShellFault",
    ),
    *(
        "ToolRefusal",
        "UnreachableAddress",
        "ZenflowFileProblem",
    ),
    *("find_failure",),
}
# Codes that are told by way of a name or a table.
_BY_NAME = {"unordered-reference", "full", "read-only", "io", "private-address"}
_BY_NAME |= {"too-many-connections"}
_BY_NAME |= {f"unknown-{what}" for what in ("command", "script", "workflow", "cost")}
_KEYWORDS = {"code", "twice", "unknown"}
_ONE_WORD = {"cycle", "encoding", "draining", "stale"}


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Codes of diagnostics and errors: `code=…` and the like, or a slug that somebody tells."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                yield from slugs([value])
            case ast.Constant(value=str(text)) if text in _BY_NAME:
                yield text
            case ast.Call():
                yield from slugs([word.value for word in node.keywords if word.arg in _KEYWORDS])
                if ast.unparse(node.func).rpartition(".")[2] in _SPEAKERS:
                    yield from (s for s in slugs(node.args) if "-" in s or s in _ONE_WORD)


def slugs(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.IfExp(body=body, orelse=orelse):
                yield from slugs([body, orelse])
            case ast.Constant(value=str(text)) if _SLUG.fullmatch(text.replace("_", "-")):
                yield text.replace("_", "-")


def all_codes() -> set[str]:
    places = ("syntax", "dialects", "operations", "views", "workers", "stores", "cli", "engine")
    places = (*places, "client", "http", "workspaces", "errors.py", "agents/files.py")
    files = [f for r in places for f in ([SOURCE / r] if "." in r else (SOURCE / r).rglob("*.py"))]
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    return {code for tree in trees for code in codes_in(tree)}


def documented_codes() -> set[str]:
    page = (DOCS / "reference" / "diagnostics.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)
    return {code for cell in cells for code in re.findall(r"`([a-z-]+)`", cell)}


def test_every_code_is_explained() -> None:
    """Each code that the source can tell has its row, and no row is about nothing."""
    assert all_codes() - documented_codes() == set()
    assert documented_codes() - all_codes() == set()


# -- links and places ------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of this project names one that exists, and a heading that it has."""
    broken = []
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached() -> None:
    """From the README, by links alone."""
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        todo += [
            (page.parent / t.partition("#")[0]).resolve() for t in links(page) if "://" not in t
        ]
    assert set(pages()) - seen == set()


MACHINE = re.compile(r"/(?:home|Users|root|work)/\w|loopwright-\w+\.\w{6}")


@pytest.mark.parametrize("path", [*pages(), DOCS / "images" / "demo.svg"], ids=shown)
def test_no_place_of_a_machine_is_shown(path: Path) -> None:
    """Pages and the picture have no path of the machine they were made on."""
    assert MACHINE.findall(path.read_text(encoding="utf-8")) == []


def test_the_readme_names_its_two_commands() -> None:
    """One command runs the main job, one passes the tests; both are targets."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert "make demo" in text
    assert "make test" in text
