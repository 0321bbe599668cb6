"""Daemons for end-to-end tests: started on demand, gone with their children afterwards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.daemon import Daemon


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, so that `-m "not e2e"` leaves it out."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Give a factory of daemons that are not started yet; it takes `Daemon`'s arguments.

    A test that fails shows the end of each daemon's log.
    """
    made: list[Daemon] = []

    def make(
        name: str = "node",
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        models_dir: Path | None = None,
        port: int | None = None,
    ) -> Daemon:
        daemon = Daemon(
            tmp_path / name,
            arguments=arguments,
            environment=environment,
            models_dir=models_dir,
            port=port,
        )
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.destroy()
        # ruff: ignore[print]  pytest shows it when the test fails
        print(f"---- {daemon.log_path}\n{daemon.log_tail()}")


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """Give a started node with default settings."""
    node = make_daemon()
    node.start()
    return node
