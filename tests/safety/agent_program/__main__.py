"""A program that obeys no rules, in the place of an agent.

What it is to do comes as a JSON object in base64, in a variable or as its first argument: the task
and the target. What came of it is printed as JSON, in the words of the program that it is started
as.
"""

import base64
import json
import os
import sys

from tests.safety.agent_program import (  # noqa: F401 - each fills the list of escapes
    hidden_data,
    kernel_files,
    later_programs,
    namespaces,
    other_processes,
    sockets,
    system_calls,
)
from tests.safety.agent_program.attempts import ESCAPES, TARGET, try_escape
from tests.safety.agent_program.cells import try_cells
from tests.safety.agent_program.speech import say

VARIABLE = "AGENT_PROGRAM_ORDER"


def main() -> None:
    """Read the order, carry it out, say what came of it."""
    text = os.environ.get(VARIABLE) or sys.argv[1]
    order = json.loads(base64.urlsafe_b64decode(text))
    for name, value in order["target"].items():
        setattr(TARGET, name, value)
    if order["task"] == "escapes":
        names = order["names"] or list(ESCAPES)
        found: dict[str, object] = {name: try_escape(ESCAPES[name]) for name in names}
    else:
        found = try_cells(order["names"])
    say(os.path.basename(sys.argv[0]), json.dumps(found))


if __name__ == "__main__":
    main()
