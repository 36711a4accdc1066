"""`approve`, `reject` and `continue`: decisions at gates."""

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from loopwright.cli.completing import complete_gates
from loopwright.cli.door import Door
from loopwright.cli.looking import looking
from loopwright.cli.verb import Example, Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.service import Service
    from loopwright.app.wiring import Local
    from loopwright.model.actions import Decision

_DRIVING = (
    "If no living process drives the run, it is driven here until it rests, as `loopwright run` "
    "does it."
)


_ABOUT_CALLS: list[Callable[[Any], Any]] = [
    click.option(
        "--remember",
        is_flag=True,
        help="Of a tool call: do not ask about this tool again in this run.",
    ),
    click.option(
        "--arguments",
        metavar="JSON|@FILE",
        help="Of a tool call: what the tool is given instead, a JSON object.",
    ),
]


def _verb(
    name: "Decision", summary: str, *, examples: list[Example], needs_text: bool = False
) -> click.Command:
    def answer(
        ctx: click.Context,
        /,
        *,
        reference: str,
        text: str | None,
        no_drive: bool,
        arguments: str | None = None,
        remember: bool = False,
    ) -> int:
        if door_of(ctx).remote is not None:
            said = _Said(name, text or "", arguments, remember)
            return _answer_afar(ctx, reference, said, go_on=not no_drive)
        if needs_text and not (text or "").strip():
            if not no_drive and _has_ended(door_of(ctx), reference):
                return _go_on(door_of(ctx), reference)
            raise click.UsageError(f"{name} needs TEXT: say what should be different", ctx)
        said = _Said(decision=name, text=text or "", arguments=arguments, remember=remember)
        return _answer(door_of(ctx), reference, said, go_on=not no_drive)

    decorate: list[Callable[[Any], Any]] = [
        click.pass_context,
        *(_ABOUT_CALLS if name == "approve" else ()),
        click.option("--no-drive", is_flag=True, help="Only record the answer; drive nothing."),
        click.argument("text", metavar="TEXT" if needs_text else "[TEXT]", required=False),
        click.argument("reference", metavar="ID", shell_complete=complete_gates),
        click.command(
            name,
            cls=Verb,
            drives=True,
            remote=True,
            watches=True,
            help=f"{summary}\n\n{_DRIVING}",
            examples=examples,
        ),
    ]
    made: Any = answer
    for one in decorate:
        made = one(made)
    command: click.Command = made
    return command


class _Said(NamedTuple):
    """A decision as it was written on the command line."""

    decision: "Decision"
    text: str
    arguments: str | None
    remember: bool


def _answer(door: Door, reference: str, said: _Said, *, go_on: bool) -> int:
    from loopwright.app.deciding import CallAnswer, read_arguments  # noqa: PLC0415 - quick help
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    arguments = None if said.arguments is None else read_arguments(said.arguments)
    call = CallAnswer(arguments=arguments, remember=said.remember)

    async def decide(service: "Service") -> str:
        return await service.answer(
            reference, said.decision, text=said.text, by=current_user(), call=call
        )

    if not go_on:
        return _record(door, decide)
    from loopwright.cli.driving import Manner, Taken, drive  # noqa: PLC0415 - help stays quick

    async def begin(here: "Local") -> list[Taken]:
        seen = here.log.version(here.service.find_gate(reference).run)
        return [Taken(await decide(here.service), seen)]

    return drive(door, begin, Manner())


def _answer_afar(ctx: click.Context, reference: str, said: _Said, *, go_on: bool) -> int:
    """Answer at the server that was named, which drives the run on."""
    from loopwright.app.deciding import read_arguments  # noqa: PLC0415 - help stays quick
    from loopwright.cli.afar import answer_afar  # noqa: PLC0415 - only when asked for

    body: dict[str, Any] = {"text": said.text}
    if said.decision == "continue" and not said.text.strip():
        raise click.UsageError("continue needs TEXT: say what should be different", ctx)
    if said.arguments is not None:
        body["arguments"] = json.loads(read_arguments(said.arguments))
    if said.remember:
        body["remember"] = True
    return answer_afar(door_of(ctx), reference, said.decision, body, go_on=go_on)


def _has_ended(door: Door, reference: str) -> bool:
    """Whether a reference is a run that has ended, and not a question that somebody may answer."""
    from loopwright.app.reopening import has_ended  # noqa: PLC0415 - help stays quick

    with looking(door) as service:
        return not reference.startswith("gate_") and has_ended(service, service.find(reference))


def _go_on(door: Door, reference: str) -> int:
    """A run that has ended takes no answer; it is resumed."""
    from loopwright.app.controlling import resume_run  # noqa: PLC0415 - help stays quick
    from loopwright.cli.driving import Manner, Taken, drive  # noqa: PLC0415 - help stays quick

    async def begin(here: "Local") -> list[Taken]:
        one = await resume_run(here, reference)
        return [Taken(one.run, one.seen)]

    return drive(door, begin, Manner())


def _record(door: Door, decide: "Callable[[Service], Any]") -> int:
    from loopwright.app.views.summary import summary  # noqa: PLC0415 - help stays quick

    with looking(door) as service:
        run = asyncio.run(decide(service))
        if door.as_json:
            door.put_json(summary(service.state(run), service.read_text))
        else:
            door.say(f"recorded; `loopwright resume {run}` takes the run up if nobody drives it")
    return 0


VERBS = {
    "approve": _verb(
        "approve",
        "Accept what a gate asks about. ID is a gate, or a run with one open gate.",
        examples=[
            ("loopwright approve gate_5f", ""),
            ('loopwright approve run_01 "Good"', ""),
            ("loopwright approve gate_5f --remember", "a tool call, and this tool from now on"),
            ("loopwright approve gate_5f --arguments @fixed.json", "with other arguments"),
        ],
    ),
    "reject": _verb(
        "reject",
        "Refuse what a gate asks about, which fails the step. ID is a gate, or a run with one "
        "open gate. For a tool call, TEXT must give the reason; the model gets it and continues.",
        examples=[('loopwright reject gate_5f "Not what I meant"', "")],
    ),
    "continue": _verb(
        "continue",
        "Ask for another iteration and say in TEXT what should be different. Without TEXT, for a "
        "run that failed or that a limit ended: continue it, as `resume` does.",
        examples=[
            ('loopwright continue gate_5f "Shorter, and name the file"', ""),
            ("loopwright continue run_01", "a run that failed: the steps that did not complete"),
        ],
        needs_text=True,
    ),
}
