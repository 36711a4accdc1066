"""One contract for every kind of agent: what it is given, what may come back, what is refused.

A `Kind` knows how to make an agent of its kind say something. What a kind has no words for (a
plain program cannot report its usage) is left out by name, not by chance.
"""

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from loopwright.agents.calls import UNKNOWN_COST
from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue
from loopwright.ports import Answer, EffectFailure, EffectSuccess
from tests.agents.calls import Stage, agent, job

PYTHON = f"{sys.executable} -I -S"
USAGE = {"input_tokens": 11, "output_tokens": 3, "usd": 0.25}
SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}},
    "required": ["done"],
}


@dataclass(frozen=True)
class Words:
    """What an agent is to say."""

    text: str = ""
    data: JsonValue = None
    usage: dict[str, float] | None = None
    session: str | None = None
    fail: str | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of agent."""

    name: str
    reports: frozenset[str] = field(default_factory=frozenset)

    def spec(self, folder: Path, words: Words) -> str:
        """The spec of an agent that says this."""
        if self.name == "script":
            return self._script(folder, words)
        lines = [words.text] if self.name == "command" else self._lines(words)
        program = folder / "agent.py"
        program.write_text(
            "import sys\n"
            f"sys.stdout.write({''.join(lines)!r})\n"
            + (f"sys.exit({words.fail!r})\n" if words.fail else ""),
            encoding="utf-8",
        )
        return f"{self.name}:{PYTHON} {program}"

    def _lines(self, words: Words) -> list[str]:
        said: list[dict[str, JsonValue]] = [{"type": "text", "text": words.text}]
        if words.usage is not None:
            said.append({"type": "usage", **words.usage})
        if words.session is not None:
            said.append({"type": "session", "id": words.session})
        if words.data is not None:
            said.append({"type": "result", "data": words.data})
        return [json.dumps(line) + "\n" for line in said]

    def _script(self, folder: Path, words: Words) -> str:
        reply = asdict(words)
        file = folder / "replies.yaml"
        file.write_text(json.dumps({"replies": [reply]}), encoding="utf-8")
        return f"script:{file}"


KINDS = [
    Kind("command"),
    Kind("jsonl", frozenset({"usage", "session", "data"})),
    Kind("script", frozenset({"usage", "session", "data"})),
]
PROGRAMS = ["command", "jsonl"]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
every_program = pytest.mark.parametrize("kind", PROGRAMS)


def reporting(what: str) -> pytest.MarkDecorator:
    able = [kind for kind in KINDS if what in kind.reports]
    return pytest.mark.parametrize("kind", able, ids=lambda kind: kind.name)


def ask(folder: Path, kind: Kind, words: Words, **more: object) -> Answer:
    workspace = folder / "ws"
    workspace.mkdir()
    worker = agent(kind.spec(folder, words))
    return Stage().perform(job(workspace, agent=worker, **more))


# -- what comes back -------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize(
    "text",
    ["All done.", "two\nlines\n", "", "Grüße 你好 \U0001f600", "z" * 200_000],
    ids=["line", "lines", "empty", "unicode", "long"],
)
def test_the_answer_is_what_the_agent_said(tmp_path: Path, kind: Kind, text: str) -> None:
    """The text comes back exactly, and there is no structured result that nobody asked for."""
    answer = ask(tmp_path, kind, Words(text=text))
    assert isinstance(answer, EffectSuccess), answer
    assert (answer.output, answer.result, answer.note) == (text, None, "")


@every_kind
def test_an_answer_is_read_while_it_comes(tmp_path: Path, kind: Kind) -> None:
    """What an agent says reaches the bus under the effect it belongs to."""
    stage = Stage()
    worker = agent(kind.spec(tmp_path, Words(text="hello")))
    stage.perform(job(tmp_path, agent=worker))
    assert stage.said() == "hello"
    assert {(delta.run, delta.effect) for delta in stage.deltas} == {("run_1", "dev.1/agent#1")}


@every_kind
def test_a_failing_agent_is_a_failure_with_its_words(tmp_path: Path, kind: Kind) -> None:
    """What failed and what was said before are both told; nothing is raised."""
    answer = ask(tmp_path, kind, Words(text="half", fail="out of ideas"))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type in ("exit", "agent")
    assert "out of ideas" in answer.error.detail
    assert answer.output == "half"


@reporting("usage")
def test_usage_is_reported(tmp_path: Path, kind: Kind) -> None:
    """Tokens and money that an agent names come with its answer."""
    answer = ask(tmp_path, kind, Words(text="x", usage=USAGE))
    assert answer.usage == Usage(input_tokens=11, output_tokens=3, usd=0.25)


@reporting("usage")
def test_a_failing_agent_has_used_something_too(tmp_path: Path, kind: Kind) -> None:
    """What a call used counts although it failed."""
    answer = ask(tmp_path, kind, Words(text="x", usage=USAGE, fail="no"))
    assert isinstance(answer, EffectFailure)
    assert answer.usage == Usage(input_tokens=11, output_tokens=3, usd=0.25)


@every_kind
def test_no_report_is_reported_as_none(tmp_path: Path, kind: Kind) -> None:
    """Without a report no tokens and no session are made up. The cost of a program is unknown then;
    a script costs what it says.
    """
    answer = ask(tmp_path, kind, Words(text="x"))
    cost = None if kind.name == "script" else UNKNOWN_COST
    assert (answer.usage, answer.session) == (cost, None)


@reporting("session")
def test_the_session_is_reported(tmp_path: Path, kind: Kind) -> None:
    """A session that an agent names comes with its answer."""
    assert ask(tmp_path, kind, Words(text="x", session="s-7")).session == "s-7"


# -- structured results ----------------------------------------------------------------------------


@reporting("data")
def test_data_is_the_result(tmp_path: Path, kind: Kind) -> None:
    """Data that an agent hands over is its result, also where no schema asks for one."""
    answer = ask(tmp_path, kind, Words(text="x", data={"n": [1, 2]}))
    assert isinstance(answer, EffectSuccess)
    assert json.loads(answer.result or "") == {"n": [1, 2]}


@every_kind
def test_the_last_object_of_the_text_is_the_result(tmp_path: Path, kind: Kind) -> None:
    """Under a schema and without data, the last JSON object of the text is the result."""
    text = 'First {"done": false}.\n```json\n{"done": true}\n```\nThat is it.'
    answer = ask(tmp_path, kind, Words(text=text), schema=SCHEMA)
    assert isinstance(answer, EffectSuccess), answer
    assert json.loads(answer.result or "") == {"done": True}
    assert answer.output == text


@reporting("data")
def test_data_comes_before_the_text(tmp_path: Path, kind: Kind) -> None:
    """Data that was handed over counts, whatever object the text has."""
    words = Words(text='{"done": false}', data={"done": True})
    answer = ask(tmp_path, kind, words, schema=SCHEMA)
    assert isinstance(answer, EffectSuccess)
    assert json.loads(answer.result or "") == {"done": True}


@every_kind
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("no object", "no structured result", id="none"),
        pytest.param('{"done": "yes"}', "done: 'yes' is not of type 'boolean'", id="wrong type"),
        pytest.param("{}", "'done' is a required property", id="missing"),
        pytest.param('{"done": NaN}', "not JSON", id="not a number"),
        pytest.param('{"done": true, "x": "\\ud800"}', "not JSON", id="half a surrogate pair"),
    ],
)
def test_an_unfit_result_is_refused(tmp_path: Path, kind: Kind, text: str, problem: str) -> None:
    """A result that does not fit its schema fails the call and says where; the text is kept."""
    answer = ask(tmp_path, kind, Words(text=text), schema=SCHEMA)
    assert isinstance(answer, EffectFailure), answer
    assert answer.error.type == "bad_result"
    assert problem in answer.error.detail
    assert answer.output == text


@reporting("data")
def test_unfit_data_is_refused(tmp_path: Path, kind: Kind) -> None:
    """Data that does not fit is refused even if the text has an object that would."""
    words = Words(text='{"done": true}', data={"done": 1}, usage=USAGE)
    answer = ask(tmp_path, kind, words, schema=SCHEMA)
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "bad_result"
    assert answer.usage is not None


# -- what a program is given -----------------------------------------------------------------------

SHOW = """
import json, os, sys
schema = os.environ.get("LOOPWRIGHT_RESULT_SCHEMA", "")
print(json.dumps({
    "env": dict(os.environ),
    "cwd": os.getcwd(),
    "argv": sys.argv[1:],
    "stdin": sys.stdin.buffer.read().hex(),
    "schema": open(schema).read() if schema else "",
    "done": True,
}))
"""
SECRETS = {
    "DATABASE_URL": "postgres://canary",
    "database_url": "canary",
    "JWT_SECRET": "canary",
    "ANTHROPIC_API_KEY": "canary",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "LOOPWRIGHT_TOKEN": "canary",
    "PYTHONPATH": "canary",
    "LD_PRELOAD": "",
    "MY_OWN": "canary",
}
ALLOWED = {
    "PATH": os.environ["PATH"],
    "HOME": "/home/ann",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": tempfile.gettempdir(),
    "USER": "ann",
}


def shown(folder: Path, kind: str, *arguments: str, **more: object) -> dict[str, JsonValue]:
    """What an agent of this kind sees of the world."""
    program = folder / "show.py"
    program.write_text(SHOW, encoding="utf-8")
    workspace = folder / "ws"
    workspace.mkdir(exist_ok=True)
    worker = agent(" ".join([f"{kind}:{PYTHON} {program}", *arguments]), env={"MINE": "yes"})
    answer = Stage({**ALLOWED, **SECRETS}).perform(job(workspace, agent=worker, **more))
    assert isinstance(answer, EffectSuccess), answer
    found: dict[str, JsonValue] = json.loads(answer.output)
    return found


@every_program
def test_the_environment_names_the_place(tmp_path: Path, kind: str) -> None:
    """An agent program is told where it is in the run, and the key of its effect."""
    env = shown(tmp_path, kind, session="s-3", attempt=2)["env"]
    assert isinstance(env, dict)
    assert {name: value for name, value in env.items() if name.startswith("LOOPWRIGHT_")} == {
        "LOOPWRIGHT_RUN": "run_1",
        "LOOPWRIGHT_PATH": "dev.1",
        "LOOPWRIGHT_AGENT": "worker",
        "LOOPWRIGHT_ITERATION": "2",
        "LOOPWRIGHT_ATTEMPT": "2",
        "LOOPWRIGHT_DEPTH": "0",
        "LOOPWRIGHT_EFFECT": "dev.1/agent#1",
        "LOOPWRIGHT_SESSION": "s-3",
        "LOOPWRIGHT_WORKSPACE": str(tmp_path / "ws"),
        "LOOPWRIGHT_SWEEP": "token-1",
        "LOOPWRIGHT_SUPERVISOR": env["LOOPWRIGHT_SUPERVISOR"],
    }


@every_program
@pytest.mark.item("rondoflow-55", "inv-22")
def test_secrets_stay_outside(tmp_path: Path, kind: str) -> None:
    """Of our own environment only the allow-list arrives, and what the definition names."""
    env = shown(tmp_path, kind)["env"]
    assert isinstance(env, dict)
    others = {
        name: value
        for name, value in env.items()
        if name in ALLOWED or not name.startswith("LOOPWRIGHT_")
    }
    assert others.pop("PWD", str(tmp_path / "ws")) == str(tmp_path / "ws")  # bubblewrap sets it
    assert others == {**ALLOWED, "MINE": "yes"}
    assert "canary" not in json.dumps(env)


@every_program
def test_a_session_to_continue_with_may_be_empty(tmp_path: Path, kind: str) -> None:
    """Without a session the variable is there and empty."""
    env = shown(tmp_path, kind)["env"]
    assert isinstance(env, dict)
    assert env["LOOPWRIGHT_SESSION"] == ""


@every_program
def test_the_working_directory_is_the_workspace(tmp_path: Path, kind: str) -> None:
    """An agent works where the run says."""
    assert shown(tmp_path, kind)["cwd"] == str((tmp_path / "ws").resolve())


@every_program
@pytest.mark.item("rondoflow-12")
@pytest.mark.parametrize(
    "prompt",
    [
        "Fix it.",
        " keep\r\n\tblanks \n\n",
        "Grüße \U0001f600",
        "$(id) `id` 'x' \"y\" \\",
        "p" * 2**21,
    ],
    ids=["plain", "blanks", "unicode", "shell", "2 MB"],
)
def test_the_prompt_arrives_exactly(tmp_path: Path, kind: str, prompt: str) -> None:
    """The prompt is on stdin byte for byte, in UTF-8."""
    stdin = shown(tmp_path, kind, prompt=prompt)["stdin"]
    assert bytes.fromhex(str(stdin)).decode() == prompt


@every_program
def test_arguments_arrive_unread(tmp_path: Path, kind: str) -> None:
    """Words of the spec are arguments; no shell looks at them."""
    argv = shown(tmp_path, kind, "a", "'b c'", "$HOME", "*", "|", "--x=;")["argv"]
    assert argv == ["a", "b c", "$HOME", "*", "|", "--x=;"]


@every_program
def test_the_result_schema_is_a_file_for_the_time_of_the_call(tmp_path: Path, kind: str) -> None:
    """The schema is named by a variable, can be read, and is gone after the call."""
    found = shown(tmp_path, kind, schema=SCHEMA)
    env = found["env"]
    assert isinstance(env, dict)
    assert json.loads(str(found["schema"])) == SCHEMA
    assert not os.path.exists(str(env["LOOPWRIGHT_RESULT_SCHEMA"]))


@every_program
def test_without_a_schema_there_is_no_file(tmp_path: Path, kind: str) -> None:
    """The variable of the schema is not set where no result is asked for."""
    env = shown(tmp_path, kind)["env"]
    assert isinstance(env, dict)
    assert "LOOPWRIGHT_RESULT_SCHEMA" not in env


@every_program
def test_an_agent_that_never_reads_is_fine(tmp_path: Path, kind: str) -> None:
    """A program need not read its prompt, however long it is."""
    worker = agent(f"{kind}:echo hello")
    answer = Stage().perform(job(tmp_path, agent=worker, prompt="p" * 2**21))
    assert isinstance(answer, EffectSuccess)
    assert answer.output == "hello\n"


@every_program
@pytest.mark.parametrize(
    ("command", "kind_of_failure"),
    [("no-such-program-anywhere", "not_found"), ("''", "not_found"), ("false", "exit")],
    ids=["missing", "empty", "fails"],
)
def test_a_program_that_does_not_work(
    tmp_path: Path, kind: str, command: str, kind_of_failure: str
) -> None:
    """A program that cannot be started or that fails is a failure of its own kind."""
    answer = Stage().perform(job(tmp_path, agent=agent(f"{kind}:{command}")))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == kind_of_failure
    assert answer.error.detail


@pytest.mark.item("rondoflow-32")
def test_a_result_flagged_as_an_error_fails(tmp_path: Path) -> None:
    """An agent that ends with code 0 and says that it failed has failed."""
    lines = tmp_path / "lines"
    lines.write_text('{"type":"result","text":"the API refused","is_error":true}\n')
    answer = Stage().perform(job(tmp_path, agent=agent(f"jsonl:cat {lines}")))
    assert isinstance(answer, EffectFailure)
    assert (answer.error.type, answer.error.detail) == ("agent", "the API refused")


@pytest.mark.item("I-11")
def test_a_usage_that_is_no_amount_is_noted(tmp_path: Path) -> None:
    """A negative usage is not counted and the answer carries a warning."""
    lines = tmp_path / "lines"
    lines.write_text('{"type":"usage","input_tokens":-5}\n{"type":"text","text":"x"}\n')
    answer = Stage().perform(job(tmp_path, agent=agent(f"jsonl:cat {lines}")))
    assert isinstance(answer, EffectSuccess)
    assert answer.usage == UNKNOWN_COST
    assert "ignored usage line" in answer.note
