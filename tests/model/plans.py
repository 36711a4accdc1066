"""Strategies for plans, built from the records of the model. Other test folders use them too.

`plans()` makes any plan that the model can hold, for codecs. `runnable_plans()` makes plans of
what the kernel decides today, each bounded by a cap, for whole runs.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from loopwright.model import actions, checks, policy, record
from loopwright.model.actions import Action, Each, LoopGate, Repeat, Step, Steps
from loopwright.model.checks import Check
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Input, Plan

IDS = st.from_regex(r"[a-z][a-z0-9_-]{0,6}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
COUNTS = st.integers(1, 5)
MAYBE_MS = st.none() | st.integers(1, 10**9)


# -- any plan that the model can hold --------------------------------------------------------------

REFS = st.builds(
    record.Ref,
    of=st.sampled_from(record.Source.__args__),
    name=st.none() | IDS,
    field=st.none() | st.just("a.b"),
)
TEMPLATES = st.lists(st.builds(record.Lit, text=TEXTS) | REFS, max_size=3).map(tuple)
SCHEMAS = st.dictionaries(IDS, JSON, max_size=2)
LIMITS = st.builds(
    policy.Limits,
    wall_ms=MAYBE_MS,
    pass_wall_ms=MAYBE_MS,
    idle_ms=MAYBE_MS,
    tokens=st.none() | COUNTS,
    usd=st.none() | st.floats(0.01, 100),
    identical=st.none() | COUNTS,
    no_progress=st.none() | COUNTS,
)
RETRIES = st.builds(
    policy.Retry,
    attempts=COUNTS,
    base_ms=st.integers(0, 10_000),
    cap_ms=st.integers(0, 10**6),
    on=st.lists(st.sampled_from(policy.FailureKind.__args__), max_size=3).map(tuple),
)
MEMORIES: SearchStrategy[policy.Memory] = st.one_of(
    *[st.builds(kind) for kind in policy.Memory.__args__ if kind is not policy.ConversationHistory],
    st.builds(policy.ConversationHistory, window=COUNTS),
)
ANY_LEAF: SearchStrategy[checks.Leaf] = st.one_of(
    st.builds(checks.Cap),
    st.builds(checks.Regex, pattern=TEXTS, ignore_case=st.booleans(), invalid=st.booleans()),
    st.builds(checks.Contains, text=TEXTS, ignore_case=st.booleans()),
    st.builds(checks.Signal, word=TEXTS),
    st.builds(checks.OutputSchema, schema=SCHEMAS),
    st.builds(checks.CommandCheck, argv=st.tuples(TEXTS), done_codes=st.just((0, 3))),
    st.builds(checks.ScriptCheck, text=TEXTS),
    st.builds(checks.Expr, text=TEXTS),
    st.builds(checks.Judge, agent=IDS, prompt=TEMPLATES, schema=st.none() | SCHEMAS),
    st.builds(checks.Goal, agent=IDS, prompt=TEMPLATES),
    st.builds(checks.Approval, stage=st.none() | IDS, words=st.booleans()),
    st.builds(checks.ToolResultCheck, tool=IDS, exit_code=st.none() | COUNTS),
    st.builds(checks.PersonCheck, message=TEMPLATES),
)


def check_trees(leaf: SearchStrategy[checks.Leaf]) -> SearchStrategy[Check]:
    """Checks combined by any and all, a few levels deep."""
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3)
            .map(tuple)
            .flatmap(
                lambda parts: st.sampled_from(
                    [checks.AnyOf(parts=parts), checks.AllOf(parts=parts)]
                )
            )
        ),
        max_leaves=4,
    )


ITEM_SOURCES: SearchStrategy[record.ItemSource] = st.one_of(
    st.builds(record.LiteralItems, values=st.lists(JSON, max_size=4).map(tuple)),
    st.builds(record.ItemsFrom, ref=REFS),
    st.builds(record.ItemsExpr, expr=TEXTS),
)
ANY_SINGLE: SearchStrategy[Action] = st.one_of(
    st.builds(
        actions.CallAgent,
        agent=IDS,
        prompt=TEMPLATES,
        schema=st.none() | SCHEMAS,
        session=st.sampled_from(["fresh", "thread"]),
    ),
    st.builds(actions.RunCommand, argv=st.tuples(TEXTS), env=st.dictionaries(IDS, TEXTS)),
    st.builds(actions.RunScript, text=TEXTS, env=st.dictionaries(IDS, TEMPLATES)),
    st.builds(actions.AskPerson, message=TEMPLATES, capture=st.booleans()),
    st.builds(actions.Wait, ms=COUNTS),
    st.builds(actions.StopRun, reason=TEMPLATES),
    st.builds(actions.FailStep, reason=TEXTS),
    st.builds(actions.ModelCycle, agent=IDS, prompt=TEMPLATES, nudge=st.none() | TEXTS),
)


def any_repeats(body: SearchStrategy[Action]) -> SearchStrategy[Repeat]:
    return st.builds(
        Repeat,
        body=body,
        max=st.none() | COUNTS,
        each=st.none()
        | st.builds(
            Each,
            items=ITEM_SOURCES,
            parallel=st.none() | COUNTS,
            on_item_error=st.sampled_from(policy.OnItemError.__args__),
        ),
        until=check_trees(ANY_LEAF),
        memory=MEMORIES,
        gate=st.none() | st.builds(LoopGate, message=TEMPLATES),
        at_cap=st.sampled_from(policy.AtCap.__args__),
        output=st.sampled_from(policy.OutputMode.__args__),
        delay_ms=st.integers(0, 5),
        limits=LIMITS,
        broken_after=st.integers(0, 3),
        check_first=st.booleans(),
    )


@st.composite
def step_graphs(
    draw: st.DrawFn, action: SearchStrategy[Action], *, most: int = 4, plain: bool = False
) -> tuple[Step, ...]:
    """Steps whose needs point back, so that they form a DAG; declared in a shuffled order."""
    names = draw(st.lists(IDS, min_size=1, max_size=most, unique=True))
    steps = []
    for number, name in enumerate(names):
        needs = draw(st.lists(st.sampled_from(names[:number]), unique=True)) if number else []
        more = {} if plain else {"retry": draw(RETRIES), "limits": draw(LIMITS)}
        step = Step(
            id=name,
            action=draw(action),
            needs=tuple(needs),
            join=draw(st.sampled_from(policy.Join.__args__)),
            on_error=draw(st.sampled_from(["fail", "fail", "continue"])),
            **more,
        )
        steps.append(step)
    return tuple(draw(st.permutations(steps)))


def any_actions() -> SearchStrategy[Action]:
    return st.recursive(
        ANY_SINGLE,
        lambda inner: (
            any_repeats(inner)
            | st.builds(
                Steps,
                steps=step_graphs(inner, most=3),
                on_failure=st.sampled_from(policy.OnFailure.__args__),
                parallel=st.none() | COUNTS,
                given=st.none()
                | st.builds(
                    actions.WorkflowInputs,
                    message=TEMPLATES,
                    inputs=st.dictionaries(IDS, TEMPLATES, max_size=2),
                ),
            )
        ),
        max_leaves=3,
    )


def plans() -> SearchStrategy[Plan]:
    """Any plan that the model can hold."""
    return st.builds(
        Plan,
        name=IDS,
        steps=step_graphs(any_actions(), most=3),
        agents=st.dictionaries(
            IDS,
            st.builds(
                Agent,
                spec=st.none() | TEXTS,
                tools=st.none() | st.tuples(TEXTS),
                options=st.dictionaries(IDS, JSON, max_size=2),
                max_usd=st.none() | st.floats(0, 10),
            ),
            max_size=2,
        ),
        inputs=st.dictionaries(IDS, st.builds(Input, default=JSON), max_size=2),
        message=TEMPLATES,
        limits=LIMITS,
        on_failure=st.sampled_from(policy.OnFailure.__args__),
        parallel=st.none() | COUNTS,
    )


# -- plans that the kernel can run -----------------------------------------------------------------

WORD = "DONE"
RUNNABLE_LEAVES: SearchStrategy[checks.Leaf] = st.sampled_from(
    [
        checks.Cap(),
        checks.Regex(pattern="good|fine"),
        checks.Contains(text="GOOD", ignore_case=True),
        checks.Signal(word=WORD),
        checks.OutputSchema(schema={"required": ["ok"]}),
        checks.CommandCheck(argv=("check",)),
        checks.PersonCheck(),
        checks.ScriptCheck(text="check"),
        checks.Expr(text="iteration >= 1"),
        checks.Expr(text="result.ok == true", on_error="count"),
        checks.ResultField(field="ok"),
        checks.Judge(agent="judge"),
        checks.Judge(agent="judge", on_error="fail"),
        checks.Goal(agent="judge"),
    ]
)
RUNNABLE_SINGLE: SearchStrategy[Action] = st.sampled_from(
    [
        actions.CallAgent(agent="a"),
        actions.CallAgent(agent="a", session="thread"),
        actions.CallAgent(agent="c", prompt=(record.Ref(of="previous"),)),
        actions.CallAgent(agent="b", prompt=record.literal("Be good.")),
        actions.RunCommand(argv=("make",)),
        actions.AskPerson(),
        actions.AskPerson(capture=True),
        actions.AskPerson(on_reject=actions.Rework(agent="a", attempts=2)),
        actions.AskPerson(reject="cancel"),
        actions.RunScript(text="make", env={"OUT": (record.Ref(of="previous"),)}),
        actions.Wait(ms=50),
    ]
)
SMALL_LIMITS = st.sampled_from(
    [
        policy.NO_LIMITS,
        policy.NO_LIMITS,
        policy.Limits(wall_ms=1_000),
        policy.Limits(pass_wall_ms=500),
        policy.Limits(tokens=30),
        policy.Limits(usd=0.5, identical=2),
    ]
)
SMALL_RETRIES = st.sampled_from(
    [
        policy.Retry(),
        policy.Retry(attempts=2, base_ms=10),
        policy.Retry(attempts=3, base_ms=10, on=("agent", "exit", "rate_limited")),
        policy.Retry(attempts=2, base_ms=10, on=("any",)),
    ]
)
RUNNABLE_GATES = st.sampled_from(
    [
        None,
        None,
        None,
        LoopGate(),
        LoopGate(first_always=True),
        LoopGate(first_always=True, approve_continues=True, reject="cancel"),
    ]
)


def _conditions(needs: tuple[str, ...]) -> SearchStrategy[actions.Condition | None]:
    """Conditions on what a step needs; some cannot be evaluated."""
    found: list[actions.Condition | None] = [None, None, None, actions.Cel(text="1 / 0 > 1")]
    for need in needs:
        done = actions.Cel(text=f"steps.{need}.status == 'completed'")
        said = actions.Compare(ref=record.Ref(of="output", name=need), op="!=", value="trying")
        found += [
            done,
            actions.Cel(text=f"steps.{need}.result.ok == 1", missing="false"),
            actions.SomeOf(parts=(said, done)),
            actions.EveryOf(parts=(done, said)),
        ]
    return st.sampled_from(found)


def runnable_repeats(body: SearchStrategy[Action], *, items: bool) -> SearchStrategy[Repeat]:
    counted = st.builds(
        Repeat,
        body=body,
        max=st.integers(1, 3),
        until=check_trees(RUNNABLE_LEAVES),
        memory=st.sampled_from([policy.NoMemory(), policy.ProgressLog(chars=10)]),
        gate=RUNNABLE_GATES,
        at_cap=st.sampled_from(policy.AtCap.__args__),
        output=st.sampled_from(policy.OutputMode.__args__),
        delay_ms=st.sampled_from([0, 0, 20]),
        limits=SMALL_LIMITS,
        broken_after=st.sampled_from([0, 1, 3]),
        check_first=st.booleans(),
    )
    if not items:
        return counted
    each = st.builds(
        Each,
        items=st.lists(st.integers(0, 3), max_size=3).map(
            lambda values: record.LiteralItems(values=tuple(values))
        )
        | st.sampled_from([record.ItemsExpr(expr="[1, 2]"), record.ItemsExpr(expr="'none'")]),
        parallel=st.none() | st.integers(1, 2),
        on_item_error=st.sampled_from(policy.OnItemError.__args__),
    )
    over_items = st.builds(
        Repeat,
        body=body,
        each=each,
        output=st.sampled_from(["last", "all", "list"]),
        limits=SMALL_LIMITS,
    )
    return counted | over_items


@st.composite
def _runnable_steps(
    draw: st.DrawFn, action: SearchStrategy[Action], *, chain: bool
) -> tuple[Step, ...]:
    if chain:
        names = [f"s{n}" for n in range(draw(st.integers(1, 3)))]
        graph = tuple(
            Step(
                id=name,
                action=draw(action),
                needs=tuple(names[:number][-1:]),
                on_error=draw(st.sampled_from(["fail", "continue"])),
                join=draw(st.sampled_from(policy.Join.__args__)),
            )
            for number, name in enumerate(names)
        )
    else:
        graph = draw(step_graphs(action, most=3, plain=True))
    return tuple(
        Step(
            id=step.id,
            action=step.action,
            needs=step.needs,
            join=step.join,
            on_error=step.on_error,
            when=draw(_conditions(step.needs)),
            when_error=draw(st.sampled_from(["fail", "skip"])),
            retry=draw(SMALL_RETRIES),
            limits=draw(SMALL_LIMITS),
        )
        for step in graph
    )


def runnable_actions(*, sequential: bool) -> SearchStrategy[Action]:
    inner = _some_actions(sequential=sequential)
    return inner | runnable_repeats(inner, items=not sequential)


def _some_actions(*, sequential: bool) -> SearchStrategy[Action]:
    return st.recursive(
        RUNNABLE_SINGLE,
        lambda inner: (
            runnable_repeats(inner, items=not sequential)
            | st.builds(
                Steps,
                steps=_runnable_steps(inner, chain=sequential),
                on_failure=st.sampled_from(policy.OnFailure.__args__),
                given=st.sampled_from([None, None, actions.WorkflowInputs()]),
            )
        ),
        max_leaves=3,
    )


def runnable_plans(*, sequential: bool = False) -> SearchStrategy[Plan]:
    """Plans that run to an end by themselves; sequential ones have one thing under way at most."""
    return st.builds(
        Plan,
        name=st.just("t"),
        steps=_runnable_steps(runnable_actions(sequential=sequential), chain=sequential),
        limits=SMALL_LIMITS,
        on_failure=st.sampled_from(policy.OnFailure.__args__),
        parallel=st.none() if sequential else st.sampled_from([None, None, 1, 2]),
        outcome=st.sampled_from(["worst", "worst", "some_completed", "partial"]),
    )


def one_step(action: Action, **more: object) -> Plan:
    """The plan of a single action."""
    return Plan(name="t", steps=(Step(id=MAIN, action=action, **more),))
