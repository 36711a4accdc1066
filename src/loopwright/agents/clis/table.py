"""What is known about each coding CLI: its name, its variables, its words for rights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    """One program. `credentials` are in the order in which one is chosen; only that one is handed
    on. `variables` are handed on when they are set, `fixed` ones are set where nobody else does.
    """

    name: str
    title: str
    install: str
    sign_in: str
    credentials: tuple[str, ...]
    variables: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    permissions: Mapping[str, str]  # our word, or its own, to its own
    can_add_tools: bool = False  # can be allowed further tools by name
    has_turns: bool = False
    has_cost: bool = False


DEFAULT_PERMISSION = "acceptEdits"


def _npm(package: str) -> str:
    return f"install it with: npm install -g {package}"


def _words(common: dict[str, str], *own: str) -> Mapping[str, str]:
    return MappingProxyType({**{word: word for word in own}, **common})


CLAUDE = Cli(
    name="claude",
    title="Claude Code",
    install=_npm("@anthropic-ai/claude-code"),
    sign_in="run `claude auth login`, or set ANTHROPIC_API_KEY",
    credentials=("CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    variables=("ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR", "IS_SANDBOX"),
    # A loop must not change its own tools under way, nor wait minutes for a provider that is down.
    fixed=MappingProxyType(
        {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "3",
            "DISABLE_AUTOUPDATER": "1",
        }
    ),
    permissions=_words(
        {
            "read-only": "plan",
            "ask": "default",
            "edit": "acceptEdits",
            "all": "bypassPermissions",
        },
        *("default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions"),
    ),
    can_add_tools=True,
    has_turns=True,
    has_cost=True,
)
CODEX = Cli(
    name="codex",
    title="Codex",
    install=_npm("@openai/codex"),
    sign_in="run `codex login`, or set CODEX_API_KEY",
    credentials=("CODEX_API_KEY", "OPENAI_API_KEY"),
    variables=("CODEX_HOME",),
    permissions=_words(
        {
            "ask": "read-only",
            "edit": "workspace-write",
            "all": "danger-full-access",
            "plan": "read-only",
            "default": "read-only",
            "acceptEdits": "workspace-write",
            "bypassPermissions": "danger-full-access",
        },
        *("read-only", "workspace-write", "danger-full-access"),
    ),
)
OPENCODE = Cli(
    name="opencode",
    title="OpenCode",
    install=_npm("opencode-ai"),
    sign_in="run `opencode auth login`",
    credentials=("OPENCODE_API_KEY",),
    variables=(
        "OPENCODE_CONFIG",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
    ),
    fixed=MappingProxyType({"OPENCODE_DISABLE_AUTOUPDATE": "1"}),
    permissions=_words(
        {"read-only": "plan", "edit": "acceptEdits", "all": "bypassPermissions"},
        *("ask", "default", "plan", "acceptEdits", "bypassPermissions"),
    ),
    can_add_tools=True,
    has_cost=True,
)
GEMINI = Cli(
    name="gemini",
    title="Gemini CLI",
    install=_npm("@google/gemini-cli"),
    sign_in="run `gemini` once and sign in, or set GEMINI_API_KEY",
    credentials=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    variables=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_CLOUD_PROJECT"),
    # Relaunched, it is two processes of which one ignores being stopped.
    fixed=MappingProxyType(
        {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    ),
    can_add_tools=True,
    permissions=_words(
        {
            "read-only": "plan",
            "ask": "default",
            "edit": "auto_edit",
            "all": "yolo",
            "acceptEdits": "auto_edit",
            "bypassPermissions": "yolo",
        },
        *("default", "auto_edit", "yolo", "plan"),
    ),
)

CLIS: Mapping[str, Cli] = MappingProxyType(
    {cli.name: cli for cli in (CLAUDE, CODEX, OPENCODE, GEMINI)}
)
