"""Policies of a data directory: other sources make them stricter, and never take them back."""

from pathlib import Path

import pytest

from loopwright.errors import LoopwrightError
from loopwright.operations.settings import ResolvedSettings, SettingsSources, load_settings
from loopwright.operations.settings_files import SharedBudget

ON, OFF = 'four_eyes = "on"\n', 'four_eyes = "off"\n'


def resolve(
    folder: Path, *, data: str = "", project: str = "", user: str = "", env: str = ""
) -> ResolvedSettings:
    """The settings with these texts in the data directory, the project and the user's own file."""
    home, work = folder / "home", folder / "work"
    for one in (home, work):
        one.mkdir()
    files = {home / "settings.toml": data, work / "loopwright.toml": project}
    for file, text in {**files, folder / "user.toml": user}.items():
        if text:
            file.write_text(text, encoding="utf-8")
    given = {"LOOPWRIGHT_FOUR_EYES": env} if env else {}
    place = SettingsSources(env=given, cwd=work, user_file=folder / "user.toml")
    return load_settings(data_dir=str(home), place=place)


@pytest.mark.item("bnd-p5")
@pytest.mark.parametrize(
    ("texts", "four_eyes"),
    [
        ({}, "off"),
        ({"data": ON}, "on"),
        ({"data": ON, "env": "off"}, "on"),
        ({"data": ON, "project": OFF, "user": OFF, "env": "off"}, "on"),
        ({"data": OFF, "env": "on"}, "on"),
        ({"user": ON, "env": "off"}, "on"),
        ({"user": ON, "project": OFF}, "on"),
        ({"data": OFF, "project": OFF}, "off"),
    ],
    ids=["nowhere", "data", "not-by-env", "not-by-all", "env", "not-user-by-env", "project", "off"],
)
def test_four_eyes_is_only_made_stricter(
    tmp_path: Path, texts: dict[str, str], four_eyes: str
) -> None:
    """One source that says `on` is enough, and none takes it back."""
    assert resolve(tmp_path, **texts).settings.four_eyes == four_eyes


@pytest.mark.item("bnd-p5")
@pytest.mark.parametrize(
    ("texts", "budget"),
    [
        ({"data": "usd_per_day = 5", "project": "usd_per_day = 50"}, SharedBudget(usd_per_day=5)),
        ({"data": "usd_per_day = 5", "project": "usd_per_day = 2"}, SharedBudget(usd_per_day=2)),
        (
            {"user": "usd_total = 9", "project": "tokens_total = 7"},
            SharedBudget(usd_total=9, tokens_total=7),
        ),
        ({"data": "usd_total = 9", "project": "hard_stop = false"}, SharedBudget(usd_total=9)),
        (
            {"project": "usd_total = 9\nhard_stop = false"},
            SharedBudget(usd_total=9, hard_stop=False),
        ),
        ({}, SharedBudget()),
    ],
    ids=["not-raised", "lowered", "both", "not-switched-off", "only-looked-at", "none"],
)
def test_the_smallest_limits_count(
    tmp_path: Path, texts: dict[str, str], budget: SharedBudget
) -> None:
    """A project neither raises the budget of a data directory nor switches it off."""
    written = {name: f"[budget]\n{text}\n" for name, text in texts.items()}
    assert resolve(tmp_path, **written).settings.budget == budget


@pytest.mark.parametrize(
    "text",
    ['agent = "claude"', '[mcp.x]\ncommand = "x"', "[prices.x]\ninput = 1"],
    ids=["agent", "mcp", "prices"],
)
def test_only_policies_are_in_the_data_directory(tmp_path: Path, text: str) -> None:
    """Anything else there is an error that says what it may have."""
    with pytest.raises(LoopwrightError) as error:
        resolve(tmp_path, data=text)
    assert error.value.code == "bad-setting"
    assert "four_eyes" in str(error.value)


def test_a_project_does_not_open_loopback(tmp_path: Path) -> None:
    """A file that an agent may have written does not decide whom a server sends to."""
    found = resolve(tmp_path, project='webhooks_to_loopback = "on"\n')
    assert found.settings.webhooks_to_loopback == "off"
    assert "webhooks_to_loopback = 'on' is ignored" in found.warnings[0]
