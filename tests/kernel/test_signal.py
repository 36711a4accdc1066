"""Completion signals: what counts as the agent's own last word."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.kernel.signal import has_signal

ASKED = """Fix the failing tests.
When everything passes, end your answer with this line alone:
<promise>DONE</promise>
Do not say it earlier."""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("DONE", id="nothing but the word"),
        pytest.param("All tests pass.\nDONE", id="alone on the last line"),
        pytest.param("All tests pass.\n\n  DONE  ", id="spaces around"),
        pytest.param("All tests pass.\nDONE\n\n \n\t\n", id="blank lines after"),
        pytest.param("All tests pass.\r\nDONE\r\n", id="CRLF"),
        pytest.param("All tests pass.\rDONE", id="CR alone"),
        pytest.param("ok\nDONE.", id="full stop after"),
        pytest.param("ok\nDONE!", id="exclamation mark after"),
        pytest.param("ok\nDONE!!!", id="several"),
        pytest.param("ok\n<promise>DONE</promise>", id="inside a tag"),
        pytest.param("ok\n<promise> DONE </promise>.", id="tag with spaces and a full stop"),
        pytest.param("ok\n<Promise>done</PROMISE>", id="tag in any case"),
        pytest.param('ok\n<promise kind="final">DONE</promise>', id="tag with an attribute"),
        pytest.param("ok\n<my-tag>DONE</my-tag>", id="another tag"),
        pytest.param("```\ncode\n```\nDONE", id="after a fence"),
        pytest.param("~~~~\n```\n~~~~\nDONE", id="after a fence that shows another"),
        pytest.param("use ```inline``` marks\nDONE", id="inline code is no fence"),
        pytest.param("```inline```\nDONE", id="a line of inline code is no fence"),
        pytest.param("not done yet\nstill not\nDONE", id="a change of mind"),
        pytest.param("fertig ✓\nDONE", id="unicode before"),
    ],
)
def test_signals(text: str) -> None:
    """The word alone on the last spoken line, bare or in a tag, is a signal."""
    assert has_signal(text, "DONE")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(" \n\n", id="blank lines only"),
        pytest.param("INCOMPLETE", id="longer word"),
        pytest.param("UNDONE", id="prefixed word"),
        pytest.param("DONEish", id="suffixed word"),
        pytest.param("done", id="other case"),
        pytest.param("I am not DONE.", id="in a sentence"),
        pytest.param("not DONE", id="negated"),
        pytest.param("NOT DONE", id="negated in capitals"),
        pytest.param("DONE?", id="asked"),
        pytest.param("DONE: no", id="with more after it"),
        pytest.param("DONE\nbut one test still fails", id="not the last line"),
        pytest.param("When finished I will say DONE", id="mentioned"),
        pytest.param("<promise>NOT DONE</promise>", id="negated in a tag"),
        pytest.param("<promise>DONE</other>", id="tag closed by another"),
        pytest.param("<promise>DONE", id="tag not closed"),
        pytest.param("I say <promise>DONE</promise> soon", id="tag in a sentence"),
        pytest.param("<a><b>DONE</b></a>", id="tag in a tag"),
        pytest.param("DОNE", id="cyrillic letter"),
        pytest.param("D\u200bONE", id="zero-width space"),
        pytest.param("**DONE**", id="emphasised"),
        pytest.param("- DONE", id="list entry"),
        pytest.param("# DONE", id="heading"),
    ],
)
def test_no_signals(text: str) -> None:
    """A mention, a negation, a longer word or another letter is not a signal."""
    assert not has_signal(text, "DONE")


@pytest.mark.item("B7")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("> DONE", id="quoted line"),
        pytest.param("> <promise>DONE</promise>", id="quoted tag"),
        pytest.param('"DONE"', id="in quotation marks"),
        pytest.param("`DONE`", id="inline code"),
        pytest.param("`<promise>DONE</promise>`", id="tag as inline code"),
        pytest.param("```\nDONE", id="fence not closed"),
        pytest.param("```\nDONE\n```", id="in a fence"),
        pytest.param("```\n<promise>DONE</promise>\n```", id="tag in a fence"),
        pytest.param("~~~\nDONE\n~~~\n", id="in a fence of tildes"),
        pytest.param("   ```text\nDONE", id="indented fence with an info string"),
        pytest.param("````\n```\nDONE", id="short fence does not close a longer one"),
        pytest.param("```\n~~~\nDONE", id="other sign does not close"),
        pytest.param("```text\n```python\nDONE", id="info string does not close"),
    ],
)
def test_quoted_signals_do_not_count(text: str) -> None:
    """What stands in a fence or a quotation is shown, not said."""
    assert not has_signal(text, "DONE")


@pytest.mark.item("B6")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ASKED, id="whole request"),
        pytest.param("\n".join(ASKED.splitlines()[:3]), id="up to the tag"),
        pytest.param(
            "You asked:\n" + "\n".join(ASKED.splitlines()[:3]), id="request after own words"
        ),
        pytest.param(
            "end your answer with this line alone:\n"
            "When everything passes, end your answer with this line alone:\n"
            "   <promise>DONE</promise>",
            id="other indentation",
        ),
    ],
)
def test_echo_of_the_request_is_no_signal(text: str) -> None:
    """Repeating the request with its tag is not completing it."""
    assert not has_signal(text, "DONE", ASKED)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        pytest.param("All fixed.\n<promise>DONE</promise>", ASKED, id="own words before"),
        pytest.param("<promise>DONE</promise>", ASKED, id="the line alone, as asked"),
        pytest.param("All fixed.\nDONE", "Say\nDONE", id="bare word, as asked"),
        pytest.param("DONE", "DONE is the word.", id="the request mentions it"),
        pytest.param("x\nDONE", "DONE", id="the request is the word"),
        pytest.param("x\nDONE", "DONE\nis the word", id="the request begins with it"),
        pytest.param("x\nDONE", "", id="nothing asked"),
    ],
)
def test_copying_the_line_as_asked_is_a_signal(text: str, asked: str) -> None:
    """A request may show the line; saying it after own words is what was asked for."""
    assert has_signal(text, "DONE", asked)


@pytest.mark.item("B6")
def test_request_of_one_line_is_echoed() -> None:
    """A request that is the word alone cannot be told from its echo: not complete."""
    assert not has_signal("DONE", "DONE", "DONE")


@pytest.mark.item("B16")
@pytest.mark.parametrize(
    ("text", "approved"),
    [
        pytest.param("Looks right.\nAPPROVED", True, id="approved"),
        pytest.param("NOT APPROVED", False, id="not approved"),
        pytest.param("approved? no", False, id="asked and denied"),
        pytest.param("Not yet APPROVED.", False, id="not yet"),
        pytest.param("APPROVED: no", False, id="a field that says no"),
        pytest.param("DISAPPROVED", False, id="longer word"),
        pytest.param("<verdict>NOT APPROVED</verdict>", False, id="in a tag"),
    ],
)
def test_negated_approvals(text: str, approved: bool) -> None:
    """A word of approval inside a denial approves nothing."""
    assert has_signal(text, "APPROVED") is approved


@pytest.mark.parametrize("word", ["DONE.", "FINISHED!", "ALL DONE", "COMPLETE_42", "完了"])
def test_words_of_any_shape(word: str) -> None:
    """A word may end with a mark, hold blanks or be in any script."""
    assert has_signal(f"ok\n{word}", word)
    assert has_signal(f"ok\n<p>{word}</p>", word)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<a>" + " " * 200_000 + "x", id="blanks in a tag"),
        pytest.param("<a " + "b" * 200_000, id="attribute without end"),
        pytest.param("<" * 200_000, id="opening brackets"),
        pytest.param("`" * 200_000, id="back-ticks"),
        pytest.param("```\n" * 50_000, id="fences"),
        pytest.param(("x" * 50 + "\n") * 20_000 + "DONE ", id="many lines"),
    ],
)
def test_long_texts_take_no_time(text: str) -> None:
    """Looking is linear in the text: none of these may hold up a run."""
    began = time.process_time()  # not that of the clock: other processes do not count
    assert has_signal(text, "DONE") is text.endswith("DONE ")
    assert time.process_time() - began < 10


@given(text=st.text(max_size=40), word=st.from_regex(r"[A-Z]{2,8}", fullmatch=True))
def test_any_text_may_end_with_the_word(text: str, word: str) -> None:
    """Whatever was said before, outside of a fence the word on its own line signals."""
    open_fence = any(line.lstrip().startswith(("```", "~~~")) for line in text.splitlines())
    assert open_fence or has_signal(f"{text}\n{word}", word)
    assert not has_signal(f"{text}\n{word}x", word)
