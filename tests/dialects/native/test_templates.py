"""Texts with places to fill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.dialects.native.templates import explain, parse, parse_ref, write
from loopwright.model.record import Lit, Ref, Template
from tests.dialects.native.plans import TEMPLATES


@pytest.mark.parametrize(
    ("text", "template"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param("plain", (Lit(text="plain"),), id="plain"),
        pytest.param(
            "a {{ message }} b",
            (Lit(text="a "), Ref(of="message"), Lit(text=" b")),
            id="in-the-middle",
        ),
        pytest.param("{{input.a}}", (Ref(of="input", name="a"),), id="input"),
        pytest.param("{{input.a.b.0}}", (Ref(of="input", name="a", field="b.0"),), id="in-input"),
        pytest.param("{{item}}", (Ref(of="item"),), id="item"),
        pytest.param("{{item.a}}", (Ref(of="item", field="a"),), id="in-item"),
        pytest.param("{{steps.a.output}}", (Ref(of="output", name="a"),), id="output"),
        pytest.param("{{steps.a.result}}", (Ref(of="result", name="a"),), id="result"),
        pytest.param(
            "{{steps.a.result.b}}", (Ref(of="result", name="a", field="b"),), id="in-result"
        ),
        pytest.param(r"\{{item}}", (Lit(text="{{item}}"),), id="escaped"),
        pytest.param(r"\\{{item}}", (Lit(text="\\"), Ref(of="item")), id="slash-before"),
        pytest.param("{{{item}}", (Lit(text="{"), Ref(of="item")), id="brace-before"),
        pytest.param("{ {a} }", (Lit(text="{ {a} }"),), id="single-braces"),
    ],
)
def test_references_are_found(text: str, template: Template) -> None:
    """Each form becomes a reference, everything else stays text."""
    found, marks = parse(text)
    assert found == template
    assert all(mark.ref for mark in marks)


@pytest.mark.parametrize(
    ("text", "written", "at", "says"),
    [
        pytest.param("{{mesage}}", "{{mesage}}", 0, "did you mean message?", id="misspelt"),
        pytest.param("{{step.a.output}}", "{{step.a.output}}", 0, "steps", id="misspelt-head"),
        pytest.param("{{steps.a}}", "{{steps.a}}", 0, "steps.a.output or", id="half"),
        pytest.param("{{steps.A.output}}", "{{steps.A.output}}", 0, "steps.ID.output", id="bad-id"),
        pytest.param(
            "{{steps.a.output.b}}", "{{steps.a.output.b}}", 0, "steps.ID.output", id="in-output"
        ),
        pytest.param(
            "{{steps.a.result.}}", "{{steps.a.result.}}", 0, "steps.ID.result", id="dot-end"
        ),
        pytest.param("{{item.}}", "{{item.}}", 0, "did you mean item?", id="item-dot"),
        pytest.param("{{item.a b}}", "{{item.a b}}", 0, "", id="blank-in-field"),
        pytest.param("{{input.}}", "{{input.}}", 0, "", id="input-dot"),
        pytest.param("{{}}", "{{}}", 0, "known: ", id="empty"),
        pytest.param("{{" + "x" * 90 + "}}", "{{" + "x" * 90 + "}}", 0, "known: ", id="long"),
        pytest.param(r"\{{a}} {{a}}", "{{a}}", 7, "known: ", id="second-of-two"),
        pytest.param("a {{b", "{{", 2, r"write \{{", id="open"),
    ],
)
def test_bad_references_are_marked(text: str, written: str, at: int, says: str) -> None:
    """A reference that is none is marked with what is written there, and the way out."""
    (mark,) = parse(text)[1]
    assert (mark.ref, mark.written, mark.at) == (None, written, at)
    problem, hint = explain(mark.written)
    assert says in hint
    assert problem


@given(TEMPLATES)
def test_every_template_can_be_written(template: Template) -> None:
    """Written out and read again, a template is the same."""
    assert parse(write(template)) == (template, parse(write(template))[1])


@given(st.text(alphabet="\\{}a "))
def test_reading_never_fails(text: str) -> None:
    """Any text is a template or has marks that say what is wrong."""
    template, marks = parse(text)
    if all(mark.ref for mark in marks):
        assert parse(write(template))[0] == template


def test_a_reference_without_braces() -> None:
    """The form that names a list has no braces."""
    assert parse_ref("steps.a.result.files") == Ref(of="result", name="a", field="files")
    assert parse_ref("nowhere.a") is None
