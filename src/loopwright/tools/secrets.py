"""Secrets that a tool was given by name do not come back in what it says."""

from collections.abc import Iterable, Iterator

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


def _names(spec: ServerSpec) -> Iterator[str]:
    if isinstance(spec, HttpServer):
        yield from (name for _, name in spec.header_env)
        yield from filter(None, [spec.bearer_env])
    else:
        yield from spec.pass_env
