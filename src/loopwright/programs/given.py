"""What a program is given beside its prompt: variables, and files for what is too long."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from loopwright.kernel.calls import AgentCall
from loopwright.model.plan import Agent
from loopwright.ports import Job
from loopwright.programs.process import ProgramEnd

SYSTEM_BYTES = 32_768
VARIABLE_BYTES = 64 * 1_024
_SHELL = ("bash", "-c")


def seconds(ms: int | None) -> float | None:
    """A limit as the process layer wants it."""
    return None if ms is None else ms / 1_000


def job_variables(job: Job) -> dict[str, str]:
    """Where in its run a program is."""
    return {
        "LOOPWRIGHT_RUN": job.run,
        "LOOPWRIGHT_DEPTH": str(job.depth),
        "LOOPWRIGHT_PATH": job.path,
        "LOOPWRIGHT_AGENT": job.call.agent if isinstance(job.call, AgentCall) else "",
        "LOOPWRIGHT_ITERATION": str(job.iteration),
        "LOOPWRIGHT_ATTEMPT": str(job.attempt),
        "LOOPWRIGHT_EFFECT": job.effect,
        "LOOPWRIGHT_SESSION": job.session or "",
        "LOOPWRIGHT_WORKSPACE": job.workspace,
        "LOOPWRIGHT_SWEEP": job.token,
    }


def handed_on(base: Mapping[str, str], agent: Agent) -> dict[str, str]:
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
    """Values for a script: in a variable when it fits, and in a file whose name is in NAME_FILE
    when it does not fit or the script asks for the file. No value is ever part of a command.
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
def python_variables(job: Job) -> Iterator[dict[str, str]]:
    """What keeps Python from reading bytecode that an agent left behind, and from writing any into
    the workspace: an empty folder in place of every `__pycache__`.
    """
    if not job.fresh_bytecode:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="loopwright-check-", ignore_cleanup_errors=True) as at:
        yield {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": at}


def reading_files(argv: tuple[str, ...], values: ScriptValues) -> tuple[str, ...]:
    """The command, of which a shell script first reads the values that are only in files."""
    large = [name for name in values.files if not values.variables[name]]
    if argv[:2] != _SHELL or not large:
        return argv
    # A letter keeps the newlines at the end, which `$( )` would take away.
    reads = [f'export -n {n}; {n}=$(cat "${n}_FILE"; printf x); {n}=${{{n}%x}};' for n in large]
    return (*_SHELL, f"{' '.join(reads)} {argv[2]}", *argv[3:])


def _plain_values(agent: Agent) -> dict[str, str]:
    """Variables for what a definition says about an agent."""
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
def handed_over(job: Job, agent: Agent) -> Iterator[dict[str, str]]:
    """Variables for what does not fit on stdin; files behind them are gone afterwards."""
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
        if job.schema is not None:
            schema = msgspec.json.encode(job.schema).decode()
            values["LOOPWRIGHT_RESULT_SCHEMA"] = as_file(schema)
        yield values
    finally:
        for file in files:
            file.unlink(missing_ok=True)
