"""What must hold of every state, and of every event before it is applied; empty means all does.

The simulator and the property tests ask after each step; a replica asks once after a snapshot. A
sentence returned here is a bug of `decide` or `apply`, never an operator's mistake.
"""

from collections.abc import Iterator

from protocol.cards import card_digest
from protocol.events import (
    ApiKeyChanged,
    ApiKeyRevoked,
    BreakerCleared,
    CardRemoved,
    ClusterFounded,
    DownloadForgotten,
    Event,
    InstanceFailed,
    InstanceFellAsleep,
    InstancePinned,
    InstancePlaced,
    InstanceRemoved,
    InstanceReplanned,
    InstanceRetried,
    InstanceStopRequested,
    InstanceUnpinned,
    InstanceWoken,
    JoinTokenCreated,
    JoinTokenRevoked,
    MasterElected,
    MemberFactsReported,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberRemoved,
    MemberReturned,
    MemoryMeasured,
    NodeDrainEnded,
    NodeDrainStarted,
    RunnerPhaseChanged,
    SequencedEvent,
    TermSettled,
)
from protocol.instances import Instance
from protocol.measurements import MEASUREMENTS_KEPT
from protocol.peer_messages import MAX_MEMBERS
from protocol.placements import Plan
from protocol.state import (
    DEDUPE_WINDOW,
    FAILURES_KEPT,
    RECENT_RESULTS,
    REMOVED_KEPT,
    ClusterState,
)
from skulkd.core.invitation_decisions import MAX_JOIN_TOKENS


def violations(state: ClusterState) -> tuple[str, ...]:
    """Name what does not hold of a state."""
    found = [*_bounds(state), *_keys(state), *_copies(state), *_membership(state)]
    for instance in state.instances.values():
        found.extend(f"instance {instance.instance_id}: {what}" for what in _instance(instance))
        replaced = instance.replaces
        if replaced is not None and (
            replaced.instance_id not in state.instances
            or replaced.instance_id == instance.instance_id
        ):
            found.append(f"{instance.instance_id} takes the place of {replaced.instance_id}")
    return tuple(found)


def event_violations(state: ClusterState, sequenced: SequencedEvent) -> tuple[str, ...]:
    """Name why a record cannot be the next one of the log that led to this state."""
    found: list[str] = []
    if sequenced.seq != state.seq + 1:
        found.append(f"seq {sequenced.seq} follows seq {state.seq}")
    if sequenced.term < state.term:
        found.append(f"term {sequenced.term} follows term {state.term}")
    if sequenced.at_ms < state.at_ms:
        found.append(f"stamp {sequenced.at_ms} follows stamp {state.at_ms}")
    found.extend(_term(state, sequenced))
    found.extend(_unknown(state, sequenced))
    return tuple(found)


def _term(state: ClusterState, sequenced: SequencedEvent) -> Iterator[str]:
    """Check that a term begins with its election, and has one."""
    is_new = sequenced.term > state.term
    match sequenced.event:
        case ClusterFounded():
            return
        case MasterElected():
            if not is_new and state.master is not None:
                yield f"term {sequenced.term} elects {sequenced.event.master} after {state.master}"
        case _:
            if is_new:
                yield f"term {sequenced.term} begins with {sequenced.event.kind}"


def _unknown(state: ClusterState, sequenced: SequencedEvent) -> Iterator[str]:
    """Name what the event speaks of and the state does not hold."""
    event = sequenced.event
    is_known, what = _about_members(state, event) or _about_the_rest(state, event) or (True, "")
    if not is_known:
        yield f"{event.kind}: the state does not hold {what}"


def _about_members(state: ClusterState, event: Event) -> tuple[bool, str] | None:
    match event:
        case (
            MemberFactsReported()
            | MemberLost()
            | MemberLeft()
            | MemberReturned()
            | MemberRemoved()
            | NodeDrainStarted()
            | NodeDrainEnded()
        ):
            return event.node_id in state.members, event.node_id
        case MemberJoined():
            if event.token_id is None:
                return None
            token = state.join_tokens.get(event.token_id)
            return token is not None and token.uses_left > 0, f"a use of {event.token_id}"
        case JoinTokenCreated():
            token_id = event.token.token_id
            return token_id not in state.join_tokens, f"a free place for {token_id}"
        case JoinTokenRevoked():
            return event.token_id in state.join_tokens, event.token_id
        case DownloadForgotten():
            key = f"{event.node_id}/{event.model_id}"
            return key in state.downloads, f"a download {key}"
        case TermSettled():
            return state.is_minority_term, "a term that is to be settled"
        case _:
            return None


def _about_the_rest(state: ClusterState, event: Event) -> tuple[bool, str] | None:
    match event:
        case CardRemoved():
            return event.model_id in state.cards, event.model_id
        case ApiKeyRevoked():
            return event.key_id in state.api_keys, event.key_id
        case ApiKeyChanged():
            return event.key.key_id in state.api_keys, event.key.key_id
        case InstanceFailed():
            instance_id = event.failure.instance_id
            return instance_id in state.instances, instance_id
        case (
            InstanceRetried()
            | BreakerCleared()
            | InstancePinned()
            | InstanceUnpinned()
            | InstanceStopRequested()
            | InstanceRemoved()
        ):
            return event.instance_id in state.instances, event.instance_id
        case InstanceReplanned():
            instance = state.instances.get(event.instance_id)
            is_next = instance is not None and event.attempt == instance.attempt + 1
            is_free = instance is not None and _takes_models(state, event.plan)
            return is_next and is_free, f"a free place for {event.instance_id}"
        case InstanceWoken() | InstanceFellAsleep():
            instance = state.instances.get(event.instance_id)
            desired = "asleep" if event.kind == "instance_woken" else "running"
            is_known = instance is not None and instance.desired == desired
            return is_known, f"{event.instance_id}, {desired}"
        case RunnerPhaseChanged() | MemoryMeasured():
            instance = state.instances.get(event.instance_id)
            told = event.attempt if event.kind == "memory_measured" else event.runner.attempt
            is_known = instance is not None and instance.attempt == told
            return is_known, f"attempt {told} of {event.instance_id}"
        case InstancePlaced():
            instance_id = event.instance.instance_id
            is_free = instance_id not in state.instances and _takes_models(
                state, event.instance.plan
            )
            return is_free, f"a free place for {instance_id}"
        case _:
            return None


def _takes_models(state: ClusterState, made: Plan) -> bool:
    members = (state.members.get(shard.node_id) for shard in made.shards)
    return all(member is None or member.drain_since_ms is None for member in members)


def _bounds(state: ClusterState) -> Iterator[str]:
    if len(state.recent_results) >= RECENT_RESULTS:
        yield f"{len(state.recent_results)} results wait to be merged"
    kept = (
        (len(state.results), DEDUPE_WINDOW, "results in the dedupe window"),
        (len(state.failures), FAILURES_KEPT, "failures"),
        (len(state.placement_failures), FAILURES_KEPT, "failed placements"),
        (len(state.measurements), MEASUREMENTS_KEPT, "measurements"),
        (len(state.members), MAX_MEMBERS, "members"),
        (len(state.removed), REMOVED_KEPT, "removed members"),
        (len(state.join_tokens), MAX_JOIN_TOKENS, "invitations"),
    )
    yield from (f"there are {count} {what}" for count, most, what in kept if count > most)
    settled = (state.settled_term, state.settled_seq)
    if settled > (state.term, state.seq) or (state.is_minority_term and settled[1] >= state.seq):
        yield f"settled at {settled}, and the log ends at {(state.term, state.seq)}"
    beyond = [result for result in state.results.values() if result.seq > state.seq]
    beyond.extend(result for result in state.recent_results if result.seq > state.seq)
    if beyond:
        yield f"command {beyond[0].command_id} led to seq {beyond[0].seq}, the log ends before"


def _keys(state: ClusterState) -> Iterator[str]:
    """Check that every mapping's keys are the ids inside its values."""
    pairs = [
        *((key, member.node_id) for key, member in state.members.items()),
        *((key, instance.instance_id) for key, instance in state.instances.items()),
        *((key, card.model_id) for key, card in state.cards.items()),
        *((key, api_key.key_id) for key, api_key in state.api_keys.items()),
        *((key, token.token_id) for key, token in state.join_tokens.items()),
        *((key, removed.node_id) for key, removed in state.removed.items()),
        *((key, result.command_id) for key, result in state.results.items()),
        *((key, one.key.digest()) for key, one in state.measurements.items()),
        *((key, f"{done.node_id}/{done.model_id}") for key, done in state.downloads.items()),
    ]
    yield from (f"key {key} holds {inside}" for key, inside in pairs if key != inside)


def _membership(state: ClusterState) -> Iterator[str]:
    """Check that what belongs to a node belongs to a member; a removed node leaves nothing."""
    yield from (f"{key} is a member and removed" for key in state.removed.keys() & state.members)
    if state.members and not any(member.is_voter for member in state.members.values()):
        yield "no member has a vote"
    for token in state.join_tokens.values():
        if token.inviter not in state.members:
            yield f"{token.token_id} was made by {token.inviter}, who is no member"
    for outcome in state.downloads.values():
        if outcome.node_id not in state.members:
            yield f"a download of {outcome.node_id} is kept, who is no member"
    for instance in state.instances.values():
        gone = {runner.rank for runner in instance.runners if runner.phase == "stopped"}
        for shard in instance.plan.shards:
            is_over = instance.desired == "stopped" and shard.rank in gone
            if shard.node_id not in state.members and not is_over:
                yield f"{instance.instance_id} is placed on {shard.node_id}, who is no member"


def _copies(state: ClusterState) -> Iterator[str]:
    """Check that no model is live twice on one node."""
    seen: dict[tuple[str, str], str] = {}
    for instance in state.instances.values():
        is_failed = instance.failure is not None and instance.failure.final
        if instance.desired == "stopped" or is_failed:
            continue
        for shard in instance.plan.shards:
            place = (instance.model_id, shard.node_id)
            if place in seen:
                yield f"{seen[place]} and {instance.instance_id} are copies on {shard.node_id}"
            seen[place] = instance.instance_id


def _instance(instance: Instance) -> Iterator[str]:
    made = instance.plan
    if not instance.model_id == made.model_id == instance.card.model_id:
        yield f"is {instance.model_id}, plans {made.model_id}, holds {instance.card.model_id}"
    if instance.desired == "asleep" and instance.ttl_ms is None:
        yield "is asleep, and not on demand"
    if made.card_digest != card_digest(instance.card):
        yield "its plan was made for another card"
    next_layer = 0
    for place, shard in enumerate(made.shards):
        if shard.rank != place:
            yield f"shard {place} has rank {shard.rank}"
        if shard.layer_start != (0 if made.shape == "tensor" else next_layer):
            yield f"rank {shard.rank} starts at layer {shard.layer_start}, not {next_layer}"
        next_layer = shard.layer_end
        if shard.memory.headroom_bytes < 0:
            yield f"rank {shard.rank} was placed {-shard.memory.headroom_bytes} bytes too large"
    if next_layer != instance.card.n_layers:
        yield f"its shards end at layer {next_layer} of {instance.card.n_layers}"
    yield from _runners(instance)


def _runners(instance: Instance) -> Iterator[str]:
    nodes = {shard.rank: shard.node_id for shard in instance.plan.shards}
    ranks = [runner.rank for runner in instance.runners]
    if len(set(ranks)) != len(ranks):
        yield f"runners share a rank: {ranks}"
    for runner in instance.runners:
        if runner.attempt != instance.attempt:
            yield f"a runner of attempt {runner.attempt} is kept, {instance.attempt} is running"
        if nodes.get(runner.rank) != runner.node_id:
            yield f"rank {runner.rank} runs on {runner.node_id}, which the plan does not say"
    failure = instance.failure
    if failure is not None and failure.final and failure.attempt != instance.attempt:
        yield f"attempt {failure.attempt} failed for good, {instance.attempt} is running"
