"""Planted differences: for each part of a kernel a copy of it that decides one thing otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Planted:
    """A text of a module that is replaced by another one."""

    module: str
    old: str
    new: str

    def plant(self, folder: Path) -> None:
        """Change the module in the folder of a frozen kernel."""
        file = folder / f"{self.module}.py"
        text = file.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.module} has not one {self.old!r}"
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")


PLANTED = {
    "the wait before another try": Planted("effects", "min(attempt - 1, 20)", "min(attempt, 20)"),
    "the cap of a loop": Planted(
        "state",
        "body.action.max + body.progress.extra",
        "body.action.max + body.progress.extra + 1",
    ),
    "the words of a gate": Planted("gates", "Review iteration {", "Review of iteration {"),
    "the output of a loop over a list": Planted(
        "bodies/each", "## Item {index}", "## Number {index}"
    ),
    "how often a vanished call is repeated": Planted(
        "effects", "MOST_REPEATS = 2", "MOST_REPEATS = 0"
    ),
    "the timers of a fork": Planted("reopened_runs", "event.call.until + gap", "fact.call.until"),
    "how often a place was resumed": Planted(
        "reopened_runs", "owner.openings += 1", "owner.openings += 2"
    ),
    "the baseline of protected files": Planted(
        "snapshots", "known.baseline or snapshot.tree", "snapshot.tree"
    ),
    "calls of a turn that cannot be run": Planted(
        "bodies/conversation", "elif not note.problem and note.tool", "elif note.tool"
    ),
    "how a conversation is made shorter": Planted(
        "bodies/history", "left[number] = _trim(left[number])", "left[number] = left[number]"
    ),
    "a step that needs an output": Planted("gates", 'reason="no_output"', 'reason="empty"'),
    "the reason of a stop": Planted("decide", "why = state.control.cancel.reason", 'why = "ended"'),
    "who waits for a place": Planted(
        "effects",
        "return sorted(waiting, key=lambda one: busy",
        "return sorted(waiting, key=lambda one: -busy",
    ),
    "the tries of a coordinator": Planted("coordination", "MOST_FAILURES = 3", "MOST_FAILURES = 2"),
    "the steps that have not begun when nothing else is open": Planted(
        "bodies/dispatch",
        "(type(body) is RepeatBody and not body.active)",
        "(type(body) in (RepeatBody, StepsBody) and not body.active)",
    ),
    "an error inside a kernel": Planted(
        "reopened_runs", "if event.metadata is not None:", "if event.metadata.planted is not None:"
    ),
    "a state that decides the same": Planted(
        "state", "call.agent] = state.version", "call.agent] = state.version + 1"
    ),
    "a function that only reads": Planted(
        "limits",
        "return any(limits_of(state, place).usd is not None",
        "return any(limits_of(state, place).tokens is not None",
    ),
}
