"""What is kept of a stream of any length."""

from hypothesis import given
from hypothesis import strategies as st

from loopwright.agents.processes.process import HeadAndTail


@given(st.lists(st.binary(max_size=40)), st.integers(0, 30), st.integers(0, 30))
def test_head_and_tail(chunks: list[bytes], head: int, tail: int) -> None:
    """Whatever the chunks, the ends of the stream are kept exactly and the rest is counted."""
    kept = HeadAndTail(head, tail)
    for chunk in chunks:
        kept.add(chunk)
    whole = b"".join(chunks)
    left_out = max(0, len(whole) - head - tail)
    assert (kept.total, kept.left_out) == (len(whole), left_out)
    if left_out:
        note = f"\n[… {left_out} bytes left out …]\n".encode()
        assert kept.value() == whole[:head] + note + whole[len(whole) - tail :]
    else:
        assert kept.value() == whole
    assert kept.last() == whole[head:][-tail or len(whole) :]
    assert len(kept._tail) <= tail, "more is held than asked for"
