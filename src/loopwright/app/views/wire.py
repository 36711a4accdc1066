"""Facts as they travel: one JSON object each, numbered, with times people and programs can read."""

import msgspec

from loopwright.app.moments import timestamp
from loopwright.kernel.facts import AgentChanged, AnyFact, EffectActivity
from loopwright.model.record import Blob, JsonValue
from loopwright.ports import Numbered

_EMPTY: tuple[object, ...] = (None, "", (), {})


def fact_on_wire(run: str, numbered: Numbered) -> dict[str, JsonValue]:
    """`{"run", "seq", "at", "kind", "path", …body}`; the path of the run itself is empty."""
    body = fact_body(numbered.fact)
    first: dict[str, JsonValue] = {
        "run": run,
        "seq": numbered.seq,
        "at": timestamp(numbered.fact.at),
        "kind": body.pop("kind"),
        "path": body.pop("path", ""),
    }
    return first | {name: value for name, value in body.items() if name not in first}


def fact_body(fact: AnyFact) -> dict[str, JsonValue]:
    """A fact as plain JSON; structured results are objects here, not text.

    On disk a value that is the default is left out. Here only an empty one is: whoever reads a
    fact from outside does not know our defaults.
    """
    body: dict[str, JsonValue] = msgspec.to_builtins(fact)
    for name in fact.__struct_fields__:
        if name not in body and getattr(fact, name) not in _EMPTY:
            body[name] = getattr(fact, name)
    if isinstance(fact, AgentChanged):  # values of variables are nobody's business outside
        body["becomes"] = msgspec.to_builtins(
            msgspec.structs.replace(fact.becomes, env=dict.fromkeys(fact.becomes.env, "…"))
        )
    if isinstance(fact, EffectActivity):
        body["entries"] = [
            {**msgspec.to_builtins(note), "at": timestamp(note.at)} for note in fact.entries
        ]
    result = getattr(fact, "result", None)
    if isinstance(result, str):
        body["result"] = msgspec.json.decode(result)
    return body


def text_of(text: str | Blob | None) -> str:
    """A text as far as the fact itself carries it."""
    if text is None:
        return ""
    return text if isinstance(text, str) else text.head
