"""Errors for people and programs: one line with the fix, or one problem object.

Exit codes: 1 unexpected · 2 usage or bad definition · 6 not allowed · 7 server not reachable ·
8 conflict. Those of runs are in `terminal.py`.
"""

import errno
import re

import click

from loopwright.errors import LoopwrightError
from loopwright.operations.problems import ProblemReport, known_problem

_SECRET = re.compile(r"--?(?:[\w-]*-)?(?:token|api-?key|password|passwd|secret)s?", re.IGNORECASE)


def problem_of(error: Exception) -> ProblemReport:
    """The problem that an exception stands for."""
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
    """What the machine refuses: a full disk behind the output, a folder that is gone."""
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
    if error.ctx and error.ctx.info_name in _TAKE_A_MESSAGE and _SEVERAL in error.message:
        hint = f"put a message of several words in quotes; `{command} --help` shows how"
        return _simple(_sentence(error.format_message()), hint=hint)
    return _simple(_sentence(error.format_message()), hint=f"`{command} --help` shows how")


def _simple(detail: str, *, hint: str | None = None, exit_code: int = 2) -> ProblemReport:
    return ProblemReport(
        exit=exit_code, status=400, code="usage", title="Wrong usage", detail=detail, hint=hint
    )


def _sentence(text: str) -> str:
    """Click's messages, in the style of all the others."""
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    return text.replace(". (Did you mean", " (did you mean").removesuffix(".")
