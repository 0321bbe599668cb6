"""The planner: which node can hold a model, with what backend and window; pure.

API previews, dry runs, the TUI and the master's own check all come through here, so that an
operator is never promised what the master then refuses. Every candidate is judged by itself and
answered with a plan or a typed refusal; nothing is summed over nodes.

Nodes are ranked by: the card's preference of backends, GPU before CPU, files already there, free
memory left (in whole GiB, so that a moving reading does not reorder equals), node id.

One node is always preferred: a model is spread over several (spread.py) only when none alone can
hold it, or when that was asked for.
"""

import operator
from dataclasses import dataclass, field
from typing import Final

from protocol.cards import ModelCard
from protocol.ids import Digest, NodeId
from protocol.placements import (
    PlacementOutcome,
    PlacementRequest,
    Plan,
    Refusal,
)
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.placement import refusals
from skulkd.core.placement.backends import preference
from skulkd.core.placement.candidates import look_at, refuse_node
from skulkd.core.placement.files import holders_in
from skulkd.core.placement.measured import of_card
from skulkd.core.placement.memory_fit import claims_by_node, compute_of
from skulkd.core.placement.question import Candidate, Missing, Question
from skulkd.core.placement.single import on_one_node
from skulkd.core.placement.speed import SpeedForecast
from skulkd.core.placement.spread import spread_again, spread_plan

MAX_PREDICTED: Final = 32
"""Plans that are told how fast they would be: nobody reads through more alternatives."""
_GIB_SHIFT: Final = 30

_Rank = tuple[int, bool, bool, int, str]


def plan(
    request: PlacementRequest,
    card: ModelCard,
    digest: Digest,
    state: ClusterState,
    readings: Readings,
    *,
    now_s: float | None = None,
    unheard: frozenset[NodeId] = frozenset(),
    holders: frozenset[NodeId] | None = None,
) -> PlacementOutcome:
    """Plan a placement.

    Args:
        request: What is asked; what it leaves out is chosen here.
        card: The model, and what it needs.
        digest: `card_digest(card)`; an argument because it costs more than the planning.
        state: Members, facts, and what is placed already.
        readings: Free memory and disk of each node.
        now_s: Monotonic seconds on the clock of the readings; with it, readings older than
            STALE_READING_S count as missing.
        unheard: Members that are not heard at the moment, as the node that plans sees it; they are
            refused like those that the state calls lost.
        holders: Nodes that have the model's files. None when that is not known: then the files are
            counted as a download, and a file imported in place counts as present. A node that
            lacks them may have them from one of these.

    Returns:
        Plans, best first, all but the first marked `alternative`; a refusal for every node that
        could not take the model alone, also beside a plan over several; and, when there is no
        plan, the facts that are still arriving. With those the answer may be another one soon;
        without, it is final.
    """
    return _plan(
        Question(
            request=request,
            card=card,
            digest=digest,
            state=state,
            readings=readings,
            now_s=now_s,
            unheard=unheard,
            holders=holders,
            pinned=None,
            measurements=of_card(state.measurements, card),
        )
    )


def replan(
    made: Plan,
    request: PlacementRequest,
    card: ModelCard,
    state: ClusterState,
    readings: Readings,
    *,
    now_s: float | None = None,
    unheard: frozenset[NodeId] = frozenset(),
) -> PlacementOutcome:
    """Plan again, restricted to the nodes, backend, window and slots of a plan made before.

    The window may fill the free memory to the last byte: the tenth that the first planning left
    over is what makes its plan still hold on readings that have moved.
    """
    nodes = tuple(
        shard.node_id
        for shard in made.shards
        if not request.nodes or shard.node_id in request.nodes
    )
    restricted = request.model_copy(update={"nodes": nodes, "backend": made.backend})
    # The plan knew whether the files are there; the store itself refuses a transfer that is too
    # large before its first byte.
    held = holders_in(readings, card.model_id)
    held = held | set(nodes) if made.download_bytes == 0 else held - set(nodes)
    if not nodes:
        return PlacementOutcome(
            refusals=tuple(refusals.unknown_node(shard.node_id) for shard in made.shards)
        )
    return _plan(
        Question(
            request=restricted,
            card=card,
            digest=made.card_digest,
            state=state,
            readings=readings,
            now_s=now_s,
            unheard=unheard,
            holders=held,
            pinned=made,
            measurements=of_card(state.measurements, card),
        )
    )


def _plan(question: Question) -> PlacementOutcome:
    request = question.request
    seen = _look_round(question)
    if question.pinned is not None and len(question.pinned.shards) > 1:
        made = spread_again(question, question.pinned, seen.candidates)
        return _outcome(question, seen, () if made is None else (made,))
    if request.shape not in {None, "single"} or request.min_nodes > 1:
        return _outcome(question, seen, _spread(question, seen))
    ranked: list[tuple[_Rank, Plan]] = []
    for candidate in seen.candidates:
        verdict = on_one_node(question, candidate)
        if isinstance(verdict, Plan):
            ranked.append((_rank(question, verdict), verdict))
        else:
            seen.refuse(verdict)
    ranked.sort(key=operator.itemgetter(0))
    plans = tuple(made for _, made in ranked)
    if not plans and request.shape is None:
        plans = _together(question, seen)
    return _outcome(question, seen, plans)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look at all nodes came to."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    refused: list[Refusal] = field(default_factory=list[Refusal])
    unknown: list[str] = field(default_factory=list[str])
    """Facts that are still to come."""

    def refuse(self, verdict: Refusal | Missing) -> None:
        """Note why a node is out, for now or not."""
        if isinstance(verdict, Missing):
            self.unknown.append(verdict.fact)
            verdict = verdict.refusal
        self.refused.append(verdict)


def _look_round(question: Question) -> _Seen:
    seen = _Seen()
    seen.refused.extend(
        refusals.unknown_node(node_id)
        for node_id in question.request.nodes
        if node_id not in question.state.members
    )
    claims = claims_by_node(question.state, question.readings)
    for member in question.state.members.values():
        verdict = look_at(question, member, claims)
        if isinstance(verdict, Candidate):
            seen.candidates.append(verdict)
        else:
            seen.refuse(verdict)
    return seen


def _outcome(question: Question, seen: _Seen, plans: tuple[Plan, ...]) -> PlacementOutcome:
    forecast = SpeedForecast(question.state, question.readings)
    card = question.card
    return PlacementOutcome(
        plans=tuple(
            forecast.predicted(card, made, alternative=place > 0)
            if place < MAX_PREDICTED
            else made.model_copy(update={"alternative": True})
            for place, made in enumerate(plans)
        ),
        refusals=tuple(seen.refused),
        missing_facts=() if plans else tuple(seen.unknown),
    )


def _together(question: Question, seen: _Seen) -> tuple[Plan, ...]:
    """Plan over several nodes what no node can hold alone."""
    verdict = spread_plan(question, seen.candidates)
    if isinstance(verdict, Refusal):
        seen.refuse(verdict)
    return (verdict,) if isinstance(verdict, Plan) else ()


def _spread(question: Question, seen: _Seen) -> tuple[Plan, ...]:
    """Plan over several nodes because that was asked for."""
    request = question.request
    plans: tuple[Plan, ...] = ()
    if request.shape != "single":
        n_refused = len(seen.refused)
        plans = _together(question, seen)
        if plans or len(seen.refused) > n_refused:
            return plans
    n_able = sum(
        refuse_node(question, member) is None for member in question.state.members.values()
    )
    seen.refuse(
        refusals.unsupported_shape(
            f"at least {max(2, request.min_nodes)} nodes were asked for and {n_able} may be "
            "planned onto now; "
            + (
                "shape single takes one"
                if request.shape == "single"
                else "no two of them can share this model"
            )
        )
    )
    return ()


def _rank(question: Question, made: Plan) -> _Rank:
    node_id = made.shards[0].node_id
    headroom = sum(shard.memory.headroom_bytes for shard in made.shards)
    return (
        preference(question.card, made.backend),
        compute_of(made.backend) == "cpu",
        question.holders is not None and node_id not in question.holders,
        -(headroom >> _GIB_SHIFT),
        node_id,
    )
