from protocol.ids import node_id_of
from skulkd.cluster.boot_watch import BootWatch
from skulkd.cluster.link_views import Duplicate

NODE = node_id_of(b"n" * 32)
FIRST, SECOND = "10.0.0.1", "10.0.0.2"


def test_a_restart_is_no_duplicate() -> None:
    watch = BootWatch(NODE)
    for second in range(0, 30, 3):
        watch.note("b1", FIRST, now_s=float(second))
    for second in range(28, 60, 3):
        watch.note("b2", FIRST, now_s=float(second))
        assert watch.duplicate(float(second)) is None


def test_last_words_that_are_read_late_are_no_duplicate() -> None:
    watch = BootWatch(NODE)
    watch.note("b1", FIRST, now_s=0.0)
    watch.note("b2", FIRST, now_s=10.0)
    watch.note("b1", FIRST, now_s=10.1)
    watch.note("b2", FIRST, now_s=20.0)
    assert watch.duplicate(20.0) is None


def test_two_that_say_hello_every_three_seconds_are_found_within_six() -> None:
    for offset_ms in range(0, 3000, 100):
        watch = BootWatch(NODE)
        watch.note("b1", FIRST, now_s=0.0)
        began_s = 30.0 + offset_ms / 1000
        times = sorted(
            [(3.0 * number, "b1", FIRST) for number in range(1, 20)]
            + [(began_s + 3.0 * number, "b2", SECOND) for number in range(10)]
        )
        found_s = 0.0
        for now_s, boot_id, host in times:
            watch.note(boot_id, host, now_s=now_s)
            found = watch.duplicate(now_s)
            if found is not None:
                found_s = now_s
                assert found == Duplicate(
                    node_id=NODE,
                    boot_ids=("b1", "b2"),
                    addresses=(FIRST, SECOND),
                    last_seen_s=found.last_seen_s,
                )
                break
        assert 0 < found_s - began_s <= 6.0


def test_a_duplicate_is_forgotten_a_minute_after_it_has_gone() -> None:
    watch = BootWatch(NODE)
    for second in range(0, 12, 3):
        watch.note("b1", FIRST, now_s=float(second))
        watch.note("b2", SECOND, now_s=float(second) + 1)
    for second in range(12, 120, 3):
        watch.note("b1", FIRST, now_s=float(second))
    assert watch.duplicate(60.0) is not None
    assert watch.duplicate(10.0 + 61) is None


def test_a_flood_of_boot_ids_is_bounded() -> None:
    watch = BootWatch(NODE)
    for number in range(10_000):
        watch.note(f"b{number}", FIRST, now_s=float(number))
    assert len(watch._boots) <= 8  # pyright: ignore[reportPrivateUsage]  what is bounded
