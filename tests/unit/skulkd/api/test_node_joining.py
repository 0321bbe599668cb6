# pyright: reportPrivateUsage=false

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import ClusterError
from skulkd.api.node_joining import JoiningAccess, NodeJoining
from skulkd.cluster.join_guest import Admission
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id


@dataclass
class Told:
    """A node that remembers in which order things were asked of it."""

    n_members: int
    order: list[str] = field(default_factory=list[str])

    def joining(self) -> NodeJoining:
        members = {a_node_id(number): None for number in range(1, self.n_members + 1)}
        access = SimpleNamespace(
            identity=SimpleNamespace(node_id=a_node_id(1)),
            state=SimpleNamespace(state=SimpleNamespace(members=members)),
            retire=self.retire,
            restart=lambda: self.order.append("restart"),
        )
        return NodeJoining(cast("JoiningAccess", access))

    async def retire(self) -> None:
        self.order.append("retire")

    async def ask(self, error: ClusterError | None) -> Admission:
        self.order.append("ask")
        if error is not None:
            raise error
        return cast("Any", "admitted")


def test_a_node_with_fellows_takes_no_part_any_more_before_it_asks_to_be_let_in() -> None:
    async def main() -> None:
        told = Told(n_members=2)
        assert await told.joining()._without_fellows(told.ask(None)) == "admitted"
        assert told.order == ["retire", "ask"]

    run_virtual(main, seed=1)


def test_a_node_with_fellows_that_is_not_let_in_begins_anew_among_them() -> None:
    async def main() -> None:
        told = Told(n_members=2)
        refused = ClusterError("cluster.join_failed", "nobody is there", remediation="start one")
        with pytest.raises(ClusterError):
            await told.joining()._without_fellows(told.ask(refused))
        assert told.order == ["retire", "ask", "restart"]

    run_virtual(main, seed=1)


def test_a_node_that_is_alone_serves_on_while_it_asks_and_when_it_is_refused() -> None:
    async def main() -> None:
        told = Told(n_members=1)
        refused = ClusterError("cluster.join_failed", "nobody is there", remediation="start one")
        with pytest.raises(ClusterError):
            await told.joining()._without_fellows(told.ask(refused))
        assert told.order == ["ask"]

    run_virtual(main, seed=1)
