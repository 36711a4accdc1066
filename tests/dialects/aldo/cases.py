"""How the tests of this folder get from text, and from folders of files, to findings."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from loopwright.dialects import aldo
from loopwright.model.plan import Plan
from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read

CORPUS = Path(__file__).resolve().parents[2] / "corpus" / "aldo"
PROMPT = {"prompt.md": b"You are careful.\n"}
HEAD = """\
apiVersion: aldo-ai/agent.v1
kind: Agent
identity: {name: NAME, version: 1.0.0, description: Works., owner: team-a}
role: {team: delivery, pattern: worker}
model_policy:
  privacy_tier: TIER
  primary: {capability_class: local-reasoning}
  budget: {usd_per_run: USD}
prompt: {system_file: prompt.md}
"""


class Refused(NamedTuple):
    """A file that whoever holds the disk would not hand over."""

    code: str
    message: str


Handed = Mapping[str, bytes | Refused]


def spec(more: str = "", *, name: str = "worker", tier: str = "public", usd: str = "0") -> str:
    """An agent with what every agent must have, and this below it."""
    head = HEAD.replace("NAME", name).replace("TIER", tier).replace("USD", usd)
    return head + more


def lowered(
    text: str | bytes, files: Handed | None = None, *, file: str = "agent.yaml"
) -> tuple[Plan | None, list[Diagnostic]]:
    """What the dialect makes of a text, with the findings of reading and of lowering."""
    data = text if isinstance(text, bytes) else text.encode()
    document, problems = read(data, file=file)
    if document is None:
        return None, problems
    return aldo.lower(document, {**PROMPT, **(files or {})})


def plan_of(text: str, **agents: str) -> Plan:
    """The plan of an agent that has nothing wrong with it, with the agents that it names."""
    files = {f"{name.replace('_', '-')}.yaml": one.encode() for name, one in agents.items()}
    plan, problems = lowered(text, files)
    assert problems == []
    assert plan is not None
    return plan


def gathered(folder: Path) -> tuple[Plan | None, list[Diagnostic]]:
    """What the dialect makes of `main.yaml` with the files that it asks for, as they come."""
    document, problems = read((folder / "main.yaml").read_bytes(), file="main.yaml")
    if document is None:
        return None, problems
    files: dict[str, bytes | Refused] = {}
    while True:
        asked = [
            one for one in aldo.requested_files(document, files) if (folder / one.path).is_file()
        ]
        if not asked:
            return aldo.lower(document, files)
        files |= {one.path: (folder / one.path).read_bytes() for one in asked}
