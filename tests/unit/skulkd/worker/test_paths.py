import os
import stat
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.worker.paths import SOCKETS_MAX_BYTES, make_sockets_directory, worker_paths


def test_sockets_lie_in_the_home_where_its_path_is_short() -> None:
    assert worker_paths(Path("/var/skulk"), {}).sockets == Path("/var/skulk/run")


def test_a_long_home_gets_a_short_directory_of_its_own() -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    one = worker_paths(Path("/" + "long/" * 30 + "one"), environment).sockets
    two = worker_paths(Path("/" + "long/" * 30 + "two"), environment).sockets
    assert one != two
    assert one.parent == Path("/run/user/1000")
    assert len(os.fsencode(one)) <= SOCKETS_MAX_BYTES


def test_a_runtime_directory_that_is_itself_too_long_is_passed_over() -> None:
    environment = {"XDG_RUNTIME_DIR": "/" + "long/" * 30}
    sockets = worker_paths(Path("/" + "long/" * 30), environment).sockets
    assert len(os.fsencode(sockets)) <= SOCKETS_MAX_BYTES


def test_the_directory_is_private_also_where_it_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o755)
    make_sockets_directory(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_planted_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError) as caught:
        make_sockets_directory(tmp_path / "run")
    assert caught.value.code == "config.home_unusable"
