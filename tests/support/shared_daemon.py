"""One daemon for all tests of a module: a fixture's scope saves a start and an end for each."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.daemon import Daemon


@contextmanager
def shared_daemon(root: Path, *, models_dir: Path | None = None) -> Generator[Daemon]:
    """Start a daemon; end it with all its children."""
    daemon = Daemon(root, models_dir=models_dir)
    keep_no_connections(daemon)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.destroy()


def keep_no_connections(daemon: Daemon) -> None:
    """Have a daemon's client close each connection: one would outlive the test that opened it."""
    daemon.http.close()
    daemon.http = httpx.Client(
        base_url=daemon.url,
        timeout=60,
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    )
