import gc
import weakref
from collections import UserList

from skulkd.runtime.garbage import look_seldom


class Knot(UserList[object]):
    """A list that can be weakly referenced."""


def a_knot() -> "weakref.ref[Knot]":
    knot = Knot()
    knot.append(knot)
    return weakref.ref(knot)


def test_garbage_in_cycles_is_found_still_but_not_by_every_request() -> None:
    before = gc.get_threshold()
    n_looks = gc.get_stats()[0]["collections"]
    try:
        look_seldom()
        lost = a_knot()
        kept = [[number] for number in range(5_000)]
        assert gc.get_stats()[0]["collections"] - n_looks <= 1
        kept += [[number] for number in range(30_000)]
        assert lost() is None
        assert len(kept) == 35_000
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
