"""Which coding CLIs are here, in which version, and whether they are signed in. Asks the programs
themselves, and nothing that costs money.
"""

import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from loopwright.agents.clis.access import own_places
from loopwright.agents.clis.loose import at, text
from loopwright.agents.clis.table import CLIS, Cli
from loopwright.app.sandbox_rules import user_sandbox
from loopwright.model.sandbox import SandboxLevel
from loopwright.programs.environment import CannotStart, resolve_program
from loopwright.programs.process import Program
from loopwright.programs.sandbox import Confinement, works

ASK_SECONDS = 40.0

SignedIn = Literal["yes", "no", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCli:
    """A coding CLI as it is found here."""

    cli: Cli
    path: str | None = None
    version: str = ""
    signed_in: SignedIn = "unknown"
    by: str = ""

    @property
    def state(self) -> Literal["ok", "none", "warn"]:
        if self.path is None:
            return "none"
        return "warn" if self.signed_in == "no" or not self.version else "ok"

    @property
    def why(self) -> str:
        if self.path is None:
            return "not installed"
        if not self.version:
            return f"{self.path} does not tell its version"
        words = {"yes": "signed in", "no": "not signed in", "unknown": "sign-in not known"}
        by = f" ({self.by})" if self.by else ""
        return f"{self.cli.title} {self.version}, {words[self.signed_in]}{by}"

    @property
    def fix(self) -> str:
        if self.path is None:
            return f"only if you want to use it: {self.cli.install}"
        if not self.version:
            return f"try `{self.cli.name} --version`; {self.cli.install}"
        return "" if self.signed_in == "yes" else self.cli.sign_in


def look(environment: Mapping[str, str] | None = None) -> Iterator[FoundCli]:
    """All of them, asked at the same time."""
    env = os.environ if environment is None else environment
    with ThreadPoolExecutor(max_workers=len(CLIS)) as pool:
        yield from pool.map(lambda cli: _found(cli, env), CLIS.values())


def _found(cli: Cli, env: Mapping[str, str]) -> FoundCli:
    path = _find(cli, env, os.getcwd())
    if path is None:
        return FoundCli(cli=cli)
    said = _asked(cli, env, path, "--version")
    version = re.search(r"\d+\.\d+\S*", said[1]) if said is not None and said[0] == 0 else None
    if version is None:
        return FoundCli(cli=cli, path=path)
    signed_in, by = _signed_in(cli, path, env)
    return FoundCli(cli=cli, path=path, version=version.group(), signed_in=signed_in, by=by)


def _find(cli: Cli, env: Mapping[str, str], workspace: str) -> str | None:
    """The file of a program, never one in the workspace: an agent may have written that."""
    try:
        return resolve_program(cli.name, workspace, env.get("PATH"))
    except CannotStart:
        return None


def _signed_in(cli: Cli, path: str, env: Mapping[str, str]) -> tuple[SignedIn, str]:
    for name in cli.credentials:
        if env.get(name):
            return "yes", name
    return _LOOKS[cli.name](path, env), ""


def is_signed_out(cli: Cli, env: Mapping[str, str], workspace: str) -> bool:
    """Whether a program is known not to be signed in. A script of somebody's own around a program
    is not asked: it may do anything, and it decides about its sign-in itself.
    """
    path = _find(cli, env, workspace)
    if path is None or any(env.get(name) for name in cli.credentials) or _is_own_script(path):
        return False
    return _LOOKS[cli.name](path, env) == "no"


def _is_own_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            first = file.readline(200)
    except OSError:
        return True
    return first.startswith(b"#!") and not any(name in first for name in (b"node", b"bun", b"deno"))


def _asked(cli: Cli, env: Mapping[str, str], *argv: str) -> tuple[int, str] | None:
    """Exit code and standard output of a program, or None when it does not answer. It is started in
    an empty folder: the settings of a project are not meant. An agent may have changed its own
    settings, or the program itself, so it is in a sandbox where there can be one.
    """
    level: SandboxLevel = "workspace" if works() is None else "off"
    confinement = Confinement(level=level, configuration=own_places(cli.name, env))
    try:
        with tempfile.TemporaryDirectory(prefix="loopwright-") as folder:
            program = Program(argv=argv, cwd=folder, env=dict(env))
            done = user_sandbox().ask(program, confinement, ASK_SECONDS)
    except (CannotStart, OSError, subprocess.SubprocessError):
        return None
    return done.returncode, done.stdout.decode(errors="replace")


def _claude(path: str, env: Mapping[str, str]) -> SignedIn:
    said = _asked(CLIS["claude"], env, path, "auth", "status")
    try:
        known = at(msgspec.json.decode(said[1] if said else ""), "loggedIn")
    except msgspec.DecodeError:
        return "unknown"
    return "yes" if known is True else "no" if known is False else "unknown"


def _codex(path: str, env: Mapping[str, str]) -> SignedIn:
    said = _asked(CLIS["codex"], env, path, "login", "status")
    if said is None:
        return "unknown"
    if said[0] == 0:
        return "yes"
    return "unknown" if _codex_has_provider(env) else "no"


def _codex_has_provider(env: Mapping[str, str]) -> bool:
    """Whether the settings of Codex name a provider of their own, which may need no sign-in."""
    home = Path(env.get("CODEX_HOME") or Path(env.get("HOME") or "/") / ".codex")
    try:
        settings = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "model_provider" in settings or "profile" in settings


def _opencode(path: str, env: Mapping[str, str]) -> SignedIn:
    """It counts its credentials; without any it still has models of its own."""
    said = _asked(CLIS["opencode"], env, path, "auth", "list")
    counted = re.search(r"(\d+) credentials?\b", said[1]) if said is not None else None
    if counted is None:
        return "unknown"
    return "yes" if int(counted.group(1)) else "unknown"


def _gemini(_: str, env: Mapping[str, str]) -> SignedIn:
    """It has no command for it; what it keeps of a sign-in is a file. A key may also be in a file
    of variables, and the credentials of a cloud may be anywhere.
    """
    home = env.get("HOME")
    if not home:
        return "unknown"
    folder = Path(home) / ".gemini"
    if (folder / "oauth_creds.json").is_file():
        return "yes"
    elsewhere = [folder / ".env", Path(home) / ".env", folder / "gemini-credentials.json"]
    others = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GOOGLE_APPLICATION_CREDENTIALS")
    if any(env.get(name) for name in others) or any(file.is_file() for file in elsewhere):
        return "unknown"
    return "unknown" if _gemini_method(folder) not in _GEMINI_KNOWN else "no"


_GEMINI_KNOWN = ("", "oauth-personal", "gemini-api-key")


def _gemini_method(folder: Path) -> str:
    """How it signs in, as its settings say; empty if they say nothing."""
    try:
        settings = msgspec.json.decode((folder / "settings.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return ""
    return text(settings, "security", "auth", "selectedType")


_LOOKS: dict[str, Callable[[str, Mapping[str, str]], SignedIn]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
}
