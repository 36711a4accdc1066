"""From a loop to the one loop of the model."""

from loopwright.dialects.zenflow.parts import shorter
from loopwright.dialects.zenflow.surface import LoopSpec
from loopwright.model.actions import Action, Each, Repeat
from loopwright.model.checks import AnyOf, Cap, Check, Expr
from loopwright.model.memory import PreviousOutput
from loopwright.model.policy import NO_LIMITS, AtCap, Limits, OutputMode
from loopwright.model.record import JsonValue
from loopwright.model.template import Items, ItemsExpr, ItemSource


def lower_loop(spec: LoopSpec, body: Action, *, judge: Check | None, pass_ms: int) -> Repeat:
    """The loop around a body. `pass_ms` is how long a pass may take if the loop does not say."""
    output: OutputMode = "all" if spec.output_mode == "cumulative" else "last"
    pass_wall_ms = shorter(spec.iteration_timeout or pass_ms)
    limits = Limits(pass_wall_ms=pass_wall_ms) if pass_wall_ms else NO_LIMITS
    if spec.for_each is not None:
        each = _each(spec, spec.for_each)
        return Repeat(body=body, each=each, output=output, limits=limits)
    checks: list[Check] = [Expr(text=spec.until)] if spec.until is not None else []
    checks += [judge] if judge is not None else []
    # With nothing but a number of passes to end it, making them all is the goal.
    at_cap: AtCap = (spec.on_exhausted or "fail") if checks else "complete"
    return Repeat(
        body=body,
        max=spec.max_iterations,
        until=_any_of(checks),
        memory=PreviousOutput(by_step=True),
        at_cap=at_cap,
        output=output,
        delay_ms=spec.delay or 0,
        limits=limits,
        broken_after=0,  # a judge that cannot be asked has not stopped the loop
    )


def _any_of(checks: list[Check]) -> Check:
    """The expression is asked before the judge; one that is true spares it."""
    if len(checks) > 1:
        return AnyOf(parts=tuple(checks))
    return checks[0] if checks else Cap()


def _each(spec: LoopSpec, listed: str | list[JsonValue]) -> Each:
    items: ItemSource = (
        ItemsExpr(expr=listed) if isinstance(listed, str) else Items(values=tuple(listed))
    )
    return Each(
        items=items,
        parallel=spec.max_concurrency or None,
        on_item_error=spec.on_item_failure or "stop",
    )
