"""A process that appends to a journal on the real disk, and says what was acknowledged.

    python -m tests.support.journal_child DIRECTORY

Prints the seq of each durable append. The fail points in the environment decide when it dies.
"""

import asyncio
import sys
from pathlib import Path

from skulkd.eventlog.journal import JournalLimits
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.tasks import Tasks
from tests.support.journal_log import Log

N_ROUNDS = 60


def _die(story: str, error: BaseException) -> None:
    raise SystemExit(story) from error


async def _main(directory: Path) -> None:
    tasks = Tasks("eventlog", on_death=_die)
    log = Log()
    limits = JournalLimits(max_segment_bytes=1_500)
    journal = await log.open(RealDisk(), SystemClock(), tasks, directory=directory, limits=limits)
    for _ in range(N_ROUNDS):
        durability = await journal.append(log.next_records(2))
        if durability.is_durable:
            sys.stdout.write(f"{durability.seq}\n")
            sys.stdout.flush()
    await journal.close()
    await tasks.close(5.0)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
