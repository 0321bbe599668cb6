"""Tests that mount file systems. `make test-root` runs them in a mount namespace of their own.

Elsewhere they are not collected: what they mount would stay.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon
from tests.support.mounts import mount_small_disk, unmount

IS_PRIVATE: Final = "SKULK_TEST_MOUNTS" in os.environ
"""Set by `make test-root`."""

collect_ignore_glob = [] if IS_PRIVATE else ["test_*.py"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Give a factory of small file systems, gone after the test."""
    mounted: list[Path] = []

    def make(name: str, size_mib: int) -> Path:
        path = tmp_path / name
        path.mkdir()
        mount_small_disk(path, size_mib)
        mounted.append(path)
        return path

    yield make
    for path in reversed(mounted):
        unmount(path)


@pytest.fixture
def make_daemon(small_disk: object) -> Iterator[Callable[..., Daemon]]:
    """Give a factory of daemons that are not started yet; gone before their disks are."""
    del small_disk
    made: list[Daemon] = []

    def make(root: Path, *, models_dir: Path | None = None) -> Daemon:
        daemon = Daemon(root, models_dir=models_dir)
        # What the daemon prints must not be what fills its disk.
        daemon.log_path = root.parent / f"{root.name}.log"
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.destroy()
        # ruff: ignore[print]  pytest shows it when the test fails
        print(f"---- {daemon.log_path}\n{daemon.log_tail()}")
