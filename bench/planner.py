"""How long it takes to plan: P25, at 20, 100 and 1,000 nodes.

The fleet is that of the tests, repeated, and half of its memory is used. The times are CPU times
of one thread, since others may use the machine meanwhile. Per size the slowest question counts: a
model that many nodes hold, one that only a group holds, and one that nothing holds.
"""

import gc
import time
from itertools import cycle, islice
from typing import Final

from bench.harness import Result
from protocol.cards import ModelCard, card_digest
from protocol.nodes import Member, NodeFacts
from protocol.placements import PlacementRequest
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.placement.planner import plan
from tests.support.builders import GIB, a_card, a_state
from tests.support.fleet import members_of, readings_of
from tests.support.fleet_machines import FLEET

GOALS: Final = ((20, 2.0, 0.5), (100, 10.0, 2.0), (1000, 50.0, 10.0))
"""Nodes, and milliseconds of the gate and of the stretch goal."""
MODELS: Final = {"one node": 3 * GIB, "a group": 500 * GIB, "no fit": 60_000 * GIB}
N_RUNS: Final = 100


def run() -> list[Result]:
    """Measure; takes half a minute."""
    results: list[Result] = []
    for n_nodes, gate, stretch in GOALS:
        machines = tuple(islice(cycle(FLEET), n_nodes))
        members = [_sharing(member) for member in members_of(machines)]
        state, readings = a_state(members=members), readings_of(machines, used_ratio=0.5)
        times = {
            name: _p99_ms(_card(size_bytes), state, readings) for name, size_bytes in MODELS.items()
        }
        worst = max(times, key=lambda name: times[name])
        results.append(
            Result(
                goal="P25",
                metric=f"planner p99, {n_nodes} nodes",
                unit="ms",
                gate=gate,
                stretch=stretch,
                seen=times[worst],
                detail=f"slowest of {', '.join(times)}: {worst}; {N_RUNS} plans each, CPU time",
            )
        )
    return results


def _card(size_bytes: int) -> ModelCard:
    return a_card(size_bytes=size_bytes, n_layers=80, backends=("llama_server", "mlx"))


def _sharing(member: Member) -> Member:
    facts: NodeFacts | None = member.facts
    if facts is None:
        return member
    engines = tuple(
        build.model_copy(
            update={"rpc": build.engine == "llama_server", "ring": build.engine == "mlx"}
        )
        for build in facts.engines
    )
    return member.model_copy(update={"facts": facts.model_copy(update={"engines": engines})})


def _p99_ms(card: ModelCard, state: ClusterState, readings: Readings) -> float:
    request, digest = PlacementRequest(model_id=card.model_id), card_digest(card)
    times: list[float] = []
    for _ in range(N_RUNS):
        gc.collect(0)
        began_ns = time.thread_time_ns()
        plan(request, card, digest, state, readings)
        times.append((time.thread_time_ns() - began_ns) / 1e6)
    return sorted(times)[int(len(times) * 0.99) - 1]
