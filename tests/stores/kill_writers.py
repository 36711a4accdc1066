"""Kill processes that write to a log, and see whether that is taken for tampering.

    kill_writers.py DATABASE KILLS SEED DURABILITY

Two processes at a time create runs, add events, change rows, add audit rows and delete runs; both
are killed at a random moment. It prints the number of kills, and every problem that was found.
"""

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Literal

from loopwright.kernel.events import RunPaused
from loopwright.ports import Append, AuditRow, Headline, Owner
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log

Durability = Literal["full", "normal"]
LATEST = 0.1


def is_alive(_owner: Owner) -> bool:
    return True


async def write_forever(log: SqliteLog, mark: str) -> None:
    number = 0
    while True:
        number += 1
        run = f"run_{mark}_{number}"
        for at in range(6):
            last = at == 5
            status: Literal["completed", "running"] = "completed" if last else "running"
            await log.append(
                Append(
                    run=run,
                    expected=at,
                    events=[RunPaused(at=at, by=run)],
                    headline=Headline(name=run, status=status) if at in (0, 3, 5) else None,
                    audit=[AuditRow(at=at, who=mark, action="test")] if last else (),
                )
            )
        headline = Headline(name=f"{run} again", status="completed")
        await log.append(Append(run=run, expected=6, events=[], headline=headline))
        if number % 3 == 0:
            log.forget([run])


def start_writer(path: Path, mark: str, durability: Durability) -> int:
    child = os.fork()
    if child:
        return child
    log = open_sqlite_log(path, alive=is_alive, durability=durability)
    asyncio.run(write_forever(log, mark))
    os._exit(1)


def main(path: Path, kills: int, seed: int, durability: Durability) -> None:
    chance = random.Random(seed)
    done = 0
    while done < kills:
        children = [start_writer(path, f"{done + side}", durability) for side in range(2)]
        for child in children:
            time.sleep(chance.random() * LATEST)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        done += 2
        log = open_sqlite_log(path, alive=is_alive, durability=durability)
        problems = [*log.head_problems(deep=True), *log.missing()]
        if done >= kills:
            problems += [problem for row in log.rows() for problem in log.verify(row.run)]
        log.close()
        for problem in problems:
            sys.stdout.write(f"after {done} kills: {problem}\n")
        if problems:
            return
    sys.stdout.write(f"{done} kills\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])  # type: ignore[arg-type]
