"""What the simulated world answers: mostly what was asked for, sometimes nonsense, by chance."""

from __future__ import annotations

from random import Random

from loopwright.kernel.event_parts import AgentCall, Failure
from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue
from loopwright.ports import Answer, EffectFailure, EffectJob, EffectSuccess
from tests.faults.talking import talking_answer, talks

FAILURES = ("overloaded", "overloaded", "rate_limited", "agent", "idle_timeout", "bad_result")
LONG = "a line of an output that is too long to stand in a fact\n" * 30
TEXTS = ("ok", "DONE", "more", 'so: {"done": true}', "\x00\x1b]0;title\x07\ud800", "")
RESULTS = (
    '{"done":true,"n":2,"items":["a","b"]}',
    '{"done":"true","n":"x","items":"none"}',
    '{"items":[1,2,3,4],"n":0}',
    "[1,2]",
    "null",
)
VERDICTS = (
    '{"done":true,"reason":"it works"}',
    '{"done":false,"reason":"not yet"}',
    '{"done":false}',
    '{"done":"true"}',
    '"done"',
    None,
)


def random_answer(dice: Random, job: EffectJob) -> Answer:
    """Mostly good, sometimes long, sometimes a failure that may be tried again."""
    if talks(job):
        return talking_answer(dice, job)
    if not isinstance(job.call, AgentCall):
        return _program(dice)
    usage = Usage(input_tokens=10, output_tokens=5, usd=0.01) if dice.random() < 0.3 else None
    if dice.random() < 0.3:
        unfit = job.call.role != "worker" and dice.random() < 0.6
        kind = "bad_result" if unfit else dice.choice(FAILURES)
        error = Failure(
            type=kind,
            retry_after_ms=dice.choice((None, None, 2_000)),
            resets_at=dice.choice((None, 1_700_000_000_000)) if kind == "rate_limited" else None,
        )
        return EffectFailure(error=error, usage=usage, output=dice.choice(("", "half of it", LONG)))
    if job.call.role != "worker":
        return EffectSuccess(output="as I see it", result=dice.choice(VERDICTS), usage=usage)
    return EffectSuccess(
        output=dice.choice((*TEXTS, LONG + str(dice.random()))),
        result=dice.choice((None, *RESULTS)),
        usage=usage,
        session=dice.choice((None, "s1")),
        mark=dice.choice((None, None, dice.randrange(5))),
    )


def _program(dice: Random) -> Answer:
    kind = dice.random()
    if kind < 0.1:
        return EffectFailure(error=Failure(type=dice.choice(("not_found", "wall_timeout"))))
    code = 0 if kind < 0.6 else dice.choice((1, 3))
    return EffectSuccess(output=dice.choice(("", "3 failed", LONG)), code=code)


def schema_problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """The one word of JSON Schema that plans by chance use."""
    wanted = schema.get("required", [])
    assert isinstance(wanted, list)
    here = value if isinstance(value, dict) else {}
    return next((f"{name} is missing" for name in wanted if name not in here), None)
