"""Cost limits at the command line: known or refused, shown as unknown, ended while a call runs."""

import json
import re
import sys
from collections.abc import Callable

import pytest

from tests.cli.conftest import Place, Told, until

SPENDS = """
import json, sys, time
from pathlib import Path

each, times = float(sys.argv[1]), int(sys.argv[2])
sys.stdin.read()
for number in range(times):
    print(json.dumps({"type": "usage", "input_tokens": 10, "output_tokens": 5, "usd": each}))
    sys.stdout.flush()
    time.sleep(0.05)
Path("ended").touch()
print(json.dumps({"type": "result", "text": "ok"}))
"""


def spender(lw: Place, each: float, times: int) -> str:
    """A program that reports what it spends, bit by bit."""
    lw.write("spend.py", SPENDS)
    return f"jsonl:{sys.executable} spend.py {each} {times}"


@pytest.mark.item("rec-25")
@pytest.mark.parametrize(
    ("budget", "most"), [("usd=1", 1.5), ("tokens=60", 1.5)], ids=["usd", "tokens"]
)
def test_call_that_exceeds_the_budget_is_ended_while_it_runs(
    lw: Place, budget: str, most: float
) -> None:
    """The program is terminated, what it used until then counts, and the run is exhausted."""
    words = ["--agent", spender(lw, 0.3, 400), "--max", "3", "--budget", budget, "--json"]
    told = lw.real("loop", "go", *words)
    assert told.code == 4, told.err
    assert (told.json["status"], told.json["reason"]) == ("exhausted", "budget")
    assert 0 < told.json["usage"]["usd"] <= 3 * most
    assert not (lw.folder / "ended").exists()
    failed = [one for one in lw.events(told.json["run"]) if one["kind"] == "effect.failed"]
    assert [one["error"]["type"] for one in failed] == ["budget_limit"]


@pytest.mark.item("rec-25")
def test_one_amount_is_shown_of_a_call_that_the_budget_ended(lw: Place) -> None:
    """Usage that is read after the limit was met is in the error too."""
    line = '{"type":"usage","input_tokens":1,"output_tokens":1,"usd":0.2}'
    lw.write(
        "spends.sh", f"#!/bin/sh\ncat > /dev/null\nprintf '%s\\n' '{line}' '{line}' '{line}'\n"
    )
    (lw.folder / "spends.sh").chmod(0o755)
    words = ["--agent", "jsonl:./spends.sh", "--max", "1", "--budget", "usd=0.3", "--json"]
    told = lw("loop", "go", *words)
    assert told.json["usage"]["usd"] == pytest.approx(0.6)
    failed = [one for one in lw.events(told.json["run"]) if one["kind"] == "effect.failed"]
    assert [one["error"]["detail"] for one in failed] == ["spent 0.6000 of 0.3 USD"]


@pytest.mark.item("rec-25")
def test_items_that_the_budget_ends_are_not_ignored_errors(lw: Place) -> None:
    """With `on_item_error: continue`, a loop whose items the budget ended is exhausted."""
    items = {"items": ["a", "b"], "parallel": 2, "on_item_error": "continue"}
    agent = {"a": {"use": spender(lw, 0.6, 60)}}
    repeat = {"for_each": items, "agent": "a", "prompt": "go {{ item }}"}
    top = {"name": "two", "agents": agent, "repeat": repeat, "budget": {"usd": 1}}
    told = lw.real("run", str(lw.write("two.json", json.dumps(top))), "--json")
    assert told.code == 4, told.out + told.err
    assert (told.json["status"], told.json["reason"]) == ("exhausted", "budget")


@pytest.mark.item("rec-25")
def test_concurrent_calls_share_what_is_left(lw: Place) -> None:
    """Two calls at once that each stay below the budget are ended when their sum exceeds it."""
    agent = spender(lw, 0.1, 60)
    steps = [{"id": name, "agent": "a", "prompt": name} for name in ("one", "two")]
    top = {"name": "two", "agents": {"a": {"use": agent}}, "steps": steps, "budget": {"usd": 1}}
    file = lw.write("two.json", json.dumps(top))
    told = lw.real("run", str(file), "--json")
    assert told.json["status"] == "exhausted", told.out
    assert told.json["usage"]["usd"] < 2.0
    assert not (lw.folder / "ended").exists()


@pytest.mark.item("rec-23")
def test_unknown_cost_is_never_shown_as_zero(lw: Place) -> None:
    """A `command:` agent has an unknown cost, in every view, and no number of tokens."""
    told = lw("loop", "go", "--agent", lw.probe({"say": "ok"}), "--max", "2", "--json")
    usage = told.json["usage"]
    assert (usage["usd"], usage["unpriced_calls"], usage["cost"]) == (None, 2, "unknown")
    run = told.json["run"]
    for words in (["ls"], ["show", run]):
        shown = lw(*words).out
        assert "unknown" in shown, words
        assert "$0.00" not in shown, words
    for words in (["ls"], ["show", run], ["spend"]):
        said = lw(*words)
        assert not re.search(r"\b0 tokens|unknown +0 ", said.out + said.err), words


@pytest.mark.item("rec-24")
@pytest.mark.parametrize(
    "words",
    [
        ["loop", "go", "--agent", "command:true", "--budget", "usd=1"],
        ["run", "file", "--agent", "command:true", "--budget", "usd=1"],
        ["run", "file", "--agent", "command:true", "--budget", "usd=1", "--detach"],
        ["loop", "go", "--agent", "acp:true", "--budget", "usd=1"],
    ],
    ids=["loop", "run", "detached", "acp"],
)
def test_usd_limit_for_unknown_cost_is_refused_at_the_start(lw: Place, words: list[str]) -> None:
    """A budget that cannot be enforced is refused, with what to do instead, before a run exists."""
    file = lw.loop("worker", top={"agents": {"worker": {}}}, max=1)
    told = lw(*(file if word == "file" else word for word in words))
    assert told.code == 2, told.err
    assert "cannot be enforced: the cost of agent 'worker'" in told.err
    instead = "tokens=" if "acp:true" in words else "--max 5"  # a command reports no tokens
    assert all(word in told.err for word in (instead, "prices", "--allow-unknown-cost"))
    assert lw("ls", "--json").json["runs"] == []


def test_a_limit_of_tokens_that_an_agent_does_not_report_is_warned_about(lw: Place) -> None:
    """The run starts, and says at its start that nothing enforces the limit."""
    told = lw("loop", "go", "--agent", "command:true", "--max", "1", "--budget", "tokens=10k")
    assert told.code == 0
    assert "the budget tokens=10000 is not enforced for worker" in told.err
    dry = ("loop", "go", "--agent", "command:true", "--max", "1", "--budget", "tokens=10k")
    assert "spending   10k tokens (not enforced)" in lw(*dry, "--dry-run").out


def at_the_prompt(lw: Place, *allow: str) -> Told:
    file = lw.loop("command:true", max=1)
    return prompted(lw, " ".join(["/loops start", *allow, str(file), "go"]))


def prompted(lw: Place, line: str) -> Told:
    """One line at the prompt of the REPL."""
    with pytest.MonkeyPatch.context() as patch, lw.write("line", f"{line}\n").open() as stdin:
        patch.setattr(sys, "stdin", stdin)
        return lw("repl")


def in_a_chat(lw: Place, *allow: str) -> Told:
    lw.env["OPENROUTER_API_KEY"] = "x"
    lw.env["LOOPWRIGHT_MODEL_BASE_URL"] = ""
    agent = "model:openrouter/nobody/unlisted"
    return lw.real("chat", "--agent", agent, *allow, stdin=b"/quit\n")


def in_an_evaluation(lw: Place, *allow: str) -> Told:
    lw.loop("command:true", max=1)
    case = {"input": "go", "evaluators": [{"not_contains": "x"}]}
    lw.write("eval.yaml", json.dumps({"definition": "loop.yaml", "cases": [case]}))
    return lw("eval", "eval.yaml", *allow)


def when_resumed(lw: Place, *allow: str) -> Told:
    lw("loop", "go", "--agent", lw.script({"fail": "no"}), "--max", "1", "--quiet")
    return lw("resume", "last", "--agent", "command:true", *allow)


def resumed_at_the_prompt(lw: Place, *allow: str) -> Told:
    lw("loop", "go", "--agent", lw.script({"fail": "no"}), "--max", "1", "--quiet")
    return prompted(lw, " ".join(["/loops resume last --agent command:true", *allow]))


def when_forked(lw: Place, *allow: str) -> Told:
    lw("loop", "go", "--agent", lw.script("one", "two"), "--max", "2", "--quiet")
    return lw("fork", "last", "--at", "1", "--agent", "command:true", *allow)


def when_skipped(lw: Place, *allow: str) -> Told:
    """The limit was set after the stage had failed."""
    lw.write("loopwright.toml", "")
    lw("run", "harness", "go", "--agent", lw.probe({"code": 1}), "--quiet")
    lw.write("loopwright.toml", "[budget]\nusd_per_day = 5\n")
    return lw("skip", "last", *allow)


def skipped_at_the_prompt(lw: Place, *allow: str) -> Told:
    lw.write("loopwright.toml", "")
    lw("run", "harness", "go", "--agent", lw.probe({"code": 1}), "--quiet")
    lw.write("loopwright.toml", "[budget]\nusd_per_day = 5\n")
    return prompted(lw, " ".join(["/loops skip", *allow, "last"]))


def when_retried(lw: Place, *allow: str) -> Told:
    lw("run", "harness", "go", "--agent", lw.script({"fail": "no"}), "--quiet")
    return lw("retry", "last", "--agent", "command:true", *allow)


@pytest.mark.item("rec-24")
@pytest.mark.parametrize(
    "attempt",
    [
        *(at_the_prompt, in_a_chat, in_an_evaluation),
        *(when_resumed, resumed_at_the_prompt, when_retried),
        *(when_forked, when_skipped, skipped_at_the_prompt),
    ],
)
def test_unknown_cost_is_refused_or_allowed_by_every_command(
    lw: Place, attempt: Callable[..., Told]
) -> None:
    """A limit for all runs refuses an unknown cost; the option of the command allows it."""
    lw.write("loopwright.toml", "[budget]\nusd_per_day = 5\n")
    words = "the setting usd_per_day=5 cannot be enforced"
    assert words in attempt(lw).err
    assert words not in attempt(lw, "--allow-unknown-cost").err


@pytest.mark.item("rec-24")
def test_fork_with_an_agent_of_unknown_cost_is_refused(lw: Place) -> None:
    """A fork is held to the limits of the run that it continues."""
    agent = lw.script("one", "two")
    run = lw("loop", "go", "--agent", agent, "--max", "2", "--budget", "usd=1", "--json").json[
        "run"
    ]
    words = ["fork", run, "--at", "1", "--agent", "command:true", "--json"]
    refused = lw(*words)
    assert (refused.code, "unknown-cost" in refused.out) == (2, True)
    allowed = lw(*words, "--allow-unknown-cost")
    assert allowed.json["uncovered"] == ["worker"], allowed.err
    again = lw("fork", allowed.json["run"], "--at", "1", "--agent", "command:true", "--json")
    assert again.json["uncovered"] == ["worker"], again.err


@pytest.mark.item("rec-24")
@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "refused"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("body", ["loop", "for-each"])  # agents of roles start no loops
def test_child_run_inherits_budget_and_permission(
    lw: Place, monkeypatch: pytest.MonkeyPatch, body: str, *, known: bool, allowed: bool
) -> None:
    """A run that an agent starts has the limit of its parent, and its permission, whether or not
    the parent has an agent of unknown cost; so has a run that the child starts.
    """
    agent = lw.script("ok", "ok", "ok", "ok") if known else lw.probe(*[{"say": "ok"}] * 4)
    more = ["--allow-unknown-cost"] if allowed else []
    words = ["--agent", agent, "--budget", "usd=1", "--json", *more]
    parent = lw("run", definition_of(lw, body), "go", *words)
    if not known and not allowed:
        assert (parent.code, "unknown-cost" in parent.out) == (2, True)
        return
    start = ("run", definition_of(lw, body), "go", "--agent", "command:true", "--json")
    run = parent.json["run"]
    for _ in range(2):
        monkeypatch.setenv("LOOPWRIGHT_RUN", run)
        child = lw(*start)
        if not allowed:
            assert (child.code, "unknown-cost" in child.out) == (2, True)
            return
        assert child.json["uncovered"], child.err
        run = child.json["run"]


def definition_of(lw: Place, body: str) -> str:
    """A definition that calls its agent in a loop, or for the items of a list."""
    repeat = {"agent": "a", "prompt": "go"}
    repeat |= {"for_each": {"items": ["x"]}} if body == "for-each" else {"max": 1}
    inner = {"id": "inner", "repeat": repeat}
    top = {"name": "one", "agents": {"a": {}}, "steps": [inner]}
    lw.write("one.json", json.dumps(top))
    return "one.json"


@pytest.mark.item("rec-25")
@pytest.mark.parametrize("limit", ["usd_per_day = 1", "tokens_per_day = 60", "usd_total = 1"])
def test_call_that_exceeds_the_budget_of_all_runs_is_ended_while_it_runs(
    lw: Place, limit: str
) -> None:
    """One call cannot exceed it unnoticed; the reason is that of the budget of all runs."""
    lw.write("loopwright.toml", f"[budget]\n{limit}\n")
    told = lw.real("loop", "go", "--agent", spender(lw, 0.3, 400), "--max", "3", "--json")
    assert (told.code, told.json["reason"]) == (4, "home_budget"), told.err
    assert 0 < told.json["usage"]["usd"] <= 4.5
    assert not (lw.folder / "ended").exists()
    [failed] = [one for one in lw.events(told.json["run"]) if one["kind"] == "effect.failed"]
    assert failed["error"]["type"] == "home_budget"
    assert "by all runs here" in failed["error"]["detail"]


@pytest.mark.item("rec-24")
def test_resume_with_another_agent_is_refused_like_a_start(lw: Place) -> None:
    """A run under a budget in USD does not continue with an agent of unknown cost."""
    fails = lw.script({"fail": "no"}, {"text": "ok"})
    first = lw("loop", "go", "--agent", fails, "--max", "1", "--budget", "usd=1", "--json")
    run = first.json["run"]
    refused = lw("resume", run, "--agent", "command:true", "--json")
    assert refused.code == 2
    assert "unknown-cost" in refused.out
    words = ["--agent", lw.probe({"say": "ok"}), "--allow-unknown-cost", "--json"]
    allowed = lw("resume", run, *words)
    assert allowed.json["uncovered"] == ["worker"], allowed.err


@pytest.mark.item("rec-24")
def test_agent_that_reports_no_cost_under_a_usd_limit_fails(lw: Place) -> None:
    """Whether a `jsonl:` agent reports its cost is known after its first call."""
    told = lw("loop", "go", "--agent", "jsonl:true", "--max", "3", "--budget", "usd=1", "--json")
    assert (told.json["status"], told.json["error"]["type"]) == ("failed", "budget_limit")
    assert told.json["usage"]["unpriced_calls"] == 1
    run = told.json["run"]
    command = f"loopwright resume {run} --allow-unknown-cost"
    assert command in lw("show", run, "--json").json["next"]
    resumed = lw(*command.split()[1:])
    assert "--allow-unknown-cost" not in resumed.err
    assert lw("show", run, "--json").json["status"] != "failed"


@pytest.mark.item("rec-24")
def test_agent_that_reports_no_cost_runs_when_that_was_allowed(lw: Place) -> None:
    """`--allow-unknown-cost` also applies to a `jsonl:` agent that reports no cost."""
    words = ["--agent", "jsonl:echo ok", "--max", "1", "--budget", "usd=1", "--json"]
    told = lw("loop", "go", *words, "--allow-unknown-cost")
    assert told.json["iterations"] == 1, told.err
    assert told.json["usage"]["usd"] is None


@pytest.mark.item("rec-24")
def test_allowed_unknown_cost_is_recorded(lw: Place) -> None:
    """With --allow-unknown-cost the run starts and names the agent that is not covered."""
    words = ["--agent", lw.probe({"say": "ok"}), "--max", "1", "--budget", "usd=1"]
    told = lw("loop", "go", *words, "--allow-unknown-cost", "--json")
    assert told.code in (0, 4), told.err
    shown = lw("show", told.json["run"])
    assert "not covered by limits in USD" in shown.out
    assert lw("show", told.json["run"], "--json").json["uncovered"] == ["worker"]


@pytest.mark.item("rec-24")
def test_price_of_the_settings_makes_a_limit_enforceable(lw: Place) -> None:
    """A price for one call of a program is all that it takes, and it is what is counted."""
    agent = lw.probe({"say": "ok"})
    lw.write("loopwright.toml", f"[prices.{agent!r}]\ncall = 0.4\n")
    told = lw("loop", "go", "--agent", agent, "--max", "5", "--budget", "usd=1", "--json")
    assert (told.json["reason"], told.json["usage"]["usd"]) == ("budget", pytest.approx(1.2))
    assert lw("config", "--json").json["prices"] == {agent: {"call": 0.4}}
    assert "call = 0.4" in lw("config").out


@pytest.mark.item("rec-27")
@pytest.mark.item("rec-28")
def test_spend_and_ls_agree_with_the_runs(lw: Place) -> None:
    """Two runs, one with a label: `spend` groups them, `ls` filters them and shows the total."""
    replies = [{"text": "ok", "usage": {"usd": 0.25, "input_tokens": 100}}, {"text": "ok"}]
    for name, label in (("first", "nightly"), ("second", "")):
        words = ["--name", name, *(["--label", label] if label else [])]
        agent = lw.script(*replies, name=f"{name}.yaml")
        assert lw("loop", "go", "--agent", agent, "--max", "2", *words, "--quiet").code == 0
    told = lw("spend", "--by", "label", "--since", "1d", "--json").json
    by_label = {one["name"]: one["usd"] for one in told["lines"]}
    assert by_label == {"nightly": 0.25, "(no label)": 0.25}
    assert (told["total"]["usd"], told["total"]["runs"]) == (0.5, 2)
    by_agent = {one["name"]: one["usd"] for one in lw("spend", "--json").json["lines"]}
    specs = [f"script:{lw.folder / name}.yaml" for name in ("first", "second")]
    assert by_agent == dict.fromkeys(specs, 0.25)
    assert "total" in lw("spend").out
    listed = lw("ls", "--label", "nightly", "--json").json
    assert [one["name"] for one in listed["runs"]] == ["first"]
    assert listed["total"]["usage"]["usd"] == 0.25
    assert "2 runs · $0.50 · 200 tokens" in lw("ls").err
    assert (lw("spend", "--json").json["runs_without_usage"], lw("spend").err) == (0, "")
    assert lw("loop", "go", "--agent", lw.script({"text": "ok"}), "--max", "1").code == 0
    assert lw("spend", "--json").json["runs_without_usage"] == 1
    assert "1 run without usage is not listed" in lw("spend").err
    assert lw("ls", "--chats", "--json").json["runs"] == []


@pytest.mark.item("rec-26")
def test_dry_run_says_which_limits_are_enforced(lw: Place) -> None:
    """Each limit with how it is enforced, or that it is not."""
    words = ["--budget", "usd=5,tokens=2M", "--dry-run"]
    shown = lw("loop", "go", "--agent", "claude", *words).out
    assert "the budget usd=5: enforced live (worker reports its cost)" in shown
    assert "tokens=2000000: enforced live" in shown
    unknown = lw("loop", "go", "--agent", "command:true", *words).out
    assert "the budget usd=5: not enforced (the cost of worker is unknown)" in unknown


@pytest.mark.item("rec-27")
def test_doctor_shows_how_much_of_the_daily_budget_is_used(lw: Place) -> None:
    """The same amount as `spend`, and a warning when it is used up."""
    lw.write("loopwright.toml", "[budget]\nusd_per_day = 0.2\n")
    agent = lw.script({"text": "ok", "usage": {"usd": 0.25}})
    lw("loop", "go", "--agent", agent, "--max", "1", "--quiet")
    [found] = [one for one in lw("doctor", "--json").json["checks"] if one["check"] == "budget"]
    assert (found["state"], found["why"]) == ("warn", "usd_per_day: $0.25 of $0.20")
    assert "usd_per_day: $0.25 of $0.20" in lw("spend").out


@pytest.mark.item("rec-27")
def test_spend_survives_kill_and_resume(lw: Place) -> None:
    """After `kill -9` and `resume`, `spend` is what the events of the run add up to."""
    words = ["--agent", spender(lw, 0.01, 3), "--max", "4", "--budget", "usd=5"]
    process = lw.start("loop", "go", *words, "--here")
    until(lambda: bool(lw("spend", "--json").json["lines"]))
    process.kill()
    process.communicate()
    run = lw("ls", "--json").json["runs"][0]["run"]
    assert lw("resume", run, "--json", "--here").json["status"] == "completed"
    answers = [
        event for event in lw.events(run) if event["kind"] in ("effect.done", "effect.failed")
    ]
    used = [event["usage"]["usd"] for event in answers if "usage" in event]
    assert len(used) == 4
    assert lw("spend", "--json").json["total"]["usd"] == pytest.approx(sum(used))
