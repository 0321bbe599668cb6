import pytest

from protocol.envelope import MAX_PAYLOAD_BYTES, MAX_QUEUED_BYTES, PLANE_MARK, Plane
from skulkd.cluster.plane_queue import REPLACING, PlaneQueue


def _drain(queue: PlaneQueue) -> list[bytes]:
    frames: list[bytes] = []
    while queue:
        frames.append(queue.first())
        queue.drop_first()
    return frames


def test_frames_leave_in_the_order_in_which_they_came() -> None:
    queue = PlaneQueue("control")
    for number in range(100):
        assert queue.put(b"\2%d" % number, None)
    assert _drain(queue) == [b"\2%d" % number for number in range(100)]
    assert queue.n_bytes == queue.n_dropped == 0


def test_a_newer_frame_of_a_key_takes_the_place_of_the_older() -> None:
    queue = PlaneQueue("telemetry")
    for frame, key in ((b"\4a1", "a"), (b"\4b1", "b"), (b"\4-", None), (b"\4a2 longer", "a")):
        assert queue.put(frame, key)
    assert queue.n_bytes == 9 + 2 + 1
    assert queue.n_dropped == 1
    assert _drain(queue) == [b"\4a2 longer", b"\4b1", b"\4-"]
    assert queue.put(b"\4a3", "a")
    assert _drain(queue) == [b"\4a3"]


@pytest.mark.parametrize("plane", sorted(PLANE_MARK))
def test_two_payloads_of_any_size_fit_and_never_more_than_the_limit(plane: Plane) -> None:
    queue = PlaneQueue(plane)
    largest = b"m" + bytes(MAX_PAYLOAD_BYTES[plane])
    n_taken = 0
    for _ in range(50):
        had_room = queue.has_room()
        is_taken = queue.put(largest, None)
        assert had_room == is_taken
        n_taken += is_taken
        assert queue.n_bytes <= MAX_QUEUED_BYTES[plane]
    assert len(queue) >= 2
    assert (n_taken == 50) == (plane in REPLACING)
    assert queue.n_dropped == n_taken - len(queue)


def test_a_key_that_grows_pushes_out_the_oldest() -> None:
    queue = PlaneQueue("election")
    half = MAX_QUEUED_BYTES["election"] // 2
    assert queue.put(b"\1" + bytes(half), "old")
    assert queue.put(b"\1x", "young")
    assert queue.put(b"\1" + b"y" * (half + 1), "young")
    assert _drain(queue) == [b"\1" + b"y" * (half + 1)]


def test_what_is_cleared_counts_as_dropped() -> None:
    queue = PlaneQueue("data")
    for _ in range(3):
        assert queue.put(b"\5x", None)
    queue.clear()
    assert (len(queue), queue.n_bytes, queue.n_dropped) == (0, 0, 3)
