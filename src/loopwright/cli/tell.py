"""`tell`: send a message to the agents of a run."""

import asyncio
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.looking import looking
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.cli.door import Door
    from loopwright.cli.remote import Remote
    from loopwright.model.record import JsonValue

STDIN = "-"


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ('loopwright tell run_01 "Keep the old API"', "the next iteration reads it"),
        ('loopwright tell run_01 --to review "Check the docs too"', "one step of a graph"),
        ("git diff | loopwright tell run_01 -", "the message comes from stdin"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("text", metavar="TEXT|-")
@click.option("--to", metavar="STEP", default="", help="Only the agent of this step reads it.")
@click.pass_context
def tell(ctx: click.Context, /, *, run: str, text: str, to: str) -> None:
    """Send a message to the agents of a run that has not ended.

    The next agent call of the run reads the message, once. An agent that is working now reads it
    meanwhile if it can: claude as soon as its current tool call has ended, a chat model before its
    next turn, a jsonl: program when it reads its inbox. codex, opencode, gemini, command: and ACP
    agents read it at their next call. A message that was not read when the run failed or was
    stopped is read after `resume`. A message has at most 262,144 bytes.
    """
    door = door_of(ctx)
    words = sys.stdin.read() if text == STDIN else text
    if door.remote is not None:
        sent = _tell_remote(door.remote, run, words, to)
    else:
        sent = _tell_here(door, run, words, to)
    from loopwright.app.messaging import WHEN_WORDS  # noqa: PLC0415 - help stays quick

    where = "" if sent["to"] == "*" else f" for {sent['to']}"
    words = {str(name): one for name, one in WHEN_WORDS.items()}
    when = words.get(str(sent.get("when")), "recorded")  # an older server does not say when
    door.done(f"{sent['run']}: message {sent['message']}{where}: {when}", sent)


def _tell_here(door: "Door", run: str, text: str, to: str) -> "dict[str, JsonValue]":
    from loopwright.app.messaging import tell as record  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    with looking(door) as service:
        sent = asyncio.run(record(service, run, text, to=to, by=current_user()))
    return dict(sent._asdict())


def _tell_remote(remote: "Remote", run: str, text: str, to: str) -> "dict[str, JsonValue]":
    path = f"/api/v1/runs/{quote(remote.run(run))}/messages"
    body: dict[str, JsonValue] = {"text": text, **({"to": to} if to else {})}
    sent: dict[str, JsonValue] = remote.post(path, body)
    return sent


VERBS = {"tell": tell}
