"""The words of messages, pages and names: those that a reader would not search for become fewer.

Each phrase has the number of places that still use it. The numbers may only go down: a text that
adds one fails, and so does a number that is higher than what is left.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source_tree import ROOT, source_files

LEFT = json.loads((Path(__file__).parent / "language.json").read_text(encoding="utf-8"))
"""How many places use each phrase, in messages and help, and on pages."""

PHRASES = {
    "goes on": r"\bgo(?:es|ing)? on\b",
    "is told": r"\b(?:am|are|be|been|is|was|were) told\b",
    "stands": r"\bstands?\b|\bstood\b",
    "whoever": r"\bwho(?:m)?ever\b",
    "nobody": r"\bnobody\b",
    "door": r"\bdoors?\b",
    "room": r"\brooms?\b",
    "wall": r"\bwalls?\b(?!-| time| clock| limit)",
    "pass for an iteration": r"\bpass(?:es)? (?:\d|is|are|was|has|of|that|which|before|after)\b",
    "fact for an event": r"\bfacts\b",
    "comes to": r"\bcomes? to\b|\bcame to\b",
    "is no": r"(?<!there )\b(?:is|are) no\b(?! (?:longer|more|less))",
    "behind": r"\b(?:nothing|stands?|what is) behind\b",
    "purse": r"\bpurse\b|\ballowance\b",
    "news": r"\bnews\b",
    "elsewhere": r"\belsewhere\b",
}
_PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
)


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """The docstrings that no person reads at the command line: all but those of commands."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if not isinstance(node, kinds) or not node.body or _is_command(node):
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield first.value


def _is_command(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", ())
    return any("command" in ast.unparse(one) or "group" in ast.unparse(one) for one in decorators)


def messages() -> Iterator[str]:
    """The texts of the product: constants of more than one word that are not docstrings."""
    for path in source_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        unread = {id(one) for one in _docstrings(tree)}
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and " " in text and id(node) not in unread:
                yield text


def pages() -> Iterator[str]:
    """The pages for users, without the code in them."""
    for path in _PAGES:
        text = path.read_text(encoding="utf-8")
        if path.name != "matrix.md":
            yield re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def count(texts: Iterator[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for text in texts:
        for name, pattern in PHRASES.items():
            found[name] += len(re.findall(pattern, text, re.IGNORECASE))
    return {name: found[name] for name in PHRASES}


@pytest.mark.parametrize("kind", ["messages", "pages"])
def test_phrases_become_fewer(kind: str) -> None:
    """Lower the number in language.json when a text is improved; it is never raised."""
    found = count(messages() if kind == "messages" else pages())
    more = {
        name: (found[name], LEFT[kind][name]) for name in found if found[name] > LEFT[kind][name]
    }
    assert more == {}, "use the words of CONTRIBUTING.md"
    fewer = {
        name: (found[name], LEFT[kind][name]) for name in found if found[name] < LEFT[kind][name]
    }
    assert fewer == {}, "lower these numbers in tests/house/language.json"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("The run goes on.", "goes on"),
        ("The person is told.", "is told"),
        ("Whoever starts it.", "whoever"),
        ("pass 3 has ended", "pass for an iteration"),
        ("the facts of a run", "fact for an event"),
        ("it is no server", "is no"),
    ],
)
def test_a_phrase_is_found(text: str, name: str) -> None:
    """The rule above sees what it is about."""
    assert count(iter([text]))[name] == 1


@pytest.mark.parametrize("text", ["the tests pass", "wall-clock limit", "it is no longer there"])
def test_plain_words_are_not_found(text: str) -> None:
    """Words that mean what they say are left alone."""
    assert set(count(iter([text])).values()) == {0}
