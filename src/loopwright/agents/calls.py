"""One call of an agent: what it receives beside its prompt, and why it failed.

Variables come from the job and from `--env`; a call that fails because a key is missing gets a hint
if that key was withheld. A policy reads the failures of a call: how its program ended, its cost
limits, and the limits of the provider, whose statement about them is converted to a time on our
clock. `codex_model` finds out which model Codex used, which its events do not name.
"""

import contextlib
import os
import re
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.clis.command_line import own_variables
from loopwright.agents.clis.loose_json import text
from loopwright.agents.clis.transcript import LimitReset, TimeOfDay
from loopwright.agents.processes.process import ProgramEnd
from loopwright.agents.specs import Spec, parse_spec
from loopwright.kernel.event_parts import AgentCall, Failure, is_secret_name
from loopwright.kernel.events import Usage
from loopwright.kernel.limits import COST_UNKNOWN
from loopwright.model.patterns import LazyPattern
from loopwright.model.plan import Agent
from loopwright.model.policy import FailureKind
from loopwright.model.record import JsonValue
from loopwright.ports import ActivityEntry, Answer, EffectFailure, EffectJob, EffectSuccess

SYSTEM_BYTES = 32_768
VARIABLE_BYTES = 64 * 1_024
_SHELL = ("bash", "-c")
STDERR_CHARS = 32 * 1_024
_PATH_STARTS = ("/", "./", "../", "~")


def seconds(ms: int | None) -> float | None:
    """A limit in the form of the process layer."""
    return None if ms is None else ms / 1_000


def job_variables(job: EffectJob) -> dict[str, str]:
    """Where in its run a program is."""
    return {
        "LOOPWRIGHT_RUN": job.run,
        "LOOPWRIGHT_DEPTH": str(job.origin.depth),
        "LOOPWRIGHT_PATH": job.path,
        "LOOPWRIGHT_AGENT": job.call.agent if isinstance(job.call, AgentCall) else "",
        "LOOPWRIGHT_ITERATION": str(job.iteration),
        "LOOPWRIGHT_ATTEMPT": str(job.attempt),
        "LOOPWRIGHT_EFFECT": job.effect,
        "LOOPWRIGHT_SESSION": job.prompt.session or "",
        "LOOPWRIGHT_WORKSPACE": job.workspace,
        "LOOPWRIGHT_SWEEP": job.origin.token,
    }


def passed_on_variables(base: Mapping[str, str], agent: Agent) -> dict[str, str]:
    """Variables that the definition names without a value: a key, a region. Only the names are in
    the plan and in the log.
    """
    return {name: base[name] for name in agent.pass_env if name in base}


def end_notes(end: ProgramEnd) -> list[str]:
    """What is worth telling about an end that went well."""
    notes = []
    if end.stdout_truncated:
        notes.append("the output was longer than is kept and is truncated")
    if end.survivors_killed:
        notes.append(f"{end.survivors_killed} leftover processes were ended")
    return notes


@contextmanager
def text_file(text: str, suffix: str = ".txt") -> Iterator[str]:
    """A file with a text in it, for the time of a call."""
    handle, name = tempfile.mkstemp(prefix="loopwright-", suffix=suffix)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        yield name
    finally:
        Path(name).unlink(missing_ok=True)


class ScriptValues(NamedTuple):
    """The values of a script: its variables, and the files that some of them name."""

    variables: dict[str, str]
    files: dict[str, str]  # the path of the file with the value, by the name of the value


def _asks_for_file(script: str, name: str, values: Mapping[str, str]) -> bool:
    """Whether a script needs NAME_FILE, and does not itself handle that it is missing."""
    file = f"{name}_FILE"
    return file in script and f"{file}:-" not in script and file not in values


@contextmanager
def as_variables(values: Mapping[str, str], script: str = "") -> Iterator[ScriptValues]:
    """Values for a script: in a variable if it fits, and in a file whose name is in NAME_FILE if it
    does not fit or the script requests the file. A value is never part of a command.
    """
    variables: dict[str, str] = {}
    files: dict[str, str] = {}
    try:
        for name, value in values.items():
            plain = value.replace("\0", "")
            data = plain.encode(errors="replace")
            fits = len(data) <= VARIABLE_BYTES
            variables[name] = data.decode() if fits else ""
            if fits and not _asks_for_file(script, name, values):
                continue
            handle, files[name] = tempfile.mkstemp(prefix="loopwright-", suffix=".txt")
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
        named = {f"{name}_FILE": path for name, path in files.items()}
        yield ScriptValues({**variables, **named}, files)
    finally:
        for path in files.values():
            Path(path).unlink(missing_ok=True)


@contextmanager
def python_variables(job: EffectJob) -> Iterator[dict[str, str]]:
    """Settings that keep Python from reading bytecode that an agent left behind, and from writing
    any into the workspace: an empty folder instead of every `__pycache__`.
    """
    if not job.confinement.fresh_bytecode:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="loopwright-check-", ignore_cleanup_errors=True) as at:
        yield {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": at}


def reading_files(argv: tuple[str, ...], values: ScriptValues) -> tuple[str, ...]:
    """The command, of which a shell script first reads the values that are only in files."""
    large = [name for name in values.files if not values.variables[name]]
    if argv[:2] != _SHELL or not large:
        return argv
    # A letter preserves the newlines at the end, which `$( )` would remove.
    reads = [f'export -n {n}; {n}=$(cat "${n}_FILE"; printf x); {n}=${{{n}%x}};' for n in large]
    return (*_SHELL, f"{' '.join(reads)} {argv[2]}", *argv[3:])


def _plain_values(agent: Agent) -> dict[str, str]:
    """Variables for the agent's settings in a definition."""
    values: dict[str, str] = {}
    if agent.model:
        values["LOOPWRIGHT_MODEL"] = agent.model
    if agent.permission:
        values["LOOPWRIGHT_PERMISSION"] = agent.permission
    if agent.tools is not None:
        values["LOOPWRIGHT_TOOLS"] = ",".join(agent.tools)
    if agent.deny_tools:
        values["LOOPWRIGHT_DENIED_TOOLS"] = ",".join(agent.deny_tools)
    if agent.options:
        values["LOOPWRIGHT_OPTIONS"] = msgspec.json.encode(agent.options).decode()
    return values


@contextmanager
def open_value_files(job: EffectJob, agent: Agent) -> Iterator[dict[str, str]]:
    """Variables for data that does not fit on stdin; their files are deleted afterwards."""
    values: dict[str, str] = {}
    files: list[Path] = []

    def as_file(text: str) -> str:
        handle, name = tempfile.mkstemp(prefix="loopwright-", suffix=".txt")
        files.append(Path(name))
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        return name

    try:
        values |= _plain_values(agent)
        if agent.system and len(agent.system.encode()) <= SYSTEM_BYTES:
            values["LOOPWRIGHT_SYSTEM"] = agent.system
        elif agent.system:
            values["LOOPWRIGHT_SYSTEM_FILE"] = as_file(agent.system)
        if job.prompt.schema is not None:
            schema = msgspec.json.encode(job.prompt.schema).decode()
            values["LOOPWRIGHT_RESULT_SCHEMA"] = as_file(schema)
        yield values
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def given_secrets(
    base: Mapping[str, str], agent: Agent, env: Mapping[str, str], pass_env: Sequence[str]
) -> dict[str, str]:
    """Variables whose values are not stored: those with names of secrets, and those that the
    definition or `--env` passes on, unless they are paths.
    """
    named = {**base, **env, **agent.env}
    passed = {
        name: named[name]
        for name in (*agent.pass_env, *pass_env)
        if name in named and not named[name].startswith(_PATH_STARTS)
    }
    return {**passed, **{name: named[name] for name in named if is_secret_name(name)}}


KEY = LazyPattern(r"[A-Z0-9_]+_API_KEY")
TOKEN = LazyPattern(r"[A-Z0-9_]+_(?:TOKEN|ACCESS_KEY)")
_ABOUT_KEYS = LazyPattern(
    r"api.?key|credential|unauthori[sz]ed|authenticat|not logged in|log ?in (?:first|to|with)"
    r"|sign(?:ed)? ?in|(?:no|missing|invalid|expired|access|auth|bearer) token"
    r"|token (?:is |was |has )?(?:missing|invalid|expired|required|not)|\b401\b",
    re.IGNORECASE,
)
_FAILURES = ("exit", "agent", "crashed", "not_signed_in")
MOST_NAMED = 3


def with_variables(job: EffectJob, base: Mapping[str, str], given: Mapping[str, str]) -> EffectJob:
    """A job whose program has these variables. The values are never part of a plan or an event."""
    known = {**base, **given}
    values = {name: known[name] for name in job.origin.pass_env if name in known}
    if not isinstance(job.call, AgentCall) or job.agent is None:
        env = {**values, **job.confinement.env}
        return replace(job, confinement=replace(job.confinement, env=env))
    agent = msgspec.structs.replace(job.agent, env={**job.agent.env, **values})
    return msgspec.structs.replace(job, agent=agent)


def with_key_hint(
    answer: Answer | Awaitable[Answer], job: EffectJob, base: Mapping[str, str]
) -> Answer | Awaitable[Answer]:
    """The answer. If a call failed because a key is missing, a warning names the keys of the
    environment that the agent did not receive.
    """
    if isinstance(answer, Awaitable):
        return _later(answer, job, base)
    return _hinted(answer, job, base)


async def _later(answer: Awaitable[Answer], job: EffectJob, base: Mapping[str, str]) -> Answer:
    return _hinted(await answer, job, base)


def _hinted(answer: Answer, job: EffectJob, base: Mapping[str, str]) -> Answer:
    if not isinstance(answer, EffectFailure) or answer.error.type not in _FAILURES:
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
    """Names of variables that look like keys and that the agent's program did not receive, if its
    output is about a missing key or signing in. A variable named in the output comes first.
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


# -- what happened --------------------------------------------------------------------------------


def record_stderr(job: EffectJob, text: str) -> None:
    """Record the end of what a program wrote to standard error during a call that succeeded. When
    a call fails, its failure has it.
    """
    words = job.activity.redact(text).strip()
    if not words:
        return
    kept = words
    if len(words) > STDERR_CHARS:  # not from the middle of a line, where half of a secret may be
        kept = words[-STDERR_CHARS:].partition("\n")[2] or "(one long line; not stored)"
    last = kept.rpartition("\n")[2].strip()
    job.activity.record(ActivityEntry(kind="stderr", text=last, result=kept))


def record_warnings(job: EffectJob, texts: Iterable[str]) -> None:
    """Record what people should know about a call; `logs` and `show` print it."""
    for warning in texts:
        job.activity.record(ActivityEntry(kind="warning", text=job.activity.redact(warning)))


TAIL_CHARS = 2_000
LAST_LINE_CHARS = 400

# A bare number may as well be that of a line in a traceback.
_CODE = r"(?:https?(?:/[\d.]+)?|status|error|code)[\s:=(]{0,4}(?:code[\s:=]{0,3})?"
_BUSY = r"service unavailable|at capacity|overloaded(?! (?:function|method|operator))"
_SPEAKS_OF: tuple[tuple[LazyPattern, FailureKind], ...] = (
    (LazyPattern(rf"rate.?limit|too many requests|{_CODE}429\b", re.I), "rate_limited"),
    (LazyPattern(rf"{_BUSY}|{_CODE}(?:503|529)\b", re.I), "overloaded"),
)
_NAMES_ERROR = LazyPattern(r"(?=\S).*[^\W\d_]")
_RUNTIME = LazyPattern(r"Node\.js v[\d.]+\s*$")  # follows the stack trace of Node
_RETRY_AFTER = LazyPattern(r"retry.?after[\"':= ]+(\d{1,6})", re.I)


def failure_of(end: ProgramEnd, status: str = "") -> Failure | None:
    """Why a program's end is a failure, or None if it ended with code 0. `status` is the agent's
    last report about its own state, which often explains a timeout.
    """
    last = f"; the agent's last status: {status}" if status else ""
    match end.how:
        case "exited" if end.code == 0:
            return None
        case "answered":
            return None
        case "exited":
            return _spoken(f"the program exited with code {end.code}", end)
        case "signalled":
            return _spoken(f"the program was ended by signal {end.signal}", end)
        case "idle_timeout":
            detail = (
                f"timed out (inactivity) after {end.seconds:.1f} s{_silence(end.limit_s, last)}"
            )
            return Failure(type="idle_timeout", detail=detail)
        case "wall_timeout":
            limit = f" (limit: {_length(end.limit_s)})" if end.limit_s else ""
            detail = f"timed out (wall-clock) after {end.seconds:.1f} s{limit}{last}"
            return Failure(type="wall_timeout", detail=detail)
        case "not_started":
            return not_started(end.error or "the program could not be started")


def _silence(limit_s: float | None, last: str) -> str:
    """The limit on silence, the last status of the agent, and how to raise the limit."""
    if limit_s is None:
        return last
    return (
        f": no output for {_length(limit_s)}{last}; allow more with --budget "
        f"idle={_length(2 * limit_s)} or `idle` in the definition"
    )


def _length(seconds: float) -> str:
    """A duration in the format of `--budget`."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g}s"


def not_started(error: str) -> Failure:
    """A program that could not be started; a shortage of the machine is waited out."""
    problem, _, detail = error.partition(": ")
    kinds: dict[str, FailureKind] = {
        "workspace-gone": "workspace_gone",
        "resource": "host_shortage",
        "git-settings-changed": "exit",
    }
    return Failure(type=kinds.get(problem, "not_found"), detail=detail or error)


def _spoken(what: str, end: ProgramEnd) -> Failure:
    """An exit with output on stderr; the text may show that a retry is worthwhile."""
    tail = end.stderr_tail.decode(errors="replace").strip()[-TAIL_CHARS:]
    kind: FailureKind = "exit"
    for pattern, speaks_of in _SPEAKS_OF:
        if pattern.search(tail):
            kind = speaks_of
            break
    wait = _RETRY_AFTER.search(tail)
    return Failure(
        type=kind,
        detail=_with_error(what, tail),
        retry_after_ms=int(wait.group(1)) * 1_000 if wait and kind != "exit" else None,
    )


def _with_error(what: str, tail: str) -> str:
    """What happened with the error itself on the first line, which headlines show, and the whole
    text below it.
    """
    if not tail:
        return what
    error = error_line(tail)
    return f"{what}: {tail}" if tail.startswith(error) else f"{what}: {error}\n{tail}"


def error_line(text: str) -> str:
    """The line of an error output that names the error: the last one, as in a traceback, that is
    neither indented nor without letters.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_ERROR.match(line) and not _RUNTIME.match(line)]
    chosen = named[-1:] or lines[-1:]
    return chosen[0].strip()[:LAST_LINE_CHARS] if chosen else ""


PriceUsage: TypeAlias = Callable[[Agent, str, Usage], Usage]
"""The usage of an agent's call with its cost, where a price is known; the text names the model."""

UNKNOWN_COST = Usage(unpriced=1)


def as_reported(agent: Agent, model: str, usage: Usage) -> Usage:
    """A price list without any price."""
    return usage


def live_failure(job: EffectJob, agent: Agent, usage: Usage) -> Failure | None:
    """Why a running call must end now: the limit that its usage exceeds."""
    if agent.max_usd is not None and usage.usd > agent.max_usd:
        return _over_call_limit(agent.max_usd, usage)
    words = job.meter.report(usage)
    return None if words is None else Failure(type="budget_limit", detail=words, outer=True)


def limited(job: EffectJob, agent: Agent, answer: Answer) -> Answer:
    """The answer of a call that has ended, unless it cost more than one call may, or an unknown
    amount where USD are limited.
    """
    usage = answer.usage
    if usage is None or isinstance(answer, EffectFailure):
        return answer
    failure: Failure | None = None
    if agent.max_usd is not None and usage.usd > agent.max_usd:
        failure = _over_call_limit(agent.max_usd, usage)
    elif (
        usage.unpriced and job.limits.covered and (job.limits.budgeted or agent.max_usd is not None)
    ):
        failure = Failure(type="budget_limit", detail=COST_UNKNOWN)
    return answer if failure is None else as_failure(answer, failure)


def call_budget(job: EffectJob, agent: Agent) -> float | None:
    """The USD that one call may cost: the agent's own limit or what the budgets around it leave."""
    known = [one for one in (agent.max_usd, job.limits.remaining_usd) if one is not None]
    return min(known, default=None)


def is_outer_limit(job: EffectJob, agent: Agent) -> bool:
    """Whether a budget around the call is the smaller limit of the two."""
    left = job.limits.remaining_usd
    return left is not None and (agent.max_usd is None or left <= agent.max_usd)


def with_price(price: PriceUsage, agent: Agent, answer: Answer) -> Answer:
    """The answer of a call with its cost."""
    if answer.usage is None or not answer.usage.unpriced:
        return answer
    return replace(answer, usage=price(agent, answer.model, answer.usage))


def _over_call_limit(most: float, usage: Usage) -> Failure:
    detail = f"spent {usage.usd:.4f} of {most:g} USD in one call"
    return Failure(type="budget_limit", detail=detail)


def as_failure(answer: EffectSuccess, failure: Failure) -> EffectFailure:
    """An answer whose call failed nevertheless."""
    return EffectFailure(
        error=failure,
        output=answer.output,
        usage=answer.usage,
        session=answer.session,
        code=answer.code,
        mark=answer.mark,
        tools=answer.tools,
        model=answer.model,
    )


LONGEST_S = 8 * 86_400
"""A longer time is not a rate limit that will be renewed, but an error."""
MARGIN_S = 2


def resets_at(reset: LimitReset | None, now_s: float) -> int | None:
    """When a limit ends, in milliseconds since the epoch; None if unknown."""
    if reset is None:
        return None
    moment = _moment(reset, now_s) + MARGIN_S
    if not 0 < moment - now_s <= LONGEST_S:
        return None
    return int(moment * 1_000)


def _moment(reset: LimitReset, now_s: float) -> float:
    if reset.at is not None:
        return max(float(reset.at), now_s)
    if reset.after is not None:
        return now_s + reset.after
    assert reset.clock is not None
    return _next(reset.clock, now_s)


def _next(clock: TimeOfDay, now_s: float) -> float:
    """The next time that a clock in that zone shows this time of day."""
    here = datetime.fromtimestamp(now_s, tz=_zone(clock.zone)).astimezone(_zone(clock.zone))
    due = here.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return (due if due > here else due + timedelta(days=1)).timestamp()


def _zone(name: str) -> tzinfo | None:
    """A zone by its name; the zone of this machine if there is no name or it is unknown."""
    if name:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - takes time to load

        with contextlib.suppress(ZoneInfoNotFoundError, ValueError, OSError):
            return ZoneInfo(name)
    return datetime.now().astimezone().tzinfo


MOST_LINES = 200
MOST_FILES = 20_000


def codex_model(env: Mapping[str, str], session: str | None = None) -> str:
    """The model of a session, or the one in the settings; an empty text if neither names one."""
    home = Path(env.get("CODEX_HOME") or Path(env.get("HOME") or "/nonexistent") / ".codex")
    try:
        return (_of_session(home, session) if session else "") or _configured(home)
    except OSError:
        return ""


def _configured(home: Path) -> str:
    try:
        named = tomllib.loads((home / "config.toml").read_text(encoding="utf-8")).get("model")
    except (OSError, ValueError):
        return ""
    return named if isinstance(named, str) else ""


def _of_session(home: Path, session: str) -> str:
    """The newest model in the beginning of a session's file. The name of the file ends with the
    session, the newest folders are named last.
    """
    for day in sorted((home / "sessions").glob("*/*/*"), reverse=True)[:MOST_FILES]:
        for file in day.iterdir():
            if file.stem.endswith(session):
                return _named_in(file)
    return ""


def _named_in(file: Path) -> str:
    named = ""
    with file.open("rb") as lines:
        for _, line in zip(range(MOST_LINES), lines, strict=False):
            try:
                event: JsonValue = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if text(event, "type") == "turn_context":
                named = text(event, "payload", "model") or named
    return named
