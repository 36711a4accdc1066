"""Files of the workspace that an agent is shown below its task, as they are when it is called.

They are read beneath the workspace and nowhere else. A file that cannot be shown is told of in its
place, and the agent is called all the same: it works in the workspace and may look for itself.
"""

from pathlib import Path

from msgspec.structs import replace

from loopwright.agents.before import PROMPT_BYTES
from loopwright.agents.clipping import clip_end
from loopwright.model.messages import UserMessage
from loopwright.ports import Job
from loopwright.programs.files import FileProblem, read_beneath

MAX_FILE_BYTES = 10 * 1_024 * 1_024
LEAST_BYTES = 1_024  # of each file that is shown, however long the rest of the prompt is


def with_files(job: Job) -> Job:
    """The job with its files in the prompt, or in the first message of a conversation."""
    if not job.files:
        return job
    room = PROMPT_BYTES - len(job.prompt.encode(errors="replace"))
    sections = ["## Context Files"]
    for name in job.files:
        shown = clip_end(_text(Path(job.workspace), name), max(room, LEAST_BYTES))
        room -= len(shown.encode(errors="replace"))
        sections.append(f"### {name}\n\n{shown}")
    if not job.messages:
        return replace(job, prompt="\n\n".join([job.prompt, *sections]))
    first = job.messages[0]
    if not isinstance(first, UserMessage):
        return job
    told = UserMessage(text="\n\n".join([first.text, *sections]))
    return replace(job, messages=(told, *job.messages[1:]))


def _text(workspace: Path, name: str) -> str:
    data = read_beneath(workspace, name, MAX_FILE_BYTES)
    if isinstance(data, FileProblem):
        return f"(not shown: {data.message})"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "(not shown: it is no text; open it in the workspace)"
