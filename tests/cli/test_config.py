"""`config`: where settings come from, which one wins, and what is refused."""

import re
from pathlib import Path

import pytest

import loopwright
from tests.cli.conftest import Place


def settings(lw: Place, *flags: str) -> dict[str, tuple[object, str]]:
    found = lw("config", "show", "--origin", *flags, "--json").json
    return {name: (value, found["origins"][name]) for name, value in found["settings"].items()}


def test_the_order(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flag beats environment beats project file beats pyproject beats user file beats default."""
    monkeypatch.delenv("LOOPWRIGHT_DURABILITY")
    monkeypatch.delenv("LOOPWRIGHT_HOME")
    assert settings(lw)["durability"] == ("full", "default")
    user = lw.folder.parent / "config" / "loopwright" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('durability = "normal"\nagent = "script:u.yaml"\ncolor = "never"\nhome = "h"\n')
    assert settings(lw)["agent"] == ("script:u.yaml", str(user))
    pyproject = lw.write(
        "pyproject.toml", '[tool.loopwright]\nagent = "script:p.yaml"\ncolor = "always"\n'
    )
    assert settings(lw)["agent"] == ("script:p.yaml", f"{pyproject} [tool.loopwright]")
    project = lw.write("loopwright.toml", 'color = "auto"\n')
    assert settings(lw)["color"] == ("auto", str(project))
    assert settings(lw)["home"][0] == str(user.parent / "h")
    monkeypatch.setenv("LOOPWRIGHT_HOME", "e")
    assert settings(lw)["home"] == (str(lw.folder / "e"), "LOOPWRIGHT_HOME")
    assert settings(lw, "--data-dir", "f")["home"] == (str(lw.folder / "f"), "--data-dir")
    assert settings(lw)["durability"] == ("normal", str(user))
    assert lw("config", "path").out.split() == [str(project), str(pyproject), str(user)]


def test_project_files_are_found_from_below(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project's file counts in its folders, up to the top of the repository."""
    lw.write("loopwright.toml", 'color = "never"\n')
    (lw.folder / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(lw.folder / "deep" / "er")
    assert settings(lw)["color"][0] == "never"
    (lw.folder / "deep" / ".git").mkdir()
    assert settings(lw)["color"] == ("auto", "default")


@pytest.mark.item("J7")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param('durabilty = "full"', "did you mean durability?", id="unknown key"),
        pytest.param('durability = "ful"', "did you mean full?", id="unknown value"),
        pytest.param("durability = true", 'durability = "…"', id="wrong type"),
        pytest.param("durability = ", "loopwright.toml", id="bad TOML"),
        pytest.param("durability = ", "correct the TOML", id="how to correct bad TOML"),
        pytest.param("agent = claude", 'text needs quotes: agent = "claude"', id="no quotes"),
        pytest.param(
            'color = "never"\nhome = ~/x # here',
            'text needs quotes: home = "~/x"',
            id="no quotes 2",
        ),
        pytest.param('four_eyes = true\nagent = "x', "correct the TOML", id="open quote"),
        pytest.param('agent = ""', "empty", id="empty"),
        pytest.param('loops = "x"', "settings are home", id="nothing near"),
        pytest.param("mcp = 3", "not a table", id="servers"),
        pytest.param("[mcp.a]", "neither command nor url", id="server of nothing"),
        pytest.param('[mcp.a]\ncommand="x"\nurl="http://x"', "keep one", id="both"),
        pytest.param('[mcp.a]\ncommand=["x", 3]', "a list of texts", id="a number in a command"),
        pytest.param('[mcp.a]\ncommand=["x"]\nargs="y"', "args must be", id="arguments as text"),
        pytest.param('[mcp.a]\ncommand="x"\nbearer_env="Y"', "remove bearer_env", id="misplaced"),
        pytest.param('[mcp.a]\nurl="ftp://x"', "is not an address", id="another address"),
        pytest.param("[mcp.a]\nurl=3", "url must be text", id="a number as address"),
        pytest.param('[mcp.a]\nurl="http://x"\nheader_env=["X"]', "for each header", id="headers"),
        pytest.param('[mcp.a]\nurl="http://x"\ncolour="Y"', "it may have", id="unknown in server"),
        pytest.param('[mcp.fs]\ncommand="x"', "built-in tools are", id="reserved name"),
        pytest.param('[mcp."a.b"]\ncommand="x"', "letters, digits", id="a dot in a name"),
    ],
)
def test_files_that_are_refused(lw: Place, text: str, said: str) -> None:
    """A file with a mistake leaves with 2, names itself and the cure; every command does so."""
    file = lw.write("loopwright.toml", text)
    for words in (["config", "show"], ["ls"]):
        told = lw(*words)
        assert told.code == 2
        assert str(file) in told.err
        assert said in told.err


@pytest.mark.item("J7")
def test_variables(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value is refused; an unknown variable with our prefix warns and names a near one."""
    monkeypatch.setenv("LOOPWRIGHT_DURABILTY", "normal")
    told = lw("ls")
    assert told.code == 0
    assert "did you mean LOOPWRIGHT_DURABILITY?" in told.err
    assert lw("ls", "--quiet").err == ""
    checks = {one["check"]: one["state"] for one in lw("doctor", "--json").json["checks"]}
    assert checks["environment"] == "warn"
    monkeypatch.setenv("LOOPWRIGHT_DURABILITY", "sometimes")
    assert lw("ls").code == 2


def test_what_we_say_ourselves_is_known(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command inside of an agent is not warned about what that agent was told."""
    package = Path(loopwright.__file__).parent
    named = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(r"LOOPWRIGHT_[A-Z_]*[A-Z]", file.read_text(encoding="utf-8"))
    }
    assert {"LOOPWRIGHT_OPTIONS", "LOOPWRIGHT_RUN_TOOLS"} < named
    ours = {"LOOPWRIGHT_DEBUG", "LOOPWRIGHT_HERE", "LOOPWRIGHT_HOME", "LOOPWRIGHT_SERVER"}
    for name in sorted(named - ours):
        monkeypatch.setenv(name, "x")
    assert "means nothing here" not in lw("config").err


def test_inside_an_agent_the_name_of_the_agent_is_no_setting(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that an agent starts does not take that agent's name for a spec."""
    monkeypatch.setenv("LOOPWRIGHT_RUN", "run_x")
    monkeypatch.setenv("LOOPWRIGHT_AGENT", "worker")
    assert settings(lw)["agent"] == (None, "default")


def test_config_alone_shows_everything(lw: Place) -> None:
    """`config` without a word is `config show --origin`."""
    assert lw("config").out == lw("config", "show", "--origin").out
    assert "(LOOPWRIGHT_HOME)" in lw("config").out


def test_limits_and_notifiers_are_shown(lw: Place) -> None:
    """The budget of all runs and who is told of what are settings too; addresses stay secret."""
    assert "budget" not in lw("config").out
    lw.write(
        "loopwright.toml",
        "[budget]\nusd_per_day = 20\n[notify.team]\nslack = 'https://hooks.example/secret'\n",
    )
    told = lw("config").out
    assert "budget.usd_per_day = 20" in told
    assert "budget.hard_stop = true" in told
    assert "notify.team receives gate.opened, run.failed" in told
    assert "secret" not in told
    found = lw("config", "--json").json
    assert found["budget"]["usd_per_day"] == 20
    assert found["notify"] == {"team": ["gate.opened", "run.failed"]}


@pytest.mark.parametrize("words", ["ls", "inbox", "spend", "show last", "watch last", "user ls"])
def test_commands_that_read_when_there_is_no_data_directory_create_none(
    lw: Place, words: str
) -> None:
    """A mistyped --data-dir leaves nothing behind; other commands create it."""
    folder = lw.folder / "mistyped"
    told = lw(*words.split(), "--data-dir", str(folder))
    assert (told.code, folder.exists()) == (2 if "last" in words else 0, False)
    assert lw("user", "add", "ann", "--data-dir", str(folder)).code == 0
    assert folder.exists()
