"""Rules between the blocks of an agent: conflicts, required keys, and keys without an effect.

They examine the raw value before it is validated, so that their findings are in the same report
as the findings about single values. Values of the wrong type are left to `surface.py`.
"""

from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel

from loopwright.dialects.aldo.files import Path, parse_source
from loopwright.dialects.aldo.surface import (
    FORMER_NETWORK,
    AldoAgent,
    OpenAldoModel,
    is_empty_block,
)
from loopwright.model.access import ANY, NATIVE_TOOLS, is_rule_for
from loopwright.syntax.document import Diagnostic, Document, did_you_mean, items, mapping, suggest

SHELL = "shell.exec"
_ONE_AGENT = "the agents of a composite have tools and a model of their own"
_SPAWN_OF_COMPOSITE = "a composite asks its own subagents and no others"
_FORMER = "meridian/agent.v1"
_NO_EFFECT = {
    ("memory",): "nothing is remembered between runs",
    ("spawn",): "agents start no others; write a composite instead",
    ("escalation",): "no one is notified; read the outcome of the run",
    ("subscriptions",): "events start no runs; add an incoming webhook instead",
    ("inputs",): "the message of a run is not checked against a schema",
    ("tools", "guards"): "results of tools are not filtered",
    ("sandbox", "network", "allowed_hosts"): "no list of hosts is enforced",
    ("sandbox", "filesystem", "read_paths"): "tools read the workspace only",
    ("sandbox", "filesystem", "write_paths"): "tools write the workspace only",
}
"""Blocks that load and change nothing, with what that means."""
_CHANGING = ("fs.write", "fs.edit", "fs.mkdir")


def structure(document: Document) -> Iterator[Diagnostic]:
    """All that breaks a rule between blocks."""
    value = mapping(document.value)
    yield from _unknown(document, AldoAgent, value, ())
    yield from _without_effect(document, value)
    yield from _loops(document, value)
    yield from _decoding(document, mapping(value.get("model_policy")))
    yield from _approvals(document, mapping(value.get("tools")))
    yield from _budget(document, value)
    yield from _conditions(document, value)
    if isinstance(value.get("composite"), dict):
        yield from _composite(document, value, mapping(value["composite"]))
    else:
        yield from _missing_tools(document, mapping(value.get("tools")))


def _unknown(
    document: Document, model: type[BaseModel], value: object, at: Path
) -> Iterator[Diagnostic]:
    """Keys that no block has. One that is almost a known key was meant to be it."""
    if not isinstance(value, dict):
        return
    known = {one.alias or name: one for name, one in model.model_fields.items()}
    for key, inner in value.items():
        place = (*at, str(key))
        if key in known:
            for part in _blocks_in(known[key].annotation):
                yield from _unknown(document, part, inner, place)
        elif issubclass(model, OpenAldoModel):
            near = suggest(str(key), known)
            if near is not None:
                hint = f"did you mean {near}?"
                yield document.error(
                    "unknown-field", str(key)[:60], at=place, on_key=True, hint=hint
                )
            else:
                message = f"{str(key)[:60]} is not known here and has no effect"
                yield document.warning("ignored-field", message, at=place)


def _blocks_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The blocks that a key may hold, but for those of lists and mappings."""
    inner = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    for one in (annotation, *inner):
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield one


def _without_effect(document: Document, value: dict[str, object]) -> Iterator[Diagnostic]:
    for path, words in _NO_EFFECT.items():
        found: object = value
        for part in path:
            found = mapping(found).get(part)
        if not is_empty_block(found):
            if path == ("spawn",) and isinstance(value.get("composite"), dict):
                words = _SPAWN_OF_COMPOSITE
            message = f"{'.'.join(path)} has no effect here: {words}"
            yield document.warning("ignored-field", message, at=path)
    if value.get("apiVersion") == _FORMER:
        message = f"{_FORMER} is read as aldo-ai/agent.v1, its present name"
        yield document.warning("former-name", message, at=("apiVersion",))
    permissions = mapping(mapping(value.get("tools")).get("permissions"))
    if permissions.get("network") == FORMER_NETWORK:
        message = f"{FORMER_NETWORK} is read as allowlist, its present name"
        at = ("tools", "permissions", "network")
        yield document.warning("former-name", message, at=at)


def _missing_tools(document: Document, tools: dict[str, object]) -> Iterator[Diagnostic]:
    """Tools that the model is not offered."""
    for number, one in enumerate(map(mapping, items(tools.get("mcp")))):
        server = one.get("server")
        names = [name for name in items(one.get("allow")) if isinstance(name, str)]
        foreign = [name for name in names if name not in NATIVE_TOOLS]
        if foreign and isinstance(server, str):
            at: Path = ("tools", "mcp", number)
            message = f"{', '.join(foreign[:8])}: tools of the MCP server {server[:60]}"
            hint = f"they are offered if the settings describe it (`[mcp.{server[:60]}]`)"
            yield document.warning("unknown-server", message, at=at, hint=hint)
    for number, one in enumerate(map(mapping, items(tools.get("native")))):
        ref = one.get("ref")
        if isinstance(ref, str) and ref not in NATIVE_TOOLS and own_tool(ref) is None:
            message = f"there is no tool {ref[:60]}; it is not offered"
            hint = did_you_mean(ref, NATIVE_TOOLS) or f"there are {', '.join(NATIVE_TOOLS)}"
            place: Path = ("tools", "native", number)
            yield document.warning("unknown-tool", message, at=place, hint=hint)
    reach = mapping(tools.get("permissions")).get("filesystem", "none")
    for name in dict.fromkeys(filter(None, map(own_tool, tool_names(tools)))):
        if is_unreachable(name, reach):
            message = f"{name} is not offered: permissions.filesystem is {str(reach)[:20]}"
            hint = "write permissions: {filesystem: repo-readwrite}"
            yield document.warning("unknown-tool", message, at=("tools",), hint=hint)


def own_tool(name: str) -> str | None:
    """The built-in tool that a name means, with its server or without."""
    return next((one for one in NATIVE_TOOLS if name == one or name.endswith(f".{one}")), None)


def is_unreachable(tool: str, filesystem: object) -> bool:
    """Whether the permissions take a built-in tool away."""
    if filesystem == "none":
        return tool.startswith("fs.")
    return filesystem == "repo-readonly" and tool in _CHANGING


def _conditions(document: Document, value: dict[str, object]) -> Iterator[Diagnostic]:
    """Conditions that can never hold, and those that no other can come before."""
    tools = mapping(value.get("tools"))
    reach = mapping(tools.get("permissions")).get("filesystem", "none")
    conditions = mapping(value.get("iteration")).get("termination_conditions")
    for number, one in enumerate(map(mapping, items(conditions))):
        tool, match = one.get("tool"), mapping(one.get("match"))
        if one.get("kind") != "tool-result" or not isinstance(tool, str):
            continue
        why = _never_holds(tool, match, tool_names(tools), reach)
        if why is not None:
            at: Path = ("iteration", "termination_conditions", number)
            message = f"this condition can never fire: {why}"
            yield document.warning("never-fires", message, at=at)


def _never_holds(
    tool: str, match: dict[str, object], names: Iterable[str], reach: object
) -> str | None:
    meant = [name for name in names if same_tool(tool, name)]
    if not meant:
        return f"the agent has no tool {tool[:60]}"
    own = [own_tool(name) for name in meant]
    if all(name is not None and is_unreachable(name, reach) for name in own):
        return f"permissions.filesystem is {str(reach)[:20]}, so {tool[:60]} is not offered"
    if match.get("exit_code") is not None and all(
        name is not None and name != SHELL for name in own
    ):
        return f"{tool[:60]} has no exit code; only {SHELL} has one"
    return None


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
        if name == ANY:
            continue
        if not any(same_tool(name, one) for one in names):
            at = ("tools", "approvals", name)
            message = f"the agent has no tool {name[:60]}"
            hint = did_you_mean(name, names) or f"its tools are {', '.join(names[:12]) or 'none'}"
            yield document.error("unknown-tool", message, at=at, on_key=True, hint=hint)


def same_tool(one: str, other: str) -> bool:
    """Whether two names mean the same tool; a short name matches the full one, and either may be a
    wildcard for all tools of a server.
    """
    return is_rule_for(one, other) or is_rule_for(other, one)


def _budget(document: Document, value: dict[str, object]) -> Iterator[Diagnostic]:
    conditions = mapping(value.get("iteration")).get("termination_conditions")
    budget = mapping(mapping(value.get("model_policy")).get("budget"))
    for number, one in enumerate(map(mapping, items(conditions))):
        if one.get("kind") == "budget-exhausted" and budget.get("usd_per_run") == 0:
            message = "usd_per_run is 0, so this condition fires after the first cycle"
            at: Path = ("iteration", "termination_conditions", number)
            hint = "raise usd_per_run, or leave the condition out"
            yield document.warning("fires-at-once", message, at=at, hint=hint)


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
    yield from _input_maps(document, strategy, subagents)
    yield from _without_use(document, value)


def _input_maps(
    document: Document, strategy: object, subagents: list[object]
) -> Iterator[Diagnostic]:
    """The input of a subagent comes from the input, or from an earlier subagent of a sequence."""
    earlier: set[str] = set()
    for number, one in enumerate(map(mapping, subagents)):
        at: Path = ("composite", "subagents", number, "input_map")
        named = mapping(one.get("input_map"))
        if named and strategy == "iterative":
            message = "input_map has no effect on an iterative composite"
            hint = "its subagent gets {input, round, previous}"
            yield document.warning("ignored-field", message, at=at, hint=hint)
        for key, path in named.items() if strategy != "iterative" else ():
            source = parse_source(path) if isinstance(path, str) else None
            if isinstance(path, str) and source is None:
                message = f"{path[:60]}is passed as a text"
                hint = (
                    "a value comes from input.FIELD, outputs.ALIAS.FIELD or previous.ALIAS.output"
                )
                yield document.warning("bad-path", message, at=(*at, key), hint=hint)
            elif source is not None and source.alias and source.alias not in earlier:
                message = f"no earlier subagent is called {source.alias[:60]}"
                near = did_you_mean(source.alias, earlier)
                yield document.error("unknown-reference", message, at=(*at, key), hint=near)
        if strategy == "sequential":
            earlier |= {word for word in (one.get("agent"), one.get("as")) if isinstance(word, str)}


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
    strategy = mapping(value.get("composite")).get("strategy")
    for key in ("max_turns", "success_roles", "text_mention"):
        if is_empty_block(termination.get(key)) or strategy == "iterative":
            continue
        if key == "text_mention" or strategy != "sequential":
            message = f"termination.{key} has no effect on a {str(strategy)[:20]} composite"
            hint = "every subagent is asked once; write it in the subagents instead"
            yield document.warning("ignored-field", message, at=("termination", key), hint=hint)
    if tool_names(mapping(value.get("tools"))):
        message = f"tools have no effect here: {_ONE_AGENT}"
        yield document.warning("ignored-field", message, at=("tools",))
