"""Use cases are declared in one table, and interfaces only call them."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType

import pytest

from loopwright.errors import LoopwrightError
from loopwright.http.requests import Route
from loopwright.http.route_table import FAMILIES
from loopwright.http.socket_endpoint import TABLE as SOCKET_COMMANDS
from loopwright.operations.api_types import Request
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    FileContent,
    HttpRoute,
    Operation,
    operation,
)
from loopwright.operations.use_cases.table import TABLE
from tests.house.source_tree import SRC, dotted, nodes, shown, source_files

OPERATIONS = SRC / "operations"
OF_OTHER_SYSTEMS = ("/v1/", "/api/agents", "/api/v1/loops", "/api/v1/assistant", "/api/v1/sessions")
BEGIN_WORK = {"runs.start", "runs.resume"}
"""Commands that a server which is about to stop refuses."""
CALLS = ("service.start", "service.answer", "service.pause", "service.resume")
"""Methods that only operations call."""

NOT_OPERATIONS = {
    "GET /healthz",
    "GET /readyz",
    "GET /api/v1/health",
    "GET /api/version",
    "GET /metrics",
    "GET /openapi.json",
    "GET /",
    "GET /setup",
    "GET /setup.js",
    "GET /decide",
    "GET /decide.js",
    "unsubscribe",
}
"""What is not a use case: pages, the state of the server, and the end of a subscription. This list
may only become shorter.
"""


def own_routes() -> list[Route]:
    """Routes of our own API that take and return JSON."""
    return [
        route
        for family in FAMILIES
        for route in family.routes
        if route.path.startswith("/api/v1/")
        and not route.path.startswith(OF_OTHER_SYSTEMS)
        and route.need not in ("open", "signed")
        and not route.streams
        and route.media == "application/json"
        and route.takes is None
    ]


def derived() -> set[tuple[str, str]]:
    return {
        (one.http.method, path)
        for one in TABLE.values()
        if one.http is not None
        for path in one.http.paths
    }


def calls_operation(function: Callable[..., object]) -> bool:
    """Whether a function names an operation, or another function or method that does."""
    seen: set[object] = set()
    left: list[object] = [function]
    while left:
        one = left.pop()
        one = one.__func__ if isinstance(one, MethodType) else one
        if isinstance(one, Operation):
            return True
        if one in seen or not isinstance(one, FunctionType):
            continue
        seen.add(one)
        if one.__module__.startswith("loopwright."):
            left += _named_in(one)
    return False


def _named_in(function: FunctionType) -> list[object]:
    """The values that the names in a function stand for: of its module, of the modules, tables and
    classes that it names, and of its own class.
    """
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    found += [cell.cell_contents for cell in function.__closure__ or ()]
    owner = function.__globals__.get(function.__qualname__.partition(".")[0])
    annotations = getattr(owner, "__annotations__", {})
    owners = [*found, owner, *(one for one in annotations.values() if isinstance(one, type))]
    owners += [one.__annotations__.get("return") for one in found if isinstance(one, FunctionType)]
    for one in owners:
        if isinstance(one, ModuleType | type):
            found += [getattr(one, name) for name in names if hasattr(one, name)]
        elif isinstance(one, Mapping):
            found += list(one.values())
    return [one for one in found if isinstance(one, FunctionType | MethodType | Operation)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def test_route_of_the_api_is_derived_from_the_table() -> None:
    """A new route is an operation; signing out, which also ends a cookie, calls one."""
    missing = [one for one in own_routes() if (one.method, one.path) not in derived()]
    assert [f"{one.method} {one.path}" for one in missing] == ["DELETE /api/v1/session"]


def entry_points() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every HTTP route, socket command and MCP tool, with the function that serves it."""
    for route in (route for family in FAMILIES for route in family.routes):
        yield f"{route.method} {route.path}", route.handle
    for event, command in SOCKET_COMMANDS.items():
        yield event, command.do
    for tools in (LoopTools._loops_offered, LoopTools._gates_offered):
        for name in tools.__code__.co_names:
            if isinstance(getattr(LoopTools, name, None), FunctionType):
                yield f"tool {name.removeprefix('_')}", getattr(LoopTools, name)


def test_interface_reaches_its_use_case_through_the_table() -> None:
    """Each entry point calls an operation, itself or through other functions."""
    missing = {name for name, function in entry_points() if not calls_operation(function)}
    assert missing == NOT_OPERATIONS


def test_operation_with_a_route_is_served_as_declared() -> None:
    """Role, summary, status and behaviour while draining are those of the declaration."""
    routes = {(one.method, one.path): one for family in FAMILIES for one in family.routes}
    for one in TABLE.values():
        if one.http is None:
            continue
        route = routes[one.http.method, one.http.path]
        assert (route.need, route.say, route.status) == (one.role, one.summary, one.http.status)
        response = None if one.response in (type(None), FileContent) else one.response
        assert (route.answer, route.draining) == (response, one.draining)


def test_command_that_begins_work_is_refused_while_draining() -> None:
    """Commands that end work or record a decision are served until the end."""
    commands = {name: one for name, one in TABLE.items() if one.kind == "command"}
    refused = {name for name, one in commands.items() if one.draining == "refuse"}
    assert refused & BEGIN_WORK == BEGIN_WORK
    assert {"runs.stop", "runs.pause", "gates.approve"} & refused == set()
    assert SOCKET_COMMANDS["run:resume"].draining == TABLE["runs.resume"].draining
    assert SOCKET_COMMANDS["loop:start"].draining == TABLE["runs.start"].draining


def test_command_without_drain_behaviour_or_audit_action_cannot_be_declared() -> None:
    """Nobody forgets what happens at a server that is about to stop."""

    async def handle(_app: App, _caller: Caller, _request: Request) -> None: ...

    for missing in ({"audit": ("x",)}, {"draining": "serve"}):
        with pytest.raises(LoopwrightError, match="declares"):
            operation(
                "x.y",
                "command",
                "editor",
                "x",
                http=HttpRoute("POST", "/x"),
                **missing,
            )(handle)


def test_operation_is_named_by_noun_and_verb() -> None:
    """The name says the module, and the table has every operation of it."""
    assert all(name.count(".") == 1 for name in TABLE)
    assert all(isinstance(one, Operation) for one in TABLE.values())


def test_interface_does_not_assemble_a_use_case() -> None:
    """Only operations build the start of a run, and start, answer, pause and resume runs."""
    found = [
        f"{shown(file)}:{node.lineno}"
        for file in source_files()
        if not file.is_relative_to(OPERATIONS)
        for node in nodes(file)
        if isinstance(node, ast.Call)
        and (dotted(node.func) == "RunStart" or dotted(node.func).endswith(CALLS))
    ]
    assert found == []


def test_start_of_a_run_has_one_place() -> None:
    """`Service.start` is called in `run_start.py` alone, behind the checks of every start."""
    callers = {
        file.name
        for file in source_files()
        for node in nodes(file)
        if isinstance(node, ast.Call) and dotted(node.func).endswith("service.start")
    }
    assert callers == {"run_start.py"}


def test_start_request_has_one_place() -> None:
    """One function builds the request of a start from what an interface has, and one turns it into
    a run that can be started. Judges, chats and the assistant have plans that are written in code.
    """
    assert calls_of("LocalStart", "StartRun") == {"operations/run_start.py": 1}
    plans_in_code = {"operations/evaluations.py": 1, "operations/messages.py": 2}
    assert calls_of("RunStart") == {"operations/run_start.py": 1, **plans_in_code}


def test_stop_policy_has_one_place() -> None:
    """One operation stops a run and waits, and nothing else decides how long."""
    assert calls_of("stop_and_wait") == {"operations/use_cases/runs.py": 1}
    assert calls_of("wait_until_stopped") == {"operations/run_control.py": 1}


def calls_of(*names: str) -> dict[str, int]:
    """How often each file calls one of these functions or classes."""
    return dict(
        Counter(
            file.relative_to(SRC).as_posix()
            for file in source_files()
            for node in nodes(file)
            if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in names
        )
    )


def test_server_refuses_new_work_in_one_place() -> None:
    """`draining` is raised by `App.refuse_while_draining` alone."""
    raised = [
        shown(file)
        for file in source_files()
        for node in nodes(file)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and (
            dotted(node.exc.func) == "ServerDraining"
            or (
                dotted(node.exc.func) == "RequestRefusal"
                and any(
                    isinstance(a, ast.Constant) and a.value == "draining" for a in node.exc.args
                )
            )
        )
    ]
    assert raised == ["src/loopwright/operations/use_cases/operation.py"]


WAITS = ("asyncio.sleep", "asyncio.wait", "asyncio.wait_for", "time.sleep", ".unless", ".wait")
LOOKS = ("changed", "events", "nudges", "read", "version")
"""Methods of a log or a service that say which events there are."""
DRIVING = ("engine/", "stores/", "operations/delegating_driver.py")
"""What drives runs and stores events. Interfaces follow it."""


def test_new_events_are_awaited_in_one_place() -> None:
    """One loop waits and looks for new events; SSE, sockets, webhooks, notifications, tools and
    commands are woken by it. Only it asks which runs have changed, besides those who store how far
    they have read.
    """
    files = {file.relative_to(SRC).as_posix(): file for file in source_files()}
    others = {name: file for name, file in files.items() if not name.startswith(DRIVING)}
    loops = {
        f"{name}:{node.lineno}"
        for name, file in others.items()
        for node in nodes(file)
        if isinstance(node, ast.While | ast.For | ast.AsyncFor) and _waits_and_looks(node)
    }
    assert {one.partition(":")[0] for one in loops} == {"operations/run_tail.py"}
    assert len(loops) == 1
    asking = {name for name in calls_of("nudges") if name in others}
    stored = {
        "operations/use_cases/notifications.py",
        "operations/webhooks.py",
        "workers/webhooks.py",
    }
    assert asking == {"operations/run_tail.py", *stored}


def _waits_and_looks(loop: ast.AST) -> bool:
    """Whether a loop waits, and looks itself for events in a log."""
    called = {
        dotted(one.func)
        for one in ast.walk(loop)
        if isinstance(one, ast.Call) and not _is_nothing(one.args)  # others have their turn
    }
    looks = any(
        name in LOOKS and owner.rpartition(".")[2].lstrip("_") in ("log", "service")
        for owner, _, name in (one.rpartition(".") for one in called)
    )
    return looks and any(one.endswith(WAITS) for one in called)


def _is_nothing(arguments: list[ast.expr]) -> bool:
    return [ast.unparse(one) for one in arguments] == ["0"]
