"""Searches with the JavaScript engine: in processes that are used again and can be killed."""

import asyncio
import threading

import pytest

from loopwright.agents.pattern_search import PatternSearch, PatternSearches, PatternSearchResult

EXPLOSIVE = "^(a+)+(?=!)$"


@pytest.fixture
def searches() -> "PatternSearches":
    return PatternSearches(most=2)


@pytest.mark.item("rondoflow-65")
@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("(?<=tests: )ok", "TESTS: OK", "OK"),
        ("(?<!not )done", "it is not done", None),
        (r"(['\"])ok\1", "say 'ok'", "'ok'"),
        (r"(?<q>x)-\k<q>", "x-x", "x-x"),
        ("^(?!.*error).*passed", "12 passed, 0 failed", "12 passed"),
        ("(?=é)é😀", "aé😀b", "é😀"),
        ("(?=x)", "ax", ""),
        ("a{1001}", "a" * 1000, None),
        ("a$(?!b)", "a\nb", None),
    ],
)
def test_patterns_have_the_meaning_of_javascript(
    searches: PatternSearches, pattern: str, text: str, found: str | None
) -> None:
    """Look-around, back-references and large repetitions, in texts of any script."""
    try:
        wanted = PatternSearch(pattern=pattern, text=text, ignore_case=True)
        assert searches.search(wanted) == PatternSearchResult(found=found)
    finally:
        searches.close()


@pytest.mark.item("rondoflow-65")
def test_a_search_that_takes_too_long_is_ended_and_the_next_one_answers(
    searches: PatternSearches,
) -> None:
    """The process is killed and replaced, and the answer says why."""
    try:
        slow = searches.search(PatternSearch(pattern=EXPLOSIVE, text="a" * 5_000, seconds=0.2))
        assert slow.timed_out
        assert "more than 0.2 s for this output of 5,000 characters" in slow.problem
        assert searches.search(PatternSearch(pattern="(?=b)b", text="ab")) == PatternSearchResult(
            found="b"
        )
    finally:
        searches.close()


@pytest.mark.item("rondoflow-65")
def test_a_process_is_used_again(searches: PatternSearches) -> None:
    """A second search starts no second process."""
    try:
        searches.search(PatternSearch(pattern="(?=a)", text="a"))
        (first,) = searches._idle
        searches.search(PatternSearch(pattern="(?=b)", text="b"))
        assert searches._idle == [first]
        first.kill()
        first.wait()
        assert searches.search(PatternSearch(pattern="(?=b)", text="b")).found == ""
        assert searches._idle != [first]
    finally:
        searches.close()


@pytest.mark.item("rondoflow-65")
def test_the_event_loop_runs_on_during_a_search(searches: PatternSearches) -> None:
    """Others are served while a search that never ends is under way."""

    async def both() -> tuple[PatternSearchResult, int]:
        slow = PatternSearch(pattern=EXPLOSIVE, text="a" * 5_000, seconds=0.3)
        task = asyncio.ensure_future(searches.search_later(slow))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
        return await task, turns

    try:
        answer, turns = asyncio.run(both())
        assert answer.timed_out
        assert turns > 3
    finally:
        searches.close()


def test_many_threads_share_few_processes(searches: PatternSearches) -> None:
    """No more processes than allowed, and every thread gets its own answer."""
    found: dict[int, str | None] = {}

    def one(number: int) -> None:
        found[number] = searches.search(
            PatternSearch(pattern=r"(?=\d)\d+", text=f"n {number}")
        ).found

    threads = [threading.Thread(target=one, args=(n,)) for n in range(12)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {n: str(n) for n in range(12)}
        assert len(searches._idle) <= 2
    finally:
        searches.close()
