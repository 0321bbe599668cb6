from collections.abc import Iterator

import pytest

from skulk_tui.clock import SystemClock
from tests.support.fake_node import FakeNode


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as running:
        yield running


@pytest.fixture
def no_real_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once: what a wait is for comes with the next answer."""

    def wait_s(_self: SystemClock, _duration_s: float) -> None:
        return

    monkeypatch.setattr(SystemClock, "wait_s", wait_s)
