"""Phrases that readers would not search for, counted in messages, pages, docstrings and comments.

`language.json` has the number of places that still use each phrase. The numbers may only fall: a
text that adds a phrase fails, and so does a number that is higher than the number of places.
"""

import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source_tree import ROOT, nodes, source_files

LEFT = json.loads((Path(__file__).parent / "language.json").read_text(encoding="utf-8"))
"""The number of places that use each phrase: in messages and help, on pages, in the source."""

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
    "a fact": r"\b(?:a|the|each|every|this|that|its|newest|next) fact\b",
    "a pass": r"\b(?:a|each|every|this|next|last|previous) pass\b",
    "told": r"(?<!`)\btold\b(?!`)",
    "heard": r"\bheard\b",
    "said": r"(?<!`)\bsaid\b",
    "hands over": r"\bhand(?:s|ed|ing)? (?:over|on)\b",
    "greets": r"\bgreet(?:s|ed)\b",
    "knock": r"\bknock(?:s|ed|ing)?\b",
    "beat": r"\bbeats?\b",
    "wish": r"\bwish(?:es|ed)?\b",
    "manner": r"\bmanners?\b",
    "attended": r"(?<!`)\battended\b",
    "somebody": r"\bsomebody\b",
    "nothing but": r"\bnothing but\b",
    "what is to be": r"\bwhat is to be\b",
    "comes of it": r"\bcomes? of (?:it|that|them)\b",
    "in the place of": r"\bin the place of\b",
    "as it comes": r"\bas (?:it|they) comes?\b",
    "takes no": r"\btakes no\b",
    "seen through": r"\bseen through\b",
    "for good": r"\bfor good\b",
    "home for the data directory": r"\b(?:this|the|a) home\b(?! folder| directory)",
    "the line breaks": r"\bthe line (?:breaks|is cut)\b",
    "is a no": r"\bis a (?:no|yes)\b",
    "until it rests": r"\buntil (?:it|they) rests?\b",
    "here and now": r"\bhere and now\b",
    "being asked about": r"\bbeing asked about\b",
    "how long it counts": r"\bhow long it counts\b",
    "by hand": r"\bby hand\b",
    "on record": r"\bon record\b",
    "anew": r"(?<!`)\banew\b",
    "is looked at": r"\b(?:is|are|be|was|were|been|being) looked at\b",
}
_PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
    *sorted((ROOT / "docs" / "adr").glob("*.md")),
)


def _docstrings(path: Path) -> Iterator[ast.Constant]:
    """The docstrings of modules, classes, functions and attributes, except those of commands."""
    commands = {
        id(node.body[0])
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_command(node)
    }
    for node in nodes(path):
        if isinstance(node, ast.Expr) and id(node) not in commands:
            text = node.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = node.decorator_list
    return any("command" in ast.unparse(one) or "group" in ast.unparse(one) for one in decorators)


def messages() -> Iterator[str]:
    """Constants of more than one word that are neither docstrings nor regular expressions."""
    for path in source_files():
        unread = {id(one) for one in _docstrings(path)}
        for node in nodes(path):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and " " in text and id(node) not in unread:
                yield "" if r"\b" in text else text


def source() -> Iterator[str]:
    """The docstrings and comments of the package."""
    for path in source_files():
        text = path.read_text(encoding="utf-8")
        for docstring in _docstrings(path):
            yield str(docstring.value)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def pages() -> Iterator[str]:
    """The pages of the documentation, without code."""
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


TEXTS = {"messages": messages, "pages": pages, "source": source}


@pytest.mark.parametrize("kind", TEXTS)
def test_phrases_become_fewer(kind: str) -> None:
    """Lower the number in language.json when a text is improved; it is never raised."""
    found = count(TEXTS[kind]())
    more = {
        name: (found[name], LEFT[kind][name]) for name in found if found[name] > LEFT[kind][name]
    }
    assert more == {}, "use the words of CONTRIBUTING.md"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("The run goes on.", "goes on"),
        ("The person is told.", "is told"),
        ("Whoever starts it.", "whoever"),
        ("pass 3 has ended", "pass for an iteration"),
        ("the facts of a run", "fact for an event"),
        ("it is no server", "is no"),
        ("Somebody has to approve it.", "somebody"),
        ("the server of this home", "home for the data directory"),
        ("what the agent said", "said"),
        ("a script takes no references", "takes no"),
        ("the file was edited by hand", "by hand"),
        ("time limits count anew", "anew"),
        ("the budget is looked at before every call", "is looked at"),
    ],
)
def test_a_phrase_is_found(text: str, name: str) -> None:
    """The rule above sees what it is about."""
    assert count(iter([text]))[name] == 1


@pytest.mark.parametrize("text", ["the tests pass", "wall-clock limit", "it is no longer there"])
def test_plain_words_are_not_found(text: str) -> None:
    """Words that mean what they say are left alone."""
    assert set(count(iter([text])).values()) == {0}
