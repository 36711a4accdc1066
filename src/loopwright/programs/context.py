"""Files of the workspace that an agent is shown below its task, as they are when it is called.

They are read beneath the workspace and nowhere else. A file that cannot be shown is told of in its
place, and the agent is called all the same: it works in the workspace and may look for itself.
"""

from pathlib import Path

from msgspec.structs import replace

from loopwright.agents.before import PROMPT_BYTES
from loopwright.agents.clipping import clip_end
from loopwright.model.attachments import can_see, media_type
from loopwright.model.messages import FilePart, UserMessage
from loopwright.ports import Job
from loopwright.programs.files import FileProblem, read_beneath

MAX_FILE_BYTES = 10 * 1_024 * 1_024
LEAST_BYTES = 1_024  # of each file that is shown, however long the rest of the prompt is
# A service refuses the whole conversation for a file that is not what its name says.
_STARTS: dict[str, bytes | tuple[bytes, ...]] = {
    "application/pdf": b"%PDF-",
    "image/gif": b"GIF8",
    "image/jpeg": b"\xff\xd8",
    "image/png": b"\x89PNG\r\n",
    "image/webp": b"RIFF",
}


def with_files(job: Job) -> Job:
    """The job with its files in the prompt, or in the first message of a conversation. Images and
    PDFs go to models that can look at them as parts of that message; others are given their names.
    """
    if not job.files:
        return job
    room = PROMPT_BYTES - len(job.prompt.encode(errors="replace"))
    sections = ["## Context Files"]
    attached: list[FilePart] = []
    for name in job.files:
        part = _attached(job, name) if job.messages else None
        if part is not None:
            attached.append(part)
            sections.append(f"### {name}\n\n(attached as {part.media_type})")
            continue
        shown = clip_end(_text(job, name), max(room, LEAST_BYTES))
        room -= len(shown.encode(errors="replace"))
        sections.append(f"### {name}\n\n{shown}")
    if not job.messages:
        return replace(job, prompt="\n\n".join([job.prompt, *sections]))
    first = job.messages[0]
    if not isinstance(first, UserMessage):
        return job
    told = UserMessage(text="\n\n".join([first.text, *sections]), files=tuple(attached))
    return replace(job, messages=(told, *job.messages[1:]))


def _attached(job: Job, name: str) -> FilePart | None:
    """An image or a PDF as a part of a message, where the model can look at it."""
    media = media_type(name)
    if media is None or job.agent is None or not can_see(job.agent, media):
        return None
    data = _read(job, name)
    if isinstance(data, FileProblem) or not data.startswith(_STARTS[media]):
        return None
    return FilePart(name=name, media_type=media, data=data)


def _read(job: Job, name: str) -> bytes | FileProblem:
    return read_beneath(Path(job.workspace), name, MAX_FILE_BYTES, run=job.run, fixed=True)


def _text(job: Job, name: str) -> str:
    data = _read(job, name)
    if isinstance(data, FileProblem):
        return f"(not shown: {data.message})"
    try:
        return data.decode()
    except UnicodeDecodeError:
        kind = media_type(name) or "binary"
        return f"(not shown: it is a {kind} file; open it in the workspace)"
