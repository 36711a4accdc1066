"""Errors for people and programs: one line with the fix, or one problem object.

Exit codes: 1 unexpected · 2 usage or bad definition · 6 not allowed · 7 server not reachable ·
8 conflict. Those of runs are in `terminal.py`.
"""

import errno
import re
from collections.abc import Iterator

import click

from loopwright.cli.verb import WORDS
from loopwright.errors import InputError, LoopwrightError
from loopwright.model.record import JsonValue
from loopwright.operations.problems import (
    ProblemReport,
    known_problem,
    missing_input,
    unknown_input,
    value_of_text,
    wrong_input,
)
from loopwright.syntax.document import suggest

_SECRET = re.compile(r"--?(?:[\w-]*-)?(?:token|api-?key|password|passwd|secret)s?", re.IGNORECASE)


def problem_of(error: Exception) -> ProblemReport:
    """The problem of an exception."""
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        return _simple(error.format_message(), exit_code=2)
    if isinstance(error, LoopwrightError):
        return known_problem(error)
    if isinstance(error, OSError) and error.errno is not None:
        return _surroundings(error)
    return ProblemReport(
        exit=1,
        status=500,
        code="unexpected",
        title="Something unexpected happened",
        detail=f"{type(error).__name__}: {error}",
        hint="this is a defect of loopwright; LOOPWRIGHT_DEBUG=1 shows where it happened",
    )


def _surroundings(error: OSError) -> ProblemReport:
    """Errors of the machine: a full disk behind the output, a deleted folder."""
    what = (error.strerror or str(error)).lower()
    detail, hint = what, "check the disk, the permissions and the limits of this machine, try again"
    if error.filename is not None:
        detail = f"{error.filename}: {what}"
    elif error.errno == errno.ENOENT:  # of all that needs no name, only the working directory
        detail, hint = "the current folder does not exist any more", "change to one that does"
    elif error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF):
        detail = f"the output cannot be written: {what}"
        hint = "free some space there, or write to another place; runs are not affected"
    return ProblemReport(
        exit=1,
        status=503,
        code="surroundings",
        title="The surroundings do not allow it",
        detail=detail,
        hint=hint,
    )


_TAKE_A_MESSAGE = ("loop", "run")
_SEVERAL = "unexpected extra argument"


def _usage(error: click.UsageError) -> ProblemReport:
    if isinstance(error, click.NoSuchOption) and _SECRET.fullmatch(error.option_name):
        return _simple(
            f"{error.option_name} is not taken from the command line, where everybody can see it",
            hint="put the secret into a variable of the environment, or into a file that only "
            "you can read, and name that file",
        )
    command = error.ctx.command_path if error.ctx else "loopwright"
    refused = _refused_input(error, command)
    if refused is not None:
        return known_problem(refused)
    if error.ctx and error.ctx.info_name in _TAKE_A_MESSAGE and _SEVERAL in error.message:
        hint = f"put a message of several words in quotes; `{command} --help` shows how"
        return _simple(_sentence(error.format_message()), hint=hint)
    return _simple(_sentence(error.format_message()), hint=f"`{command} --help` shows how")


def _refused_input(error: click.UsageError, command: str) -> InputError | None:
    """Errors that other interfaces report too, with the same code and the same message: the hint
    names the option. None: only a command line can cause it.
    """
    help_of = f"`{command} --help`"
    if isinstance(error, click.NoSuchOption) and error.option_name.startswith("--"):
        refused = unknown_input(error.option_name)
        # The library finds words similar that only share the dashes and some letters.
        known = [one.removeprefix("--") for one in error.possibilities or ()]
        meant = suggest(error.option_name.removeprefix("--"), known)
        near = f"; did you mean '--{meant}'?" if meant else ""
        refused.hint = f"there is no option {error.option_name}{near} {help_of} lists them"
        refused.hint = refused.hint if near else refused.hint.replace(f" {help_of}", f"; {help_of}")
        return refused
    param = getattr(error, "param", None)
    if param is None or error.ctx is None:
        return None
    spelling = _spelling(param, error.ctx.info_name or "")
    if isinstance(error, click.MissingParameter):
        given_as = spelling if spelling.startswith("--") else param.make_metavar(error.ctx)
        name = _ARGUMENTS.get((error.ctx.info_name or "", spelling), spelling)
        return missing_input(name, hint=f"give {given_as}; {help_of} shows how")
    for value in _values(param, error.ctx):
        found = wrong_input(spelling, _schema_of(param.type), value)
        if found is not None:
            is_option = spelling.startswith("--")
            place = f"with {spelling}" if is_option else f"as {param.make_metavar(error.ctx)}"
            near = f"{found.hint} " if (found.hint or "").startswith("did you") else ""
            found.hint = f"{near}given {place}; {help_of} shows how"
            return found
    return None


_ARGUMENTS = {
    ("run", "file"): "definition",
    ("approve", "id"): "gate",
    ("reject", "id"): "gate",
    ("continue", "id"): "gate",
    ("add", "--run"): "stored",
}
"""Arguments and options of commands that other interfaces name differently."""


def _spelling(param: click.Parameter, command: str) -> str:
    """The option, or the name of the argument as help shows it."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    shown = re.sub(r"[^A-Z_].*", "", (param.metavar or "").lstrip("[")).lower()
    name = shown or param.name or ""
    return _ARGUMENTS.get((command, name), name)


def _values(param: click.Parameter, ctx: click.Context) -> Iterator[JsonValue]:
    """The values that were given for a parameter."""
    given, _, _ = ctx.command.make_parser(ctx).parse_args([*ctx.meta.get(WORDS, ())])
    value, _ = param.consume_value(ctx, given)
    schema = _schema_of(param.type)
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, str):
            yield value_of_text(one, schema)


def _schema_of(kind: "click.ParamType[object]") -> dict[str, JsonValue]:
    """What the values of a parameter must be, as other interfaces describe it."""
    match kind:
        case click.Choice():
            return {"enum": [str(one) for one in kind.choices]}
        case click.IntRange():
            bounds = {"minimum": kind.min, "maximum": kind.max}
            return {"type": "integer", **{k: v for k, v in bounds.items() if v is not None}}
        case _ if kind is click.INT:
            return {"type": "integer"}
        case _ if kind is click.FLOAT:
            return {"type": "number"}
        case _:
            return {}


def _simple(detail: str, *, hint: str | None = None, exit_code: int = 2) -> ProblemReport:
    return ProblemReport(
        exit=exit_code, status=400, code="usage", title="Wrong usage", detail=detail, hint=hint
    )


def _sentence(text: str) -> str:
    """Click's messages, in the style of all the others."""
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    return text.replace(". (Did you mean", " (did you mean").removesuffix(".")
