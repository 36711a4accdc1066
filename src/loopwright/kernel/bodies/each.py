"""A loop over a list: one iteration for each item, several of them at the same time.

`outcome`, `next_events` and `close` decide: they return a result or events. `note_request`,
`note_answer`, `note_iteration` and `resume` fold: they change the body.
"""

import msgspec

from loopwright.kernel.bodies import repeat
from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import AnyEvent, EffectDone, EffectFailed, IterationStarted
from loopwright.kernel.frames import ItemResult, RepeatBody, Result
from loopwright.kernel.limits import loop_over_budget, out_of_time, request_loop_deadline
from loopwright.kernel.references import items_of
from loopwright.kernel.state import KernelServices, PendingEffect, State
from loopwright.model.ids import item_path
from loopwright.model.record import JsonValue, Text

MAX_PARALLEL_ITEMS = 100
"""The most iterations over items that are under way at once when the definition names no number."""


# -- deciding --------------------------------------------------------------------------------------


def outcome(state: State, body: RepeatBody, services: KernelServices) -> Result | None:
    """How a loop over a list has ended, or None."""
    each = body.action.each
    assert each is not None
    items = items_of(state, body, each, services)
    if isinstance(items, Failure):
        return Result("failed", items.type, error=items)
    if body.deadline_hit:
        return _each_result(body, items, services, out_of_time(state.plan))
    if body.active:
        return None
    if body.items.spoiled is not None and each.on_item_error == "stop":
        return _each_result(body, items, services, body.items.spoiled)
    over = loop_over_budget(state, body)
    spent = Result("exhausted", "budget", error=Failure("budget", over)) if over else None
    if body.finished < len(items):
        return None if spent is None else _each_result(body, items, services, spent)
    failed = body.items.spoiled if each.on_item_error == "fail" else None
    # An item that a budget around the loop has ended is not an item error that may be ignored.
    ended = (one.status for one in body.items.results if one is not None)
    cut_off = spent if "exhausted" in ended else None
    return _each_result(body, items, services, failed or cut_off or Result("completed", "items"))


def _each_result(
    body: RepeatBody, items: list[JsonValue], services: KernelServices, ended: Result
) -> Result:
    if body.action.output == "list":
        elements = [_element(body, index, services) for index in range(len(items))]
        output = services.keep(msgspec.json.encode(elements).decode())
        made = body.finished + len(body.active)
        return msgspec.structs.replace(ended, output=output, result=None, iterations=made)
    rows = []
    last: Text | None = None
    parts: list[str] = []
    for index, item in enumerate(items):
        done = body.items.results[index] if index < len(body.items.results) else None
        text = services.read(done.output) if done else ""
        status = done.status if done else "cancelled"
        name = item_path(body.owner.path, index)
        row = {"id": name, "index": index, "item": item, "status": status, "content": text}
        if done is not None and done.result is not None:
            row["result"] = msgspec.Raw(services.read(done.result).encode())
        if done is not None and done.error is not None:
            row["error"] = {"type": done.error.type, "detail": done.error.detail}
        rows.append(row)
        if done is not None and done.status == "completed":
            last = done.output
            parts.append(f"## Item {index}\n\n{text}")
    if body.action.output == "all":
        last = services.keep("\n\n".join(parts))
    return Result(
        status=ended.status,
        reason=ended.reason,
        output=last,
        result=services.keep(msgspec.json.encode({"iterations": rows}).decode()),
        error=ended.error,
        iterations=body.finished + len(body.active),
    )


def _element(body: RepeatBody, index: int, services: KernelServices) -> object:
    """The value of an item in a list: its result, else its output; for an item that
    did not complete, the reason. A text that is a JSON object or array is decoded.
    """
    done = body.items.results[index] if index < len(body.items.results) else None
    if done is None or done.status != "completed":
        why = done.error.detail if done is not None and done.error is not None else ""
        status = done.status if done is not None else "cancelled"
        entry: dict[str, object] = {"error": why or status, "status": status}
        mark = body.action.each.failed_key if body.action.each is not None else ""
        return {mark: True, **entry} if mark else entry
    text = services.read(done.output if done.result is None else done.result)
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict | list) or done.result is not None else text


def next_events(state: State, body: RepeatBody, services: KernelServices) -> list[AnyEvent]:
    """The iterations for which there is a slot."""
    each = body.action.each
    assert each is not None
    items = items_of(state, body, each, services)
    assert isinstance(items, list), "a loop without a list is an outcome"
    events = request_loop_deadline(state, body)
    if state.control.paused or (body.items.spoiled is not None and each.on_item_error == "stop"):
        return events
    if body.active and loop_over_budget(state, body) is not None:
        return events
    room = (each.parallel or MAX_PARALLEL_ITEMS) - len(body.active)
    again = body.items.again[:room]
    first, last = body.started, min(body.started + room - len(again), len(items))
    crowded = each.parallel is None and len(items) > MAX_PARALLEL_ITEMS
    held = f"{len(items)} items, of which {MAX_PARALLEL_ITEMS} at most are under way at once"
    events += [
        IterationStarted(
            at=state.now,
            path=item_path(body.owner.inside, number),
            iteration=number + 1,
            note=held if crowded and number == 0 else "",
            resumed=number in body.items.again,
        )
        for number in (*again, *range(first, last))
    ]
    return events


def close(state: State, body: RepeatBody, why: str) -> list[AnyEvent]:
    """End what is open in a loop itself, when its iterations have been closed."""
    return repeat.close(state, body, why)


# -- folding ---------------------------------------------------------------------------------------


def note_request(body: RepeatBody, pending: PendingEffect) -> None:
    """A loop over a list has the timers of any loop."""
    repeat.note_request(body, pending)


def note_answer(body: RepeatBody, pending: PendingEffect, event: EffectDone | EffectFailed) -> None:
    repeat.note_answer(body, pending, event)


def note_iteration(repeat: RepeatBody, number: int, ended: Result) -> None:
    while len(repeat.items.results) <= number:
        repeat.items.results.append(None)
    repeat.items.results[number] = ItemResult(
        status=ended.status, output=ended.output, result=ended.result, error=ended.error
    )
    if ended.status != "completed" and repeat.items.spoiled is None:
        repeat.items.spoiled = ended
    repeat.progress.last = ended


def resume(state: State, body: RepeatBody) -> None:
    """Items that completed stay; all others that had begun begin again, in their order."""
    repeat.renew(state, body)
    body.items.again = sorted(body.unfinished)
    body.finished -= len(body.items.again)
    for number in body.items.again:
        body.items.results[number] = None
    body.items.spoiled = None
