"""From bytes to a document, whatever the bytes are."""

from loopwright.syntax.composing import Composer
from loopwright.syntax.diagnostic import Diagnostic, Refusal, in_order
from loopwright.syntax.document import Document
from loopwright.syntax.json_reader import compose_json
from loopwright.syntax.source import Source, decode
from loopwright.syntax.yaml_reader import compose_yaml

DEFAULT_LIMIT = 262_144


def read(
    data: bytes, *, file: str, limit: int = DEFAULT_LIMIT
) -> tuple[Document | None, list[Diagnostic]]:
    """The document, or what is wrong with the text; `file` is the name used in messages."""
    if len(data) > limit:
        message = f"the file has {len(data):,} bytes; at most {limit:,} are read"
        return None, [Diagnostic(file, 1, 1, "too-large", message)]
    try:
        source = decode(data, file=file)
    except Refusal as refusal:
        return None, [refusal.diagnostic]
    composer = _compose(source)
    root = composer.root
    if composer.problems:
        return None, in_order(composer.problems)
    if root is None or root.value is None:
        message = "the file is empty, or has nothing but comments"
        return None, [source.problem(0, "empty-definition", message)]
    return Document(root.value, file, source, root), []


def _compose(source: Source) -> Composer:
    """A JSON file is read as JSON; other files too if they are, else as YAML."""
    if source.text.lstrip()[:1] not in ("{", "["):
        return compose_yaml(source)
    composer = compose_json(source)
    if source.file.lower().endswith(".json") or not composer.problems:
        return composer
    return compose_yaml(source)
