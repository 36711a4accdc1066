"""Whatever fits the committed description of the API, and whatever does not, is answered by it.

`LOOPWRIGHT_EXAMPLES` says how many requests are made in all (default 500, see `make test-api`).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from loopwright.http.context import RequestLimits
from tests.http.served import SECONDS, Served, served
from tests.http.test_loops import start, until

DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
SCHEMA = schemathesis.openapi.from_path(DESCRIPTION)
OPERATIONS = {one.ok().label: one.ok() for one in SCHEMA.get_all_operations()}
EXAMPLES = int(os.environ.get("LOOPWRIGHT_EXAMPLES", "500"))
EACH = max(1, EXAMPLES // (2 * len(OPERATIONS)) + 1)
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
Names = dict[str, list[str]]


@pytest.fixture(scope="module")
def known(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Served, Names]]:
    """A server with something of every kind, and the names of it by parameter."""
    limits = RequestLimits(requests_per_second=1_000_000, sign_ins_per_minute=1_000_000)
    with served(tmp_path_factory.mktemp("served"), limits=limits) as server:
        yield server, furnished(server)


def furnished(server: Served) -> Names:
    """One of everything that has a name."""
    waiting, gate = server.gated()
    session = server("POST", "/api/v1/sessions", {"title": "t"}).json["id"]
    loop = start(server, "Rejected", "APPROVED", session_id=session)["loop"]["id"]
    until(server, loop, "completed")
    text = server.definition(server.script("done"))
    stored = {"text": text}
    server("PUT", "/api/v1/definitions/kept", stored)
    made = server("POST", "/api/agents", {"name": "writer", "agent": server.script("a")}).json
    server("POST", "/api/v1/users", {"name": "ann", "role": "editor"})
    path, data = f"/api/v1/runs/{waiting}/artifacts", {"Content-Type": "application/octet-stream"}
    given = server("POST", f"{path}?name=a.txt", raw=b"hello", headers=data).json
    server("POST", "/api/v1/hooks", {"name": "kept", "stored": "kept"})
    notes = server("GET", "/api/v1/notifications").json["notifications"]
    return {
        "run": [loop, waiting],
        "loop": [loop],
        "iteration": [f"{loop}.1"],
        "session": [session],
        "gate": [gate],
        "artifact": [given["artifacts"][0]["id"]],
        "name": ["kept", "harness", "ann"],
        "agent": [made["data"]["id"]],
        "notification": [one["id"] for one in notes],
    }


ENDING = ("DELETE",)  # takes away what others need
ENDLESS = "/events"  # of a run that waits


def named(case: Case, names: Names, number: int) -> None:
    """Half of the requests are about something that there is."""
    if case.method in ENDING or number % 2:
        return
    for name in case.path_parameters or {}:
        real = names.get(name, [])[: 1 if case.path.endswith(ENDLESS) else None]
        if real:
            case.path_parameters[name] = real[number // 2 % len(real)]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_described(
    known: tuple[Served, Names], label: str, mode: GenerationMode
) -> None:
    """No failure of the server, and no answer in another shape than the description has."""
    (server, names), count = known, iter(range(10**9))
    session = requests.Session()
    session.trust_env = False
    strategy: Any = OPERATIONS[label].as_strategy(generation_mode=mode)

    @seed(1)
    @settings(
        max_examples=EACH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case: Case) -> None:
        named(case, names, next(count))
        headers = {"Authorization": f"Bearer {server.token}"}
        response = case.call(
            base_url=f"http://127.0.0.1:{server.port}",
            session=session,
            headers=headers,
            timeout=SECONDS,
        )
        case.validate_response(response, checks=CHECKS)

    with contextlib.suppress(Unsatisfiable):  # where nothing is asked, nothing is wrong either
        ask()
