import asyncio
import socket
import struct
from typing import cast

import pytest

from skulkd.cluster.probe import Probe, probe


async def _dial(port: int) -> socket.socket:
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    return one


def test_who_listens_is_told_from_who_does_not_and_from_silence() -> None:
    async def main() -> list[Probe]:
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.socket() as bound,
            socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        ):
            bound.bind(("127.0.0.1", 0))
            # Whoever takes no connections and has no place for one more does not answer.
            full_port = full.getsockname()[1]
            waiting = [await _dial(full_port) for _ in range(4)]
            try:
                return [
                    await probe("127.0.0.1", listening.getsockname()[1], 5.0),
                    await probe("127.0.0.1", bound.getsockname()[1], 5.0),
                    await probe("127.0.0.1", full_port, 0.2),
                ]
            finally:
                for one in waiting:
                    one.close()

    there, refused, silent = asyncio.run(main())
    assert (there.outcome, there.ip) == ("open", "127.0.0.1")
    assert refused.outcome == "refused"
    assert "nobody listens" in refused.reason
    assert silent.outcome == "unreachable"
    assert "does not answer within 0.2 s" in silent.reason


class _CutLoop(asyncio.SelectorEventLoop):
    """Its connections are made, and reset before anybody has looked at them."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__()
        self._listening = listening

    async def sock_connect(self, sock: socket.socket, address: object) -> None:
        await super().sock_connect(sock, cast("tuple[str, int]", address))
        accepted, _ = self._listening.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()


def test_a_process_that_dies_as_it_is_connected_to_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        loop = _CutLoop(listening)
        try:
            found = loop.run_until_complete(probe("127.0.0.1", listening.getsockname()[1], 5.0))
        finally:
            loop.close()
    assert found.outcome == "unreachable"
    assert "hung up" in found.reason


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 100])
def test_a_name_that_means_nothing_is_unreachable(host: str) -> None:
    found = asyncio.run(probe(host, 12416, 5.0))
    assert found.outcome == "unreachable"
    assert host in found.reason
