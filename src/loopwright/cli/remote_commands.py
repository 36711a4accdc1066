"""Commands on runs of a remote server, with the same output and exit codes as local ones."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from loopwright.cli.remote_client import RemoteClient
from loopwright.cli.served_run import follow_served_run
from loopwright.cli.terminal import (
    Terminal,
)
from loopwright.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loopwright.model.record import JsonValue

ALL = "all"
RUNS = "/api/v1/runs"
LOOPS = "/api/v1/loops"


def remote_events(
    terminal: Terminal, run: str, after: int, *, follow: bool, in_dialect: bool
) -> "Iterator[dict[str, JsonValue]]":
    """The events of a remote run, or those in the format of its own system."""
    remote, retry = terminal.remote, not terminal.options.no_retry
    assert remote is not None
    if in_dialect:
        return remote.told(run, after, follow=follow, retry=retry)
    return remote.follow(run, after, retry=retry) if follow else remote.events(run, after)


def answer_remote_gate(
    terminal: Terminal, reference: str, decision: str, body: "dict[str, JsonValue]", *, go_on: bool
) -> int:
    """Answer a gate there; the server drives the run on, which is seen through."""
    remote = terminal.remote
    assert remote is not None
    gate = remote.gate(reference)
    open_gates = remote.gates() if go_on else ()
    run = next((str(one["run"]) for one in open_gates if one["id"] == gate), "")
    seen = int(remote.get(f"{RUNS}/{quote(run)}/snapshot")["seq"]) if run else 0
    summary = remote.post(f"/api/v1/gates/{quote(gate)}/{decision}", body)
    if run:
        return follow_served_run(terminal, run, seen)
    if terminal.as_json:
        terminal.put_json(summary)
    else:
        terminal.say(f"{decision}: {gate}; {summary['run']} continues at {remote.url}")
    return 0


def control_remote_runs(terminal: Terminal, reference: str, verb: str, word: str) -> int:
    """Pause, resume or stop one run there, or all."""
    remote = terminal.remote
    assert remote is not None
    wanted = {"pause": ("running", "waiting"), "resume": ("paused",)}.get(
        verb, ("running", "waiting", "paused")
    )
    if reference == ALL:
        runs = [str(item["run"]) for item in remote.runs(wanted)[0]]
    else:
        runs = [remote.run(reference)]
        _check_open(remote, runs[0], verb)
    for run in runs:
        answer = remote.post(f"{RUNS}/{quote(run)}/{verb}")
        if verb == "stop" and isinstance(answer, dict) and answer.get("stop") == "stopping":
            left = ", ".join(str(pid) for pid in answer.get("processes", ()))
            why = f"its processes {left} have not ended yet" if left else "it has not ended yet"
            raise Conflict(f"{run} is stopping: {why}", code="stopping")
    if terminal.as_json:
        terminal.put_json({word: list(runs), "count": len(runs), "runs": list(runs)})
    for run in [] if terminal.as_json else runs:
        terminal.say(f"{run}: {word}")
    return 0


def _check_open(remote: RemoteClient, run: str, verb: str) -> None:
    """A stop of a run that has ended is a conflict on the command line."""
    if verb != "stop":
        return
    now = remote.get(f"{RUNS}/{quote(run)}")
    if now["status"] not in ("running", "waiting", "paused"):
        raise Conflict(f"{run} has already ended: {now['status']} ({now['reason']})", code="ended")


# -- forks and restarts --------------------------------------------------------------------------


def steer_remote_run(
    terminal: Terminal, reference: str, verb: str, body: "dict[str, JsonValue]"
) -> int:
    """Try again or leave out what a loop of roles there stopped at, and see it through."""
    remote = terminal.remote
    assert remote is not None
    run = remote.run(reference)
    loop = remote.get(f"{LOOPS}/{quote(run)}")
    seen = int(remote.get(f"{RUNS}/{quote(run)}/snapshot")["seq"])
    newest = quote(str(loop["iteration"]["id"]))
    path = {"retry": f"iterations/{newest}/retry", "skip": "skip-stage"}[verb]
    remote.post(f"{LOOPS}/{quote(run)}/{path}", body)
    return follow_served_run(terminal, run, seen)


def edit_remote_run(remote: RemoteClient, reference: str, body: "dict[str, JsonValue]") -> str:
    """Change a loop of roles that is under way there; its id."""
    run = remote.run(reference)
    remote.patch(f"{LOOPS}/{quote(run)}", body)
    return run


def agents_for_request(given: "Sequence[str]") -> "dict[str, JsonValue]":
    """The backends of agents, for all or by name, in the form of a request."""
    from loopwright.operations.run_start import agent_choices  # noqa: PLC0415 - help stays quick

    default, named = agent_choices(given)
    return {**({"agent": default} if default else {}), "agents": dict(named)}
