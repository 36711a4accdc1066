"""A real browser is a person for a server on its machine, also through a tunnel."""

import json

import pytest

from tests.real_clis.browser import browser_program
from tests.real_clis.conftest import CLIS
from tests.safety.identities import BASE, IDENTITIES, folder_of, missing, run_as


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_browser_uses_a_server_while_an_agent_hides_its_requests(identity: str) -> None:
    """Requests and a WebSocket, directly and through a tunnel that cannot be listed."""
    browser_program()
    if problem := missing(identity):
        pytest.skip(problem)
    with folder_of(identity) as folder:
        order = {"folder": str(folder), "attempts": 30}
        env = {**BASE, "HOME": str(folder), "LOOPWRIGHT_TEST_CLIS": CLIS}
        done = run_as(
            identity, ["-m", "tests.safety.browser_stage"], env=env, text=json.dumps(order)
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["meanwhile"], "the agent had ended"
    assert found["direct"] == {"statuses": [200] * 5, "socket": "0"}
    # A program of another user's run that does not stop makes a tunnel repeat its request.
    assert found["tunnel"]["socket"] == "0", found
    assert 200 in found["tunnel"]["statuses"], found
