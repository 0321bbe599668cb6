import errno
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.home import (
    file_system_of,
    open_home,
    read_mounts,
    refuse_network_file_system,
)
from skulkd.runtime.simulated_disk import SimulatedDisk

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /home/ann nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/ann/fast\\040disk xfs rw 0 0
share /mnt/pool cifs rw 0 0
ann@box:/ /mnt/box fuse.sshfs rw 0 0
host /mnt/shared 9p rw 0 0
"""


def test_a_home_is_made_private_locked_and_named(tmp_path: Path) -> None:
    home = open_home(RealDisk(), tmp_path / "a" / "home", pid=42, mounts=read_mounts())
    assert home.path.stat().st_mode & 0o777 == 0o700
    assert home.logs.is_dir()
    assert (home.path / "lock").read_text() == "42"
    assert home.journal.parent == home.identity_file.parent == home.path
    home.close()
    home.close()


def test_a_second_daemon_is_told_who_holds_the_home(tmp_path: Path) -> None:
    first = open_home(RealDisk(), tmp_path, pid=4711)
    with pytest.raises(ConfigError) as caught:
        open_home(RealDisk(), tmp_path, pid=4712)
    assert caught.value.code == "config.home_locked"
    assert "process 4711" in caught.value.message
    assert caught.value.details["pid"] == 4711
    first.close()
    open_home(RealDisk(), tmp_path, pid=4712).close()


def test_an_open_home_widened_by_somebody_is_tightened(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    open_home(RealDisk(), tmp_path, pid=1).close()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_home_below_a_file_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        open_home(RealDisk(), tmp_path / "file" / "home", pid=1)
    assert caught.value.code == "config.home_unusable"
    assert "--home" in caught.value.remediation


def test_a_home_that_cannot_be_written_is_unusable() -> None:
    disk = SimulatedDisk()
    disk.write_error = OSError(errno.EROFS, "Read-only file system")
    with pytest.raises(ConfigError, match="Read-only file system") as caught:
        open_home(disk, Path("/home"), pid=1)
    assert caught.value.code == "config.home_unusable"


@pytest.mark.parametrize(
    ("home", "kind"),
    [
        ("/home/ann/.skulk", "nfs4"),
        ("/mnt/pool/skulk", "cifs"),
        ("/mnt/box", "fuse.sshfs"),
        ("/mnt/shared/x/y", "9p"),
    ],
)
def test_a_home_on_a_network_file_system_is_refused_with_its_mount(home: str, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_home(SimulatedDisk(), Path(home), pid=1, mounts=MOUNTS)
    assert caught.value.code == "config.home_network_fs"
    assert kind in caught.value.message


@pytest.mark.parametrize("home", ["/home/bob", "/home/annex", "/home/ann/fast disk/skulk", "/x"])
def test_a_home_on_a_local_disk_is_taken(home: str) -> None:
    opened = open_home(SimulatedDisk(), Path(home), pid=1, mounts=MOUNTS)
    assert opened.path == Path(home)


def test_the_later_of_two_mounts_at_one_place_holds() -> None:
    mounts = "a /data nfs rw 0 0\nb /data ext4 rw 0 0\nbroken line\n"
    assert file_system_of(Path("/data/x"), mounts) == (Path("/data"), "ext4")
    assert file_system_of(Path("/elsewhere"), mounts) is None


def test_a_link_to_a_network_file_system_does_not_hide_it(tmp_path: Path) -> None:
    target = tmp_path / "remote"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/ {target} nfs rw 0 0\n"
    with pytest.raises(ConfigError, match="nfs"):
        refuse_network_file_system(tmp_path / "link" / "home", mounts)
