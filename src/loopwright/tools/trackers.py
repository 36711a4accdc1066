"""The tools of the trackers: artifacts, todos, sprints, projects, skills."""

from collections.abc import Callable

from loopwright.model.chat import ChatTool
from loopwright.model.record import JsonValue
from loopwright.model.trackers import ARTIFACT_TYPES, MOST_TODOS, PRIORITIES, TODO_STATUSES, Item
from loopwright.tools.builtin import Bench, BuiltinCall, BuiltinTool, ToolLimit, schema, text, whole
from loopwright.tools.results import ToolCallResult, ToolRefusal, json_outcome
from loopwright.tools.tracker_scope import TrackerScope

TITLE = text("Title", most=500)
ID = text("Its id, or the beginning of it", most=100)
BODY = text("The whole content")
_LONGEST = 200
MOST_MEMORIES = 100
MEMORY_CHARS = 4_000


def _one_of(words: tuple[str, ...], description: str) -> JsonValue:
    return {"type": "string", "enum": list(words), "description": description}


def _tool(
    name: str,
    description: str,
    arguments: dict[str, JsonValue],
    work: Callable[[TrackerScope, BuiltinCall], ToolCallResult],
) -> BuiltinTool:
    async def done(bench: Bench, call: BuiltinCall) -> ToolCallResult:
        if bench.tracker_scope is None:
            raise ToolRefusal("no-trackers", "there are no trackers here")
        return work(bench.tracker_scope, call)

    # Every change has the key of its call, so repeating it changes nothing.
    return BuiltinTool(
        spec=ChatTool(name=name, description=description, schema=arguments),
        limit=ToolLimit(seconds=60),
        repeatable=True,
        async_work=done,
    )


def _given(call: BuiltinCall, *names: str) -> dict[str, JsonValue]:
    return {name: call.arguments[name] for name in names if name in call.arguments}


def _shown(item: Item) -> dict[str, JsonValue]:
    """An item without its content, for lists."""
    kept = {name: value for name, value in item.values.items() if name != "content"}
    size = len(item.text("content"))
    more: dict[str, JsonValue] = {"size": size} if size else {}
    return {"id": item.id, "version": item.version, **kept, **more}


# -- artifacts -------------------------------------------------------------------------------------


def _artifacts(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    wanted = call.text("type")
    found = [one for one in tracker_scope.all("artifact") if wanted in ("", one.text("type"))]
    return json_outcome({"artifacts": [_shown(one) for one in found]})


def _artifact(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    found = tracker_scope.get("artifact", call.text("id"))
    number = call.number("version", 0)
    versions = tracker_scope.versions("artifact", found)
    if number:
        older = [one for one in versions if one.version == number]
        if not older:
            there = ", ".join(str(one.version) for one in versions)
            raise ToolRefusal("not-found", f"there is no version {number}; there are {there}")
        found = older[0]
    return json_outcome({"id": found.id, "version": found.version, **found.values})


def _make_artifact(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    values = _given(call, "type", "title", "content")
    return ToolCallResult(
        text=tracker_scope.add("artifact", call.key, [{**values, "project": tracker_scope.project}])
    )


def _write_artifact(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    values = _given(call, "title", "content")
    return ToolCallResult(text=tracker_scope.update("artifact", call.key, call.text("id"), values))


def _drop_artifact(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return ToolCallResult(text=tracker_scope.drop("artifact", call.key, call.text("id")))


# -- todos -----------------------------------------------------------------------------------------


def _todos(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    wanted = call.text("status")
    found = [one for one in tracker_scope.all("todo") if wanted in ("", one.text("status"))]
    return json_outcome({"todos": [_shown(one) for one in found]})


def _add_todos(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    given = call.arguments.get("todos")
    todos = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    return ToolCallResult(text=tracker_scope.add_todos(call.key, todos))


def _write_todo(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    values = _given(call, "title", "status", "priority")
    return ToolCallResult(text=tracker_scope.update("todo", call.key, call.text("id"), values))


def _end_todo(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return ToolCallResult(text=tracker_scope.end_todo(call.key, call.text("id")))


def _drop_todo(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return ToolCallResult(text=tracker_scope.drop("todo", call.key, call.text("id")))


# -- sprints, projects, skills ---------------------------------------------------------------------


def _sprints(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return json_outcome({"sprints": [_shown(one) for one in tracker_scope.all("sprint")]})


def _add_sprint(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    values = _given(call, "title", "criteria", "max_review_rounds")
    return ToolCallResult(text=tracker_scope.add_sprint(call.key, values))


def _move_sprint(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    moved = tracker_scope.move_sprint(
        call.key, call.text("id"), call.text("status"), call.text("summary")
    )
    return ToolCallResult(text=moved)


def _projects(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return json_outcome({"projects": tracker_scope.projects()})


def _skills(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    known = tracker_scope.skills().values()
    return json_outcome({"skills": [{"name": o.name, "description": o.description} for o in known]})


def _skill(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return ToolCallResult(text=tracker_scope.skill(call.text("name")).text)


# -- memory ----------------------------------------------------------------------------------------


def _memories(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    found = tracker_scope.memories(call.text("query"))[-MOST_MEMORIES:]
    return json_outcome({"memories": [{"id": one.id, **one.values} for one in found]})


def _remember(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return ToolCallResult(text=tracker_scope.remember(call.key, call.text("text")))


def _forget(tracker_scope: TrackerScope, call: BuiltinCall) -> ToolCallResult:
    return ToolCallResult(text=tracker_scope.forget(call.key, call.text("id")))


_OPEN_STATUSES = tuple(one for one in TODO_STATUSES if one != "completed")
_TODO: JsonValue = schema(
    ("title",), title=TITLE, priority=_one_of(PRIORITIES, "How urgent"), parent=ID
)

TRACKER_TOOLS: tuple[BuiltinTool, ...] = (
    _tool(
        "artifact.list",
        "Artifacts of this session: plans, documents, code, configuration, and as loop_output "
        "the output of each stage. Without their content.",
        schema((), type=text("Only of this type")),
        _artifacts,
    ),
    _tool(
        "artifact.read",
        "An artifact with its whole content, in its newest version or in an older one.",
        schema(("id",), id=ID, version=whole("An older version")),
        _artifact,
    ),
    _tool(
        "artifact.create",
        "Store a result for the others in this session.",
        schema(
            ("type", "title", "content"),
            type=_one_of(ARTIFACT_TYPES, "What it is"),
            title=TITLE,
            content=BODY,
        ),
        _make_artifact,
    ),
    _tool(
        "artifact.update",
        "Write a new version of an artifact; older versions stay readable.",
        schema(("id", "content"), id=ID, title=TITLE, content=BODY),
        _write_artifact,
    ),
    _tool(
        "artifact.delete",
        "Delete an artifact with all its versions.",
        schema(("id",), id=ID),
        _drop_artifact,
    ),
    _tool(
        "todo.list",
        "The tasks of this session.",
        schema((), status=_one_of(TODO_STATUSES, "Only those")),
        _todos,
    ),
    _tool(
        "todo.add",
        f"Add 1 to {MOST_TODOS} todos.",
        schema(
            ("todos",),
            todos={"type": "array", "items": _TODO, "minItems": 1, "maxItems": MOST_TODOS},
        ),
        _add_todos,
    ),
    _tool(
        "todo.update",
        "Change a todo: its title, its priority, or that it is under way or given up.",
        schema(
            ("id",),
            id=ID,
            title=TITLE,
            status=_one_of(_OPEN_STATUSES, "Status of the todo"),
            priority=_one_of(PRIORITIES, "How urgent"),
        ),
        _write_todo,
    ),
    _tool("todo.complete", "A todo is done.", schema(("id",), id=ID), _end_todo),
    _tool("todo.delete", "Take a todo away.", schema(("id",), id=ID), _drop_todo),
    _tool(
        "sprint.list",
        "Sprints of this session: one for each round of its loops, and others that were planned.",
        schema(()),
        _sprints,
    ),
    _tool(
        "sprint.create",
        "Plan a sprint of your own.",
        schema(
            ("title",),
            title=TITLE,
            criteria=text("When it counts as complete"),
            max_review_rounds={"type": "integer", "minimum": 1, "maximum": 5},
        ),
        _add_sprint,
    ),
    _tool(
        "sprint.move",
        "planned -> in_progress -> review -> complete or rejected; rejected -> in_progress.",
        schema(("id", "status"), id=ID, status=text("What it becomes"), summary=text("Why")),
        _move_sprint,
    ),
    _tool("project.list", "Projects; the one of this run is marked.", schema(()), _projects),
    _tool("skill.list", "Texts that tell how things are done here.", schema(()), _skills),
    _tool(
        "skill.read",
        "How something is done, in full.",
        schema(("name",), name=text("The name of the skill", most=_LONGEST)),
        _skill,
    ),
    _tool(
        "memory.search",
        f"What was remembered in this workspace, the newest {MOST_MEMORIES} entries that have all "
        "words of the query.",
        schema((), query=text("Words; without them, everything")),
        _memories,
    ),
    _tool(
        "memory.save",
        "Remember something for later runs in this workspace.",
        schema(("text",), text=text("What to remember", most=MEMORY_CHARS)),
        _remember,
    ),
    _tool("memory.delete", "Forget an entry.", schema(("id",), id=ID), _forget),
)
