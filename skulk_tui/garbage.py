"""How often the interpreter looks for garbage in cycles: not at all while starting, then seldom.

By default it looks after every 700 new containers. While the program starts it makes a hundred
thousand and loses none, so that these looks are a tenth of the time to the first paint. Later it
holds tens of thousands of log lines, and a look at all of them is a frame too late.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 10_000
"""New containers between two looks at the youngest."""
_GENERATIONS: Final = 20
"""Looks at the younger ones between two at the next older ones."""


@contextmanager
def not_looked_for() -> Generator[None]:
    """Look for no garbage until `look_seldom`; as often as before at the end of the block."""
    before = gc.get_threshold()
    gc.disable()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.enable()


def look_seldom() -> None:
    """Count all that is there as permanent, and look for garbage seldom from now on."""
    gc.freeze()
    gc.set_threshold(_YOUNG, _GENERATIONS, _GENERATIONS)
    gc.enable()
