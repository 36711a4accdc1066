"""Making long texts fit a prompt. What is stored is never cut; only what is shown is."""


def clip(text: str, size: int) -> str:
    """A text that fits, with its head and its tail and a word on what was left out."""
    if len(text) <= size:
        return text
    half = size // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def clip_with(text: str, size: int, handle: str) -> str:
    """The same with a word on where all of it is."""
    if len(text) <= size:
        return text
    half = size // 2
    where = f"; {handle}" if handle else ""
    left_out = f"[… {len(text) - 2 * half} characters left out{where} …]"
    return f"{text[:half]}\n{left_out}\n{text[len(text) - half :]}"


def clip_end(text: str, size: int) -> str:
    """A text of at most so many bytes: its head, and a word on what was left out after it."""
    if len(text) * 4 <= size:
        return text
    data = text.encode(errors="replace")
    if len(data) <= size:
        return text
    head = data[: max(size, 0)].decode(errors="ignore")  # a character is kept whole or left out
    return f"{head}\n[… truncated: {len(data) - len(head.encode())} bytes left out]"
