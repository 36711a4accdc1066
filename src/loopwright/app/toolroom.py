"""Tools on real programs: the workshop with the supervisor behind it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from loopwright.app.schemas import schema_problem
from loopwright.model.access import Reach
from loopwright.programs.environment import (
    SWEEP_VARIABLE,
    CannotStart,
    agent_environment,
    resolve_program,
)
from loopwright.programs.process import Program, ProgramEnd
from loopwright.programs.sandbox import Hold, run_held, works
from loopwright.tools import Workshop
from loopwright.tools.processes import Command, OnRunning, OnStdout

KEPT_STDOUT_BYTES = 64 * 1024


class SupervisedPrograms:
    """Runs the programs of tools as those of agents are run: under a supervisor that leaves
    nothing behind, with an environment that holds what is allowed and no more.
    """

    def __init__(self, environment: Mapping[str, str], token: str) -> None:
        self._base = environment
        self._token = token

    def environment(self, pass_on: Iterable[str]) -> dict[str, str]:
        handed_on = {name: self._base[name] for name in pass_on if name in self._base}
        return agent_environment(self._base, handed_on, {SWEEP_VARIABLE: self._token})

    def secret(self, name: str) -> str | None:
        return self._base.get(name)

    def find(self, argv0: str, cwd: str, path: str | None) -> str:
        try:
            return resolve_program(argv0, cwd, path)
        except CannotStart as why:
            raise LookupError(why.detail) from None

    async def run(
        self, command: Command, on_stdout: OnStdout, on_running: OnRunning | None = None
    ) -> ProgramEnd:
        program = Program(
            argv=command.argv,
            cwd=command.cwd,
            env=command.env,
            wall_s=command.wall_s,
            stdout_cap=KEPT_STDOUT_BYTES,
            stderr_cap=command.stderr_cap,
        )
        hold = _hold(command)
        if hold is not None:  # it starts in the workspace, and then goes where it is to be
            program = replace(program, cwd=command.root)
        return await run_held(program, hold, on_stdout=on_stdout, on_running=on_running)


def _hold(command: Command) -> Hold | None:
    """The wall around a command. One for reading may be missing: the rules about arguments hold
    alone then. One for writing is promised to be there, so nothing starts without it.
    """
    no_wall = command.wall == "none" or (command.wall == "reading" and works() is not None)
    if no_wall and not command.offline:
        return None
    reach = Reach(writes=False, commands="reading") if command.wall == "reading" else Reach()
    return Hold(reach=reach, start=command.cwd, offline=command.offline)


def open_workshop(environment: Mapping[str, str], token: str) -> Workshop:
    """The workshop of this process; `token` marks every process that it starts."""
    return Workshop(SupervisedPrograms(environment, token), schema_problem)
