"""Real coding CLIs against a local server that speaks their wires: no key, no network.

The programs come from npm (`make test-agents` installs them from the lock file into a folder that
LOOPWRIGHT_TEST_CLIS names). Without them every test here says what is missing and is skipped.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loopwright.model.record import JsonValue
from loopwright.ports import Answer, ToolReply
from loopwright.testing.wires import Chooser, WireScript, WireServer
from tests.agents.calls import Stage, agent, job

CLIS = os.environ.get("LOOPWRIGHT_TEST_CLIS", "")


def needs(name: str) -> None:
    """Skip, with the way to get it, where a program is missing."""
    if not CLIS or not (Path(CLIS) / name).exists():
        pytest.skip(f"{name} is not installed; `make test-agents` installs it from npm")


class NoMessages:
    """The inbox of a call that gets no message."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[ToolReply]] = []

    async def use(self, tool: str, arguments: JsonValue) -> ToolReply:
        self._waiting.append(asyncio.get_running_loop().create_future())
        return await self._waiting[-1]

    def end_waiting(self) -> None:
        for one in self._waiting:
            if not one.done():
                one.set_result(ToolReply(text="no message"))


@dataclass
class Lab:
    """A home, a workspace and a wire for one test."""

    folder: Path
    wires: WireServer
    opencode_more: dict[str, JsonValue] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": f"{CLIS}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "CODEX_API_KEY": "any",
            **self.credentials,
        }

    @property
    def credentials(self) -> dict[str, str]:
        """Where the programs find our server, and the keys that they show it."""
        return {
            "ANTHROPIC_BASE_URL": self.wires.url,
            "ANTHROPIC_API_KEY": "any",
            "GOOGLE_GEMINI_BASE_URL": self.wires.url,
            "GEMINI_API_KEY": "any",
        }

    def spec(self, cli: str) -> str:
        """The spec of a CLI that turns to our server."""
        if cli.startswith("acp:"):
            self.spec("gemini" if "gemini" in cli else "opencode")
            return cli
        if cli == "gemini":
            self._gemini()
            return "gemini:-m gemini-2.5-flash"
        if cli == "codex":
            provider = (
                f'model_providers.fake={{name="fake",base_url="{self.wires.url}/v1",'
                'env_key="CODEX_API_KEY",wire_api="responses",'
                "request_max_retries=1,stream_max_retries=1}"
            )
            return f"codex:--disable plugins -c model_provider=fake -c '{provider}'"
        if cli == "opencode":
            self.opencode_settings(**self.opencode_more)
        return cli

    def _gemini(self) -> None:
        settings: JsonValue = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
        }
        place = self.folder / "home" / ".gemini"
        place.mkdir(parents=True, exist_ok=True)
        (place / "settings.json").write_text(json.dumps(settings), encoding="utf-8")

    def opencode_settings(self, **more: JsonValue) -> None:
        """Write the settings of OpenCode, with these beside those that it needs."""
        self.opencode_more = more
        model: JsonValue = {
            "tool_call": True,
            "limit": {"context": 32_000, "output": 4_096},
            "cost": {"input": 3, "output": 15},
        }
        options: JsonValue = {"baseURL": f"{self.wires.url}/v1", "apiKey": "any"}
        config: dict[str, JsonValue] = {
            "autoupdate": False,
            "share": "disabled",
            "model": "fake/fake-model",
            "small_model": "fake/fake-model",
            "provider": {
                "fake": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": options,
                    "models": {"fake-model": model},
                }
            },
            **more,
        }
        place = self.folder / "home" / ".config" / "opencode"
        place.mkdir(parents=True, exist_ok=True)
        (place / "opencode.json").write_text(json.dumps(config), encoding="utf-8")

    def asks_before_edits(self) -> None:
        self.opencode_settings(permission={"edit": "ask"})

    def ask(self, cli: str, prompt: str = "Do it.", **more: object) -> tuple[Answer, Stage]:
        """One call of the CLI."""
        names = (
            *("model", "tools", "deny_tools", "max_turns", "max_usd", "permission", "system"),
            "pass_env",
        )
        given = {name: more.pop(name) for name in names if name in more}
        here = Stage(self.env)
        call = job(
            self.work,
            agent=agent(self.spec(cli), **given),
            prompt=prompt,
            **{"wall_ms": 240_000, "talk": NoMessages(), **more},
        )
        return here.perform(call), here


class Labs:
    """Makes labs, and takes them away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[WireServer] = []

    def __call__(self, script: WireScript | None = None, *, choose: Chooser | None = None) -> Lab:
        wires = WireServer(script, choose=choose)
        wires.__enter__()
        self._open.append(wires)
        for name in ("home", "work"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        return Lab(self._folder, wires)

    def close(self) -> None:
        for wires in self._open:
            wires.close()


@pytest.fixture
def labs(request: pytest.FixtureRequest) -> Iterator[Labs]:
    # Not below the temporary folder: Codex refuses a home there.
    folder = Path("/var/tmp") / f"loopwright-{os.getpid()}-{abs(hash(request.node.nodeid))}"
    made = Labs(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)
