"""Plugins: agents of other distributions; a broken one is off, and nothing else is."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import LoopwrightError
from loopwright.operations.agents.programs import plugin_spec, plugins
from loopwright.operations.doctor import examine
from loopwright.operations.settings import SettingsSources, load_settings
from tests.http.served import served

MODULES = {
    "good": "API = 1\nARGV = ('/bin/echo', 'it is done')\n",
    "raises": "raise RuntimeError('no such library')\n",
    "leaves": "import sys\nsys.exit(3)\n",
    "newer": "API = 2\nARGV = ['x']\n",
    "silent": "ARGV = ['x']\n",
    "unfit": "API = 1\nARGV = 'rm -rf /'\n",
    "tongue": "API = 1\nARGV = ['x']\nSPEAKS = 'latin'\n",
    "wrong": "this is no Python\n",
}
REASONS = {
    "raises": "RuntimeError: no such library",
    "leaves": "SystemExit: 3",
    "newer": "made for API 2, and this version has API 1",
    "silent": "made for API None",
    "unfit": "ARGV is not a list of texts",
    "tongue": "speaks 'latin'",
    "wrong": "SyntaxError",
    "gone": "ModuleNotFoundError",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with plugins of all kinds."""
    site = tmp_path / "site"
    info = site / "acme_agents-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-agents\nVersion: 1.0\n")
    lines = [f"{name} = acme_{name}" for name in [*MODULES, "gone"]]
    (info / "entry_points.txt").write_text("\n".join(["[loopwright.agents]", *lines]))
    for name, text in MODULES.items():
        (site / f"acme_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in MODULES:
        sys.modules.pop(f"acme_{name}", None)


@pytest.mark.item("J10")
def test_a_broken_plugin_is_off(
    installed: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server starts, says in its log which plugins are off and why, and runs the good one; the
    doctor says the same, and asking for one that is off is refused with the reason.
    """
    with served(tmp_path) as own:
        warned = caplog.text
        run = own.start(own.definition("plugin:good", max=1))
        ended = own.until(run, "completed", "exhausted")
        assert "it is done" in ended["output"]
        body = {"definition": own.definition("plugin:raises")}
        refused = own("POST", "/api/v1/runs", body)
        assert (refused.status, refused.code) == (400, "plugin-off")
        assert "no such library" in refused.json["detail"]
    resolved = load_settings(
        place=SettingsSources(env={}, cwd=tmp_path, user_file=tmp_path / "none")
    )
    found = {one.name: one for one in examine(resolved)}
    assert found["plugin good"].state == "ok"
    for name, reason in REASONS.items():
        assert f"plugin {name} of acme-agents is off" in warned
        assert found[f"plugin {name}"].state == "warn"
        assert reason in found[f"plugin {name}"].why
        assert "acme-agents" in found[f"plugin {name}"].fix


def test_a_plugin_from_elsewhere_is_a_program(installed: None, tmp_path: Path) -> None:
    """A definition that is imported and starts a plugin waits for an admin, as with any program."""
    with served(tmp_path) as own:
        body = {"name": "theirs", "text": own.definition("plugin:good")}
        reply = own("POST", "/api/v1/definitions/import", body)
        assert (reply.status, reply.json["programs"]) == (202, ["plugin:good"])


def test_what_a_plugin_is(installed: None) -> None:
    """Its program, quoted word by word, with the arguments of whoever names it."""
    assert plugin_spec("plugin:good --fast") == "command:/bin/echo 'it is done' --fast"
    assert [one.name for one in plugins() if not one.problem] == ["good"]


@pytest.mark.parametrize(("text", "hint"), [("plugin:god", "good"), ("plugin:", "there are")])
def test_plugins_that_are_not_there(installed: None, text: str, hint: Any) -> None:
    """The nearest name is proposed."""
    with pytest.raises(LoopwrightError) as error:
        plugin_spec(text)
    assert error.value.code == "no-plugin"
    assert hint in str(error.value.hint)
