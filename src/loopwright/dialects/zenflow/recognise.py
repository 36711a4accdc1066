"""How sure this dialect is that a definition is its own."""

_ROOT = frozenset({"includes", "options"})
_AGENT = frozenset({"description", "disallowedTools", "maxTurns", "resultSchema", "topP"})
_STEP = frozenset(
    {
        *("condition", "contextFiles", "dependsOn", "include", "instructions", "loop"),
        *("maxRetries", "tool", "toolInput"),
    }
)
# Words that this dialect does not have: with as many of them, a file is somebody else's.
_FOREIGN_ROOT = frozenset({"agent", "budget", "goal", "inputs", "nodes", "parallel", "repeat"})
_FOREIGN_AGENT = frozenset({"deny_tools", "permission", "system", "use"})
_FOREIGN_STEP = frozenset(
    {
        "depends_on",
        "gate",
        "needs",
        "prompt",
        "repeat",
        "run",
        "script",
        "stop",
        "trigger_rule",
        "wait",
        "when",
    }
)

SURE = 90
PERHAPS = 20


def recognise(value: object) -> int:
    """From 0 (not mine) to 100."""
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        return 0
    agents = value.get("agents")
    steps = _mappings(value["steps"])
    named = _mappings(list(agents.values())) if isinstance(agents, dict) else []
    own = len(_ROOT & value.keys())
    own += sum(len(_AGENT & one.keys()) for one in named)
    own += sum(len(_STEP & one.keys()) for one in steps)
    foreign = len(_FOREIGN_ROOT & value.keys())
    foreign += sum(len(_FOREIGN_AGENT & one.keys()) for one in named)
    foreign += sum(len(_FOREIGN_STEP & one.keys()) for one in steps)
    if own > foreign:
        return SURE
    return PERHAPS if not foreign and any("id" in one for one in steps) else 0


def _mappings(values: list[object]) -> list[dict[str, object]]:
    return [one for one in values if isinstance(one, dict)]
