"""Two kernels produce the same events and states: golden logs, and histories by chance.

Without a frozen kernel both are the kernel of the product; see `freeze_kernel`. The number of
histories of the deep lane is that of DIFFERENTIAL_HISTORIES, 100,000 by default.
"""

from __future__ import annotations

import json
import os
import sys
import typing
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from loopwright.kernel.events import AnyEvent
from tests.golden.catalogue import read_plan
from tests.kernel_differential import against, freeze_kernel
from tests.kernel_differential.entry_points import (
    MODULES,
    MOVED,
    NOT_CALLED,
    called_functions,
    imported_functions,
    module_of,
)
from tests.kernel_differential.generated import generated
from tests.kernel_differential.harness import (
    CURRENT,
    FROZEN,
    Difference,
    Kernel,
    Player,
    Senses,
    compared_kernel,
    current_kernel,
    load_kernel,
)
from tests.kernel_differential.histories import GOLDEN, difference_in, differences, golden, main
from tests.kernel_differential.planted import PLANTED, Planted
from tests.kernel_differential.probes import probe_checks, probe_texts
from tests.support.laws.run import steps_left_open

HISTORIES = 300
PORTIONS = 3
DEEP_HISTORIES = int(os.environ.get("DIFFERENTIAL_HISTORIES", "100000"))
DEEP_PORTIONS = 40
SHOWN = 3
ROOT = Path(__file__).parents[2]

Copies = Callable[[Planted | None], Kernel]


def portion(number: int, total: int, portions: int) -> range:
    """The histories of one portion; together the portions have all of them."""
    return range(total * number // portions, total * (number + 1) // portions)


def reported(found: list[Difference]) -> str:
    reports = [difference.report() for difference in found[:SHOWN]]
    return "\n\n".join([f"{len(found)} histories differ", *reports])


# -- the kernels of today --------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_log_when_folded_by_both_kernels_has_no_difference(name: str) -> None:
    """After each event, both kernels have the same state and would decide the same."""
    found = difference_in(golden(name), current_kernel(), compared_kernel())
    assert found is None, found.report()


@pytest.mark.parametrize("number", range(PORTIONS))
def test_histories_when_replayed_by_both_kernels_have_no_difference(number: int) -> None:
    """Histories by chance: the same events at every step, the same states on the way."""
    numbers = portion(number, HISTORIES, PORTIONS)
    found = list(differences(numbers, current_kernel(), compared_kernel()))
    assert not found, reported(found)


@pytest.mark.deep
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("number", range(DEEP_PORTIONS))
def test_many_histories_when_replayed_by_both_kernels_have_no_difference(number: int) -> None:
    """The same with many more seeds."""
    numbers = portion(number, DEEP_HISTORIES, DEEP_PORTIONS)
    found = list(differences(numbers, current_kernel(), compared_kernel()))
    assert not found, reported(found)


def test_functions_of_texts_when_called_in_both_kernels_answer_the_same() -> None:
    """Functions that read neither a state nor a log."""
    a, b = current_kernel(), compared_kernel()
    services = Senses({}, lambda schema, value: None)
    assert probe_texts(a) == probe_texts(b)
    for name in GOLDEN:
        plan = read_plan(name)
        assert probe_checks(a, plan, services) == probe_checks(b, plan, services)


# -- what is compared ------------------------------------------------------------------------------


def test_functions_when_imported_by_the_source_are_listed() -> None:
    """A function of the kernel that the source begins to use needs a place in the list."""
    listed = {(module_of(name, CURRENT), name) for names in MODULES.values() for name in names}
    assert imported_functions() - listed == set(), "add it to entry_points.MODULES, and a probe"
    assert set(MOVED) <= {name for names in MODULES.values() for name in names}


def test_functions_when_listed_are_called_in_both_kernels() -> None:
    """Each listed function is called by the harness or by a probe, or there is a reason."""
    listed = {name for names in MODULES.values() for name in names}
    assert listed - called_functions() == set(NOT_CALLED)


def test_histories_when_generated_have_every_kind_of_event_and_move() -> None:
    """Nothing that can happen to a run is missing, apart from what no code records yet."""
    kernel = current_kernel()
    kinds, moves = set(), set()
    for seed in range(HISTORIES):
        history = generated(seed, kernel)
        moves |= {move.kind for move in history.moves}
        for move in history.moves:
            events = [*move.events, *(move.recorded or ())]
            kinds |= {json.loads(one)["kind"] for one in events if one.startswith(b"{")}
    reserved = {"budget.reserved", "budget.settled"}
    assert {str(one.__struct_config__.tag) for one in typing.get_args(AnyEvent)} - kinds == reserved
    assert moves == {"events", "use", "vanish", "reload", "fork"}


def test_histories_when_generated_leave_no_step_of_a_graph_open() -> None:
    """A deadline, a stop or a used-up budget closes the steps that have not begun, too."""
    kernel = current_kernel()
    for seed in range(HISTORIES):
        history = generated(seed, kernel)
        player = Player(kernel, history)
        for move in history.moves:
            player.move(move)
        events = [kernel.decode(event) for event in player.log]
        assert list(steps_left_open(history.plan, events)) == [], history.name


def test_history_when_made_twice_from_one_seed_is_the_same() -> None:
    """A seed names one history, so that a difference can be looked at again."""
    kernel = current_kernel()
    for seed in range(20):
        assert generated(seed, kernel).moves == generated(seed, kernel).moves


# -- differences are found -------------------------------------------------------------------------


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    """Makes copies of the kernel in a folder of their own, with or without a planted difference."""
    package = f"kernel_copy_{tmp_path.name}"

    def copy(planted: Planted | None) -> Kernel:
        source = FROZEN if planted is not None and find_spec(FROZEN) is not None else CURRENT
        freeze_kernel.freeze(tmp_path / package, package, source)
        if planted is not None:
            planted.plant(tmp_path / package)
        monkeypatch.syspath_prepend(tmp_path)
        return load_kernel(package)

    yield copy
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


@pytest.mark.parametrize("name", PLANTED)
def test_difference_when_planted_in_a_copy_is_found(name: str, copies: Copies) -> None:
    """A kernel that decides one thing otherwise is seen within the histories of every test run."""
    found = differences(range(HISTORIES), current_kernel(), copies(PLANTED[name]))
    assert next(found, None) is not None


def test_difference_when_planted_in_a_copy_is_found_in_golden_logs(copies: Copies) -> None:
    """The golden logs alone show a difference too."""
    planted = copies(PLANTED["the words of a gate"])
    found = [difference_in(golden(name), current_kernel(), planted) for name in GOLDEN]
    assert any(found)


def test_difference_when_reported_shows_all_that_a_developer_needs(copies: Copies) -> None:
    """The seed, the plan, the prefix, the events of both, and the fields in which they differ."""
    planted = copies(PLANTED["the reason of a stop"])
    every = differences(range(HISTORIES), current_kernel(), planted)
    found = next(one for one in every if "> A 1: {" in one.report())
    report = found.report()
    assert f"python -m tests.kernel_differential.histories {found.history}" in report
    assert f"A is {CURRENT}, B is {planted.package}" in report
    assert f"prefix: {len(found.before)} events" in report
    assert 'plan: {"name":"chance"' in report
    assert '"kind":"cancel.requested"' in report
    assert "  > A 1: {" in report
    assert "  > B 1: {" in report
    assert "A 'stopped' / B 'ended'" in report


def test_history_when_shown_by_the_command_reports_its_moves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command that a report names."""
    main(["generated", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "generated 3"
    assert lines[1].startswith("move 1 at ")
    assert any(line.startswith("    -> {") for line in lines)
    assert lines[-1] == "no difference"


# -- the frozen copy -------------------------------------------------------------------------------


def test_copy_when_frozen_has_classes_of_its_own(copies: Copies, tmp_path: Path) -> None:
    """Nothing of the copy is the kernel of the product."""
    copy = copies(None)
    assert copy.module("events").RunStarted is not current_kernel().module("events").RunStarted
    for file in (tmp_path / copy.package).rglob("*.py"):
        assert f"from {CURRENT}" not in file.read_text(encoding="utf-8")


def test_copy_when_frozen_from_the_kernel_has_no_difference(copies: Copies) -> None:
    """The copy and the kernel decide the same in golden logs and in histories by chance."""
    kernel, copy = current_kernel(), copies(None)
    in_logs = [difference_in(golden(name), kernel, copy) for name in GOLDEN]
    found = [one for one in in_logs if one is not None]
    found += differences(range(60), kernel, copy)
    assert not found, reported(found)
    assert probe_texts(kernel) == probe_texts(copy)


def test_copy_when_it_makes_the_histories_itself_makes_the_same(copies: Copies) -> None:
    """Histories do not depend on the classes of the kernel that makes them."""
    kernel, copy = current_kernel(), copies(None)
    for seed in range(20):
        history = generated(seed, copy)
        assert history.moves == generated(seed, kernel).moves
        assert Player(copy, history).move(history.moves[0]) == history.moves[0].recorded


def test_kernel_of_another_tree_when_compared_by_the_command_has_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel of this very tree, copied with its model, decides the same; code 0."""
    assert against.main([str(ROOT), "--histories", "20"]) == 0
    assert capsys.readouterr().out == "20 histories, 0 with a difference\n"


def test_kernel_of_another_tree_when_it_decides_otherwise_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first difference is printed and the others are counted; code 1."""
    freeze_kernel.freeze_tree(ROOT, tmp_path / "planted_tree", "planted_tree")
    PLANTED["the cap of a loop"].plant(tmp_path / "planted_tree" / "kernel")
    monkeypatch.syspath_prepend(tmp_path)
    assert against.compare_all(0, 40, [load_kernel("planted_tree.kernel")]) == 1
    shown = capsys.readouterr().out
    assert "decided otherwise at move" in shown
    assert "40 histories, 0 with a difference" not in shown


def test_copy_when_its_folder_exists_is_refused(tmp_path: Path) -> None:
    """A frozen kernel is not overwritten by accident."""
    with pytest.raises(FileExistsError):
        freeze_kernel.freeze(tmp_path)


def test_imports_when_renamed_change_in_import_lines_alone() -> None:
    """Texts that speak of the package stay, and so do packages whose name begins alike."""
    text = "from loopwright.kernel import fold\nfrom loopwright.kernel.fold import apply as x\n"
    other = 'from loopwright.kernels import y\nNAME = "loopwright.kernel"\n'
    renamed = freeze_kernel.renamed(text + other, CURRENT, "a.b")
    assert renamed == f"from a.b import fold\nfrom a.b.fold import apply as x\n{other}"
