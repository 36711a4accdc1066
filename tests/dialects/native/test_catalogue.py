"""Bad definitions and bad criteria, with the exact code, place and advice that each must get."""

import pytest

from tests.dialects.reading import lowered, only, places

HEAD = "name: x\nagent: claude\n"


def loop(text: str) -> str:
    """A definition whose loop has this line in it."""
    return f"{HEAD}repeat:\n  max: 3\n  {text}\n"


def graph(*steps: str) -> str:
    """A definition with these steps."""
    return HEAD + "steps:\n" + "".join(f"  - {step}\n" for step in steps)


def nested(depth: int) -> str:
    inner = "{id: in, run: x}"
    for _ in range(depth):
        inner = f"{{id: in, repeat: {{max: 2, steps: [{inner}]}}}}"
    return graph(inner)


UNREADABLE = [
    pytest.param(b"", "1:1 empty-definition", id="empty", marks=pytest.mark.item("A1")),
    pytest.param(
        b"# nothing\n", "1:1 empty-definition", id="comments", marks=pytest.mark.item("A1")
    ),
    pytest.param(
        b"name: x\nrepeat:\n\tmax: 3\n", "3:1 yaml-syntax", id="tab", marks=pytest.mark.item("A2")
    ),
    pytest.param(
        b"name: x\nname: y\n", "2:1 duplicate-key", id="key-twice", marks=pytest.mark.item("A3")
    ),
    pytest.param(
        b"name: !!python/object/apply:os.system [x]\n",
        "1:7 yaml-tag",
        id="tag",
        marks=pytest.mark.item("A6"),
    ),
    pytest.param(
        b"a: &a [x, x, x, x, x, x, x, x, x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in b"bcdef"),
        "5:8 too-complex",
        id="alias-bomb",
        marks=pytest.mark.item("A7"),
    ),
    pytest.param(
        b"name: x\ngoal: " + b"[" * 5000, "2:38 too-deep", id="deep", marks=pytest.mark.item("A9")
    ),
    pytest.param(
        b"name: " + b"x" * 10_000_000, "1:1 too-large", id="10-MB", marks=pytest.mark.item("A10")
    ),
    pytest.param(b"&a [*a]\n", "1:5 yaml-cycle", id="cycle", marks=pytest.mark.item("A11")),
    pytest.param(
        b"name: x\nbudget: {usd: .inf}\n",
        "2:15 not-finite",
        id="infinity",
        marks=pytest.mark.item("A13"),
    ),
    pytest.param(
        b"name: x\n---\nname: y\n",
        "2:1 multiple-documents",
        id="two-documents",
        marks=pytest.mark.item("A21"),
    ),
    pytest.param(
        "name: x\n".encode("utf-16"), "1:1 encoding", id="utf-16", marks=pytest.mark.item("A22")
    ),
]


@pytest.mark.parametrize(("data", "place"), UNREADABLE)
def test_what_cannot_be_read_is_refused(data: bytes, place: str) -> None:
    """Bytes that are no definition are refused where the trouble begins, before any rule."""
    plan, problems = lowered(data)
    assert plan is None
    assert places(problems) == [place]


REFUSED = [
    pytest.param(
        loop("until: {signal: X}").replace("max", "mx"),
        ["4:3 unknown-field"],
        "did you mean max?",
        id="misspelt-key",
        marks=pytest.mark.item("A4"),
    ),
    pytest.param(
        loop("until: {signal: X}").replace("max", "max_pases"),
        ["4:3 unknown-field"],
        "did you mean max?",
        id="misspelt-longer-key",
        marks=pytest.mark.item("A4"),
    ),
    pytest.param(
        HEAD + "repeat: {foreach: {items: [1]}}\n",
        ["3:10 unknown-field"],
        "did you mean for_each?",
        id="misspelt-list",
        marks=pytest.mark.item("A4"),
    ),
    pytest.param(
        HEAD + "repeat: {memroy: none, until: {signal: X}}\n",
        ["3:1 cap-required", "3:10 unknown-field"],
        "did you mean memory?",
        id="misspelt-other-key",
        marks=pytest.mark.item("A4"),
    ),
    pytest.param(
        HEAD + "repeat: {for_each: {item: [1]}}\n",
        ["3:21 unknown-field"],
        "did you mean items?",
        id="misspelt-items",
        marks=pytest.mark.item("A4"),
    ),
    pytest.param(
        "name: x\nagents: {a: {}, b: {}}\nsteps: [{id: s, prompt: p, agnet: a}]\n",
        ["3:28 unknown-field"],
        "did you mean agent?",
        id="misspelt-agent",
        marks=pytest.mark.item("A4"),
    ),
    pytest.param(
        graph("{id: a, run: x, tools: [Bash]}"),
        ["4:28 unsupported-here"],
        "agents: {NAME: {tools: …}}",
        id="tools-on-a-program",
        marks=pytest.mark.item("A5"),
    ),
    pytest.param(
        "name: x\nagents: {a: {use: 'command:./x', deny_tools: [Bash]}}\n",
        ["2:34 unsupported-here"],
        "use an agent that obeys it",
        id="tools-of-a-plain-program",
        marks=pytest.mark.item("A5"),
    ),
    pytest.param(
        loop("until: on"),
        ["5:10 wrong-type"],
        'until must be a mapping, not "on"',
        id="on-is-text",
        marks=pytest.mark.item("A12"),
    ),
    pytest.param(
        loop("for_each: {items: [1]}"),
        ["4:3 mutually-exclusive"],
        "for_each and max exclude each other",
        id="list-and-cap",
        marks=pytest.mark.item("A15"),
    ),
    pytest.param(
        HEAD + "repeat: {until: {signal: DONE}}\n",
        ["3:1 cap-required"],
        "max: 10",
        id="no-cap",
        marks=pytest.mark.item("A16"),
    ),
    pytest.param(
        graph("{id: a, run: x}", "{id: a, run: y}"),
        ["5:10 bad-id"],
        "lines 4 and 5",
        id="id-twice",
        marks=pytest.mark.item("A17"),
    ),
    pytest.param(
        graph("{id: a, run: x, needs: [bild]}", "{id: build, run: x}"),
        ["4:29 unknown-step"],
        "did you mean build?",
        id="needs-unknown",
        marks=pytest.mark.item("A18"),
    ),
    pytest.param(
        graph("{id: a, run: x, needs: [a]}"),
        ["4:29 cycle"],
        "a → a",
        id="needs-itself",
        marks=pytest.mark.item("A18"),
    ),
    pytest.param(
        graph(
            "{id: z, run: x, needs: [b]}",
            "{id: a, run: x, needs: [c]}",
            "{id: b, run: x, needs: [a]}",
            "{id: c, run: x, needs: [b]}",
        ),
        ["6:29 cycle"],
        "b → a → c → b",
        id="needs-in-a-circle",
        marks=pytest.mark.item("A18"),
    ),
    pytest.param(
        graph('{id: "a\u202eb", run: x}'),
        ["4:10 hidden-character"],
        "U+202E",
        id="hidden-in-id",
        marks=pytest.mark.item("A24"),
    ),
    pytest.param(
        loop('run: ["rm\u200b", x]'),
        ["5:8 hidden-character"],
        "U+200B",
        id="hidden-in-command",
        marks=pytest.mark.item("A24"),
    ),
    pytest.param(
        loop('run: "ls \u2066x"'),
        ["5:8 hidden-character"],
        "U+2066",
        id="hidden-in-line",
        marks=pytest.mark.item("A24"),
    ),
    pytest.param(
        'name: x\nagents: {a: {use: claude, tools: ["Ba\u200dsh"]}}\n',
        ["2:35 hidden-character"],
        "U+200D",
        id="hidden-in-tool",
        marks=pytest.mark.item("A24"),
    ),
    pytest.param(
        nested(4),
        ["4:116 too-nested"],
        "more than 3 deep",
        id="four-deep",
        marks=pytest.mark.item("A26"),
    ),
    pytest.param(
        HEAD + "repeat: {for_each: {items: [1, 2, 3], max_items: 2}}\n",
        ["3:28 too-many-items"],
        "3 items; at most 2 are allowed",
        id="too-many-items",
    ),
    pytest.param(
        HEAD + "repeat: {for_each: {items: [" + "1, " * 1001 + "]}}\n",
        ["3:28 too-many-items"],
        "raise max_items",
        id="more-than-the-default",
    ),
    pytest.param(
        HEAD + "version: 7\n",
        ["3:10 newer-schema"],
        "needs version 7; this program knows version 1",
        id="future",
        marks=pytest.mark.item("A29"),
    ),
    pytest.param(
        loop("until: {regex: '('}"),
        ["5:18 bad-regex"],
        "a ( is not closed at column 1 of the pattern",
        id="open-group",
        marks=pytest.mark.item("B1"),
    ),
    pytest.param(
        loop(r"until: {regex: 'a\Z'}"),
        ["5:18 regex-feature"],
        "use \\z for the end",
        id="end-anchor",
        marks=pytest.mark.item("B3"),
    ),
    pytest.param(
        loop("until: {regex: '(?>a)b'}"),
        ["5:18 regex-feature"],
        "the engine never backtracks",
        id="atomic-group",
        marks=pytest.mark.item("B3"),
    ),
    pytest.param(
        loop(f"until: {{regex: {'a' * 10_000}}}"),
        ["5:18 regex-too-big"],
        "10,000 characters",
        id="long-pattern",
        marks=pytest.mark.item("B4"),
    ),
    pytest.param(
        loop("until: {regex: 'a{1000}{1000}'}"),
        ["5:18 regex-too-big"],
        "repetitions of repetitions",
        id="big-pattern",
        marks=pytest.mark.item("B4"),
    ),
    pytest.param(
        loop("until: {regex: ''}"),
        ["5:18 matches-everything"],
        "say what the output must contain",
        id="empty-pattern",
        marks=pytest.mark.item("B5"),
    ),
    pytest.param(
        loop("until: {contains: ''}"),
        ["5:21 matches-everything"],
        "any output contains an empty text",
        id="empty-text",
    ),
    pytest.param(
        loop("until: {command: npm test || npm run lint}"),
        ["5:20 shell-syntax"],
        "put it into a script file",
        id="or",
        marks=pytest.mark.item("B12"),
    ),
    pytest.param(
        loop("until: {command: cat x | grep y}"),
        ["5:20 shell-syntax"],
        "| means something to a shell only",
        id="pipe",
        marks=pytest.mark.item("B12"),
    ),
    pytest.param(
        loop("until: {command: ls *.py}"),
        ["5:20 shell-syntax"],
        "* means something to a shell only",
        id="glob",
        marks=pytest.mark.item("B12"),
    ),
    pytest.param(
        loop("until: {command: ls $HOME}"),
        ["5:20 shell-syntax"],
        "$ means something to a shell only",
        id="variable",
        marks=pytest.mark.item("B12"),
    ),
    pytest.param(
        graph("{id: a, run: x}", "{id: b, needs: [a], prompt: 'See {{steps.c.output}}'}"),
        ["5:38 unknown-reference"],
        "known: a",
        id="unknown-step-in-text",
        marks=pytest.mark.item("C2"),
    ),
]


@pytest.mark.parametrize(("text", "found", "says"), REFUSED)
def test_bad_definitions_are_refused(text: str, found: list[str], says: str) -> None:
    """Exact code, line and column, no plan, and the way out in the words."""
    plan, problems = lowered(text)
    assert plan is None
    assert places(problems) == found
    assert says in "\n".join(one.render() for one in problems)


@pytest.mark.item("A14")
@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"10"', "1000000", "null", "true", "1001"])
def test_a_cap_is_a_whole_number_in_range(value: str) -> None:
    """No other value is taken or bent into one, and the range is told."""
    plan, problems = lowered(f"{HEAD}repeat:\n  max: {value}\n")
    assert plan is None
    found = only(problems)
    assert (found.line, found.column) == (4, 8)
    assert found.code in ("out-of-range", "wrong-type")
    assert "max must be a whole number from 1 to 1000, not" in found.message


@pytest.mark.item("A17")
@pytest.mark.parametrize(
    "text", ["", "../x", "a.b", "a" * 300, "\u0430bc", "Build", "9a", "-a", "a b", "a/b"]
)
def test_ids_are_plain(text: str) -> None:
    """An id is short, lower case and plain, so that paths can be made of it."""
    plan, problems = lowered(graph(f'{{id: "{text}", run: x}}'))
    assert plan is None
    assert places(problems) == ["4:10 bad-id"]


@pytest.mark.item("A8")
def test_merge_keys_are_off() -> None:
    """A merge key is refused where it stands, so none can blow up."""
    plan, problems = lowered("base: &b {max: 3}\nname: x\nrepeat: {<<: *b}\n")
    assert plan is None
    assert places(problems) == ["3:10 too-complex"]


@pytest.mark.item("A23")
def test_line_ends_do_not_matter() -> None:
    """CRLF and LF give the same plan."""
    text = loop("until: {signal: DONE}")
    assert lowered(text.replace("\n", "\r\n")) == lowered(text)


@pytest.mark.item("C12")
@pytest.mark.parametrize(
    "name",
    ["PATH", "LD_PRELOAD", "GIT_DIR", "PYTHONSTARTUP", "NODE_OPTIONS", "LOOPWRIGHT_RUN", "path"],
)
def test_reserved_variables_cannot_be_set(name: str) -> None:
    """What decides which code programs load is not a definition's to set, for agent or program."""
    agent = f"name: x\nagents: {{a: {{env: {{{name}: x}}}}}}\n"
    program = f"name: x\nrun: [ls]\nenv: {{{name}: x}}\n"
    for text, place in ((agent, "2:20"), (program, "3:7")):
        plan, problems = lowered(text)
        assert plan is None
        assert places(problems) == [f"{place} reserved-env"]


@pytest.mark.item("D1")
@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "~root", "//x", "C:\\x", "", "..", "a\\..\\x"]
)
def test_files_stay_in_the_workspace(path: str) -> None:
    """A file that is named from outside the workspace is refused when the definition is read."""
    plan, problems = lowered(f"{HEAD}files: ['{path}']\n")
    assert plan is None
    assert places(problems) == ["3:9 outside-workspace"]


@pytest.mark.item("C9")
@pytest.mark.parametrize("written", ["env.API_KEY", "secret.API_KEY", " secrets.API_KEY "])
@pytest.mark.parametrize("field", ["prompt", "goal"])
def test_secrets_are_no_part_of_a_text(written: str, field: str) -> None:
    """Refused where it stands, with the way in which an agent's program may have it."""
    text = f"name: x\nagent: claude\n{field}: Use {{{{{written}}}}} now.\n"
    plan, [problem] = lowered(text.encode(), dialect="native")
    assert plan is None
    assert (problem.code, problem.line) == ("secret-in-prompt", 3)
    assert problem.hint == "hand it to the agent's program by its name: pass_env: [API_KEY]"
