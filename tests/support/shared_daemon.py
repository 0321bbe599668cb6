"""One daemon for all tests of a module: a fixture's scope saves a start and an end for each."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.daemon import Daemon


@contextmanager
def shared_daemon(root: Path, *, models_dir: Path | None = None) -> Generator[Daemon]:
    """Start a daemon; end it with all its children.

    Its client keeps no connection open: one would outlive the test that opened it.
    """
    daemon = Daemon(root, models_dir=models_dir)
    daemon.http.close()
    daemon.http = httpx.Client(
        base_url=daemon.url,
        timeout=60,
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    )
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.destroy()
