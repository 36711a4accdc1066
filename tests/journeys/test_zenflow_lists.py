"""Loops of a ZenFlow workflow over a list: how many at once, what an item sees, the result."""

import pytest

from loopwright.errors import DefinitionError
from loopwright.kernel.events import IterationFinished, IterationStarted
from tests.journeys.flows import JUDGE, Words, failure, flow, plan_of, play, with_text

LISTS = """
  l: {description: Lists., resultSchema: {type: object, required: [all]}}
"""


def each(loop: str, *, options: str = "", after: str = "") -> str:
    """A workflow whose only step is done for each item."""
    step = f"  - {{id: dep, agent: w, instructions: Deploy it., loop: {{{loop}}}}}\n"
    return flow(step + after, options=options)


def computed(expression: str) -> str:
    """A loop over a list that a step before it made."""
    return flow(
        f"""
  - {{id: list-all, agent: l}}
  - {{id: dep, agent: w, dependsOn: [list-all], loop: {{forEach: "{expression}"}}}}
  - {{id: after, agent: w, dependsOn: [dep]}}
""",
        agents=LISTS,
    )


INNER = """
  - id: dep
    loop:
      forEach: [a, b, c]
      steps:
        - {id: deploy, agent: w}
        - {id: verify, agent: w, dependsOn: [deploy]}
"""


# -- the list --------------------------------------------------------------------------------------


@pytest.mark.item("zenflow-4")
def test_an_empty_list() -> None:
    """Written down it is refused; computed it completes with nothing and calls nobody."""
    with pytest.raises(DefinitionError) as refused:
        play(each("forEach: []"))
    assert [problem.code for problem in refused.value.problems] == ["foreach-empty-array"]
    played = play(computed("steps.list-all.result.all"), {"list-all": {"all": []}})
    assert played.calls == ["list-all", "after"]
    assert played.ended["dep"] == "completed"
    assert (played.content("dep"), played.result("dep")) == ("", {"iterations": []})


@pytest.mark.parametrize(
    "expression",
    [
        "steps.list-all.result.all",
        "steps['list-all'].result.all",
        "steps.list-all.result.all.filter(one, one != 'x')",
        "['a', 'b']",
    ],
)
def test_any_list_will_do(expression: str) -> None:
    """A field of a result, by either spelling, one that is filtered, one that is written."""
    played = play(computed(expression), {"list-all": {"all": ["a", "b"]}})
    assert [row["item"] for row in played.result("dep")["iterations"]] == ["a", "b"]


@pytest.mark.item("zenflow-44")
@pytest.mark.parametrize("value", [7, "text", {"a": 1}, None, True], ids=str)
def test_what_is_no_list_fails_the_step(value: object) -> None:
    """Whatever else stands where a list was promised; no iteration is made, what needs it is
    lost.
    """
    played = play(computed("steps.list-all.result.all"), {"list-all": {"all": value}})
    assert played.calls == ["list-all"]
    assert played.ended == {"list-all": "completed", "dep": "failed", "after": "cancelled"}
    assert "list" in played.error("dep")


@pytest.mark.item("zenflow-44")
def test_a_list_that_does_not_compile_fails_the_step() -> None:
    """The file is refused where it stands; a plan that has it all the same fails at the step."""
    with pytest.raises(DefinitionError) as refused:
        play(computed("steps.list-all.result.("))
    assert [problem.line for problem in refused.value.problems] == [8]
    plan = plan_of(computed("steps.list-all.result.all"))
    played = play(with_text(plan, "result.all", "result.("), {"list-all": {"all": [1]}})
    assert played.calls == ["list-all"]
    assert played.ended == {"list-all": "completed", "dep": "failed", "after": "cancelled"}
    assert "did not expect .(" in played.error("dep")


@pytest.mark.item("zenflow-39", "zenflow-45")
def test_every_item_sees_itself() -> None:
    """As JSON with its index, whatever kind of value it is, and each of them once."""
    items = "[plain, {name: auth, n: 1}, 7, 1.5, true, null, [1, 2]]"
    shown = ['"plain"', '{"name": "auth", "n": 1}', "7", "1.5", "true", "null", "[1, 2]"]
    played = play(each(f"forEach: {items}"))
    assert sorted(played.calls) == [f"dep[{n}]" for n in range(7)]
    for index, value in enumerate(shown):
        prompt = played.prompt(f"dep[{index}]")
        assert prompt.startswith("Deploy it.")
        assert f"forEach Item (index: {index})\n{value}" in prompt


def test_every_inner_step_sees_the_item() -> None:
    """Not only the first one."""
    played = play(flow(INNER))
    for place in ("dep[1].deploy", "dep[1].verify"):
        assert 'forEach Item (index: 1)\n"b"' in played.prompt(place)


def test_expressions_know_item_and_index() -> None:
    """A condition inside the loop may speak of both."""
    text = flow("""
  - id: dep
    loop:
      forEach: [a, b, c]
      steps:
        - {id: deploy, agent: w, condition: item == 'b' || index == 2}
""")
    assert sorted(play(text).calls) == ["dep[1].deploy", "dep[2].deploy"]


# -- how many at once ------------------------------------------------------------------------------


@pytest.mark.item("zenflow-36")
def test_items_run_side_by_side() -> None:
    """All of them, where the workflow allows as many."""
    played = play(each("forEach: [1, 2, 3, 4, 5, 6, 7, 8]", options="{maxConcurrency: 50}"))
    assert played.cast.peak == 8


@pytest.mark.item("zenflow-37")
@pytest.mark.parametrize(
    ("loop", "options", "peak"),
    [
        pytest.param("maxConcurrency: 2", "{maxConcurrency: 50}", 2, id="loop"),
        pytest.param("maxConcurrency: 4", "{maxConcurrency: 3}", 3, id="workflow"),
        pytest.param("maxConcurrency: 0", "{maxConcurrency: 0}", 5, id="neither"),
    ],
)
def test_the_smallest_cap_holds(loop: str, options: str, peak: int) -> None:
    """Of the loop's own and the workflow's, which is 5 when nothing is said."""
    played = play(each(f"forEach: [1, 2, 3, 4, 5, 6, 7, 8], {loop}", options=options))
    assert played.cast.peak == peak
    assert len(played.calls) == 8


@pytest.mark.item("zenflow-38")
def test_a_hundred_at_once_at_most() -> None:
    """150 items without a cap of their own: 100 are under way, and the log says so."""
    items = ", ".join(map(str, range(150)))
    played = play(each(f"forEach: [{items}]", options="{maxConcurrency: 1000}"))
    assert (len(played.calls), played.cast.peak) == (150, 100)
    begun = [event for event in played.events if isinstance(event, IterationStarted)]
    assert [event.note for event in begun if event.note] == [
        "150 items, of which 100 at most are under way at once"
    ]


@pytest.mark.item("zenflow-46")
def test_inner_steps_overlap_between_items_and_not_within_one() -> None:
    """Every verify comes after its own deploy, and the deploys run at the same time."""
    spans = play(flow(INNER)).cast.spans
    for n in range(3):
        assert spans[f"dep[{n}].deploy"][1] < spans[f"dep[{n}].verify"][0]
    assert spans["dep[1].deploy"][0] < spans["dep[0].deploy"][1]


# -- what it comes to ------------------------------------------------------------------------------


@pytest.mark.item("zenflow-40", "zenflow-41")
def test_the_result_lists_every_item() -> None:
    """In order, each with its id, item, content and status; the content is the last one's."""
    said: dict[str, Words] = {f"dep[{n}]": f"done {n}" for n in range(3)}
    played = play(each("forEach: [a, b, c]"), said)
    assert played.result("dep") == {
        "iterations": [
            {
                "id": f"dep[{n}]",
                "index": n,
                "item": item,
                "status": "completed",
                "content": f"done {n}",
            }
            for n, item in enumerate("abc")
        ]
    }
    assert played.content("dep") == "done 2"


@pytest.mark.item("zenflow-41")
def test_the_content_is_that_of_the_highest_item_that_completed() -> None:
    """One that failed behind it does not count."""
    said: dict[str, Words] = {"dep[0]": "zero", "dep[1]": "one", "dep[2]": failure()}
    played = play(each("forEach: [a, b, c]"), said)
    assert played.content("dep") == "one"


def test_structured_results_of_items_are_kept() -> None:
    """Beside the content, as values."""
    step = "  - {id: dep, agent: l, loop: {forEach: [a]}}"
    played = play(flow(step, agents=LISTS), {"dep[0]": {"all": [1]}})
    (row,) = played.result("dep")["iterations"]
    assert row["result"] == {"all": [1]}


def test_cumulative_content_of_a_list() -> None:
    """Every item that completed, in order, under its number."""
    said: dict[str, Words] = {f"dep[{n}]": f"done {n}" for n in range(3)}
    content = play(each("forEach: [a, b, c], outputMode: cumulative"), said).content("dep")
    places = [content.index(f"done {n}") for n in range(3)]
    assert places == sorted(places)


@pytest.mark.item("zenflow-42")
def test_a_failed_item_stops_what_has_not_begun() -> None:
    """The third is not run and counts as cancelled; the step has failed with the second's error."""
    said: dict[str, Words] = {"dep[1]": failure("port in use")}
    played = play(each("forEach: [a, b, c], maxConcurrency: 1"), said)
    assert played.calls == ["dep[0]", "dep[1]"]
    assert played.ended == {"dep": "failed"}
    assert "port in use" in played.error("dep")
    rows = played.result("dep")["iterations"]
    assert [row["status"] for row in rows] == ["completed", "failed", "cancelled"]


@pytest.mark.item("zenflow-43")
def test_items_under_way_finish_beside_a_failed_one() -> None:
    """All three have begun: two complete and are told so."""
    said: dict[str, Words] = {"dep[0]": failure()}
    played = play(each("forEach: [a, b, c]"), said)
    assert played.ended == {"dep": "failed"}
    rows = played.result("dep")["iterations"]
    assert [row["status"] for row in rows] == ["failed", "completed", "completed"]
    ended = [f.path for f in played.events if isinstance(f, IterationFinished)]
    assert sorted(ended) == ["dep[0]", "dep[1]", "dep[2]"]


def test_a_failed_item_may_be_let_pass() -> None:
    """By the policy of the loop the others are all done, also those that had not begun."""
    loop = "forEach: [a, b, c], maxConcurrency: 1, onItemFailure: continue"
    played = play(each(loop), {"dep[0]": failure()})
    assert played.calls == ["dep[0]", "dep[1]", "dep[2]"]


def test_places_have_names() -> None:
    """Passes by number, items by index, inner steps behind them, judges at the iteration they
    judge.
    """
    text = flow(
        """
  - {id: single, agent: w, loop: {forEach: [a]}}
  - id: dev
    loop:
      maxIterations: 1
      untilAgent: judge
      steps: [{id: code, agent: w}]
  - id: many
    loop:
      forEach: [a]
      steps: [{id: deploy, agent: w}]
""",
        agents=JUDGE,
    )
    played = play(text, {"dev.0/judge": {"done": True}})
    assert sorted(played.calls) == [
        "dev.0.code",
        "dev.0/judge",
        "many[0].deploy",
        "single[0]",
    ]


def test_a_loop_inside_an_item() -> None:
    """It runs for each item, and its iterations see the item, the step before and the iteration
    before.
    """
    text = flow("""
  - id: out
    loop:
      forEach: [a, b]
      steps:
        - {id: prep, agent: w}
        - {id: fix, agent: w, dependsOn: [prep], loop: {maxIterations: 2}}
""")
    said = {"out[1].prep": "prepared b", "out[1].fix.0": "first try"}
    played = play(text, said)
    assert len(played.calls) == 6
    prompt = played.prompt("out[1].fix.1")
    for words in ("prepared b", 'forEach Item (index: 1)\n"b"', "first try"):
        assert words in prompt


@pytest.mark.item("zenflow-75")
def test_an_item_is_in_the_prompt_as_the_document_prints_it() -> None:
    """With its keys in their order, from a literal list and from the result of a step."""
    agents = """
  s: {description: Lists., resultSchema: {type: object, properties: {services: {type: array}}}}
"""
    steps = """
  - {id: list-services, agent: s}
  - id: deploy-each
    dependsOn: [list-services]
    loop:
      forEach: "steps.list-services.result.services"
      steps: [{id: deploy, agent: w, instructions: Deploy this service.}]
  - {id: fixed, agent: w, loop: {forEach: [{name: auth, region: us-east-1, at: [1, {z: 1, a: 2}]}]}}
"""
    services = (
        '{"services": [{"name": "auth", "region": "us-east-1"}, {"b": 1, "a": {"d": 1, "c": 2}}]}'
    )
    played = play(flow(steps, agents=agents), {"list-services": services})
    documented = '## forEach Item (index: 0)\n{"name": "auth", "region": "us-east-1"}'
    assert documented in played.prompt("deploy-each[0].deploy")
    second = '## forEach Item (index: 1)\n{"b": 1, "a": {"d": 1, "c": 2}}'
    assert second in played.prompt("deploy-each[1].deploy")
    third = '(index: 0)\n{"name": "auth", "region": "us-east-1", "at": [1, {"z": 1, "a": 2}]}'
    assert third in played.prompt("fixed[0]")
