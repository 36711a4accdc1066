"""Two kernels on the same histories: the events that they produce are compared byte for byte.

A kernel is a package with the modules of `loopwright.kernel`. `load_kernel` makes a `Kernel` of one
by its name, so that the kernel of the product and a frozen copy can be used side by side. Events go
from one kernel to the other in their encoded form only: their classes need not be the same.

`entry_points` lists everything that the rest of the source imports from the kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

from msgspec.structs import replace

from loopwright.engine.services import compiled, evaluated, stored_text
from loopwright.model.plan import Plan, encode_plan
from loopwright.model.record import Blob, JsonValue, Text
from tests.kernel_differential.entry_points import module_of, name_of
from tests.kernel_differential.pictures import first_differences, inner_picture, outer_picture
from tests.kernel_differential.probes import probe_log, probe_state

CURRENT = "loopwright.kernel"
FROZEN = "tests.kernel_differential.old_kernel"
PICTURE_MODULE = "picture_of_state"
"""The module of a frozen kernel that draws the picture of its states."""
LOOK_EVERY = 10
"""After so many moves the states of both kernels are compared; also at the end."""
SHOWN_BEFORE = 5

SchemaCheck = Callable[[dict[str, JsonValue], JsonValue], str | None]


# -- kernels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """The functions of a kernel that make a run advance, each with the module that it is in.

    All other functions that the rest of the source uses only read a state; `probes` calls them.
    """

    package: str
    fold: Callable[..., Any]  # fold: actor, app.service, app.wiring, app.integrity, views
    apply: Callable[..., None]  # fold: actor, activity, talks, app.reopening, app.rehearsing
    settle: Callable[..., list[Any]]  # decide: actor, app.forking, app.rehearsing
    encode_events: Callable[..., bytes]  # encoding: stores.edge
    decode_events: Callable[..., list[Any]]  # encoding: stores.edge, stores.chain
    caller_of: Callable[..., Any]  # tools: talks
    use: Callable[..., Any]  # tools: talks
    vanished: Callable[..., list[Any]]  # vanishing: runtime.driver
    end_of: Callable[..., int]  # forking: app.forking
    copied: Callable[..., list[Any]]  # forking: app.forking
    # testing.picture, or its frozen copy; None: only the events of this kernel are compared
    picture: Callable[..., dict[str, object]] | None
    models: str = "loopwright.model"  # the package of the records that this kernel imports

    def module(self, name: str) -> ModuleType:
        return import_module(f"{self.package}.{name}")

    def function(self, name: str) -> Callable[..., Any]:
        """A function that the rest of the source imports, by its name."""
        return _function(self.package, name)

    def plan(self, plan: Plan) -> Any:
        """A plan as a record of the package that this kernel imports."""
        if self.models == "loopwright.model":
            return plan
        return import_module(f"{self.models}.plan").decode_plan(encode_plan(plan))

    def text(self, text: Text) -> Any:
        """The same for a text."""
        if self.models == "loopwright.model" or not isinstance(text, Blob):
            return text
        own = import_module(f"{self.models}.record").Blob
        return own(blob=text.blob, size=text.size, head=text.head)

    def drawn(self, state: object) -> dict[str, object]:
        assert self.picture is not None
        return self.picture(state)

    def encode(self, event: object) -> bytes:
        return self.encode_events([event])[1:-1]

    def decode(self, event: bytes) -> Any:
        (logged,) = self.decode_events(b"[" + event + b"]")
        return logged


@cache
def _function(package: str, name: str) -> Callable[..., Any]:
    module = import_module(f"{package}.{module_of(name, package)}")
    return getattr(module, name_of(name, package))


def load_kernel(package: str = CURRENT) -> Kernel:
    """The kernel of a package."""

    def part(name: str) -> Any:
        return _function(package, name)

    drawing = (
        "tests.support.laws.state_picture" if package == CURRENT else f"{package}.{PICTURE_MODULE}"
    )
    root = package.rpartition(".")[0]
    has_models = bool(root) and find_spec(f"{root}.model") is not None
    return Kernel(
        package=package,
        fold=part("fold"),
        apply=part("apply"),
        settle=part("settle"),
        encode_events=part("encode_events"),
        decode_events=part("decode_events"),
        caller_of=part("caller_of"),
        use=part("use"),
        vanished=part("vanished"),
        end_of=part("end_of"),
        copied=part("copied"),
        picture=import_module(drawing).picture if find_spec(drawing) is not None else None,
        models=f"{root}.model" if has_models else "loopwright.model",
    )


def current_kernel() -> Kernel:
    return load_kernel(CURRENT)


def compared_kernel() -> Kernel:
    """The frozen kernel where there is one, else the kernel of the product itself."""
    return load_kernel(FROZEN if find_spec(FROZEN) is not None else CURRENT)


# -- what a kernel is given ------------------------------------------------------------------------


class Senses:
    """The helpers that deciding needs, over the stored texts of one history."""

    def __init__(
        self,
        contents: Mapping[str, bytes],
        check_schema: SchemaCheck,
        own_text: Callable[[Text], Any] = lambda text: text,
    ) -> None:
        self._contents = contents
        self._own_text = own_text
        self._kept: dict[str, bytes] = {}
        self.schema_problem = check_schema

    def read(self, text: Text | None) -> str:
        """The whole text; golden logs come without their stored texts and get another one."""
        if text is None or isinstance(text, str):
            return text or ""
        found = self._kept.get(text.blob) or self._contents.get(text.blob)
        return found.decode() if found is not None else f"{text.head}\n{text.blob}\n" * 3

    def keep(self, text: str) -> Text:
        kept, content = stored_text(text)
        self._kept.update(content)
        return self._own_text(kept)  # type: ignore[no-any-return]

    def matches(self, pattern: str, text: str, *, ignore_case: bool) -> str | None:
        found = compiled(pattern, ignore_case=ignore_case).search(text)
        return None if found is None else str(found.group(0))

    evaluate = staticmethod(evaluated)


@dataclass(frozen=True)
class Move:
    """One thing that happens to a run, from outside, and then what the kernel makes of it.

    `events`: these events are folded. `use`: the agent of an effect uses a tool of the run, named
    by `detail`. `vanish`: calls whose process is gone are noted. `reload`: the whole log is folded
    anew, as after a crash. `fork`: the log becomes that of a new run, up to a completed place.
    """

    kind: Literal["events", "use", "vanish", "reload", "fork"] = "events"
    at: int = 0
    events: tuple[bytes, ...] = ()
    detail: tuple[Any, ...] = ()
    settles: bool = True
    recorded: tuple[bytes, ...] | None = None
    """What was recorded as decided then, where that is known."""


@dataclass
class History:
    """A plan and what happens to a run of it."""

    name: str
    plan: Plan
    moves: list[Move] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    check_schema: SchemaCheck = lambda schema, value: None
    exact: bool = False
    """Whether kernel A must decide as it was recorded. Where several processes made the history,
    one of them may have folded less at once and decided in another order: then both kernels go on
    with what was recorded."""
    cuts: tuple[float, ...] = ()
    """Parts of the log, from 0 to 1, after which a crash is tried at the end."""


class Player:
    """One kernel that goes through a history."""

    def __init__(self, kernel: Kernel, history: History) -> None:
        self.kernel = kernel
        self.plan = kernel.plan(history.plan)
        self.services = Senses(history.contents, history.check_schema, kernel.text)
        self.log: list[bytes] = []
        self.state = kernel.fold(self.plan, [])

    def move(self, move: Move) -> tuple[bytes, ...]:
        """Everything that the kernel says about a move; what it raises is an answer too."""
        try:
            return tuple(self._said(move))
        except Exception as error:
            return (f"raised {type(error).__name__}: {error}".encode(),)

    def _said(self, move: Move) -> list[bytes]:
        said: list[bytes] = []
        match move.kind:
            case "reload":
                self.reload(self.log)
            case "use":
                said += self._use(*move.detail, at=move.at)
            case "vanish":
                said += self._fold_new(self.kernel.vanished(self.state, move.at))
            case "fork":
                said += self._fork(*move.detail, event=move.events[0], at=move.at)
            case _:
                for event in move.events:
                    self._apply(event)
        if move.settles:
            said += self._settle(move.at)
        return said

    def reload(self, log: Iterable[bytes]) -> None:
        self.log = list(log)
        self.state = self.kernel.fold(self.plan, [self.kernel.decode(one) for one in self.log])

    def decided_after(self, length: int) -> tuple[bytes, ...]:
        """What the kernel decides when it knows only the first events of the log."""
        try:
            known = [self.kernel.decode(event) for event in self.log[:length]]
            state = self.kernel.fold(self.plan, known)
            decided = self.kernel.settle(state, self.services, state.now + 1)
            return tuple(map(self.kernel.encode, decided))
        except Exception as error:
            return (f"raised {type(error).__name__}: {error}".encode(),)

    def _apply(self, event: bytes) -> None:
        self.kernel.apply(self.state, self.kernel.decode(event))
        self.log.append(event)

    def _settle(self, at: int) -> list[bytes]:
        decided = [*map(self.kernel.encode, self.kernel.settle(self.state, self.services, at))]
        self.log += decided
        return decided

    def _fold_new(self, log_events: Sequence[object]) -> list[bytes]:
        """Fold events that the kernel itself has made outside of `settle`."""
        for event in log_events:
            self.kernel.apply(self.state, event)
        events = [*map(self.kernel.encode, log_events)]
        self.log += events
        return events

    def _use(self, effect: str, tool: str, arguments: JsonValue, *, at: int) -> list[bytes]:
        """As `loopwright.engine.run_tools` does it."""
        self.state.now = max(self.state.now, at)
        caller = self.kernel.caller_of(self.state, self.state.pending[effect])
        if hasattr(caller, "why"):
            return [f"refused: {caller.why}".encode()]
        found = self.kernel.use(self.state, caller, tool, arguments, self.services)
        if hasattr(found, "why"):
            return [f"refused: {found.why}".encode()]
        return self._fold_new(found)

    def _fork(self, place: str, run: str, *, event: bytes, at: int) -> list[bytes]:
        """As `loopwright.operations.forks` does it."""
        events = [self.kernel.decode(one) for one in self.log]
        prefix = events[: self.kernel.end_of(events, place)]
        begins = replace(events[0], run=run, parent=events[0].run)
        known = [self.kernel.encode(one) for one in self.kernel.copied(prefix, begins, at)]
        self.reload([*known, event])
        return known


# -- comparing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The first difference between two kernels, as a developer needs it."""

    history: str
    plan: Plan
    names: tuple[str, str]
    what: str
    move: Move | None
    before: tuple[bytes, ...]
    sides: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())
    lines: tuple[str, ...] = ()

    def report(self) -> str:
        """The history, the plan, the prefix, and what both kernels say, one below the other."""
        shown = self.before[-SHOWN_BEFORE:]
        first = len(self.before) - len(shown) + 1
        return "\n".join(
            [
                f"{self.history}: {self.what}",
                f"A is {self.names[0]}, B is {self.names[1]}",
                f"see it again: python -m tests.kernel_differential.histories {self.history}",
                f"plan: {encode_plan(self.plan).decode()}",
                f"prefix: {len(self.before)} events, the last of them are",
                *(f"    {n} {event.decode()}" for n, event in enumerate(shown, first)),
                f"then: {_told(self.move)}",
                *self._side_by_side(),
                *self.lines,
            ]
        )

    def _side_by_side(self) -> list[str]:
        found: list[str] = []
        ones, others = self.sides
        for number in range(max(len(ones), len(others))):
            one = ones[number].decode() if number < len(ones) else "(nothing)"
            other = others[number].decode() if number < len(others) else "(nothing)"
            if one == other:
                found.append(f"    A and B {number + 1}: {one}")
            else:
                found += [f"  > A {number + 1}: {one}", f"  > B {number + 1}: {other}"]
                found += _fields(one, other)
        return found


def _fields(one: str, other: str) -> list[str]:
    """Which fields of two events differ."""
    try:
        left, right = json.loads(one), json.loads(other)
    except ValueError:
        return []
    return [f"    differs in {line}" for line in first_differences(left, right)]


def _told(move: Move | None) -> str:
    if move is None:
        return "the kernels are asked what they decide after this prefix"
    detail = " ".join(map(str, move.detail))
    events = "".join(f"\n    {event.decode()}" for event in move.events)
    return f"{move.kind} {detail} at {move.at}{events}"


def compare(history: History, a: Kernel, b: Kernel) -> Difference | None:
    """The first difference between two kernels in a history, or None."""
    players = (Player(a, history), Player(b, history))
    comparison = _Comparison(history, players)
    for number, move in enumerate(history.moves, 1):
        before = tuple(players[0].log)
        said = (players[0].move(move), players[1].move(move))
        if said[0] != said[1]:
            return comparison.difference(f"decided otherwise at move {number}", move, before, said)
        if said[0] and said[0][0].startswith(b"raised "):
            return None
        if move.recorded is not None and said[0] != move.recorded:
            if history.exact:
                what = f"A decided otherwise at move {number} than before (shown as B)"
                return comparison.difference(what, move, before, (said[0], move.recorded))
            comparison.go_on_as_recorded(before, move)
        if number % LOOK_EVERY == 0 or move.kind in ("reload", "fork"):
            found = comparison.of_states(move)
            if found is not None:
                return found
    return comparison.of_states(None) or comparison.of_logs() or comparison.of_cuts()


@dataclass
class _Comparison:
    history: History
    players: tuple[Player, Player]

    def difference(
        self,
        what: str,
        move: Move | None,
        before: tuple[bytes, ...],
        sides: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ()),
        lines: Iterable[str] = (),
    ) -> Difference:
        one, other = self.players
        names = (one.kernel.package, other.kernel.package)
        return Difference(
            self.history.name, self.history.plan, names, what, move, before, sides, tuple(lines)
        )

    def go_on_as_recorded(self, before: tuple[bytes, ...], move: Move) -> None:
        """Fold what the history has instead of what was decided now."""
        for player in self.players:
            player.reload([*before, *move.events, *(move.recorded or ())])

    def of_states(self, move: Move | None) -> Difference | None:
        one, other = self.players
        if one.kernel.picture is None or other.kernel.picture is None:
            return None
        looks: tuple[tuple[str, Callable[[Player], object]], ...] = (
            ("state as the engine sees it", lambda p: outer_picture(p.state)),
            ("picture of the state", lambda p: inner_picture(p.kernel.drawn(p.state))),
            ("answer of another function", lambda p: probe_state(p.kernel, p.state, p.services)),
        )
        for name, look in looks:
            pictures = look(one), _looked(look, other)
            if pictures[0] != pictures[1]:
                lines = first_differences(*pictures)
                return self.difference(f"another {name}", move, tuple(one.log), lines=lines)
        return None

    def of_logs(self) -> Difference | None:
        one, other = self.players
        if one.kernel.picture is None or other.kernel.picture is None:
            return None
        pictures = probe_log(one.kernel, one.log), probe_log(other.kernel, other.log)
        if pictures[0] == pictures[1]:
            return None
        lines = first_differences(*pictures)
        return self.difference("the log is read otherwise", None, tuple(one.log), lines=lines)

    def of_cuts(self) -> Difference | None:
        """Whether both decide the same when they know only a part of the log."""
        one, other = self.players
        for length in sorted({int(cut * len(one.log)) for cut in self.history.cuts}):
            said = one.decided_after(length), other.decided_after(length)
            if said[0] != said[1]:
                before = tuple(one.log[:length])
                return self.difference(f"cut after {length} events", None, before, said)
        return None


def _looked(look: Callable[[Player], object], player: Player) -> object:
    """What kernel B shows. Where it raises, that differs from whatever kernel A shows."""
    try:
        return look(player)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def compare_prefixes(history: History, a: Kernel, b: Kernel) -> Difference | None:
    """Fold the events of a log one by one; compare states and decisions after each of them."""
    players = (Player(a, history), Player(b, history))
    comparison = _Comparison(history, players)
    for length, move in enumerate(history.moves, 1):
        before = tuple(players[0].log)
        said = players[0].move(move), players[1].move(move)
        if said[0] != said[1]:
            return comparison.difference(f"folded otherwise at {length}", move, before, said)
        found = comparison.of_states(move)
        if found is not None:
            return found
        said = players[0].decided_after(length), players[1].decided_after(length)
        if said[0] != said[1]:
            before = tuple(players[0].log)
            return comparison.difference(f"decided otherwise after {length}", None, before, said)
    return comparison.of_logs()
