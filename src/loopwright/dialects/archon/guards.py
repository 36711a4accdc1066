"""The guarantees of a workflow about its files, as steps that check them.

`mutates_checkout: false` on a node: the files of the checkout are listed before and after it, and
the node fails if they differ. `evidence_policy: {required: true}`: a last step fails the run unless
`$ARTIFACTS_DIR/evidence.json` exists; only its presence is checked.
"""

from collections.abc import Sequence

from loopwright.dialects.archon.surface import ArchonWorkflow, NodeSpec
from loopwright.dialects.archon.variables import OWN
from loopwright.model.actions import Action, RunScript, Step, Steps
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import Ref, Template

EVIDENCE = "evidence_policy"
ARTIFACTS = f"{OWN}ARTIFACTS"
_BEFORE = f"{OWN}BEFORE"
_ARTIFACTS_DIR: Template = (Ref(of="setting", name="artifacts"),)
LISTING_MS = 600_000
MOST_CHARS = 100_000

_EVIDENCE_SCRIPT = f"""\
file="${ARTIFACTS}/evidence.json"
if [ ! -e "$file" ]; then
  echo "evidence_policy requires $file, which does not exist" >&2
  exit 1
fi
"""
_LISTING = f"""\
top=$(git rev-parse --show-toplevel 2>/dev/null) || exit 0
cd "$top" || exit 1
list_files() {{
  printf '%s %s\\n' "$(git rev-parse --verify -q HEAD)" HEAD
  {{
    git diff --name-only -z --no-ext-diff HEAD 2>/dev/null || git ls-files -z
    git ls-files -o --exclude-standard -z
  }} | sort -zu | while IFS= read -r -d '' file; do
    case "$top/$file" in "$top"/.archon/state/* | "${ARTIFACTS}"/*) continue ;; esac
    if [ -L "$file" ]; then printf '%s %s\\n' "link-$(readlink -- "$file")" "$file"
    elif [ -f "$file" ]; then printf '%s %s\\n' "$(git hash-object --no-filters -- "$file")" "$file"
    else printf '%s %s\\n' absent "$file"; fi
  done
}}
now=$(list_files)
if [ "${{#now}}" -gt {MOST_CHARS} ]; then
  now="$(printf %s "$now" | git hash-object --stdin) many files"
fi
"""
_BEFORE_SCRIPT = f"""{_LISTING}printf '%s\\n' "$now"\n"""
_AFTER_SCRIPT = f"""{_LISTING}\
[ "$now" = "${_BEFORE}" ] && exit 0
changed=$(comm -3 <(printf '%s\\n' "${_BEFORE}" | sort) <(printf '%s\\n' "$now" | sort) |
  sed 's/^[[:space:]]*//; s/^[^ ]* //' | sort -u | head -n 20 | paste -s -d ' ' -)
echo "mutates_checkout is false, but these changed: $changed" >&2
exit 1
"""


def is_guarded(node: NodeSpec) -> bool:
    """Whether a node guarantees to leave the checkout unchanged, and is checked for it."""
    kinds = (node.prompt, node.command, node.bash, node.script)
    return node.mutates_checkout is False and any(one is not None for one in kinds)


def guarded(node: NodeSpec, action: Action, retry: Retry, limits: Limits) -> Steps:
    """An action between two lists of the files of the checkout; its output is that of the node."""
    before, after = f"{node.id}-before", f"{node.id}-checkout"
    env: dict[str, Template] = {ARTIFACTS: _ARTIFACTS_DIR}
    known: dict[str, Template] = {**env, _BEFORE: (Ref(of="output", name=before),)}
    return Steps(
        steps=(
            Step(id=before, action=_script(_BEFORE_SCRIPT, env)),
            Step(id=node.id, action=action, needs=(before,), retry=retry, limits=limits),
            Step(id=after, action=_script(_AFTER_SCRIPT, known), needs=(node.id,)),
        ),
        on_failure="abort",
        returns=node.id,
    )


def parallel_of(nodes: Sequence[NodeSpec]) -> int | None:
    """How many nodes of a graph run at once: one, if a guarded node has others beside it that may
    change files, so that their changes do not count against it.
    """
    depth: dict[str, int] = {}
    for _ in nodes:
        for node in nodes:
            depth[node.id] = 1 + max((depth.get(one, 0) for one in node.depends_on), default=0)
    layers: dict[int, set[bool]] = {}
    for node in nodes:
        layers.setdefault(depth[node.id], set()).add(is_guarded(node))
    return 1 if any(len(kinds) == 2 for kinds in layers.values()) else None


def with_evidence(
    flow: ArchonWorkflow, steps: tuple[Step, ...]
) -> tuple[tuple[Step, ...], str | None]:
    """The steps with the check of the evidence, and the step whose output is that of the run."""
    if flow.evidence_policy is None or not flow.evidence_policy.required:
        return steps, flow.returns
    ids = [step.id for step in steps]
    needed = {name for step in steps for name in step.needs}
    sinks = [name for name in ids if name not in needed]
    returns = flow.returns or (sinks[0] if len(sinks) == 1 else EVIDENCE)
    text, env = _EVIDENCE_SCRIPT, {ARTIFACTS: _ARTIFACTS_DIR}
    if returns == EVIDENCE:  # the first node that no other needs and that printed something
        names = [f"{OWN}SINK_{number}" for number, _ in enumerate(sinks)]
        guarded = zip(names, sinks, strict=True)
        env |= {name: (Ref(of="output", name=sink, if_skipped=""),) for name, sink in guarded}
        values = " ".join(f'"${name}"' for name in names)
        text += f"for text in {values}; do\n"
        text += """  if [ -n "$text" ]; then printf '%s' "$text"; break; fi\ndone\n"""
    check = Step(id=EVIDENCE, action=_script(text, env), needs=tuple(ids), join="all_done")
    return (*steps, check), returns


def _script(text: str, env: dict[str, Template]) -> RunScript:
    return RunScript(text=text, timeout_ms=LISTING_MS, env=env)
