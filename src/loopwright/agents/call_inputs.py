"""What a call receives beside its prompt: variables, files for long values, and workspace files.

Variables come from the job and from `--env`; a call that fails because a key is missing gets a hint
if that key was withheld. Workspace files are read only below the workspace, at the time of the
call. A file that cannot be shown is named with the reason, and the agent is called anyway: it works
in the workspace and can read it itself.
"""

import os
import re
import tempfile
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.clis.command_line import own_variables
from loopwright.agents.files import FileProblem, read_beneath
from loopwright.agents.live_activity import record_warnings
from loopwright.agents.processes.process import ProgramEnd
from loopwright.agents.specs import Spec, parse_spec
from loopwright.kernel.event_parts import AgentCall
from loopwright.model.chat import FilePart, UserMessage, can_see, media_type
from loopwright.model.plan import Agent
from loopwright.ports import Answer, EffectFailure, EffectJob
from loopwright.prompts.calls import PROMPT_BYTES
from loopwright.prompts.excerpts import clip_end

SYSTEM_BYTES = 32_768
VARIABLE_BYTES = 64 * 1_024
_SHELL = ("bash", "-c")


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


MAX_FILE_BYTES = 10 * 1_024 * 1_024
LEAST_BYTES = 1_024  # of each file that is shown, however long the rest of the prompt is
# A service rejects the whole conversation if a file does not have the type of its name.
_STARTS: dict[str, bytes | tuple[bytes, ...]] = {
    "application/pdf": b"%PDF-",
    "image/gif": b"GIF8",
    "image/jpeg": b"\xff\xd8",
    "image/png": b"\x89PNG\r\n",
    "image/webp": b"RIFF",
}


def with_files(job: EffectJob) -> EffectJob:
    """The job with its files in the prompt, or in the first message of a conversation. Models that
    accept images and PDFs receive them as parts of that message; others receive their names.
    """
    if not job.prompt.files:
        return job
    room = PROMPT_BYTES - len(job.prompt.text.encode(errors="replace"))
    sections = ["## Context Files"]
    attached: list[FilePart] = []
    for name in job.prompt.files:
        part = _attached(job, name) if job.chat.messages else None
        if part is not None:
            attached.append(part)
            sections.append(f"### {name}\n\n(attached as {part.media_type})")
            continue
        shown = clip_end(_text(job, name), max(room, LEAST_BYTES))
        room -= len(shown.encode(errors="replace"))
        sections.append(f"### {name}\n\n{shown}")
    if not job.chat.messages:
        text = "\n\n".join([job.prompt.text, *sections])
        return replace(job, prompt=replace(job.prompt, text=text))
    first = job.chat.messages[0]
    if not isinstance(first, UserMessage):
        return job
    message = UserMessage(text="\n\n".join([first.text, *sections]), files=tuple(attached))
    return replace(job, chat=replace(job.chat, messages=(message, *job.chat.messages[1:])))


def _attached(job: EffectJob, name: str) -> FilePart | None:
    """An image or a PDF as a part of a message, if the model accepts it."""
    media = media_type(name)
    if media is None or job.agent is None or not can_see(job.agent, media):
        return None
    data = _read(job, name)
    if isinstance(data, FileProblem) or not data.startswith(_STARTS[media]):
        return None
    return FilePart(name=name, media_type=media, data=data)


def _read(job: EffectJob, name: str) -> bytes | FileProblem:
    return read_beneath(Path(job.workspace), name, MAX_FILE_BYTES, run=job.run, fixed=True)


def _text(job: EffectJob, name: str) -> str:
    data = _read(job, name)
    if isinstance(data, FileProblem):
        return f"(not shown: {data.message})"
    try:
        return data.decode()
    except UnicodeDecodeError:
        kind = media_type(name) or "binary"
        return f"(not shown: it is a {kind} file; open it in the workspace)"
