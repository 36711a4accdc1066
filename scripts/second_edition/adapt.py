"""What follows on move_modules.py: docstrings of packages, package data, contracts, names in strings.

Run it in the root of the checkout, with the environment of `make setup` in `.venv`.
"""

import json, os, re, ast, subprocess, glob, sys


def rd(p):
    return open(p, encoding="utf-8").read()


def wr(p, s):
    os.makedirs(os.path.dirname(p) or ".", exist_ok=True)
    open(p, "w", encoding="utf-8").write(s)


FAULTS = []


def sub(p, a, b):
    """Replace a text that has to be there once."""
    s = rd(p)
    if s.count(a) != 1:
        FAULTS.append(f"{p} has {s.count(a)} times: {a[:90]!r}")
        return
    wr(p, s.replace(a, b))


def section(p, start, end, new):
    """Replace what lies between two texts."""
    s = rd(p)
    if s.count(start) != 1 or end not in s[s.index(start) + len(start) :]:
        FAULTS.append(f"{p} has no single section {start[:60]!r}")
        return
    i = s.index(start)
    j = s.index(end, i + len(start))
    wr(p, s[:i] + new + s[j:])


S = "src/loopwright/"
TABLE = json.load(
    open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "moves.json"), encoding="utf-8")
)
# package docstrings
for k, d in TABLE["packages"].items():
    p = S + k + "/__init__.py"
    if k == "agents/clis":
        continue
    import textwrap

    paras = [" ".join(x.split()) for x in d.split("\n\n")]
    d = "\n\n".join(
        textwrap.fill(x, 92, break_long_words=False, break_on_hyphens=False) for x in paras
    )
    body = d if "\n" not in d else d + "\n"
    wr(p, '"""' + body + '"""\n')
p = S + "agents/clis/__init__.py"
if os.path.exists(p):
    s = rd(p)
    s = s.replace(
        "`table` has what is known about each program, `arguments` makes the argument vector and the\nenvironment of a call, `claude codex opencode gemini` read one event each, `stream` finds the events\nin the bytes, `outcome` judges exit code, last event and error flag together.",
        "`catalogue` has what is known about each program, `command_line` makes the argument vector and the\nenvironment of a call, `claude codex opencode gemini acp` read one event each, `event_stream` finds\nthe events in the bytes, `transcript` collects what one call reported.",
    )
    wr(p, s)
for old in (
    "app",
    "app/views",
    "server",
    "server/families",
    "server/sockets",
    "programs",
    "runtime",
):
    p = S + old + "/__init__.py"
    if os.path.exists(p):
        os.remove(p)
# package data
for a, b in (
    ("app/address_tables", "operations/address_tables"),
    ("app/builtin_roles", "operations/agents/builtin_roles"),
):
    if os.path.isdir(S + a):
        subprocess.run(["git", "mv", S + a, S + b], check=True)
sub(
    S + "operations/agents/roles.py",
    'files("loopwright.app")',
    'files("loopwright.operations.agents")',
)
# combined verbs
for p in glob.glob(S + "cli/**/*.py", recursive=True):
    s = rd(p)
    t = ast.parse(s)
    nodes = [
        n
        for n in t.body
        if isinstance(n, (ast.Assign, ast.AnnAssign))
        and isinstance((n.targets[0] if isinstance(n, ast.Assign) else n.target), ast.Name)
        and (n.targets[0] if isinstance(n, ast.Assign) else n.target).id.endswith("VERBS")
        and isinstance(n.value, ast.Dict)
    ]
    if len(nodes) < 2:
        continue
    items = []
    lines = s.split("\n")
    for n in nodes:
        for k, v in zip(n.value.keys, n.value.values):
            items.append(f"    {ast.get_source_segment(s, k)}: {ast.get_source_segment(s, v)},")
    for n in reversed(nodes):
        del lines[n.lineno - 1 : n.end_lineno]
    ann = (
        ast.get_source_segment(s, nodes[-1].annotation)
        if isinstance(nodes[-1], ast.AnnAssign)
        else None
    )
    s = (
        "\n".join(lines).rstrip("\n")
        + "\n\n\nVERBS"
        + (f": {ann}" if ann else "")
        + " = {\n"
        + "\n".join(items)
        + "\n}\n"
    )
    wr(p, s)
HOME = {s: k for k, v in TABLE["modules"].items() for s in v["from"]}


def cli_home(name):
    old = "loopwright.cli." + name
    return HOME.get(old, old).removeprefix("loopwright.cli.")


p = S + "cli/main.py"
s = rd(p)
s = re.sub(
    r'Entry\((\s*)"([\w.]+)"', lambda m: f'Entry({m.group(1)}"{cli_home(m.group(2))}"', s
)
wr(p, s)
p = S + "testing/__init__.py"
s = rd(p)
s = re.sub(r"(?m)^from tests\..*\n", "", s)
s = re.sub(r"(?ms)^from tests\.[^\n]*\([^)]*\)\n", "", s)
for x in (
    "check_invariants",
    "run_problems",
    "fact_problems",
    "picture",
    "event_problems",
    "state_picture",
):
    s = s.replace(f'    "{x}",\n', "")
wr(p, s)
for q in glob.glob(S + "dialects/*/surface.py"):
    t = rd(q)
    if "record_JsonValue" in t:
        wr(q, t.replace("record_JsonValue", "SchemaValue"))
q = S + "cli/webhooks.py"
sub(q, "room.Webhooks(", "room.WebhookDeliveries(")
q = S + "cli/serve.py"
sub(q, "context.Serving(", "context.ServerOptions(")
sub(q, "context.Limits(", "context.RequestLimits(")
q = "tests/safety/test_access.py"
sub(q, 'f"loopwright.app.{module}.works"', 'f"loopwright.operations.agents.{module}.works"')
sub(q, '("granting", "toolroom")', '("tool_grants", "tools")')
# names reached over modules that are loaded by name
sub(
    S + "operations/dialects.py",
    "def Rendering(self, plan: Plan, read: Callable[[JsonValue], str]) -> Rendering: ...",
    "def Rendering(self, plan: Plan, read: Callable[[JsonValue], str]) -> DialectRendering: ...",
)
# Makefile, limits
sub(
    "Makefile",
    "PURE_ROOMS := model kernel syntax agents dialects",
    "PURE_PACKAGES := model kernel syntax prompts agents/clis dialects",
)
s = rd("Makefile").replace("PURE_ROOMS", "PURE_PACKAGES").replace("pure rooms", "pure packages")
wr("Makefile", s)
p = "tests/house/source_tree.py"
s = rd(p)
s = s.replace(
    'PURE_ROOMS = ("agents", "dialects", "kernel", "model", "syntax")',
    'PURE_PACKAGES = ("agents/clis", "dialects", "kernel", "model", "prompts", "syntax")',
)
s = (
    s.replace("PURE_ROOMS", "PURE_PACKAGES")
    .replace("pure_room_tests", "pure_package_tests")
    .replace("for room in", "for package in")
    .replace("TESTS / room", "TESTS / package")
    .replace("pure rooms", "pure packages")
    .replace(
        "Where things are, and how the house rules read them.",
        "Where files are, and how the tests of this folder read them.",
    )
)
wr(p, s)
p = "tests/house/test_pure_tests.py"
s = (
    rd(p)
    .replace("pure_room_tests", "pure_package_tests")
    .replace("pure rooms", "pure packages")
    .replace("pure room", "pure package")
    .replace("test_pure_rooms_", "test_pure_packages_")
)
wr(p, s)
wr(
    "tests/house/test_packages.py",
    '''"""The packages and the contracts that keep them apart agree with each other.

`lint-imports` enforces the contracts; these tests make sure that no package is left out of one.
"""

import ast
import importlib
from typing import Any

import pytest

from tests.house.source_tree import PURE_PACKAGES, SRC, project_settings

PACKAGES = sorted(p.parent.name for p in SRC.glob("*/__init__.py"))


def contract(name_starts: str) -> dict[str, Any]:
    contracts = project_settings()["tool"]["importlinter"]["contracts"]
    [found] = [c for c in contracts if c["name"].startswith(name_starts)]
    assert isinstance(found, dict)
    return found


def layer_of(package: str) -> list[str]:
    lines = [[n.strip(" ()") for n in line.split("|")] for line in contract("Layers")["layers"]]
    [found] = [line for line in lines if package in line]
    return found


def test_every_adapter_package_is_protected() -> None:
    """Packages beside the engine hold adapters, except views; only operations import them."""
    adapters = {package for package in layer_of("engine") if package not in ("engine", "views")}
    protected = {
        name.split(".")[1] for name in contract("Only operations")["protected_modules"]
    }
    assert adapters & set(PACKAGES) <= protected <= adapters


def test_every_pure_package_is_kept_pure() -> None:
    """The purity contract covers each pure package, and the errors they all raise."""
    pure = {
        name.removeprefix("loopwright.").replace(".", "/")
        for name in contract("Pure packages")["source_modules"]
    }
    assert pure == {*PURE_PACKAGES, "errors"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_a_docstring_for_readers(package: str) -> None:
    """It says in a few lines what the package is for; the file holds only imports."""
    source = (SRC / package / "__init__.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    doc = ast.get_docstring(tree) or ""
    assert 4 <= len(doc.splitlines()) <= 12, "say what it is, what it may import, where to start"
    code = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While, ast.With)
    assert [type(node).__name__ for node in tree.body if isinstance(node, code)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_can_be_imported_alone(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing a package prints nothing."""
    importlib.import_module(f"loopwright.{package}")
    assert capsys.readouterr() == ("", "")
''',
)
if os.path.exists("tests/house/test_rooms.py"):
    os.remove("tests/house/test_rooms.py")
# import contracts
p = "pyproject.toml"
s = rd(p)
i = s.index('[[tool.importlinter.contracts]]\nname = "Ladder"')
j = s.index('[[tool.importlinter.contracts]]\nname = "No cycles')
pure = s[s.index("forbidden_modules = [\n    # clock and dice") :]
pure = pure[: pure.index("\n]\n") + 3]


def ml(names):
    return "[\n" + "".join(f'    "loopwright.{n}",\n' for n in names) + "]"


tools = sorted(f[:-3] for f in os.listdir(S + "tools") if f.endswith(".py") and f != "__init__.py")
gateway = sorted(
    f[:-3] for f in os.listdir(S + "gateway") if f.endswith(".py") and f != "__init__.py"
)
agents_mods = sorted(
    [
        "agents." + f.removesuffix(".py")
        for f in os.listdir(S + "agents")
        if (f.endswith(".py") and f != "__init__.py") or f in ("processes", "sandbox")
    ]
)
all_ = [
    "agents",
    "cli",
    "dialects",
    "engine",
    "http",
    "kernel",
    "model",
    "operations",
    "ports",
    "prompts",
    "stores",
    "syntax",
    "testing",
    "views",
    "workers",
    "workspaces",
]
new = f"""[[tool.importlinter.contracts]]
name = "Layers"
type = "layers"
containers = ["loopwright"]
# In parentheses: has its place, need not exist.
layers = [
    "http | cli | (tui)",
    "workers",
    "operations",
    "testing",
    "engine | dialects | stores | agents | gateway | tools | workspaces | views",
    "prompts | ports | syntax",
    "kernel",
    "model",
    "errors",
]
exhaustive = true
exhaustive_ignores = ["__main__"]      # `python -m loopwright`: one call of the cli

[[tool.importlinter.contracts]]
name = "Dialects do not import one another"
type = "independence"
modules = ["loopwright.dialects.*"]

[[tool.importlinter.contracts]]
name = "Dialects do not import the engine"
type = "forbidden"
source_modules = ["loopwright.dialects"]
forbidden_modules = ["loopwright.kernel", "loopwright.ports", "loopwright.agents", "loopwright.prompts"]

[[tool.importlinter.contracts]]
name = "Only operations import adapters"
type = "protected"
protected_modules = {ml(["agents", "dialects", "gateway", "stores", "tools", "workspaces"])}
allowed_importers = ["loopwright.operations", "loopwright.testing"]
ignore_imports = ["loopwright.http.routes.agents -> loopwright.agents.clis.catalogue"]  # a table

[[tool.importlinter.contracts]]
name = "Pure packages: no clock, randomness, disk, network, tasks, logs"
type = "forbidden"
source_modules = {ml(["agents.clis", "dialects", "errors", "kernel", "model", "prompts", "syntax"])}
{pure}
[[tool.importlinter.contracts]]
name = "Only gateway.library imports the client library, and it is loaded by name"
type = "forbidden"
source_modules = {ml(sorted([x for x in all_ if x != "http"] + ["gateway." + g for g in gateway]))}
forbidden_modules = [
    "loopwright.gateway.library", "anthropic", "genai_prices", "google", "httpx2", "openai",
    "pydantic_ai",
]

[[tool.importlinter.contracts]]
name = "Only tools.mcp imports the protocol library, and it is loaded by name"
type = "forbidden"
source_modules = {ml(sorted([x for x in all_] + ["gateway"] + ["tools." + g for g in tools] + ["tools.mcp.connections"]))}
forbidden_modules = [
    "loopwright.tools.mcp.client", "loopwright.tools.mcp.server", "anyio", "mcp", "mcp_types",
]
# The model library has MCP of its own, which nobody here uses.
allow_indirect_imports = true

"""
s = s[:i] + new + s[j:]
wr(p, s)
for p in (
    glob.glob("**/*.md", recursive=True)
    + glob.glob("**/*.py", recursive=True)
    + ["Makefile", ".ci/run", "pyproject.toml"]
):
    if p.startswith((".venv", "docs/adr", "tests/corpus", ".hypothesis")) or not os.path.isfile(p):
        continue
    try:
        s = rd(p)
    except UnicodeDecodeError:
        continue
    o = s
    for a, b in (
        ("tests/server", "tests/http"),
        ("tests/app", "tests/operations"),
        ("tests/programs", "tests/agents"),
        ("tests/runtime", "tests/engine"),
    ):
        s = re.sub(a + r'(?=[/`"\s)])', b, s)
    if s != o:
        wr(p, s)


def fmt():
    subprocess.run(
        ".venv/bin/ruff check -q --fix src tests bench scripts; .venv/bin/ruff format -q .",
        shell=True,
        stdout=subprocess.DEVNULL,
    )


fmt()
# help stays quick: imports of functions that lost their reason
out = subprocess.run(
    [
        ".venv/bin/ruff",
        "check",
        "src",
        "scripts",
        "--select",
        "PLC0415",
        "--output-format",
        "concise",
    ],
    capture_output=True,
    text=True,
).stdout
todo = {}
for l in out.splitlines():
    m = re.match(r"(\S+?):(\d+):\d+: PLC0415", l)
    if m:
        todo.setdefault(m.group(1), []).append(int(m.group(2)))
for p, ls in todo.items():
    lines = rd(p).split("\n")
    for n in sorted(ls, reverse=True):
        l = lines[n - 1]
        why = "  # noqa: PLC0415 - help stays quick"
        if l.rstrip().endswith("("):
            lines[n - 1] = l + why
        elif len(l) + len(why) <= 100:
            lines[n - 1] = l + why
        else:
            q = re.match(r"(\s*)(from \S+ import )(.+)$", l)
            ind = q.group(1)
            names = q.group(3).split(", ")
            lines[n - 1 : n] = (
                [f"{ind}{q.group(2)}({why}"] + [f"{ind}    {x}," for x in names] + [f"{ind})"]
            )
    wr(p, "\n".join(lines))
fmt()
# long lines in docstrings, comments and unformatted tables
for _ in range(6):
    out = subprocess.run(
        [
            ".venv/bin/ruff",
            "check",
            "src",
            "tests",
            "scripts",
            "--select",
            "E501",
            "--output-format",
            "concise",
        ],
        capture_output=True,
        text=True,
    ).stdout
    todo = {}
    for l in out.splitlines():
        m = re.match(r"(\S+?):(\d+):\d+: E501", l)
        if m:
            todo.setdefault(m.group(1), []).append(int(m.group(2)))
    if not todo:
        break
    for p, ls in todo.items():
        lines = rd(p).split("\n")
        for n in sorted(ls, reverse=True):
            l = lines[n - 1]
            ind = re.match(r"\s*", l).group(0)
            if l.lstrip().startswith('code = "import sys, loopwright'):
                lines[n - 1 : n] = [
                    ind + "code = (",
                    ind + '    "import sys, loopwright.operations.agents.tools; "',
                    ind + "    \"print('mcp' in sys.modules or 'anyio' in sys.modules)\"",
                    ind + ")",
                ]
                continue
            sep = ", " if p.startswith("tests/agents") else " "
            cut = l.rfind(sep, 0, 99)
            if l.lstrip().startswith("#"):
                lines[n - 1 : n] = [l[:cut], ind + "# " + l[cut + 1 :].lstrip()]
                continue
            if re.match(r"\s*(?:[\w.]+\(|\w+=|return )?[rbf]?\"[^\"]*\"[,)]*$", l):
                # a long string: two strings in its place
                q = re.match(r"(.*?)([rbf]?)\"(.*)\"([,)]*)$", l)
                head, pre, body, tail = q.groups()
                k = body.rfind(" ", 0, 70) + 1
                lines[n - 1 : n] = [
                    f'{head}({pre}"{body[:k]}" {pre}"{body[k:]}"){tail}' if not head.strip()
                    else f'{head}{pre}"{body[:k]}" {pre}"{body[k:]}"{tail}'
                ]
                continue
            a, b = l[: cut + (1 if sep == ", " else 0)], l[cut + len(sep) :].lstrip()
            nxt = lines[n] if n < len(lines) else ""
            if (
                sep == " "
                and nxt.strip()
                and not nxt.strip().startswith(('"""', "*", "-", "`", "#"))
                and re.match(r"\s*", nxt).group(0) == ind
                and '"""' not in b
            ):
                lines[n - 1 : n + 1] = [a, ind + b + " " + nxt.strip()]
            else:
                lines[n - 1 : n] = [a, ind + b]
        wr(p, "\n".join(lines))
# the table of the kernel's functions for the differential tests
t1 = TABLE
home = {s: k for k, v in t1["modules"].items() for s in v["from"]}
p = "tests/kernel_differential/entry_points.py"
s = rd(p)
i = s.index("MODULES: dict[str, tuple[str, ...]] = {")
j = s.index("\n}\n", i) + 3
old = ast.literal_eval(s[s.index("{", i) : j].strip())
new = {}
for m, fs in old.items():
    full = "loopwright.kernel." + m
    n = home.get(full, full).removeprefix("loopwright.kernel.")
    for f in fs:
        new.setdefault(n, []).append(t1["renames"].get(f"{full}:{f}", f))
body = (
    "MODULES: dict[str, tuple[str, ...]] = {\n"
    + "".join(
        f'    "{m}": ({", ".join(chr(34) + x + chr(34) for x in sorted(fs))},),\n'
        for m, fs in sorted(new.items())
    )
    + "}\n"
)
s = s[:i] + body + s[j:]
wr(p, s)
for p in glob.glob("tests/kernel_differential/*.py"):
    s = rd(p)
    o = s
    s = re.sub(
        r'module\("(\w+)"\)(\.Failure)?',
        lambda m: (
            'module("%s")%s'
            % (
                "event_parts"
                if m.group(2) and m.group(1) == "facts"
                else home.get("loopwright.kernel." + m.group(1), "x." + m.group(1)).removeprefix(
                    "loopwright.kernel."
                ),
                m.group(2) or "",
            )
        ),
        s,
    )
    if s != o:
        wr(p, s)
fmt()
p = "tests/kernel_differential/planted.py"
s = rd(p)
s = re.sub(
    r'Planted\((\s*)"(\w+)"',
    lambda m: (
        f'Planted({m.group(1)}"{home.get("loopwright.kernel." + m.group(2), "loopwright.kernel." + m.group(2)).removeprefix("loopwright.kernel.").replace(".", "/")}"'
    ),
    s,
)
wr(p, s)
fmt()

# this folder is gone
sub(
    "pyproject.toml",
    """as they would write them. The programs
# that move modules run once.
""",
    "as they would write them.\n",
)
sub("pyproject.toml", ', "scripts/second_edition"]', "]")
# tests that name functions, classes and folders by text
for p in glob.glob("tests/**/*.py", recursive=True):
    t = rd(p)
    t2 = re.sub(
        r'(parents?\[\d\](?: / "tests")?|TESTS) / "(app|programs|runtime|server)"',
        lambda m: f'{m.group(1)} / "{ {"app": "operations", "programs": "agents", "runtime": "engine", "server": "http"}[m.group(2)] }"',
        t,
    )
    if t2 != t:
        wr(p, t2)
sub("tests/golden/catalogue.py", '{"request": 2, ', '{"request_effect": 2, ')
p = "tests/docs/test_docs.py"
section(
    p,
    '    rooms = ("syntax"',
    "    trees = (ast.parse",
    """    places = ("syntax", "dialects", "operations", "views", "workers", "stores", "cli", "engine")
    places = (*places, "http", "workspaces", "errors.py", "agents/files.py")
    files = [f for r in places for f in ([SOURCE / r] if "." in r else (SOURCE / r).rglob("*.py"))]
""",
)
t = rd(p)
m = re.search(r"(?ms)^_SPEAKERS = (\{.*?^\})", t)
if m is None:
    FAULTS.append(p + " has no _SPEAKERS")
else:
    speakers = eval(m.group(1))
    more = {new for old, new in TABLE["renames"].items() if old.partition(":")[2] in speakers}
    more = sorted(more - speakers)
    rows = ["    *(" + ", ".join(f'"{x}"' for x in more[i : i + 3]) + ",)," for i in range(0, len(more), 3)]
    t = t[: m.end() - 1] + "\n".join(rows) + "\n" + t[m.end() - 1 :]
    wr(p, t)
fmt()

# documents
OLD_SOURCES = [
    f
    for f in subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", "src"], capture_output=True, text=True
    ).stdout.split()
    if f.endswith(".py")
]


def old_lines(f):
    return subprocess.run(["git", "show", "HEAD:" + f], capture_output=True).stdout.count(b"\n")


numbers = sorted(int(os.path.basename(f)[:4]) for f in glob.glob("docs/adr/[0-9]*.md"))
adr = numbers[-1] + 1
FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "files")
sources = glob.glob(S + "**/*.py", recursive=True)
counts = {
    "{ADR}": str(adr),
    "{ADR4}": f"{adr:04d}",
    "{OLDFILES}": str(len(OLD_SOURCES)),
    "{OLDLINES}": f"{sum(old_lines(f) for f in OLD_SOURCES):,}",
    "{FILES}": str(len(sources)),
    "{LINES}": f"{sum(rd(f).count(chr(10)) for f in sources):,}",
}


def filled(text):
    for k, v in counts.items():
        text = text.replace(k, v)
    return text


for f in glob.glob(FILES + "/**/*", recursive=True):
    if os.path.isfile(f) and not f.endswith(".part.md"):
        wr(filled(os.path.relpath(f, FILES)), filled(rd(f)))
section(
    "CONTRIBUTING.md", "## Rooms\n", "## Gates (`make check`)", filled(rd(FILES + "/packages.part.md"))
)
for a, b in (
    (
        "the ladder, purity, adapters named by `app` only",
        "the order of packages, purity, adapters imported by `operations` only",
    ),
    (
        "files ≤ 600 lines, no shell",
        "files ≤ 600 lines, folders ≤ 40 modules, no module named by a verb form, public class names used once, no shell",
    ),
    ("full branch coverage of the pure rooms", "full branch coverage of the pure packages"),
    (
        "`tests/<room>/test_<module>.py` mirrors `src`. Prefer a table",
        "Tests mirror packages (`tests/<package>/test_*.py`). Prefer a table",
    ),
):
    sub("CONTRIBUTING.md", a, b)
s = rd("CHANGELOG.md")
i = s.index("## [Unreleased]")
j = s.index("\n### Changed\n", i)
if "\n## [" in s[i + 5 : j]:
    FAULTS.append("CHANGELOG.md: no Changed below Unreleased")
s = s[: j + 14] + filled(rd(FILES + "/changelog.part.md")) + s[j + 14 :]
wr("CHANGELOG.md", s)


# code in documents has the form of the other code
def formatted(m):
    done = m.group(2)
    for args in (["check", "-q", "--select", "I", "--fix"], ["format", "-q"]):
        out = subprocess.run(
            [".venv/bin/ruff", *args, "--stdin-filename", "src/example.py", "-"],
            input=done, capture_output=True, text=True,
        )
        done = out.stdout if out.returncode == 0 else done
    return m.group(1) + done + m.group(3)


changed = subprocess.run(
    ["git", "diff", "--name-only", "HEAD", "--", "*.md"], capture_output=True, text=True
).stdout.split()
for p in changed:
    if not os.path.exists(p):
        continue
    s = rd(p)
    before = subprocess.run(["git", "show", "HEAD:" + p], capture_output=True, text=True).stdout
    t = re.sub(
        r"(?ms)^(```python\n)(.*?)^(```)$",
        lambda m: m.group(0) if m.group(2) in before else formatted(m),
        s,
    )
    if t != s:
        wr(p, t)

for one in FAULTS:
    print("FAULT", one)
sys.exit(bool(FAULTS))
