from skulkd.worker.tombstones import KEPT_S, MAX_KEPT, Tombstones
from tests.support.builders import a_command_id


def test_an_id_is_taken_once() -> None:
    kept = Tombstones()
    kept.add(a_command_id(1), now=0.0)
    assert kept.take(a_command_id(1), now=1.0)
    assert not kept.take(a_command_id(1), now=1.0)
    assert not kept.take(a_command_id(2), now=1.0)


def test_an_id_is_kept_for_a_minute() -> None:
    kept = Tombstones()
    kept.add(a_command_id(1), now=0.0)
    assert not kept.take(a_command_id(1), now=KEPT_S)


def test_the_oldest_gives_way() -> None:
    kept = Tombstones()
    for number in range(MAX_KEPT + 1):
        kept.add(a_command_id(number), now=0.0)
    assert not kept.take(a_command_id(0), now=1.0)
    assert kept.take(a_command_id(1), now=1.0)
