"""Messages to the agents of a run."""

from typing import Annotated

import msgspec

from loopwright.http.requests import Answer, Body, Route, RouteFamily, RouteRequest
from loopwright.http.responses import as_response
from loopwright.operations.messages import When, tell
from loopwright.operations.use_cases.runs import BASE


class MessageBody(Body):
    """A message. The next agent call of the run reads it, or the agent of the step `to`."""

    free = ("text",)

    text: str  # 1 to 262,144 bytes
    to: Annotated[str, msgspec.Meta(max_length=500)] = ""


class RunMessageSent(msgspec.Struct):
    """A message that was recorded. `to` is `*` where any agent of the run may read it. `when` says
    when the agent reads it: claude and a program that reads its inbox `now`, a chat model before
    its `next-turn`, others at their `next-call`.
    """

    run: str
    message: str
    to: str
    when: When


async def send_message(asked: RouteRequest) -> Answer:
    body, run = asked.body(MessageBody), asked.context.here.log.row(asked.params["run"]).run
    sent = await tell(asked.context.service, run, body.text, to=body.to, by=asked.who.name)
    return as_response(sent._asdict(), 201)


FAMILY = RouteFamily(
    name="messages",
    prefix=f"{BASE}/",
    routes=(
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/messages",
            handle=send_message,
            need="editor",
            say="Send a message to the agents of a run; the next iteration reads it",
            body=MessageBody,
            answer=RunMessageSent,
            status=201,
            draining="refuse",
        ),
    ),
)
