"""`curl`, as people use it: a run, its events as a stream and as JSON, a refusal."""

import json
import shutil
import subprocess

import pytest

from tests.http.served import Served


def curl(own: Served, path: str, *args: str) -> tuple[str, int]:
    """What is printed, and the status."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    argv = [program, "-sN", "--max-time", "20", "-w", "\n%{http_code}", *args]
    argv.append(f"http://127.0.0.1:{own.port}{path}")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    text, _, status = done.stdout.rpartition("\n")
    return text, int(status)


def test_curl_starts_and_follows_a_run(shared: Served) -> None:
    """A run is started; its stream ends with it, goes on after any number, and says the same as
    the pages of JSON.
    """
    token = ("-H", f"Authorization: Bearer {shared.token}")
    body = {"definition": shared.definition(shared.script(*["some work"] * 3))}
    sent = ("-H", "Content-Type: application/json", "-d", json.dumps(body))
    text, status = curl(shared, "/api/v1/runs", *token, *sent)
    assert status == 201
    events = f"/api/v1/runs/{json.loads(text)['run']}/events"
    text, status = curl(shared, events, *token)
    assert status == 200
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    log_events = [json.loads(line) for line in lines]
    assert log_events[-1]["kind"] == "run.finished"
    pages, _ = curl(shared, events, *token, "-H", "Accept: application/json")
    assert json.loads(pages)["events"] == log_events
    text, _ = curl(shared, events, *token, "-H", f"Last-Event-ID: {len(log_events) - 1}")
    assert text.count("data: ") == 1


def test_curl_without_a_token(shared: Served) -> None:
    """A problem is told as JSON."""
    text, status = curl(shared, "/api/v1/runs")
    assert (status, json.loads(text)["detail"]) == (401, "Authentication required")
