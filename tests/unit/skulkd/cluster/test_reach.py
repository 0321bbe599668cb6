import asyncio
import socket

from skulkd.cluster.reach import reach_back


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_an_address_where_somebody_listens_is_reached_whatever_the_others_do() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert not await reach_back((f"127.0.0.1:{_free_port()}", f"127.0.0.1:{port}"))
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_an_address_where_nobody_listens_is_told_with_its_port() -> None:
    port = _free_port()
    reason = asyncio.run(reach_back((f"127.0.0.1:{port}", f"127.0.0.1:{port}")))
    assert reason == f"nobody listens at 127.0.0.1 port {port}"


def test_a_name_that_leads_nowhere_and_no_address_at_all_are_told() -> None:
    assert "port 1" in asyncio.run(reach_back(("255.255.255.255:1",)))
    assert asyncio.run(reach_back(())) == "it has no address"


def test_a_guests_address_that_no_name_service_can_be_asked_for_is_told() -> None:
    for host in ("a..b", "x" * 64 + ".example"):
        assert host in asyncio.run(reach_back((f"{host}:12416",)))
