"""Which placements wait for a transfer. Pure."""

from collections.abc import Iterable

from protocol.control_api import InstanceView

_BEFORE_FILES = frozenset({"pending", "download"})


def waiting_for(instances: Iterable[InstanceView], model_id: str, node_id: str) -> tuple[str, ...]:
    """List the instances of a model that have a runner on a node still waiting for its files."""
    return tuple(
        one.instance_id
        for one in instances
        if one.model_id == model_id
        and any(
            runner.node_id == node_id and runner.phase in _BEFORE_FILES for runner in one.runners
        )
    )
