"""The list of agents of a server: what is on it, what an admin may add, and what is found on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.engine.services import SystemClock
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.operations.accounts.access import Access
from loopwright.operations.agents.allowlist import (
    AgentEntry,
    AgentRegistry,
    EntryChange,
    listed_default,
    with_entry_names,
)
from loopwright.operations.data_directory import open_log
from loopwright.operations.settings import Settings, SettingsSources, load_settings
from loopwright.stores.sqlite.log import SqliteLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    """The log of an empty data directory."""
    found = open_log(Settings(home=tmp_path / "home", durability="normal"))
    yield found
    found.close()


@pytest.fixture
def registry(log: SqliteLog) -> AgentRegistry:
    """The list of a server whose settings name an agent."""
    return AgentRegistry(Access(log, SystemClock()), "command:/usr/default")


@pytest.mark.item("bnd-e4")
def test_programs_are_never_listed_by_themselves(registry: AgentRegistry) -> None:
    """From the start there are coding CLIs, chat models, scripts and the agent of the settings."""
    found = {one.name: one.spec for one in registry.all() if one.source != "plugin"}
    assert found == {
        "claude": "claude",
        "codex": "codex",
        "opencode": "opencode",
        "gemini": "gemini",
        "models": "model:*",
        "scripts": "script:*",
        "default": "command:/usr/default",
    }


FOUND = [
    ("claude", "claude"),
    ("claude:", "claude"),
    ("claude:--mcp-config x", None),
    ("model:openai/gpt-5", "models"),
    ("model:openai/gpt-5,anthropic/x", "models"),
    ("script:/tmp/x.yaml", "scripts"),
    ("command:/usr/default", "default"),
    ("command:/usr/a --b 'c d'", "a"),
    ('command:  /usr/a   --b "c d"', "a"),
    ("command:/usr/a --b c d", None),
    ("command:/usr/a", None),
    ("command:/usr/a --b 'c d' e", None),
    ("jsonl:/usr/a --b 'c d'", None),
    ("acp:/usr/a --b 'c d'", None),
    ("command:sh -c '/usr/a --b \"c d\"'", None),
    ("command:/usr/../usr/a --b 'c d'", None),
    ("command:", None),
    ("model:*", None),
    ("a", None),
    ("", None),
]


@pytest.mark.item("bnd-e1")
@pytest.mark.parametrize(("spec", "name"), FOUND, ids=[one[0] or "empty" for one in FOUND])
def test_a_spec_is_found_by_its_words(registry: AgentRegistry, spec: str, name: str | None) -> None:
    """A spec is on the list if it has the words of an entry, however they are quoted."""
    registry.add(AgentEntry(name="a", spec="command:/usr/a --b 'c d'"), by="ann")
    found = registry.find(spec)
    assert (None if found is None else found.name) == name


REFUSED = {
    "upper case": (AgentEntry(name="Up", spec="claude:-x"), "bad-agent-name"),
    "a kind": (AgentEntry(name="model", spec="claude:-x"), "name-taken"),
    "a built-in name": (AgentEntry(name="claude", spec="command:/usr/x"), "name-taken"),
    "no agent": (AgentEntry(name="x", spec="nothing"), "bad-agent"),
    "no program": (AgentEntry(name="x", spec="command:"), "bad-agent"),
    "in the workspace": (AgentEntry(name="x", spec="command:./x"), "relative-agent"),
    "below the workspace": (AgentEntry(name="x", spec="acp:bin/x"), "relative-agent"),
    "script in the workspace": (AgentEntry(name="x", spec="script:a/x.yaml"), "relative-agent"),
    "a level that is none": (AgentEntry(name="x", spec="command:x", sandbox="off"), "bad-level"),
    "a reserved variable": (
        AgentEntry(name="x", spec="command:x", pass_env=("LD_PRELOAD",)),
        "reserved-env",
    ),
    "a variable of ours": (
        AgentEntry(name="x", spec="command:x", pass_env=("LOOPWRIGHT_TOKEN",)),
        "reserved-env",
    ),
    "no variable": (AgentEntry(name="x", spec="command:x", pass_env=("a b",)), "reserved-env"),
}


@pytest.mark.item("bnd-e4")
@pytest.mark.parametrize("case", REFUSED)
def test_an_entry_that_is_refused(registry: AgentRegistry, case: str) -> None:
    """An entry that would let others choose the program, or that cannot be, is not stored."""
    entry, code = REFUSED[case]
    before = registry.all()
    with pytest.raises(LoopwrightError) as refusal:
        registry.add(entry, by="ann")
    assert refusal.value.code == code
    assert registry.all() == before


@pytest.mark.item("bnd-e4")
def test_changes_are_kept_with_who_made_them(registry: AgentRegistry, log: SqliteLog) -> None:
    """Adding, changing and removing are in the audit log; a disabled entry is not found."""
    made = registry.add(AgentEntry(name="a", spec="command:cat"), by="ann")
    assert (made.by, made.source, made.approved_at > 0) == ("ann", "admin", True)
    registry.change("a", EntryChange(sandbox="workspace", pass_env=("KEY",)), by="bob")
    changed = registry.change("a", EntryChange(enabled=False), by="bob")
    assert (changed.sandbox, changed.pass_env, changed.by) == ("workspace", ("KEY",), "bob")
    assert registry.find("command:cat") is None
    assert "a" not in registry.names()
    registry.remove("a", by="ann")
    with pytest.raises(NotFound):
        registry.get("a")
    rows = [(row.who, row.action) for row in log.audited(subject="a")]
    assert rows == [
        ("ann", "agent.removed"),
        ("bob", "agent.changed"),
        ("bob", "agent.changed"),
        ("ann", "agent.added"),
    ]


@pytest.mark.item("bnd-e4")
def test_a_built_in_agent_is_disabled_not_removed(registry: AgentRegistry) -> None:
    """A built-in agent can be disabled, and enabled again with what it had."""
    with pytest.raises(Conflict) as refusal:
        registry.remove("codex", by="ann")
    assert refusal.value.code == "built-in-agent"
    registry.change("codex", EntryChange(enabled=False, sandbox="readonly"), by="ann")
    assert registry.find("codex") is None
    registry.change("codex", EntryChange(enabled=True), by="ann")
    found = registry.find("codex")
    assert found is not None
    assert (found.sandbox, found.source) == ("readonly", "built-in")


@pytest.mark.item("bnd-e1")
def test_names_replace_specs() -> None:
    """A name of the list is replaced by its spec, for all agents and for one."""
    names = {"a": "command:/usr/a=b"}
    given = ["a", "worker=a", "command:x=a", "worker=claude"]
    assert with_entry_names(given, names) == (
        "command:/usr/a=b",
        "worker=command:/usr/a=b",
        "command:x=a",
        "worker=claude",
    )


@pytest.mark.item("bnd-e1")
@pytest.mark.parametrize(
    ("where", "listed"),
    [("loopwright.toml", None), ("variable", "command:cat"), ("own settings", "command:cat")],
)
def test_the_agent_of_a_project_is_not_listed(
    tmp_path: Path, where: str, listed: str | None
) -> None:
    """An agent can write the settings of its project, so they approve no program."""
    line = 'agent = "command:cat"\n'
    (tmp_path / "project").mkdir()
    files = {"loopwright.toml": "project/loopwright.toml", "own settings": "config.toml"}
    if where in files:
        (tmp_path / files[where]).write_text(line)
    env = {"LOOPWRIGHT_AGENT": "command:cat"} if where == "variable" else {}
    place = SettingsSources(
        env={"LOOPWRIGHT_HOME": str(tmp_path / "home"), **env},
        cwd=tmp_path / "project",
        user_file=tmp_path / "config.toml",
    )
    settings = load_settings(place=place).settings
    assert settings.agent == "command:cat"
    assert listed_default(settings) == listed
