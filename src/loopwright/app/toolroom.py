"""Tools on real programs: the workshop with the supervisor behind it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic

from loopwright.app.schemas import schema_problem
from loopwright.app.web_pages import PublicWeb
from loopwright.model.sandbox import strictest
from loopwright.programs.environment import (
    SWEEP_VARIABLE,
    CannotStart,
    agent_environment,
    resolve_program,
)
from loopwright.programs.files import find_private
from loopwright.programs.process import Program, ProgramEnd
from loopwright.programs.sandbox import Confinement, Sandbox, works
from loopwright.tools.processes import Command, OnRunning, OnStdout
from loopwright.tools.tree import Private
from loopwright.tools.workshop import Workshop

KEPT_STDOUT_BYTES = 64 * 1024
PRIVATE_SECONDS = 1.0


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
    return Workshop(
        programs,
        schema_problem,
        find_private=_PrivatePaths(sandbox).find,
        web=PublicWeb(),
        record_work=sandbox.record_work,
    )


class _PrivatePaths:
    """What file tools in a workspace do not see. It is looked up again after a second: one search
    opens thousands of files.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[str, tuple[float, Private]] = {}

    def find(self, workspace: str) -> Private:
        now = monotonic()
        known = self._known.get(workspace)
        if known is not None and now - known[0] < PRIVATE_SECONDS:
            return known[1]
        found = find_private(self._sandbox.hidden_paths(workspace))
        private = Private(found.folders | found.files, found.worktrees)
        self._known = {workspace: (now, private)}
        return private
