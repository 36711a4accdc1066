"""Calls of the functions by which the rest of the source reads a state, a log or a text.

They make no run advance, and yet a rewritten kernel must answer them as before: prompts, budgets,
addresses and what is shown of a run depend on them. Answers are plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from loopwright.model.actions import AskPerson, CallAgent, Repeat, RunScript, Step, Steps
from loopwright.model.checks import leaves
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import Ref, Template
from tests.kernel_differential.pictures import plain

if TYPE_CHECKING:
    from tests.kernel_differential.harness import Kernel

LIMITS = Limits(usd=0.02, tokens=20)
TEXTS = (
    "",
    "DONE",
    "<promise>DONE</promise> and <done>DONE</done>",
    'so: {"done": true, "n": [1, {"a": "}"}]} and {"x": 1} no more {',
    "token=abcdef0123456789 sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaaaaaa Bearer abcdefghijklmnop",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345 password: hunter2",
    "STATUS: BLOCKED\nno key",
    "a line\n" * 100,
)


# -- of a state ------------------------------------------------------------------------------------


def probe_state(kernel: Kernel, state: Any, services: Any) -> dict[str, object]:
    """What functions that read a state answer, by name."""
    if state.started is None:
        return {}
    call = kernel.function
    body = state.root.body
    return {
        "reachable": call("reachable")(state),
        "directory": plain(call("directory")(state)),
        "at_cap": sorted(call("at_cap")(state)),
        "stopped_half_way": sorted(call("stopped_half_way")(state)),
        "is_last_under_way": call("is_last_under_way")(state),
        "has_unrecorded": call("has_unrecorded")(state),
        "violation": call("violation")(state),
        "used_up": call("used_up")(LIMITS, state.root.spent),
        "vanished": [kernel.encode(one) for one in kernel.vanished(state, state.now)],
        "loops_that_failed_at_cap": call("loops_that_failed_at_cap")(body),
        "unfinished_places": [owner.path for owner in call("unfinished_places")(body)],
        "addresses": _addresses(kernel, state),
        "pending": {
            effect: {
                **_limited(kernel, state, one),
                **_enclosed(kernel, state, one),
                **_asked(kernel, state, one, services),
            }
            for effect, one in state.pending.items()
        },
        "places": {
            path: _place(kernel, state, owner, services) for path, owner in state.owners.items()
        },
        "ends_by_itself": [
            kernel.function("ends_by_itself")(gate) for gate in state.gates.values()
        ],
    }


def _addresses(kernel: Kernel, state: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for written in (*_ids(state.plan.steps), "nobody", ""):
        key = kernel.function("resolve_address")(state, written)
        found[written] = plain(key)
        if isinstance(key, str):
            stands = kernel.function("locate")(state, key)
            found[f"{written} stands"] = type(stands).__name__
    return found


def _ids(steps: tuple[Step, ...]) -> Iterator[str]:
    for step in steps:
        yield step.id
        action = step.action
        while isinstance(action, Repeat):
            action = action.body
        if isinstance(action, Steps):
            yield from _ids(action.steps)


# -- of an effect: what is read off a state to make its job ----------------------------------------


def _limited(kernel: Kernel, state: Any, pending: Any) -> dict[str, object]:
    owner, call = pending.owner, kernel.function
    return {
        "has_usd_limit": call("has_usd_limit")(state, owner),
        "remaining": plain(call("remaining")(state, owner, {})),
        "exceeded": call("exceeded")(state, owner, {}),
        "chain": [
            (type(one).__name__, getattr(one, "path", ""), plain(call("limits_of")(state, one)))
            for one in call("chain")(owner)
        ],
    }


def _enclosed(kernel: Kernel, state: Any, pending: Any) -> dict[str, object]:
    owner, call = pending.owner, kernel.function
    action = getattr(owner.body, "action", None)
    places = (
        call("enclosing_step")(owner),
        call("enclosing_iteration")(owner),
        call("iteration_in_scope")(owner),
    )
    thread = call("thread_of")(state, owner, action) if isinstance(action, CallAgent) else None
    return {
        "places": [place and place.path for place in places],
        "thread_of": thread and (thread[0].path, thread[1]),
        "hidden_word": call("hidden_word")(owner),
    }


def _asked(kernel: Kernel, state: Any, pending: Any, services: Any) -> dict[str, object]:
    owner, call = pending.owner, kernel.function
    caller = kernel.caller_of(state, pending)
    role = getattr(caller, "role", None)
    return {
        "caller_of": plain(caller),
        "tools_of": None if role is None else call("tools_of")(role),
        "request_text": call("request_text")(state, owner, (), services),
        "message_for": call("message_for")(state, owner, services),
        "fill": [call("fill")(state, owner, one, services) for one in _templates(owner)],
        "missing_value": [
            call("missing_value")(state, owner, one, services) for one in _templates(owner)
        ],
        "tool_gate": call("tool_gate")(state.run, pending.effect, "go on?", "it", 1),
    }


def _templates(owner: Any) -> list[Template]:
    """The templates of a place, and some that speak of anything."""
    found: list[Template] = [
        (Ref(of="iteration"), Ref(of="previous"), Ref(of="feedback"), Ref(of="rejection")),
        (Ref(of="item"), Ref(of="index"), Ref(of="max"), Ref(of="run")),
    ]
    action = getattr(owner.body, "action", None)
    if isinstance(action, CallAgent):
        found.append(action.prompt)
    elif isinstance(action, RunScript):
        found += action.env.values()
    elif isinstance(action, AskPerson) and action.on_reject is not None:
        found.append(action.on_reject.prompt)
    return found


# -- of a place ------------------------------------------------------------------------------------


def _place(kernel: Kernel, state: Any, owner: Any, services: Any) -> dict[str, object]:
    body, call = owner.body, kernel.function
    found: dict[str, object] = {"iterations_made": call("iterations_made")(body)}
    if isinstance(getattr(body, "action", None), Repeat):
        found["cap"] = call("cap")(body)
        found["is_at_cap"] = call("is_at_cap")(body)
        found["is_first_turn"] = call("is_first_turn")(body)
        found["middle_of"] = plain(call("middle_of")(getattr(body, "talk", body).history))
    if isinstance(getattr(owner.parent, "action", None), Repeat):
        found["requests_of"] = call("requests_of")(state, owner, services)
    if hasattr(body, "results"):
        found["step_result"] = {
            step: plain(call("step_result")(owner, step)) for step in body.results
        }
    return found


# -- of a log --------------------------------------------------------------------------------------


def probe_log(kernel: Kernel, log: list[bytes]) -> dict[str, object]:
    """What functions that read a whole log answer; events come out as they went in."""
    events = [kernel.decode(event) for event in log]
    found = kernel.function("places")(events)
    ended = [place for place, how in found.items() if how == "completed"]
    return {
        "places": list(found.items()),
        "end_of": {place: kernel.end_of(events, place) for place in ended},
        "encoded": [kernel.encode(logged) for logged in events] == log,
    }


# -- of texts and policies -------------------------------------------------------------------------


def probe_texts(kernel: Kernel) -> dict[str, object]:
    """What functions answer that read neither a state nor a log."""
    call, note = kernel.function, kernel.module("event_parts").CallNote
    by_text: dict[str, Callable[[str], object]] = {
        "mask_text": call("mask_text"),
        "mask_tokens": call("mask_tokens"),
        "is_secret_name": call("is_secret_name"),
        "mask": lambda text: call("mask")({"password": text, "list": [text, {"a": text}]}),
        "last_json_object": call("last_json_object"),
        "learning_of": lambda text: call("learning_of")(text, 2, 40),
        "without_signal": lambda text: call("without_signal")(text, "DONE"),
        "hidden_tags": lambda text: call("hidden_tags")(text).pattern,
        "rejected": lambda text: plain(call("rejected")(note(id="c", tool=text), "x", "ann")),
        "turned_away": lambda text: plain(
            call("turned_away")(note(id="c", tool="t", problem=text))
        ),
        "name_files": lambda text: call("name_files")((text,) * 5, 9),
    }
    found: dict[str, object] = {
        name: [function(text) for text in TEXTS] for name, function in by_text.items()
    }
    found["after_failure"] = _waits(kernel)
    found["conversation"] = [plain(call("conversation")(*one)) for one in _TALKS]
    return found


_TALKS = [
    (Agent(spec="model:fake"), CallAgent(agent="a")),
    (
        Agent(spec="model:fake", max_turns=3, options={"context_window": 500}),
        CallAgent(agent="a", schema={"required": ["done"]}, on_empty="fail"),
    ),
]


def _waits(kernel: Kernel) -> list[object]:
    failure = kernel.module("event_parts").Failure
    policies = (
        Retry(),
        Retry(attempts=3, base_ms=5),
        Retry(attempts=4, base_ms=50_000, on=("any",)),
        Retry(attempts=3, on=("agent",), if_says=("again",), unless_says=("never",)),
    )
    kinds = ("rate_limited", "overloaded", "bad_result", "agent", "exit", "cancelled", "internal")
    after = kernel.function("after_failure")
    return [
        plain(after(policy, attempt, failure(kind, words, wait)))
        for policy in policies
        for attempt in (1, 2, 3, 4)
        for kind in kinds
        for words, wait in (("", None), ("again", 2_000), ("never again", None))
    ]


def probe_checks(kernel: Kernel, plan: Plan, services: Any) -> list[object]:
    """What the checks of a plan say about texts, where they need nothing else."""
    inspect = kernel.function("inspect")
    return [
        plain(inspect(leaf, services, output=text, result=None, instructions="say DONE"))
        for step in plan.steps
        if isinstance(step.action, Repeat)
        for leaf in leaves(step.action.until)
        for text in TEXTS
    ]
