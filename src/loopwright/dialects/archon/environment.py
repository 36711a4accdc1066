"""Names under which values reach a script: `LW_SETUP_OUTPUT`, `LW_SETUP_OUTPUT_FIELD`, …"""

import re
from collections.abc import Iterable

from loopwright.dialects.archon.variables import TRUSTED, VARIABLES
from loopwright.model.template import Ref, Source, Template

OWN = "LW_"
INPUTS = "INPUTS_"
"""How the variables of inputs begin in Archon."""
# Given to every script: what a program that the script starts expects to find.
_ALWAYS = ("ARGUMENTS", "USER_MESSAGE", "WORKFLOW_ID")
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]+")
_KINDS: tuple[tuple[str, Source, Source], ...] = (
    (OWN, "output", "result"),
    (f"{OWN}PREV_", "previous_output", "previous_result"),
)
_WHOLE: dict[Source, Source] = {part: whole for _, whole, part in _KINDS}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def find_value_names(*texts: str) -> list[str]:
    """The variables with values that texts name, such as code for another interpreter."""
    words = [word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text)]
    return [word for word in words if _is_value_name(word)]


def _is_value_name(word: str) -> bool:
    return word.startswith((OWN, INPUTS)) or (word in VARIABLES and word not in TRUSTED)


class EnvNames:
    """The names of one workflow: each node has its own, the same everywhere."""

    def __init__(
        self, ids: Iterable[str], inputs: Iterable[str] = (), item: str | None = None
    ) -> None:
        self.item = item
        self._nodes: dict[str, str] = {}
        self._inputs: dict[str, str] = {}
        for table, names in ((self._nodes, ids), (self._inputs, inputs)):
            taken: set[str] = set()
            for name in dict.fromkeys(names):
                table[name] = _free(upper_name(name), taken)
                taken.add(table[name])

    def name(self, ref: Ref, variable: str | None = None) -> str:
        """The name for the value of a reference."""
        if variable:
            return variable
        own = ref.name or ""
        if ref.of == "item":
            return self._of_item(ref.field)
        if ref.of == "input":
            return f"{OWN}INPUT_{self._inputs.get(own) or upper_name(own)}"
        prefix = f"{OWN}PREV_" if ref.of.startswith("previous_") else OWN
        field = f"_{upper_name(ref.field)}" if ref.field else ""
        return f"{prefix}{self._nodes.get(own) or upper_name(own)}_OUTPUT{field}"

    def has_node(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return name in self._nodes

    def _of_item(self, field: str | None) -> str:
        name = f"{OWN}{upper_name(self.item or '')}"
        return f"{name}_{upper_name(field)}" if field else name

    def mentioned(self, text: str) -> dict[str, Ref]:
        """The values that a text asks for by their names."""
        words = set(_WORD.findall(text))
        words |= {word.removesuffix("_FILE") for word in words if not word.startswith(OWN)}
        found = {name: VARIABLES[name] for name in VARIABLES if name in words or name in _ALWAYS}
        own = sorted(word for word in words if word.startswith(OWN))
        for node, upper in self._nodes.items() if own else ():
            for word in own:
                ref = _asked(word, node, upper)
                if ref and ref.field == "file" and ".output.file" not in text:
                    stem = word.removesuffix("_FILE")  # the name of a file that holds the value
                    found[stem] = Ref(of=_WHOLE[ref.of], name=node)
                elif ref:
                    found[word] = ref
        for name, upper in self._inputs.items():
            ref = Ref(of="input", name=name)
            for stem in (self.name(ref), f"{INPUTS}{upper}"):
                if stem in words or f"{stem}_FILE" in words:
                    found[stem] = ref
        for word in own if self.item else ():
            if word not in found and f"{word}_".startswith(f"{self._of_item(None)}_"):
                field = word.removeprefix(self._of_item(None))[1:].lower()
                found[word] = Ref(of="item", field=field or None)
        return found


def _asked(word: str, node: str, upper: str) -> Ref | None:
    """What a word asks of a node, if it does."""
    for prefix, whole, part in _KINDS:
        stem = f"{prefix}{upper}_OUTPUT"
        if word == stem:
            return Ref(of=whole, name=node)
        if word.startswith(f"{stem}_"):
            return Ref(of=part, name=node, field=word.removeprefix(f"{stem}_").lower())
    return None


class Environment:
    """The values of one script, under names of which each has one meaning."""

    def __init__(self, names: EnvNames, text: str) -> None:
        self.item = names.item
        self._names = names
        self._values = names.mentioned(text)

    def add(self, ref: Ref, variable: str | None = None) -> str:
        """Give the script a value; the name under which it finds it."""
        name = self._names.name(ref, variable)
        number = 1
        while self._values.get(_numbered(name, number), ref) != ref:
            number += 1
        self._values[_numbered(name, number)] = ref
        return _numbered(name, number)

    def knows(self, node: str) -> bool:
        """Whether the workflow has a node of this name."""
        return self._names.has_node(node)

    def is_file(self, name: str) -> bool:
        """Whether a name is that of a file with a value, which is a path and not the value."""
        stem = name.removesuffix("_FILE")
        return stem != name and stem in self._values and name not in self._values

    def templates(self) -> dict[str, Template]:
        """The values as the plan holds them."""
        return {name: (ref,) for name, ref in sorted(self._values.items())}


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"


def _free(name: str, taken: set[str]) -> str:
    number = 1
    while _numbered(name, number) in taken:
        number += 1
    return _numbered(name, number)


def upper_name(name: str) -> str:
    """A name as part of the name of a variable."""
    return _NOT_IN_NAMES.sub("_", name.upper())
