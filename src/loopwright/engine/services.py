"""What an actor uses besides the log and the performer: texts, patterns, expressions, the clock.

Long texts are named by the hash of their content; patterns match in linear time; JSON Schema is
checked by a library that is imported when it is first needed. Timers are those of the event loop,
so none fires early when the wall clock is set back.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Literal, Protocol, TypeAlias, cast

import msgspec
import re2

from loopwright.kernel.state import ExpressionNames, ExpressionValue
from loopwright.model.plan import content_hash, stored_content
from loopwright.model.record import Blob, JsonValue, Text

Wants: TypeAlias = Literal["bool", "list"]

INLINE_BYTES = 1_024
HEAD_CHARS = 400
RECENT_TEXTS = 64
RECENT_CHARS = 4_000_000


class SchemaCheck(Protocol):
    """Says why a value does not fit a JSON Schema, or None."""

    def __call__(self, schema: dict[str, JsonValue], value: JsonValue) -> str | None: ...


def stored_text(text: str) -> tuple[Text, dict[str, bytes]]:
    """A text as an event may contain it, and the content to be stored for it."""
    if len(text) <= INLINE_BYTES // 4 and text.isascii():
        return text, {}
    try:
        data = text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which no store accepts
        data = text.encode(errors="replace")
        text = data.decode()
    if len(data) <= INLINE_BYTES:
        return text, {}
    name = content_hash(data)
    return Blob(blob=name, size=len(data), head=text[:HEAD_CHARS]), {name: data}


def evaluated(text: str, scope: ExpressionNames, *, wants: Wants) -> ExpressionValue:
    """The value of an expression; only the steps that it uses are looked up."""
    # The evaluator costs 40 ms to load, and most runs have no expression.
    from loopwright.syntax import cel  # noqa: PLC0415 - see above

    program = cel.compile_cel(text, step_ids=scope.step_ids, wants=wants)
    if isinstance(program, list):
        return ExpressionValue(problem="; ".join(problem.message for problem in program))
    named = scope.step_ids if program.uses_steps is None else program.uses_steps
    found = {name: scope.step(name) for name in named}
    steps = {name: value for name, value in found.items() if value is not None}
    variables: dict[str, JsonValue] = {**scope.variables, "steps": dict(steps)}
    said = program.evaluate(variables)
    if isinstance(said, cel.Truth):
        return ExpressionValue(value=said.holds)
    if isinstance(said, cel.Items):
        return ExpressionValue(value=said.values)
    return ExpressionValue(problem=said.message, missing=isinstance(said, cel.Missing))


class TextServices:
    """Kernel services over a blob store. `fresh` collects content that the next append must
    include.
    """

    def __init__(self, load: Callable[[str], bytes], check_schema: SchemaCheck) -> None:
        self._load = load
        self._check_schema = check_schema
        self._recent: OrderedDict[str, str] = OrderedDict()
        self._recent_chars = 0
        self.fresh: dict[str, bytes] = {}
        self._on_its_way: Mapping[str, bytes] = {}  # returned, and maybe not yet stored

    def read(self, text: Text | None) -> str:
        if text is None or isinstance(text, str):
            return text or ""
        known = self._recent.get(text.blob)
        if known is None:
            fresh = self.fresh.get(text.blob) or self._on_its_way.get(text.blob)
            known = (fresh or stored_content(self._load, text.blob)).decode()
            self._remember(text.blob, known)
        return known

    def keep(self, text: str) -> Text:
        kept, content = stored_text(text)
        if content:
            self.fresh.update(content)
        return kept

    def keep_bytes(self, data: bytes) -> Blob:
        """The same for content that is not text."""
        name = content_hash(data)
        self.fresh[name] = data
        return Blob(blob=name, size=len(data))

    def take_fresh(self) -> Mapping[str, bytes]:
        """Content that was added since the last call."""
        fresh, self.fresh = self.fresh, {}
        self._on_its_way = fresh
        return fresh

    def give_back(self, blobs: Mapping[str, bytes]) -> None:
        """Content that was returned and not stored: the next append must include it."""
        self.fresh = {**blobs, **self.fresh}

    def matches(self, pattern: str, text: str, *, ignore_case: bool) -> str | None:
        found = compiled(pattern, ignore_case=ignore_case).search(text)
        return None if found is None else str(found.group(0))

    def evaluate(self, text: str, scope: ExpressionNames, *, wants: Wants) -> ExpressionValue:
        return evaluated(text, scope, wants=wants)

    def schema_problem(self, schema: dict[str, JsonValue], value: JsonValue) -> str | None:
        return self._check_schema(schema, value)

    def _remember(self, name: str, text: str) -> None:
        if name in self._recent:
            return
        self._recent[name] = text
        self._recent_chars += len(text)
        while len(self._recent) > RECENT_TEXTS or (
            self._recent_chars > RECENT_CHARS and len(self._recent) > 1
        ):
            _, oldest = self._recent.popitem(last=False)
            self._recent_chars -= len(oldest)


class _Match(Protocol):
    def group(self, number: int) -> str: ...


class _Pattern(Protocol):
    def search(self, text: str) -> _Match | None: ...


@lru_cache(maxsize=256)
def compiled(pattern: str, *, ignore_case: bool) -> _Pattern:
    """A pattern, compiled once; re2 matches in time linear in the text."""
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    return cast(_Pattern, re2.compile(pattern, options))


# A timer checks at least this often, so that a wall clock that was set forward is noticed.
LONGEST_NAP_S = 60.0

# The size of normal clock corrections; a larger difference is a jump.
JUMP_MS = 60_000

# Continues while the machine sleeps, which the other clock does not on every system.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """The time of the system clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Monotonic time, independent of the wall clock."""
    return time.clock_gettime_ns(_STEADY) // 1_000_000


class SystemClock:
    """Wall time for records, the event loop's timers for waiting.

    A jump of the wall clock is ignored while the process lives: otherwise a run would have lasted a
    year, and its time limit would be reached. Times continue from before the jump until the next
    start.
    """

    def __init__(
        self, wall: Callable[[], int] = wall_ms, steady: Callable[[], int] = steady_ms
    ) -> None:
        self._wall, self._steady = wall, steady
        self._is_system = wall is wall_ms and steady is steady_ms
        self._ahead = wall() - steady()  # of the wall clock, without its jumps

    def now_ms(self) -> int:
        if self._is_system:  # as below, without the calls: it is asked for every event
            steady = time.clock_gettime_ns(_STEADY) // 1_000_000
            ahead = time.time_ns() // 1_000_000 - steady
        else:
            steady = self._steady()
            ahead = self._wall() - steady
        if ahead != self._ahead and abs(ahead - self._ahead) <= JUMP_MS:
            self._ahead = ahead
        return steady + self._ahead

    def jump_ms(self) -> int:
        """How far the wall clock has jumped; 0 if it has not."""
        away = self._wall() - self._steady() - self._ahead
        return away if abs(away) > JUMP_MS else 0

    def call_at(self, when_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        handle: list[asyncio.TimerHandle] = []

        def look() -> None:
            left = (when_ms - self.now_ms()) / 1_000
            if left <= 0:
                action()
            else:
                handle[:] = [loop.call_later(min(left, LONGEST_NAP_S), look)]

        handle[:] = [loop.call_later(0, look)]
        return lambda: handle[0].cancel()

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, action).cancel


DETAIL_CHARS = 500

Schema: TypeAlias = dict[str, JsonValue]


class _Problem(Protocol):
    """An error of the library about a value."""

    message: str
    absolute_path: Iterable[str | int]


Found: TypeAlias = Iterator[_Problem]


class _Validator(Protocol):
    """A validator of the library."""

    def iter_errors(self, instance: JsonValue) -> Found: ...

    def descend(
        self,
        instance: JsonValue,
        schema: JsonValue,
        path: str | int | None = None,
        schema_path: str | int | None = None,
    ) -> Found: ...


def schema_problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """Why a value does not match a schema: the first problem with its place, or None.

    Nothing matches an invalid schema. References must be inside the schema: nothing is ever
    fetched.
    """
    try:
        validator = _validator(msgspec.json.encode(_without_hidden_patterns(schema, value)))
        errors = sorted(validator.iter_errors(value), key=lambda e: list(map(str, e.absolute_path)))
    except Exception as error:  # of the schema: unknown type, bad pattern, unresolved reference
        detail = str(error).partition("\n")[0][:DETAIL_CHARS]
        return f"the schema itself cannot be used: {type(error).__name__.lstrip('_')}: {detail}"
    if not errors:
        return None
    first = errors[0]
    place = "/".join(str(part) for part in first.absolute_path) or "the value itself"
    return f"{place}: {_clip(first.message)}"


def _clip(text: str) -> str:
    """A message quotes the value, which may be long: the explanation is at its end."""
    half = DETAIL_CHARS // 2
    return text if len(text) <= DETAIL_CHARS else f"{text[:half]} … {text[-half:]}"


@lru_cache(maxsize=128)
def _validator(schema: bytes) -> _Validator:
    # Importing the library costs 60 ms of start-up, and most runs have no schema.
    jsonschema = import_module("jsonschema")
    known = import_module("jsonschema_specifications").REGISTRY
    loaded = msgspec.json.decode(schema)
    kind = jsonschema.validators.validator_for(loaded, jsonschema.Draft202012Validator)
    kind.check_schema(loaded)
    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    linear = jsonschema.validators.extend(kind, ours)
    # Without this, a part with a `$schema` of its own is checked without these functions.
    linear.evolve = import_module("attrs").evolve
    return cast(_Validator, linear(loaded, registry=known))


def _pattern(validator: _Validator, pattern: str, instance: JsonValue, _: Schema) -> Found:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield _problem(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: _Validator, patterns: Schema, instance: JsonValue, _: Schema
) -> Found:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: _Validator, allowed: JsonValue, instance: JsonValue, schema: Schema
) -> Found:
    if not isinstance(instance, dict):
        return
    known, patterns = _mapping(schema.get("properties")), _mapping(schema.get("patternProperties"))
    extra = [n for n in instance if n not in known and not any(_found(p, n) for p in patterns)]
    if allowed is False and extra:
        yield _problem(f"Additional properties are not allowed: {', '.join(map(repr, extra))}")
    elif isinstance(allowed, dict):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)


def _without_hidden_patterns(schema: Schema, value: JsonValue) -> Schema:
    """The schema, with `patternProperties` written as `properties` for the names in the value.
    Otherwise the library would match the patterns itself to find unevaluated properties.
    """
    text = msgspec.json.encode(schema)
    if b'"unevaluatedProperties"' not in text or b'"patternProperties"' not in text:
        return schema
    return _mapping(_spelled_out(schema, sorted(_names(value))))


def _spelled_out(schema: JsonValue, names: list[str]) -> JsonValue:
    if isinstance(schema, list):
        return [_spelled_out(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _spelled_out(one, names) for key, one in schema.items()}
    patterns = made.pop("patternProperties", None)
    if not isinstance(patterns, dict):
        return made if patterns is None else {**made, "patternProperties": patterns}
    known = _mapping(made.get("properties"))
    for name in names:
        fitting = [inner for pattern, inner in patterns.items() if _found(pattern, name)]
        if fitting:
            known = {**known, name: {"allOf": [known.get(name, True), *fitting]}}
    return {**made, "properties": known}


def _names(value: JsonValue) -> set[str]:
    """The names of all properties in a value."""
    if isinstance(value, list):
        return {name for one in value for name in _names(one)}
    if not isinstance(value, dict):
        return set()
    return {*value, *(name for one in value.values() for name in _names(one))}


def _mapping(value: JsonValue) -> Schema:
    return value if isinstance(value, dict) else {}


def _found(pattern: str, text: str) -> bool:
    return compiled(pattern, ignore_case=False).search(text) is not None


def _problem(message: str) -> _Problem:
    return cast(_Problem, import_module("jsonschema").ValidationError(message))
