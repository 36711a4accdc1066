r"""Templates: texts with references, such as `{{input.branch}}`.

Other references are `{{steps.plan.output}}`, `{{iteration}}`, `{{outer.iteration}}` and
`{{previous | json}}`.

`\{{` is a literal `{{`. In a sequence of more than two braces the last two open the reference,
and backslashes directly before braces are doubled, so that every text can be written.
"""

import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast, get_args

import msgspec

from loopwright.model.ids import is_id
from loopwright.model.record import Lit, Ref, Source, Template
from loopwright.syntax.document import suggest

_BRACES = re.compile(r"(\\*)(\{{2,})")
_TAIL = re.compile(r"(\\*)(\{*)\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_FIELD = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")

# References that are more than one word.
_NAMED = ("input", "setting", "output", "result", "previous_output", "previous_result", "item")
PLAIN = tuple(s for s in get_args(Source) if s not in _NAMED)
_FORMS = (
    *PLAIN,
    "item",
    "input.NAME",
    "setting.NAME",
    "steps.ID.output",
    "steps.ID.result.FIELD",
    "previous.steps.ID.output",
    "outer.iteration",
)
_OUTER = re.compile(r"(?P<up>(?:outer\.){0,9})(?P<of>index|iteration|max|previous)")
_AS_JSON = re.compile(r"(?P<ref>.*?)\s*\|\s*json", re.DOTALL)
# An id that is not valid as a plain id is in brackets.
_STEP = re.compile(
    r"steps(?:\.(?P<id>[^.\[\]]+)|\['(?P<quoted>[A-Za-z0-9_-]{1,64})'\])\.(?P<rest>.+)"
)
_OF_STEP: dict[str, tuple[Source, Source]] = {
    "": ("output", "result"),
    "previous.": ("previous_output", "previous_result"),
}
_ESCAPE = r"for literal braces write \{{"


@dataclass(frozen=True, slots=True)
class TemplateMark:
    """A reference as written, with its braces, and its position in its text."""

    written: str
    at: int
    ref: Ref | None = None


def parse(text: str) -> tuple[Template, list[TemplateMark]]:
    """The template, and each reference in it, also those whose form is wrong."""
    parts: list[Lit | Ref] = []
    marks: list[TemplateMark] = []
    literal, at = "", 0
    while found := _BRACES.search(text, at):
        slashes, braces = found.groups()
        literal += text[at : found.start()] + slashes[: len(slashes) // 2]
        at = found.end()
        if len(slashes) % 2:
            literal += braces
            continue
        literal += braces[2:]
        end = text.find("}}", at)
        written = text[at - 2 : end + 2] if end >= 0 else "{{"
        ref = parse_ref(written[2:-2].strip()) if end >= 0 else None
        marks.append(TemplateMark(written, at - 2, ref))
        at = end + 2 if end >= 0 else at
        if ref:
            parts += [Lit(text=literal), ref] if literal else [ref]
            literal = ""
    literal += text[at:]
    return (*parts, Lit(text=literal)) if literal else tuple(parts), marks


def explain(written: str) -> tuple[str, str]:
    """The problem of a text that is not a reference, and a hint."""
    if written == "{{":
        return "{{ is not closed by }}", _ESCAPE
    inner = written[2:-2].strip()
    head, _, rest = inner.partition(".")
    if head == "steps" and is_id(rest):
        return f"{inner} does not say what of it", f"write {inner}.output or {inner}.result"
    near = suggest(inner, _FORMS) or suggest(head, ("steps", "input", "item", "setting"))
    hint = f"did you mean {near}?" if near else f"known: {', '.join(_FORMS)}; {_ESCAPE}"
    shown = inner if len(inner) <= 60 else f"{inner[:59]}…"
    return f"{shown} refers to nothing", hint


def parse_ref(text: str) -> Ref | None:
    """A reference without its braces, if it has the form of one. `outer.` before a reference to an
    iteration means the iteration of the enclosing loop, and `| json` after it fills the value in as
    JSON.
    """
    filled = _AS_JSON.fullmatch(text)
    ref = _parse_plain(filled["ref"] if filled else text)
    return msgspec.structs.replace(ref, json=True) if ref is not None and filled else ref


def _parse_plain(text: str) -> Ref | None:
    outer = _OUTER.fullmatch(text)
    if outer:
        return Ref(of=cast("Source", outer["of"]), up=outer["up"].count("."))
    head, _, rest = text.partition(".")
    if text in PLAIN:
        return Ref(of=cast("Source", text))
    if head == "item":
        return _with_field("item", None, rest) if text != "item." else None
    if head in ("input", "setting"):
        return _named(head, rest)
    before = "previous." if head == "previous" else ""
    found = _STEP.fullmatch(text.removeprefix(before))
    return _of_step(found, before) if found else None


def _named(head: str, rest: str) -> Ref | None:
    name, dot, field = rest.partition(".")
    if not _NAME.fullmatch(name) or (dot and (not field or head == "setting")):
        return None
    return _with_field("input" if head == "input" else "setting", name, field)


def _of_step(found: "re.Match[str]", before: str) -> Ref | None:
    name = found["id"] or found["quoted"]
    kind, dot, field = found["rest"].partition(".")
    output, result = _OF_STEP[before]
    if found["id"] and not is_id(name):
        return None
    if kind == "output" and not dot:
        return Ref(of=output, name=name)
    if kind == "result" and (field or not dot):
        return _with_field(result, name, field)
    return None


def _with_field(of: Source, name: str | None, field: str) -> Ref | None:
    if field and not _FIELD.fullmatch(field):
        return None
    return Ref(of=of, name=name, field=field or None)


# -- the way back ----------------------------------------------------------------------------------


def write(template: Template) -> str:
    """The text that `parse` turns into this template."""
    texts = []
    for part, after in zip_longest(template, template[1:]):
        if isinstance(part, Ref):
            texts.append("{{" + write_ref(part) + "}}")
        else:
            texts.append(_escaped(part.text, before_ref=isinstance(after, Ref)))
    return "".join(texts)


def _escaped(text: str, *, before_ref: bool) -> str:
    tail = ""
    if before_ref:
        found = cast("re.Match[str]", _TAIL.search(text))
        text, tail = text[: found.start()], found[1] * 2 + found[2]
    return _BRACES.sub(lambda m: f"{m[1] * 2}\\{m[2]}", text) + tail


def write_ref(ref: Ref) -> str:
    """A reference without its braces."""
    name = ref.name or ""
    step = f"steps.{name}" if is_id(name) else f"steps['{name}']"
    head = {
        "input": f"input.{name}",
        "setting": f"setting.{name}",
        "output": f"{step}.output",
        "result": f"{step}.result",
        "previous_output": f"previous.{step}.output",
        "previous_result": f"previous.{step}.result",
    }
    written = head.get(ref.of, ref.of) + (f".{ref.field}" if ref.field else "")
    return "outer." * ref.up + written + (" | json" if ref.json else "")
