"""Secrets that a tool was given by name do not come back in what it says, or says about itself."""

from collections.abc import Iterable, Iterator

import msgspec

from loopwright.model.record import JsonValue
from loopwright.tools.native import ShellRules
from loopwright.tools.outcome import as_json
from loopwright.tools.processes import Programs
from loopwright.tools.servers import HttpServer, ServerSpec

LEAST_CHARS = 6  # shorter values stand everywhere by chance


class Blotter:
    """Blots out the values of the variables that were handed on."""

    def __init__(
        self, programs: Programs, shell: ShellRules, servers: Iterable[ServerSpec]
    ) -> None:
        names = {*shell.pass_env, *(name for spec in servers for name in _names(spec))}
        values = {name: programs.secret(name) or "" for name in names}
        forms = {
            form: name
            for name, value in values.items()
            if len(value) >= LEAST_CHARS
            for form in (value, as_json(value)[1:-1])
        }
        # Longest first: a secret may contain another one.
        self._forms = sorted(forms.items(), key=lambda one: -len(one[0]))

    def blot(self, text: str) -> str:
        for form, name in self._forms:
            text = text.replace(form, f"[{name}]")
        return text

    def blot_json(self, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The same for what is no text; what holds no secret is given back as it is."""
        text = as_json(value)
        blotted = self.blot(text)
        if blotted == text:
            return value
        found: dict[str, JsonValue] = msgspec.json.decode(blotted)
        return found


def _names(spec: ServerSpec) -> Iterator[str]:
    if isinstance(spec, HttpServer):
        yield from (name for _, name in spec.header_env)
        yield from filter(None, [spec.bearer_env])
    else:
        yield from spec.pass_env
