"""What one place of a run said, whole: prompts show long texts in part and name this instead."""

from loopwright.app.service import Service
from loopwright.errors import NotFound
from loopwright.kernel.facts import EffectDone, IterationFinished, StepFinished, StepKept
from loopwright.model.record import Text
from loopwright.syntax import suggest

MOST_NAMED = 12
SPEAKING = (StepFinished, StepKept, IterationFinished, EffectDone)


def output_at(service: Service, run: str, path: str) -> str:
    """The output of a step or a pass, by its path; of several tries, the last."""
    found: dict[str, Text] = {}
    for numbered in service.facts(run):
        fact = numbered.fact
        if isinstance(fact, SPEAKING) and fact.output:
            found[fact.path] = fact.output
    if path in found:
        return service.read_text(found[path])
    near = suggest(path, found)
    few = ", ".join(list(found)[:MOST_NAMED])
    hint = f"did you mean {near}?" if near else f"there are {few}" if few else None
    raise NotFound(f"{run} has no output at {path!r}", code="no-output", hint=hint)
