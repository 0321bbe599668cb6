import asyncio
from pathlib import Path

import pytest

from protocol.envelope import DEFAULT_BASE_PORT
from skulkd.cluster import cluster_ports
from tests.support.real_transports import real_nodes


def _bases(n_nodes: int) -> list[int]:
    async def main() -> list[int]:
        async with real_nodes() as made:
            nodes = [made.make() for _ in range(n_nodes)]
            for node in nodes:
                await node.open()
            return [node.transport.base_port or 0 for node in nodes]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "highest"),
    [
        ("12500\t60999\n", 12497),
        ("32768 60999", 32765),
        ("1024 65535", 32765),
        ("", 32765),
        ("many", 32765),
    ],
)
def test_free_ports_lie_below_those_that_the_system_gives_to_outgoing_connections(
    text: str, highest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "range"
    path.write_text(text)
    monkeypatch.setattr(cluster_ports, "EPHEMERAL", path)
    for base_port in _bases(4):
        assert cluster_ports.LOWEST_BASE <= base_port <= highest
        assert abs(base_port - DEFAULT_BASE_PORT) >= 3


def test_a_system_that_does_not_say_has_the_usual_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_ports, "EPHEMERAL", tmp_path / "missing")
    assert _bases(1)[0] <= 32765
