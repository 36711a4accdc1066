"""Limits on folders and names. The lists of exceptions may only become shorter."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict

from tests.house.source_tree import SRC, dotted, nodes, shown, source_files, tree

MOST_MODULES = 40
VERB_FORMS = {"testing", "wiring"}
# Keys of JSON Schemas and names that are read as attributes of a dialect.
USED_TWICE = {
    *("AgentSpec", "ApprovalSpec", "BudgetSpec", "InputSpec", "LoopSpec", "RetrySpec", "StepSpec"),
    *("Client", "Rendering"),
}
# Verbs of the command line are chosen by name at run time.
LOADED_BY_NAME = {"cli/main.py"}


def test_folder_with_many_modules_is_split() -> None:
    """A folder has at most 40 modules beside its `__init__`."""
    counts = Counter(file.parent for file in source_files() if file.name != "__init__.py")
    assert {shown(folder): n for folder, n in counts.items() if n > MOST_MODULES} == {}


def test_module_is_named_with_a_noun() -> None:
    """No module is a bare gerund or participle."""
    names = {file.stem for file in source_files()} | {file.parent.name for file in source_files()}
    assert {name for name in names if name.endswith(("ing", "ed"))} == VERB_FORMS


def test_public_class_name_is_used_once() -> None:
    """A class is found by its name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in source_files():
        for node in tree(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(shown(file))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert set(twice) == USED_TWICE, twice


def loads_a_module_by_name(node: ast.AST) -> bool:
    """Whether a node is a call that imports a module of the package by a string."""
    if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] != "import_module":
        return False
    return any(
        isinstance(part, ast.Constant) and str(part.value).startswith("loopwright")
        for part in ast.walk(node)
    )


def test_module_loaded_by_name_is_an_exception() -> None:
    """The import order holds for imports that a reader can follow."""
    found = {
        file.relative_to(SRC).as_posix()
        for file in source_files()
        if any(loads_a_module_by_name(node) for node in nodes(file))
    }
    assert found == LOADED_BY_NAME
