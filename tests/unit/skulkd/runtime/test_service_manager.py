import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, final

import pytest

from skulkd.runtime.service_manager import ServiceManager, manager_of
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import VirtualLoop


@final
class Heard:
    """Keeps what a manager would have received."""

    def __init__(self, *, is_deaf: bool = False) -> None:
        self.said: list[str] = []
        self.is_deaf = is_deaf
        self.is_closed = False

    def send(self, data: bytes, /) -> int:
        if self.is_deaf:
            raise ConnectionRefusedError
        self.said.append(data.decode())
        return len(data)

    def close(self) -> None:
        self.is_closed = True


def in_virtual_time(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


def test_signs_of_life_come_three_times_within_the_limit_and_end_with_it() -> None:
    heard = Heard()

    async def story() -> None:
        manager = ServiceManager(heard, 30.0)
        manager.start()
        await sleep(61.0)
        manager.close()
        await sleep(60.0)

    in_virtual_time(story)
    assert heard.said == ["WATCHDOG=1"] * 7
    assert heard.is_closed


def test_a_manager_without_a_watchdog_hears_only_of_the_beginning_and_the_end() -> None:
    heard = Heard()

    async def story() -> None:
        manager = ServiceManager(heard)
        manager.start()
        manager.ready("serving on port 52415")
        await sleep(100.0)
        manager.stopping()
        manager.close()
        manager.close()
        manager.ready("nobody hears this")

    in_virtual_time(story)
    assert heard.said == [
        "READY=1\nSTATUS=serving on port 52415",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_a_manager_that_is_gone_for_a_while_is_warned_about_once_and_told_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard(is_deaf=True)

    async def story() -> None:
        manager = ServiceManager(heard, 3.0)
        manager.start()
        await sleep(2.5)
        heard.is_deaf = False
        await sleep(1.0)
        manager.close()

    in_virtual_time(story)
    assert heard.said == ["WATCHDOG=1"]
    assert len(caplog.records) == 1


def a_socket(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(path)
    listening.settimeout(5)
    return listening


def test_the_socket_that_the_environment_names_is_written_to(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with a_socket(path) as listening:
        manager = manager_of({"NOTIFY_SOCKET": path}, pid=7)
        manager.ready("up")
        assert listening.recv(100) == b"READY=1\nSTATUS=up"
        manager.close()


@pytest.mark.parametrize(
    ("environment", "is_asked"),
    [
        ({"WATCHDOG_USEC": "30000000"}, True),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, True),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({}, False),
    ],
)
def test_signs_of_life_are_given_only_where_they_are_asked_of_this_process(
    tmp_path: Path, environment: dict[str, str], is_asked: bool
) -> None:
    path = str(tmp_path / "notify")
    with a_socket(path) as listening:
        manager = manager_of({"NOTIFY_SOCKET": path, **environment}, pid=7)

        async def story() -> None:
            manager.start()
            manager.ready("up")
            manager.close()

        in_virtual_time(story)
        first = listening.recv(100)
    assert (first == b"WATCHDOG=1") is is_asked


@pytest.mark.parametrize("address", [None, "", "not/absolute", "vsock:2:1", "/gone/notify"])
def test_where_there_is_no_manager_nothing_is_sent_and_nothing_fails(
    address: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manager_of({} if address is None else {"NOTIFY_SOCKET": address}, pid=7)
    manager.ready("up")
    manager.stopping()
    manager.close()
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == (1 if address == "/gone/notify" else 0)
