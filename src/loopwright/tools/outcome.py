"""What comes of a tool call. Failures are data for the model, never exceptions for the loop."""

import msgspec

from loopwright.model.record import JsonValue


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is shown, whether it is an error, and the exit code if there is one."""

    text: str
    error: bool = False
    code: int | None = None


class Refusal(Exception):
    """A tool will not, or cannot: a slug for programs and a sentence for the model."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(f"{problem}: {message}")
        self.problem = problem
        self.message = message


def as_json(value: JsonValue) -> str:
    """JSON text. What has no form in UTF-8 is replaced, as facts and wires cannot carry it."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(value)).decode()


def _clean(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [_clean(one) for one in value]
        case dict():
            return {str(_clean(name)): _clean(one) for name, one in value.items()}
        case _:
            return value


def said(value: JsonValue, *, error: bool = False, code: int | None = None) -> ToolOutcome:
    """An outcome whose text is JSON."""
    return ToolOutcome(text=as_json(value), error=error, code=code)


def failed(problem: str, message: str) -> ToolOutcome:
    """An outcome that tells the model what went wrong."""
    return said({"error": message, "type": problem}, error=True)
