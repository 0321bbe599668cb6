"""How often the interpreter looks for garbage in cycles: seldom, because hardly anything here is.

By default it looks after every 700 new containers. A busy node has more than that under way at any
time (each request is some tasks, futures and timers), and would look at all of them again and again
to find nothing: a quarter of what a command costs on the master, a third on a member.
"""

import gc
from typing import Final

_YOUNG: Final = 10_000
"""New containers between two looks at the youngest."""
_GENERATIONS: Final = 20
"""Looks at the younger ones between two at the next older ones."""


def look_seldom() -> None:
    """Count all that is there as permanent, and look for garbage seldom from now on."""
    gc.freeze()
    gc.set_threshold(_YOUNG, _GENERATIONS, _GENERATIONS)
