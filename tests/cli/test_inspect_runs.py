"""`ls`, `show`, `events` and `logs`: inspect runs, including those that other processes drive."""

import json
import re
import threading

import pytest

from loopwright.cli.terminal import width
from tests.cli.conftest import Place
from tests.cli.planting import first_event, plant, texts
from tests.kernel.driving import Driver
from tests.kernel.test_cycles import plan as cycle_plan


def test_ls(lw: Place) -> None:
    """Runs are listed newest first with status, passes, spend and what waits; filters work."""
    assert lw("ls").code == 0
    lw("run", lw.loop(lw.script({"text": "DONE", "usage": {"usd": 0.5}}), until={"signal": "DONE"}))
    lw("run", lw.loop(lw.script("x"), until={"person": True}))
    told = lw("ls")
    head, first, second = told.out.splitlines()
    assert head.split() == ["STATUS", "RUN", "ITERATIONS", "SPENT", "AGE", "NAME"]
    assert re.match(r"\? waiting \(1\)\s+run_\w+\s+1/3\s+\$0\.00\s+\ds\s+work", first)
    assert re.match(r"✓ completed\s+run_\w+\s+1/3\s+\$0\.50\s+\ds\s+work", second)
    only = lw("ls", "--status", "waiting", "--json").json["runs"]
    assert [(item["status"], item["gates"], item["max"]) for item in only] == [("waiting", 1, 3)]
    assert len(lw("ls", "--limit", "1", "--json").json["runs"]) == 1
    assert len(lw("ls", "--limit", "1", "--all", "--json").json["runs"]) == 2
    assert "there are more: --all" in lw("ls", "--limit", "1").err
    assert "there are more" not in lw("ls", "--limit", "2").err
    assert lw("ls", "--status", "wating").code == 2


@pytest.mark.item("K8")
def test_columns_keep_whatever_a_name_holds(lw: Place) -> None:
    """Wide, emoji, right-to-left and control characters in names move no column."""
    names = ["plain", "日本語の名前", "🚀 rocket 🚀", "שלום", "a\x1b[31mb", "x" * 200]
    for name in names:
        lw("run", lw.loop(lw.script("x"), max=1), "--name", name)
    with lw.terminal("ls", size=(24, 80)) as screen:
        assert screen.leave() == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.seen).replace("\r", "").splitlines()
    assert len(lines) == len(names) + 2
    assert lines[-1].startswith("6 runs · ")
    start = lines[0].index("NAME")
    for line in lines[1:-1]:
        assert width(line) <= 80
        assert line[:start].endswith("  ")
        assert line[start] != " "
    assert "\x1b[31mb" not in screen.seen


def test_show(lw: Place) -> None:
    """The headline says in words how it ended; each iteration has its line and its verdicts."""
    lw.write("check.sh", "#!/bin/sh\necho three tests fail\nexit 1\n").chmod(0o755)
    file = lw.loop(lw.script("tried a", "tried b"), until={"command": ["./check.sh"]}, max=2)
    run = lw("run", file, "--json").json["run"]
    told = lw("show", run)
    assert "■ Stopped at the limit of 2 iterations · " in told.out
    assert "goal       Do it." in told.out
    assert "· 1  tried a" in told.out
    assert "./check.sh failed" in told.out
    assert "three tests fail" in told.out
    assert f"loopwright logs {run}" in told.out
    detail = lw("show", run[:-4], "--json").json
    assert [one["learning"] for one in detail["passes"]] == ["tried a", "tried b"]
    assert detail["passes"][1]["checks"][0]["evidence"].strip() == "three tests fail"
    assert detail["headline"] == detail["summary"]
    assert detail["headline"].startswith("■ Stopped at the limit of 2 iterations · ")
    assert detail["headline"].endswith(" · ./check.sh failed (exit code 1)")


def test_show_of_a_list_with_a_failed_item(lw: Place) -> None:
    """Its inner steps stand for all items, the failed one is marked, and items are no
    iterations.
    """
    folder = lw.folder / ".archon" / "workflows"
    folder.mkdir(parents=True)
    child = {"id": "work", "bash": 'test "$ARGUMENTS" != b'}
    items = {"items": ["a", "b", "c"], "join": "all_success"}
    fan = {"id": "fan", "workflow": "child", "fan_out": items}
    for name, node in (("child", child), ("parent", fan)):
        text = json.dumps({"name": name, "description": "d", "nodes": [node]})
        (folder / f"{name}.yaml").write_text(text)
    assert lw("run", str(folder / "parent.yaml")).code == 3
    told = lw("show", "last").out
    assert "Failed after 3 items: step 'work' failed: bash exited with code 1" in told
    assert re.search(r"✗ work +failed +2 ok, 1 failed, script", told)
    marks = re.findall(r"^([✓✗·]) \d  (.*)$", told, re.MULTILINE)
    assert [mark for mark, _ in marks] == ["✓", "✗", "✓"]
    assert marks[1][1] == "step 'work' failed: bash exited with code 1"


def test_show_of_a_run_that_was_left_behind(lw: Place) -> None:
    """It says so where it says how the run stands, and how it is taken up."""
    made = cycle_plan(most=4)
    driver = Driver(made, texts=texts(), events=[first_event(made, "run_alone")]).start()
    run = plant(made, driver.events)
    told = lw("show", run).out.splitlines()
    assert told[0].startswith("▶ running (left behind)  ")
    assert told[1].startswith("▶ Interrupted in iteration 1 of 4 · ")
    assert f"  loopwright resume {run}" in told
    listed = lw("ls")
    assert listed.out.splitlines()[1].startswith("▶ running (left behind)")
    assert "1 run · 1 interrupted · " in listed.err
    assert "`loopwright resume all` continues what was interrupted" in listed.err


@pytest.mark.parametrize("verb", ["show", "events", "logs"])
def test_references(lw: Place, verb: str) -> None:
    """An unknown run leaves with 2 and a hint; so does the beginning of more than one id."""
    unknown = lw(verb, "run_nothing")
    assert (unknown.code, "loopwright ls" in unknown.err) == (2, True)
    for _ in range(2):
        lw("run", lw.loop(lw.script("x"), max=1))
    many = lw(verb, "run_", "--json")
    assert (many.code, many.json["status"]) == (2, 409)
    runs = [row["run"] for row in lw("ls", "--json").json["runs"]]
    assert all(run in many.json["detail"] for run in runs)
    assert "`last`" in many.json["hint"]
    assert "`last`" in lw(verb, "--help").out


@pytest.mark.parametrize("words", [["ls", "--limit"], ["events", "last", "--after"]])
def test_numbers_without_bounds(lw: Place, words: list[str]) -> None:
    """A number that no list can have is wrong usage, and the range is named."""
    told = lw(*words, "9" * 23)
    assert (told.code, "must be a whole number from " in told.err) == (2, True)


def test_events(lw: Place) -> None:
    """Events are JSON lines with run, number, time, kind and path; --after skips."""
    run = lw("run", lw.loop(lw.script("x"), max=1), "--json").json["run"]
    events = lw.events(run)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    for event in events:
        assert list(event)[:5] == ["run", "seq", "at", "kind", "path"]
        assert event["run"] == run
    assert all(event["iteration"] == 1 for event in events if event["path"] == "main.0")
    assert lw("events", run, "--after", "3").lines == events[3:]
    assert lw("events", run, "--json").json == {"run": run, "events": events}
    assert lw("events", run, "--follow").lines == events
    assert lw("events", run, "--follow", "--json").code == 2
    assert lw("events", run, "--after", "-1").code == 2


def test_following_a_run_that_another_process_drives(lw: Place) -> None:
    """`events --follow` and `logs -f` show what another process writes, and end with the run."""
    agent = lw.script({"text": "one", "delay": 0.3}, {"text": "two", "delay": 0.3}, "three")
    run = lw.real("run", lw.loop(agent, max=3), "--detach").out.strip()
    told = {}

    def follow(verb: str) -> None:
        told[verb] = lw.real(verb, run, "--follow")

    threads = [threading.Thread(target=follow, args=(verb,)) for verb in ("events", "logs")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event["seq"] for event in told["events"].lines] == list(
        range(1, len(told["events"].lines) + 1)
    )
    assert told["events"].lines[-1]["kind"] == "run.finished"
    assert re.search("one.*two.*three.*Completed", told["logs"].out, re.DOTALL)


def test_logs(lw: Place) -> None:
    """What agents, checks and people said is shown in order, cleaned; JSON has it as it was."""
    lw.write("check.sh", "#!/bin/sh\necho not yet\nexit 1\n").chmod(0o755)
    agent = lw.script("tried \x1b[31ma", {"text": "half", "fail": "out of luck"})
    run = lw("run", lw.loop(agent, until={"command": ["./check.sh"]}), "--json").json["run"]
    told = lw("logs", run)
    said = [
        "tried a",
        "`./check.sh` failed (exit code 1)",
        "not yet",
        "failed (agent)",
        "out of luck",
    ]
    assert [text for text in said if text in told.out] == said
    assert "\x1b" not in told.out
    entries = lw("logs", run, "--json").json["entries"]
    assert [entry["kind"] for entry in entries] == ["agent", "check", "agent", "end"]
    assert entries[0]["text"] == "tried \x1b[31ma"


def test_no_utf8(lw: Place) -> None:
    """Where the terminal has no UTF-8, signs are plain and nothing fails; JSON stays JSON."""
    run = lw("run", lw.loop(lw.script("日本 🚀"), max=1), "--json").json["run"]
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    for verb in ("ls", "show", "logs", "doctor"):
        words = [verb] if verb in ("ls", "doctor") else [verb, run]
        told = lw.real(*words, env=env)
        assert told.code == 0
        assert told.out.isascii()
    shown = json.loads(lw.real("show", run, "--json", env=env).out)
    assert shown["output"] == "日本 🚀"
