"""What memory costs that nobody has touched for a moment: it is most of what waking up costs.

On a virtual machine whose host has other guests, caches and translations are lost within
milliseconds, so that a daemon at rest takes several times the CPU that it takes on one that is busy
(docs/decisions/0017). A figure of an idle daemon is read beside these two.
"""

import random
import statistics
import time
from dataclasses import dataclass
from typing import Final

_N_BYTES: Final = 64 << 20
_PAGE: Final = 4096
_N_READS: Final = 2000
_N_ROUNDS: Final = 20
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ReadCost:
    """CPU time of one read at a random place of 64 MiB, in nanoseconds; medians.

    Python's own part, some 20 ns, is included.
    """

    at_work_ns: float
    """In a thread that goes on reading."""
    after_pause_ns: float
    """In one that has slept for 50 ms."""

    def __str__(self) -> str:
        return (
            f"a read of memory took {self.after_pause_ns:,.0f} ns after a pause, "
            f"{self.at_work_ns:,.0f} ns without"
        )


def measure_reads() -> ReadCost:
    """Measure both, in turns; takes two seconds."""
    data = bytearray(_N_BYTES)
    for place in range(0, _N_BYTES, _PAGE):
        data[place] = 1
    rng = random.Random(1)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads reads
    at_work: list[float] = []
    after_pause: list[float] = []
    for _ in range(_N_ROUNDS):
        at_work.append(_read(data, [rng.randrange(_N_BYTES) for _ in range(_N_READS)]))
        places = [rng.randrange(_N_BYTES) for _ in range(_N_READS)]
        time.sleep(_PAUSE_S)
        after_pause.append(_read(data, places))
    return ReadCost(statistics.median(at_work), statistics.median(after_pause))


def _read(data: bytearray, places: list[int]) -> float:
    began_ns = time.thread_time_ns()
    for place in places:
        _ = data[place]
    return (time.thread_time_ns() - began_ns) / len(places)
