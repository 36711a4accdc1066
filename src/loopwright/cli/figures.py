"""The figures of a run at a terminal: a line for every round, stage and role, with bars."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from loopwright.app.views.usage import cost_text
from loopwright.cli.cells import fine_duration, table, tokens
from loopwright.cli.door import Tone
from loopwright.cli.texts import one_line

if TYPE_CHECKING:
    from loopwright.app.views.metrics import Metrics, Part, Round, Spent

BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def figure_lines(metrics: "Metrics", *, cells: int, signs: bool) -> Iterator[tuple[str, Tone]]:
    """The metrics as lines and how each is painted."""
    for loop in dict.fromkeys(one.loop for one in metrics.rounds):
        rounds = [one for one in metrics.rounds if one.loop == loop]
        leads = metrics.trends.get(loop, "")
        yield f"rounds of {loop}" + (f": {leads}" if leads else ""), "bold"
        for line in table(_round_rows(rounds, signs=signs), cells):
            yield line, "plain"
        yield "", "plain"
    for name, parts in (("stages", metrics.stages), ("roles", metrics.roles)):
        if parts:
            yield name, "bold"
            for line in table(_part_rows(parts), cells):
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


def _round_rows(rounds: "Sequence[Round]", *, signs: bool) -> list[list[str]]:
    reviewed = any(one.compared is not None for one in rounds)
    in_money = any(one.spent.usd for one in rounds)
    most = max((_weight(one, in_money=in_money) for one in rounds), default=0) or 1
    least = max((one.compared.open for one in rounds if one.compared), default=0) or 1
    rows = [["round", "took", "calls", "tokens", "cost", *(("findings",) if reviewed else ()), ""]]
    for one in rounds:
        found = one.compared
        row = [str(one.number), fine_duration(one.ms), str(one.spent.calls)]
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


def _part_rows(parts: "Sequence[Part]") -> list[list[str]]:
    rows = [["name", "calls", "failed", "took", "tokens", "cost"]]
    for one in parts:
        used = one.spent
        total = used.input_tokens + used.output_tokens
        row = [one_line(one.name), str(used.calls), str(used.failed)]
        rows.append([*row, fine_duration(used.ms), tokens(total), _cost(used)])
    return rows


def _cost(used: "Spent") -> str:
    return cost_text(used.usd, used.unpriced_calls)


def _bill(used: "Spent") -> str:
    total = tokens(used.input_tokens + used.output_tokens)
    return f"{used.calls} calls, {fine_duration(used.ms)}, {total} tokens, {_cost(used)}"
