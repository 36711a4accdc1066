"""JSON lines of an agent: what each line means, and what is left as text."""

import pytest

from loopwright.agents.json_lines import JsonLinesAnswer, parse_line
from loopwright.kernel.events import Usage


def spoken(*lines: str | bytes) -> JsonLinesAnswer:
    found = JsonLinesAnswer()
    for line in lines:
        found.add_line(line.encode() if isinstance(line, str) else line)
    return found


def test_texts_are_joined_as_they_come() -> None:
    """Texts follow each other without anything between them."""
    answer = spoken(
        '{"type":"text","text":"Hel"}', '{"type":"text","text":"lo"}', '{"type":"text"}'
    )
    assert answer.output == "Hello"


def test_a_result_is_the_answer() -> None:
    """The text of the result line is the answer, however much was answer before it."""
    answer = spoken('{"type":"text","text":"hm"}', '{"type":"result","text":"42","data":{"n":42}}')
    assert (answer.output, answer.data, answer.has_data) == ("42", {"n": 42}, True)


def test_a_result_without_text_leaves_what_was_said() -> None:
    """A result may bring data alone; then the answer is what was answer."""
    answer = spoken('{"type":"text","text":"hm"}', '{"type":"result","data":[1]}')
    assert (answer.output, answer.data) == ("hm", [1])


def test_the_last_result_counts() -> None:
    """A later result takes the place of an earlier one, its data too."""
    answer = spoken('{"type":"result","text":"a","data":{"n":1}}', '{"type":"result","text":"b"}')
    assert (answer.output, answer.has_data) == ("b", False)


@pytest.mark.item("rondoflow-32")
@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ('{"type":"result","text":"no","is_error":true}', True),
        ('{"type":"result","text":"ok","is_error":false}', False),
        ('{"type":"result","text":"ok","is_error":null}', False),
        ('{"type":"result","text":"ok"}', False),
    ],
)
def test_an_agent_may_say_that_it_failed(line: str, failed: bool) -> None:
    """A result may be flagged as an error; everything else is none."""
    assert spoken(line).is_error is failed


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("just words", id="words"),
        pytest.param('{"type":"text","text":', id="cut off"),
        pytest.param('{"type":"text","text":5}', id="wrong type"),
        pytest.param('{"text":"no type"}', id="no type"),
        pytest.param('{"type":"thought","text":"hm"}', id="unknown type"),
        pytest.param('["type","text"]', id="a list"),
        pytest.param('{"type":"result","data":' + "[" * 50_000 + "}", id="absurdly deep"),
    ],
)
def test_other_lines_are_text(line: str) -> None:
    """A line that is not of the protocol is part of the answer as it stands."""
    answer = spoken(line)
    assert parse_line(line.encode()) is None
    assert answer.output == f"{line}\n"


def test_bytes_that_are_no_text_do_no_harm() -> None:
    """Broken UTF-8 becomes replacement characters; empty lines are nothing."""
    assert spoken(b"\xff\xfe", b"").output == "��\n"


def test_blanks_around_a_line_do_not_make_it_text() -> None:
    """A line of the protocol may be indented."""
    assert spoken('  {"type":"text","text":"x"} ').output == "x"


def test_usage_adds_up() -> None:
    """Several reports are added; what is not named counts as nothing."""
    answer = spoken(
        '{"type":"usage","input_tokens":10,"output_tokens":2,"usd":0.1}',
        '{"type":"usage","input_tokens":5}',
        '{"type":"usage","usd":0.2,"output_tokens":null}',
    )
    assert answer.usage == Usage(input_tokens=15, output_tokens=2, usd=0.3, unpriced=1)
    assert answer.warnings == []


def test_no_report_is_no_usage() -> None:
    """Without a report nothing is known, which is not the same as nothing used."""
    assert spoken('{"type":"text","text":"x"}').usage is None


@pytest.mark.item("I-11")
@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("-1", "must not be negative"),
        ("-0.5", "must not be negative"),
        ('"-3"', "must be a number"),
        ('"a few"', "must be a number"),
        ('""', "must be a number"),
        ('"NaN"', "must be a number"),
        ("true", "must be a number"),
        ("[]", "must be a number"),
        ("NaN", "must be a finite number"),
        ("Infinity", "must be a finite number"),
        ("1e999", "must be a finite number"),
        ('"1e999"', "must be a finite number"),
        ("1000000000000000000000000000000", "is too large"),
    ],
)
@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "usd", "cache_read_tokens"])
def test_a_wrong_usage_is_a_warning(field: str, number: str, words: str) -> None:
    """A usage line with a number that cannot be added up is not counted and not shown as text. The
    warning names the field, once however often it occurs.
    """
    line = f'{{"type":"usage","{field}":{number}}}'
    answer = spoken('{"type":"usage","input_tokens":3}', line, line, "hello")
    assert answer.usage == Usage(input_tokens=3, unpriced=1)
    assert answer.output == "hello\n"
    assert answer.warnings == [f"ignored usage line: {field} {words}"]


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        ('"input_tokens":10,"output_tokens":5,"usd":"0.5"', Usage(10, 5, 0.5)),
        ('"input_tokens":"10","output_tokens":" 5 ","usd":"1e-05"', Usage(10, 5, 0.00001)),
        ('"input_tokens":10,"usd":0.5,"model":7', Usage(10, 0, 0.5)),
        ('"usd":0.5,"text":7,"name":[]', Usage(usd=0.5)),
    ],
)
def test_a_number_in_a_text_is_counted(line: str, usage: Usage) -> None:
    """A plain number may be written as text, and other fields do not matter."""
    answer = spoken(f'{{"type":"usage",{line}}}')
    assert answer.usage == usage
    assert (answer.warnings, answer.output) == ([], "")


def test_the_session_is_the_last_one_told() -> None:
    """A new session replaces the old one; an empty one does not."""
    answer = spoken('{"type":"session","id":"s1"}', '{"type":"session","id":"s2"}')
    assert answer.session == "s2"
    answer.add_line(b'{"type":"session","id":""}')
    assert answer.session == "s2"


def test_tools_are_answered_and_not_said() -> None:
    """A tool line is handed to whoever looks and is no part of the answer."""
    answer = JsonLinesAnswer()
    line = answer.add_line(b'{"type":"tool","name":"grep","args":{"x":1},"result":"y"}')
    assert line is not None
    assert (line.type, line.name, line.args, line.result) == ("tool", "grep", {"x": 1}, "y")
    assert answer.output == ""


@pytest.mark.parametrize(
    "lines",
    [
        ['{"type":"usage","usd":0}', '{"type":"usage","input_tokens":9}'],
        ['{"type":"usage","usd":1}', '{"type":"usage","usd":-1}'],
        ['{"type":"usage","input_tokens":-5}'],
    ],
    ids=["no cost after zero", "negative cost", "negative tokens"],
)
def test_usage_without_a_valid_cost_is_unknown(lines: list[str]) -> None:
    """A report that has no cost or no valid amount makes the cost of the call unknown."""
    answer = spoken(*lines)
    assert answer.usage is not None
    assert answer.usage.unpriced == 1
