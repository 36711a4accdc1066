"""Tools on real programs: the workshop with the supervisor behind it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from loopwright.app.schemas import schema_problem
from loopwright.model.sandbox import strictest
from loopwright.programs.environment import (
    SWEEP_VARIABLE,
    CannotStart,
    agent_environment,
    resolve_program,
)
from loopwright.programs.process import Program, ProgramEnd
from loopwright.programs.sandbox import Confinement, Sandbox, works
from loopwright.tools import Workshop
from loopwright.tools.processes import Command, OnRunning, OnStdout

KEPT_STDOUT_BYTES = 64 * 1024


class SupervisedPrograms:
    """Runs the programs of tools as those of agents are run: under a supervisor that leaves
    nothing behind, with an environment that holds what is allowed and no more.
    """

    def __init__(
        self, environment: Mapping[str, str], token: str, sandbox: Sandbox | None = None
    ) -> None:
        self._sandbox = sandbox or Sandbox()
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
        if command.root:  # it starts in the workspace, and then changes to the folder it is for
            program = replace(program, cwd=command.root)
        confinement = self._confinement(command)
        if self._sandbox.is_off(confinement):
            program = replace(program, cwd=command.cwd)
        return await self._sandbox.run(
            program, confinement, on_stdout=on_stdout, on_running=on_running
        )

    def _confinement(self, command: Command) -> Confinement:
        """How a command is confined. Where bubblewrap does not work, a command that reads is held
        by the rules about arguments alone.
        """
        level = command.sandbox or self._sandbox.policy.default
        reads = command.wall == "reading" and works() is None
        writes = command.wall == "writing"
        return Confinement(
            level=strictest(level, "readonly" if reads else "workspace" if writes else None),
            commands="reading" if command.wall == "reading" else "all",
            start=command.cwd,
            offline=command.offline,
        )


def open_workshop(
    environment: Mapping[str, str], token: str, sandbox: Sandbox | None = None
) -> Workshop:
    """The workshop of this process; `token` marks every process that it starts."""
    sandbox = sandbox or Sandbox()
    programs = SupervisedPrograms(environment, token, sandbox)
    return Workshop(programs, schema_problem, sandbox.policy.hidden)
