"""Gates: what waits for a person, and the three answers."""

import re

import msgspec

from loopwright.app.deciding import CallAnswer
from loopwright.app.views.listing import inbox_items
from loopwright.app.views.summary import summary
from loopwright.errors import NotFound
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue
from loopwright.ports import OpenGate
from loopwright.server.paging import PageQuery, oldest_first, paged
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Body, Family, Handler, Route
from loopwright.server.shapes import Inbox, RunSummary

BASE = "/api/v1/gates"
_GATE = re.compile(r"gate_[0-9a-f]{20}")
MAX_TEXT = 100_000


class AnswerBody(Body):
    """What is said with a decision; `digest` is that of what was shown."""

    free = ("arguments",)

    text: str = ""
    digest: str | None = None
    arguments: dict[str, JsonValue] | None = None
    remember: bool = False


async def inbox(asked: Asked) -> Answer:
    service = asked.context.service
    page = paged(asked, "gates", service.gates(), _place)
    return {"gates": inbox_items(service, page.entries), "next": page.next}


def _place(gate: OpenGate) -> str:
    return oldest_first(gate.opened_at, gate.gate)


def _answering(decision: Decision) -> Handler:
    async def answer(asked: Asked) -> Answer:
        context, body, gate = asked.context, asked.body(AnswerBody), asked.params["gate"]
        if _GATE.fullmatch(gate) is None:
            raise NotFound(f"no gate {gate[:80]!r}", hint="`loopwright inbox` lists them")
        if len(body.text) > MAX_TEXT:
            raise Refusal(422, "too-large", f"a text has at most {MAX_TEXT:,} characters")
        if decision == "continue" and not body.text.strip():
            raise Refusal(422, "text-needed", "say in `text` what should be different")
        arguments = None
        if body.arguments is not None:
            arguments = msgspec.json.encode(body.arguments).decode()
        run = await context.service.answer(
            gate,
            decision,
            text=body.text,
            by=asked.who.name,
            digest=body.digest,
            call=CallAnswer(arguments=arguments, remember=body.remember),
        )
        picture = await context.gallery.picture(run)
        return summary(picture.state, context.service.read_text)

    return answer


_SAY: dict[Decision, str] = {
    "approve": "Accept what a gate asks about",
    "reject": "Refuse what a gate asks about",
    "continue": "Ask for another pass, with feedback",
}

FAMILY = Family(
    name="gates",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=inbox,
            need="viewer",
            say="What waits for a person, oldest first",
            query=PageQuery,
            answer=Inbox,
        ),
        *(
            Route(
                method="POST",
                path=f"{BASE}/{{gate}}/{decision}",
                handle=_answering(decision),
                need="editor",
                say=say,
                body=AnswerBody,
                answer=RunSummary,
            )
            for decision, say in _SAY.items()
        ),
    ),
)
