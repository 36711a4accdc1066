"""Unions: the problems of the branch that was meant, and of no other."""

import sys
import time

import pytest

from loopwright.syntax.readers import read
from loopwright.syntax.validation import validate
from tests.syntax.union_model import Plan


def report(text: str) -> list[str]:
    document, found = read(text.encode(), file="f")
    assert found == []
    assert document is not None
    return [p.render().removeprefix("f:") for p in validate(Plan, document)[1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "until: {comand: [a]}",
            ["1:9: unknown-field: comand (did you mean command?)"],
            id="misspelt key",
        ),
        pytest.param(
            "until: {command: 5}",
            ["1:18: wrong-type: command must be a list, not 5"],
            id="key decides",
        ),
        pytest.param(
            "until: {command: [a, 1], timeout: 99}",
            [
                "1:22: wrong-type: command[1] must be text, not 1",
                "1:35: out-of-range: timeout must be a number above 0 and of at most 60, not 99",
            ],
            id="all problems of the branch",
        ),
        pytest.param(
            "until: {command: []}", ["1:18: no-program: names no program"], id="rule of the branch"
        ),
        pytest.param(
            "until: {signal: a, timeout: 1}",
            ["1:20: unknown-field: timeout (known here: signal)"],
            id="one key too many",
        ),
        pytest.param(
            "until: {all: [{all: [{signal: 1}]}, {sgnal: a}]}",
            [
                "1:31: wrong-type: signal must be text, not 1",
                "1:38: unknown-field: sgnal (did you mean signal?)",
            ],
            id="nested",
        ),
        pytest.param(
            "until: {xyz: 1}",
            ["1:9: unknown-field: xyz (known here: signal, command, timeout, all)"],
            id="no branch",
        ),
        pytest.param(
            "until: {}",
            ["1:8: missing-field: signal, command or all is required"],
            id="empty",
        ),
        pytest.param(
            "until: {command: [a], all: []}",
            ["1:23: mutually-exclusive: all and command exclude each other"],
            id="two branches at once",
        ),
        pytest.param(
            "until: {command: [a], all: [], xyz: 1}",
            [
                "1:23: mutually-exclusive: all and command exclude each other",
                "1:32: unknown-field: xyz (known here: command, timeout, all)",
            ],
            id="two branches and none",
        ),
        pytest.param(
            "way: {unit: m}", ["1:6: missing-field: far or near is required"], id="one key of each"
        ),
        pytest.param(
            "way: {unit: 5}",
            [
                "1:6: missing-field: far is required",
                "1:13: wrong-type: unit must be text, not 5",
            ],
            id="one key of each, and more",
        ),
        pytest.param(
            "until: 5", ["1:8: wrong-type: until must be a mapping or text, not 5"], id="no type"
        ),
        pytest.param(
            "limit: none",
            [
                '1:8: unknown-value: limit must be "unlimited" or a whole number of at least 1,'
                ' not "none"'
            ],
            id="value or number",
        ),
        pytest.param(
            "limit: 0",
            ['1:8: out-of-range: limit must be "unlimited" or a whole number of at least 1, not 0'],
            id="number or value",
        ),
        pytest.param(
            "limit: [1]",
            [
                '1:8: wrong-type: limit must be "unlimited" or a whole number of at least 1,'
                " not a list"
            ],
            id="neither",
        ),
        pytest.param("many: [a, 1]", ["1:11: wrong-type: many[1] must be text, not 1"], id="item"),
        pytest.param(
            "many: []",
            ["1:7: out-of-range: many must be a list of at least 1 item or text, not of 0"],
            id="length",
        ),
    ],
)
def test_the_likeliest_branch_is_reported(text: str, expected: list[str]) -> None:
    """One branch is chosen by type, keys and how far it got; equal ones are put together."""
    assert report(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "tool: {type: shh}",
            ['1:14: unknown-value: type must be "sh" or "py", not "shh" (did you mean sh?)'],
            id="unknown tag",
        ),
        pytest.param(
            "tool: {argv: []}",
            ['1:7: missing-field: type is required: "sh" or "py"'],
            id="no tag",
        ),
        pytest.param(
            "tool: 5", ["1:7: wrong-type: tool must be a mapping, not 5"], id="no mapping"
        ),
        pytest.param(
            "tool: {type: sh, arg: []}",
            ["1:18: unknown-field: arg (did you mean argv?)"],
            id="inside",
        ),
        pytest.param(
            "act: {run: 5}", ["1:12: wrong-type: run must be text, not 5"], id="tag is key"
        ),
        pytest.param(
            "act: {rum: x}", ["1:7: unknown-field: rum (did you mean run?)"], id="misspelt tag key"
        ),
        pytest.param("act: {}", ["1:6: missing-field: act needs one of: run, ask"], id="empty"),
        pytest.param(
            "act: {whom: a}", ["1:6: missing-field: act needs one of: run, ask"], id="no tag key"
        ),
        pytest.param("act: x", ['1:6: wrong-type: act must be a mapping, not "x"'], id="text"),
    ],
)
def test_tagged_unions_are_reported_by_their_tag(text: str, expected: list[str]) -> None:
    """The tag decides the branch; where it cannot, it is what must be mended."""
    assert report(text) == expected


def test_a_valid_document_passes() -> None:
    """Every branch can be reached."""
    text = (
        "until: {all: [a, {signal: b}, {command: [c], timeout: 1}, {all: []}]}\nlimit: unlimited\n"
        "many: [a]\ntool: {type: py, code: x}\nact: {ask: a, whom: b}\n"
    )
    assert report(text) == []


def test_thousands_of_wrong_branches_are_reported_quickly() -> None:
    """A long list of wrong items does not take a second."""
    text = "until:\n  all:\n" + "    - {comand: 1, sgnal: 1}\n" * 1_900
    started = time.process_time()
    assert len(report(text)) == 50
    assert sys.gettrace() or time.process_time() - started < 1
