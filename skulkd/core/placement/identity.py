"""The id of a plan: a digest of its assignment; pure."""

import hashlib

from protocol.ids import Digest
from protocol.placements import Plan


def identified(made: Plan) -> Plan:
    """Give a plan its id."""
    return made.model_copy(update={"plan_id": plan_id_of(made)})


def plan_id_of(made: Plan) -> Digest:
    """Digest an assignment: what would run where, whoever asked and whatever the readings say."""
    parts = [made.model_id, made.card_digest, made.backend, made.shape]
    parts.extend((str(made.context_tokens), str(made.slots)))
    for shard in made.shards:
        parts.append(f"{shard.rank}:{shard.node_id}:{shard.layer_start}:{shard.layer_end}")
        parts.extend(() if shard.backend is None else (shard.backend,))
    return Digest(hashlib.sha256(b"skulk plan\0" + "\0".join(parts).encode()).hexdigest())
