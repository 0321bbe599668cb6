"""What one rank of a model needs of the others: the ways to them, and that they are ready for it.

A pooled model (shape `rpc`) is driven by rank 0. The others are donors: they lend memory, know
nothing of the model, and are ready once they listen. The driver begins when all of them are.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from engines.base import Group, LayerRange
from protocol.errors import EngineError, ErrorBody, RunnerError
from protocol.nodes import EngineFacts
from protocol.placements import Plan, ShardAssignment
from protocol.state import ClusterState
from skulkd.cluster.tunnels import Tunnels
from skulkd.core.reconcile import RunnerKey
from skulkd.runtime.tasks import Tasks, sleep, timeout
from skulkd.worker.steps import choose_build
from skulkd.worker.tunnel_doors import RankWays

_LOOK_S: Final = 0.2
"""Between two looks at how far the donors are, which takes a second or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupServices:
    """What it takes to run one of several ranks."""

    tunnels: Tunnels
    tasks: Tasks
    rng: random.Random
    """Picks ports."""
    state: Callable[[], ClusterState]


def is_donor(plan: Plan, rank: int) -> bool:
    """Say whether a rank only lends memory: it needs no files and takes no requests."""
    return plan.shape == "rpc" and rank > 0


@final
class RankGroup:
    """The ranks of one attempt, as one of them sees them.

    Args:
        services: What it takes.
        key: Of the own runner.
        plan: Which node has which rank.
        on_lost: Told once when another rank is lost, with the error that this is.
    """

    def __init__(
        self,
        services: GroupServices,
        key: RunnerKey,
        plan: Plan,
        on_lost: Callable[[ErrorBody], None],
    ) -> None:
        self._services = services
        self._key = key
        self._plan = plan
        self.ways: Final = RankWays(
            services.tunnels,
            services.tasks,
            key,
            plan,
            rng=services.rng,
            on_lost=lambda rank, why: on_lost(self._lost(rank, f"is lost: {why}").body()),
        )

    async def join(self) -> Group:
        """Open the ways to the other ranks.

        Raises:
            RunnerError: `runner.spawn_failed` when there is no port for them.
        """
        shards = sorted(self._plan.shards, key=lambda shard: shard.rank)
        reached = () if is_donor(self._plan, self._key.rank) else range(len(shards))
        return Group(
            rank=self._key.rank,
            layers=tuple(LayerRange(shard.layer_start, shard.layer_end) for shard in shards),
            ports=await self.ways.open(reached),
        )

    def check_builds(self, own: EngineFacts) -> None:
        """See to it that the donors' builds are the driver's: their protocol has no promises.

        Raises:
            EngineError: `engine.unsupported`, naming node and versions; `engine.unavailable`.
        """
        for shard in self._donors():
            member = self._services.state().members.get(shard.node_id)
            if member is None or member.facts is None:
                continue  # it will not get ready, which is told by its name
            build = choose_build(self._plan, member.facts.engines, shard.rank)
            if build.version != own.version:
                raise EngineError(
                    "engine.unsupported",
                    f"llama-server {own.version} cannot share a model with node {member.name}, "
                    f"which has {build.version}: the builds must be the same",
                    remediation="Install the same build on both, or place the model without that "
                    "node (--exclude).",
                )

    async def wait_donors(self, limit_s: float, on_wait: Callable[[str], None]) -> None:
        """Wait until every donor is ready for its driver.

        Raises:
            RunnerError: `runner.rank_lost` after `limit_s` seconds.
        """
        try:
            async with timeout(limit_s):
                while late := self._late():
                    names = ", ".join(self._name_of(shard.rank) for shard in late)
                    on_wait(f"waiting for {names} to lend memory")
                    await sleep(_LOOK_S)
        except TimeoutError:
            late = self._late()
            if late:
                raise self._lost(late[0].rank, f"was not ready in {limit_s:.0f} s") from None

    def _donors(self) -> list[ShardAssignment]:
        return [shard for shard in self._plan.shards if is_donor(self._plan, shard.rank)]

    def _late(self) -> list[ShardAssignment]:
        instance = self._services.state().instances.get(self._key.instance_id)
        ready = {
            runner.rank
            for runner in (() if instance is None else instance.runners)
            if runner.attempt == self._key.attempt and runner.phase == "ready"
        }
        return [shard for shard in self._donors() if shard.rank not in ready]

    def _name_of(self, rank: int) -> str:
        node_id = next(shard.node_id for shard in self._plan.shards if shard.rank == rank)
        member = self._services.state().members.get(node_id)
        return node_id if member is None else member.name

    def _lost(self, rank: int, what: str) -> RunnerError:
        role = "donor" if is_donor(self._plan, rank) else f"rank {rank} on"
        return RunnerError(
            "runner.rank_lost",
            f"{role} {self._name_of(rank)} {what}",
            remediation="It is started anew where it can be; `skulk ps` shows how far it is.",
            details={"rank": rank},
        )
