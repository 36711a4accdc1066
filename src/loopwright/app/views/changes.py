"""What somebody has changed about a run, in words."""

from loopwright.app.auditing import edited
from loopwright.app.views.place_words import place_words
from loopwright.app.views.resume_words import resumed_words
from loopwright.kernel.facts import RunEdited, RunReopened, StepKept
from loopwright.kernel.state import State


def change_words(state: State, fact: RunEdited | RunReopened | StepKept) -> tuple[str, str]:
    """A change on one line, and what was said with it."""
    if isinstance(fact, StepKept):
        how = "left out" if fact.reason == "skipped" else "kept as it was"
        return f"{place_words(fact.path)}: {how}", ""
    by = f" by {fact.by}" if fact.by else ""
    if isinstance(fact, RunEdited):
        return f"changed{by}: {', '.join(edited(fact))}", ""
    match fact.stage:
        case "retry":
            return f"tries again what it stopped at{by}", fact.note
        case "skip":
            return f"leaves out what it stopped at{by}", fact.note
        case _:
            return resumed_words(state, fact), ""
