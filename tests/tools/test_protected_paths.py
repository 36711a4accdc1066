"""Protected paths: which paths they are, in every spelling."""

import pytest

from loopwright.tools.workspace_tree import Protection


@pytest.mark.item("D5", "D13", "I-9")
@pytest.mark.parametrize(
    "path",
    [
        ".git", ".git/hooks/pre-commit", "sub/.git/config", ".GIT/config", ".git /config",
        ".git./config", ".ｇｉｔ/config", ".g\u200cit/config", "node_modules/x/index.js",
        "package.json", "deep/package.json", "Package.JSON", "package-lock.json", "yarn.lock",
        "poetry.lock", "Cargo.lock", "go.sum", "pnpm-lock.yaml", ".env", ".env.local", "a/.ENV",
        "Dockerfile", "dockerfile", "docker-compose.yml", "docker-compose.prod.yaml", ".mcp.json",
        ".loopwright/loop.yaml",
    ],
)  # fmt: skip
def test_the_list_covers(path: str) -> None:
    """What decides what runs later is on the list, whether or not it exists."""
    assert Protection().covers(tuple(path.split("/")))


@pytest.mark.parametrize(
    "path", ["src/main.py", "git/x", "environment.py", "package.json.md", "docs/Dockerfile.md", "."]
)
def test_the_list_leaves_alone(path: str) -> None:
    """Other files are not protected by the likeness of their names."""
    assert not Protection().covers(tuple(path.split("/")))


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("docs/api/**", "docs/api/x/y.md", True),
        ("docs/api/**", "other/docs/api/x", False),
        ("src/*.lock.py", "src/a.lock.py", True),
        ("*.sql", "deep/down/a.sql", True),
        ("vault/**", "deep/vault/a", True),
        ("vault/**", "deep/vaults/a", False),
    ],
)
def test_patterns_of_an_author(pattern: str, path: str, covered: bool) -> None:
    """A name counts at any depth, a pattern with a slash from the top."""
    assert Protection([pattern]).covers(tuple(path.split("/"))) is covered


def test_an_empty_list_protects_nothing() -> None:
    """Whoever wants no protection says so."""
    assert not Protection(()).covers((".git", "config"))
