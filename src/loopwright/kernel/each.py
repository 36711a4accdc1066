"""How a loop over the items of a list has ended, or None while it is under way."""

import msgspec

from loopwright.kernel.facts import Failure
from loopwright.kernel.frames import RepeatBody, Result
from loopwright.kernel.limits import loop_over_budget, out_of_time
from loopwright.kernel.state import Senses, State
from loopwright.kernel.texts import items_of
from loopwright.model.ids import item_path
from loopwright.model.record import JsonValue, Text


def each_outcome(state: State, body: RepeatBody, senses: Senses) -> Result | None:
    each = body.action.each
    assert each is not None
    items = items_of(state, body, each, senses)
    if isinstance(items, Failure):
        return Result("failed", items.type, error=items)
    if body.deadline_hit:
        return _each_result(body, items, senses, out_of_time(state.plan))
    if body.active:
        return None
    if body.spoiled is not None and each.on_item_error == "stop":
        return _each_result(body, items, senses, body.spoiled)
    over = loop_over_budget(state, body)
    spent = Result("exhausted", "budget", error=Failure("budget", over)) if over else None
    if body.finished < len(items):
        return None if spent is None else _each_result(body, items, senses, spent)
    failed = body.spoiled if each.on_item_error == "fail" else None
    # An item that a budget around the loop has ended is not an item error that may be ignored.
    ended = (one.status for one in body.item_results if one is not None)
    cut_off = spent if "exhausted" in ended else None
    return _each_result(body, items, senses, failed or cut_off or Result("completed", "items"))


def _each_result(body: RepeatBody, items: list[JsonValue], senses: Senses, ended: Result) -> Result:
    if body.action.output == "list":
        said = [_element(body, index, senses) for index in range(len(items))]
        output = senses.keep(msgspec.json.encode(said).decode())
        made = body.finished + len(body.active)
        return msgspec.structs.replace(ended, output=output, result=None, iterations=made)
    rows = []
    last: Text | None = None
    parts: list[str] = []
    for index, item in enumerate(items):
        done = body.item_results[index] if index < len(body.item_results) else None
        text = senses.read(done.output) if done else ""
        status = done.status if done else "cancelled"
        name = item_path(body.owner.path, index)
        row = {"id": name, "index": index, "item": item, "status": status, "content": text}
        if done is not None and done.result is not None:
            row["result"] = msgspec.Raw(senses.read(done.result).encode())
        if done is not None and done.error is not None:
            row["error"] = {"type": done.error.type, "detail": done.error.detail}
        rows.append(row)
        if done is not None and done.status == "completed":
            last = done.output
            parts.append(f"## Item {index}\n\n{text}")
    if body.action.output == "all":
        last = senses.keep("\n\n".join(parts))
    return Result(
        status=ended.status,
        reason=ended.reason,
        output=last,
        result=senses.keep(msgspec.json.encode({"iterations": rows}).decode()),
        error=ended.error,
        iterations=body.finished + len(body.active),
    )


def _element(body: RepeatBody, index: int, senses: Senses) -> object:
    """What an item came to, as an element of a list: its result, else what it said, and of one that
    did not complete, why. A text that is a JSON object or array stands there as such.
    """
    done = body.item_results[index] if index < len(body.item_results) else None
    if done is None or done.status != "completed":
        why = done.error.detail if done is not None and done.error is not None else ""
        status = done.status if done is not None else "cancelled"
        return {"error": why or status, "status": status}
    text = senses.read(done.output if done.result is None else done.result)
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict | list) or done.result is not None else text
