"""Rules between the blocks of an agent: what excludes what, what is needed, what has no effect.

Made from the raw value, before it is known to be right, so that they stand in the same report as
the values themselves. Whatever has the wrong type is left out here: `surface.py` speaks of it.
"""

from collections.abc import Iterator

from loopwright.dialects.aldo.files import Path
from loopwright.model.toolnames import speaks_of
from loopwright.syntax import Diagnostic, Document, did_you_mean

_ONE_AGENT = "the agents of a composite have tools and a model of their own"


def structure(document: Document) -> Iterator[Diagnostic]:
    """All that breaks a rule between blocks."""
    value = mapping(document.value)
    yield from _loops(document, value)
    yield from _decoding(document, mapping(value.get("model_policy")))
    yield from _approvals(document, mapping(value.get("tools")))
    yield from _budget(document, value)
    if isinstance(value.get("composite"), dict):
        yield from _composite(document, value, mapping(value["composite"]))


def mapping(value: object) -> dict[str, object]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _loops(document: Document, value: dict[str, object]) -> Iterator[Diagnostic]:
    if value.get("iteration") is not None and value.get("composite") is not None:
        message = "iteration and composite exclude each other"
        hint = (
            "iteration is one agent that loops; for several use composite.strategy: iterative, "
            "whose subagent may have iteration"
        )
        at = ("composite",)
        yield document.error("mutually-exclusive", message, at=at, on_key=True, hint=hint)


def _decoding(document: Document, policy: dict[str, object]) -> Iterator[Diagnostic]:
    decoding = mapping(policy.get("decoding"))
    if decoding.get("json_schema_ref") is not None and decoding.get("mode", "free") == "free":
        message = "json_schema_ref and mode: free exclude each other"
        at = ("model_policy", "decoding", "json_schema_ref")
        hint = "write mode: json or mode: constrained"
        yield document.error("mutually-exclusive", message, at=at, on_key=True, hint=hint)


def tool_names(tools: dict[str, object]) -> list[str]:
    """The tools that an agent may use, by their long names."""
    native = [mapping(one).get("ref") for one in items(tools.get("native"))]
    names = [one for one in native if isinstance(one, str)]
    for one in map(mapping, items(tools.get("mcp"))):
        allowed = [name for name in items(one.get("allow")) if isinstance(name, str)]
        names += [f"{one.get('server')}.{name}" for name in allowed]
    return names


def _approvals(document: Document, tools: dict[str, object]) -> Iterator[Diagnostic]:
    """A rule about a tool that is not there guards nothing, whatever its author believes."""
    names = tool_names(tools)
    for name in mapping(tools.get("approvals")):
        if not any(same_tool(name, one) for one in names):
            at = ("tools", "approvals", name)
            message = f"the agent has no tool {name[:60]}"
            hint = did_you_mean(name, names) or f"its tools are {', '.join(names[:12]) or 'none'}"
            yield document.error("unknown-tool", message, at=at, on_key=True, hint=hint)


def same_tool(one: str, other: str) -> bool:
    """Whether two names mean the same tool; a short name stands for its long one, and either may
    be one that stands for all tools of a server.
    """
    return speaks_of(one, other) or speaks_of(other, one)


def _budget(document: Document, value: dict[str, object]) -> Iterator[Diagnostic]:
    conditions = mapping(value.get("iteration")).get("termination_conditions")
    budget = mapping(mapping(value.get("model_policy")).get("budget"))
    for number, one in enumerate(map(mapping, items(conditions))):
        if one.get("kind") == "budget-exhausted" and budget.get("usd_per_run") == 0:
            message = "budget-exhausted never holds: usd_per_run is 0, which is no limit"
            at: Path = ("iteration", "termination_conditions", number)
            yield document.warning("ignored-field", message, at=at)


# -- several agents --------------------------------------------------------------------------------


def _composite(
    document: Document, value: dict[str, object], composite: dict[str, object]
) -> Iterator[Diagnostic]:
    strategy = composite.get("strategy")
    yield from _goes_with(document, composite, "aggregator", "debate", "aggregator: judge-name")
    rounds = "iteration: {max_rounds: 5, terminate: $.done}"
    yield from _goes_with(document, composite, "iteration", "iterative", rounds)
    subagents = items(composite.get("subagents"))
    if strategy == "iterative" and len(subagents) > 1:
        message = f"an iterative composite has exactly one subagent, not {len(subagents)}"
        hint = "put them into a sequential composite of their own and name that"
        place = ("composite", "subagents")
        yield document.error("out-of-range", message, at=place, hint=hint)
    seen: set[str] = set()
    for number, one in enumerate(map(mapping, subagents)):
        alias = one.get("as")
        if isinstance(alias, str) and alias in seen:
            at: Path = ("composite", "subagents", number, "as")
            yield document.error("bad-id", f"{alias} is used twice", at=at)
        seen |= {alias} if isinstance(alias, str) else set()
    yield from _without_use(document, value)


def _goes_with(
    document: Document, composite: dict[str, object], key: str, strategy: str, example: str
) -> Iterator[Diagnostic]:
    """A key that one strategy needs and no other may have."""
    chosen = composite.get("strategy")
    if chosen == strategy and composite.get(key) is None:
        message = f"{strategy} needs {key}"
        yield document.error("missing-field", message, at=("composite", key), hint=example)
    elif isinstance(chosen, str) and chosen != strategy and composite.get(key) is not None:
        message = f"{key} belongs to strategy: {strategy}, not to {chosen[:40]}"
        at = ("composite", key)
        yield document.error("unsupported-here", message, at=at, on_key=True, hint="leave it out")


def _without_use(document: Document, value: dict[str, object]) -> Iterator[Diagnostic]:
    termination = mapping(value.get("termination"))
    for key in ("max_turns", "text_mention"):
        if termination.get(key) is not None:
            message = f"{key} of a composite has its place, but this version cannot do it"
            at = ("termination", key)
            hint = "leave it out, or say it in the subagents"
            yield document.error("not-available", message, at=at, on_key=True, hint=hint)
    if tool_names(mapping(value.get("tools"))):
        message = f"tools have no effect here: {_ONE_AGENT}"
        yield document.warning("ignored-field", message, at=("tools",))
