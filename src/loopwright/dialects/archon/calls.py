"""What the nodes of a workflow call: agents, and other workflows with their files and rules.

There is one agent for all nodes, and one for each node with other settings. A model may be a tier
(`small`) or an alias (`@fast`) that `.archon/config.yaml` of the project or of the user defines. A
name that neither defines is kept: the settings map it when a run starts.

Each place where a workflow is named is its own unit, with the file that the name leads to. One
file may be in several units, because what it may read depends on the place that runs it. The
rules define where such a node is allowed and which inputs it passes on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.dialects.archon import files as named
from loopwright.dialects.archon.files import (
    CONFIG_FILES,
    ArchonFileRequest,
    Files,
    FoundText,
    is_below,
    read_config,
)
from loopwright.dialects.archon.outline import (
    CALLS,
    DEFAULT_ITEM,
    ArchonOutline,
    Mapping,
    NodeAt,
    Path,
    given_inputs,
    item_name,
    named_files,
    outline,
)
from loopwright.dialects.archon.references import suggest_name
from loopwright.dialects.archon.rules import PROVIDERS, TIERS
from loopwright.dialects.archon.surface import MAX_ITEMS, AgentKeys, ArchonWorkflow, NodeSpec
from loopwright.dialects.archon.variables import RESERVED_IDS, marks
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue, Ref
from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.readers import read
from loopwright.syntax.validation import validate

DEFAULT = "assistant"
_MOST_CONFIG_BYTES = 65_536
_AI_NODES = ("prompt", "command", "loop")
_NODE_OPTIONS = {"skills": "skills", "agents": "agents", "hooks": "hooks"}
_SHARED_OPTIONS = {
    "effort": "effort",
    "thinking": "thinking",
    "fallback_model": "fallbackModel",
    "betas": "betas",
    "sandbox": "sandbox",
    "model_reasoning_effort": "modelReasoningEffort",
    "web_search_mode": "webSearchMode",
    "additional_directories": "additionalDirectories",
}


class Preset(NamedTuple):
    """The meaning of a tier or an alias."""

    provider: str | None
    model: str | None


class Config(NamedTuple):
    """What the settings say about agents."""

    presets: dict[str, Preset]  # tiers and aliases
    provider: str | None = None  # of workflows that name none
    models: dict[str, str] = {}  # of each provider, if none is named


def requested_config(
    document: Document, made: ArchonOutline, files: Files
) -> Iterator[ArchonFileRequest]:
    """The settings, and the files that define the MCP servers of a workflow."""
    project, person = CONFIG_FILES
    # Settings of the person may contain keys, and are sent to a remote server: only where needed.
    for one in (project, person) if _asks_person(made) else (project,):
        if one not in files:
            yield ArchonFileRequest(
                one, document.at(()), "text", _MOST_CONFIG_BYTES, is_optional=True
            )
    for node in made.nodes:
        mcp = node.value.get("mcp")
        if isinstance(mcp, str) and is_below(mcp) and mcp not in files:
            yield ArchonFileRequest(mcp, document.at(node.path), "text", _MOST_CONFIG_BYTES)


def _asks_person(made: ArchonOutline) -> bool:
    """Whether a workflow names a tier or an alias, or no provider at all."""
    models = [one.get("model") for one in (made.top, *(node.value for node in made.nodes))]
    named = [one for one in models if isinstance(one, str)]
    is_open = not made.top.get("provider") and any(one.kind in _AI_NODES for one in made.nodes)
    return is_open or any(one in TIERS or one.startswith("@") for one in named)


def read_agents(files: Files) -> Config:
    """What the settings of the person, and then those of the project, say about agents."""
    presets: dict[str, Preset] = {}
    models: dict[str, str] = {}
    provider = None
    for path in reversed(CONFIG_FILES):
        config = read_config(path, files)
        for key in ("tiers", "aliases"):
            for name, one in _table(config, key).items():
                preset = _preset(one)
                if preset is not None:
                    word = name if key == "tiers" or name.startswith("@") else f"@{name}"
                    presets[word] = preset
        for name, one in _table(config, "assistants").items():
            model = _preset(one)
            if model is not None and model.model not in (None, "inherit"):
                models[name] = str(model.model)
        named = config.get("assistant", config.get("defaultAssistant"))
        provider = named if isinstance(named, str) and named else provider
    return Config(presets, provider, models)


def _table(config: dict[str, JsonValue], key: str) -> dict[str, JsonValue]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _preset(value: JsonValue) -> Preset | None:
    if isinstance(value, str):
        return Preset(None, value)
    if not isinstance(value, dict):
        return None
    provider, model = value.get("provider"), value.get("model")
    return Preset(
        provider if isinstance(provider, str) else None, model if isinstance(model, str) else None
    )


def read_servers(path: str, files: Files) -> dict[str, JsonValue] | None:
    """The MCP servers of a file, by their names; None if it cannot be read."""
    data = files.get(path)
    try:
        value: JsonValue = json.loads(data) if isinstance(data, bytes) else None
    except ValueError:
        return None
    inner = value.get("mcpServers", value) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else None


def servers(document: Document, made: ArchonOutline, files: Files) -> Iterator[Diagnostic]:
    """Nodes whose file of MCP servers cannot be read."""
    for node in made.nodes:
        mcp = node.value.get("mcp")
        if not isinstance(mcp, str) or node.kind not in ("prompt", "command"):
            continue
        if not is_below(mcp) or read_servers(mcp, files) is None:
            message = f"{mcp[:60]} has no MCP servers that can be read: the agent has none"
            hint = "name a JSON file below the project, from its folder"
            at = (*node.path, "mcp")
            yield document.warning("no-servers", message, at=at, hint=hint)


def configured(document: Document, made: ArchonOutline, files: Files) -> Iterator[Diagnostic]:
    """Aliases that .archon/config.yaml does not define, and a provider that only it names and for
    which there is no agent.
    """
    config = read_agents(files)
    yield from _aliases(document, made, config)
    provider = config.provider
    if provider in (None, *PROVIDERS) or made.top.get("provider"):
        return
    at = next((node.path for node in made.nodes if node.kind in _AI_NODES), None)
    if at is not None:
        message = f"Loopwright has no agent for the provider {str(provider)[:60]} of the settings"
        hint = f'give a run --agent SPEC, or add "{str(provider)[:60]}" = "SPEC" to [models]'
        yield document.warning("unknown-agent", message, at=at, hint=hint)


def _aliases(document: Document, made: ArchonOutline, config: Config) -> Iterator[Diagnostic]:
    """Each alias that is not defined, once."""
    configured = set(config.presets)
    # The model of a loop has no effect, so there is nothing to say about it.
    nodes = [(node.path, node.value) for node in made.nodes if node.kind != "loop"]
    for path, holder in [((), made.top), *nodes]:
        model = holder.get("model")
        if not isinstance(model, str) or not model.startswith("@") or model in configured:
            continue
        if holder.get("provider") not in (None, *PROVIDERS):
            continue  # The warning about the provider says what to do.
        configured.add(model)
        message = f"the alias {model[:60]} must be in the settings or in .archon/config.yaml"
        hint = f'[models] "{model[:60]}" = "model:PROVIDER/NAME", or give a run --agent SPEC'
        yield document.warning("unknown-model", message, at=(*path, "model"), hint=hint)


@dataclass(slots=True)
class ArchonAgents:
    """Collects the agents; nodes with the same settings share one."""

    flow: ArchonWorkflow
    files: Files
    made: dict[str, Agent] = field(default_factory=dict)

    def of(self, node: NodeSpec, group: NodeSpec | None) -> str:
        """The agent that works on a node."""
        agent = self._agent(group, node)
        plain = agent == self._agent(None, None)
        return self._named(DEFAULT if plain else node.id, agent)

    def below(self, flow: ArchonWorkflow) -> "ArchonAgents":
        """The agents of another workflow that is run here; if it names none, the same."""
        if not (flow.provider or flow.model):
            shared = {"provider": self.flow.provider, "model": self.flow.model}
            flow = flow.model_copy(update=shared)
        return ArchonAgents(flow, self.files, self.made)

    def _named(self, name: str, agent: Agent) -> str:
        for known, other in self.made.items():
            if other == agent:
                return known
        number = 1
        free = name
        while free in self.made or (free == DEFAULT and agent != self._agent(None, None)):
            number += 1
            free = f"{name}-{number}"
        self.made[free] = agent
        return free

    def _agent(self, group: NodeSpec | None, node: NodeSpec | None) -> Agent:
        config = read_agents(self.files)
        spec, model = self.flow.provider or config.provider, self.flow.model
        for one in (group, node):
            # A loop always has the provider and the model of the workflow.
            if one is not None and one.loop is None and (one.provider or one.model):
                # A model belongs to its provider: another provider does not use it.
                model = one.model or (model if one.provider in (None, spec) else None)
                spec = one.provider or spec
        preset = config.presets.get(model) if model is not None else None
        if preset is not None:
            spec, model = preset.provider or spec, preset.model
        elif model is None and spec is not None:
            model = config.models.get(spec)
        agent = Agent(spec=spec, model=model, options=self._options(node))
        if node is None or node.loop is not None or node.approval is not None:
            return agent
        tools = node.allowed_tools
        return Agent(
            spec=spec,
            model=model,
            system=node.system_prompt or "",
            tools=None if tools is None else tuple(tools),
            deny_tools=tuple(node.denied_tools or ()),
            max_usd=node.max_budget_usd,
            options=agent.options,
        )

    def _options(self, node: NodeSpec | None) -> dict[str, JsonValue]:
        options = _given(self.flow, _SHARED_OPTIONS)
        if node is not None and node.loop is None and node.approval is None:
            options |= _given(node, _SHARED_OPTIONS)
            options |= _given(node, _NODE_OPTIONS)
            found = read_servers(node.mcp, self.files) if node.mcp else None
            if found:
                options["mcp"] = found
        return options


def _given(holder: AgentKeys, names: dict[str, str]) -> dict[str, JsonValue]:
    found = {key: getattr(holder, name) for name, key in names.items()}
    return {key: value for key, value in found.items() if value is not None}


MAX_DEPTH = 5
MAX_UNITS = 100
_FOLDER = f"{named.PROJECT_FOLDER}/workflows/"


@dataclass(slots=True, eq=False)
class ArchonUnit:
    """A workflow at the place that runs it."""

    document: Document
    made: ArchonOutline
    trail: tuple[str, ...]  # the names of the workflows on the way to it, and its own
    flow: ArchonWorkflow | None = None
    below: dict[Path, "ArchonUnit"] = field(default_factory=dict)  # by the node that runs it

    def calls(self) -> Iterator[NodeAt]:
        """Every node that runs a workflow whose file has been read."""
        return (node for node in self.made.nodes if node.path in self.below)

    def all_below(self) -> Iterator["ArchonUnit"]:
        """Every unit that it leads to."""
        for unit in self.below.values():
            yield unit
            yield from unit.all_below()


class _Reading(NamedTuple):
    """The result of reading a file: the document, its content, its problems."""

    document: Document | None
    flow: ArchonWorkflow | None
    problems: list[Diagnostic]


@dataclass(slots=True)
class ArchonLoader:
    """Follows the names of workflows, as far as their files are there."""

    files: Files
    problems: list[Diagnostic] = field(default_factory=list)
    all: list[ArchonUnit] = field(default_factory=list)
    _read: dict[str, _Reading] = field(default_factory=dict)

    def root(self, document: Document) -> ArchonUnit:
        """The unit of the workflow itself, with all that it leads to."""
        flow, problems = validate(ArchonWorkflow, document)
        self.problems += problems
        unit = ArchonUnit(document, outline(document.value), (_own_name(document.file),), flow)
        self._follow(unit)
        return unit

    def _follow(self, unit: ArchonUnit) -> None:
        self.all.append(unit)
        for node in unit.made.nodes:
            key = next((one for one in CALLS if one in node.value), "")
            name = node.value.get(key)
            found = self._found(node, unit.made)
            if found is None or not isinstance(name, str):
                continue
            trail = (*unit.trail, _stem(name))
            refused = self._refused(unit, node, key, trail)
            if refused is not None:
                self.problems.append(refused)
                continue
            reading = self._reading(found)
            if reading.document is not None:
                folder = f"{found.path.rpartition('/')[0]}/"
                value = reading.document.value
                made = outline(value, item_name(node), folder, given_inputs(node))
                below = ArchonUnit(reading.document, made, trail, reading.flow)
                unit.below[node.path] = below
                self._follow(below)

    def _found(self, node: NodeAt, made: ArchonOutline) -> FoundText | None:
        names = [name for _, name in named_files(node, made) if name.what == "workflow"]
        found = [named.find(name, self.files) for name in names]
        return next((one for one in found if isinstance(one, FoundText)), None)

    def _refused(
        self, unit: ArchonUnit, node: NodeAt, key: str, trail: tuple[str, ...]
    ) -> Diagnostic | None:
        """Why a workflow is not followed."""
        at = (*node.path, key)
        if trail[-1] in unit.trail:
            circle = trail[trail.index(trail[-1]) :]
            message = f"workflows run one another: {' → '.join(circle)}"
            hint = "let one of them do its work itself, in a loop_group"
            return unit.document.error("workflow-cycle", message, at=at, hint=hint)
        if len(trail) - 1 > MAX_DEPTH:
            message = f"workflows run one another more than {MAX_DEPTH} deep: {' → '.join(trail)}"
            return unit.document.error("too-nested", message, at=at)
        if len(self.all) > MAX_UNITS:
            message = f"more than {MAX_UNITS} workflows are run"
            hint = "run one of them for each item of a list: fan_out"
            return unit.document.error("too-many-workflows", message, at=at, hint=hint)
        return None

    def _reading(self, found: FoundText) -> _Reading:
        """The document of a file; its problems are reported once."""
        if found.path not in self._read:
            shown = named.shown_path(found.path)
            document, problems = read(found.text.encode(), file=shown, merge_keys=True)
            flow = None
            if document is not None:
                flow, wrong = validate(ArchonWorkflow, document)
                problems = [*problems, *wrong]
            self.problems += problems
            self._read[found.path] = _Reading(document, flow, problems)
        return self._read[found.path]


def _stem(name: str) -> str:
    return name.removesuffix(".yaml").removesuffix(".yml")


def _own_name(file: str) -> str:
    """The name by which others run this workflow, if they can; else one that no workflow has."""
    folder, slash, name = file.replace("\\", "/").rpartition("/")
    return _stem(name) if f"{folder}{slash}".endswith(_FOLDER) else f"./{name}"


_LISTS = ("output", "result", "input", "item", "message")


def calls(unit: ArchonUnit) -> Iterator[Diagnostic]:
    """All that is wrong with the nodes of a workflow that run others."""
    document = unit.document
    for node in unit.made.nodes:
        if node.kind not in CALLS:
            continue
        if node.kind == "workflow" and node.graph.owner is not None:
            message = "workflow is not possible inside a loop_group"
            hint = f"write include: {node.value['workflow']}"
            at = (*node.path, "workflow")
            yield document.error("unsupported-here", message, at=at, on_key=True, hint=hint)
        if "arguments" in node.value and "input" in node.value:
            message, at = "arguments and input exclude each other", (*node.path, "input")
            yield document.error("mutually-exclusive", message, at=at, on_key=True)
        if "inputs" in node.value and "with" in node.value:
            message, at = "inputs and with are the same: write with", (*node.path, "inputs")
            yield document.error("mutually-exclusive", message, at=at, on_key=True)
        yield from _items(document, node, unit.made.item)
        yield from _hidden(document, node, unit.made.item)
    for node in unit.calls():
        below = unit.below[node.path]
        yield from _inputs(document, node, below)
        yield from _evidence(document, node, below)
        if "fan_out" in node.value:
            yield from _name(document, node, below)
            yield from _pauses(document, node, below)
            yield from _budget(document, node, below)


def _budget(document: Document, node: NodeAt, below: ArchonUnit) -> Iterator[Diagnostic]:
    """A budget of each item is one of all of them here."""
    if node.kind == "workflow" and below.flow is not None and below.flow.budget is not None:
        message = f"the budget of {below.flow.name[:60]} holds for all items together"
        hint = "raise it, or give this workflow a budget"
        at = (*node.path, "workflow")
        yield document.warning("shared-budget", message, at=at, hint=hint)


def _evidence(document: Document, node: NodeAt, below: ArchonUnit) -> Iterator[Diagnostic]:
    """Evidence is of a whole run."""
    policy = below.flow.evidence_policy if below.flow is not None else None
    if policy is not None and policy.required:
        message = f"evidence_policy of {below.document.file} has no effect here"
        hint = "require the evidence in this workflow"
        at = (*node.path, node.kind or "workflow")
        yield document.warning("ignored-here", message, at=at, hint=hint)


# -- for each item of a list -----------------------------------------------------------------------


def list_ref(text: str, item: str | None) -> Ref | None:
    """The reference to a list, if a text consists of nothing else."""
    found = marks(text.strip(), item)
    if len(found) != 1 or found[0].escaped or found[0].written != text.strip():
        return None
    ref = found[0].ref
    if ref.of == "output":  # the list itself, not its text
        return Ref(of="result", name=ref.name)
    return ref if ref.of in _LISTS else None


def literal_list(text: str) -> list[JsonValue] | None:
    """The list that a text writes out as JSON."""
    try:
        found: JsonValue = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) and len(found) <= MAX_ITEMS else None


def _items(document: Document, node: NodeAt, item: str | None) -> Iterator[Diagnostic]:
    items = node.part("fan_out").get("items")
    if not isinstance(items, str) or literal_list(items) is not None:
        return
    if list_ref(items, item) is None:
        message = f'"{items[:60]}" is not a list'
        hint = "write a list, or $ID.output or $ID.output.FIELD of a node that gives one"
        yield document.error("not-a-list", message, at=(*node.path, "fan_out", "items"), hint=hint)


def _hidden(document: Document, node: NodeAt, item: str | None) -> Iterator[Diagnostic]:
    """With two items, only the inner one would be readable."""
    own = item_name(node)
    if item is None or own is None or own == item:
        return
    sources: Mapping = {key: node.value[key] for key in ("arguments", "input") if key in node.value}
    key = "with" if "with" in node.value else "inputs"
    for name, text in (sources | node.part(key)).items():
        at = (*node.path, name) if name in sources else (*node.path, key, name)
        found = marks(text, item) if isinstance(text, str) else []
        if any(mark.ref.of == "item" and not mark.escaped for mark in found):
            message = f"${item} cannot be read beside ${own}"
            hint = f"hand {item} as an input to a workflow in between, which has the fan_out"
            yield document.error("unknown-reference", message, at=at, hint=hint)


def _name(document: Document, node: NodeAt, below: ArchonUnit) -> Iterator[Diagnostic]:
    """The item must not hide a node of the workflow that reads it."""
    name = item_name(node)
    written = "as" in node.part("fan_out")
    at = (*node.path, "fan_out", "as") if written else (*node.path, "fan_out")
    if name in RESERVED_IDS:
        message = f"{name} is the name of a variable"
        yield document.error("bad-name", message, at=at, hint=f"as: {DEFAULT_ITEM}")
    elif any(one.id == name for one in below.made.nodes):
        message = f"{below.document.file} has a node that is called {name} too"
        yield document.error("bad-name", message, at=at, hint="as: another name")


def _pauses(document: Document, node: NodeAt, below: ArchonUnit) -> Iterator[Diagnostic]:
    """A person cannot answer many concurrent questions, and no item may end the others."""
    for unit in (below, *below.all_below()):
        for one in unit.made.nodes:
            place = f"{unit.document.file}:{unit.document.at(one.path).line}"
            at = (*node.path, node.kind or "workflow")
            if _asks(one):
                message = f"{one.id} asks a person ({place}), which a fan_out cannot wait for"
                hint = "ask before or after it, in this workflow"
                yield document.error("pauses-in-fan-out", message, at=at, hint=hint)
            elif one.kind == "cancel":
                message = f"{one.id} ends the run ({place}), and so would end its siblings"
                hint = "let a script fail instead: bash: exit 1"
                yield document.error("pauses-in-fan-out", message, at=at, hint=hint)


def _asks(node: NodeAt) -> bool:
    loops = (node.part("loop"), node.part("loop_group"))
    asks = node.kind == "approval" or (node.kind == "wait" and not waits_for_time(node))
    return asks or any(one.get("interactive") is True for one in loops)


def waits_for_time(node: NodeAt) -> bool:
    """Whether a wait ends by itself."""
    return not {"event", "attention"} & set(node.part("wait"))


# -- inputs ----------------------------------------------------------------------------------------


def _inputs(document: Document, node: NodeAt, below: ArchonUnit) -> Iterator[Diagnostic]:
    """A workflow that declares no inputs takes any."""
    key = "with" if "with" in node.value else "inputs"
    given, declared = node.part(key), below.made.inputs
    for name in given if declared else ():
        if name not in declared:
            message = f"{below.document.file} has no input {name}"
            hint = suggest_name(name, declared)
            at = (*node.path, key, name)
            yield document.error("unknown-input", message, at=at, on_key=True, hint=hint)
    has = given_inputs(node)
    missing = [name for name, one in declared.items() if name not in has and _is_needed(one)]
    if missing:
        message = f"{below.document.file} needs the input {missing[0]}"
        at = (*node.path, node.kind or "workflow")
        hint = f"with: {{{missing[0]}: VALUE}}"
        yield document.error("missing-input", message, at=at, hint=hint)


def _is_needed(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    required = entry.get("required")
    return entry.get("default") is None if required is None else required is True
