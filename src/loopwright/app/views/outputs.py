"""What one place of a run said, whole: prompts show long texts in part and name this instead."""

from loopwright.errors import NotFound
from loopwright.kernel.facts import AnyFact, EffectDone, IterationFinished, StepFinished, StepKept
from loopwright.model.record import JsonValue, Text
from loopwright.ports import RunReader
from loopwright.syntax.words import suggest

MOST_NAMED = 12
SPEAKING = (StepFinished, StepKept, IterationFinished, EffectDone)


class Outputs:
    """What the steps and passes of a run said, fact by fact; of several tries, the last."""

    def __init__(self, service: RunReader, run: str) -> None:
        self._service, self._run = service, run
        self._found: dict[str, Text] = {}

    def take(self, fact: AnyFact) -> None:
        if isinstance(fact, SPEAKING) and fact.output:
            self._found[fact.path] = fact.output

    def at(self, path: str) -> dict[str, JsonValue]:
        """The output of one place, as `show --output` has it."""
        found = self._found
        if path in found:
            output = self._service.read_text(found[path])
            return {"run": self._run, "path": path, "output": output}
        near = suggest(path, found)
        few = ", ".join(list(found)[:MOST_NAMED])
        hint = f"did you mean {near}?" if near else f"there are {few}" if few else None
        raise NotFound(f"{self._run} has no output at {path!r}", code="no-output", hint=hint)


def output_at(service: RunReader, run: str, path: str) -> dict[str, JsonValue]:
    """The output of a step or a pass, by its path."""
    outputs = Outputs(service, run)
    for numbered in service.facts(run):
        outputs.take(numbered.fact)
    return outputs.at(path)
