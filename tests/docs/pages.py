"""The pages of the documentation, taken apart: code blocks, what is said about them, links.

What a comment on the line before a block says about it:

    <!-- file: NAME -->      the block is written to this file before later blocks are run
    <!-- not run: WHY -->    the block is not run
    <!-- part of: KEY -->    the YAML is a part of a definition, below this key (`.` is the top)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"(?:^<!-- (?P<key>[a-z ]+): (?P<value>.*?) -->\n)?"
    r"^(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
_LINK = re.compile(r"(?<!\\)\]\((?P<target>[^)\s]+)\)|(?:src|href)=\"(?P<attribute>[^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} (?P<words>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    key: str = ""
    value: str = ""

    @property
    def place(self) -> str:
        return f"{shown(self.page)}:{self.line}"


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages() -> list[Path]:
    """Every page that people read; decisions and the matrix have tests of their own."""
    found = [p for p in DOCS.rglob("*.md") if "adr" not in p.parts and p.name != "matrix.md"]
    return [ROOT / "README.md", *sorted(found)]


def blocks(page: Path, *languages: str) -> list[Block]:
    return [b for b in _blocks(page) if not languages or b.language in languages]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("fence")) + 1
        yield Block(
            page=page,
            line=line,
            language=found["language"],
            text=found["text"],
            key=found["key"] or "",
            value=found["value"] or "",
        )


def links(page: Path) -> list[str]:
    """Targets of links and pictures, outside of code."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "", text)
    return [found["target"] or found["attribute"] for found in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """The names by which headings of a page can be linked to."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {_anchor(found["words"]) for found in _HEADING.finditer(text)}


def _anchor(words: str) -> str:
    plain = re.sub(r"[^\w\s-]", "", words.replace("`", "").lower())
    return re.sub(r"\s", "-", plain.strip())
