"""How a field of the surface says what is wrong with it."""

from typing import TypeVar

from pydantic_core import PydanticCustomError

from loopwright.syntax import check_text

Text = TypeVar("Text", bound=str)


def fault(code: str, message: str, *, hint: str | None = None) -> PydanticCustomError:
    """The error to raise; `code` is the slug that the author sees."""
    # The message goes in as a value: braces in it are the author's, not placeholders.
    context = {"text": message, "hint": hint} if hint else {"text": message}
    return PydanticCustomError(code.replace("-", "_"), "{text}", context)


def visible(text: Text) -> Text:
    """The text, if a reader sees all of it."""
    problem = check_text(text)
    if problem:
        raise fault("hidden-character", problem, hint="delete it and type the word again")
    return text
