import errno
from pathlib import Path

import pytest

from skulkd.runtime.simulated_disk import SimulatedDisk

LOG = Path("/home/log")


def _disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_private_directory(LOG.parent)
    return disk


@pytest.mark.parametrize("n_kept", range(5))
def test_a_crash_keeps_what_was_synced_and_tears_the_rest_at_any_byte(n_kept: int) -> None:
    disk = _disk()
    file = disk.open_append(LOG)
    file.write(b"safe")
    file.sync()
    file.write(b"lost")
    disk.crash(n_unsynced_bytes_kept=n_kept)
    assert disk.read(LOG, max_bytes=100) == b"safelost"[: 4 + n_kept]
    with pytest.raises(OSError, match="closed"):
        file.write(b"from before the crash")


def test_after_a_failed_sync_the_bytes_read_back_and_are_lost_all_the_same() -> None:
    disk = _disk()
    file = disk.open_append(LOG)
    file.write(b"safe")
    file.sync()
    file.write(b"lost")
    disk.sync_error = OSError(errno.EIO, "bad sector")
    with pytest.raises(OSError, match="bad sector"):
        file.sync()
    disk.sync_error = None
    file.write(b"more")
    file.sync()
    assert disk.read(LOG, max_bytes=100) == b"safelostmore"
    disk.crash()
    assert disk.read(LOG, max_bytes=100) == b"safe\0\0\0\0more"
    assert disk.n_syncs == 3


def test_a_full_disk_takes_what_fits_and_keeps_the_old_file() -> None:
    disk = _disk()
    disk.replace(LOG.with_name("state"), b"old")
    disk.capacity_bytes = 10
    file = disk.open_append(LOG)
    with pytest.raises(OSError, match="full") as caught:
        file.write(b"0123456789")
    assert caught.value.errno == errno.ENOSPC
    assert disk.read(LOG, max_bytes=100) == b"0123456"
    assert disk.free_bytes(LOG) == 0
    with pytest.raises(OSError, match="full"):
        disk.replace(LOG.with_name("state"), b"new")
    assert disk.read(LOG.with_name("state"), max_bytes=100) == b"old"


def test_a_failing_write_leaves_half() -> None:
    disk = _disk()
    disk.write_error = OSError(errno.EIO, "bad sector")
    file = disk.open_append(LOG)
    with pytest.raises(OSError, match="bad sector"):
        file.write(b"0123")
    assert disk.read(LOG, max_bytes=100) == b"01"


def test_a_flipped_bit_is_there_after_a_crash_too() -> None:
    disk = _disk()
    disk.replace(LOG, b"\x00\x00")
    disk.flip_bit(LOG, 1, 7)
    disk.crash()
    assert disk.read(LOG, max_bytes=2) == b"\x00\x80"


def test_a_crash_drops_locks() -> None:
    disk = _disk()
    before = disk.try_lock(LOG, b"1")
    assert before is not None
    disk.crash()
    after = disk.try_lock(LOG, b"2")
    assert after is not None
    before.release()
    assert disk.try_lock(LOG, b"3") is None


def test_a_slow_sync_says_how_slow() -> None:
    stalls: list[float] = []
    disk = SimulatedDisk(stall=stalls.append)
    disk.make_private_directory(LOG.parent)
    disk.sync_delay_s = 2.0
    disk.open_append(LOG).sync()
    assert stalls == [2.0]
    disk.replace(LOG.with_name("state"), b"new")
    assert stalls == [2.0, 2.0]
