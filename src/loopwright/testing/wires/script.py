"""What the fake wires say: turns in order, each with what it is for and what goes wrong in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import yaml

from loopwright.errors import DefinitionError
from loopwright.model.record import JsonValue, Record
from loopwright.testing.wires.request import WireName, WireRequest

Finish: TypeAlias = Literal["stop", "length", "tool_use", "refusal"]


class Call(Record, frozen=True):
    """One tool call of a turn. `raw` is sent as it stands instead of `args`, for arguments that
    are no JSON; `text` makes it a call of a free-form tool (Responses wire); `namespace` is how
    that wire groups the tools of one server.
    """

    name: str
    args: dict[str, JsonValue] = {}
    id: str | None = None
    raw: str | None = None
    text: str | None = None
    namespace: str | None = None

    @property
    def arguments(self) -> str:
        """The arguments as they go over the wire."""
        return self.raw if self.raw is not None else msgspec.json.encode(self.args).decode()


class Usage(Record, frozen=True):
    """What the server says it has counted. `input` is all of the prompt, `cached` the part of it
    that was read from a cache, `written` the part that was put into one.
    """

    input: int
    output: int
    cached: int = 0
    written: int = 0


class Fault(Record, frozen=True):
    """An answer that is an error. `after` deltas: inside a stream that began well."""

    status: int = 500
    type: str | None = None
    code: str | None = None
    message: str | None = None
    retry_after: float | str | None = None
    headers: dict[str, str] = {}
    after: int | None = None


class When(Record, frozen=True):
    """Which requests a turn is for; what is not named fits every request."""

    wire: WireName | None = None
    model: str | None = None  # part of the model's name
    contains: str | None = None  # part of the newest user text
    system: str | None = None  # part of the system prompt
    tools: bool | None = None  # whether tools are offered
    results: int | None = None  # tool results since the newest user text

    def fits(self, request: WireRequest) -> bool:
        """Whether a request is of this kind."""
        return (
            self.wire in (None, request.wire)
            and (self.model is None or self.model in request.model)
            and (self.contains is None or self.contains in request.user_text)
            and (self.system is None or self.system in request.system_text)
            and (self.tools is None or self.tools == bool(request.tools))
            and self.results in (None, request.results)
        )


class Turn(Record, frozen=True):
    """One answer: thoughts, text and calls, how it is paced and where it breaks.

    A delta is one piece of a stream: a bit of text, of a thought or of a call's arguments.
    """

    when: When = When()
    times: int | None = 1  # how often it may be used; None: always
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage | None = None  # None: counted from the sizes
    report_usage: bool = True
    finish: Finish | None = None  # None: by whether there are calls
    chunk: int = 16  # characters of a delta
    header_ms: int = 0  # before the answer begins
    first_token_ms: int = 0  # between the beginning and the first delta
    delta_ms: int = 0  # between two deltas
    stall_after: int | None = None  # deltas, then silence until `WireServer.release`
    cut_after: int | None = None  # deltas, then the connection is dropped
    fault: Fault | None = None
    overflow: bool = False  # the error that says that the prompt is too long

    @property
    def ending(self) -> Finish:
        """Why the turn ends."""
        return self.finish or ("tool_use" if self.calls else "stop")


class Script(Record, frozen=True):
    """Turns for a server: the first unused one whose `when` fits answers a request.

    `otherwise` answers what no turn fits; without it such a request is refused and remembered.
    With a `window`, a prompt of more tokens (four characters each) is refused as too long.
    With `keys`, another key than one of these is refused. `strict` refuses what hosted services
    refuse: tool names they do not allow, and tool calls without exactly one result each.
    """

    turns: tuple[Turn, ...] = ()
    otherwise: Turn | None = None
    window: int | None = None
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ("fake-model",)
    strict: bool = True


Chooser: TypeAlias = Callable[[WireRequest], Turn | None]
"""A script as a function; None refuses the request."""


def read_script(path: Path) -> Script:
    """A script from a YAML or JSON file; refuses what it does not know, with the place."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Script)
    except (msgspec.ValidationError, yaml.YAMLError) as wrong:
        raise DefinitionError(f"{path}: {wrong}") from wrong


def in_order(script: Script) -> Chooser:
    """The choice that a script makes, with its memory of what has been used."""
    used = [0] * len(script.turns)

    def choose(request: WireRequest) -> Turn | None:
        for number, turn in enumerate(script.turns):
            left = turn.times is None or used[number] < turn.times
            if left and turn.when.fits(request):
                used[number] += 1
                return turn
        return script.otherwise

    return choose
