"""What a node answers about its cluster by itself, without a daemon around it."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import ClusterError
from skulkd.api.errors import status_of
from skulkd.api.node_cluster import ClusterRoomsAccess, NodeCluster
from skulkd.api.node_joining import NodeJoining
from skulkd.runtime.choices import Choices


class LonelyDoor:
    """Opens, on a machine that nobody can dial."""

    base_port: int | None = None
    advertised: tuple[str, ...] = ()
    missing: tuple[str, ...] = ("eth0 has no address",)

    async def open(self) -> int:
        self.base_port = 52_416
        return self.base_port


class FewChoices:
    """Keeps what is chosen in memory."""

    async def change(self, changed: Callable[[Choices], Choices]) -> None:
        changed(Choices())


def test_an_invitation_to_where_nobody_could_come_is_refused_with_what_is_missing() -> None:
    rooms: Any = SimpleNamespace(door=LonelyDoor(), choices=FewChoices())
    cluster = NodeCluster(cast("ClusterRoomsAccess", rooms), cast("NodeJoining", None))
    for kind in ("token", "code"):
        with pytest.raises(ClusterError) as caught:
            asyncio.run(cluster.invite(kind, uses=1, ttl_s=None))
        assert caught.value.code == "cluster.no_address"
        assert status_of(caught.value.code) == 409
        assert "eth0 has no address" in caught.value.message
        assert "--advertise" in caught.value.remediation
