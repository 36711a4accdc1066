"""From the location of a pydantic error to a path in the document."""

from typing import Annotated, Literal, cast

import pytest
from pydantic import AliasPath, BaseModel, Field
from typing_extensions import TypedDict

from loopwright.syntax.schema_errors import Loc, Schema, SchemaMap


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    leaf: int = 0


class Tree(BaseModel):
    kind: Literal["tree"]
    tree: "list[Annotated[Leaf | Tree, Field(discriminator='kind')]]"


class Options(TypedDict, total=False):
    on: bool


class Root(BaseModel):
    a: Leaf | list[Leaf] | dict[str, Leaf] | int
    looks: Annotated[str, Field(alias="Leaf")] = ""
    tree: Tree | None = None
    row: tuple[Leaf, ...] = ()
    fixed: tuple[int, Leaf] | None = None
    options: Options = {}
    anything: object = None
    far: Annotated[int, Field(validation_alias=AliasPath("far", "away"))] = 0


SCHEMA = cast("Schema", Root.__pydantic_core_schema__)


@pytest.mark.parametrize(
    ("loc", "path", "kind"),
    [
        pytest.param((), (), "model-fields", id="root"),
        pytest.param(("a", "Leaf", "leaf"), ("a", "leaf"), "int", id="branch"),
        pytest.param(("a", "list[Leaf]", 0, "leaf"), ("a", 0, "leaf"), "int", id="list branch"),
        pytest.param(
            ("a", "dict[str,Leaf]", "x", "leaf"), ("a", "x", "leaf"), "int", id="mapping branch"
        ),
        pytest.param(("a", "int"), ("a",), "int", id="scalar branch"),
        pytest.param(
            ("a", "a name of no branch", "x", "leaf"),
            ("a", "x", "leaf"),
            "int",
            id="the only branch that leads there",
        ),
        pytest.param(("Leaf",), ("Leaf",), "str", id="key that looks like a branch"),
        pytest.param(
            ("tree", "tree", 0, "tree", "tree", 1, "leaf", "leaf"),
            ("tree", "tree", 0, "tree", 1, "leaf"),
            "int",
            id="tags that look like keys",
        ),
        pytest.param(("row", 5, "leaf"), ("row", 5, "leaf"), "int", id="open tuple"),
        pytest.param(("fixed", 1, "leaf"), ("fixed", 1, "leaf"), "int", id="tuple"),
        pytest.param(("fixed", 7), ("fixed", 7), "any", id="past a tuple"),
        pytest.param(("options", "on"), ("options", "on"), "bool", id="typed dict"),
        pytest.param(("anything", 3), ("anything", 3), "any", id="anything"),
    ],
)
def test_places(loc: Loc, path: Loc, kind: str) -> None:
    """Keys and indices are kept, labels of branches are not; the schema is found."""
    place = SchemaMap(SCHEMA).place(loc, {})
    assert place.path == path
    assert place.schema is not None
    assert place.schema["type"] == kind


@pytest.mark.parametrize(
    "loc",
    [
        ("anything", "label", "x", 0, "y"),
        ("anything", "x", 7, 0, "label", "y"),
        ("a", "label", "anything", "x", 0, "y"),
    ],
    ids=["labels", "index", "no branch leads there"],
)
def test_a_location_without_a_schema_goes_by_the_value(loc: Loc) -> None:
    """Parts that do not exist in the document are skipped."""
    value = {"anything": {"x": [{"y": 1}]}}
    place = SchemaMap(SCHEMA).place(loc, value)
    assert place.path == ("anything", "x", 0, "y")
