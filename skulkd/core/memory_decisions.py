"""Decisions about what boots were seen to take."""

from protocol.cards import weights_digest
from protocol.commands import ReportMemory
from protocol.errors import RequestError
from protocol.events import Event, MemoryMeasured
from protocol.instances import Instance
from protocol.state import ClusterState
from skulkd.core.instance_decisions import reported


def report(state: ClusterState, command: ReportMemory) -> tuple[Event, ...]:
    """Note what a runner takes; a repetition, and one that is late or takes less, changes nothing.

    Raises:
        RequestError: `request.invalid` for a node or rank that the plan does not have, and for a
            key that nothing planned would look up.
    """
    instance = reported(state, command)
    if instance is None:
        return ()
    runner = next((one for one in instance.runners if one.rank == command.rank), None)
    if runner is None or runner.phase != "ready":
        return ()
    _check_key(instance, command)
    known = runner.memory
    if known is not None and known.total_bytes >= command.memory.total_bytes:
        return ()
    return (
        MemoryMeasured(
            instance_id=instance.instance_id,
            rank=command.rank,
            attempt=command.attempt,
            key=command.key,
            memory=command.memory,
        ),
    )


def _check_key(instance: Instance, command: ReportMemory) -> None:
    """Refuse what would be kept, and never found by what plans this share."""
    made, key = instance.plan, command.key
    shard = next(one for one in made.shards if one.rank == command.rank)
    planned = {
        "weights": weights_digest(instance.card),
        "engine": made.engine,
        "context_tokens": made.context_tokens,
        "slots": made.slots,
        "shape": made.shape,
        "rank": shard.rank,
        "n_ranks": len(made.shards),
        "layer_start": shard.layer_start,
        "layer_end": shard.layer_end,
    }
    told = key.model_dump(include=set(planned))
    wrong = sorted(name for name, value in planned.items() if told[name] != value)
    if wrong:
        raise RequestError(
            "request.invalid",
            f"what rank {command.rank} of {instance.instance_id} takes is reported for other "
            f"{', '.join(wrong)} than its plan says",
            remediation="Run the same build on all nodes; if they do, report this.",
            details={"fields": ", ".join(wrong)},
        )
