"""Plans that the native language can say, as hypothesis strategies."""

from typing import Any

from hypothesis import strategies as st

from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Cel,
    Compare,
    Condition,
    Each,
    EveryOf,
    LoopGate,
    ModelCycle,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    SomeOf,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.plan import Agent, Coordinator, Input, Plan
from loopwright.model.policy import (
    ConversationHistory,
    Limits,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    Retry,
    SameSession,
    WorkspacePolicy,
)
from loopwright.model.record import ItemsExpr, ItemsFrom, Lit, LiteralItems, Ref, Template

IDS = st.sampled_from(["a", "b2", "c_d", "e-f", "main"])
WORDS = st.text(alphabet="abc XYZ-äß.", min_size=1, max_size=8).map(lambda s: f"w{s}w")
PROSE = st.text(alphabet="ab \n\\{}é", max_size=12)
MS = st.integers(1, 400_000_000)
COUNTS = st.integers(1, 1000)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
SCHEMAS = st.sampled_from([{"type": "object"}, {"required": ["a"], "x": [1, None]}])
ANSWERS = st.lists(st.sampled_from(["approve", "reject", "continue"]), min_size=1, unique=True).map(
    tuple
)
ARGV = st.lists(WORDS, min_size=1, max_size=3).map(tuple)
FIELDS = st.none() | st.sampled_from(["a", "a.b-c.0"])


def canonical(parts: list[Lit | Ref]) -> Template:
    """Neighbouring literals as one, the way any reader leaves them."""
    made: list[Lit | Ref] = []
    for part in parts:
        last = made[-1] if made else None
        if isinstance(part, Lit) and isinstance(last, Lit):
            made[-1] = Lit(text=last.text + part.text)
        else:
            made.append(part)
    return tuple(made)


LITERALS = PROSE.filter(bool).map(lambda text: Lit(text=text))
ANYWHERE = st.one_of(
    st.sampled_from(["message", "run", "workspace"]).map(lambda of: Ref(of=of)),  # type: ignore[arg-type]
    st.builds(Ref, of=st.just("input"), name=st.just("in_1"), field=FIELDS),
    st.just(Ref(of="setting", name="base_branch")),
    st.just(Ref(of="message", json=True)),
)
EVERY_REF = st.one_of(
    ANYWHERE,
    st.sampled_from(["index", "iteration", "max", "previous", "feedback", "rejection"]).map(
        lambda of: Ref(of=of)  # type: ignore[arg-type]
    ),
    st.builds(
        Ref,
        of=st.sampled_from(["index", "iteration", "max", "previous"]),
        up=st.integers(0, 9),
        json=st.booleans(),
    ),
    st.builds(Ref, of=st.just("item"), field=FIELDS),
    st.builds(Ref, of=st.just("output"), name=IDS),
    st.builds(Ref, of=st.just("result"), name=IDS | st.just("Not_Ours-1"), field=FIELDS),
    st.builds(Ref, of=st.just("previous_output"), name=IDS),
    st.builds(Ref, of=st.just("previous_result"), name=IDS, field=FIELDS),
)
TEMPLATES = st.lists(LITERALS | EVERY_REF, max_size=5).map(canonical)
TEXTS = st.lists(LITERALS | ANYWHERE, max_size=4).map(canonical)
GOALS = st.lists(LITERALS, max_size=1).map(canonical)

WORKERS = st.sampled_from(["worker", "other"])
SCRIPTS = st.sampled_from(["test -f done", "echo '{a}'\nexit 1", " x"])
INTERPRETERS = st.sampled_from(["bash", "sh", "python3"])
VARIABLES = st.dictionaries(st.sampled_from(["BRANCH", "X_1"]), TEXTS, max_size=2)
TRUTHS = st.sampled_from(["true", "iteration > 2", "'a' in ['a']\n&& content != ''"])
VERDICT = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}

# -- conditions ------------------------------------------------------------------------------------

CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    st.one_of(
        st.builds(Cel, text=TRUTHS, missing=st.sampled_from(["false", "error"])),
        st.builds(Compare, ref=ANYWHERE, op=st.sampled_from(["==", "!="]), value=JSON),
        st.builds(
            Compare,
            ref=ANYWHERE,
            op=st.sampled_from(["<", ">", "<=", ">="]),
            value=st.integers(-9, 9) | st.floats(-1, 1),
        ),
    ),
    lambda inner: st.one_of(
        st.builds(EveryOf, parts=st.lists(inner, min_size=1, max_size=2).map(tuple)),
        st.builds(SomeOf, parts=st.lists(inner, min_size=1, max_size=2).map(tuple)),
    ),
    max_leaves=3,
)

# -- checks ----------------------------------------------------------------------------------------

LEAVES: st.SearchStrategy[Check] = st.one_of(
    st.just(Cap()),
    st.builds(Signal, word=WORDS),
    st.builds(Regex, pattern=st.sampled_from(["DONE", "a|b$"]), ignore_case=st.booleans()),
    st.builds(Regex, pattern=st.just("(["), ignore_case=st.booleans(), invalid=st.just(True)),
    st.builds(Contains, text=WORDS, ignore_case=st.booleans()),
    st.builds(
        CommandCheck,
        argv=ARGV,
        timeout_ms=MS,
        done_codes=st.lists(st.integers(0, 255), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(OutputSchema, schema=SCHEMAS),
    st.builds(ScriptCheck, text=SCRIPTS, interpreter=INTERPRETERS, timeout_ms=MS, env=VARIABLES),
    st.builds(Expr, text=TRUTHS, on_error=st.sampled_from(["fail", "count"])),
    st.builds(ResultField, field=st.sampled_from(["done", "ok"])),
    st.builds(ResultPath, path=st.lists(WORDS | st.integers(0, 9), max_size=3).map(tuple)),
    st.builds(SpendCheck, usd=st.floats(0, 900)),
    st.builds(
        Judge,
        agent=WORKERS,
        prompt=TEXTS,
        schema=st.none() | st.just(VERDICT),
        on_error=st.sampled_from(["continue", "fail"]),
    ),
    st.builds(Goal, agent=WORKERS, prompt=TEXTS),
)
OF_CYCLES: st.SearchStrategy[Check] = st.one_of(
    st.just(NoCalls()),
    st.builds(
        ToolResultCheck,
        tool=WORDS,
        exit_code=st.none() | st.integers(0, 255),
        contains=st.none() | WORDS,
    ),
)
PEOPLE = st.builds(PersonCheck, message=TEXTS, answers=ANSWERS, rejected=WORDS)
CHECKS: st.SearchStrategy[Check] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(AnyOf, parts=st.lists(inner, min_size=1, max_size=2).map(tuple)),
        st.builds(AllOf, parts=st.lists(inner, min_size=1, max_size=2).map(tuple)),
    ),
    max_leaves=3,
)
WITH_PERSON = st.one_of(
    CHECKS, PEOPLE, st.builds(AllOf, parts=st.tuples(LEAVES, PEOPLE | st.just(Cap())))
)

# -- policies --------------------------------------------------------------------------------------

BUDGETS = st.builds(
    Limits,
    wall_ms=st.none() | MS,
    idle_ms=st.none() | MS,
    tokens=st.none() | COUNTS,
    usd=st.none() | st.floats(0.01, 900),
)
LOOP_LIMITS = st.builds(
    Limits,
    wall_ms=st.none() | MS,
    pass_wall_ms=st.none() | MS,
    usd=st.none() | st.floats(0.01, 900),
    identical=st.none() | st.integers(2, 9),
)
RETRIES = st.builds(
    Retry,
    attempts=st.integers(1, 100),
    base_ms=MS,
    cap_ms=MS,
    on=st.sampled_from([("rate_limited", "overloaded"), ("exit",), ("any",)]),
)
MEMORIES = st.one_of(
    st.just(NoMemory()),
    st.builds(ProgressLog, chars=st.integers(1, 10_000)),
    st.builds(PreviousOutput, by_step=st.booleans()),
    st.just(SameSession()),
)

HISTORIES = st.builds(
    ConversationHistory,
    window=st.just(128_000) | st.integers(1, 10**6),
    strategy=st.sampled_from(["rolling-window", "periodic-summary"]),
    at=st.just(0.8) | st.floats(0.1, 1),
    summaries=st.integers(0, 5),
)

# -- actions ---------------------------------------------------------------------------------------

CALLS = st.builds(
    CallAgent,
    agent=WORKERS,
    prompt=TEXTS,
    schema=st.none() | SCHEMAS,
    session=st.sampled_from(["fresh", "thread"]),
    context_files=st.lists(st.sampled_from(["a.md", "docs/b c.md"]), max_size=2).map(tuple),
    show_needs=st.booleans(),
)
RUNS = st.builds(
    RunCommand,
    argv=ARGV,
    timeout_ms=MS,
    env=st.dictionaries(st.sampled_from(["CI", "X_1"]), WORDS, max_size=1),
) | st.builds(RunScript, text=SCRIPTS, interpreter=INTERPRETERS, timeout_ms=MS, env=VARIABLES)
ENDS = st.sampled_from(["fail", "cancel"])
SIMPLE: st.SearchStrategy[Action] = st.one_of(
    CALLS,
    RUNS,
    st.builds(
        AskPerson,
        message=TEXTS,
        answers=ANSWERS,
        capture=st.booleans(),
        on_reject=st.none()
        | st.builds(
            Rework,
            agent=WORKERS,
            prompt=st.lists(LITERALS | st.just(Ref(of="rejection")), max_size=2).map(canonical),
            attempts=st.integers(1, 10),
        ),
        reject=ENDS,
    ),
    st.builds(Wait, ms=MS),
    st.builds(StopRun, reason=TEXTS),
)
EACHES = st.builds(
    Each,
    items=st.one_of(
        st.builds(LiteralItems, values=st.lists(JSON, max_size=3).map(tuple)),
        st.just(ItemsFrom(ref=Ref(of="input", name="in_1", field="list"))),
        st.just(ItemsExpr(expr="[1, 2].filter(n, n > 1)")),
    ),
    parallel=st.none() | COUNTS,
    max_items=st.integers(3, 2_000),
    on_item_error=st.sampled_from(["stop", "continue"]),
)


def repeats(body: st.SearchStrategy[Action]) -> st.SearchStrategy[Action]:
    common: dict[str, st.SearchStrategy[Any]] = {
        "body": body,
        "max": COUNTS,
        "memory": MEMORIES,
        "at_cap": st.sampled_from(["exhaust", "complete", "fail", "ask"]),
        "output": st.sampled_from(["last", "all", "learning", "result"]),
        "delay_ms": st.just(0) | MS,
        "limits": LOOP_LIMITS,
        "broken_after": st.integers(0, 9),
        "check_first": st.booleans(),
    }
    gates = st.none() | st.builds(
        LoopGate,
        message=TEXTS,
        answers=ANSWERS,
        first_always=st.booleans(),
        approve_continues=st.booleans(),
        reject=ENDS,
    )
    return st.one_of(
        st.builds(Repeat, until=WITH_PERSON, **common),
        st.builds(Repeat, until=CHECKS, gate=gates, **common),
        st.builds(Repeat, body=body, each=EACHES, output=st.sampled_from(["last", "all"])),
    )


@st.composite
def graphs(draw: st.DrawFn, actions: st.SearchStrategy[Action]) -> tuple[Step, ...]:
    """Steps that need only what stands before them."""
    ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
    conditions = [draw(st.none() | CONDITIONS) for _ in ids]
    return tuple(
        Step(
            id=name,
            when=conditions[n],
            when_error=draw(st.sampled_from(["fail", "skip"])) if conditions[n] else "fail",
            action=draw(actions),
            needs=tuple(draw(st.lists(st.sampled_from(ids[:n]), unique=True)) if n else ()),
            join=draw(st.sampled_from(["all_success", "finished_ok", "one_success", "all_done"])),
            retry=draw(RETRIES | st.just(Retry(attempts=3))),
            limits=draw(BUDGETS),
            on_error=draw(st.sampled_from(["fail", "continue"])),
        )
        for n, name in enumerate(ids)
    )


def inner_graphs(actions: st.SearchStrategy[Action]) -> st.SearchStrategy[Action]:
    policies = st.sampled_from(["cascade", "skip", "abort"])
    return st.builds(
        Steps,
        steps=graphs(actions),
        on_failure=policies,
        parallel=st.none() | COUNTS,
        output=st.sampled_from(["last", "sink", "list"]),
    )


CYCLES: st.SearchStrategy[Action] = st.builds(
    ModelCycle,
    agent=st.just("talker"),
    prompt=TEXTS,
    nudge=st.none() | PROSE,
    schema=st.none() | SCHEMAS,
)
TALKS = st.builds(
    Repeat,
    body=CYCLES,
    max=COUNTS,
    until=st.builds(AnyOf, parts=st.tuples(OF_CYCLES, LEAVES)) | OF_CYCLES | st.just(Cap()),
    memory=HISTORIES | st.just(NoMemory()),
    at_cap=st.sampled_from(["exhaust", "complete"]),
)
INNER = st.one_of(SIMPLE, TALKS, repeats(CALLS | RUNS), inner_graphs(SIMPLE))
ACTIONS = st.one_of(INNER, repeats(inner_graphs(INNER)), inner_graphs(INNER))
AGENTS = st.builds(
    Agent,
    spec=st.none() | st.sampled_from(["claude", "model:a/b"]),
    system=PROSE,
    model=st.none() | WORDS,
    tools=st.none() | st.lists(WORDS, max_size=2).map(tuple),
    deny_tools=st.lists(WORDS, max_size=2).map(tuple),
    permission=st.none() | WORDS,
    max_turns=st.none() | COUNTS,
    max_usd=st.none() | st.floats(0.01, 900),
    temperature=st.none() | st.floats(0, 2),
    env=st.dictionaries(st.sampled_from(["CI", "X_1"]), WORDS, max_size=1),
    idle_ms=st.none() | MS,
    wall_ms=st.none() | MS,
    options=st.dictionaries(WORDS, JSON, max_size=2),
    role=st.none() | st.just("reviewer"),
    access=st.none() | st.sampled_from(["full", "readonly-shell", "readonly", "minimal"]),
)
TALKERS = st.builds(
    Agent,
    spec=st.none() | st.just("model:a/b"),
    tools=st.none() | st.lists(WORDS, max_size=2).map(tuple),
    approvals=st.dictionaries(
        WORDS, st.sampled_from(["never", "always", "protected_paths"]), max_size=2
    ),
)
INPUTS = st.builds(Input, description=PROSE, required=st.booleans(), default=JSON)
MAIN_ONLY = st.builds(
    lambda action: (Step(id="main", action=action, retry=Retry(attempts=3)),), ACTIONS
)
PLANS = st.builds(
    Plan,
    name=WORDS,
    steps=graphs(ACTIONS) | MAIN_ONLY,
    agents=st.fixed_dictionaries({"worker": AGENTS, "other": AGENTS, "talker": TALKERS}),
    inputs=st.fixed_dictionaries({"in_1": INPUTS}),
    message=GOALS,
    description=PROSE,
    limits=BUDGETS,
    on_failure=st.sampled_from(["cascade", "skip", "abort"]),
    parallel=st.none() | COUNTS,
    outcome=st.sampled_from(["worst", "some_completed", "partial"]),
    coordinator=st.none()
    | st.builds(Coordinator, agent=WORKERS, prompt=TEXTS, narrates=st.booleans()),
    settings=st.fixed_dictionaries({"base_branch": PROSE}),
    workspace=st.builds(
        WorkspacePolicy,
        snapshots=st.none() | st.booleans(),
        worktree=st.booleans(),
        protect=st.lists(st.sampled_from(["tests/**", "a.py"]), unique=True).map(tuple),
    ),
)
