# pyright: reportPrivateUsage=false

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import ClusterError
from protocol.ids import ClusterId, TokenId, cluster_id_of, token_id_of
from skulkd.api.node_joining import JoiningAccess, NodeJoining
from skulkd.cluster.curve_keys import public_key_of
from skulkd.cluster.join_guest import Admission
from skulkd.core.invitations import OpenToken, write_token
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id

CLUSTER, ELSEWHERE = cluster_id_of(b"c" * 16), cluster_id_of(b"e" * 16)
NOW_MS = 1_800_000_000_000
SECRET = b"t" * 32


@dataclass
class Told:
    """A node that remembers in which order things were asked of it."""

    n_members: int
    order: list[str] = field(default_factory=list[str])
    cluster: ClusterId = CLUSTER
    tokens: frozenset[TokenId] = frozenset()
    is_known: bool = False
    is_shut_out: bool = False

    def joining(self) -> NodeJoining:
        members = {a_node_id(number): None for number in range(1, self.n_members + 1)}
        access = SimpleNamespace(
            identity=SimpleNamespace(node_id=a_node_id(1), cluster_id=self.cluster),
            state=SimpleNamespace(
                state=SimpleNamespace(members=members, join_tokens=dict.fromkeys(self.tokens))
            ),
            wall_ms=lambda: NOW_MS,
            is_known=lambda: self.is_known,
            is_shut_out=lambda: self.is_shut_out,
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


# ---- An invitation that is given at every start ----


def _invitation(*, expires_at_ms: int = NOW_MS + 1) -> str:
    return write_token(
        OpenToken(
            cluster_id=CLUSTER,
            inviter_key=b"k" * 32,
            addresses=("10.0.0.1:12416",),
            expires_at_ms=expires_at_ms,
            secret=SECRET,
        )
    )


@pytest.mark.parametrize(
    "told",
    [
        Told(n_members=2, tokens=frozenset({token_id_of(public_key_of(SECRET))}), is_shut_out=True),
        Told(n_members=2, is_known=True, is_shut_out=True),
        Told(n_members=2, cluster=ELSEWHERE, is_shut_out=True),
        Told(n_members=1, is_known=True),
    ],
    ids=["known since before", "counted in", "member of another cluster", "alone in this one"],
)
def test_a_member_does_not_use_the_invitation_that_it_is_started_with(told: Told) -> None:
    async def main() -> None:
        assert await told.joining().is_pointless(_invitation())

    run_virtual(main, seed=1)


def test_a_node_alone_uses_the_invitation_of_another_cluster_at_once() -> None:
    async def main() -> None:
        told = Told(n_members=1, cluster=ELSEWHERE, is_known=True)
        assert not await told.joining().is_pointless(_invitation())

    run_virtual(main, seed=1)


def test_a_node_removed_while_it_was_away_uses_an_invitation_made_since() -> None:
    async def main() -> None:
        told = Told(n_members=2, is_shut_out=True)
        assert not await told.joining().is_pointless(_invitation())
        assert await told.joining().is_pointless(_invitation(expires_at_ms=NOW_MS))

    run_virtual(main, seed=1)


def test_a_member_whose_fellows_are_away_or_have_not_heard_of_it_yet_waits() -> None:
    async def main() -> None:
        told = Told(n_members=2)
        joining = told.joining()
        asked = asyncio.ensure_future(joining.is_pointless(_invitation()))
        await sleep(3600)
        assert not asked.done()
        told.is_shut_out = True
        await sleep(2)
        told.is_shut_out = False
        await sleep(60)
        assert not asked.done()
        told.is_known = True
        assert await asked

    run_virtual(main, seed=1)
