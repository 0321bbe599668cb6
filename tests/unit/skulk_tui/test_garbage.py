import gc
import weakref
from collections import UserList

from skulk_tui.garbage import look_seldom, not_looked_for


class Knot(UserList[object]):
    """A list that can be weakly referenced."""


def a_knot() -> "weakref.ref[Knot]":
    knot = Knot()
    knot.append(knot)
    return weakref.ref(knot)


def n_looks() -> int:
    return gc.get_stats()[0]["collections"]


def test_nothing_is_looked_for_until_the_first_paint() -> None:
    before = gc.get_threshold()
    with not_looked_for():
        began = n_looks()
        kept = [[number] for number in range(20_000)]
        assert n_looks() == began
    assert gc.isenabled()
    assert gc.get_threshold() == before
    assert len(kept) == 20_000


def test_after_it_garbage_in_cycles_is_found_still_but_not_by_every_frame() -> None:
    before = gc.get_threshold()
    try:
        with not_looked_for():
            look_seldom()
            began = n_looks()
            lost = a_knot()
            kept = [[number] for number in range(5_000)]
            assert n_looks() - began <= 1
            kept += [[number] for number in range(30_000)]
            assert lost() is None
        assert gc.get_threshold() == before
        assert len(kept) == 35_000
    finally:
        gc.unfreeze()
