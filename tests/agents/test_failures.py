"""How a program ended, as a failure that a policy can read."""

import pytest

from loopwright.agents.calls import TAIL_CHARS, failure_of, not_started
from loopwright.agents.processes.process import ProgramEnd


def exited(stderr: str, code: int = 1) -> ProgramEnd:
    return ProgramEnd(how="exited", code=code, stderr_tail=stderr.encode())


def test_a_timeout_names_the_last_status_before_the_remedy() -> None:
    """Final lines show the beginning of a failure: the reason must not be what is cut."""
    failure = failure_of(ProgramEnd(how="idle_timeout", seconds=600.2, limit_s=600), "no network")
    assert failure is not None
    last = "; the agent's last status: no network"
    assert f": no output for 10m{last}; allow more with --budget idle=20m" in failure.detail
    assert len(failure.detail.partition(last)[0]) < 60
    failure = failure_of(ProgramEnd(how="wall_timeout", seconds=90.2, limit_s=90), "no network")
    assert failure is not None
    assert failure.detail.endswith(f"(limit: 90s){last}")


def test_code_zero_is_no_failure() -> None:
    """A program that ends with 0 has worked, whatever it wrote to stderr."""
    assert failure_of(exited("rate limit exceeded", code=0)) is None


TRACEBACK = """Traceback (most recent call last):
  File "agent.py", line 4, in <module>
    f()
ValueError: no such key"""
NODE = """/work/agent.js:1
throw new Error("no such key")
^

Error: no such key
    at Object.<anonymous> (/work/agent.js:1:7)

Node.js v20.11.0"""


@pytest.mark.parametrize(
    ("stderr", "first"),
    [
        pytest.param(TRACEBACK, "ValueError: no such key", id="python"),
        pytest.param(f"starting\n{TRACEBACK}\n\n", "ValueError: no such key", id="blank-lines"),
        pytest.param(NODE, "Error: no such key", id="node"),
        pytest.param("reading x\nx: no such file\n", "x: no such file", id="two-lines"),
        pytest.param("a:\n  b\n  c", "a:", id="indented"),
        pytest.param("what\n  is it\n---\n", "what", id="no-words"),
        pytest.param("one\n" + "x" * 900, "x" * 400, id="long"),
    ],
)
def test_the_error_is_on_the_first_line(stderr: str, first: str) -> None:
    """Headlines show the first line of a detail: the error itself, not the head of a traceback. The
    whole text follows.
    """
    failure = failure_of(exited(stderr))
    assert failure is not None
    assert failure.detail.splitlines()[0] == f"the program exited with code 1: {first}"
    assert failure.detail.endswith(stderr.strip())


@pytest.mark.parametrize(
    ("end", "kind", "detail"),
    [
        pytest.param(
            exited("  no such thing\n", 3),
            "exit",
            "the program exited with code 3: no such thing",
            id="code and words",
        ),
        pytest.param(exited("", 3), "exit", "the program exited with code 3", id="code alone"),
        pytest.param(
            ProgramEnd(how="signalled", signal=9),
            "exit",
            "the program was ended by signal 9",
            id="signal",
        ),
        pytest.param(
            ProgramEnd(how="idle_timeout", seconds=12.34),
            "idle_timeout",
            "timed out (inactivity) after 12.3 s",
            id="silence",
        ),
        pytest.param(
            ProgramEnd(how="idle_timeout", seconds=300.1, limit_s=300),
            "idle_timeout",
            "timed out (inactivity) after 300.1 s: no output for 5m; allow more with "
            "--budget idle=10m or `idle` in the definition",
            id="silence with its limit",
        ),
        pytest.param(
            ProgramEnd(how="wall_timeout", seconds=90.2, limit_s=90),
            "wall_timeout",
            "timed out (wall-clock) after 90.2 s (limit: 90s)",
            id="too long, with its limit",
        ),
        pytest.param(
            ProgramEnd(how="wall_timeout", seconds=60),
            "wall_timeout",
            "timed out (wall-clock) after 60.0 s",
            id="too long",
        ),
        pytest.param(
            ProgramEnd(how="not_started", error="program-not-found: x is not on PATH"),
            "not_found",
            "x is not on PATH",
            id="no program",
        ),
        pytest.param(
            ProgramEnd(how="not_started"),
            "not_found",
            "the program could not be started",
            id="no reason given",
        ),
    ],
)
def test_every_end_has_its_kind(end: ProgramEnd, kind: str, detail: str) -> None:
    """Kind and sentence follow from how the program ended."""
    failure = failure_of(end)
    assert failure is not None
    assert (failure.type, failure.detail) == (kind, detail)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("workspace-gone: the directory /x does not exist", "workspace_gone"),
        ("resource: no processes left", "host_shortage"),
        ("not-executable: /x/a", "not_found"),
        ("is-a-directory: /x", "not_found"),
        ("supervisor-broken: it exited with 1", "not_found"),
    ],
)
def test_only_a_lack_of_resources_passes_by(error: str, kind: str) -> None:
    """A start that failed is worth another try only when the machine was short of something."""
    assert not_started(error).type == kind


@pytest.mark.parametrize(
    ("stderr", "kind", "wait_ms"),
    [
        pytest.param("Rate limit reached", "rate_limited", None, id="words"),
        pytest.param("rate_limit_error", "rate_limited", None, id="slug"),
        pytest.param("HTTP 429", "rate_limited", None, id="http code"),
        pytest.param("HTTP/1.1 429 Too Many", "rate_limited", None, id="status line"),
        pytest.param("API Error: 429 {}\nretry-after: 7", "rate_limited", 7_000, id="wait told"),
        pytest.param("status code 503; Retry-After=2", "overloaded", 2_000, id="busy with a wait"),
        pytest.param("overloaded_error", "overloaded", None, id="overloaded"),
        pytest.param("Error 529", "overloaded", None, id="529"),
        pytest.param('File "a.py", line 429, in f', "exit", None, id="a line number"),
        pytest.param("a.c:503: no such variable", "exit", None, id="a place in a file"),
        pytest.param("no matching overloaded function", "exit", None, id="a compiler's word"),
        pytest.param("retry-after: 7", "exit", None, id="a wait alone says nothing"),
    ],
)
def test_words_that_ask_for_another_try(stderr: str, kind: str, wait_ms: int | None) -> None:
    """Only what a provider says about its load makes a failure retryable, with its wait."""
    failure = failure_of(exited(stderr))
    assert failure is not None
    assert (failure.type, failure.retry_after_ms) == (kind, wait_ms)


def test_only_the_tail_is_kept() -> None:
    """Long and broken stderr is kept by its end, as text."""
    failure = failure_of(
        ProgramEnd(how="exited", code=1, stderr_tail=b"x" * 9_000 + b"\xff the end")
    )
    assert failure is not None
    assert failure.detail.endswith("� the end")
    assert len(failure.detail) < TAIL_CHARS + 100
