"""Which tool calls a person must see first. Decided on the tool's own name, never on the model's.

A policy may name a tool by its long name (`server.tool`) or its short one; both mean the same tool,
whichever of the two the tool itself has; `SERVER.*` means all of a server. Of several that fit, the
strictest counts.
"""

from collections.abc import Mapping

from loopwright.model.plan import ApprovalRule
from loopwright.model.toolnames import speaks_of
from loopwright.model.turns import WantedCall

_STRICTNESS: dict[ApprovalRule, int] = {"never": 0, "protected_paths": 1, "always": 2}


def rule_for(tool: str, rules: Mapping[str, ApprovalRule]) -> ApprovalRule:
    """The strictest rule that speaks of a tool; `never` when none does."""
    found = [rule for name, rule in rules.items() if speaks_of(name, tool)]
    return max(found, key=_STRICTNESS.__getitem__, default="never")


def held_for(call: WantedCall, rules: Mapping[str, ApprovalRule]) -> str:
    """Why a call waits for a person, or nothing when it does not."""
    match rule_for(call.tool, rules):
        case "always":
            return "every call of this tool is approved by a person"
        case "protected_paths" if call.paths is None:
            return "it cannot be told which paths this call would touch"
        case "protected_paths" if call.protected:
            return "it would touch a protected path"
        case _:
            return ""
