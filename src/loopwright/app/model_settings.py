"""Settings about models: what they cost, and which agents stand for their tiers and aliases."""

import re
from pathlib import Path

from loopwright.errors import LoopwrightError
from loopwright.model.prices import Price

PRICES = "prices"
MODELS = "models"
PRICE_KEYS = ("input", "output", "cache_read", "call")
_UNQUOTED = re.compile(
    r"""\s*(?P<name>[\w.-]+)\s*=\s*
    (?!(?:true|false|inf|nan)\s*(?:\#|$))(?P<value>[A-Za-z./~][^"'\[\]{}\#]*?)\s*(?:\#.*)?""",
    re.VERBOSE,
)
MODEL_KINDS = ("model", "claude", "codex", "gemini", "opencode")


def read_models(value: object, origin: str) -> dict[str, str]:
    """The agents that stand for model tiers, aliases and providers of definitions. A file of a
    project may have been written by an agent, so none of them is a program.
    """
    example = f'write [{MODELS}] with lines such as small = "model:PROVIDER/NAME"'
    if not isinstance(value, dict):
        raise refused(f"{origin}: {MODELS} is not a table", example)
    for name, spec in value.items():
        kind = spec.partition(":")[0] if isinstance(spec, str) else ""
        if kind not in MODEL_KINDS:
            hint = "name a model or a coding CLI; give programs with --agent"
            raise refused(f"{origin}: {MODELS}.{name} is {spec!r}", hint)
    return {str(name): str(spec) for name, spec in value.items()}


def read_prices(value: object, origin: str) -> dict[str, Price]:
    """Prices by model (`PROVIDER/NAME`) or by agent (`codex`, `command:./agent`)."""
    keys = ", ".join(PRICE_KEYS)
    example = f'write [{PRICES}."PROVIDER/NAME"] with {keys} (USD for a million tokens)'
    if not isinstance(value, dict):
        raise refused(f"{origin}: {PRICES} is not a table", example)
    found: dict[str, Price] = {}
    for name, said in value.items():
        if not isinstance(said, dict) or not said:
            raise refused(f"{origin}: {PRICES}.{name!r} is not a price", example)
        for key, amount in said.items():
            if key not in PRICE_KEYS:
                raise refused(f"{origin}: unknown {key!r} in {PRICES}.{name!r}", example)
            number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not number or not 0 <= amount < float("inf"):
                hint = "it must be a number from 0 on"
                raise refused(f"{origin}: {PRICES}.{name!r}.{key} is {amount!r}", hint)
        found[name] = Price(**said)
    return found


def refused(message: str, hint: str) -> LoopwrightError:
    """The error about a setting that cannot be used."""
    return LoopwrightError(message, code="bad-setting", hint=hint)


def toml_hint(file: Path) -> str:
    """What to write instead of the first value that lacks quotes, if that is what is wrong."""
    for line in file.read_text(encoding="utf-8").splitlines():
        found = _UNQUOTED.fullmatch(line)
        if found is not None:
            return f'text needs quotes: {found["name"]} = "{found["value"]}"'
    return "correct the TOML, or move the file away"
