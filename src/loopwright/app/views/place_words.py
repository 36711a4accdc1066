"""A place of a run in words. Paths count from 0 (`main.2`), people from 1 (`iteration 3`)."""

import re

from loopwright.model.ids import MAIN

_PART = re.compile(r"(?P<id>[^\[\]~]*)(?:~\d+)?(?P<items>(?:\[\d+\])*)")


def place_words(path: str) -> str:
    """`dev.0.review` is `step dev, iteration 1, step review`. The only step of a definition that is
    one action is not named; the path of the run itself, or of that step, gives no words.
    """
    words: list[str] = []
    for number, part in enumerate(path.split(".") if path else ()):
        found = _PART.fullmatch(part)
        if found is None:
            return path
        name, items = found["id"], found["items"]
        if name.isdecimal():
            words.append(f"iteration {int(name) + 1}")
        elif name == "-1":
            words.append("before iteration 1")
        elif name and (name != MAIN or number):
            words.append(f"step {name}")
        words += [f"item {int(one) + 1}" for one in re.findall(r"\d+", items)]
    return ", ".join(words)
