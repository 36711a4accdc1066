"""Forks: a new run that continues from a finished step or iteration of another run.

The original run does not change.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loopwright.engine.services import TextServices, schema_problem
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import Worktree, mask_tokens
from loopwright.kernel.events import AgentChanged, AnyEvent, RunForked, RunStarted
from loopwright.kernel.fold import fold
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.reopened_runs import Standing, copied, end_of, places
from loopwright.kernel.state import State
from loopwright.model.ids import iteration_number, last_id, parent_path, parse_iteration, try_number
from loopwright.model.plan import CHAT, Plan, content_hash, encode_plan
from loopwright.operations.run_control import changed_agents, uncovered_agents
from loopwright.operations.run_groups import Beside, alone, key_of, taken
from loopwright.operations.run_start import agent_choices
from loopwright.operations.run_variables import given_again, missing_variables
from loopwright.operations.run_workspaces import RunSnapshots, tree_at
from loopwright.operations.runs import Service
from loopwright.operations.workspace_rules import ARTIFACTS, with_artifacts
from loopwright.ports import Append, Workspaces, encode_figures
from loopwright.ports.headline import figures_of, gate_changes, headline_of
from loopwright.syntax.document import suggest
from loopwright.views.event_records import audit_rows, sortable_id
from loopwright.views.formats import details_of
from loopwright.views.iterations import IterationNames

MOST_NAMED = 12
MAX_EDIT_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a run is forked, and what shall be different from there on."""

    at: str | None
    model: str | None = None
    edit: str | None = None
    passes: int | None = None
    agents: Sequence[str] = ()
    workspace: Path | None = None
    beside: Beside = alone  # what is kept beside the new run
    workspaces: Workspaces | None = None  # where the snapshots are that the new run takes over
    restore: bool = False  # put the files back as they were at the place
    force: bool = False  # also over changes that no snapshot has
    allow_unknown_cost: bool = False
    env: Sequence[str] = ()  # NAME=VALUE or NAME, for variables that the other run was started with
    say: Callable[[str], None] = lambda words: None  # who is shown what was restored


async def fork(service: Service, run: str, options: Fork, *, by: str = "") -> tuple[str, int]:
    """Create the new run; returns its id, and the number of events copied from the other one."""
    events = [numbered.event for numbered in service.events(run)]
    first, plan = events[0], service.plan(events[0])
    assert isinstance(first, RunStarted)
    place = _place(run, events, options.at)
    prefix = events[: end_of(events, place)]
    tree = _tree(service, options, run, place) if options.restore else ""
    now = service.clock.now_ms()
    if service.admission is not None and options.workspace is not None:
        service.admission.check_workspace(options.workspace, by=by)  # before it is read
    begins = _begins(first, options, run=f"run_{sortable_id(now)}", plan=plan, by=by)
    known = copied(prefix, begins, now)
    before = fold(plan, known)
    edit = _edit(before, place, options.edit)
    _check_iterations(before, place, options.passes)
    agents = _agents(service, fold(plan, known), options, at=now, by=by)
    _check_admission(
        service, before.plan, agents, begins, first.worktree if options.workspace is None else None
    )
    # The permission may have been given after the place, when the other run was resumed.
    allow = options.allow_unknown_cost or fold(plan, events).plan.allow_unknown_cost
    forked = RunForked(
        at=now,
        parent=run,
        place=place,
        text=edit,
        by=by,
        passes=options.passes,
        uncovered=uncovered_agents(service.costs, before.plan, None, agents, allow=allow),
        allow_unknown_cost=allow,
    )
    new: list[AnyEvent] = [forked, *agents]
    variables = _variables(service, options, run, plan)
    _check_goes_on(service, plan, [*known, *new], place)
    bound = _with_artifacts(service, plan, begins.run, Path(begins.workspace))
    text = encode_plan(bound)
    begins = msgspec.structs.replace(begins, plan=content_hash(text))
    if options.workspaces is not None:
        await options.workspaces.adopt(begins.run, run)
    begins = await _with_folder(service, options, first, begins, tree)
    known[0] = begins
    if variables and service.variables is not None:
        service.variables.write(begins.run, variables)
    try:
        await _create(service, bound, [*known, *new], {begins.plan: text}, options.beside)
    except BaseException:
        if begins.worktree is not None and service.worktrees is not None:
            await service.worktrees.discard(begins.worktree)
        raise
    return begins.run, len(known)


def _variables(service: Service, options: Fork, run: str, plan: Plan) -> dict[str, str]:
    """The variables that the other run was given with `--env`, with the values given now."""
    stored = service.variables.read(run) if service.variables is not None else {}
    values = {**stored, **given_again(plan, run, options.env)}
    missing = missing_variables(plan, values)
    if missing:
        flags = " ".join(f"--env {name}=VALUE" for name in missing)
        options.say(
            f"warning: given to {run} with --env, and not stored any more: {', '.join(missing)}; "
            f"fork it with {flags}"
        )
    return values


def _tree(service: Service, options: Fork, run: str, place: str) -> str:
    assert options.workspaces is not None, "restoring files needs the snapshots"
    return tree_at(RunSnapshots(service, options.workspaces, run).history, run, place)


async def _with_folder(
    service: Service, options: Fork, first: RunStarted, begins: RunStarted, tree: str
) -> RunStarted:
    """The folder of the new run with its files. A fork of a run with a worktree has a worktree of
    its own: what `discard` removes for one run is never the result of another.
    """
    if first.worktree is not None and options.workspace is None:
        return await _own_worktree(service, options, first, begins, tree)
    if tree:
        assert options.workspaces is not None
        snapshots = RunSnapshots(service, options.workspaces, first.run)
        if options.workspace is not None:
            await snapshots.export(tree, Path(begins.workspace))  # without links, as admitted
            options.say(f"wrote the files as they were at that point into {options.workspace}")
        else:
            done = await snapshots.restore(tree, force=options.force)
            plural = "" if done.files == 1 else "s"
            options.say(f"restored {done.folder}: {done.files} file{plural} changed")
            options.say(f"undo it with: loopwright restore {first.run} {done.before}")
    return begins


async def _own_worktree(
    service: Service, options: Fork, first: RunStarted, begins: RunStarted, tree: str
) -> RunStarted:
    assert first.worktree is not None
    if service.worktrees is None:
        raise LoopwrightError("worktrees are not available here", code="no-worktrees")
    folder, made = await service.worktrees.copy(
        begins.run, first.worktree, Path(first.workspace), fresh=bool(tree)
    )
    options.say(f"worktree {made.folder} on the branch {made.branch}")
    if tree:
        assert options.workspaces is not None
        try:
            now = await options.workspaces.snapshot(begins.run, str(folder))
            await options.workspaces.restore(
                begins.run, tree, folder, expected=now.tree, force=True
            )
        except BaseException:
            await service.worktrees.discard(made)
            raise
    return msgspec.structs.replace(begins, workspace=str(folder), worktree=made)


# -- where -----------------------------------------------------------------------------------------


def _place(run: str, events: Sequence[AnyEvent], wanted: str | None) -> str:
    found = places(events)
    good = [place for place, how in found.items() if how == "completed"]
    if wanted in good:
        return wanted
    if wanted is not None and parse_iteration(wanted) is not None:
        return _numbered(run, list(found), good, wanted)
    if wanted is None:
        raise LoopwrightError("say where: --at PATH", code="no-place", hint=_named(good))
    if wanted not in found:
        near = suggest(wanted, good)
        hint = f"did you mean {near}? {_named(good)}" if near else _named(good)
        raise NotFound(f"{run} has no place {wanted!r}", code="unknown-place", hint=hint)
    raise Conflict(
        f"{run} cannot be forked at {wanted}: {_standing(found[wanted])}",
        code="not-finished",
        hint=_named(good),
    )


def _numbered(run: str, begun: Sequence[str], good: Sequence[str], wanted: str) -> str:
    """The place of an iteration by its name, as people count: from 1, in the newest try unless
    another one is named (`3~1`).
    """
    number, attempt = parse_iteration(wanted) or (0, None)
    names = _names(begun)
    fitting = [
        place
        for place in good
        if _is_outermost(place)
        and iteration_number(place) == number - 1
        and (names.is_current(place, number) if attempt is None else attempt == try_number(place))
    ]
    if len({parent_path(place).partition("~")[0] for place in fitting}) == 1:
        return fitting[-1]
    what = "no iteration" if not fitting else "more than one iteration"
    raise NotFound(
        f"{run} has {what} {wanted} that completed", code="unknown-place", hint=_named(good)
    )


def _names(places: Sequence[str]) -> IterationNames:
    return IterationNames((place, None) for place in places if _is_outermost(place))


def _is_outermost(place: str) -> bool:
    return place.count(".") == 1 and last_id(place).isdecimal()


def _standing(how: Standing) -> str:
    match how:
        case "running":
            return "it has not ended"
        case "cancelled":
            return "it was cut short"
        case "skipped":
            return "nothing of it was run"
        case _:
            return f"it did not complete, it is {how}"


def _named(good: Sequence[str]) -> str:
    """The places that would do, the newest of many."""
    if not good:
        return "nothing of it has completed yet: start a new run"
    more = "… " if len(good) > MOST_NAMED else ""
    first = next((place for place in good if _is_outermost(place)), None)
    names = _names(good)
    count = ""
    if first is not None:
        count = f"{first} is iteration {names.name(first, iteration_number(first) + 1)}; "
    if names.has_tries:
        count += f"of iterations {names.hint()}; "
    return f"{count}there are: {more}{', '.join(good[-MOST_NAMED:])}"


# -- what ------------------------------------------------------------------------------------------


def _begins(first: RunStarted, options: Fork, *, run: str, plan: Plan, by: str) -> RunStarted:
    """How the new run begins. It keeps the time of the other's start, since what it has done
    before the fork was done then.
    """
    folder = options.workspace or Path(first.workspace)
    is_made = options.restore if options.workspace is not None else first.worktree is not None
    if not is_made and not folder.is_dir():
        raise LoopwrightError(
            f"the workspace {folder} is not a folder",
            code="no-workspace",
            hint="create it first, or name another folder with --workspace DIR",
        )
    own_key = first.key if plan.exclusive is None else None
    return msgspec.structs.replace(
        first,
        run=run,
        parent=first.run,
        by=by,
        workspace=str(folder.resolve()),
        key=key_of(plan, folder, own_key),
        worktree=None,  # that of the other run belongs to it
    )


def _edit(state: State, place: str, text: str | None) -> str:
    """What a person says to the next iteration, as an event may have it."""
    if text is None:
        return ""
    if not text.strip() or len(text.encode(errors="replace")) > MAX_EDIT_BYTES:
        hint = f"it has 1 to {MAX_EDIT_BYTES:,} bytes"
        raise LoopwrightError("--edit cannot be that", code="bad-edit", hint=hint)
    _loop_of(state, place, "--edit")
    return mask_tokens(text)


def _loop_of(state: State, place: str, flag: str) -> RepeatBody:
    """The loop to which an iteration path belongs."""
    around = state.owners.get(parent_path(place))
    body = around.body if around is not None else None
    if not isinstance(body, RepeatBody) or body.action.each is not None:
        raise LoopwrightError(
            f"{flag} is for the next iteration of a loop, and {place} is not an iteration",
            code="no-next-pass",
            hint="name an iteration with --at, such as main.0, which is the first one",
        )
    return body


def _check_iterations(state: State, place: str, wanted: int | None) -> None:
    if wanted is None:
        return
    made = _loop_of(state, place, "--max").finished
    if wanted <= made:
        raise LoopwrightError(
            f"--max {wanted}: {made} iterations were made by then",
            code="bad-max",
            hint=f"give more than that: --max {made + 1}",
        )


def _check_admission(
    service: Service,
    plan: Plan,
    agents: Sequence[AnyEvent],
    begins: RunStarted,
    worktree: Worktree | None,
) -> None:
    """A fork is a separate run, so its creator must be allowed to use all of its agents."""
    if service.admission is None:
        return
    changed = {one.agent: one.becomes for one in agents if isinstance(one, AgentChanged)}
    becomes = msgspec.structs.replace(plan, agents={**plan.agents, **changed})
    service.admission.admit_run(
        becomes,
        run=begins.parent or begins.run,
        by=begins.by,
        workspace=Path(begins.workspace),
        worktree=worktree,
        is_fork=True,
    )


def _agents(service: Service, state: State, options: Fork, *, at: int, by: str) -> list[AnyEvent]:
    """Other agents and another model, held to all that a run is held to when it starts."""
    plan, given = state.plan, list(options.agents)
    if options.model is not None:
        given += _replaced_agents(plan, options.agents, options.model.removeprefix(CHAT).strip())
    return changed_agents(state, given, at=at, by=by, admission=service.admission)


def _replaced_agents(plan: Plan, agents: Sequence[str], model: str) -> list[str]:
    """The choice of another model for every agent that is one and has no choice of its own."""
    if not model:
        raise LoopwrightError("--model names none", code="bad-model", hint="write PROVIDER/NAME")
    _, named = agent_choices(agents)
    chats = [name for name, agent in plan.agents.items() if agent.is_chat and name not in named]
    if not chats:
        raise LoopwrightError(
            "--model: no agent of this run is a chat model",
            code="no-chat-model",
            hint=f"give --agent NAME={CHAT}{model}; it has {', '.join(sorted(plan.agents))}",
        )
    return [f"{name}={CHAT}{model}" for name in chats]


def _check_goes_on(service: Service, plan: Plan, events: list[AnyEvent], place: str) -> None:
    """A fork that would end at once is a mistake; nothing would read its new message."""
    state = fold(plan, events)
    settle(state, TextServices(service.log.blob, schema_problem), service.clock.now_ms())
    end = state.finished
    if end is not None:
        raise Conflict(
            f"nothing follows {place}: the run would end at once, {end.outcome} ({end.reason})",
            code="nothing-left",
            hint="name an earlier place, say what is missing with --edit, or allow more with --max",
        )


# -- making it -------------------------------------------------------------------------------------


def _with_artifacts(service: Service, plan: Plan, run: str, workspace: Path) -> Plan:
    """The plan with a folder of its own for what its steps make, as it is now in the other run."""
    before = plan.settings.get(ARTIFACTS)
    bound = with_artifacts(plan, service.artifacts, run, workspace)
    made = bound.settings.get(ARTIFACTS)
    if before and made and made != before and Path(before).is_dir():
        shutil.copytree(before, made, symlinks=True, dirs_exist_ok=True)
    return bound


async def _create(
    service: Service, plan: Plan, events: list[AnyEvent], blobs: dict[str, bytes], beside: Beside
) -> None:
    state = fold(plan, events)
    if service.rights is not None:
        service.rights.refuse("fork a run", state.run)
    headline = replace(headline_of(state), status="running")
    append = Append(
        run=state.run,
        expected=0,
        events=events,
        blobs=blobs,
        headline=headline,
        figures=encode_figures(figures_of(state)),
        details=None if state.started is None else details_of(plan, state.started),
        gates_opened=gate_changes(state, events)[0],
        owner=service.driver.first_owner if service.driver is not None else None,
        audit=audit_rows(
            state.run, [f for f in events if isinstance(f, RunForked)][-1:], service.via
        ),
        records=beside(state.run),
    )
    try:
        await service.log.append(append)
    except Conflict as refusal:
        raise taken(service.log, headline.key or "", refusal) from refusal
    if service.driver is not None:
        service.look(state.run)
