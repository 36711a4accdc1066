"""Variables in texts: what is one, where it ends, what it becomes."""

import pytest

from loopwright.dialects.archon.variables import Environment, EnvNames, marks, template
from loopwright.model.record import Lit, Ref

OUTPUT = Ref(of="output", name="a")
FIELD = Ref(of="result", name="a", field="f")

SINGLE = {
    "$ARGUMENTS": Ref(of="message"),
    "$USER_MESSAGE": Ref(of="message"),
    "$WORKFLOW_ID": Ref(of="run"),
    "$ARTIFACTS_DIR": Ref(of="setting", name="artifacts"),
    "$BASE_BRANCH": Ref(of="setting", name="base_branch"),
    "$DOCS_DIR": Ref(of="setting", name="docs_dir"),
    "$CONTEXT": Ref(of="input", name="context"),
    "$EXTERNAL_CONTEXT": Ref(of="input", name="context"),
    "$ISSUE_CONTEXT": Ref(of="input", name="context"),
    "$LOOP_USER_INPUT": Ref(of="feedback"),
    "$LOOP_PREV_OUTPUT": Ref(of="previous"),
    "$REJECTION_REASON": Ref(of="rejection"),
    "$INPUTS.branch": Ref(of="input", name="branch"),
    "$LOOP_PREV.a-b.output": Ref(of="previous_output", name="a-b"),
    "$LOOP_PREV.a-b.output.f": Ref(of="previous_result", name="a-b", field="f"),
    "$a.output": OUTPUT,
    "$a.output.f": FIELD,
    "$my-node_2.output": Ref(of="output", name="my-node_2"),
    "$nodeId.output": Ref(of="output", name="nodeId"),
}


@pytest.mark.item("archon-19")
@pytest.mark.parametrize("text", SINGLE)
def test_each_variable(text: str) -> None:
    """Each variable is a place to fill, alone and between other text."""
    assert template(text) == (SINGLE[text],)
    assert template(f"({text}, x)") == (Lit(text="("), SINGLE[text], Lit(text=", x)"))


LITERAL = [
    "$HOME",
    "$1 $$ $ 5$",
    "$INPUTS",
    "$LOOP_PREV",
    "$a",
    "$a.outputs",
    "$a.field",
    "$a-.output",
    "${USER_MESSAGE}",
    "USER_MESSAGE",
    "$user_message",
    "",
]


@pytest.mark.parametrize("text", LITERAL)
def test_what_is_no_variable(text: str) -> None:
    """Longer words, other words and plain dollars stay as they are written."""
    assert template(text) == ((Lit(text=text),) if text else ())
    assert marks(text) == []


BORDERS = [
    ("$a.output.", (OUTPUT, Lit(text="."))),
    ("$a.output.f.g", (FIELD, Lit(text=".g"))),
    ("$a.output-x", (OUTPUT, Lit(text="-x"))),
    ("$a.output$a.output.f", (OUTPUT, FIELD)),
    ("$$a.output", (Lit(text="$a.output"),)),
    ("$$$a.output", (Lit(text="$$a.output"),)),
    ("x$$USER_MESSAGE y$a.output", (Lit(text="x$USER_MESSAGE y"), OUTPUT)),
    ("$ARGUMENTS.output", (Ref(of="message"), Lit(text=".output"))),
]


@pytest.mark.parametrize(("text", "made"), BORDERS, ids=[text for text, _ in BORDERS])
def test_where_a_variable_ends(text: str, made: object) -> None:
    """Words end at their boundary, one field belongs to an output, `$$` makes it literal."""
    assert template(text) == made


BEGINNINGS = [
    ("$WORKFLOW_ID_", (Ref(of="run"), Lit(text="_"))),
    ("$ARTIFACTS_DIR_x/a", (Ref(of="setting", name="artifacts"), Lit(text="_x/a"))),
    ("$LOOP_PREV_OUTPUTS", (Ref(of="previous"), Lit(text="S"))),
    ("$CONTEXT_a.output", (Ref(of="output", name="CONTEXT_a"),)),
    ("$$WORKFLOW_ID_x", (Lit(text="$WORKFLOW_ID_x"),)),
]


@pytest.mark.parametrize(("text", "made"), BEGINNINGS, ids=[text for text, _ in BEGINNINGS])
def test_a_variable_at_the_beginning_of_a_longer_word(text: str, made: object) -> None:
    """A text is filled in as Archon does it; a script keeps the words of its shell."""
    assert template(text) == made
    assert [one for one in marks(text) if one.variable] == []


def test_marks_know_their_place() -> None:
    """A mark remembers what was written, and where."""
    (first, second) = marks("ab $USER_MESSAGE $$x.output")
    assert (first.at, first.end, first.variable, first.escaped) == (3, 16, "USER_MESSAGE", False)
    assert (second.written, second.escaped) == ("$$x.output", True)


# -- names of the environment ----------------------------------------------------------------------


def test_names_are_stable_and_readable() -> None:
    """A node's name in upper case is its variable, wherever it is read."""
    names = EnvNames(["my-node", "my_node", "x"], ["a-b", "a_b"])
    assert names.name(Ref(of="output", name="my-node")) == "LW_MY_NODE_OUTPUT"
    assert names.name(Ref(of="output", name="my_node")) == "LW_MY_NODE_2_OUTPUT"
    assert names.name(Ref(of="result", name="x", field="aB")) == "LW_X_OUTPUT_AB"
    assert names.name(Ref(of="previous_output", name="x")) == "LW_PREV_X_OUTPUT"
    assert names.name(Ref(of="input", name="a_b")) == "LW_INPUT_A_B_2"
    assert names.name(Ref(of="message"), "ARGUMENTS") == "ARGUMENTS"


def test_an_environment_gives_one_meaning_to_a_name() -> None:
    """Values that would have the same name get a number."""
    env = Environment(EnvNames(["x", "x-output"]), "")
    field, whole = Ref(of="result", name="x", field="output"), Ref(of="output", name="x-output")
    assert env.add(field) == env.add(field) == "LW_X_OUTPUT_OUTPUT"
    assert env.add(whole) == "LW_X_OUTPUT_OUTPUT_2"
    assert env.templates()["LW_X_OUTPUT_OUTPUT_2"] == (whole,)


MENTIONED = [
    ("", {}),
    ("echo $BASE_BRANCH", {"BASE_BRANCH": Ref(of="setting", name="base_branch")}),
    ('os.environ["LW_A_OUTPUT"]', {"LW_A_OUTPUT": OUTPUT}),
    ("LW_A_OUTPUT_F", {"LW_A_OUTPUT_F": FIELD}),
    ("LW_PREV_A_OUTPUT", {"LW_PREV_A_OUTPUT": Ref(of="previous_output", name="a")}),
    ("LW_PREV_A_OUTPUT_F", {"LW_PREV_A_OUTPUT_F": Ref(of="previous_result", name="a", field="f")}),
    ("LW_INPUT_IN", {"LW_INPUT_IN": Ref(of="input", name="in")}),
    ("LW_B_OUTPUT LW_A OTHER_LW_A_OUTPUT", {}),
]


@pytest.mark.parametrize(("text", "more"), MENTIONED, ids=[text or "-" for text, _ in MENTIONED])
def test_values_are_given_by_name(text: str, more: dict[str, Ref]) -> None:
    """A script that names a variable gets its value, and always what the user said."""
    message, run = Ref(of="message"), Ref(of="run")
    always = {"ARGUMENTS": message, "USER_MESSAGE": message, "WORKFLOW_ID": run}
    assert EnvNames(["a"], ["in"]).mentioned(text) == always | more


# -- the item of a list ----------------------------------------------------------------------------

ITEMS = [
    ("$it", [Ref(of="item")]),
    ("$it.path", [Ref(of="item", field="path")]),
    ("$it.output", [Ref(of="item", field="output")]),
    ("$it-x $it.", [Ref(of="item"), Ref(of="item")]),
    ("$it-x.output", [Ref(of="output", name="it-x")]),
    ("$item $its $it_x $It", []),
    ("$ARGUMENTS", [Ref(of="message")]),
]


@pytest.mark.parametrize(("text", "refs"), ITEMS, ids=[text for text, _ in ITEMS])
def test_the_item_has_a_name(text: str, refs: list[Ref]) -> None:
    """Where a workflow is run for an item, its name is a variable, with or without a field."""
    assert [mark.ref for mark in marks(text, "it")] == refs
    assert not any(mark.ref.of == "item" for mark in marks(text))


def test_names_of_an_item() -> None:
    """A script finds it under its name; a node whose variable is the same comes first."""
    names = EnvNames(["it-x", "a"], ["z"], "it")
    assert names.name(Ref(of="item")) == "LW_IT"
    assert names.name(Ref(of="item", field="aB")) == "LW_IT_AB"
    found = names.mentioned("LW_IT LW_IT_PATH LW_IT_X_OUTPUT LW_ITEM LW_A_OUTPUT LW_INPUT_Z")
    assert {name: ref for name, ref in found.items() if name.startswith("LW_")} == {
        "LW_IT": Ref(of="item"),
        "LW_IT_PATH": Ref(of="item", field="path"),
        "LW_IT_X_OUTPUT": Ref(of="output", name="it-x"),
        "LW_A_OUTPUT": Ref(of="output", name="a"),
        "LW_INPUT_Z": Ref(of="input", name="z"),
    }
