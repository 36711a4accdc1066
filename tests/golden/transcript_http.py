"""Each GET route of the OpenAPI document, asked of a server with a small fixed data set."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.golden import transcript_runs
from tests.golden.files import FOLDER
from tests.golden.transcript_streams import stream_text
from tests.golden.transcript_text import Normaliser
from tests.http.served import Reply, Served, wait_for

JSON = {"Accept": "application/json"}
MOST_TEXT = 6_000  # a longer text is shown by its digest

NOT_ASKED: dict[str, str] = {
    "/openapi.json": "compared with docs/reference/openapi.json by the tests of the documents",
}
"""Routes without a transcript, and why."""

MORE: dict[str, tuple[str, ...]] = {
    "/api/v1/runs": ("?status=failed", "?limit=1", "?name=gated", "?status=nothing"),
    "/api/v1/runs/{run}": (),
    "/api/v1/runs/{run}/events": ("?limit=2", "?after=3", "?tail=1", "?after=x"),
    "/api/v1/runs/{run}/logs": ("?limit=1",),
    "/api/v1/runs/{run}/output": ("?path=main", "?path=nothing"),
    "/api/v1/spend": ("?by=day", "?by=definition", "?by=nothing"),
    "/api/v1/projects": ("?status=completed",),
    "/api/v1/audit": ("?limit=2",),
    "/api/v1/notifications": ("?waiting=true", "?level=nothing"),
    "/v1/runs/{run}/events": ("?own=true",),
}
"""Queries that are asked in addition to the plain path."""

WITHOUT_PLAIN = frozenset({"/api/v1/runs/{run}/output"})


def get_routes() -> list[str]:
    """The paths of the OpenAPI document that are read."""
    text = (FOLDER.parents[1] / "docs" / "reference" / "openapi.json").read_text(encoding="utf-8")
    return sorted(path for path, how in json.loads(text)["paths"].items() if "get" in how)


def fill(server: Served) -> dict[str, str]:
    """Make the data set; the values of the parameters of paths."""
    folder = server.folder
    done = transcript_runs.start(server, "native")
    transcript_runs.finish(server, "native", done)
    failed = transcript_runs.start(server, "failure")
    transcript_runs.finish(server, "failure", failed)
    gated = transcript_runs.start(server, "gate")
    server.until(gated, "waiting")
    session = _made(server, "/api/v1/sessions", {"title": "Morning"})
    replies = transcript_runs.RUNS["coqui"].replies
    plan = {"when": {"agent": "plan"}, "text": "The plan."}
    agent = server.script(plan, plan, *replies, name="harness.yaml")
    project = _made(server, "/api/v1/projects", {"title": "Auth system", "slug": "auth"})
    goal = {"definition": "harness", "goal": "Build it", "agent": agent}
    where = {"session_id": session["id"], "project_id": project["id"]}
    loop = _made(server, "/api/v1/loops", {**goal, **where})["loop"]["id"]
    server.until(loop, *transcript_runs.ENDED)
    last = {
        done: "run.completed",
        failed: "run.failed",
        gated: "gate.opened",
        loop: "loop.completed",
    }
    for run, kind in last.items():
        wait_for(partial(_is_told, server, run, kind), partial(_kinds, server, run))
    _made(server, "/api/v1/projects/auth/sprints", {"title": "Login", "criteria": "One logs in"})
    for place in (f"runs/{done}", f"sessions/{session['id']}"):
        _made(server, f"/api/v1/{place}/todos", {"title": "Write it", "priority": "high"})
    given = {
        place: server(
            "POST",
            f"/api/v1/{place}/artifacts?name=note.txt",
            raw=b"A note.\n",
            headers={"Content-Type": "application/octet-stream"},
        )
        for place in (f"runs/{done}", f"sessions/{session['id']}")
    }
    assert [one.status for one in given.values()] == [201, 201], given
    artifacts = {place: one.json["artifacts"][0]["id"] for place, one in given.items()}
    text = server.definition(server.script("one", name="stored.yaml"))
    stored = server("PUT", "/api/v1/definitions/work", {"text": text, "dialect": "native"})
    assert stored.status in (200, 201), stored.body
    roles = transcript_runs.RUNS["coqui"].definition
    own = {key: value for key, value in roles.items() if key != "name"}
    kept = server("PUT", "/api/v1/loops/definitions/mine", own, headers={"If-None-Match": "*"})
    assert kept.status in (200, 201), kept.body
    _made(server, "/api/v1/hooks", {"name": "night", "stored": "work"})
    _made(server, "/api/v1/webhooks", {"url": "http://127.0.0.2:8443/x"})
    _made(server, "/api/v1/tokens", {"label": "ci", "role": "viewer"})
    _made(server, "/api/v1/users", {"name": "ann", "role": "editor", "password": "correct horse"})
    _made(server, "/api/v1/agents", {"name": "worker", "spec": f"script:{folder}/harness.yaml"})
    (folder / "approved").mkdir()
    _made(server, "/api/v1/workspaces", {"path": str(folder / "approved")})
    assistant = _made(server, "/api/agents", {"name": "fixer", "loopEnabled": True, "agent": agent})
    return {
        "run": done,
        "failed": failed,
        "gated": gated,
        "loop": loop,
        "iteration": f"{loop}.1",
        "session": str(session["id"]),
        "project": "auth",
        "name": "work",
        "agent": str(assistant["data"]["id"]),
        "run artifact": artifacts[f"runs/{done}"],
        "session artifact": artifacts[f"sessions/{session['id']}"],
    }


def _is_told(server: Served, run: str, kind: str) -> bool:
    return kind in _kinds(server, run)


def _kinds(server: Served, run: str) -> list[str]:
    told = server("GET", f"/api/v1/notifications?run={run}").json["notifications"]
    return [str(one["kind"]) for one in told]


def _made(server: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = server("POST", path, body)
    assert reply.status in (200, 201), (path, reply.status, reply.body)
    return dict(reply.json)


def paths_of(route: str, values: Mapping[str, str]) -> list[str]:
    """What is asked of a route: each of its runs, and each query."""
    kinds = ["run"]
    if "{run}" in route and "{artifact}" not in route:
        kinds += ["failed", "gated", "missing"]
    found: list[str] = []
    for kind in kinds:
        artifact = "session artifact" if "{session}" in route else "run artifact"
        name = "mine" if "/loops/definitions/" in route else values["name"]
        run = values.get(kind, "run_0")
        filled = {**values, "run": run, "artifact": values[artifact], "name": name}
        path = route.format_map(filled)
        if route not in WITHOUT_PLAIN:
            found.append(path)
        if kind == "run":
            found += [path + query for query in MORE.get(route, ())]
    if "{" in route and "{run}" not in route:
        found.append(re.sub(r"\{\w+\}", "nothing", route))
    return found


def ask(server: Served, route: str, values: Mapping[str, str]) -> str:
    """The answers of a route, normalised."""
    words = {
        str(server.folder): "<folder>",
        f"127.0.0.1:{server.port}": "<server-address>",
    }
    more = ((r"\b[0-9a-f]{12}\b", "<token-id>"), (r'"cursor": "[^"]+"', '"cursor": "<cursor>"'))
    normaliser = Normaliser(words, more)
    for kind in ("run", "failed", "gated", "loop"):  # the same labels whatever is asked first
        normaliser.text(values[kind])
    parts: list[str] = []
    for path in paths_of(route, values):
        reply = server("GET", path, headers=JSON)
        kind = reply.headers.get("content-type", "no content type")
        head = f"GET {normaliser.inline(path)}\n{reply.status} {kind}\n"
        parts.append(head + _body(route, reply, kind, normaliser))
    return "\n".join(parts)


def _body(route: str, reply: Reply, kind: str, normaliser: Normaliser) -> str:
    if "json" in kind:
        value = normaliser.json(json.loads(reply.body))
        return json.dumps(_settled(value), ensure_ascii=False, indent=1) + "\n"
    text = reply.body.decode()
    if route == "/metrics":
        lines = {re.sub(r" [0-9.e+-]+$", " <number>", line) for line in text.splitlines()}
        return "".join(f"{line}\n" for line in sorted(map(normaliser.inline, lines)))
    if "event-stream" in kind:
        return stream_text(text, normaliser)
    found = normaliser.text(text)
    if len(found) > MOST_TEXT:
        digest = hashlib.sha256(found.encode()).hexdigest()
        return f"<text of {len(found)} characters, sha256 {digest}>\n"
    return found + ("" if found.endswith("\n") else "\n<no line end>\n")


def _settled(value: Any) -> Any:
    """Fields whose values are made at random, under their names."""
    if isinstance(value, dict):
        named = ("next", "cursor", "next_cursor", "request_id", "nonce")
        return {
            key: f"<{key}>" if key in named and isinstance(one, str) and one else _settled(one)
            for key, one in value.items()
        }
    return [_settled(one) for one in value] if isinstance(value, list) else value
