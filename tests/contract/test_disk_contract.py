"""What every disk promises, real and simulated."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from skulkd.runtime.disk import Disk, RealDisk
from skulkd.runtime.simulated_disk import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def disk_and_home(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    disk: Disk = RealDisk() if request.param == "real" else SimulatedDisk()
    home = tmp_path / "home"
    disk.make_private_directory(home)
    return disk, home


def test_appends_add_up_over_handles(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    first = disk.open_append(home / "log")
    first.write(b"one")
    first.sync()
    first.close()
    first.close()
    second = disk.open_append(home / "log")
    assert second.size_bytes == 3
    second.write(b"two")
    assert second.size_bytes == 6
    second.close()
    assert disk.read(home / "log", max_bytes=6) == b"onetwo"
    assert disk.size_bytes(home / "log") == 6


def test_a_closed_file_takes_nothing(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    file = disk.open_append(home / "log")
    file.close()
    with pytest.raises(OSError, match=r"."):
        file.write(b"late")


def test_reading_is_bounded(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.replace(home / "file", bytes(range(100)))
    with pytest.raises(OSError, match="longer than 99") as caught:
        disk.read(home / "file", max_bytes=99)
    assert caught.value.errno == errno.EFBIG
    assert disk.read(home / "file", max_bytes=100) == bytes(range(100))


def test_replace_creates_and_overwrites_and_leaves_nothing_else(
    disk_and_home: tuple[Disk, Path],
) -> None:
    disk, home = disk_and_home
    disk.replace(home / "file", b"old and longer")
    disk.replace(home / "file", b"new")
    assert disk.read(home / "file", max_bytes=10) == b"new"
    assert disk.list(home) == ("file",)


def test_rename_takes_over_the_name(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.replace(home / "a", b"a")
    disk.replace(home / "b", b"b")
    disk.rename(home / "a", home / "b")
    assert disk.list(home) == ("b",)
    assert disk.read(home / "b", max_bytes=1) == b"a"


def test_a_directory_is_renamed_with_what_it_holds_and_removed_when_it_is_empty(
    disk_and_home: tuple[Disk, Path],
) -> None:
    disk, home = disk_and_home
    disk.make_private_directory(home / "old")
    disk.replace(home / "old" / "file", b"kept")
    file = disk.open_append(home / "old" / "log")
    disk.rename(home / "old", home / "new")
    file.write(b"late")
    file.sync()
    file.close()
    assert disk.list(home) == ("new",)
    assert disk.list(home / "new") == ("file", "log")
    assert disk.read(home / "new" / "log", max_bytes=10) == b"late"
    with pytest.raises(OSError, match=r".") as caught:
        disk.remove_directory(home / "new")
    assert caught.value.errno == errno.ENOTEMPTY
    disk.remove(home / "new" / "file")
    disk.remove(home / "new" / "log")
    disk.remove_directory(home / "new")
    disk.remove_directory(home / "new")
    assert disk.list(home) == ()


def test_a_directory_does_not_take_over_another(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    for name in ("one", "other"):
        disk.make_private_directory(home / name)
        disk.replace(home / name / "file", name.encode())
    with pytest.raises(OSError, match=r".") as caught:
        disk.rename(home / "one", home / "other")
    assert caught.value.errno == errno.ENOTEMPTY
    assert disk.read(home / "other" / "file", max_bytes=10) == b"other"


def test_truncate_cuts(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.replace(home / "file", b"0123456789")
    disk.truncate(home / "file", 4)
    assert disk.read(home / "file", max_bytes=10) == b"0123"
    file = disk.open_append(home / "file")
    file.write(b"x")
    file.close()
    assert disk.read(home / "file", max_bytes=10) == b"0123x"


def test_what_is_missing_is_file_not_found(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    attempts: tuple[Callable[[], object], ...] = (
        lambda: disk.read(home / "no", max_bytes=1),
        lambda: disk.size_bytes(home / "no"),
        lambda: disk.truncate(home / "no", 0),
        lambda: disk.rename(home / "no", home / "yes"),
        lambda: disk.list(home / "no"),
        lambda: disk.open_append(home / "no" / "file"),
        lambda: disk.replace(home / "no" / "file", b""),
    )
    for attempt in attempts:
        with pytest.raises(FileNotFoundError):
            attempt()
    disk.remove(home / "no")


def test_directories_are_listed_with_files_and_may_be_made_twice(
    disk_and_home: tuple[Disk, Path],
) -> None:
    disk, home = disk_and_home
    disk.make_private_directory(home / "sub" / "deeper")
    disk.make_private_directory(home / "sub" / "deeper")
    disk.replace(home / "file", b"")
    assert disk.list(home) == ("file", "sub")
    assert disk.list(home / "sub") == ("deeper",)


def test_remove_is_idempotent(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.replace(home / "file", b"x")
    disk.remove(home / "file")
    disk.remove(home / "file")
    assert disk.list(home) == ()


def test_free_space_is_measured(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    assert disk.free_bytes(home) > 0


def test_a_lock_has_one_holder_who_is_named_until_released(
    disk_and_home: tuple[Disk, Path],
) -> None:
    disk, home = disk_and_home
    lock = disk.try_lock(home / "lock", b"first and long")
    assert lock is not None
    assert disk.try_lock(home / "lock", b"second") is None
    assert disk.read(home / "lock", max_bytes=100) == b"first and long"
    lock.release()
    lock.release()
    again = disk.try_lock(home / "lock", b"third")
    assert again is not None
    assert disk.read(home / "lock", max_bytes=100) == b"third"
    again.release()


def test_real_files_are_private(tmp_path: Path) -> None:
    disk = RealDisk()
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    disk.make_private_directory(home)
    disk.open_append(home / "log").close()
    disk.replace(home / "file", b"x")
    assert home.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}


def test_real_writes_do_not_follow_a_planted_link(tmp_path: Path) -> None:
    disk = RealDisk()
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    for name in ("log", "file.tmp", "lock"):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match=r"."):
        disk.open_append(tmp_path / "log")
    with pytest.raises(OSError, match=r"."):
        disk.replace(tmp_path / "file", b"gone")
    with pytest.raises(OSError, match=r"."):
        disk.try_lock(tmp_path / "lock", b"gone")
    assert target.read_bytes() == b"precious"
