"""Activity of calls: batches, bounds, redaction, and what a failed append or a crash leaves."""

import zlib
from collections.abc import Callable

import pytest

from loopwright.engine import activity
from loopwright.errors import StorageError, VersionConflict
from loopwright.kernel.event_parts import ActivityNote
from loopwright.kernel.events import EffectActivity, EffectDone, EffectFailed, RunFinished, Usage
from loopwright.model.checks import Cap
from loopwright.model.plan import Plan
from loopwright.model.record import Blob
from loopwright.ports import ActivityEntry, ActivitySink, EffectJob, EffectSuccess
from loopwright.ports.headline import usage_rows
from loopwright.testing import never
from loopwright.testing.fakes import failed
from tests.engine.world import Process, World, quiet, run
from tests.support.laws.run import event_problems
from tests.support.plans import loop

EFFECT = "main.0/agent#1"
FULL = StorageError("no space is left", code="full")
UNSTORABLE = StorageError("it cannot be stored", code="bad-fact")


def once() -> Plan:
    return loop(most=1, until=Cap())


def entry(number: int = 1, **more: object) -> ActivityEntry:
    return ActivityEntry(kind="command", tool="Bash", target=f"make {number}", **more)  # type: ignore[arg-type]


def batches(process: Process, name: str) -> list[EffectActivity]:
    return [event for event in process.events(name) if isinstance(event, EffectActivity)]


def notes(process: Process, name: str) -> list[ActivityNote]:
    return [note for batch in batches(process, name) for note in batch.entries]


def sink(process: Process) -> ActivitySink:
    return process.scripted.jobs[-1].activity


async def begun(process: Process) -> str:
    name = await process.start(once())
    await quiet()
    return name


@pytest.mark.item("rec-7")
def test_entries_are_stored_in_batches_while_the_call_runs() -> None:
    """A thousand entries cost at most ten appends, and all but the last few are there at once."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        before = len(process.log.appends)
        for number in range(1_000):
            sink(process).record(entry(number))
            if number % 20 == 0:
                await quiet(5)
        await quiet()
        assert 1_000 - len(notes(process, name)) < activity.FLUSH_ENTRIES
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        assert len(process.log.appends) - before <= 10
        found = notes(process, name)
        assert [note.number for note in found] == list(range(1, 1_001))
        events = process.events(name)
        (done,) = [event for event in events if isinstance(event, EffectDone)]
        assert all(events.index(batch) < events.index(done) for batch in batches(process, name))
        assert event_problems(process.state(name).plan, events) == []

    run(body())


@pytest.mark.item("rec-7")
def test_a_single_entry_is_stored_soon() -> None:
    """An entry does not wait for others longer than the time of a batch."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        sink(process).record(entry(ok=False, code=2, ms=40, text="2 errors"))
        await process.tick(activity.FLUSH_MS - 1)
        assert notes(process, name) == []
        await process.tick(1)
        (note,) = notes(process, name)
        (batch,) = batches(process, name)
        assert (note.number, note.kind, note.tool, note.target) == (1, "command", "Bash", "make 1")
        assert (note.ok, note.code, note.ms, note.text) == (False, 2, 40, "2 errors")
        assert (batch.effect, batch.path, batch.iteration) == (EFFECT, "main.0", 1)

    run(body())


@pytest.mark.item("rec-7")
@pytest.mark.parametrize(("every_ms", "most"), [(1, 9), (30, 10)])
def test_a_thousand_entries_take_few_appends_at_any_pace(every_ms: int, most: int) -> None:
    """The more a call has reported, the longer the next entries may wait: commits stay few."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        before = len(process.log.appends)
        for number in range(1_000):
            sink(process).record(entry(number))
            process.clock.advance(every_ms)
            if number % 5 == 0:
                await quiet(4)
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        assert len(notes(process, name)) == 1_000
        assert len(process.log.appends) - before <= most

    run(body())


def test_an_answer_at_once_shares_its_append_with_the_entries() -> None:
    """A performer that answers at once has its entries stored before its answer, in one commit."""

    def script(job: EffectJob) -> EffectSuccess:
        for number in range(300):
            job.activity.record(entry(number))
        return EffectSuccess(output="ok")

    async def body() -> None:
        process = World().process(script)
        await process.finish(once())
        (append,) = [
            one for one in process.log.appends if any(type(f) is EffectActivity for f in one.events)
        ]
        assert [type(event) for event in append.events[:2]] == [EffectActivity, EffectDone]

    run(body())


@pytest.mark.item("rec-7")
@pytest.mark.parametrize("error", [FULL, VersionConflict("no")], ids=["full disk", "conflict"])
def test_a_refused_append_neither_loses_nor_repeats_entries(error: Exception) -> None:
    """Entries whose append failed are stored once by a later one, with their content."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        process.log.refusals.extend([error, error])
        sink(process).record(entry(1, result="r" * 5_000))
        await process.tick(activity.FLUSH_MS)
        sink(process).record(entry(2))
        for _ in range(3):
            await process.tick(5_000)
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        found = notes(process, name)
        assert [note.number for note in found] == [1, 2]
        assert process.service.read_text(found[0].result) == "r" * 5_000
        assert isinstance(process.events(name)[-1], RunFinished)

    run(body())


def test_an_append_that_failed_only_in_name_is_not_repeated() -> None:
    """Entries that the log holds already are not stored again when the append was said to fail."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        submit = process.log.submit
        said: list[Exception | None] = [FULL]

        def lying(append: object, done: Callable[[Exception | None], None]) -> None:
            submit(append, lambda error: done(said.pop() if said else error))  # type: ignore[arg-type]

        process.log.submit = lying  # type: ignore[method-assign]
        sink(process).record(entry(1))
        await process.tick(activity.FLUSH_MS)
        sink(process).record(entry(2))
        await process.tick(5_000)
        assert [note.number for note in notes(process, name)] == [1, 2]

    run(body())


def test_activity_that_cannot_be_stored_does_not_fail_the_call() -> None:
    """Where a store refuses the content, the entries are counted only and the answer counts."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        process.log.refusals.append(UNSTORABLE)
        sink(process).record(entry(1))
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        (batch,) = batches(process, name)
        assert (batch.entries, batch.dropped) == ((), 1)
        assert [type(f) for f in process.events(name) if isinstance(f, EffectDone | EffectFailed)]
        assert not [event for event in process.events(name) if isinstance(event, EffectFailed)]

    run(body())


@pytest.mark.item("rec-7")
def test_a_repeated_call_continues_the_numbers() -> None:
    """What was stored before a crash stays, and the call that is made again counts on."""

    async def body() -> None:
        world = World()
        first = world.process(never())
        name = await begun(first)
        sink(first).record(entry(1))
        await first.tick(activity.FLUSH_MS)
        sink(first).record(entry(2))  # not stored when the process is gone
        world.kill(first)
        second = world.process(never())
        second.driver.recover(second.log.rows())
        await quiet()
        assert [note.target for note in notes(second, name)] == ["make 1"]
        sink(second).record(entry(3))
        second.scripted.answer(name, EFFECT, "done")
        await quiet()
        assert [(n.number, n.target) for n in notes(second, name)] == [(1, "make 1"), (2, "make 3")]

    run(body())


def test_entries_are_stored_when_the_driver_closes() -> None:
    """A process that ends in good order leaves nothing that was reported unstored."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        sink(process).record(entry(1))
        await process.driver.close()
        await quiet()
        assert [note.target for note in notes(process, name)] == ["make 1"]

    run(body())


@pytest.mark.item("rec-7")
def test_entries_after_the_answer_are_dropped() -> None:
    """A backend that reports after its call was answered changes nothing."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        late = sink(process)
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        before = process.events(name)
        late.record(entry())
        late.keep_stream(b"late\n")
        await process.tick(5_000)
        assert process.events(name) == before
        assert not batches(process, name)

    run(body())


@pytest.mark.item("rec-7")
def test_activity_is_bounded_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits entries are counted, and their arguments and results are not stored."""
    monkeypatch.setattr(activity, "MOST_ENTRIES", 5)
    monkeypatch.setattr(activity, "MOST_BYTES", 20_000)

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        for number in range(9):
            sink(process).record(entry(number, result="r" * 9_000))
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        found = notes(process, name)
        texts = [process.service.read_text(note.result) for note in found]
        assert sum(batch.dropped for batch in batches(process, name)) == 4
        assert [batch.dropped_by_kind for batch in batches(process, name)] == [{"command": 4}]
        assert [len(text) for text in texts[:3]] == [9_000] * 3
        assert texts[3:] == [activity.NOT_STORED] * 2

    run(body())


ODD = {
    "half a character": entry(text="\ud800", result="\udfff" * 10),
    "huge numbers": entry(code=10**400, ms=-(10**400)),
    "wrong types": ActivityEntry(kind="tool", arguments=7, target=["x"]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_recording_never_fails_the_call(odd: ActivityEntry) -> None:
    """Whatever a backend reports, the call ends by its own answer and the log can be read."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        sink(process).record(odd)
        sink(process).record(entry(2))
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        assert notes(process, name)[-1].target == "make 2"
        assert isinstance(process.events(name)[-1], RunFinished)

    run(body())


SECRET = "correct-horse-battery"
LEAKS: dict[str, ActivityEntry] = {
    "in the arguments": entry(arguments=f'{{"env": "{SECRET}"}}'),
    "in the result": entry(result=f"printed {SECRET}\n"),
    "in the target": ActivityEntry(kind="command", target=f"curl -u me:{SECRET} x"),
    "in the text": entry(text=f"used {SECRET}"),
    "escaped": entry(arguments='{"x": "correct-horse-b\\u0061ttery"}', result=SECRET),
    "at the cut": entry(result="r" * (activity.VALUE_CHARS - 10) + SECRET + "r" * 9_000),
    "far beyond the cut": entry(result="r" * (2 * activity.VALUE_CHARS - 10) + SECRET + "r"),
    "in a long result": entry(result=f"{SECRET}\n" + "x y\n" * 2_000),
}


@pytest.mark.item("rec-7")
@pytest.mark.parametrize("leak", LEAKS.values(), ids=list(LEAKS))
def test_a_secret_that_the_agent_was_given_is_never_stored(leak: ActivityEntry) -> None:
    """Values of variables are in neither the log nor its content, whole or in part."""

    async def body() -> None:
        world = World()
        process = world.process(never())
        name = await begun(process)
        sink(process).hide(lambda: {"DEPLOY_PASS": SECRET})
        sink(process).record(leak)
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        stored = repr(process.events(name)).encode() + b"".join(world.store.blobs.values())
        assert SECRET.encode() not in stored
        assert SECRET[:10].encode() not in stored
        assert len(notes(process, name)) == 1

    run(body())


@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        ('{"password": "hunter2", "user": "ann"}', '{"password":"***","user":"ann"}'),
        ('{"user": "ann"}', '{"user": "ann"}'),
        ("curl -H 'Authorization: Bearer abc123def456' x", "curl -H 'Authorization: Bearer ***' x"),
        ("sk-abcdefghijklmnop", "***"),
    ],
    ids=["by name", "no secret", "header", "by form"],
)
def test_what_looks_like_a_secret_is_masked(arguments: str, stored: str) -> None:
    """Secrets that nobody has named are found by their names and forms."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        sink(process).record(entry(arguments=arguments))
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        assert notes(process, name)[0].arguments == stored

    run(body())


def test_a_long_value_is_cut_with_a_note() -> None:
    """What is longer than the limit of one value says how much was cut."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        sink(process).record(entry(result="r" * 200_000))
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        text = process.service.read_text(notes(process, name)[0].result)
        assert text.endswith(f"r\n[cut: {200_000 - activity.VALUE_CHARS:,} of 200,000 characters]")

    run(body())


def unpacked(process: Process, stream: object) -> bytes:
    assert isinstance(stream, Blob)
    data = process.log.blob(stream.blob)
    assert len(data) == stream.size
    return zlib.decompress(data, wbits=31)


@pytest.mark.item("rec-8")
@pytest.mark.parametrize("how", ["done", "failed", "cancelled"])
def test_the_output_stream_is_kept_however_the_call_ends(how: str) -> None:
    """The answer of a call names the compressed output, also when it failed or was cancelled."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        sink(process).keep_stream(b'{"type":"text",')
        sink(process).keep_stream(b'"text":"hi"}\npart')
        if how == "cancelled":
            await process.service.stop(name)
        else:
            process.scripted.held[name, EFFECT].set_result(
                EffectSuccess(output="x") if how == "done" else failed("agent")
            )
        await quiet()
        (answer,) = [
            event for event in process.events(name) if isinstance(event, EffectDone | EffectFailed)
        ]
        assert isinstance(answer, EffectDone) == (how == "done")
        assert unpacked(process, answer.stream) == b'{"type":"text","text":"hi"}\npart'

    run(body())


@pytest.mark.item("rec-8")
@pytest.mark.parametrize("size", [1, 7, 4_000], ids=["bytes", "pieces", "whole"])
def test_secrets_are_taken_out_of_the_output_stream(size: int) -> None:
    """However the output is cut into pieces, no secret is stored; all else is kept as it is."""
    said = (
        f'{{"type": "tool", "args": {{"password": "hunter2", "n": 1}}}}\n'
        f"plain {SECRET} text \xe9\n"
        '{"type": "text", "text":  "spaces stay"}\n'
    ).encode("latin-1")

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        sink(process).hide(lambda: {"DEPLOY_PASS": SECRET})
        for at in range(0, len(said), size):
            sink(process).keep_stream(said[at : at + size])
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        (answer,) = [event for event in process.events(name) if isinstance(event, EffectDone)]
        kept = unpacked(process, answer.stream)
        assert kept.splitlines() == [
            b'{"type":"tool","args":{"password":"***","n":1}}',
            b"plain [DEPLOY_PASS] text \xe9",
            b'{"type": "text", "text":  "spaces stay"}',
        ]

    run(body())


@pytest.mark.item("rec-8")
def test_the_output_stream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output beyond the limit is left out, and a note at the end says how much."""
    monkeypatch.setattr("loopwright.engine.activity.MOST_OUTPUT_BYTES", 1_000)

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        for _ in range(3):
            sink(process).keep_stream(b"x" * 599 + b"\n")
        process.scripted.answer(name, EFFECT, "done")
        await quiet()
        (answer,) = [event for event in process.events(name) if isinstance(event, EffectDone)]
        kept = unpacked(process, answer.stream)
        assert kept == b"x" * 599 + b"\n" + b"x" * 400 + b"\n[cut: 800 of 1,800 bytes]\n"

    run(body())


HANGS = Usage(input_tokens=10, usd=0.9)


def used_by(process: Process, name: str) -> tuple[Usage, Usage, Usage]:
    """What a run has used: by its answers, by its state, and by the table of usage."""
    events = process.events(name)
    answers = [event.usage for event in events if isinstance(event, EffectDone | EffectFailed)]
    rows = [row.usage for row in process.log.usage() if row.run == name]
    total = sum((one for one in answers if one is not None), Usage())
    return total, process.state(name).usage, sum(rows, Usage())


@pytest.mark.item("rec-25")
@pytest.mark.parametrize("reported", [HANGS, Usage(unpriced=1)], ids=["cost", "unknown"])
def test_usage_of_a_call_that_is_stopped_counts(reported: Usage) -> None:
    """What a call has reported is counted when it is cancelled, everywhere the same."""

    async def body() -> None:
        process = World().process(never())
        name = await begun(process)
        process.scripted.jobs[-1].meter.report(reported)
        await process.service.stop(name)
        await quiet()
        assert used_by(process, name) == (reported, reported, reported)

    run(body())


@pytest.mark.item("rec-25")
def test_usage_of_a_lost_attempt_counts_in_addition_to_the_next() -> None:
    """A call that is repeated after a crash has used what both attempts have used."""

    async def body() -> None:
        world = World()
        first = world.process(never())
        name = await begun(first)
        first.scripted.jobs[-1].meter.report(HANGS)
        await first.tick(activity.FLUSH_MS)
        assert first.state(name).usage == HANGS
        world.kill(first)
        second = world.process(
            lambda job: EffectSuccess(output="ok", usage=Usage(input_tokens=5, usd=0.2))
        )
        second.driver.recover(second.log.rows())
        await quiet()
        both = Usage(input_tokens=15, usd=1.1)
        assert used_by(second, name) == (both, both, both)
        assert usage_rows(name, second.events(name)) == second.log.usage()

    run(body())
