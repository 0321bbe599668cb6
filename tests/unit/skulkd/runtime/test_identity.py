import errno
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.ids import cluster_id_of, node_id_of
from skulkd.runtime import identity
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.identity import Identity, KeyPair, load_or_create
from skulkd.runtime.simulated_disk import SimulatedDisk

PATH = Path("/home/identity.json")
KEYS = KeyPair(public_key=bytes(range(32)), secret_key=bytes(range(32, 64)))


def _disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_private_directory(PATH.parent)
    return disk


def _make(disk: SimulatedDisk | RealDisk, path: Path = PATH) -> Identity:
    return load_or_create(disk, path, make_keys=lambda: KEYS, entropy=bytes)


def _load(disk: SimulatedDisk) -> Identity:
    def refuse() -> KeyPair:
        raise AssertionError("a key exists")

    return load_or_create(disk, PATH, make_keys=refuse, entropy=bytes)


def test_an_identity_is_made_once_and_survives_a_crash() -> None:
    disk = _disk()
    made = _make(disk)
    assert made.node_id == node_id_of(KEYS.public_key)
    assert made.cluster_id == cluster_id_of(bytes(16))
    disk.crash()
    assert _load(disk) == made


def test_the_file_is_private_and_the_secret_is_not_shown(tmp_path: Path) -> None:
    made = _make(RealDisk(), tmp_path / "identity.json")
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600
    assert KEYS.secret_key.hex() not in repr(made)


def test_a_file_damaged_at_any_byte_is_refused_with_a_remedy() -> None:
    disk = _disk()
    _make(disk)
    good = disk.read(PATH, max_bytes=10_000)
    damaged = [good[:cut] for cut in range(len(good) - 2)]
    damaged += [good[:i] + bytes([good[i] ^ 4]) + good[i + 1 :] for i in range(len(good))]
    damaged += [b"[]", b"null", b"\xff"]
    for data in damaged:
        disk.replace(PATH, data)
        with pytest.raises(ConfigError) as caught:
            _load(disk)
        assert caught.value.code == "config.invalid"
        assert "Restore" in caught.value.remediation


def test_a_newer_file_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = _disk()
    monkeypatch.setattr(identity, "_SCHEMA", 2)
    _make(disk)
    monkeypatch.undo()
    with pytest.raises(ConfigError) as caught:
        _load(disk)
    assert caught.value.code == "config.downgrade"


def test_a_disk_that_fails_is_a_home_that_is_unusable() -> None:
    disk = _disk()
    disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ConfigError, match="No space") as caught:
        _make(disk)
    assert caught.value.code == "config.home_unusable"
