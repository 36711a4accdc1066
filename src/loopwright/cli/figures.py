"""The figures of a run at a terminal: a line for every iteration, step and agent, with bars."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from loopwright.app.views.usage import NOTHING, cost_text
from loopwright.cli.cells import fine_duration, table, tokens
from loopwright.cli.door import Tone
from loopwright.cli.texts import one_line

if TYPE_CHECKING:
    from loopwright.app.views.metrics import Metrics, Part, Round, Spent

BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def figure_lines(metrics: "Metrics", *, cells: int, signs: bool) -> Iterator[tuple[str, Tone]]:
    """The metrics as lines and how each is painted."""
    extra = [key for key in ("commands", "tools") if getattr(metrics.total, key)]
    for loop in dict.fromkeys(one.loop for one in metrics.rounds):
        rounds = [one for one in metrics.rounds if one.loop == loop]
        leads = metrics.trends.get(loop, "")
        yield f"iterations of {loop}" + (f": {leads}" if leads else ""), "bold"
        for line in table(_round_rows(rounds, extra, signs=signs), cells):
            yield line, "plain"
        yield "", "plain"
    for name, parts in (("steps", metrics.stages), ("agents", metrics.roles)):
        if parts:
            yield name, "bold"
            for line in table(_part_rows(parts, extra), cells):
                yield line, "plain"
            yield "", "plain"
    yield f"in all  {_bill(metrics.total)}", "bold"


def bar(share: float, *, signs: bool, cells: int = BAR_CELLS) -> str:
    """A share of one as a bar; something is never shown as nothing."""
    share = min(1.0, max(0.0, share))
    if not signs:
        return "#" * (max(1, round(share * cells)) if share else 0)
    eighths = max(1, round(share * cells * 8)) if share else 0
    whole, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else "")


def _round_rows(rounds: "Sequence[Round]", extra: Sequence[str], *, signs: bool) -> list[list[str]]:
    reviewed = any(one.compared is not None for one in rounds)
    in_money = any(one.spent.usd for one in rounds)
    most = max((_weight(one, in_money=in_money) for one in rounds), default=0) or 1
    least = max((one.compared.open for one in rounds if one.compared), default=0) or 1
    titles = ["iteration", "took", "calls", *extra, "tokens", "cost"]
    rows = [[*titles, *(("findings",) if reviewed else ()), ""]]
    for one in rounds:
        found = one.compared
        row = [str(one.number), fine_duration(one.ms), *_counts(one.spent, extra)]
        row += [tokens(one.spent.input_tokens + one.spent.output_tokens), _cost(one.spent)]
        if reviewed:
            row.append(f"{found.open} ({found.new} new, {found.back} back)" if found else "-")
            share = found.open / least if found else 0.0
        else:
            share = _weight(one, in_money=in_money) / most
        said = ", ".join(one.verdicts.values()) or one.status
        row.append(f"{bar(share, signs=signs):<{BAR_CELLS}}  {said}")
        rows.append(row)
    return rows


def _weight(one: "Round", *, in_money: bool) -> float:
    if in_money:
        return one.spent.usd
    return one.spent.input_tokens + one.spent.output_tokens or one.ms


def _part_rows(parts: "Sequence[Part]", extra: Sequence[str]) -> list[list[str]]:
    rows = [["name", "calls", *extra, "failed", "took", "tokens", "cost"]]
    for one in parts:
        used = one.spent
        total = used.input_tokens + used.output_tokens
        row = [one_line(one.name), *_counts(used, extra), str(used.failed)]
        rows.append([*row, fine_duration(used.ms), tokens(total), _cost(used)])
    return rows


def _counts(used: "Spent", extra: Sequence[str]) -> list[str]:
    """Calls of agents, and how often commands and tools ran where any did."""
    return [str(used.calls), *(str(getattr(used, key)) for key in extra)]


def _cost(used: "Spent") -> str:
    """The cost of calls; commands and tools have none."""
    return cost_text(used.usd, used.unpriced_calls) if used.calls else NOTHING


def _bill(used: "Spent") -> str:
    counts = ((used.calls, "call"), (used.commands, "command"), (used.tools, "tool call"))
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts if n or what == "call"]
    total = tokens(used.input_tokens + used.output_tokens)
    return ", ".join([*parts, fine_duration(used.ms), f"{total} tokens", _cost(used)])
