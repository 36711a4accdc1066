"""Variables that a run was given with `--env`, and a hint when a key was not handed on."""

import re
from collections.abc import Awaitable, Mapping

import msgspec

from loopwright.agents.clis.arguments import own_variables
from loopwright.agents.clis.table import CLIS
from loopwright.kernel.calls import AgentCall
from loopwright.model.plan import Agent
from loopwright.ports import Answer, Failed, Job
from loopwright.programs.activity_report import record_warnings
from loopwright.programs.specs import Spec, parse_spec

KEY = re.compile(r"[A-Z0-9_]+_API_KEY")
TOKEN = re.compile(r"[A-Z0-9_]+_(?:TOKEN|ACCESS_KEY)")
_ABOUT_KEYS = re.compile(
    r"api.?key|credential|unauthori[sz]ed|authenticat|not logged in|log ?in (?:first|to|with)"
    r"|sign(?:ed)? ?in|(?:no|missing|invalid|expired|access|auth|bearer) token"
    r"|token (?:is |was |has )?(?:missing|invalid|expired|required|not)|\b401\b",
    re.IGNORECASE,
)
_FAILURES = ("exit", "agent", "crashed", "not_signed_in")
MOST_NAMED = 3


def with_variables(job: Job, base: Mapping[str, str], given: Mapping[str, str]) -> Job:
    """A job whose program has these variables. The values are never part of a plan or an event."""
    known = {**base, **given}
    values = {name: known[name] for name in job.pass_env if name in known}
    if not isinstance(job.call, AgentCall) or job.agent is None:
        return msgspec.structs.replace(job, env={**values, **job.env})
    agent = msgspec.structs.replace(job.agent, env={**job.agent.env, **values})
    return msgspec.structs.replace(job, agent=agent)


def with_key_hint(
    answer: Answer | Awaitable[Answer], job: Job, base: Mapping[str, str]
) -> Answer | Awaitable[Answer]:
    """The answer. When a call failed for want of a key, a warning names the keys of the environment
    that the agent did not get.
    """
    if isinstance(answer, Awaitable):
        return _later(answer, job, base)
    return _hinted(answer, job, base)


async def _later(answer: Awaitable[Answer], job: Job, base: Mapping[str, str]) -> Answer:
    return _hinted(await answer, job, base)


def _hinted(answer: Answer, job: Job, base: Mapping[str, str]) -> Answer:
    if not isinstance(answer, Failed) or answer.error.type not in _FAILURES:
        return answer
    words = f"{answer.error.detail}\n{answer.output[-4_000:]}"
    names = withheld_keys(job.agent or Agent(), base, words)
    if names:
        named = ", ".join(names[:MOST_NAMED])
        is_set = "is set but was" if len(names) == 1 else "are set but were"
        hint = f"{named} {is_set} not passed to the agent; add --env {names[0]}"
        record_warnings(job, [hint])
    return answer


def withheld_keys(agent: Agent, base: Mapping[str, str], words: str) -> list[str]:
    """Names of variables that look like keys and that the program of an agent did not get, if its
    words are about a missing key or signing in. One that the words name comes first.
    """
    spec = parse_spec(agent.spec or "")
    if not isinstance(spec, Spec) or spec.kind in ("model", "script"):
        return []
    got = {*agent.env, *agent.pass_env}
    if spec.kind in CLIS:
        got |= {*own_variables(spec.kind, base), *CLIS[spec.kind].credentials}
    about_keys = _ABOUT_KEYS.search(words) is not None
    found = [
        name
        for name, value in base.items()
        if value and name not in got and (KEY.fullmatch(name) or TOKEN.fullmatch(name))
    ]
    named = sorted(name for name in found if re.search(rf"\b{name}\b", words))
    return named or (sorted(found) if about_keys else [])
