"""A turn of a chat model, as its performer hands it to the engine.

The performer knows the tools that are really there; the engine decides what is done with a call.
So a wanted call comes with the tool's own name, whichever form the model used, with what is wrong
with it, and with the paths that it would touch, links followed.
"""

import msgspec

from loopwright.model.exchange import Finish
from loopwright.model.messages import AssistantMessage
from loopwright.model.record import JsonValue, Record


class WantedCall(Record, frozen=True, kw_only=True):
    """One call that the model asks for. `problem` says why it cannot be run at all; the model is
    told so. `paths` is None when nobody can say what the call would touch.
    """

    id: str
    tool: str
    arguments: JsonValue = None
    problem: str = ""
    paths: tuple[str, ...] | None = None
    protected: bool = False  # one of the paths stands on the list of protected ones


class Turn(Record, frozen=True, kw_only=True):
    """What a model said, and the tools that it wants. `task` is what it was told to do before it
    said this, where a later conversation goes on with this one.
    """

    message: AssistantMessage
    calls: tuple[WantedCall, ...] = ()
    finish: Finish = "stop"
    model: str = ""
    task: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Turn)


def encode_turn(turn: Turn) -> str:
    return _ENCODER.encode(turn).decode()


def decode_turn(text: str) -> Turn:
    return _DECODER.decode(text)
