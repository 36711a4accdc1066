"""`retry`, `skip`, `edit` and `tell`: change a loop in progress, or send its agents a message."""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from loopwright.cli.completion import complete_runs
from loopwright.cli.verb import Verb, terminal_of
from loopwright.errors import LoopwrightError
from loopwright.operations.messages import WHEN_WORDS
from loopwright.operations.run_start import agent_choices
from loopwright.operations.use_cases.run_changes import MessageRun, send_message

if TYPE_CHECKING:
    from loopwright.cli.terminal import Terminal
    from loopwright.client.client import Client
    from loopwright.client.transport import RunFeed
    from loopwright.model.record import JsonValue
    from loopwright.operations.api_types import Request
    from loopwright.operations.use_cases.loops import SteeredLoop
    from loopwright.operations.use_cases.operation import Operation

    Q = TypeVar("Q", bound=Request)

_UNLIMITED = "none"


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    drives=True,
    examples=[
        ("loopwright retry run_01", "the stage that failed; what completed before it is kept"),
        ('loopwright retry run_01 "The key is in the vault now"', "a stage that is blocked"),
        ("loopwright retry run_01 --agent coder=codex", "with another agent for one role"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("note", metavar="[NOTE]", required=False, default="")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="SPEC",
    help="For a loop that failed: agent backend from now on; SPEC for all, NAME=SPEC for one.",
)
@click.option(
    "--budget",
    metavar="LIMITS",
    help="For a loop that a limit ended: its limits from now on. What was spent before counts.",
)
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Continue although a limit in USD cannot be enforced for an agent whose cost is unknown.",
)
@click.pass_context
def retry(
    ctx: click.Context,
    /,
    run: str,
    note: str,
    agents: tuple[str, ...],
    budget: str | None,
    *,
    allow_unknown_cost: bool,
) -> int:
    """Retry the stage that a loop of roles stopped at, and follow the loop until it ends or needs
    a person.

    The stage that failed or is blocked is run again in its iteration, with NOTE in its prompt. What
    completed in that iteration is kept. After too many rejected iterations, the next one begins
    with NOTE.
    """
    from loopwright.operations.use_cases import loops  # noqa: PLC0415 - help stays quick

    default, named = agent_choices(agents)

    def wanted(name: str) -> loops.RetryStage:
        return loops.RetryStage(
            run=name,
            note=note,
            agent=default,
            agents=named,
            budget=budget,
            allow_unknown_cost=allow_unknown_cost,
        )

    return _steer(terminal_of(ctx), run, loops.retry, wanted)


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    drives=True,
    examples=[
        ('loopwright skip run_01 "I did it myself"', "the next stage continues, with this text")
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("note", metavar="[NOTE]", required=False, default="")
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Continue although a limit in USD cannot be enforced for an agent whose cost is unknown.",
)
@click.pass_context
def skip(ctx: click.Context, /, run: str, note: str, *, allow_unknown_cost: bool) -> int:
    """Skip the stage that a loop of roles stopped at, and follow the loop until it ends or needs a
    person.
    """
    from loopwright.operations.use_cases import loops  # noqa: PLC0415 - help stays quick

    def wanted(name: str) -> loops.SkipStage:
        return loops.SkipStage(run=name, note=note, allow_unknown_cost=allow_unknown_cost)

    return _steer(terminal_of(ctx), run, loops.skip, wanted)


def _steer(
    terminal: "Terminal",
    reference: str,
    operation: "Operation[Q, SteeredLoop]",
    wanted: "Callable[[str], Q]",
) -> int:
    """Continue a loop that stopped at a stage, and follow it: at a server, or driven here."""
    from loopwright.cli.attach import feed_options, follow_runs  # noqa: PLC0415 - help stays quick
    from loopwright.cli.run_output import AttachOptions  # noqa: PLC0415 - help stays quick

    async def begin(client: "Client") -> "list[RunFeed]":
        feed = await client.open_feed(
            await client.find_run(reference), None, feed_options(terminal)
        )
        await client.call(operation, wanted(feed.run))
        return [feed]

    return follow_runs(terminal, begin, AttachOptions())


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ('loopwright edit run_01 --goal "A queue, not a cache"', "from its next stage on"),
        ("loopwright edit run_01 --max 8 --label urgent", ""),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--goal", metavar="TEXT", help="New goal.")
@click.option("--max", "most", metavar="N|none", help="Maximum number of iterations, or no limit.")
@click.option("--label", "labels", multiple=True, help="New labels; may be given more than once.")
@click.option("--metadata", metavar="JSON", help="An object that is merged into its metadata.")
@click.pass_context
def edit(
    ctx: click.Context,
    /,
    run: str,
    goal: str | None,
    most: str | None,
    labels: tuple[str, ...],
    metadata: str | None,
) -> None:
    """Change a loop of roles while it runs: its goal, its limit, its labels.

    The next stage uses the new values; what was done does not change. Other runs cannot be edited:
    use `tell` to send a message, or `fork` to start from an iteration.
    """
    from loopwright.operations.loops.loop_details import edit_of  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases import loops  # noqa: PLC0415 - help stays quick

    body: dict[str, JsonValue] = {}
    if goal is not None:
        body["goal"] = goal
    if most is not None:
        body["max_iterations"] = None if most == _UNLIMITED else _number(most)
    if labels:
        body["labels"] = list(labels)
    if metadata is not None:
        body["metadata"] = _object(metadata)
    edit_of(body)  # refuses what cannot be changed before the request is made
    terminal = terminal_of(ctx)
    with terminal.client() as client:
        request = msgspec.convert({"run": client.find_run(run), **body}, loops.EditLoop)
        changed = client.call(loops.edit, request).run
    if terminal.as_json:
        terminal.put_json({"run": changed, "changed": [*body]})
        return
    terminal.say(f"{changed}: changed {', '.join(body)}")


def _number(text: str) -> "JsonValue":
    return int(text) if text.isascii() and text.isdigit() else text


def _object(text: str) -> "JsonValue":
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoopwrightError(
            f"--metadata is not JSON: {error}", code="bad-value", hint="""--metadata '{"a": 1}'"""
        ) from error
    return value


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
    terminal = terminal_of(ctx)
    words = sys.stdin.read() if text == STDIN else text
    with terminal.client() as client:
        request = MessageRun(run=client.find_run(run), text=words, to=to)
        sent = client.call(send_message, request)
    where = "" if sent.to == "*" else f" for {sent.to}"
    when = WHEN_WORDS[sent.when]
    terminal.done(f"{sent.run}: message {sent.message}{where}: {when}", sent)


VERBS = {
    "retry": retry,
    "skip": skip,
    "edit": edit,
    "tell": tell,
}
