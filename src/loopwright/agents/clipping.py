"""Making long texts fit a prompt. What is stored is never cut; only what is shown is."""


def clip(text: str, size: int) -> str:
    """A text that fits, with its head and its tail and a word on what was left out."""
    if len(text) <= size:
        return text
    half = size // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
